// By which time a stream is shown: by its events' own, where it names a field with that, or by when they came.

import { el, fill, say } from "./dom.js";
import { bytes } from "./format.js";

// What chooses it, and says what is in the way; `show` once more is known.
export function timeChoice(model) {
  const known = model.known;
  const by = el("select.field", { "aria-label": "By which time", onchange: () => model.use(by.value || null) });
  const told = el("span.quiet", { role: "status" });
  const node = el("span.row", { hidden: true }, by, told);
  let offered = null;

  function show() {
    if (known.eventTime && known.eventTime !== offered) {
      offered = known.eventTime;
      fill(by, el("option", { value: "" }, `by ${offered}`), el("option", { value: "arrival" }, "by arrival"));
    }
    node.hidden = !known.eventTime && !known.by;
    by.value = known.by ?? "";
    const isEmpty = known.eventTime && known.head && known.head.time === null;
    say(told, known.bytesUnknown != null ? `Reading the events’ times, ${bytes(known.bytesUnknown)} to go…` : isEmpty ? `No event has a time in ${known.eventTime}.` : "");
  }
  return { node, show };
}

// The query of a question about times.
export function byOf(known, more = {}) {
  return new URLSearchParams(known.by ? { ...more, by: known.by } : more);
}

// A moment of that time, as the server takes it for a place.
export const placeAt = (known, ms) => `${known.eventTime ? "event:" : ""}${new Date(ms).toISOString()}`;
