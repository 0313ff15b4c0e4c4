/**
 * Adds a note and finds it, with types that were generated from the description of the API:
 *
 *     npm install openapi-fetch openapi-typescript typescript @types/node
 *     npx openapi-typescript http://127.0.0.1:9465/openapi.json --default-non-nullable=false --output api.d.ts
 *     npx tsc --strict --module nodenext --skipLibCheck client.ts
 *     ELF_API_KEY=elf_… node client.js "Parcels that are lost are paid back."
 */
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

const elf = createClient<paths>({
  baseUrl: process.env.ELF_API_URL ?? "http://127.0.0.1:9465",
  headers: { authorization: `Bearer ${process.env.ELF_API_KEY}` },
});
const text = process.argv[2];

const added = await elf.POST("/v2/notes", {
  params: { query: { wait: "indexed" } },
  body: { notes: [{ text, project_id: "shop", agent_id: "clerk", scope: "team", type: "faq" }] },
});
if (!added.data) throw new Error(JSON.stringify(added.error));
console.log("added", added.data.note_ids[0], "indexed", added.data.indexed);

const found = await elf.POST("/v2/searches", {
  body: { query: text, limit: 3, filter: { project_id: "shop" } },
});
if (!found.data) throw new Error(found.error.error.message);
for (const item of found.data.items) console.log(item.note_id, item.passage.text);
