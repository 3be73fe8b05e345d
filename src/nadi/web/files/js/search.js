// Search in a stream: what is asked, the hits page by page, how many there are, and how far the index is.

import { ask, every, path, Refused } from "./api.js";
import { countsPanel } from "./counts.js";
import { sentence } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { count, fromInput, toInput } from "./format.js";
import { hitNode, MOST_BYTES } from "./hits.js";
import { fieldChips, indexLine, picker, standingPanel } from "./searched.js";
import * as shell from "./shell.js";

const PAGE = 20;
const MOST_CHARS = 3000; // of a query, which goes in an address
const ORDERS = [["newest", "Newest first"], ["oldest", "Oldest first"], ["best", "Best first"]];
const numberOf = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);

export function searchView(main, { scope, stream, query: told, signal }) {
  const steps = [scope && { text: scope, href: path`#/search/${scope}` }, stream && { text: stream, href: path`#/stream/${scope}/${stream}` }];
  shell.at(...steps.filter(Boolean), { text: "search" });
  const choice = picker(scope, stream, signal);
  if (!stream) {
    fill(main, el("div.stream", {}, choice.node, choice.list));
    return {};
  }
  const data = path`/v1/data/${scope}/streams/${stream}`;
  let asked = { query: told.get("query") ?? "", order: told.get("order") ?? "newest", key: told.get("key") ?? "", since: numberOf(told.get("since")), until: numberOf(told.get("until")) };
  let pages = [null]; // where each begins, as far as is known
  let firsts = [1]; // and with which number
  let round = null;
  signal.addEventListener("abort", () => round?.abort());

  const words = el("input.field.grow", { type: "search", "aria-label": "Query", placeholder: "timeout level:error \"connection reset\"", spellcheck: false, autocomplete: "off", maxLength: MOST_CHARS });
  const since = el("input.field", { type: "datetime-local", step: 1 });
  const until = el("input.field", { type: "datetime-local", step: 1 });
  const key = el("input.field", { type: "text", size: 12, autocomplete: "off", spellcheck: false, title: "Only segments that have this routing key: they have others, too." });
  const order = el("select.field", { "aria-label": "Order", onchange: submit }, ORDERS.map(([value, text]) => el("option", { value }, text)));
  const chips = el("span.row.soft");
  const line = el("span.row", { role: "status" });
  const trouble = el("p.pad.bad", { role: "alert", hidden: true });
  const shown = el("span.grow.soft", { role: "status" });
  const back = el("button.button", { type: "button", disabled: true, onclick: () => show(at - 1) }, "Previous");
  const more = el("button.button", { type: "button", disabled: true, onclick: () => show(at + 1) }, "Next");
  const hits = el("div.hits", { role: "list", "aria-label": "Hits", "aria-busy": "false" });
  const counts = countsPanel({ onBy: () => recount(), onTime: (from, to) => change({ since: from, until: to }), onValue: (part) => change({ query: `${asked.query} ${part}`.trim() }) });
  const found = el("div.two", {}, el("div.panel", {}, el("div.head", {}, shown, back, more), hits), el("div.side", {}, counts.node));
  const standing = standingPanel(scope, (text) => change({ query: text }));
  let at = 0;
  const stack = (text, input) => el("label.stack", {}, text, input);

  fill(main, el("div.stream", {}, choice.node,
    el("form.panel.ask", { onsubmit: (event) => { event.preventDefault(); submit(); } },
      el("div.row", {}, words, el("button.button.main", { type: "submit" }, "Search")),
      el("div.row.bounds", {}, stack("From", since), stack("To", until), stack("Routing key", key), stack("Order", order)),
      el("div.row", {}, line, el("span.grow"), chips)),
    trouble, found, standing.node));

  write();
  every(3000, look, lookFailed, signal);
  every(20000, lookAtStanding, lookFailed, signal);
  words.focus();
  begin();

  // --- what is asked -------------------------------------------------------------------------------

  function write() {
    words.value = asked.query;
    key.value = asked.key;
    order.value = ORDERS.some(([value]) => value === asked.order) ? asked.order : (asked.order = "newest");
    since.value = toInput(asked.since);
    until.value = toInput(asked.until);
  }

  function submit() {
    // a bound that the input shows without its milliseconds stays as it is
    const bound = (input, kept) => (input.value === toInput(kept) ? kept : fromInput(input.value));
    change({ query: words.value, order: order.value, key: key.value, since: bound(since, asked.since), until: bound(until, asked.until) });
  }

  function change(other) {
    asked = { ...asked, ...other };
    const given = Object.entries(asked).filter(([name, value]) => value !== null && value !== "" && !(name === "order" && value === "newest"));
    const address = `${path`#/search/${scope}/${stream}`}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
    if (address !== location.hash) history.pushState(null, "", address); // which shows no other view
    write();
    begin();
  }

  function params(more) {
    const bounds = { query: asked.query, key: asked.key, since: asked.since !== null && new Date(asked.since).toISOString(), until: asked.until !== null && new Date(asked.until).toISOString() };
    return new URLSearchParams(Object.entries({ ...bounds, ...more }).filter(([, value]) => value));
  }

  // --- what is found -------------------------------------------------------------------------------

  async function begin() {
    pages = [null];
    firsts = [1];
    if (await show(0)) recount();
  }

  // Whether there is an answer; nothing that was asked before is shown any more.
  async function show(number) {
    round?.abort();
    const own = (round = new AbortController());
    hits.setAttribute("aria-busy", "true");
    back.disabled = more.disabled = true;
    try {
      const page = await ask(`${data}/search?${params({ order: asked.order, limit: PAGE, eventBytes: MOST_BYTES, after: pages[number] })}`, own.signal);
      at = number;
      pages = [...pages.slice(0, number + 1), page.next];
      trouble.hidden = true;
      found.hidden = false;
      const first = firsts[number];
      firsts[number + 1] = first + page.hits.length;
      fill(shown, page.hits.length ? `${count(first)} to ${count(first + page.hits.length - 1)} of ${count(page.count)} events` : page.count ? "These are gone from the stream." : "Nothing found.");
      fill(hits, page.hits.map((hit) => hitNode(hit, scope, stream)));
      back.disabled = number === 0;
      more.disabled = page.next === null;
      return true;
    } catch (error) {
      if (own.signal.aborted) return false;
      trouble.hidden = false;
      found.hidden = true;
      fill(trouble, sentence(error));
      return false;
    } finally {
      if (round === own) hits.setAttribute("aria-busy", "false");
    }
  }

  async function recount() {
    const own = round;
    try {
      const by = counts.by();
      if (by !== "_came") return counts.showValues(by, await ask(`${data}/search/counts?${params({ by, limit: 12 })}`, own.signal));
      const { head, tail } = await ask(`${data}/span`, own.signal);
      const range = { from: Math.max(asked.since ?? 0, head.time ?? 0), to: Math.min(asked.until ?? Infinity, tail.time ?? 0) };
      const step = counts.stepOf(range);
      if (!step) return counts.showTimes([], range, 1000);
      return counts.showTimes(await ask(`${data}/search/counts?${params({ by, interval: step / 1000 })}`, own.signal), range, step);
    } catch (error) {
      if (!own.signal.aborted) counts.fail(sentence(error));
    }
  }

  // --- how far it is -------------------------------------------------------------------------------

  let known = "";
  async function look() {
    const index = await ask(`${data}/search/index`, signal);
    fill(line, indexLine(index, scope, stream));
    if (known === JSON.stringify(index.fields)) return;
    known = JSON.stringify(index.fields);
    counts.setFields(index.fields);
    fill(chips, fieldChips(index.fields, (name) => {
      words.value = `${words.value} ${name}:`.trimStart();
      words.focus();
    }));
  }
  function lookFailed(error) {
    if (error instanceof Refused && error.status !== 404) fill(line, el("span.bad", {}, sentence(error))); // that there is no index is said below
    else if (error instanceof Refused) fill(line);
  }
  async function lookAtStanding() {
    try {
      standing.show(await ask(`${data}/search/standing`, signal));
    } catch (error) {
      if (!(error instanceof Refused && error.status === 404)) throw error;
      standing.show(null);
    }
  }

  return { "/": () => words.select() };
}
