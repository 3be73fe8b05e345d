// The player in a notebook cell: events and the stream's data arrive from the kernel over the widget's comm.

import { coloursFrom, el, forgetColours } from "./dom.js";
import { event } from "./events.js";
import { serverNow } from "./now.js";
import { player } from "./player.js";
import { Lost, Refused } from "./problems.js";
import { spansOf, stepsOf } from "./spans.js";

const KNOWN_MS = 3000; // polling interval
const PLACES_EVERY = 3; // polls
const SILENCE_MS = 10000; // the kernel sends a message every two seconds, unless it is busy or dead
const ANSWER_MS = 30000;

export function render({ model, el: place }, style) {
  const end = new AbortController();
  const host = el("div", { tabIndex: -1 });
  host.dataset.lmSuppressShortcuts = "true"; // keys are the player's, not the notebook's
  host.style.setProperty("--height", `${model.get("height_px")}px`);
  const main = el("main");
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  const root = host.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [sheet];
  root.append(main);
  place.append(host);

  const themed = event();
  coloursFrom(host);
  follow(host, themed, end.signal);
  const kernel = comm(model, end.signal);
  const query = new URLSearchParams(model.get("slice") ? { slice: model.get("slice") } : {});
  const keys = player(main, {
    stream: `${model.get("scope")}/${model.get("stream")}`, query, themed, from: kernel, model: stream(kernel, end.signal), signal: end.signal,
  });
  main.addEventListener("keydown", (pressed) => {
    if (pressed.ctrlKey || pressed.metaKey || pressed.altKey) return;
    const within = pressed.target;
    if (within.matches?.("input:not([type=checkbox]), select")) return;
    if (pressed.key === " " && within.matches?.("button")) return; // it presses that
    const act = keys[pressed.key];
    if (!act) return;
    pressed.preventDefault();
    pressed.stopPropagation();
    act(pressed);
  });
  return () => end.abort();
}

// Follow the notebook's theme, or else the system's.
function follow(host, themed, signal) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const { body } = document;
  const isDark = () => {
    if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
    if (body.dataset.vscodeThemeKind) return !/light/.test(body.dataset.vscodeThemeKind);
    return system.matches;
  };
  const set = () => {
    host.dataset.theme = isDark() ? "dark" : "light";
    forgetColours();
    themed.emit();
  };
  const seen = new MutationObserver(set);
  seen.observe(body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  system.addEventListener("change", set, { signal });
  signal.addEventListener("abort", () => seen.disconnect());
  set();
}

// Counterpart of the page's source.js. Requests and responses share an id, and each batch is acknowledged.
function comm(model, signal) {
  const own = Math.random().toString(36).slice(2);
  const waiting = new Map(); // id: (kind, data)
  let asked = 0;
  const receive = (head, buffers) => waiting.get(head.id)?.(head.kind, JSON.parse(new TextDecoder().decode(buffers[0])));
  model.on("msg:custom", receive);
  signal.addEventListener("abort", () => model.off("msg:custom", receive));

  function question(message, on, patienceMs, over) {
    const id = `${own}-${(asked += 1)}`;
    return new Promise((resolve, reject) => {
      let timer = 0;
      const done = (settle, value) => {
        clearTimeout(timer);
        waiting.delete(id);
        over.removeEventListener("abort", stop);
        signal.removeEventListener("abort", stop);
        settle(value);
      };
      const giveUp = (error) => {
        model.send({ kind: "stop", id });
        done(reject, error);
      };
      const stop = () => giveUp(new DOMException("cancelled", "AbortError"));
      const patience = () => {
        clearTimeout(timer);
        timer = setTimeout(() => giveUp(new Lost("the kernel does not answer", "kernel")), patienceMs);
      };
      if (over.aborted || signal.aborted) return reject(new DOMException("cancelled", "AbortError"));
      over.addEventListener("abort", stop);
      signal.addEventListener("abort", stop);
      waiting.set(id, (kind, data) => {
        if (kind === "refused") return done(reject, new Refused(data.status, data.error));
        if (kind === "answer") return done(resolve, data);
        if (kind === "end") return done(resolve, "end");
        patience();
        on(kind, data);
        model.send({ kind: "more", id });
      });
      patience();
      model.send({ ...message, id });
    });
  }

  return {
    known: (places, by, over) => question({ kind: "known", places, by }, null, ANSWER_MS, over),
    first: (query, over) => question({ kind: "first", ...Object.fromEntries(query) }, null, ANSWER_MS, over),
    play: (query, on, over) => question({ kind: "play", ...Object.fromEntries(query) }, on, SILENCE_MS, over),
    tail: (on, over) => question({ kind: "tail" }, on, SILENCE_MS, over),
  };
}

// Counterpart of the page's model.js.
function stream(kernel, signal) {
  const changed = event();
  const known = { spans: [], bookmarks: [], slices: [], head: null, tail: null, isSealed: false, troubles: {}, by: null, eventTime: null };
  let looks = 0;

  async function look() {
    const withPlaces = looks % PLACES_EVERY === 0;
    const asked = known.by;
    const found = await kernel.known(withPlaces, asked, signal);
    if (asked !== known.by) return look();
    looks += 1;
    Object.assign(known, found.span);
    const { isSealed, tail } = known;
    known.spans = known.eventTime ? stepsOf(found.segments, known) : spansOf(found.segments, found.loads, isSealed ? (tail.time ?? serverNow()) : serverNow());
    delete known.troubles.spans;
    if (withPlaces) Object.assign(known, { places: true, bookmarks: found.bookmarks ?? [], slices: found.slices ?? [] });
    changed.emit("spans");
    if (withPlaces) changed.emit("places");
    changed.emit("span");
  }

  async function looking() {
    while (!signal.aborted) {
      if (!document.hidden) {
        try {
          await look();
        } catch (error) {
          if (signal.aborted) return;
          known.troubles.spans = error;
          changed.emit("spans");
        }
      }
      await new Promise((resolve) => setTimeout(resolve, KNOWN_MS));
    }
  }
  looking();
  return {
    known,
    changed,
    use(by) {
      Object.assign(known, { by, head: null, tail: null, eventTime: null });
      looks = 0;
      changed.emit("by");
    },
  };
}
