// What plays: paused at a moment, playing at a speed, or live. Tells batches of events, and when it has changed.

import { sentence } from "./dialogs.js";
import { event } from "./events.js";
import { follow, whileSeen } from "./follow.js";
import { serverNow } from "./now.js";
import { Lost, Refused } from "./problems.js";

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 60, 300, 1000, 3600, 86400, 604800];
const BEFORE_MS = 20000; // that one sees of what came before it is live
const AT_ONCE = 200; // events of one answer, at most
const LAST = 10; // events that one sees of a stream to which nothing came lately
const AHEAD_S = 4; // the clock runs on so long without a word of the server

// from: as in source.js; goesOn(): whether more may come behind the end of the whole stream; by(): as in model.js.
export function playback(from, goesOn, by, signal) {
  const events = event(); // (events, batch)
  const changed = event();
  const cleared = event();
  let mode = "paused";
  let speed = 1;
  let skipsPauses = false;
  let source = {}; // {slice}, {start} or {to}, in the words of the endpoint
  let told = { ms: 0, at: 0 }; // the last time that the server told, and when
  let given = -Infinity; // all events up to that time were told, but if one has moved since
  let next = null; // when the next one comes, as far as is known
  let round = null;
  let seeking = 0;
  let text = "";
  let passed = 0;
  let timeless = 0; // that have no time of their own
  let isOver = false; // it was played to its end, and not moved since
  let lastEvent = null; // that was shown, since it was moved
  const reachedIn = new Map(); // of each segment the offset of the last event that was told, since it was moved

  const now = () => {
    if (mode !== "playing") return mode === "live" ? Math.max(told.ms, told.ms + (performance.now() - told.at)) : told.ms;
    return told.ms + Math.min(performance.now() - told.at, AHEAD_S * 1000) * speed;
  };
  // How far it has come: no farther than to an event that hasn't been told.
  const reached = () => (mode === "playing" && next !== null ? Math.min(now(), next) : now());
  const set = (ms) => { told = { ms, at: performance.now() }; };

  function stop() {
    clearTimeout(seeking);
    round?.abort();
    round = new AbortController();
    isOver = false;
    return round.signal;
  }
  signal.addEventListener("abort", () => round?.abort());

  function become(found, words = "") {
    mode = found;
    text = words;
    changed.tell();
  }

  function keep(found) {
    for (const one of found) reachedIn.set(one.segment, one.offset);
  }

  function clear() {
    reachedIn.clear();
    cleared.tell();
  }

  function take(batch) {
    set(batch.at);
    given = batch.at;
    next = batch.next ?? null;
    passed += batch.passed;
    timeless += batch.timeless;
    keep(batch.events);
    if (batch.events.length) lastEvent = batch.events[batch.events.length - 1];
    const isBack = mode === "playing" && text !== ""; // whoever was waited for
    if (isBack) text = "";
    if (isBack || batch.isBehind || batch.passed || batch.timeless) changed.tell();
    events.tell(batch.events, batch);
  }

  const query = (more) => {
    const made = new URLSearchParams(by() ? { ...more, by: by() } : more);
    for (const [name, value] of Object.entries(source)) made.set(name, value);
    return made;
  };

  async function play() {
    const over = stop();
    set(reached());
    const begins = (next = told.ms); // there may be an event right there
    passed = timeless = 0;
    become("playing");
    let wait = 500;
    while (!over.aborted) {
      try {
        const asked = () => query({ from: Math.max(Math.round(told.ms), given + 1), speed, pauses: skipsPauses ? "skip" : "keep" });
        const last = await whileSeen((seen) => from.play(asked(), (kind, batch) => {
          if (over.aborted) return;
          wait = 500;
          if (kind === "batch") take(batch);
          else if (kind === "trouble") throw new Refused(503, batch.error);
        }, seen), over);
        if (over.aborted) return;
        if (last === null) continue;
        if (last === "end") return "slice" in source || "to" in source || !goesOn() ? end() : live(begins);
      } catch (error) {
        if (over.aborted) return;
        if (error instanceof Refused && error.status !== 503) return become("paused", sentence(error));
        text = error instanceof Lost ? `Waiting for the ${error.whom}…` : sentence(error);
        changed.tell();
      }
      const at = reached();
      await new Promise((resolve) => setTimeout(resolve, wait));
      set(at);
      wait = Math.min(wait * 2, 5000);
    }
  }

  function end() {
    isOver = true;
    become("paused", "The end.");
  }

  // since: it goes on from what was played, from that time to the end; null: it begins anew.
  function live(since = null) {
    const over = stop();
    passed = timeless = 0;
    set(serverNow());
    become("live");
    if (since === null) clear();
    const isNew = (one) => !(one.offset <= reachedIn.get(one.segment));
    let before = null; // what came just before the tail was found, so that one doesn't begin with nothing
    async function first() {
      try {
        const ms = Math.round(Math.max(serverNow() - BEFORE_MS, since ?? 0));
        let batch = await from.first(new URLSearchParams({ from: ms, most: AT_ONCE, by: "arrival" }), over);
        if (!batch.events.length && since === null) batch = await from.first(new URLSearchParams({ which: "last", most: LAST, by: "arrival" }), over);
        batch.events = batch.events.filter(isNew);
        if (over.aborted) return;
        keep(batch.events);
        events.tell(batch.events, batch);
      } catch {
        // the tail tells what is wrong
      }
    }
    follow(from.tail, async (batch) => {
      before ??= first();
      await before;
      if (over.aborted) return;
      batch.events = batch.events.filter(isNew);
      take(batch);
    }, (words) => {
      if (over.aborted || mode !== "live") return;
      text = words;
      changed.tell();
    }, over);
  }

  function pause(words = "") {
    const at = reached();
    stop();
    set(at);
    become("paused", words);
  }

  // What is to be seen at a moment: the first event from then on, or the one after a certain one of them.
  async function still(ms, after = null) {
    const over = round.signal;
    const first = (from_, most) => from.first(query({ from: Math.round(from_), most }), over);
    try {
      let batch = await first(ms, after ? AT_ONCE : 1);
      if (after) { // many may have the same time
        const i = batch.events.findIndex((one) => one.segment === after.segment && one.offset === after.offset);
        if (i >= 0 && (i < batch.events.length - 1 || batch.next === null)) batch.events = batch.events.slice(i + 1, i + 2);
        else batch = await first(Math.max(due(after) + 1, i < 0 ? -Infinity : batch.next), 1);
      }
      if (over.aborted) return;
      if (!batch.events.length) {
        text = after ? "The end." : "";
        return changed.tell();
      }
      lastEvent = batch.events[0];
      keep(batch.events);
      if (after) set((given = due(lastEvent)));
      events.tell(batch.events, batch);
      changed.tell();
    } catch (error) {
      if (over.aborted) return;
      text = sentence(error);
      changed.tell();
    }
  }

  function seek(ms) {
    const was = mode;
    stop();
    set(ms);
    lastEvent = null;
    given = -Infinity;
    next = null;
    mode = was === "playing" ? "playing" : "paused";
    text = "";
    clear();
    changed.tell();
    seeking = setTimeout(() => { // while somebody drags, only where that rests is asked for
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
    setSource(found) { source = found; },
    setSpeed(found) {
      const at = reached();
      speed = found;
      set(at);
      if (mode === "playing") play();
      else changed.tell();
    },
    setSkipsPauses(is) {
      skipsPauses = is;
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

const due = (one) => one.due ?? one.time; // later, if it came late
