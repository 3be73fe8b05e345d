// A line chart of a numeric field over time, optionally with one line per value of another field.

import { colour, el, fill, sized, theme } from "./dom.js";
import { short, ticks } from "./format.js";
import { at, jsonOf, numbersOf } from "./payload.js";

const MAX_POINTS = 40000;
const MAX_CHARS = 16e6; // of stored events
const NAMES = 64; // of fields that may split lines
const MOST = 1e300; // the difference of two such numbers is finite
const LINES = 8;
const TIMES = /^(at|t|ts|time|timestamp|date|when|seq|id|number|n)$|(_at|_ms|_time|_id)$/i; // not interesting as the first choice
const HUES = { light: ["#0b6b70", "#c2571a", "#6a4bb0", "#2557b3", "#b3261e", "#5d7a1d", "#a0318f", "#6b5b45"], dark: ["#58c4bb", "#f0a35c", "#b79cf0", "#8ab4ff", "#ff8a80", "#b5d46b", "#f08fdc", "#c9b79c"] };

export function chartView() {
  const canvas = el("canvas.fill", { role: "img", "aria-label": "Line chart" });
  const field = el("select.field", { "aria-label": "Field", onchange: () => { chosen = field.value; rebuild(); } });
  const by = el("select.field", { "aria-label": "Split by", onchange: () => { split = by.value; isSplit = true; rebuild(); } });
  const note = el("span.quiet");
  let events = [];
  let chars = 0;
  let points = []; // [ms, value, line]
  let lines = new Map();
  let chosen = null;
  let split = "";
  let isSplit = false; // chosen by the user
  const fields = new Map(); // by path
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
    if (events.length > MAX_POINTS || chars > MAX_CHARS) {
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
    for (const [name, inner] of Object.entries(value)) {
      if (typeof inner !== "string" && typeof inner !== "boolean") continue;
      if (!texts.has(name) && texts.size < NAMES) texts.set(name, new Set());
      const seen = texts.get(name);
      if (seen && seen.size <= LINES * 4) seen.add(String(inner));
    }
  }

  function offer() {
    known = fields.size + texts.size;
    const names = [...fields.keys()];
    chosen ??= names.find((name) => !TIMES.test(name)) ?? names[0] ?? null;
    fill(field, names.map((name) => el("option", { value: name }, name || "value")));
    field.value = chosen ?? "";
    const groups = [...texts.keys()].filter(isFew);
    const was = split;
    if (!groups.includes(split)) split = isSplit ? "" : (groups[0] ?? "");
    fill(by, el("option", { value: "" }, "single line"), groups.map((name) => el("option", { value: name }, `by ${name}`)));
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
  // isLive: show the last events if there are no recent ones.
  function draw(now, window, isLive = false) {
    last = { now, window, isLive };
    if (isLive && points.length && !points.some((point) => point[0] >= now - window)) {
      now = points.reduce((most, point) => Math.max(most, point[0]), -Infinity);
      window = Math.max(now - points.reduce((least, point) => Math.min(least, point[0]), Infinity), 1000);
    }
    const { clientWidth: width, clientHeight: height } = canvas;
    const context = sized(canvas, width, height);
    if (!context) return;
    const from = now - window;
    const seen = points.filter((point) => point[0] >= from && point[0] <= now);
    const [x, y, w, h] = [58, 14, width - 76, height - 44];
    let [low, high] = [Infinity, -Infinity];
    for (const point of seen) {
      if (point[1] < low) low = point[1];
      if (point[1] > high) high = point[1];
    }
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    if (low > 0 && low < high * 0.6) low = 0;
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    high += margin;
    if (low !== 0) low -= margin;
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
      const mine = seen.filter((point) => point[2] === line);
      context.strokeStyle = context.fillStyle = hues[line % hues.length];
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      context.beginPath();
      thin(mine, w, xOf).forEach((point) => context.lineTo(xOf(point[0]), yOf(point[1])));
      context.stroke();
      if (few) {
        for (const point of mine) {
          context.beginPath();
          context.arc(xOf(point[0]), yOf(point[1]), 2, 0, 7);
          context.fill();
        }
      }
    }
    context.restore();
    if (lines.size > 1 || split) names(context, x, y, hues);
    if (!seen.length && events.length) nothing(context, x + w / 2, y + h / 2);
    canvas.setAttribute("aria-label", `Line chart of ${chosen ?? "no field"}: ${seen.length} values from ${short(low)} to ${short(high)}`);
  }

  function axes(context, { x, y, w, h, low, high, from, now, xOf, yOf }) {
    context.strokeStyle = colour("line");
    context.fillStyle = colour("faint");
    context.lineWidth = 1;
    context.textAlign = "right";
    const about = Math.max(2, h / 60);
    const step = nice((high - low) / about);
    for (let i = 0; i <= about; i++) { // adding a step may not change a very large number
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
    context.fillText("No events in this period.", x, y - 10);
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
  return [1, 2, 5, 10].find((factor) => factor * power >= step) * power;
}

// Keeps the lowest and highest point of each pixel, so that no peak is lost.
function thin(points, width, xOf) {
  if (points.length < width * 3) return points;
  const extremes = [];
  let low = null;
  let high = null;
  let pixel = null;
  const flush = () => {
    if (low === null) return;
    extremes.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  };
  for (const point of points) {
    const here = Math.floor(xOf(point[0]));
    if (here !== pixel) {
      flush();
      pixel = here;
      low = high = point;
    } else if (point[1] < low[1]) low = point;
    else if (point[1] > high[1]) high = point;
  }
  flush();
  return extremes;
}
