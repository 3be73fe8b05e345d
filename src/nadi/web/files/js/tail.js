// A stream's events as they come, the newest at the bottom.

import { el, fill, say } from "./dom.js";
import { follow } from "./follow.js";
import { clock, count, segment, short } from "./format.js";
import { shown } from "./payload.js";
import { overHttp } from "./source.js";

const KEPT = 300; // events on the page
const AT_ONCE = 60; // of one batch

export function tailPanel(data, signal) {
  const list = el("div.events", { role: "log", "aria-label": "Events as they come", tabIndex: 0 });
  const told = el("span.quiet.grow", { role: "status" }, "");
  const find = el("input.field", { type: "search", placeholder: "Only with this text", "aria-label": "Only events with this text", size: 16 });
  const hold = el("button.button", { type: "button", "aria-pressed": "false", onclick: toggle }, "Hold");
  let isHeld = false;
  let isFound = false; // so that what comes from now on is shown
  let come = 0;
  let passed = 0;
  let held = 0; // that came while it was held
  let state = "";
  const recent = []; // [ms, count] of the last seconds

  function toggle() {
    isHeld = !isHeld;
    hold.setAttribute("aria-pressed", isHeld);
    if (isHeld) return;
    if (held) list.append(gap(`${count(held)} more came while it was held.`));
    held = 0;
    list.scrollTop = list.scrollHeight;
  }

  function add(batch) {
    const number = batch.events.length + batch.passed;
    isFound = true;
    come += number;
    recent.push([Date.now(), number]);
    const wanted = find.value;
    const found = batch.events.filter((one) => !wanted || one.text?.includes(wanted));
    const left = isHeld ? batch.events.length : Math.max(found.length - AT_ONCE, 0);
    passed += batch.passed + left;
    tell();
    if (isHeld) {
      held += number;
      return;
    }
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    const nodes = found.slice(-AT_ONCE).map(node);
    const dropped = left + (wanted ? 0 : batch.passed);
    if (batch.isBehind && !wanted) nodes.unshift(gap("More came than can be shown: it goes on at the tail."));
    else if (dropped) nodes.unshift(gap(`${count(dropped)} more came in between.`));
    list.append(...nodes);
    while (list.childElementCount > KEPT) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }

  function tell() {
    while (recent.length && recent[0][0] < Date.now() - 3000) recent.shift();
    const rate = recent.reduce((sum, one) => sum + one[1], 0) / 3;
    say(told, state || (come ? `${short(rate)} events/s${passed ? `, ${count(passed)} not shown` : ""}` : isFound ? "Nothing has come since the page was opened." : "Looking for the tail…"));
  }

  follow(overHttp(data).tail, add, (text) => { state = text; tell(); }, signal);
  const timer = setInterval(tell, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  return el("div.panel", {}, el("div.head", {}, el("h2", {}, "Tail"), told, find,
    el("button.button", { type: "button", onclick: () => list.replaceChildren() }, "Clear"), hold), list);
}

const gap = (text) => el("div.event.gap", {}, text);

function node(event) {
  return el("div.event", {}, el("time", {}, clock(event.time, { date: false, millis: true })), el("span.where", { title: `offset ${event.offset}` }, segment(event.segment)), shown(event));
}
