// Chooses the time by which a stream is shown: the events' own, where the stream names a field with it, or arrival.

import { el, fill, say } from "./dom.js";
import { bytes } from "./format.js";

// A choice, and what is in its way; `show` draws what is known.
export function timeChoice(model) {
  const known = model.known;
  const by = el("select.field", { "aria-label": "By which time", onchange: () => model.use(by.value || null) });
  const state = el("span.quiet", { role: "status" });
  const node = el("span.row", { hidden: true }, by, state);
  let offered = null;

  function show() {
    if (known.eventTime && known.eventTime !== offered) {
      offered = known.eventTime;
      fill(by, el("option", { value: "" }, `by ${offered}`), el("option", { value: "arrival" }, "by arrival"));
    }
    node.hidden = !known.eventTime && !known.by;
    by.value = known.by ?? "";
    const isEmpty = known.eventTime && known.head && known.head.time === null;
    say(state, known.bytesUnknown != null ? `Reading the events’ times, ${bytes(known.bytesUnknown)} to go…` : isEmpty ? `No event has a time in ${known.eventTime}.` : "");
  }
  return { node, show };
}

// A query that says by which time.
export function byOf(known, more = {}) {
  return new URLSearchParams(known.by ? { ...more, by: known.by } : more);
}

// The place of a moment, in words of the server.
export const placeAt = (known, ms) => `${known.eventTime ? "event:" : ""}${new Date(ms).toISOString()}`;
