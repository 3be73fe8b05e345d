// A number of each event as a line over time, one line for each value of another field if that is wanted.

import { colour, el, fill, sized, theme } from "./dom.js";
import { short, ticks } from "./format.js";
import { at, jsonOf, numbersOf } from "./payload.js";

const KEPT = 40000; // points
const KEPT_CHARS = 16e6; // of the events that they are of
const NAMES = 64; // of texts that lines may be told by
const MOST = 1e300; // two such numbers have a difference
const LINES = 8;
const TIMES = /^(at|t|ts|time|timestamp|date|when|seq|id|number|n)$|(_at|_ms|_time|_id)$/i; // not what one wants to see first
const HUES = { light: ["#0b6b70", "#c2571a", "#6a4bb0", "#2557b3", "#b3261e", "#5d7a1d", "#a0318f", "#6b5b45"], dark: ["#58c4bb", "#f0a35c", "#b79cf0", "#8ab4ff", "#ff8a80", "#b5d46b", "#f08fdc", "#c9b79c"] };

export function chartView() {
  const canvas = el("canvas.fill", { role: "img", "aria-label": "Line chart" });
  const field = el("select.field", { "aria-label": "Field", onchange: () => { chosen = field.value; rebuild(); } });
  const by = el("select.field", { "aria-label": "A line for each", onchange: () => { split = by.value; isSplit = true; rebuild(); } });
  const note = el("span.quiet");
  let events = [];
  let chars = 0;
  let points = []; // [ms, value, line]
  let lines = new Map();
  let chosen = null;
  let split = "";
  let isSplit = false; // by somebody, not by what came
  const fields = new Map(); // path: whether it changes
  const texts = new Map(); // path: values seen
  let known = 0;

  function add(batch) {
    for (const event of batch) {
      const value = jsonOf(event);
      if (value === undefined) continue;
      events.push(event);
      chars += event.text.length;
      learn(value);
      put(event, value);
    }
    if (events.length > KEPT || chars > KEPT_CHARS) {
      events = events.slice(Math.ceil(events.length / 4));
      chars = events.reduce((sum, event) => sum + event.text.length, 0);
      rebuild();
    }
    if (known !== fields.size + texts.size || (split && !isFew(split))) offer();
  }

  const isFew = (name) => texts.get(name).size <= LINES * 4;

  function learn(value) {
    for (const name of Object.keys(numbersOf(value))) if (fields.size < 64) fields.set(name, true);
    if (!value || typeof value !== "object") return;
    for (const [name, one] of Object.entries(value)) {
      if (typeof one !== "string" && typeof one !== "boolean") continue;
      if (!texts.has(name) && texts.size < NAMES) texts.set(name, new Set());
      const seen = texts.get(name);
      if (seen && seen.size <= LINES * 4) seen.add(String(one));
    }
  }

  function offer() {
    known = fields.size + texts.size;
    const names = [...fields.keys()];
    chosen ??= names.find((name) => !TIMES.test(name)) ?? names[0] ?? null;
    fill(field, names.map((name) => el("option", { value: name }, name || "the number")));
    field.value = chosen ?? "";
    const groups = [...texts.keys()].filter(isFew);
    const was = split;
    if (!groups.includes(split)) split = isSplit ? "" : (groups[0] ?? "");
    fill(by, el("option", { value: "" }, "one line"), groups.map((name) => el("option", { value: name }, `by ${name}`)));
    by.value = split;
    by.hidden = !groups.length;
    if (was !== split || !points.length) rebuild();
  }

  function put(event, value) {
    if (chosen === null) return;
    const number = at(value, chosen);
    if (typeof number !== "number" || !(Math.abs(number) <= MOST)) return;
    const name = split ? String(value?.[split] ?? "") : "";
    if (!lines.has(name)) lines.set(name, lines.size);
    points.push([event.time, number, lines.get(name)]);
  }

  function rebuild() {
    points = [];
    lines = new Map();
    for (const event of events) put(event, jsonOf(event));
    draw(last.now, last.window, last.isLive);
  }

  let last = { now: Date.now(), window: 20000 };
  // isLive: where nothing came lately, the last that did is shown.
  function draw(now, window, isLive = false) {
    last = { now, window, isLive };
    if (isLive && points.length && !points.some((one) => one[0] >= now - window)) {
      now = points.reduce((most, one) => Math.max(most, one[0]), -Infinity);
      window = Math.max(now - points.reduce((least, one) => Math.min(least, one[0]), Infinity), 1000);
    }
    const { clientWidth: width, clientHeight: height } = canvas;
    const context = sized(canvas, width, height);
    if (!context) return;
    const from = now - window;
    const seen = points.filter((one) => one[0] >= from && one[0] <= now);
    const [x, y, w, h] = [58, 14, width - 76, height - 44];
    let [low, high] = [Infinity, -Infinity];
    for (const one of seen) {
      if (one[1] < low) low = one[1];
      if (one[1] > high) high = one[1];
    }
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    if (low > 0 && low < high * 0.6) low = 0;
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    high += room;
    if (low !== 0) low -= room;
    const xOf = (ms) => x + ((ms - from) / window) * w;
    const yOf = (value) => y + h - ((value - low) / (high - low)) * h;
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    axes(context, { x, y, w, h, low, high, from, now, xOf, yOf });
    const hues = HUES[theme()] ?? HUES.light;
    context.save();
    context.beginPath();
    context.rect(x, 0, w + 6, height);
    context.clip();
    const few = seen.length < w / 3;
    for (const [, line] of lines) {
      const mine = seen.filter((one) => one[2] === line);
      context.strokeStyle = context.fillStyle = hues[line % hues.length];
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      context.beginPath();
      thin(mine, w, xOf).forEach((one) => context.lineTo(xOf(one[0]), yOf(one[1])));
      context.stroke();
      if (few) {
        for (const one of mine) {
          context.beginPath();
          context.arc(xOf(one[0]), yOf(one[1]), 2, 0, 7);
          context.fill();
        }
      }
    }
    context.restore();
    if (lines.size > 1 || split) names(context, x, y, hues);
    if (!seen.length && events.length) nothing(context, x + w / 2, y + h / 2);
    canvas.setAttribute("aria-label", `Line chart of ${chosen ?? "nothing"}: ${seen.length} values from ${short(low)} to ${short(high)}`);
  }

  function axes(context, { x, y, w, h, low, high, from, now, xOf, yOf }) {
    context.strokeStyle = colour("line");
    context.fillStyle = colour("faint");
    context.lineWidth = 1;
    context.textAlign = "right";
    const about = Math.max(2, h / 60);
    const step = nice((high - low) / about);
    for (let i = 0; i <= about; i++) { // a number may be so large that adding a step doesn't change it
      const value = (Math.ceil(low / step) + i) * step;
      if (value > high) break;
      const top = Math.round(yOf(value)) + 0.5;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x + w, top);
      context.stroke();
      context.fillText(short(Math.abs(value) < step / 1e6 ? 0 : value), x - 8, top + 4);
    }
    context.textAlign = "center";
    for (const tick of ticks(from, now, w / 110)) context.fillText(tick.text, xOf(tick.ms), y + h + 18);
    context.textAlign = "left";
  }

  function nothing(context, x, y) {
    context.textAlign = "center";
    context.fillStyle = colour("faint");
    context.fillText("Nothing came in this time.", x, y - 10);
    context.textAlign = "left";
  }

  function names(context, x, y, hues) {
    let left = x + 10;
    for (const [name, line] of [...lines].slice(0, LINES)) {
      context.fillStyle = hues[line % hues.length];
      context.fillRect(left, y + 2, 9, 9);
      context.fillStyle = colour("soft");
      context.fillText(name || "–", left + 14, y + 11);
      left += context.measureText(name || "–").width + 32;
    }
  }

  return {
    node: canvas, controls: [field, by, note], add, draw,
    clear() { events = []; chars = 0; points = []; lines = new Map(); },
    has: () => fields.size > 0,
  };
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step || 1));
  return [1, 2, 5, 10].find((one) => one * power >= step) * power;
}

// For each pixel the lowest and the highest of its points: no peak is lost.
function thin(points, width, xOf) {
  if (points.length < width * 3) return points;
  const found = [];
  let low = null;
  let high = null;
  let pixel = null;
  const flush = () => {
    if (low === null) return;
    found.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  };
  for (const one of points) {
    const here = Math.floor(xOf(one[0]));
    if (here !== pixel) {
      flush();
      pixel = here;
      low = high = one;
    } else if (one[1] < low[1]) low = one;
    else if (one[1] > high[1]) high = one;
  }
  flush();
  return found;
}
