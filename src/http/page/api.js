// Shows each operation of openapi.json with a form that sends it.
// Texts are inserted as text only: no string is ever parsed as HTML.

import { count, el, setText } from "./view.js";

/** The search page keeps the key under the same name. */
const KEY = "elf-api-key";
const TIMEOUT_MS = 40_000;
/** Characters of an answer that are shown. */
const MAX_SHOWN = 100_000;

const $ = (id) => document.getElementById(id);
let api;

function showKey() {
  setText($("key-state"), sessionStorage.getItem(KEY) ? "Requests carry the key." : "Requests carry no key.");
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  $("key").value = "";
  showKey();
});

/** A schema without its references. Of alternatives, the first that is not null. */
function resolve(schema = {}) {
  if (schema.$ref) return resolve(schema.$ref.slice(2).split("/").reduce((at, name) => at[name], api));
  const first = (schema.oneOf ?? schema.anyOf)?.find((one) => one.type !== "null");
  if (first) return { ...resolve(first), description: schema.description ?? resolve(first).description };
  if (schema.allOf) return schema.allOf.map(resolve).reduce((all, one) => ({ ...all, ...one }), schema);
  return schema;
}

const typesOf = (schema) => [schema.type].flat().filter((type) => type && type !== "null");

/** What a schema takes, in a few words. */
function kind(given) {
  const schema = resolve(given);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const [type = "anything"] = typesOf(schema);
  if (type === "array") return `array of ${kind(schema.items)}`;
  return (type === "string" && schema.format) || type;
}

/** A value to begin with: the required fields of an object. */
function sample(given) {
  const schema = resolve(given);
  if (schema.example !== undefined) return schema.example;
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  switch (typesOf(schema)[0]) {
    case "array": return [sample(schema.items)];
    case "object": return Object.fromEntries((schema.required ?? []).map((name) => [name, sample(schema.properties[name])]));
    case "integer": case "number": return schema.minimum ?? 1;
    case "boolean": return false;
    default: return schema.format === "uuid" ? "00000000-0000-0000-0000-000000000000" : "text";
  }
}

/** The fields of a body, those of its objects below them with a dotted name. */
function fields(given, above = "") {
  const schema = resolve(given);
  const inner = typesOf(schema)[0] === "array" ? resolve(schema.items) : schema;
  return Object.entries(inner.properties ?? {}).flatMap(([name, field]) => {
    const row = { name: above + name, field, required: inner.required?.includes(name) };
    return [row, ...fields(field, `${above}${name}.`)];
  });
}

function tableOf(schema) {
  const rows = fields(schema).map(({ name, field, required }) => el("tr", {},
    el("th", { scope: "row" }, el("code", {}, name), required ? " (required)" : ""),
    el("td", {}, kind(field)),
    el("td", {}, field.description ?? resolve(field).description ?? "")));
  if (rows.length === 0) return [];
  const heads = ["Field", "Type", "Meaning"].map((head) => el("th", { scope: "col" }, head));
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
  return [el("details", {}, el("summary", {}, "Fields of the body"), table)];
}

/** The fields of a form: one for each parameter, and one for the body. */
function inputs(operation) {
  const parameters = (operation.parameters ?? []).map((parameter) => {
    const input = el("input", { name: `${parameter.in}.${parameter.name}`, autocomplete: "off" });
    input.required = parameter.required === true;
    const about = parameter.description ? `: ${parameter.description}` : "";
    return el("label", {}, el("span", {}, el("code", {}, parameter.name), `${about} (${kind(parameter.schema)})`), input);
  });
  const schema = bodySchema(operation);
  if (!schema) return parameters;
  const text = el("textarea", { name: "body", rows: "8", spellcheck: "false" });
  text.value = JSON.stringify(sample(schema), null, 2);
  return [...parameters, el("label", {}, el("span", {}, "Body (JSON)"), text), ...tableOf(schema)];
}

const bodySchema = (operation) => operation.requestBody?.content["application/json"]?.schema;

/** The request of a filled form. */
function requestOf(method, path, operation, form) {
  const values = new FormData(form);
  const query = new URLSearchParams();
  for (const { in: place, name } of operation.parameters ?? []) {
    const value = values.get(`${place}.${name}`);
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value) query.set(name, value);
  }
  const url = new URL(path.slice(1) + (query.size ? `?${query}` : ""), document.baseURI);
  return { method: method.toUpperCase(), url, body: values.get("body") ?? undefined };
}

/** For a shell: nothing between single quotes has a meaning there. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl({ method, url, body }) {
  const parts = ["curl", `-X ${method}`, quoted(url.href), '-H "Authorization: Bearer $ELF_API_KEY"'];
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(body)}`);
  return parts.join(" ");
}

async function send(request, place) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key && { authorization: `Bearer ${key}` }), "content-type": "application/json" };
  const began = performance.now();
  const answer = await fetch(request.url, { method: request.method, headers, body: request.body, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  const text = await answer.text();
  const took = count(Math.round(performance.now() - began));
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not JSON: it is shown as it is.
  }
  const rest = shown.length > MAX_SHOWN ? [el("p", { class: "muted" }, `The first ${count(MAX_SHOWN)} characters of ${count(shown.length)}.`)] : [];
  setText(place.status, `${answer.status} ${answer.statusText}, ${took} ms`);
  place.answer.replaceChildren(
    ...(shown ? [el("pre", { tabindex: "0", "aria-label": "Answer" }, shown.slice(0, MAX_SHOWN))] : []), ...rest,
    el("details", {}, el("summary", {}, "As a command"), el("pre", { tabindex: "0", "aria-label": "Command" }, curl(request))));
}

function operationOf(method, path, operation) {
  const place = { status: el("p", { class: "status", role: "status" }), answer: el("div", { class: "answer" }) };
  const form = el("form", {}, ...inputs(operation), el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Send")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(place.status, "Sending …");
    place.answer.replaceChildren();
    try {
      await send(requestOf(method, path, operation, form), place);
    } catch (error) {
      setText(place.status, error.name === "TimeoutError" ? "The server did not answer in time." : `No answer: ${error.message}`);
    }
  });
  return el("details", { class: "card operation", id: operation.operationId },
    el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("span", { class: "path" }, path), el("span", { class: "what" }, operation.summary ?? "")),
    el("div", {}, el("p", { class: "about" }, operation.description ?? ""), form, place.status, place.answer));
}

async function show() {
  const answer = await fetch("openapi.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!answer.ok) throw new Error(`openapi.json: status ${answer.status}`);
  api = await answer.json();
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ method, path, operation })));
  const groups = [...Map.groupBy(operations, ({ operation }) => operation.tags?.[0] ?? "other")].sort();
  $("operations").replaceChildren(...groups.map(([tag, group]) => el("section", { class: "group" },
    el("h2", {}, tag), ...group.map(({ method, path, operation }) => operationOf(method, path, operation)))));
}

showKey();
show().catch((error) => {
  $("trouble").hidden = false;
  setText($("trouble"), `The description of the API could not be read: ${error.message}`);
});
