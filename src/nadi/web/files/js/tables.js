// Tables of a stream's reader groups and transactions.

import { el, fill } from "./dom.js";
import { bytes, count, span, when } from "./format.js";
import { sentence } from "./dialogs.js";

function table(label, heads) {
  const body = el("tbody");
  const empty = el("p.pad.quiet", { role: "status" }, "…");
  const grid = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, heads.map(([text, kind]) => el(`th${kind ? `.${kind}` : ""}`, { scope: "col" }, text)))), body);
  const node = el("div.scroll", {}, grid, empty);
  return {
    node,
    show(rows, none, trouble) {
      grid.hidden = !rows?.length;
      empty.hidden = Boolean(rows?.length);
      fill(empty, trouble ? sentence(trouble) : none);
      fill(body, (rows ?? []).map((cells) => el("tr", {}, cells)));
    },
  };
}

// At low rates, times are only accurate to ten seconds: a group with bytes to read is behind, whatever its lag in seconds.
function behind(group) {
  if (group.lagSeconds === null) return "–";
  if (group.lagSeconds >= 1) return span(group.lagSeconds * 1000);
  return group.lagBytes ? "seconds" : "at the tail";
}

export function groupsTable(model) {
  const grid = table("Reader groups", [["Group"], ["Readers", "num"], ["Position"], ["Lag", "num"], ["Bytes", "num"], ["Events", "num"]]);
  return {
    node: grid.node,
    show() {
      const { groups, troubles } = model.known;
      grid.show(groups?.map((item) => [
        el("td", { title: item.why }, item.scopeName === model.known.scope ? item.readerGroupName : `${item.scopeName}/${item.readerGroupName}`),
        el("td.num", {}, count(item.readers)),
        el("td.mono", {}, item.position ? when(item.position.time) : item.why || "unknown"),
        el("td.num", {}, behind(item)),
        el("td.num", {}, bytes(item.lagBytes)),
        el("td.num", {}, item.lagEvents === null ? "–" : `${item.lagEvents ? "~" : ""}${count(item.lagEvents)}`),
      ]), groups ? "No reader groups read this stream." : "…", troubles.groups);
    },
  };
}

export function transactionsTable(model) {
  const grid = table("Transactions", [["Transaction"], ["State"], ["Started"], ["Lease", "num"]]);
  return {
    node: grid.node,
    show() {
      const { transactions, troubles } = model.known;
      grid.show(transactions?.map((item) => [
        el("td.mono", { title: item.id }, `${item.id.slice(0, 8)}…${item.id.slice(-6)}`),
        el("td", { class: { OPEN: "warn", ABORTED: "bad", ABORTING: "bad" }[item.state] ?? "good" }, item.state.toLowerCase()),
        el("td.mono", {}, when(item.created)),
        el("td.num", {}, item.leaseMs === null ? "–" : span(item.leaseMs)),
      ]), transactions ? "No open or recently ended transactions." : "…", troubles.transactions);
    },
  };
}
