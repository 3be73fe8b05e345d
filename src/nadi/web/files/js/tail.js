// A stream's events as they come, the newest at the bottom.

import { listen, Lost, Refused } from "./api.js";
import { sentence } from "./dialogs.js";
import { el, fill, say } from "./dom.js";
import { clock, count, segment, short } from "./format.js";
import { shown } from "./payload.js";

const KEPT = 300; // events on the page

// Calls `on(batch)` for each batch at the tail, over and over, also when the server was away; `state(text)` says what is.
export async function follow(data, on, state, signal) {
  let wait = 500;
  while (!signal.aborted) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true, signal }));
      continue;
    }
    const round = new AbortController();
    const stop = () => round.abort();
    signal.addEventListener("abort", stop, { once: true });
    const hidden = () => document.hidden && stop(); // a browser has few connections to a server: hidden pages hold none
    document.addEventListener("visibilitychange", hidden);
    try {
      state("");
      const last = await listen(`${data}/tail`, (kind, batch) => {
        wait = 500;
        if (kind === "batch") on(batch);
        else if (kind === "trouble") throw new Refused(503, batch.error);
      }, round.signal);
      if (last === "end") return state("The stream is sealed: nothing more comes.");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status !== 503) return state(sentence(error));
      if (!round.signal.aborted) state(error instanceof Lost ? "Waiting for the server…" : sentence(error));
    } finally {
      signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", hidden);
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 0 : wait));
    wait = Math.min(wait * 2, 5000);
  }
}

export function tailPanel(data, signal) {
  const list = el("div.events", { role: "log", "aria-label": "Events as they come", tabIndex: 0 });
  const told = el("span.quiet.grow", { role: "status" }, "");
  const find = el("input.field", { type: "search", placeholder: "Only with this text", "aria-label": "Only events with this text", size: 16 });
  const hold = el("button.button", { type: "button", "aria-pressed": "false", onclick: toggle }, "Hold");
  let isHeld = false;
  let come = 0;
  let passed = 0;
  let state = "";
  const recent = []; // [ms, count] of the last seconds

  function toggle() {
    isHeld = !isHeld;
    hold.setAttribute("aria-pressed", isHeld);
    if (!isHeld) list.scrollTop = list.scrollHeight;
  }

  function add(batch) {
    const number = batch.events.length + batch.passed;
    come += number;
    recent.push([Date.now(), number]);
    passed += batch.passed;
    tell();
    if (isHeld) return;
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    const wanted = find.value;
    const nodes = batch.events.filter((one) => !wanted || one.text?.includes(wanted)).slice(-60).map(node);
    const dropped = batch.passed || batch.isBehind;
    if (dropped && !wanted) nodes.unshift(el("div.event.gap", {}, batch.isBehind ? "More came than can be shown: it goes on at the tail." : `${count(batch.passed)} more came in between.`));
    list.append(...nodes);
    while (list.childElementCount > KEPT) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }

  function tell() {
    while (recent.length && recent[0][0] < Date.now() - 3000) recent.shift();
    const rate = recent.reduce((sum, one) => sum + one[1], 0) / 3;
    say(told, state || (come ? `${short(rate)} events/s${passed ? `, ${count(passed)} not shown` : ""}` : "Nothing has come since the page was opened."));
  }

  follow(data, add, (text) => { state = text; tell(); }, signal);
  const timer = setInterval(tell, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  return el("div.panel", {}, el("div.head", {}, el("h2", {}, "Tail"), told, find,
    el("button.button", { type: "button", onclick: () => list.replaceChildren() }, "Clear"), hold), list);
}

function node(event) {
  return el("div.event", {}, el("time", {}, clock(event.time, { date: false, millis: true })), el("span.where", { title: `offset ${event.offset}` }, segment(event.segment)), shown(event));
}
