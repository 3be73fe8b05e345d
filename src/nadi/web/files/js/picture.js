// The picture of a stream: time horizontally, keys vertically, the rate as colour; with bookmarks, slices and reader groups.
// One canvas shows the data and is redrawn when data or view change; the other shows the pointer's actions.

import { colour, el, fill, sized } from "./dom.js";
import { bytes, clock, rate, segment, span, ticks } from "./format.js";
import { serverNow } from "./now.js";
import { scalings } from "./spans.js";

const LEFT = 44;
const RIGHT = 14;
const TOP = 30;
const BOTTOM = 24;
const SHADES = 48;
const LEAST_MS = 200; // shortest period in a view
const MOST_MS = 8e12; // 250 years

export function picture({ height, label, onPick, onRange, onView }) {
  const base = el("canvas", { role: "img", "aria-label": label });
  const over = el("canvas.over", { "aria-hidden": "true" });
  const tip = el("div.tip", { hidden: true });
  const node = el("div.picture", {}, base, over, tip);
  let data = { spans: [], bookmarks: [], slices: [], groups: [], head: null, tail: null };
  let corners = [];
  let view = { from: serverNow() - 60000, to: serverNow(), isAll: true, follows: true };
  let width = 0;
  let played = null;
  let chosen = null; // {from, to}
  let pointer = null;
  let drag = null;
  let isScheduled = false;

  const plot = () => ({ x: LEFT, w: Math.max(width - LEFT - RIGHT, 1), y: TOP, h: height - TOP - BOTTOM });
  const xOf = (ms) => LEFT + ((ms - view.from) / (view.to - view.from)) * plot().w;
  const msOf = (x) => view.from + ((x - LEFT) / plot().w) * (view.to - view.from);

  new ResizeObserver(() => {
    width = node.clientWidth;
    base.style.height = over.style.height = `${height}px`;
    draw();
    drawOver();
  }).observe(node);

  function bounds() {
    const begins = data.spans.reduce((least, item) => Math.min(least, item.from), Infinity);
    const from = Math.min(data.head ?? Infinity, begins);
    const to = Math.max(data.tail ?? -Infinity, data.isSealed ? -Infinity : serverNow(), from + 1000);
    return Number.isFinite(from) ? { from, to } : { from: serverNow() - 60000, to: serverNow() };
  }

  function fitView() {
    const all = bounds();
    const margin = (all.to - all.from) * 0.02;
    if (view.isAll) Object.assign(view, { from: all.from - margin, to: all.to + margin });
    else if (view.follows) {
      const length = view.to - view.from;
      Object.assign(view, { to: all.to + length * 0.03, from: all.to - length * 0.97 });
    }
  }

  function later() {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      draw();
      drawOver();
    });
  }

  // --- data ----------------------------------------------------------------------------------------

  function draw() {
    fitView();
    const context = sized(base, width, height);
    if (!context) return;
    const { x, w, y, h } = plot();
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = colour("sunk");
    context.fillRect(x, y, w, h);
    drawSpans(context, x, w, y, h);
    drawAxes(context, x, w, y, h);
    drawPlaces(context, x, w, y, h);
    const count = new Set(data.spans.map((item) => item.id)).size;
    base.setAttribute("aria-label", `${label}: ${count} segment${count === 1 ? "" : "s"} from ${clock(view.from)} to ${clock(view.to)}`);
  }

  function drawSpans(context, x, w, y, h) {
    const most = data.spans.reduce((highest, item) => Math.max(highest, item.rate), 0) || 1;
    const shades = ramp();
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    const perMs = w / (view.to - view.from);
    const isDense = data.spans.length > 1500;
    for (const item of data.spans) {
      if (item.to < view.from || item.from > view.to) continue;
      const exact = item.isStep ? Math.round : Number; // avoids seams between adjacent steps
      const left = exact(x + (item.from - view.from) * perMs);
      const right = exact(x + (item.to - view.from) * perMs);
      const top = y + (1 - item.high) * h;
      const tall = (item.high - item.low) * h;
      const gap = item.isStep || isDense || right - left < 4 || tall < 4 ? 0 : 1;
      context.fillStyle = shades[Math.min(SHADES - 1, Math.floor(Math.sqrt(item.rate / most) * SHADES))];
      context.fillRect(left, top, Math.max(right - left - gap, 0.6), Math.max(tall - gap, 0.6));
      if (item.gone > item.from && item.gone > view.from) hatch(context, left, top, (item.gone - item.from) * perMs, tall);
      if (!item.isStep && !isDense && right - left > 46 && tall > 15) {
        context.fillStyle = colour(Math.sqrt(item.rate / most) > 0.42 ? "panel" : "text");
        context.fillText(segment(item.id), Math.max(left, x) + 5, top + Math.min(14, tall / 2 + 4));
      }
    }
    context.restore();
  }

  function hatch(context, left, top, wide, tall) {
    context.save();
    context.beginPath();
    context.rect(left, top, wide, tall);
    context.clip();
    context.fillStyle = colour("panel");
    context.globalAlpha = 0.78;
    context.fillRect(left, top, wide, tall);
    context.globalAlpha = 1;
    context.strokeStyle = colour("line-strong");
    context.lineWidth = 0.7;
    context.beginPath();
    const end = Math.min(left + wide, width) + tall;
    for (let at = Math.max(left, LEFT) - (Math.max(left, LEFT) % 7); at < end; at += 7) {
      context.moveTo(at, top);
      context.lineTo(at - tall, top + tall);
    }
    context.stroke();
    context.restore();
  }

  function drawAxes(context, x, w, y, h) {
    context.fillStyle = colour("faint");
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const key of h > 90 ? [0, 0.25, 0.5, 0.75, 1] : [0, 1]) {
      context.fillText(String(key), x - 7, y + (1 - key) * h + 4);
    }
    context.textAlign = "center";
    for (const tick of ticks(view.from, view.to, w / 96)) {
      const at = Math.round(xOf(tick.ms)) + 0.5;
      context.beginPath();
      context.moveTo(at, y + h);
      context.lineTo(at, y + h + 4);
      context.stroke();
      if (at > x + 16 && at < x + w - 16) context.fillText(tick.text, at, y + h + 17);
    }
    context.textAlign = "left";
    let last = -9;
    context.fillStyle = colour("soft");
    for (const item of corners) {
      const at = xOf(item.ms);
      if (at < x || at > x + w || at - last < 7) continue;
      last = at;
      context.beginPath();
      const [tip, foot] = item.kind === "split" ? [y + h + 1, y + h + 7] : [y + h + 7, y + h + 1];
      context.moveTo(at, tip);
      context.lineTo(at - 3.5, foot);
      context.lineTo(at + 3.5, foot);
      context.fill();
    }
  }

  function drawPlaces(context, x, w, y, h) {
    context.save();
    context.beginPath();
    context.rect(x - 6, 0, w + 12, height);
    context.clip();
    data.slices.forEach((item, i) => {
      if (item.start.time === null || item.end.time === null) return;
      const [left, right] = [xOf(item.start.time), xOf(item.end.time)];
      const top = 17 + (i % 2) * 6;
      context.fillStyle = colour("slice");
      context.globalAlpha = 0.85;
      context.fillRect(left, top, Math.max(right - left, 2), 4);
      context.globalAlpha = 0.07;
      context.fillRect(left, y, Math.max(right - left, 2), h);
      context.globalAlpha = 1;
    });
    let free = -99;
    for (const item of [...data.bookmarks].sort((a, b) => a.time - b.time)) {
      if (item.time === null) continue;
      const at = xOf(item.time);
      if (at < x - 1 || at > x + w + 1) continue;
      line(context, at, TOP - 8, y + h, colour("mark"), [3, 3]);
      context.fillStyle = colour("mark");
      context.beginPath();
      context.moveTo(at, 6);
      context.lineTo(at + 8, 10);
      context.lineTo(at, 14);
      context.fill();
      context.fillRect(at - 0.5, 6, 1, TOP - 8);
      if (at > free) {
        context.fillText(item.name, at + 11, 13);
        free = at + 18 + context.measureText(item.name).width;
      }
    }
    for (const item of data.groups) {
      if (!item.position || item.position.time === null) continue;
      const at = xOf(item.position.time);
      if (at < x - 1 || at > x + w + 1) continue;
      context.fillStyle = colour("panel");
      context.fillRect(at - 1.5, y, 3, h);
      line(context, at - 0.5, y, y + h, colour("group"), []);
      const wide = context.measureText(item.readerGroupName).width + 12;
      const left = at + wide > x + w ? at - wide : at;
      context.fillStyle = colour("group");
      context.fillRect(left, y + h - 17, wide, 17);
      context.fillStyle = colour("panel");
      context.fillText(item.readerGroupName, left + 6, y + h - 5);
    }
    context.restore();
  }

  function line(context, at, top, bottom, style, dash) {
    context.strokeStyle = style;
    context.lineWidth = 1;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(Math.round(at) + 0.5, top);
    context.lineTo(Math.round(at) + 0.5, bottom);
    context.stroke();
    context.setLineDash([]);
  }

  // --- pointer -------------------------------------------------------------------------------------

  function drawOver() {
    const context = sized(over, width, height);
    if (!context) return;
    const { y, h } = plot();
    const range = drag?.kind === "range" && drag.moved ? { from: Math.min(drag.ms, msOf(pointer.x)), to: Math.max(drag.ms, msOf(pointer.x)) } : chosen;
    if (range) {
      const [left, right] = [xOf(range.from), xOf(range.to)];
      if (range.from !== range.to) shade(context, left, right, y, h);
      line(context, left, y - 6, y + h, colour("text"), []);
      line(context, right, y - 6, y + h, colour("text"), []);
    }
    if (played !== null) {
      const at = xOf(played);
      if (at >= LEFT - 1 && at <= width - RIGHT + 1) {
        context.lineWidth = 2;
        context.strokeStyle = context.fillStyle = colour("play");
        context.beginPath();
        context.moveTo(at, y - 6);
        context.lineTo(at, y + h + 2);
        context.stroke();
        context.beginPath();
        context.arc(at, y - 8, 4.5, 0, 7);
        context.fill();
      }
    }
    if (pointer && !drag) line(context, pointer.x, y, y + h, colour("faint"), []);
    showTip();
  }

  // Dims everything outside the selection.
  function shade(context, left, right, y, h) {
    const [begin, end] = [LEFT, width - RIGHT];
    context.fillStyle = colour("panel");
    context.globalAlpha = 0.5;
    context.fillRect(begin, y, Math.max(0, Math.min(left, end) - begin), h);
    context.fillRect(Math.max(right, begin), y, Math.max(0, end - Math.max(right, begin)), h);
    context.globalAlpha = 1;
  }

  function showTip() {
    tip.hidden = !pointer || pointer.x < LEFT || pointer.x > width - RIGHT;
    if (tip.hidden) return;
    const ms = msOf(pointer.x);
    const { y, h } = plot();
    const key = 1 - (pointer.y - y) / h;
    const item = data.spans.findLast((each) => each.from <= ms && ms < each.to && each.low <= key && key < each.high);
    const name = [...data.bookmarks.filter((mark) => Math.abs(xOf(mark.time) - pointer.x) < 5), ...data.slices.filter((slice) => pointer.y < y && slice.start.time <= ms && ms <= slice.end.time)].map((each) => each.name).join(", ");
    fill(tip, el("div.mono", {}, clock(ms, { millis: view.to - view.from < 60000 })),
      name ? el("div", {}, name) : null,
      item ? el("div.soft", {}, `segment ${segment(item.id)}, keys ${round(item.low)} to ${round(item.high)}`) : null,
      item ? el("div.soft", {}, item.isStep ? `${bytes(item.bytes)} in ${span(item.to - item.from)}` : `${rate(item.rate)}${ms < item.gone ? ", truncated" : ""}`) : null,
      drag?.kind === "range" && drag.moved ? el("div.soft", {}, span(ms - drag.ms)) : null);
    tip.style.left = `${Math.max(4, Math.min(pointer.x + 14, width - tip.offsetWidth - 6))}px`;
    tip.style.top = `${Math.max(2, Math.min(pointer.y + 14, height - tip.offsetHeight - 2))}px`;
  }

  const round = (value) => String(Math.round(value * 10000) / 10000);
  const spot = (event) => {
    const box = over.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  over.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    pointer = spot(event);
    over.setPointerCapture(event.pointerId);
    const kind = event.shiftKey || event.button === 1 ? "move" : "range";
    drag = { kind, x: pointer.x, ms: msOf(pointer.x), from: view.from, to: view.to, moved: false };
    if (!onRange && kind === "range") onPick(clamp(drag.ms), true);
  });
  over.addEventListener("pointermove", (event) => {
    pointer = spot(event);
    if (drag && Math.abs(pointer.x - drag.x) > 4) drag.moved = true;
    if (drag?.kind === "move") {
      const shift = ((drag.x - pointer.x) / plot().w) * (drag.to - drag.from);
      set({ from: drag.from + shift, to: drag.to + shift });
    } else if (drag?.moved && !onRange) onPick(clamp(msOf(pointer.x)), true);
    drawOver();
  });
  over.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const done = drag;
    drag = null;
    pointer = event.pointerType === "touch" ? null : spot(event);
    const at = clamp(msOf(spot(event).x));
    if (done.kind === "range") {
      if (done.moved && onRange) onRange(Math.min(clamp(done.ms), at), Math.max(clamp(done.ms), at));
      else onPick(nearMark(at), false);
    }
    drawOver();
  });
  over.addEventListener("pointercancel", () => { drag = pointer = null; drawOver(); });
  over.addEventListener("pointerleave", () => { if (!drag) { pointer = null; drawOver(); } });
  over.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const shift = (event.deltaX / plot().w) * (view.to - view.from);
      set({ from: view.from + shift, to: view.to + shift });
    } else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 250))), msOf(spot(event).x));
  }, { passive: false });

  function clamp(ms) {
    const all = bounds();
    return Math.round(Math.max(all.from, Math.min(ms, all.to)));
  }

  function nearMark(ms) {
    const near = data.bookmarks.find((item) => item.time !== null && Math.abs(xOf(item.time) - xOf(ms)) < 5);
    return near ? near.time : ms;
  }

  function set(range) {
    const length = Math.min(Math.max(range.to - range.from, LEAST_MS), MOST_MS);
    const from = Math.min(Math.max(range.from, -MOST_MS), MOST_MS);
    view = { from, to: from + length, isAll: false, follows: false };
    onView?.(view);
    later();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    const follows = !data.isSealed && !view.isAll && view.follows;
    set({ from: around - (around - view.from) * factor, to: around + (view.to - around) * factor });
    view.follows = follows;
  }

  return {
    node,
    show(changes) {
      data = { ...data, ...changes };
      if (changes.spans) corners = scalings(changes.spans);
      later();
    },
    all() { view = { ...view, isAll: true, follows: true }; onView?.(view); later(); },
    last(ms) { view = { from: bounds().to - ms, to: bounds().to, isAll: false, follows: true }; onView?.(view); later(); },
    see(from, to) { set({ from, to }); },
    zoom,
    choose(range) { chosen = range; drawOver(); },
    play(ms) { if (ms !== played) { played = ms; drawOver(); } },
    inView: (ms) => ms >= view.from && ms <= view.to,
    view: () => view,
    bounds,
    redraw: later,
  };
}

let cached = { key: "", shades: [] };
function ramp() {
  const key = colour("rate-0") + colour("rate-1");
  if (cached.key !== key) {
    const [from, to] = [parts(colour("rate-0")), parts(colour("rate-1"))];
    const shades = Array.from({ length: SHADES }, (_, i) => `rgb(${from.map((value, part) => Math.round(value + ((to[part] - value) * i) / (SHADES - 1))).join(" ")})`);
    cached = { key, shades };
  }
  return cached.shades;
}
const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
