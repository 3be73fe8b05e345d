// The state of one stream, refreshed periodically while the page is visible; emits `changed`.

import { ask, every, path, Refused } from "./api.js";
import { byOf } from "./clocks.js";
import { event } from "./events.js";
import { serverNow } from "./now.js";
import { spansOf, stepsOf } from "./spans.js";

const LOADS_MS = 2000;
const SEGMENTS_MS = 20000;

// by: "arrival", or null for event time if the stream defines it.
export function streamModel(scope, stream, signal, by = null) {
  const at = path`/v1/scopes/${scope}/streams/${stream}`;
  const data = path`/v1/data/${scope}/streams/${stream}`;
  const changed = event();
  const known = {
    scope, stream, at, data, config: null, segments: [], loads: [], spans: [], bookmarks: [], slices: [],
    groups: null, transactions: null, head: null, tail: null, isSealed: false, troubles: {},
    by, eventTime: null, steps: [], bytesUnknown: null,
  };
  let loadedMs = 0;

  // Errors are shown in place of the data; the banner reports a server that doesn't respond.
  const failed = (what) => (error) => {
    if (!(error instanceof Refused)) return;
    known.troubles[what] = error;
    changed.emit(what);
  };
  const keep = (what, value) => {
    known[what] = value;
    delete known.troubles[what];
    changed.emit(what);
  };

  async function loadLoads() {
    const loads = await ask(`${at}/load`, signal);
    const ids = (items) => items.map((load) => load.segment_id).join();
    const isOther = ids(loads) !== ids(known.loads);
    known.loads = loads;
    if (isOther || Date.now() - loadedMs > SEGMENTS_MS) {
      known.segments = await ask(`${at}/segments`, signal);
      loadedMs = Date.now();
    }
    delete known.troubles.spans;
    draw();
  }
  function draw() {
    known.spans = known.eventTime ? stepsOf(known.segments, known) : spansOf(known.segments, known.loads, known.isSealed ? (known.tail?.time ?? serverNow()) : serverNow());
    changed.emit("spans");
  }
  // Finding the ends of a stream with thousands of segments takes seconds, so nothing else waits for it.
  async function loadSpan() {
    const requested = known.by;
    const span = await ask(`${data}/span?${byOf(known)}`, signal).catch((error) => {
      if (error instanceof Refused) return null; // may view the stream, but not read it
      throw error;
    });
    if (requested !== known.by) return; // requested again
    if (span) Object.assign(known, span);
    if (known.bytesUnknown !== null) again.span(); // waits for more of them
    changed.emit("span");
    if (known.segments.length) draw();
  }
  async function loadPlaces() {
    const query = byOf(known, { stream });
    const [bookmarks, slices] = await Promise.all([
      ask(`${path`/v1/data/${scope}/bookmarks`}?${query}`, signal), ask(`${path`/v1/data/${scope}/slices`}?${query}`, signal)]);
    known.bookmarks = bookmarks;
    known.slices = slices;
    keep("places", true);
  }

  const again = {
    spans: every(LOADS_MS, loadLoads, failed("spans"), signal),
    span: every(SEGMENTS_MS, loadSpan, failed("span"), signal),
    places: every(8000, loadPlaces, failed("places"), signal),
    config: every(30000, async () => keep("config", await ask(at, signal)), failed("config"), signal),
  };
  return {
    known,
    changed,
    groups: () => (again.groups ??= every(3000, async () => keep("groups", await ask(`${data}/groups?${byOf(known)}`, signal)), failed("groups"), signal)),
    transactions: () => (again.transactions ??= every(3000, async () => keep("transactions", await ask(`${at}/transactions`, signal)), failed("transactions"), signal)),
    use(clock) {
      Object.assign(known, { by: clock, head: null, tail: null, eventTime: null, steps: [], bytesUnknown: null });
      for (const what of ["span", "places", "groups"]) again[what]?.();
      changed.emit("by");
    },
    again(what) {
      if (what === "spans") {
        loadedMs = 0;
        again.span();
      }
      again[what]?.();
    },
  };
}
