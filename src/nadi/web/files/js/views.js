// The player's views of events: as pictures, or as JSON or text. Charts are in chart.js.

import { el, fill } from "./dom.js";
import { clock, segment } from "./format.js";
import { bitmapOf, jsonOf, pretty, shown } from "./payload.js";

const LIST = 40; // events under the current one

export function pictureView() {
  const canvas = el("canvas.fill", { role: "img", "aria-label": "Picture of the current event" });
  let next = null; // the latest event received while another was being decoded
  let isDecoding = false;
  let bitmap = null;
  let count = 0;

  async function read() {
    isDecoding = true;
    while (next) {
      const event = next;
      next = null;
      try {
        const decoded = await bitmapOf(event);
        bitmap?.close();
        bitmap = decoded;
        count += 1;
        canvas.dataset.frames = count;
        canvas.setAttribute("aria-label", `Picture of ${clock(event.time, { millis: true })}, ${decoded.width} by ${decoded.height}`);
        draw();
      } catch {
        // not a picture: keep the previous one
      }
    }
    isDecoding = false;
  }

  function draw() {
    const { clientWidth: width, clientHeight: height } = canvas;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (!w || !h) return;
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, w, h);
    if (!bitmap) return;
    const scale = Math.min(w / bitmap.width, h / bitmap.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, (w - bitmap.width * scale) / 2, (h - bitmap.height * scale) / 2, bitmap.width * scale, bitmap.height * scale);
  }

  let isPicture = false;
  return {
    node: canvas, controls: [], draw,
    add(events) {
      const last = events.findLast((event) => event.media);
      if (!last) return;
      isPicture = true;
      next = last;
      if (!isDecoding) read();
    },
    clear() { next = null; },
    has: () => isPicture,
  };
}

export function eventView() {
  const head = el("div.pad.soft.mono");
  const body = el("pre");
  const list = el("div", { role: "log", "aria-label": "Previous events" });
  const node = el("div", {}, head, body, list);
  let recent = [];
  let isNew = false;
  return {
    node, controls: [],
    add(events) {
      if (!events.length) return;
      recent = recent.concat(events).slice(-LIST - 1);
      isNew = true;
    },
    draw() {
      if (!isNew || !node.isConnected) return;
      isNew = false;
      const last = recent[recent.length - 1];
      fill(head, `${clock(last.time, { millis: true })}  segment ${segment(last.segment)}  offset ${last.offset}`);
      fill(body, jsonOf(last) !== undefined ? pretty(last) : shown(last));
      fill(list, recent.slice(0, -1).reverse().map((event) => el("div.event", {}, el("time", {}, clock(event.time, { date: new Date(event.time).toDateString() !== new Date().toDateString(), millis: true })), el("span.where", {}, segment(event.segment)), shown(event))));
    },
    clear() { recent = []; isNew = false; fill(head); fill(body); fill(list); },
    has: () => true,
  };
}
