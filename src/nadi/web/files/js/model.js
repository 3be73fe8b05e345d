// What is known of one stream, asked for again and again while it is seen: tells whoever listens when it has changed.

import { ask, every, path, Refused } from "./api.js";
import { byOf } from "./clocks.js";
import { event } from "./events.js";
import { serverNow } from "./now.js";
import { spansOf, stepsOf } from "./spans.js";

const LOADS_MS = 2000;
const SEGMENTS_MS = 20000;

// by: "arrival", or null for the events' own time where there is one.
export function streamModel(scope, stream, signal, by = null) {
  const at = path`/v1/scopes/${scope}/streams/${stream}`;
  const data = path`/v1/data/${scope}/streams/${stream}`;
  const changed = event();
  const known = {
    scope, stream, at, data, config: null, segments: [], loads: [], spans: [], bookmarks: [], slices: [],
    groups: null, transactions: null, head: null, tail: null, isSealed: false, troubles: {},
    by, eventTime: null, steps: [], bytesUnknown: null,
  };
  let lookedMs = 0;

  // What fails is said where it would be shown; a server that doesn't answer is said above.
  const failed = (what) => (error) => {
    if (!(error instanceof Refused)) return;
    known.troubles[what] = error;
    changed.tell(what);
  };
  const keep = (what, found) => {
    known[what] = found;
    delete known.troubles[what];
    changed.tell(what);
  };

  async function lookAtLoads() {
    const loads = await ask(`${at}/load`, signal);
    const ids = (found) => found.map((one) => one.segment_id).join();
    const isOther = ids(loads) !== ids(known.loads);
    known.loads = loads;
    if (isOther || Date.now() - lookedMs > SEGMENTS_MS) {
      known.segments = await ask(`${at}/segments`, signal);
      lookedMs = Date.now();
    }
    delete known.troubles.spans;
    draw();
  }
  function draw() {
    known.spans = known.eventTime ? stepsOf(known.segments, known) : spansOf(known.segments, known.loads, known.isSealed ? (known.tail?.time ?? serverNow()) : serverNow());
    changed.tell("spans");
  }
  // Of a stream with thousands of segments it takes seconds to say where it ends: nothing else waits for that.
  async function lookAtSpan() {
    const asked = known.by;
    const span = await ask(`${data}/span?${byOf(known)}`, signal).catch((error) => {
      if (error instanceof Refused) return null; // who may look at it, and not read it
      throw error;
    });
    if (asked !== known.by) return; // it is asked for again
    if (span) Object.assign(known, span);
    if (known.bytesUnknown !== null) again.span(); // which waits for more of them
    changed.tell("span");
    if (known.segments.length) draw();
  }
  async function lookAtPlaces() {
    const query = byOf(known, { stream });
    const [bookmarks, slices] = await Promise.all([
      ask(`${path`/v1/data/${scope}/bookmarks`}?${query}`, signal), ask(`${path`/v1/data/${scope}/slices`}?${query}`, signal)]);
    known.bookmarks = bookmarks;
    known.slices = slices;
    keep("places", true);
  }

  const again = {
    spans: every(LOADS_MS, lookAtLoads, failed("spans"), signal),
    span: every(SEGMENTS_MS, lookAtSpan, failed("span"), signal),
    places: every(8000, lookAtPlaces, failed("places"), signal),
    config: every(30000, async () => keep("config", await ask(at, signal)), failed("config"), signal),
  };
  return {
    known,
    changed,
    groups: () => (again.groups ??= every(3000, async () => keep("groups", await ask(`${data}/groups?${byOf(known)}`, signal)), failed("groups"), signal)),
    transactions: () => (again.transactions ??= every(3000, async () => keep("transactions", await ask(`${at}/transactions`, signal)), failed("transactions"), signal)),
    use(found) {
      Object.assign(known, { by: found, head: null, tail: null, eventTime: null, steps: [], bytesUnknown: null });
      for (const what of ["span", "places", "groups"]) again[what]?.();
      changed.tell("by");
    },
    again(what) {
      if (what === "spans") {
        lookedMs = 0;
        again.span();
      }
      again[what]?.();
    },
  };
}
