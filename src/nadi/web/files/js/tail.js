// A stream's events as they arrive, the newest at the bottom.

import { el, say } from "./dom.js";
import { follow } from "./follow.js";
import { clock, count, segment, short } from "./format.js";
import { shown } from "./payload.js";
import { overHttp } from "./source.js";

const MAX_SHOWN = 300; // events on the page
const AT_ONCE = 60; // maximum shown events per batch

export function tailPanel(data, signal) {
  const list = el("div.events", { role: "log", "aria-label": "Live events", tabIndex: 0 });
  const status = el("span.quiet.grow", { role: "status" }, "");
  const find = el("input.field", { type: "search", placeholder: "Filter", "aria-label": "Show only events with this text", size: 16 });
  const pauseButton = el("button.button", { type: "button", "aria-pressed": "false", onclick: toggle }, "Pause");
  let isPaused = false;
  let isConnected = false; // following the tail
  let received = 0;
  let passed = 0;
  let pending = 0; // received while paused
  let state = "";
  const recent = []; // [ms, count] of the last seconds

  function toggle() {
    isPaused = !isPaused;
    pauseButton.setAttribute("aria-pressed", isPaused);
    if (isPaused) return;
    if (pending) list.append(gap(`${count(pending)} events arrived while paused.`));
    pending = 0;
    list.scrollTop = list.scrollHeight;
  }

  function add(batch) {
    const number = batch.events.length + batch.passed;
    isConnected = true;
    received += number;
    recent.push([Date.now(), number]);
    const text = find.value;
    const matching = batch.events.filter((item) => !text || item.text?.includes(text));
    const hidden = isPaused ? batch.events.length : Math.max(matching.length - AT_ONCE, 0);
    passed += batch.passed + hidden;
    update();
    if (isPaused) {
      pending += number;
      return;
    }
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    const nodes = matching.slice(-AT_ONCE).map(node);
    const dropped = hidden + (text ? 0 : batch.passed);
    if (batch.isBehind && !text) nodes.unshift(gap("Too many events to show: continuing at the tail."));
    else if (dropped) nodes.unshift(gap(`${count(dropped)} events not shown.`));
    list.append(...nodes);
    while (list.childElementCount > MAX_SHOWN) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }

  function update() {
    while (recent.length && recent[0][0] < Date.now() - 3000) recent.shift();
    const rate = recent.reduce((sum, item) => sum + item[1], 0) / 3;
    say(status, state || (received ? `${short(rate)} events/s${passed ? `, ${count(passed)} not shown` : ""}` : isConnected ? "No new events since the page was opened." : "Connecting to the tail…"));
  }

  follow(overHttp(data).tail, add, (text) => { state = text; update(); }, signal);
  const timer = setInterval(update, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  return el("div.panel", {}, el("div.head", {}, el("h2", {}, "Tail"), status, find,
    el("button.button", { type: "button", onclick: () => list.replaceChildren() }, "Clear"), pauseButton), list);
}

const gap = (text) => el("div.event.gap", {}, text);

function node(event) {
  return el("div.event", {}, el("time", {}, clock(event.time, { date: false, millis: true })), el("span.where", { title: `offset ${event.offset}` }, segment(event.segment)), shown(event));
}
