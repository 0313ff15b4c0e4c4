// Searches with an API key, shows each passage in its context, and why it was found.
// Texts are inserted as text only: no string is ever parsed as HTML.

import { count, counted, el, setText, svg } from "./view.js";

const KEY = "elf-api-key";
const TIMEOUT_MS = 40_000;
const WITHOUT = {
  query_vector: "the provider did not embed the query, so these notes were found by keyword alone",
  index: "the index did not answer, so Postgres searched the newest notes",
  rerank: "the reranker did not answer, so the notes are in the order of the fused score",
};

const $ = (id) => document.getElementById(id);
/** The number of the search that was asked last: an answer to an earlier one is not shown. */
let asked = 0;

class Unauthorized extends Error {}

async function api(path, body) {
  const answer = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: { authorization: `Bearer ${sessionStorage.getItem(KEY)}`, "content-type": "application/json" },
    body: body && JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const said = await answer.json().catch(() => null);
  if (answer.status === 401) throw new Unauthorized("The server does not know this key, or it was revoked.");
  if (!answer.ok) {
    const message = said?.error?.message ?? `The server answered with status ${answer.status}.`;
    throw Object.assign(new Error(message), { status: answer.status });
  }
  if (said === null) throw new Error("The answer is not from ELF: it is not JSON.");
  return said;
}

function signedIn(message = "") {
  const has = sessionStorage.getItem(KEY) !== null;
  $("sign-in").hidden = has;
  $("page").hidden = !has;
  $("sign-out").hidden = !has;
  setText($("sign-in-error"), message);
  (has ? $("query") : $("token")).focus();
}

function signOut(message) {
  sessionStorage.removeItem(KEY);
  asked += 1;
  show(null);
  $("token").value = "";
  signedIn(message);
}

$("sign-out").addEventListener("click", () => signOut());
$("sign-in").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value.trim());
  signedIn();
});

/** The body of a request, from the form. */
function request() {
  const fields = new FormData($("ask"));
  const filter = {};
  for (const name of ["project_id", "agent_id", "scope", "type", "key"]) {
    if (fields.get(name)) filter[name] = fields.get(name);
  }
  // A day begins at midnight of the person who asks.
  for (const name of ["updated_after", "updated_before"]) {
    if (fields.get(name)) filter[name] = new Date(`${fields.get(name)}T00:00`).toISOString();
  }
  if (fields.get("min_importance")) filter.min_importance = Number(fields.get("min_importance"));
  return { query: $("query").value, limit: Number(fields.get("limit")), by: fields.get("by"), filter };
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const mine = (asked += 1);
  const began = performance.now();
  setText($("took"), "Searching …");
  $("trouble").hidden = true;
  try {
    const answer = await api("v2/searches", request());
    if (mine !== asked) return;
    show(answer);
    setText($("took"), `${count(Math.round(performance.now() - began))} ms`);
  } catch (error) {
    if (mine !== asked) return;
    if (error instanceof Unauthorized) return signOut(error.message);
    show(null);
    $("trouble").hidden = false;
    const isLate = error.name === "TimeoutError";
    setText($("trouble"), isLate ? "The server did not answer in time." : error.message);
  }
});

function show(answer) {
  const items = answer?.items ?? [];
  const without = answer?.degraded ?? [];
  setText($("took"), "");
  $("trouble").hidden = true;
  $("degraded").hidden = without.length === 0;
  setText($("degraded"), `Not everything worked: ${without.map((code) => WITHOUT[code] ?? code).join("; ")}.`);
  $("summary").hidden = answer === null;
  const found = items.length ? counted(items.length, "note") : "No note found";
  const summary = answer?.nothing_near && items.length ? "Nothing near: only weak hits" : found;
  setText($("summary"), summary);
  setText($("announce"), answer ? summary : "");
  // All results of a search share its trace, and it is read once.
  let trace;
  const traced = () => (trace ??= recorded(answer.search_id).catch((error) => { trace = undefined; throw error; }));
  $("results").replaceChildren(...items.map((item, i) => result(item, i + 1, answer.search_id && traced)));
  $("results").querySelectorAll(".result").forEach(showPassage);
}

/** The record of a search. The server writes it a moment after the answer. */
async function recorded(searchId) {
  for (let tries = 4; ; tries -= 1) {
    try {
      return await api(`v2/admin/traces/${searchId}`);
    } catch (error) {
      if (error.status !== 404 || tries === 0) throw error;
      await new Promise((done) => setTimeout(done, 500));
    }
  }
}

const bytesOf = new TextEncoder(), textOf = new TextDecoder();

/** The context with its passage and the words of the query in it. Offsets are in bytes of UTF-8. */
function parts({ context, passage }) {
  const bytes = bytesOf.encode(context.text);
  const text = (from, to) => textOf.decode(bytes.slice(from - context.start_offset, to - context.start_offset));
  let at = passage.start_offset;
  const marked = passage.highlights.flatMap(({ start_offset, end_offset }) => {
    const before = text(at, start_offset);
    at = end_offset;
    return [before, el("mark", {}, text(start_offset, end_offset))];
  });
  const inside = el("span", { class: "passage" }, ...marked, text(at, passage.end_offset));
  return [text(context.start_offset, passage.start_offset), inside, text(passage.end_offset, context.end_offset)];
}

/** Scrolls the context of a result to its passage. */
function showPassage(row) {
  const [context, passage] = [row.querySelector(".context"), row.querySelector(".passage")];
  context.scrollTop = passage.offsetTop - context.offsetTop - context.clientHeight / 4;
}

const score = (value) => (value == null ? "none" : value.toFixed(3));

/** Below it, a note is a weak hit. */
const WEAK = 0.3;

function result(item, rank, traced) {
  const scores = [`meaning ${score(item.dense)}`, `keyword ${score(item.bm25)}`, `fused ${score(item.score)}`];
  if (item.relevance != null) scores.unshift(`relevance ${item.relevance.toFixed(2)}${item.relevance < WEAK ? " (weak)" : ""}`);
  if (item.rerank != null) scores.push(`rerank ${score(item.rerank)}`);
  const ofSource = item.source ? `${item.source} ${item.source_id}` : null;
  const name = item.key ?? ofSource ?? item.note_id;
  const title = item.title ? ` (${item.title})` : "";
  const row = el("li", { class: "card result" },
    el("div", { class: "head" }, el("h3", {}, `${rank}. ${name}${title}`), el("p", { class: "scores" }, scores.join(" · "))),
    el("blockquote", { class: "context", tabindex: "0", "aria-label": `Passage of ${name}` }, ...parts(item)));
  if (traced) row.append(opening("Why", "why", async () => why(await traced(), item.chunk_id)));
  row.append(opening("How the note was chunked", "chunks", async () => chunks(await api(`v2/notes/${item.note_id}/chunks`), item.chunk_id)));
  return row;
}

/** A part of the page that is made when a person opens it. */
function opening(title, kind, make) {
  const place = el("div", {});
  const details = el("details", { class: kind }, el("summary", {}, title), place);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.dataset.made) return;
    place.dataset.made = "yes";
    try {
      place.replaceChildren(...(await make()));
    } catch (error) {
      if (error instanceof Unauthorized) return signOut(error.message);
      delete place.dataset.made;
      place.replaceChildren(el("p", { class: "bad" }, error.message));
    }
  });
  return details;
}

const STAGES = [
  { name: "Meaning", rank: "dense_rank", score: "dense" },
  { name: "Keyword", rank: "bm25_rank", score: "bm25" },
  { name: "Fused", rank: "fused_rank", score: "fused" },
  { name: "Answer", rank: "rank", score: "rerank" },
];
const ORDER = ["embed", "retrieve", "revalidate", "stitch", "rerank", "diversify"];
const WIDTH = 560, TOP = 26, LEFT = 50, RIGHT = 50, STEP = 22, DEEPEST = 12;

/** A chunk's rank in each stage, against those of the answer. Ranks below the twelfth share a line. */
function why(trace, chunkId) {
  const here = trace.items.find((item) => item.chunk_id === chunkId);
  if (!here) return [el("p", { class: "muted" }, "This search has no record of the chunk.")];
  const lines = trace.items.filter((item) => item.rank != null && item.rank <= DEEPEST && item !== here);
  const height = TOP + STEP * (DEEPEST + 1) + 8;
  const x = (stage) => LEFT + (stage * (WIDTH - LEFT - RIGHT)) / (STAGES.length - 1);
  const y = (rank) => TOP + STEP * (rank == null || rank > DEEPEST ? DEEPEST + 0.5 : rank - 0.5);
  const words = STAGES.map(({ name, rank }) => `${name} ${here[rank] == null ? "not found" : `rank ${here[rank]}`}`);
  const root = svg("svg", { role: "img", "aria-label": `The way of this chunk: ${words.join(", ")}.`, viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height });
  STAGES.forEach(({ name }, i) => root.append(svg("text", { class: "stage", x: x(i), y: 12, "text-anchor": "middle" }, name)));
  root.append(svg("text", { class: "out", x: 2, y: y(null) + 4 }, `> ${DEEPEST}`));
  for (const item of [...lines, here]) {
    const isThis = item === here ? " this" : "";
    const stops = STAGES.map(({ rank }, i) => [x(i), y(item[rank]), item[rank]]);
    root.append(svg("path", { class: `way${isThis}`, d: `M${stops.map(([a, b]) => `${a},${b}`).join("L")}` }));
    for (const [a, b, rank] of stops) {
      root.append(svg("circle", { class: `stop${isThis}`, cx: a, cy: b, r: isThis ? 9 : 4 }));
      if (isThis) root.append(svg("text", { class: "rank", x: a, y: b + 3.5, "text-anchor": "middle" }, rank ?? "–"));
    }
  }
  const rows = STAGES.map(({ name, rank, score: of }) => el("tr", {},
    el("th", { scope: "row" }, name), el("td", { class: "number" }, here[rank] == null ? "–" : count(here[rank])),
    el("td", { class: "number" }, here[of] == null ? "–" : score(here[of]))));
  const head = el("tr", {}, ...["Stage", "Rank", "Score"].map((text, i) => el("th", { scope: "col", class: i ? "number" : "" }, text)));
  const table = el("table", {}, el("caption", { class: "unseen" }, "Rank and score in each stage"), el("thead", {}, head), el("tbody", {}, ...rows));
  const took = ORDER.filter((stage) => trace.took_ms[stage] > 0).map((stage) => `${stage} ${count(trace.took_ms[stage])} ms`).join(", ");
  const dropped = trace.dropped ? ` Postgres did not confirm ${counted(trace.dropped, "candidate")}.` : "";
  const text = `The index gave ${counted(trace.candidates, "candidate")}.${dropped} The thin lines are the other notes of the answer. The stages took: ${took}.`;
  return [root, table, el("p", { class: "muted" }, text)];
}

function chunks({ indexed, chunks: all }, chunkId) {
  const rows = all.map((chunk, i) => {
    const overlap = Math.max(0, (all[i - 1]?.end_offset ?? 0) - chunk.start_offset);
    const bytes = `bytes ${count(chunk.start_offset)} to ${count(chunk.end_offset)}${overlap ? `, the first ${count(overlap)} also in the chunk before` : ""}`;
    return el("li", { class: chunk.chunk_id === chunkId ? "this" : "" }, el("p", { class: "muted" }, bytes), el("p", {}, chunk.text));
  });
  const later = indexed ? "" : " The note has changed since, and a worker will index it again.";
  return [el("p", { class: "muted" }, `${counted(all.length, "chunk")}.${later}`), el("ol", { class: "pieces" }, ...rows)];
}

signedIn();
