// The list of dead letters, with retry and discard.

import { bytes, count, counted, el, moment, setText } from "./view.js";

const AT_FIRST = 10, AT_MOST = 50;
// Characters of a text that are shown at first; a button shows the rest.
const LONG = 280;

const REASONS = {
  text: "Its text was rejected",
  provider: "The embedding provider rejected it",
  postgres: "Postgres rejected it",
  index: "The vector engine rejected it",
  unknown: "Dead-lettered without a recorded reason",
};

const $ = (id) => document.getElementById(id);

/**
 * @param {(path: string, body?: object) => Promise<any>} api
 * @param {() => void} changed is called after a retry or a discard
 */
export function deadLetters(api, changed) {
  let items = [], total = null, canChange = false, whole = false;
  /** The letters on the page: outbox id → its element and the data that it was made of. */
  const shown = new Map();

  async function load(mayChange) {
    const answer = await api(`dead?limit=${AT_MOST}`);
    canChange = mayChange;
    ({ items, total } = answer);
    draw();
  }

  /** Loads the letters. An error is shown here only: the rest of the page keeps working. */
  async function look(mayChange) {
    try {
      await load(mayChange);
    } catch (error) {
      setText($("dead-help"), `The dead letters cannot be read now: ${error.message}`);
    }
  }

  function draw() {
    const visible = items.slice(0, whole ? AT_MOST : AT_FIRST);
    const wanted = new Set(visible.map((letter) => letter.outbox_id));
    for (const [id, { element }] of shown) {
      if (!wanted.has(id)) { element.remove(); shown.delete(id); }
    }
    visible.forEach((letter, i) => {
      const madeOf = JSON.stringify([letter, canChange]);
      const old = shown.get(letter.outbox_id);
      if (old?.madeOf !== madeOf) {
        const element = drawLetter(letter);
        old?.element.remove();
        shown.set(letter.outbox_id, { element, madeOf });
      }
      const { element } = shown.get(letter.outbox_id);
      // An element that is in its place stays: moving it would lose the focus.
      if ($("letters").children[i] !== element) $("letters").insertBefore(element, $("letters").children[i] ?? null);
    });
    setText($("dead-count"), total === 0 ? "none" : `showing ${count(visible.length)} of ${count(total)}`);
    const hidden = items.length - visible.length;
    $("show-more").hidden = hidden === 0;
    setText($("show-more"), `Show ${count(hidden)} more`);
    const beyond = total > items.length && hidden === 0;
    setText($("dead-rest"), beyond ? `To list the other ${count(total - items.length)}: elf dead list --limit ${total}` : "");
    $("retry-all").hidden = !canChange || total === 0;
    $("read-only").hidden = canChange || total === 0;
    setText($("dead-help"), total === 0
      ? "No note is dead-lettered."
      : "Notes that ELF could not index. Other notes do not wait for them.");
  }

  function drawLetter(letter) {
    const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));
    const facts = el("dl", { class: "facts across" },
      fact("Dead-lettered", moment(letter.died_at)),
      fact("Attempts", count(letter.attempts)),
      fact("Written", moment(letter.created_at)),
      fact("Operation", letter.op),
      fact("Text", letter.text_bytes == null ? "the note was deleted" : bytes(letter.text_bytes)),
      fact("Note", el("code", {}, letter.note_id)));
    if (letter.embedding_version) facts.append(fact("Version", letter.embedding_version));
    const element = el("li", { class: "letter" },
      el("h3", {}, REASONS[letter.reason] ?? letter.reason),
      cut("p", "error", letter.last_error ?? "No message was recorded."));
    if (letter.text_preview) element.append(cut("blockquote", "quote", letter.text_preview));
    element.append(facts);
    if (canChange) {
      element.append(el("div", { class: "row" },
        button("Retry", letter, () => confirm(retry(letter))),
        button("Discard", letter, () => confirm(discard(letter)))));
    }
    return element;
  }

  function button(word, letter, action) {
    const element = el("button", { type: "button", "aria-label": `${word} note ${letter.note_id}` }, word);
    element.addEventListener("click", action);
    return element;
  }

  const retry = (letter) => ({
    title: "Retry this note?",
    text: "Its attempts are reset and a worker retries it at once. If the worker still cannot index it, it is dead-lettered again.",
    what: quote(letter),
    yes: "Retry",
    act: async () => {
      const { retried } = await api("dead/retry", { ids: [letter.outbox_id] });
      return retried === 0 ? GONE : "Retried: the note is due again.";
    },
  });

  const discard = (letter) => ({
    title: "Discard this dead letter?",
    text: "Its row in the outbox is deleted. The note stays in Postgres, but ELF does not index this change. The next change of the note is indexed.",
    what: quote(letter),
    yes: "Discard",
    grave: true,
    act: async () => {
      const { discarded } = await api("dead/discard", { ids: [letter.outbox_id] });
      return discarded === 0 ? GONE : "Discarded: the row is deleted.";
    },
  });

  const retryAll = () => ({
    title: `Retry ${total === 1 ? "the dead letter" : `all ${count(total)} dead letters`}?`,
    text: "Their attempts are reset and the workers retry them at once. Notes that still cannot be indexed are dead-lettered again. Texts that were never embedded are sent to the provider, which may cost money.",
    what: "",
    yes: "Retry all",
    act: async () => `Retried: ${counted((await api("dead/retry", { all: true })).retried, "note")} due again.`,
  });

  const GONE = "Nothing to do: it was retried, discarded or indexed meanwhile.";
  const quote = (letter) => `${letter.note_id}\n${shorten(letter.text_preview ?? "The note was deleted.", 160)}`;

  /** Shows a dialog that says what the action does, and does it after a confirmation. */
  function confirm({ title, text, what, yes, grave, act }) {
    const dialog = $("confirm"), opener = document.activeElement;
    setText($("confirm-title"), title);
    setText($("confirm-text"), text);
    setText($("confirm-what"), what);
    setText($("confirm-yes"), yes);
    setText($("confirm-error"), "");
    $("confirm-yes").disabled = false;
    $("confirm-yes").className = grave ? "grave" : "primary";
    $("confirm-yes").onclick = async () => {
      $("confirm-yes").disabled = true;
      try {
        const result = await act();
        dialog.close();
        setText($("dead-result"), result);
      } catch (error) {
        setText($("confirm-error"), error.message);
        $("confirm-yes").disabled = false;
        return;
      }
      await look(canChange);
      changed();
      (opener.isConnected && !opener.hidden ? opener : $("dead-title")).focus();
    };
    $("confirm-no").onclick = () => dialog.close();
    setText($("dead-result"), "");
    dialog.showModal();
    $("confirm-no").focus();
  }

  $("retry-all").addEventListener("click", () => confirm(retryAll()));
  $("show-more").addEventListener("click", () => {
    whole = true;
    draw();
    $("letters").children[AT_FIRST]?.querySelector("button")?.focus();
  });

  return { look, total: () => total };
}

const shorten = (text, length) => (text.length > length ? `${text.slice(0, length).trimEnd()}…` : text);

/** A text; a long one is shortened, with a button for the rest. */
function cut(name, kind, text) {
  const element = el(name, { class: kind }, el("span", {}, shorten(text, LONG)));
  if (text.length <= LONG) return element;
  const more = el("button", { type: "button", class: "link", "aria-expanded": "false" }, `Show all ${count(text.length)} characters`);
  more.addEventListener("click", () => {
    const open = more.getAttribute("aria-expanded") === "false";
    more.setAttribute("aria-expanded", String(open));
    setText(element.firstChild, open ? text : shorten(text, LONG));
    setText(more, open ? "Show less" : `Show all ${count(text.length)} characters`);
  });
  element.append(" ", more);
  return element;
}
