// The player: a stretch of a stream as one plays a video, over the picture of its segments as the bar to scrub on.

import { chartView } from "./chart.js";
import { timeChoice } from "./clocks.js";
import { el, fill, icon, say } from "./dom.js";
import { clock, count, fromInput, span } from "./format.js";
import { serverNow } from "./now.js";
import { picture } from "./picture.js";
import { playback, SPEEDS } from "./playback.js";
import { eventView, pictureView } from "./views.js";

const JUMP_S = 10; // of watching
const FIT_S = 600; // of watching: no slower than that all is played, by the events' own time
const A_SECOND = { 3600: "1 h/s", 86400: "1 day/s", 604800: "1 week/s" };
const moment = (text) => (/^-?\d{1,15}$/.test(text) ? Number(text) : null);

// model: what is known of the stream, as in model.js; from: where its events come from, as in source.js; themed: told
// when colours have changed; makeBookmark(ms): asks for a bookmark there, null for the tail.
export function player(main, { stream, query, model, from, themed, makeBookmark = null, signal }) {
  const known = model.known;
  const deck = playback(from, () => !known.isSealed && !known.eventTime, () => known.by, signal);
  const views = { picture: pictureView(), chart: chartView(), json: eventView() };
  let shown = "json";
  let isChosen = false; // by somebody, not by what came
  let begun = false;
  let wasBegun = false;
  let seen = 0;
  let begins = 0; // what is played, and where it ends: null where more may come
  let ends = null;
  let offered = "";
  const asked = { from: moment(query.get("from") ?? ""), to: moment(query.get("to") ?? "") };
  let stretch = asked.from !== null && asked.to !== null ? asked : null;
  let isSpeedChosen = false; // by somebody

  const source = el("select.field", { "aria-label": "What to play", onchange: () => pick(source.value, true) }, el("option", { value: "" }, "The whole stream"));
  const viewButtons = { picture: "Picture", chart: "Chart", json: "JSON" };
  for (const [name, text] of Object.entries(viewButtons)) {
    viewButtons[name] = el("button.button", { type: "button", "aria-pressed": "false", onclick: () => { isChosen = true; use(name); } }, text);
  }
  const controls = el("span.row");
  const window_ = el("select.field", { "aria-label": "How much time the chart shows" }, [[0, "fitting"], [10e3, "10 s"], [60e3, "1 min"], [600e3, "10 min"], [3600e3, "1 h"], [86400e3, "1 day"]].map(([ms, text]) => el("option", { value: ms }, text)));
  const stage = el("div.view");
  const empty = el("div.empty", {}, "Nothing to be seen yet.");
  const time = el("span.clock", { "aria-label": "Time played" });
  const told = el("span.quiet.told", { role: "status" });
  const button = (name, label, act, extra = "") => el(`button.button.icon${extra}`, { type: "button", "aria-label": label, title: label, onclick: act }, icon(name));
  const toggle = button("play", "Play (Space)", press, ".main.play");
  const liveButton = el("button.button.live", { type: "button", "aria-pressed": "false", title: "What passes now (l)", onclick: live }, "Live");
  const speed = el("select.field", { "aria-label": "Speed", onchange: () => { isSpeedChosen = true; deck.setSpeed(Number(speed.value)); } }, SPEEDS.map((one) => el("option", { value: one }, A_SECOND[one] ?? `×${one}`)));
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
        told,
        el("span.tools", {},
          makeBookmark && el("button.button.plain", { type: "button", onclick: bookmark }, "Bookmark…"),
          el("button.button.plain", { type: "button", onclick: () => bar.all() }, "All"),
          el("button.button.plain.icon", { type: "button", "aria-label": "Zoom out", onclick: () => bar.zoom(1.8, deck.now()) }, "−"),
          el("button.button.plain.icon", { type: "button", "aria-label": "Zoom in", onclick: () => bar.zoom(1 / 1.8, deck.now()) }, "+"))),
      bar.node)));

  function use(name) {
    shown = name;
    for (const [one, node] of Object.entries(viewButtons)) node.setAttribute("aria-pressed", one === name);
    fill(stage, views[name].node);
    fill(controls, name === "chart" ? [views.chart.controls, window_] : []);
    draw();
  }

  // --- what is played ------------------------------------------------------------------------------

  model.changed.on((what) => {
    if (what === "spans") bar.show({ spans: known.spans, head: known.head?.time ?? null, tail: known.tail?.time ?? null, isSealed: known.isSealed || known.eventTime !== null });
    if (what === "places") {
      bar.show({ bookmarks: known.bookmarks, slices: known.slices });
      offer();
    }
    if (what === "by") anew();
    choice.show();
    if (what === "span" || what === "places") begin();
    if (known.troubles.spans && !begun) say(told, known.troubles.spans.message);
  }, signal);

  function offer() {
    const names = JSON.stringify([known.slices, known.bookmarks].map((found) => found.map((one) => one.name)));
    if (names === offered) return; // a list that somebody has open stays so
    offered = names;
    const { value } = source;
    const option = (kind) => (one) => el("option", { value: `${kind}:${one.name}` }, one.name);
    fill(source, el("option", { value: "" }, "The whole stream"),
      stretch && el("option", { value: "stretch" }, "The stretch chosen"),
      known.slices.length ? el("optgroup", { label: "Slices" }, known.slices.map(option("slice"))) : null,
      known.bookmarks.length ? el("optgroup", { label: "From a bookmark" }, known.bookmarks.map(option("bookmark"))) : null);
    source.value = value;
    if (source.selectedIndex < 0) source.value = "";
  }

  // By another time the stretch chosen is none.
  function anew() {
    if (source.value === "stretch") source.value = "";
    stretch = null;
    offered = "";
    isSpeedChosen = begun = false;
    deck.pause();
    bar.choose(null);
    bar.all();
  }

  // By the events' own time, as fast as it is worth watching.
  function fit(from, to) {
    const fast = known.eventTime && to > from ? (SPEEDS.find((one) => one >= 1 && to - from <= FIT_S * 1000 * one) ?? SPEEDS.at(-1)) : 1;
    if (isSpeedChosen || fast === deck.speed) return;
    speed.value = fast;
    deck.setSpeed(fast);
  }

  function begin() {
    if (begun || !known.head || known.bytesUnknown != null) return;
    if (wasBegun) {
      begun = true;
      return pick(source.value, true);
    }
    const named = ["slice", "bookmark"].filter((kind) => query.get(kind)).map((kind) => `${kind}:${query.get(kind)}`)[0];
    if (named && !known.troubles.places && !("places" in known)) return; // they are on their way
    begun = wasBegun = true;
    if (named) {
      source.value = named;
      pick(named, true);
    } else if (stretch) {
      offer();
      source.value = "stretch";
      pick("stretch", true);
    } else if (asked.from !== null) start(Math.max(asked.from, known.head.time ?? asked.from));
    else if (known.isSealed || known.eventTime) start(known.head.time ?? 0);
    else deck.live();
  }

  function pick(value, plays) {
    const [kind, name] = value.split(/:(.*)/);
    ends = null;
    if (kind === "stretch") {
      deck.setSource({ to: stretch.to });
      const from = Math.max(stretch.from, known.head?.time ?? stretch.from);
      return within(from, Math.max(from, stretch.to));
    }
    if (kind === "slice") {
      const one = known.slices.find((found) => found.name === name);
      deck.setSource({ slice: name });
      if (one?.start.time !== null && one?.start.time !== undefined) {
        return within(one.start.time, one.end.time);
      }
      return start(known.head?.time ?? 0);
    }
    bar.choose(null);
    if (kind === "bookmark") {
      deck.setSource({ start: name }); // times are known to a second or so: the first event is the one behind it
      return start(marked(name));
    }
    deck.setSource({});
    return plays && start(known.head?.time ?? 0);
  }

  function within(from, to) {
    const room = Math.max((to - from) * 0.06, 500);
    bar.see(from - room, to + room);
    bar.choose({ from, to });
    return start(from, to);
  }

  const marked = (name) => known.bookmarks.find((found) => found.name === name)?.time ?? known.head?.time ?? 0;

  function seek(ms) {
    const [kind, name] = source.value.split(/:(.*)/);
    if (kind === "bookmark" && ms < marked(name)) { // it is the whole stream that is played from there
      source.value = "";
      deck.setSource({});
    }
    deck.seek(ms);
  }

  function start(ms, to = null) {
    [begins, ends] = [ms, to];
    deck.pause();
    fit(ms, to ?? known.tail?.time ?? ms);
    deck.seek(ms);
    deck.play();
  }

  function press() {
    if (deck.isOver) start(begins, ends); // once more
    else deck.toggle();
  }

  function live() { // which is the whole stream, and not what was chosen of it
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
    return seek(Math.max(known.head?.time ?? all.from, Math.min(to, all.to))); // before its head there is nothing
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

  // --- what is seen --------------------------------------------------------------------------------

  deck.events.on((events) => {
    for (const view of Object.values(views)) view.add(events);
    if (events.length) {
      empty.hidden = true;
      seen += events.length;
      stage.dataset.events = seen;
      if (!isChosen) {
        const fit = views.picture.has() ? "picture" : views.chart.has() ? "chart" : "json";
        if (fit !== shown) use(fit);
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
    const timeless = deck.timeless && `${count(deck.timeless)} events have no time in ${known.eventTime}`;
    say(told, deck.text || (deck.passed && `${count(deck.passed)} events came faster than can be shown`) || timeless || "");
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
