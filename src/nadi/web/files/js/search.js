// Search in a stream: the query, pages of hits, counts, and the state of the index.

import { ask, every, path, Refused } from "./api.js";
import { countsPanel } from "./counts.js";
import { sentence } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { count, fromInput, toInput } from "./format.js";
import { hitNode, MOST_BYTES } from "./hits.js";
import { fieldChips, indexLine, picker, standingPanel } from "./searched.js";
import * as shell from "./shell.js";

const PAGE = 20;
const MOST_CHARS = 3000; // of a query, which is part of a URL
const ORDERS = [["newest", "Newest first"], ["oldest", "Oldest first"], ["best", "Best first"]];
const numberOf = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);

export function searchView(main, { scope, stream, query: parameters, signal }) {
  const steps = [scope && { text: scope, href: path`#/search/${scope}` }, stream && { text: stream, href: path`#/stream/${scope}/${stream}` }];
  shell.at(...steps.filter(Boolean), { text: "search" });
  const choice = picker(scope, stream, signal);
  if (!stream) {
    fill(main, el("div.stream", {}, choice.node, choice.list));
    return {};
  }
  const data = path`/v1/data/${scope}/streams/${stream}`;
  let request = { query: parameters.get("query") ?? "", order: parameters.get("order") ?? "newest", key: parameters.get("key") ?? "", since: numberOf(parameters.get("since")), until: numberOf(parameters.get("until")) };
  let pages = [null]; // start of each known page
  let firsts = [1]; // number of the first hit of each page
  let round = null;
  signal.addEventListener("abort", () => round?.abort());

  const words = el("input.field.grow", { type: "search", "aria-label": "Query", placeholder: "timeout level:error \"connection reset\"", spellcheck: false, autocomplete: "off", maxLength: MOST_CHARS });
  const since = el("input.field", { type: "datetime-local", step: 1 });
  const until = el("input.field", { type: "datetime-local", step: 1 });
  const key = el("input.field", { type: "text", size: 12, autocomplete: "off", spellcheck: false, title: "Search only segments that may contain this routing key" });
  const order = el("select.field", { "aria-label": "Order", onchange: submit }, ORDERS.map(([value, text]) => el("option", { value }, text)));
  const chips = el("span.row.soft");
  const line = el("span.row", { role: "status" });
  const trouble = el("p.pad.bad", { role: "alert", hidden: true });
  const shown = el("span.grow.soft", { role: "status" });
  const back = el("button.button", { type: "button", disabled: true, onclick: () => show(at - 1) }, "Previous");
  const more = el("button.button", { type: "button", disabled: true, onclick: () => show(at + 1) }, "Next");
  const hits = el("div.hits", { role: "list", "aria-label": "Hits", "aria-busy": "false" });
  const counts = countsPanel({ onBy: () => recount(), onTime: (from, to) => change({ since: from, until: to }), onValue: (part) => change({ query: `${request.query} ${part}`.trim() }) });
  const results = el("div.two", {}, el("div.panel", {}, el("div.head", {}, shown, back, more), hits), el("div.side", {}, counts.node));
  const standing = standingPanel(scope, (text) => change({ query: text }));
  let at = 0;
  const stack = (text, input) => el("label.stack", {}, text, input);

  fill(main, el("div.stream", {}, choice.node,
    el("form.panel.ask", { onsubmit: (event) => { event.preventDefault(); submit(); } },
      el("div.row", {}, words, el("button.button.main", { type: "submit" }, "Search")),
      el("div.row.bounds", {}, stack("From", since), stack("To", until), stack("Routing key", key), stack("Order", order)),
      el("div.row", {}, line, el("span.grow"), chips)),
    trouble, results, standing.node));

  write();
  every(3000, loadIndex, indexFailed, signal);
  every(20000, loadStanding, indexFailed, signal);
  words.focus();
  begin();

  // --- query ---------------------------------------------------------------------------------------

  function write() {
    words.value = request.query;
    key.value = request.key;
    order.value = ORDERS.some(([value]) => value === request.order) ? request.order : (request.order = "newest");
    since.value = toInput(request.since);
    until.value = toInput(request.until);
  }

  function submit() {
    // keep the milliseconds of an unchanged bound, which the input doesn't show
    const bound = (input, current) => (input.value === toInput(current) ? current : fromInput(input.value));
    change({ query: words.value, order: order.value, key: key.value, since: bound(since, request.since), until: bound(until, request.until) });
  }

  function change(other) {
    request = { ...request, ...other };
    const used = Object.entries(request).filter(([name, value]) => value !== null && value !== "" && !(name === "order" && value === "newest"));
    const address = `${path`#/search/${scope}/${stream}`}${used.length ? `?${new URLSearchParams(used)}` : ""}`;
    if (address !== location.hash) history.pushState(null, "", address); // doesn't change the view
    write();
    begin();
  }

  function params(more) {
    const bounds = { query: request.query, key: request.key, since: request.since !== null && new Date(request.since).toISOString(), until: request.until !== null && new Date(request.until).toISOString() };
    return new URLSearchParams(Object.entries({ ...bounds, ...more }).filter(([, value]) => value));
  }

  // --- hits ----------------------------------------------------------------------------------------

  async function begin() {
    pages = [null];
    firsts = [1];
    if (await show(0)) recount();
  }

  // Returns whether the request succeeded; aborts earlier requests.
  async function show(number) {
    round?.abort();
    const own = (round = new AbortController());
    hits.setAttribute("aria-busy", "true");
    back.disabled = more.disabled = true;
    try {
      const page = await ask(`${data}/search?${params({ order: request.order, limit: PAGE, eventBytes: MOST_BYTES, after: pages[number] })}`, own.signal);
      at = number;
      pages = [...pages.slice(0, number + 1), page.next];
      trouble.hidden = true;
      results.hidden = false;
      const first = firsts[number];
      firsts[number + 1] = first + page.hits.length;
      fill(shown, page.hits.length ? `${count(first)} to ${count(first + page.hits.length - 1)} of ${count(page.count)} events` : page.count ? "These events were truncated." : "No matching events.");
      fill(hits, page.hits.map((hit) => hitNode(hit, scope, stream)));
      back.disabled = number === 0;
      more.disabled = page.next === null;
      return true;
    } catch (error) {
      if (own.signal.aborted) return false;
      trouble.hidden = false;
      results.hidden = true;
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
      if (by !== "_arrival_time") return counts.showValues(by, await ask(`${data}/search/counts?${params({ by, limit: 12 })}`, own.signal));
      const { head, tail } = await ask(`${data}/span`, own.signal);
      const range = { from: Math.max(request.since ?? 0, head.time ?? 0), to: Math.min(request.until ?? Infinity, tail.time ?? 0) };
      const step = counts.stepOf(range);
      if (!step) return counts.showTimes([], range, 1000);
      return counts.showTimes(await ask(`${data}/search/counts?${params({ by, interval: step / 1000 })}`, own.signal), range, step);
    } catch (error) {
      if (!own.signal.aborted) counts.fail(sentence(error));
    }
  }

  // --- state of the index --------------------------------------------------------------------------

  let known = "";
  async function loadIndex() {
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
  function indexFailed(error) {
    if (error instanceof Refused && error.status !== 404) fill(line, el("span.bad", {}, sentence(error))); // a missing index is reported below
    else if (error instanceof Refused) fill(line);
  }
  async function loadStanding() {
    try {
      standing.show(await ask(`${data}/search/standing`, signal));
    } catch (error) {
      if (!(error instanceof Refused && error.status === 404)) throw error;
      standing.show(null);
    }
  }

  return { "/": () => words.select() };
}
