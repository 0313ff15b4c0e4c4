// Elements, formatted numbers and charts, without knowledge of ELF. Data is inserted as
// text only: no string is ever parsed as HTML.

/** @param {...(Node|string)} children nodes, or strings that become text */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const exact = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long" });
const clock = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

/** A number with group separators; from ten million on rounded to three digits. */
export function count(n) {
  if (n == null) return "not known";
  return Math.abs(n) < 1e7 ? plain.format(Math.abs(n) < 100 ? n : Math.round(n)) : compact.format(n);
}

/** A number with its noun: `counted(1, "note")`. */
export const counted = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** All digits, for a title. */
export const digits = (n) => (n == null ? "" : plain.format(n));

/** Two units at most: `340 ms`, `3.2 s`, `4 min 12 s`, `3 d 4 h`. */
export function duration(secs) {
  if (secs == null) return "not known";
  if (secs <= 0) return "0 s";
  if (secs < 1) return `${plain.format(Math.max(1, Math.round(secs * 1000)))} ms`;
  if (secs < 9.95) return `${plain.format(secs)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.round(secs);
  const first = units.findIndex(([, size]) => left >= size);
  const parts = [];
  for (const [unit, size] of units.slice(first, first + 2)) {
    const n = Math.floor(left / size);
    left -= n * size;
    if (n > 0) parts.push(`${plain.format(n)} ${unit}`);
  }
  return parts.join(" ");
}

export function bytes(n) {
  if (n == null) return "not known";
  const unit = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, size]) => n >= size);
  return unit ? `${plain.format(n / unit[1])} ${unit[0]}` : `${n} bytes`;
}

// Ages are measured by the worker's clock, because the clock of this machine may be wrong.
let aheadMs = 0;
export const setClock = (iso) => { aheadMs = Date.parse(iso) - Date.now(); };
export const now = () => Date.now() + aheadMs;

/** A duration in whole seconds or minutes. */
export const roughly = (secs) => duration(secs >= 60 && secs < 3600 ? Math.floor(secs / 60) * 60 : Math.floor(secs));

function told(iso, lasts) {
  const secs = (now() - Date.parse(iso)) / 1000;
  if (lasts) return `for ${roughly(Math.max(0, secs))}`;
  return secs < 5 ? "just now" : `${roughly(secs)} ago`;
}

/** A moment: how long ago it was, and exactly when in its title. */
export function moment(iso, lasts = false) {
  const time = el("time", { datetime: iso, title: exact.format(new Date(iso)) }, told(iso, lasts));
  if (lasts) time.dataset.lasts = "";
  return time;
}

/** The time since a moment: `for 12 min`. */
export const lasting = (iso) => moment(iso, true);

/** Brings every moment of the page up to date. */
export function tick() {
  for (const time of document.querySelectorAll("time")) setText(time, told(time.dateTime, "lasts" in time.dataset));
}

/** Changes a text only when it differs, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 118, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 18;
// Tops of a time axis, in seconds: half of each is a round number too.
const TIME_TOPS = [60, 120, 240, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800];

/** An element of a drawing. */
export function svg(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text != null) element.textContent = text;
  return element;
}

/** The lowest round number that is not below `max`. */
function topOf(max, isTime) {
  if (isTime && max > 20) return TIME_TOPS.find((top) => top >= max) ?? Math.ceil(max / 172800) * 172800;
  const floor = isTime ? 0.02 : 2;
  let power = 10 ** Math.floor(Math.log10(Math.max(max, floor)));
  for (;; power *= 10) {
    const top = [1, 2, 4].map((n) => n * power).find((n) => n >= max && n >= floor);
    if (top) return top;
  }
}

/** A line with a gap where a value is missing, and a dot for a value between two gaps. */
function line(points, x, y) {
  let path = "", alone = "", open = false;
  points.forEach(([at, value], i) => {
    if (value == null) { open = false; return; }
    const place = `${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    if (!open && points[i + 1]?.[1] == null) alone += `M${place}h0`;
    else path += `${open ? "L" : "M"}${place}`;
    open = true;
  });
  return path + alone;
}

/**
 * Draws a figure's chart.
 * @param {{lines: {points: [number, number|null][], kind: string, name: string}[], isTime?: boolean,
 *          value: (n: number) => string, axis?: (n: number) => string, title: string}} spec
 *        the points are [ms since 1970, value], oldest first
 */
export function chart(figure, spec) {
  const plot = figure.querySelector(".plot");
  const at = spec.lines[0].points.map(([time]) => time);
  const known = spec.lines.flatMap(({ points }) => points).map(([, value]) => value).filter((v) => v != null);
  if (known.length === 0) {
    plot.replaceChildren(el("p", { class: "muted none" }, spec.none ?? "No history yet."));
    return;
  }
  const width = Math.max(200, plot.clientWidth);
  // The axis spans at least five minutes, so that a short history does not fill it.
  const to = at.at(-1), from = Math.min(at[0], to - 300_000);
  const top = topOf(Math.max(...known), spec.isTime);
  const x = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);

  const latest = spec.lines.map(({ points, name }) => {
    const value = points.findLast(([, v]) => v != null)?.[1];
    const range = points.map(([, v]) => v).filter((v) => v != null);
    const span = `between ${spec.value(Math.min(...range))} and ${spec.value(Math.max(...range))}`;
    return value == null ? "" : `${name}: last ${spec.value(value)}, ${span}.`;
  });
  const label = `${spec.title} in the last ${roughly((to - at[0]) / 1000 + 5)}. ${latest.join(" ")}`;
  const root = svg("svg", { role: "img", "aria-label": label, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
  for (const value of [0, top / 2, top]) {
    root.append(svg("path", { class: "grid", d: `M${LEFT},${y(value).toFixed(1)}H${width - RIGHT}` }));
    root.append(svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, (spec.axis ?? spec.value)(value)));
  }
  root.append(svg("text", { class: "tick", x: LEFT, y: HEIGHT - 3 }, `${roughly((to - from) / 1000 + 5)} ago`));
  root.append(svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
  for (const { points, kind } of spec.lines) {
    const path = line(points, x, y);
    if (kind === "one" && spec.lines.length === 1) {
      const base = y(0).toFixed(1);
      root.append(svg("path", { class: "area", d: `${path}L${x(to).toFixed(1)},${base}L${x(at[0]).toFixed(1)},${base}Z` }));
    }
    root.append(svg("path", { class: `line ${kind}`, d: path }));
  }
  const pointer = svg("path", { class: "pointer", d: "" });
  root.append(pointer);
  const said = figure.querySelector(".now");
  const last = said.textContent;
  root.addEventListener("pointermove", (event) => {
    const time = from + ((event.offsetX - LEFT) / (width - LEFT - RIGHT)) * (to - from);
    const i = at.reduce((best, t, i) => (Math.abs(t - time) < Math.abs(at[best] - time) ? i : best), 0);
    pointer.setAttribute("d", `M${x(at[i]).toFixed(1)},${TOP}V${HEIGHT - BOTTOM}`);
    const values = spec.lines.map(({ points }) => (points[i][1] == null ? "none" : spec.value(points[i][1])));
    said.textContent = `${values.join(", ")} at ${clock.format(at[i])}`;
    figure.dataset.pointed = "";
  });
  root.addEventListener("pointerleave", () => {
    pointer.setAttribute("d", "");
    said.textContent = last;
    delete figure.dataset.pointed;
  });
  // A chart under the pointer is redrawn after the pointer leaves.
  if (!("pointed" in figure.dataset) || !plot.querySelector("svg")) plot.replaceChildren(root);
}
