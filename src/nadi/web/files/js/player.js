// The player: replays a range of a stream like a video, with the picture of its segments as scrub bar.

import { chartView } from "./chart.js";
import { timeChoice } from "./clocks.js";
import { el, fill, icon, say } from "./dom.js";
import { clock, count, fromInput, span } from "./format.js";
import { serverNow } from "./now.js";
import { picture } from "./picture.js";
import { playback, SPEEDS } from "./playback.js";
import { eventView, pictureView } from "./views.js";

const JUMP_S = 10; // of playback
const FIT_S = 600; // maximum duration of a replay by event time at the initial speed
const A_SECOND = { 3600: "1 h/s", 86400: "1 day/s", 604800: "1 week/s" };
const moment = (text) => (/^-?\d{1,15}$/.test(text) ? Number(text) : null);

// model: the stream's state, as in model.js; from: source of events, as in source.js; themed: event for changed colours;
// makeBookmark(ms): opens the dialog for a bookmark, null for the tail.
export function player(main, { stream, query, model, from, themed, makeBookmark = null, signal }) {
  const known = model.known;
  const deck = playback(from, () => !known.isSealed && !known.eventTime, () => known.by, signal);
  const views = { picture: pictureView(), chart: chartView(), json: eventView() };
  let shown = "json";
  let isChosen = false; // view chosen by the user
  let hasStarted = false;
  let wasStarted = false;
  let seen = 0;
  let begins = 0; // bounds of the replay; no end if events may be appended
  let ends = null;
  let offered = "";
  const requested = { from: moment(query.get("from") ?? ""), to: moment(query.get("to") ?? "") };
  let range = requested.from !== null && requested.to !== null ? requested : null;
  let isSpeedChosen = false; // by the user

  const source = el("select.field", { "aria-label": "Range to play", onchange: () => pick(source.value, true) }, el("option", { value: "" }, "Entire stream"));
  const viewButtons = { picture: "Picture", chart: "Chart", json: "JSON" };
  for (const [name, text] of Object.entries(viewButtons)) {
    viewButtons[name] = el("button.button", { type: "button", "aria-pressed": "false", onclick: () => { isChosen = true; use(name); } }, text);
  }
  const controls = el("span.row");
  const window_ = el("select.field", { "aria-label": "Period shown in the chart" }, [[0, "auto"], [10e3, "10 s"], [60e3, "1 min"], [600e3, "10 min"], [3600e3, "1 h"], [86400e3, "1 day"]].map(([ms, text]) => el("option", { value: ms }, text)));
  const stage = el("div.view");
  const empty = el("div.empty", {}, "No events yet.");
  const time = el("span.clock", { "aria-label": "Playback time" });
  const status = el("span.quiet.status", { role: "status" });
  const button = (name, label, act, extra = "") => el(`button.button.icon${extra}`, { type: "button", "aria-label": label, title: label, onclick: act }, icon(name));
  const toggle = button("play", "Play (Space)", press, ".main.play");
  const liveButton = el("button.button.live", { type: "button", "aria-pressed": "false", title: "Live events (l)", onclick: live }, "Live");
  const speed = el("select.field", { "aria-label": "Speed", onchange: () => { isSpeedChosen = true; deck.setSpeed(Number(speed.value)); } }, SPEEDS.map((item) => el("option", { value: item }, A_SECOND[item] ?? `×${item}`)));
  speed.value = 1;
  const pauses = el("input", { type: "checkbox", onchange: () => deck.setSkipsPauses(pauses.checked) });
  const goTo = el("input.field", { type: "datetime-local", "aria-label": "Go to a date", title: "Go to a date", onchange: () => fromInput(goTo.value) !== null && go(fromInput(goTo.value)) });
  const choice = timeChoice(model);
  const bar = picture({ height: 132, label: "Scrub bar", onPick: seek });

  fill(main, el("div.player", {},
    el("div.row", {}, el("h1", {}, stream), source, choice.node, el("label.check", {}, "Go to ", goTo), el("span.grow"), controls, el("div.row", { role: "group", "aria-label": "Shown as" }, Object.values(viewButtons))),
    el("div.panel.screen", {}, stage, empty),
    el("div.panel", {},
      el("div.transport", {},
        time,
        button("back", "Back (←)", () => jump(-1)), toggle, button("ahead", "Ahead (→)", () => jump(1)), button("step", "Next event (.)", deck.step),
        liveButton,
        el("label.check", {}, "Speed ", speed), el("label.check", {}, pauses, "skip pauses"),
        status,
        el("span.tools", {},
          makeBookmark && el("button.button.plain", { type: "button", onclick: bookmark }, "Bookmark…"),
          el("button.button.plain", { type: "button", onclick: () => bar.all() }, "All"),
          el("button.button.plain.icon", { type: "button", "aria-label": "Zoom out", onclick: () => bar.zoom(1.8, deck.now()) }, "−"),
          el("button.button.plain.icon", { type: "button", "aria-label": "Zoom in", onclick: () => bar.zoom(1 / 1.8, deck.now()) }, "+"))),
      bar.node)));

  function use(name) {
    shown = name;
    for (const [item, node] of Object.entries(viewButtons)) node.setAttribute("aria-pressed", item === name);
    fill(stage, views[name].node);
    fill(controls, name === "chart" ? [views.chart.controls, window_] : []);
    draw();
  }

  // --- playback ------------------------------------------------------------------------------------

  model.changed.on((what) => {
    if (what === "spans") bar.show({ spans: known.spans, head: known.head?.time ?? null, tail: known.tail?.time ?? null, isSealed: known.isSealed || known.eventTime !== null });
    if (what === "places") {
      bar.show({ bookmarks: known.bookmarks, slices: known.slices });
      offer();
    }
    if (what === "by") reset();
    choice.show();
    if (what === "span" || what === "places") begin();
    if (known.troubles.spans && !hasStarted) say(status, known.troubles.spans.message);
  }, signal);

  function offer() {
    const names = JSON.stringify([known.slices, known.bookmarks].map((items) => items.map((item) => item.name)));
    if (names === offered) return; // keeps an open list open
    offered = names;
    const { value } = source;
    const option = (kind) => (item) => el("option", { value: `${kind}:${item.name}` }, item.name);
    fill(source, el("option", { value: "" }, "Entire stream"),
      range && el("option", { value: "range" }, "Selected range"),
      known.slices.length ? el("optgroup", { label: "Slices" }, known.slices.map(option("slice"))) : null,
      known.bookmarks.length ? el("optgroup", { label: "From a bookmark" }, known.bookmarks.map(option("bookmark"))) : null);
    source.value = value;
    if (source.selectedIndex < 0) source.value = "";
  }

  // A selected range is invalid by another clock.
  function reset() {
    if (source.value === "range") source.value = "";
    range = null;
    offered = "";
    isSpeedChosen = hasStarted = false;
    deck.pause();
    bar.choose(null);
    bar.all();
  }

  // By event time, choose a speed at which the replay doesn't take too long.
  function chooseSpeed(from, to) {
    const fast = known.eventTime && to > from ? (SPEEDS.find((item) => item >= 1 && to - from <= FIT_S * 1000 * item) ?? SPEEDS.at(-1)) : 1;
    if (isSpeedChosen || fast === deck.speed) return;
    speed.value = fast;
    deck.setSpeed(fast);
  }

  function begin() {
    if (hasStarted || !known.head || known.bytesUnknown != null) return;
    if (wasStarted) {
      hasStarted = true;
      return pick(source.value, true);
    }
    const named = ["slice", "bookmark"].filter((kind) => query.get(kind)).map((kind) => `${kind}:${query.get(kind)}`)[0];
    if (named && !known.troubles.places && !("places" in known)) return; // still loading
    hasStarted = wasStarted = true;
    if (named) {
      source.value = named;
      pick(named, true);
    } else if (range) {
      offer();
      source.value = "range";
      pick("range", true);
    } else if (requested.from !== null) start(Math.max(requested.from, known.head.time ?? requested.from));
    else if (known.isSealed || known.eventTime) start(known.head.time ?? 0);
    else deck.live();
  }

  function pick(value, plays) {
    const [kind, name] = value.split(/:(.*)/);
    ends = null;
    if (kind === "range") {
      deck.setSource({ to: range.to });
      const first = Math.max(range.from, known.head?.time ?? range.from);
      return within(first, Math.max(first, range.to));
    }
    if (kind === "slice") {
      const slice = known.slices.find((item) => item.name === name);
      deck.setSource({ slice: name });
      if (slice?.start.time !== null && slice?.start.time !== undefined) {
        return within(slice.start.time, slice.end.time);
      }
      return start(known.head?.time ?? 0);
    }
    bar.choose(null);
    if (kind === "bookmark") {
      deck.setSource({ start: name }); // its time is only accurate to a second, its cut is exact
      return start(marked(name));
    }
    deck.setSource({});
    return plays && start(known.head?.time ?? 0);
  }

  function within(from, to) {
    const margin = Math.max((to - from) * 0.06, 500);
    bar.see(from - margin, to + margin);
    bar.choose({ from, to });
    return start(from, to);
  }

  const marked = (name) => known.bookmarks.find((item) => item.name === name)?.time ?? known.head?.time ?? 0;

  function seek(ms) {
    const [kind, name] = source.value.split(/:(.*)/);
    if (kind === "bookmark" && ms < marked(name)) { // before the bookmark, play the entire stream
      source.value = "";
      deck.setSource({});
    }
    deck.seek(ms);
  }

  function start(ms, to = null) {
    [begins, ends] = [ms, to];
    deck.pause();
    chooseSpeed(ms, to ?? known.tail?.time ?? ms);
    deck.seek(ms);
    deck.play();
  }

  function press() {
    if (deck.isOver) start(begins, ends); // play again
    else deck.toggle();
  }

  function live() { // of the entire stream
    if (known.isSealed) return;
    source.value = "";
    ends = null;
    deck.setSource({});
    bar.choose(null);
    deck.live();
  }

  function jump(way, times = 1) {
    go(deck.now() + way * times * JUMP_S * 1000 * Math.max(deck.speed, 0.1));
  }

  function go(to) {
    const all = bar.bounds();
    if (ends !== null) return seek(Math.max(begins, Math.min(to, ends)));
    if (to >= all.to && !known.isSealed && !known.eventTime) return live();
    return seek(Math.max(known.head?.time ?? all.from, Math.min(to, all.to))); // not before the head
  }

  function faster(way) {
    const i = SPEEDS.indexOf(deck.speed) + way;
    if (i < 0 || i >= SPEEDS.length) return;
    isSpeedChosen = true;
    speed.value = SPEEDS[i];
    deck.setSpeed(SPEEDS[i]);
  }

  function bookmark() {
    makeBookmark?.(deck.mode === "live" ? null : Math.round(deck.now()));
  }

  // --- display -------------------------------------------------------------------------------------

  deck.events.on((events) => {
    for (const view of Object.values(views)) view.add(events);
    if (events.length) {
      empty.hidden = true;
      seen += events.length;
      stage.dataset.events = seen;
      if (!isChosen) {
        const best = views.picture.has() ? "picture" : views.chart.has() ? "chart" : "json";
        if (best !== shown) use(best);
      }
    }
  }, signal);
  deck.cleared.on(() => Object.values(views).forEach((view) => view.clear()), signal);
  deck.changed.on(state, signal);

  function state() {
    const isPaused = deck.mode === "paused";
    fill(toggle, icon(isPaused ? "play" : "pause"));
    toggle.setAttribute("aria-label", isPaused ? "Play (Space)" : "Pause (Space)");
    toggle.title = toggle.getAttribute("aria-label");
    main.firstChild.dataset.mode = deck.mode;
    liveButton.setAttribute("aria-pressed", deck.mode === "live");
    liveButton.disabled = known.isSealed;
    const timeless = deck.timeless && `${count(deck.timeless)} events lack a time in ${known.eventTime}`;
    say(status, deck.text || (deck.passed && `skipped ${count(deck.passed)} events that were too fast to be shown`) || timeless || "");
  }

  function draw() {
    const now = deck.now();
    const fitting = deck.mode === "live" ? 30000 : 20000 * deck.speed;
    views[shown].draw(now, Number(window_.value) || fitting, deck.mode === "live");
    bar.play(now);
  }

  let frame = 0;
  let text = "";
  function tick() {
    if (signal.aborted) return;
    frame = requestAnimationFrame(tick);
    const now = deck.now();
    const words = now ? clock(now, { millis: deck.speed <= 10 }) : "–";
    if (words !== text) fill(time, (text = words), deck.mode === "live" ? null : el("small", {}, behind(now)));
    if (deck.mode === "playing" && bar.view().to < now && !bar.view().isAll) {
      const { from, to } = bar.view();
      bar.see(now, now + to - from);
    }
    draw();
  }
  const behind = (now) => (now && !known.isSealed ? `${span(serverNow() - now)} ago` : "");

  signal.addEventListener("abort", () => cancelAnimationFrame(frame));
  themed.on(() => { bar.redraw(); draw(); }, signal);
  use("json");
  state();
  tick();

  return {
    " ": press, l: live, b: bookmark, ".": deck.step, "[": () => faster(-1), "]": () => faster(1),
    ArrowLeft: (event) => jump(-1, event.shiftKey ? 10 : 1), ArrowRight: (event) => jump(1, event.shiftKey ? 10 : 1),
  };
}
