// One stream: the picture of its segments, bookmarks and slices, tail, reader groups, transactions and operations.

import { path } from "./api.js";
import { byOf, timeChoice } from "./clocks.js";
import { note, sentence } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { bytes, clock, count, flow, rate, short, span } from "./format.js";
import { streamModel } from "./model.js";
import { merge, seal, split, truncate } from "./operate.js";
import { picture } from "./picture.js";
import { makeBookmark, makeSlice, placesTable } from "./places.js";
import * as shell from "./shell.js";
import { groupsTable, transactionsTable } from "./tables.js";
import { tailPanel } from "./tail.js";

export function streamView(main, { scope, stream, signal }) {
  shell.at({ text: scope, href: "#/" }, { text: stream });
  const model = streamModel(scope, stream, signal);
  const known = model.known;
  let chosen = null; // {from, to}: a moment if they are equal
  const facts = el("div.facts", { role: "status" });
  const chosenBar = el("div.chosen", { role: "status" });
  const trouble = el("p.pad.bad", { hidden: true, role: "alert" });
  const view = picture({
    height: 300,
    label: "Segments over time",
    onPick: (ms) => choose({ from: ms, to: ms }),
    onRange: (from, to) => choose({ from, to }),
  });
  const places = placesTable(model, see);
  const groups = groupsTable(model);
  const transactions = transactionsTable(model);
  const choice = timeChoice(model);
  const playAll = () => path`#/play/${scope}/${stream}` + (known.by ? `?${byOf(known)}` : "");
  const play = el("a.button.main", { href: playAll() }, "Play");
  const zooms = [["All", () => view.all()], ["1 h", () => view.last(3600000)], ["10 min", () => view.last(600000)], ["1 min", () => view.last(60000)]];

  fill(main, el("div.stream", {},
    el("div.row", {}, el("h1", {}, stream), facts, el("span.grow"),
      el("a.button", { href: path`#/search/${scope}/${stream}` }, "Search"),
      play),
    el("div.panel", {},
      el("div.head", {}, el("h2", {}, "Segments"), choice.node, el("span.grow"),
        zooms.map(([text, act]) => el("button.button.plain", { type: "button", onclick: act }, text)),
        el("button.button.plain.icon", { type: "button", "aria-label": "Zoom out", onclick: () => view.zoom(1.6) }, "−"),
        el("button.button.plain.icon", { type: "button", "aria-label": "Zoom in", onclick: () => view.zoom(1 / 1.6) }, "+")),
      trouble, view.node, legend(), chosenBar),
    el("div.two", {},
      tailPanel(known.data, signal),
      el("div.panel", {}, tabs([
        ["Bookmarks", places.node, () => {}],
        ["Reader groups", groups.node, model.groups],
        ["Transactions", transactions.node, model.transactions],
        ["Operations", operations(), () => {}],
      ])))));

  model.changed.on((what) => {
    if (what === "spans") {
      view.show({ spans: known.spans, head: known.head?.time ?? null, tail: known.tail?.time ?? null, isSealed: known.isSealed || known.eventTime !== null });
      showFacts();
    } else if (what === "by") {
      choose(null);
      view.all();
      play.href = playAll();
    } else if (what === "places") {
      view.show({ bookmarks: known.bookmarks, slices: known.slices });
    } else if (what === "groups") {
      view.show({ groups: known.groups ?? [] });
      groups.show();
    } else if (what === "transactions") transactions.show();
    else if (what === "config") showFacts();
    if (what === "places") places.show();
    choice.show();
    trouble.hidden = !known.troubles.spans;
    if (known.troubles.spans) fill(trouble, sentence(known.troubles.spans));
  }, signal);
  shell.themed.on(view.redraw, signal);

  choose(null);

  function showFacts() {
    const sum = (name) => known.loads.reduce((total, item) => total + item[name][1], 0);
    const stored = known.segments.reduce((total, item) => total + item.end_offset - item.start_offset, 0);
    const policy = known.config?.scalingPolicy;
    const scaling = policy && (policy.type === "FIXED_NUM_SEGMENTS" ? "fixed" : `scales at ${policy.targetRate} ${policy.type.includes("EVENTS") ? "events/s" : "KB/s"}`);
    fill(facts,
      known.isSealed ? el("span", {}, el("b", {}, "sealed")) : el("span", {}, el("b", {}, short(flow(sum("events_per_s")))), " events/s, ", el("b", {}, rate(sum("bytes_per_s")))),
      el("span", {}, el("b", {}, count(known.loads.length)), ` segment${known.loads.length === 1 ? "" : "s"} of `, el("b", {}, count(known.segments.length))),
      el("span", {}, "stores ", el("b", {}, bytes(stored)), known.head?.time ? ` since ${clock(known.head.time)}` : ""),
      scaling ? el("span", {}, scaling) : null);
  }

  function choose(range) {
    chosen = range;
    view.choose(range);
    chosenBar.classList.toggle("is", Boolean(range));
    if (!range) return fill(chosenBar, el("span.quiet", {}, "Click to select a moment, drag to select a range, wheel to zoom."));
    const isMoment = range.from === range.to;
    const button = (text, act, extra = "") => el(`button.button${extra}`, { type: "button", onclick: act }, text);
    return fill(chosenBar, el("span.mono", {}, isMoment ? clock(range.from, { millis: true }) : `${clock(range.from)} to ${clock(range.to)}, ${span(range.to - range.from)}`), el("span.grow"),
      el("a.button", { href: playOf(range) }, isMoment ? "Play from here" : "Play"),
      isMoment ? button("Bookmark…", () => makeBookmark(model, range.from)) : button("Slice…", () => makeSlice(model, range)),
      isMoment ? null : button("Zoom", () => { view.see(range.from, range.to); choose(null); }),
      isMoment ? button("Truncate before…", () => truncate(model, range.from), ".danger") : null,
      button("Clear selection", () => choose(null), ".plain"));
  }

  const playOf = ({ from, to }) => `${path`#/play/${scope}/${stream}`}?${byOf(known, from === to ? { from } : { from, to })}`;

  function see(kind, item) {
    if ([item.time, item.start?.time, item.end?.time].includes(null)) return note("The time of this position is unknown.");
    if (kind === "bookmark") {
      if (!view.inView(item.time)) view.see(item.time - 30000, item.time + 30000);
      choose({ from: item.time, to: item.time });
    } else {
      const margin = Math.max((item.end.time - item.start.time) * 0.15, 500);
      view.see(item.start.time - margin, item.end.time + margin);
      choose({ from: item.start.time, to: item.end.time });
    }
  }

  function operations() {
    const act = (text, about, run, extra = "") => el("tr", {}, el("td", {}, el(`button.button${extra}`, { type: "button", onclick: run }, text)), el("td.soft", {}, about));
    return el("table", { "aria-label": "Operations" }, el("tbody", {},
      act("Split…", "Replace a segment by several, for more parallel writers and readers.", () => split(model)),
      act("Merge…", "Replace two adjacent segments by one.", () => merge(model)),
      act("Bookmark the tail…", "Name the current end of the stream.", () => makeBookmark(model, null)),
      act("Truncate…", "Delete the events before the selected moment.", () => (chosen ? truncate(model, chosen.from) : note("Select a moment first: click in the picture.")), ".danger"),
      act("Seal…", "Prevent further writes, permanently.", () => seal(model), ".danger")));
  }

  return {
    b: () => makeBookmark(model, chosen && chosen.from === chosen.to ? chosen.from : null),
    Escape: () => choose(null),
    " ": () => (location.hash = chosen ? playOf(chosen) : playAll()),
    l: () => view.all(),
  };
}

function legend() {
  const key = (name, text) => {
    const swatch = el("i");
    swatch.style.background = `var(--${name})`;
    return el("span", {}, swatch, text);
  };
  return el("div.legend", {}, el("span.row", {}, "slow ", el("span.ramp", { role: "img", "aria-label": "Colour: rate" }), " fast"),
    key("mark", "bookmark"), key("slice", "slice"), key("group", "reader group"), el("span", {}, "▲ split  ▼ merge"), el("span", {}, "hatched: truncated"));
}

function tabs(items) {
  const list = el("div.tabs", { role: "tablist" });
  const body = el("div", { role: "tabpanel", tabIndex: 0 });
  const buttons = items.map(([text, node, begin], i) => el("button", { type: "button", role: "tab", onclick: () => pick(i), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    pick((i + step + items.length) % items.length).focus();
  } }, text));
  function pick(i) {
    buttons.forEach((button, at) => {
      button.setAttribute("aria-selected", at === i);
      button.tabIndex = at === i ? 0 : -1;
    });
    fill(body, items[i][1]);
    body.setAttribute("aria-label", items[i][0]);
    items[i][2]();
    return buttons[i];
  }
  fill(list, buttons);
  pick(0);
  return [el("div.head", {}, list), body];
}
