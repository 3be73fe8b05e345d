// How many events a search finds: over time, as bars that one can choose, or by what a field holds.

import { el, fill } from "./dom.js";
import { clock, count, span, STEPS } from "./format.js";

const BARS = 48; // about
const MOST_BARS = 400;
const LEAST_STEP_MS = 1000;
const BY_VALUE = ["keyword", "bool"];

export function countsPanel({ onBy, onTime, onValue }) {
  const came = el("option", { value: "_came" }, "when they came");
  const by = el("select.field", { "aria-label": "Count by", onchange: onBy }, came);
  const told = el("span.quiet", { role: "status" });
  const body = el("div.pad");
  const node = el("div.panel", {}, el("div.head", {}, el("h2", {}, "How many"), by, el("span.grow"), told), body);

  let kinds = new Map();
  const quoted = (text) => `"${text.replace(/["\\]/g, "\\$&")}"`;

  return {
    node,
    by: () => by.value,
    setFields(fields) {
      const kept = by.value;
      kinds = new Map(fields.map((one) => [one.name, one.kind]));
      fill(by, came, fields.filter((one) => BY_VALUE.includes(one.kind)).map((one) => el("option", { value: one.name }, one.name)));
      by.value = kept;
      if (by.value !== kept) by.value = "_came";
    },
    // So that there are about as many bars as are told apart; null for no time at all.
    stepOf({ from, to }) {
      if (!(from > 0 && to >= from)) return null;
      const wanted = Math.max((to - from) / BARS, LEAST_STEP_MS);
      const week = STEPS[STEPS.length - 1];
      return STEPS.find((one) => one >= wanted) ?? Math.ceil(wanted / week) * week;
    },
    showTimes(buckets, range, step) {
      const counts = new Map(buckets.map((one) => [Date.parse(one.value), one.events]));
      if (!counts.size) return empty();
      const floor = (ms) => Math.floor(ms / step) * step;
      const first = Math.min(floor(range.from), ...counts.keys());
      const last = Math.max(floor(range.to), ...counts.keys());
      const begin = Math.max(first, last - (MOST_BARS - 1) * step);
      const most = Math.max(...counts.values());
      const bars = [];
      for (let at = begin; at <= last; at += step) bars.push(bar(at, at + step, counts.get(at) ?? 0, most));
      fill(told, `each ${span(step)}`);
      return fill(body, el("div.bars", { role: "group", "aria-label": "Events over time" }, bars),
        el("div.row.quiet.num", {}, clock(begin), el("span.grow"), clock(last + step)));
    },
    showValues(name, values) {
      if (!values.length) return empty();
      const most = Math.max(...values.map((one) => one.events));
      fill(told, values.length === 12 ? "the most frequent" : "");
      return fill(body, el("div.values", { role: "group", "aria-label": `Events by ${name}` }, values.map((one) => {
        const length = el("i");
        length.style.width = `${(100 * one.events) / most}%`;
        const text = kinds.get(name) === "bool" ? one.value.toLowerCase() : one.value;
        return el("button", { type: "button", title: "Only these", onclick: () => onValue(`${name}:${quoted(text)}`) }, el("span.what", {}, text), length, el("span.num", {}, count(one.events)));
      })));
    },
    fail(text) {
      fill(told);
      fill(body, el("p.bad", { role: "alert" }, text));
    },
  };

  function empty() {
    fill(told);
    fill(body, el("p.quiet", {}, "None."));
  }

  function bar(from, to, events, most) {
    const tall = el("i");
    tall.style.height = `${(100 * events) / most}%`;
    if (!events) return el("span", {});
    const text = `${count(events)} events from ${clock(from)} to ${clock(to)}`;
    return el("button", { type: "button", title: text, "aria-label": text, onclick: () => onTime(from, to) }, tall);
  }
}
