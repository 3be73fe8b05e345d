// Counts of a search: over time as selectable bars, or by the values of a field.

import { el, fill } from "./dom.js";
import { clock, count, span, STEPS } from "./format.js";

const BARS = 48; // about
const MOST_BARS = 400;
const LEAST_STEP_MS = 1000;
const BY_VALUE = ["keyword", "bool"];

export function countsPanel({ onBy, onTime, onValue }) {
  const byArrival = el("option", { value: "_arrival_time" }, "by arrival time");
  const by = el("select.field", { "aria-label": "Count by", onchange: onBy }, byArrival);
  const note = el("span.quiet", { role: "status" });
  const body = el("div.pad");
  const node = el("div.panel", {}, el("div.head", {}, el("h2", {}, "Counts"), by, el("span.grow"), note), body);

  let kinds = new Map();
  const quoted = (text) => `"${text.replace(/["\\]/g, "\\$&")}"`;

  return {
    node,
    by: () => by.value,
    setFields(fields) {
      const previous = by.value;
      kinds = new Map(fields.map((item) => [item.name, item.kind]));
      fill(by, byArrival, fields.filter((item) => BY_VALUE.includes(item.kind)).map((item) => el("option", { value: item.name }, item.name)));
      by.value = previous;
      if (by.value !== previous) by.value = "_arrival_time";
    },
    // The step for about BARS bars; null for an empty range.
    stepOf({ from, to }) {
      if (!(from > 0 && to >= from)) return null;
      const target = Math.max((to - from) / BARS, LEAST_STEP_MS);
      const week = STEPS[STEPS.length - 1];
      return STEPS.find((item) => item >= target) ?? Math.ceil(target / week) * week;
    },
    showTimes(buckets, range, step) {
      const counts = new Map(buckets.map((item) => [Date.parse(item.value), item.events]));
      if (!counts.size) return empty();
      const floor = (ms) => Math.floor(ms / step) * step;
      const first = Math.min(floor(range.from), ...counts.keys());
      const last = Math.max(floor(range.to), ...counts.keys());
      const begin = Math.max(first, last - (MOST_BARS - 1) * step);
      const most = Math.max(...counts.values());
      const bars = [];
      for (let at = begin; at <= last; at += step) bars.push(bar(at, at + step, counts.get(at) ?? 0, most));
      fill(note, `per ${span(step)}`);
      return fill(body, el("div.bars", { role: "group", "aria-label": "Events over time" }, bars),
        el("div.row.quiet.num", {}, clock(begin), el("span.grow"), clock(last + step)));
    },
    showValues(name, values) {
      if (!values.length) return empty();
      const most = Math.max(...values.map((item) => item.events));
      fill(note, values.length === 12 ? "the most frequent" : "");
      return fill(body, el("div.values", { role: "group", "aria-label": `Events by ${name}` }, values.map((item) => {
        const length = el("i");
        length.style.width = `${(100 * item.events) / most}%`;
        const text = kinds.get(name) === "bool" ? item.value.toLowerCase() : item.value;
        return el("button", { type: "button", title: "Show only these", onclick: () => onValue(`${name}:${quoted(text)}`) }, el("span.what", {}, text), length, el("span.num", {}, count(item.events)));
      })));
    },
    fail(text) {
      fill(note);
      fill(body, el("p.bad", { role: "alert" }, text));
    },
  };

  function empty() {
    fill(note);
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
