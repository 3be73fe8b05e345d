// Who reads a stream, and which transactions it has.

import { el, fill } from "./dom.js";
import { bytes, count, span, when } from "./format.js";
import { sentence } from "./dialogs.js";

function table(label, heads) {
  const body = el("tbody");
  const empty = el("p.pad.quiet", { role: "status" }, "…");
  const whole = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, heads.map(([text, kind]) => el(`th${kind ? `.${kind}` : ""}`, { scope: "col" }, text)))), body);
  const node = el("div.scroll", {}, whole, empty);
  return {
    node,
    show(rows, none, trouble) {
      whole.hidden = !rows?.length;
      empty.hidden = Boolean(rows?.length);
      fill(empty, trouble ? sentence(trouble) : none);
      fill(body, (rows ?? []).map((cells) => el("tr", {}, cells)));
    },
  };
}

// Where little came, times are known to ten seconds: who has something to read is behind, whatever they tell.
function behind(group) {
  if (group.secondsBehind === null) return "–";
  if (group.secondsBehind >= 1) return span(group.secondsBehind * 1000);
  return group.bytesBehind ? "seconds" : "at the tail";
}

export function groupsTable(model) {
  const made = table("Reader groups", [["Group"], ["Readers", "num"], ["Stands at"], ["Behind", "num"], ["Bytes", "num"], ["Events", "num"]]);
  return {
    node: made.node,
    show() {
      const { groups, troubles } = model.known;
      made.show(groups?.map((one) => [
        el("td", { title: one.why }, one.scopeName === model.known.scope ? one.readerGroupName : `${one.scopeName}/${one.readerGroupName}`),
        el("td.num", {}, count(one.readers)),
        el("td.mono", {}, one.position ? when(one.position.time) : one.why || "unknown"),
        el("td.num", {}, behind(one)),
        el("td.num", {}, bytes(one.bytesBehind)),
        el("td.num", {}, one.eventsBehind === null ? "–" : `${one.eventsBehind ? "~" : ""}${count(one.eventsBehind)}`),
      ]), groups ? "No reader group reads this stream." : "…", troubles.groups);
    },
  };
}

export function transactionsTable(model) {
  const made = table("Transactions", [["Transaction"], ["State"], ["Begun"], ["Lease", "num"]]);
  return {
    node: made.node,
    show() {
      const { transactions, troubles } = model.known;
      made.show(transactions?.map((one) => [
        el("td.mono", { title: one.id }, `${one.id.slice(0, 8)}…${one.id.slice(-6)}`),
        el("td", { class: { OPEN: "warn", ABORTED: "bad", ABORTING: "bad" }[one.state] ?? "good" }, one.state.toLowerCase()),
        el("td.mono", {}, when(one.created)),
        el("td.num", {}, one.leaseMs === null ? "–" : span(one.leaseMs)),
      ]), transactions ? "It has no transactions, open or lately ended." : "…", troubles.transactions);
    },
  };
}
