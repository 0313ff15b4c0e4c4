// Polls the worker's status every two seconds and draws the page.

import { deadLetters } from "./dead.js";
import { bytes, chart, count, counted, digits, duration, el, lasting, moment, now, roughly, setClock, setText, tick } from "./view.js";

const EVERY_MS = 2000, LONGEST_WAIT_MS = 30_000, TIMEOUT_MS = 10_000;
const TOKEN = "elf-admin-token";
const RUNBOOK = "docs/operate/runbook.md#";
/** The runbook section for each failing check; `worker-absent` for every other check. */
const SECTIONS = { postgres: "postgres-unavailable", schema: "upgrade", index: "qdrant-lost", alias: "qdrant-lost", provider: "provider-unavailable" };
/** A change that waits longer is late. */
const LATE_SECS = 60;
/** The worker counts every few seconds; counts that are older than this are shown as old. */
const OLD_SECS = 45;

const $ = (id) => document.getElementById(id);
const places = new Map([...document.querySelectorAll("[data-f]")].map((place) => [place.dataset.f, place]));
const dead = deadLetters(api, () => look());

let status = null;
/** The error of the last poll, and the number of polls that failed in a row. */
let trouble = null, failures = 0;
let timer = 0, looking = false, looks = 0, nextAt = 0, seenAt = 0;

class Unauthorized extends Error {}
class Refused extends Error {}

async function api(path, body) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { accept: "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(`api/${path}`, {
    method: body ? "POST" : "GET",
    headers,
    body: body && JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const said = await answer.json().catch(() => null);
  if (answer.status === 401) throw new Unauthorized(token ? "The worker did not accept this token." : "");
  if (!answer.ok) throw new Refused(said?.error ?? `The worker answered with status ${answer.status}.`);
  if (said === null) throw new Refused("The answer is not from ELF: it is not JSON.");
  return said;
}

/** Polls once, and schedules the next poll. */
async function look() {
  if (looking) return;
  clearTimeout(timer);
  looking = true;
  try {
    status = await api("status");
    seenAt = Date.now();
    setClock(status.now);
    // The dead letters are read when their number has changed, and at every fifth poll.
    const waiting = status.outbox?.dead;
    if (waiting != null && (waiting !== dead.total() || (waiting > 0 && looks % 5 === 0))) await dead.look(status.can_change);
    looks += 1;
    [trouble, failures] = [null, 0];
    askForToken(false);
  } catch (error) {
    [trouble, failures] = [error, failures + 1];
    if (error instanceof Unauthorized) askForToken(true, error.message);
  }
  looking = false;
  if (!(trouble instanceof Unauthorized)) {
    const wait = Math.min(EVERY_MS * 2 ** failures, LONGEST_WAIT_MS);
    nextAt = Date.now() + wait;
    if (!document.hidden) timer = setTimeout(look, wait);
    draw();
  }
}

function askForToken(wanted, message = "") {
  const appears = wanted && $("sign-in").hidden;
  $("sign-in").hidden = !wanted;
  $("page").hidden = wanted;
  $("sign-out").hidden = wanted || !sessionStorage.getItem(TOKEN);
  if (!wanted) return;
  sessionStorage.removeItem(TOKEN);
  document.title = "Sign in · ELF";
  setText($("sign-in-error"), message);
  if (appears) $("token").focus();
}

/** @returns {{state: string, key: string, title: string, why: string, todo: {what: string, section: string}[]}} */
function judge(s) {
  const failing = s.checks.filter((check) => !check.ok);
  const todo = failing.map(({ name, reason }) => ({ what: `${name}: ${reason ?? "fails"}`, section: SECTIONS[name] ?? "worker-absent" }));
  const gone = dead.total() ?? s.outbox?.dead ?? 0;
  if (gone > 0) {
    const what = `${counted(gone, "dead letter")} ${gone === 1 ? "waits" : "wait"} for you: read the reason, fix the cause, then retry or discard.`;
    todo.push({ what, section: "dead-letters", jump: "#dead-title" });
  }
  const oldest = s.outbox?.oldest_pending_secs ?? 0;
  // While a check fails, the check is the reason that changes wait.
  const late = oldest > LATE_SECS && failing.length === 0;
  if (late) {
    // The last ten minutes, or the whole history if it is shorter. Less than a minute tells nothing.
    const age = ({ at }) => (now() - Date.parse(at)) / 1000;
    const before = samplesOf(s).find((sample) => sample.pending != null && age(sample) >= 60 && age(sample) <= 600);
    const grows = before && waitingOf(s) > before.pending;
    const what = grows
      ? `The backlog grows: from ${count(before.pending)} to ${counted(waitingOf(s), "change")} in ${roughly(age(before))}.`
      : `Changes are late: the oldest waits for ${duration(oldest)}.`;
    todo.push({ what, section: grows ? "backlog-growing" : "slow-freshness" });
  }
  const countedAt = Date.parse(s.observed_at ?? s.started_at ?? s.now);
  const old = now() - countedAt > OLD_SECS * 1000 && failing.length === 0;
  if (old) {
    todo.push({ what: `The worker’s last counts are ${roughly((now() - countedAt) / 1000)} old: Postgres answers it slowly.`, section: "worker-absent" });
  }
  const drift = driftOf(s);
  if (drift > (s.drift?.repaired ?? 0)) {
    todo.push({ what: `The last verify found ${counted(drift, "difference")} and repaired ${count(s.drift.repaired)}.`, section: "drift" });
  }
  if (s.job && s.job.rate_per_sec === 0 && s.job.done < s.job.total) {
    todo.push({ what: `The ${s.job.kind} does not advance.`, section: "rebuild-stalled" });
  }
  if (failing.length > 0) {
    const names = failing.map(({ name }) => name).join(", ");
    const title = failing.length === 1 ? `Not ready: the check “${names}” fails` : `Not ready: ${failing.length} checks fail`;
    return { state: "bad", key: `not ready: ${names}`, title, since: oldestOf(failing), todo };
  }
  const why = `All ${s.checks.length} checks hold.`;
  if (gone > 0) return { state: "warn", key: "ready, dead letters", title: `Ready, but ${counted(gone, "note is", "notes are")} dead-lettered`, why, todo };
  if (todo.length > 0) return { state: "warn", key: `ready, ${todo[0].section}`, title: late ? "Ready, but behind" : old ? "Ready, but the counts are old" : "Ready, but look at this", why, todo };
  if (waitingOf(s) > 0) return { state: "good", key: "ready", title: "Ready and at work", why, todo };
  return { state: "good", key: "ready", title: "Ready, and nothing waits", why, todo };
}

const waitingOf = ({ outbox: o }) => (o ? o.pending + o.leased + o.failed : null);
// Null while the worker waits for Postgres at its start.
const samplesOf = ({ history: h }) => h?.samples ?? [];
const driftOf = ({ drift: d }) => (d ? d.missing + d.stale + d.orphaned + d.inconsistent : 0);
const oldestOf = (checks) => checks.map(({ since }) => since).sort()[0];

function draw() {
  if (status) {
    drawFacts(status);
    drawTables(status);
    drawCharts(status);
  }
  document.body.classList.toggle("stale", trouble !== null && status !== null);
  drawVerdict();
  drawAge();
}

let announced = "";

function drawVerdict() {
  let verdict;
  if (trouble) {
    const refused = trouble instanceof Refused;
    const title = refused ? "The worker answers with an error" : "The worker does not answer";
    const what = refused ? trouble.message : "Check that it runs, and that this machine can reach it.";
    verdict = { state: "absent", key: title, title, why: "", todo: [{ what, section: "worker-absent" }] };
  } else {
    verdict = judge(status);
  }
  const { state, key, title, why, since, todo } = verdict;
  $("verdict").dataset.state = state;
  setText($("verdict-title"), title);
  if (since) $("verdict-why").replaceChildren("Failing ", lasting(since), ".");
  else if (!trouble) setText($("verdict-why"), why);
  const list = JSON.stringify(todo);
  if ($("todo").dataset.made !== list) {
    $("todo").dataset.made = list;
    $("todo").hidden = todo.length === 0;
    $("todo").replaceChildren(...todo.map(({ what, section, jump }) => el("li", {},
      jump ? el("a", { href: jump }, what) : what,
      section ? el("span", { class: "muted" }, " Runbook: ", el("code", {}, RUNBOOK + section)) : "")));
  }
  const mark = { good: "✓", warn: "!", bad: "✕", absent: "?" }[state];
  document.title = `${mark} ${title} · ELF`;
  if (announced !== key) {
    // A screen reader reads out a new verdict, not each new number.
    announced = key;
    setText($("announce"), title);
    const colour = { good: "seagreen", warn: "darkorange", bad: "crimson", absent: "gray" }[state];
    $("icon").href = `data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><circle cx='8' cy='8' r='6' fill='${colour}'/></svg>`;
  }
}

/** Draws ages and countdowns. Runs every second, also while the worker does not answer. */
function drawAge() {
  const age = (Date.now() - seenAt) / 1000;
  if (trouble && !(trouble instanceof Unauthorized)) {
    const last = status ? `The last answer came ${duration(Math.round(age))} ago; the values below are from then. ` : "";
    const wait = Math.max(0, Math.round((nextAt - Date.now()) / 1000));
    setText($("verdict-why"), `${last}${looking ? "Trying now." : `Next try in ${wait} s.`}`);
  }
  setText($("age"), !status || !$("sign-in").hidden ? "" : age < 5 ? "live" : `${duration(Math.round(age))} old`);
  tick();
}

/** Shows a text, a number (all digits in its title) or a moment. */
function fill(name, value) {
  const place = places.get(name);
  if (value?.since) {
    if (place.firstElementChild?.dateTime !== value.since) place.replaceChildren(moment(value.since));
    return;
  }
  setText(place, value?.text ?? value);
  place.title = value?.title ?? "";
}

const big = (n) => ({ text: count(n), title: digits(n) });
const share = (part, whole) => (whole > 0 ? ` (${Math.floor((1000 * part) / whole) / 10} %)` : "");

function drawFacts(s) {
  const { outbox: o, notes: n, provider: p, worker: w, job: j, drift: d } = s;
  const unknown = "not known";
  setText($("alias"), s.alias ?? "");
  setText($("build"), s.version);

  const waiting = waitingOf(s);
  fill("key.oldest", o == null ? unknown : o.oldest_pending_secs == null ? "none" : duration(o.oldest_pending_secs));
  fill("key.waiting", o ? big(waiting) : unknown);
  fill("key.dead", o ? big(dead.total() ?? o.dead) : unknown);

  for (const name of ["pending", "leased", "failed", "dead"]) fill(`outbox.${name}`, o ? big(o[name]) : unknown);
  fill("outbox.size", bytes(o?.size_bytes));
  fill("outbox.tuples", big(o?.dead_tuples));
  fill("outbox.at", s.observed_at ? { since: s.observed_at } : "never");

  fill("notes.live", big(n?.live));
  fill("notes.indexed", n ? { text: count(n.indexed) + share(n.indexed, n.live), title: digits(n.indexed) } : unknown);
  fill("notes.chunks", big(n?.chunks));

  const circuit = { closed: "Working: texts are sent", open: "Paused: no text is sent before a probe is answered", half_open: "Paused: a probe is in flight" };
  setText($("circuit"), p ? (circuit[p.state] ?? p.state) : "Not known yet");
  $("circuit").dataset.state = { closed: "good", open: "bad" }[p?.state] ?? "warn";
  document.querySelector("[data-row='provider.reason']").hidden = p?.reason == null;
  document.querySelector("[data-row='provider.probe']").hidden = p?.probe_in_secs == null;
  fill("provider.reason", p?.reason ?? "");
  fill("provider.probe", `in ${duration(p?.probe_in_secs)}`);
  fill("provider.model", p?.model ?? unknown);
  fill("provider.tokens", p ? { text: counted(p.tokens, "token"), title: digits(p.tokens) } : unknown);
  fill("provider.saved", p
    ? { text: counted(p.tokens_saved, "token") + share(p.tokens_saved, p.tokens + p.tokens_saved), title: digits(p.tokens_saved) }
    : unknown);
  fill("provider.cost", p?.cost_usd == null
    ? { text: "no price set", title: "providers.embedding.usd_per_million_tokens" }
    : `about ${p.cost_usd.toLocaleString("en", { maximumSignificantDigits: 3 })} US dollars`);

  const served = s.collections.find((collection) => collection.served);
  fill("index.alias", s.alias ? `${s.alias} → ${served ? served.name : "nothing"}` : unknown);
  fill("index.engine", s.engine ?? unknown);

  $("job").hidden = !j;
  if (j) {
    const unit = j.kind === "rebuild" ? "points" : "notes";
    setText($("job-title"), `${j.kind[0].toUpperCase()}${j.kind.slice(1)} of ${j.subject}`);
    const bar = $("job-bar");
    if (j.total > 0) [bar.max, bar.value] = [j.total, Math.min(j.done, j.total)];
    else bar.removeAttribute("value");
    fill("job.done", `${count(j.done)} of ${count(j.total)} ${unit}${share(j.done, j.total)}`);
    fill("job.rate", j.rate_per_sec == null ? unknown : `${count(j.rate_per_sec)} ${unit}/s`);
    fill("job.eta", j.eta_secs == null ? unknown : `about ${duration(j.eta_secs)}`);
    fill("job.started", { since: j.started_at });
    fill("job.holder", j.holder);
  }

  $("drift").hidden = !d;
  $("drift-none").hidden = Boolean(d);
  if (d) {
    fill("drift.at", { since: d.at });
    for (const name of ["missing", "stale", "orphaned", "inconsistent", "repaired"]) fill(`drift.${name}`, big(d[name]));
  }

  fill("worker.holder", s.holder ?? unknown);
  fill("worker.started", s.started_at ? { since: s.started_at } : "not yet");
  fill("worker.batches", w?.paused ? `paused: ${w.paused.reason}` : big(w?.batches_in_flight));
  const [lock] = s.lock_waits ?? [];
  fill("worker.lock", lock ? `on ${lock.on}, held by ${lock.held_by}` : "no");
  for (const name of ["notes", "failed", "dead", "chunks", "points"]) fill(`worker.${name}`, big(w?.[name]));
  for (const name of ["embedded", "reused"]) {
    fill(`worker.${name}`, w ? { text: count(w[name]) + share(w[name], w.chunks), title: digits(w[name]) } : unknown);
  }
}

const state = (name, words) => el("span", { class: "state", "data-state": name }, words);

function drawTables(s) {
  rows("checks", s.checks, (c) => [c.name, state(c.ok ? "good" : "bad", c.ok ? "holds" : "fails"), lasting(c.since)]);
  const colour = { green: "good", yellow: "warn", grey: "warn", red: "bad" };
  rows("collections", s.collections, (c) => [
    c.name,
    c.served ? `${c.state}, served` : c.state,
    c.points == null ? "not known" : el("span", { title: digits(c.points) }, count(c.points)),
    c.status == null ? "not known" : state(colour[c.status] ?? "warn", c.status),
  ]);
  rows("versions", s.versions, (v) => [v.name, v.state, moment(v.since)]);
}

/** Redraws a table when its items have changed. */
function rows(id, items, cells) {
  const table = $(id), made = JSON.stringify(items);
  if (table.dataset.made === made) return;
  table.dataset.made = made;
  table.hidden = items.length === 0;
  table.nextElementSibling.hidden = items.length > 0;
  const heads = [...table.tHead.rows[0].cells];
  table.tBodies[0].replaceChildren(...items.map((item) => el("tr", {}, ...cells(item).map((cell, i) =>
    el(i === 0 ? "th" : "td", i === 0 ? { scope: "row" } : heads[i].className ? { class: heads[i].className } : {}, cell)))));
}

function drawCharts(s) {
  const samples = samplesOf(s);
  const of = (name) => samples.map((sample) => [Date.parse(sample.at), sample[name]]);
  const last = samples.at(-1);
  const median = samples.findLast(({ fresh_p50 }) => fresh_p50 != null)?.fresh_p50;
  const say = (id, text) => { if (!("pointed" in $(id).dataset)) setText($(id).querySelector(".now"), text); };
  say("chart-backlog", s.outbox ? counted(waitingOf(s), "change") : "–");
  say("chart-fresh", median == null ? "–" : duration(median));
  say("chart-rate", last ? `${count(last.notes_per_sec)} notes/s` : "–");
  chart($("chart-backlog"), {
    title: "Changes waiting", value: (n) => counted(n, "change"), axis: short,
    lines: samples.length ? [{ points: of("pending"), kind: "one", name: "Waiting" }] : [{ points: [] }],
  });
  chart($("chart-fresh"), {
    title: "Time from commit to searchable", value: duration, isTime: true,
    none: samples.length ? "Nothing was indexed in this time." : undefined,
    lines: [{ points: of("fresh_max"), kind: "two", name: "Slowest" }, { points: of("fresh_p50"), kind: "one", name: "Median" }],
  });
  chart($("chart-rate"), {
    title: "Notes indexed per second", value: (n) => `${count(n)} notes/s`, axis: short,
    lines: [{ points: of("notes_per_sec"), kind: "one", name: "Throughput" }],
  });
}

const short = (n) => n.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });

$("sign-in").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  // An HTTP header can only carry these characters.
  if (!/^[\x21-\x7e]+$/.test(token)) {
    setText($("sign-in-error"), "A token consists of ASCII letters, digits and signs, without spaces.");
    return;
  }
  sessionStorage.setItem(TOKEN, token);
  $("token").value = "";
  look();
});
$("sign-out").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  location.reload();
});
// A hidden tab does not poll.
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && $("sign-in").hidden) look();
});
addEventListener("resize", () => { if (status) drawCharts(status); });
setInterval(() => { if (!document.hidden && (status || trouble)) drawAge(); }, 1000);
look();
