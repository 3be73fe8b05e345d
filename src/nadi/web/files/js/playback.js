// Playback: paused, playing at a speed, or live. Emits batches of events and changes of state.

import { sentence } from "./dialogs.js";
import { event } from "./events.js";
import { follow, whileVisible } from "./follow.js";
import { serverNow } from "./now.js";
import { Lost, Refused } from "./problems.js";

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 60, 300, 1000, 3600, 86400, 604800];
const BEFORE_MS = 20000; // shown from before live mode started
const AT_ONCE = 200; // maximum events per response
const LAST = 10; // events shown of a stream without recent ones
const AHEAD_S = 4; // the clock runs this long without a message from the server

// from: as in source.js; canGrow(): whether events may be appended to the stream; by(): as in model.js.
export function playback(from, canGrow, by, signal) {
  const events = event(); // (events, batch)
  const changed = event();
  const cleared = event();
  let mode = "paused";
  let speed = 1;
  let skipsPauses = false;
  let source = {}; // {slice}, {start} or {to}, parameters of the endpoint
  let reported = { ms: 0, at: 0 }; // the last playback time from the server, and when it was received
  let emitted = -Infinity; // all events up to this time were emitted, unless the position was changed since
  let next = null; // time of the next event, if known
  let round = null;
  let seeking = 0;
  let text = "";
  let passed = 0;
  let timeless = 0; // events without an event time
  let isOver = false; // played to the end, and not moved since
  let lastEvent = null; // last shown event since the position was changed
  const reachedIn = new Map(); // offset of the last emitted event of each segment since the position was changed

  const now = () => {
    if (mode !== "playing") return mode === "live" ? Math.max(reported.ms, reported.ms + (performance.now() - reported.at)) : reported.ms;
    return reported.ms + Math.min(performance.now() - reported.at, AHEAD_S * 1000) * speed;
  };
  // The playback position, which doesn't pass events that haven't been emitted.
  const reached = () => (mode === "playing" && next !== null ? Math.min(now(), next) : now());
  const set = (ms) => { reported = { ms, at: performance.now() }; };

  function stop() {
    clearTimeout(seeking);
    round?.abort();
    round = new AbortController();
    isOver = false;
    return round.signal;
  }
  signal.addEventListener("abort", () => round?.abort());

  function become(newMode, words = "") {
    mode = newMode;
    text = words;
    changed.emit();
  }

  function keep(batch) {
    for (const event of batch) reachedIn.set(event.segment, event.offset);
  }

  function clear() {
    reachedIn.clear();
    cleared.emit();
  }

  function take(batch) {
    set(batch.at);
    emitted = batch.at;
    next = batch.next ?? null;
    passed += batch.passed;
    timeless += batch.timeless;
    keep(batch.events);
    if (batch.events.length) lastEvent = batch.events[batch.events.length - 1];
    const isReconnected = mode === "playing" && text !== "";
    if (isReconnected) text = "";
    if (isReconnected || batch.isBehind || batch.passed || batch.timeless) changed.emit();
    events.emit(batch.events, batch);
  }

  const query = (more) => {
    const parameters = new URLSearchParams(by() ? { ...more, by: by() } : more);
    for (const [name, value] of Object.entries(source)) parameters.set(name, value);
    return parameters;
  };

  async function play() {
    const active = stop();
    set(reached());
    const begins = (next = reported.ms); // there may be an event at exactly this time
    passed = timeless = 0;
    become("playing");
    let wait = 500;
    while (!active.aborted) {
      try {
        const parameters = () => query({ from: Math.max(Math.round(reported.ms), emitted + 1), speed, pauses: skipsPauses ? "skip" : "keep" });
        const last = await whileVisible((visible) => from.play(parameters(), (kind, batch) => {
          if (active.aborted) return;
          wait = 500;
          if (kind === "batch") take(batch);
          else if (kind === "trouble") throw new Refused(503, batch.error);
        }, visible), active);
        if (active.aborted) return;
        if (last === null) continue;
        if (last === "end") return "slice" in source || "to" in source || !canGrow() ? end() : live(begins);
      } catch (error) {
        if (active.aborted) return;
        if (error instanceof Refused && error.status !== 503) return become("paused", sentence(error));
        text = error instanceof Lost ? `Waiting for the ${error.peer}…` : sentence(error);
        changed.emit();
      }
      const at = reached();
      await new Promise((resolve) => setTimeout(resolve, wait));
      set(at);
      wait = Math.min(wait * 2, 5000);
    }
  }

  function end() {
    isOver = true;
    become("paused", "End.");
  }

  // since: continue a replay that started at this time; null: start over.
  function live(since = null) {
    const active = stop();
    passed = timeless = 0;
    set(serverNow());
    become("live");
    if (since === null) clear();
    const isNew = (item) => !(item.offset <= reachedIn.get(item.segment));
    let before = null; // events just before the tail, so that the view doesn't start empty
    async function first() {
      try {
        const ms = Math.round(Math.max(serverNow() - BEFORE_MS, since ?? 0));
        let batch = await from.first(new URLSearchParams({ from: ms, most: AT_ONCE, by: "arrival" }), active);
        if (!batch.events.length && since === null) batch = await from.first(new URLSearchParams({ which: "last", most: LAST, by: "arrival" }), active);
        batch.events = batch.events.filter(isNew);
        if (active.aborted) return;
        keep(batch.events);
        events.emit(batch.events, batch);
      } catch {
        // the tail reports the problem
      }
    }
    follow(from.tail, async (batch) => {
      before ??= first();
      await before;
      if (active.aborted) return;
      batch.events = batch.events.filter(isNew);
      take(batch);
    }, (words) => {
      if (active.aborted || mode !== "live") return;
      text = words;
      changed.emit();
    }, active);
  }

  function pause(words = "") {
    const at = reached();
    stop();
    set(at);
    become("paused", words);
  }

  // Shows the first event at or after a moment, or the next one after an event.
  async function still(ms, after = null) {
    const active = round.signal;
    const first = (from_, most) => from.first(query({ from: Math.round(from_), most }), active);
    try {
      let batch = await first(ms, after ? AT_ONCE : 1);
      if (after) { // several events may have the same time
        const i = batch.events.findIndex((item) => item.segment === after.segment && item.offset === after.offset);
        if (i >= 0 && (i < batch.events.length - 1 || batch.next === null)) batch.events = batch.events.slice(i + 1, i + 2);
        else batch = await first(Math.max(due(after) + 1, i < 0 ? -Infinity : batch.next), 1);
      }
      if (active.aborted) return;
      if (!batch.events.length) {
        text = after ? "End." : "";
        return changed.emit();
      }
      lastEvent = batch.events[0];
      keep(batch.events);
      if (after) set((emitted = due(lastEvent)));
      events.emit(batch.events, batch);
      changed.emit();
    } catch (error) {
      if (active.aborted) return;
      text = sentence(error);
      changed.emit();
    }
  }

  function seek(ms) {
    const was = mode;
    stop();
    set(ms);
    lastEvent = null;
    emitted = -Infinity;
    next = null;
    mode = was === "playing" ? "playing" : "paused";
    text = "";
    clear();
    changed.emit();
    seeking = setTimeout(() => { // while dragging, request only the final position
      if (signal.aborted || mode === "live") return;
      if (mode === "playing") play();
      else still(ms);
    }, 90);
  }

  return {
    events, changed, cleared, now, play, live, pause, seek,
    toggle: () => (mode === "paused" ? play() : pause()),
    step() {
      if (mode !== "paused") pause();
      return lastEvent ? still(due(lastEvent), lastEvent) : still(now());
    },
    setSource(parameters) { source = parameters; },
    setSpeed(factor) {
      const at = reached();
      speed = factor;
      set(at);
      if (mode === "playing") play();
      else changed.emit();
    },
    setSkipsPauses(skips) {
      skipsPauses = skips;
      if (mode === "playing") play();
    },
    get mode() { return mode; },
    get isOver() { return isOver; },
    get speed() { return speed; },
    get text() { return text; },
    get passed() { return passed; },
    get timeless() { return timeless; },
  };
}

const due = (item) => item.due ?? item.time; // later than its time for a late event
