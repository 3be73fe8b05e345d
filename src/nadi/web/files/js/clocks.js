// Chooses the clock of a stream's view: event time, if the stream defines it, or arrival.

import { el, fill, say } from "./dom.js";
import { bytes } from "./format.js";

// A select, and its state; `show` updates both from the model.
export function timeChoice(model) {
  const known = model.known;
  const by = el("select.field", { "aria-label": "Clock", onchange: () => model.use(by.value || null) });
  const state = el("span.quiet", { role: "status" });
  const node = el("span.row", { hidden: true }, by, state);
  let offered = null;

  function show() {
    if (known.eventTime && known.eventTime !== offered) {
      offered = known.eventTime;
      fill(by, el("option", { value: "" }, `by event time (${offered})`), el("option", { value: "arrival" }, "by arrival"));
    }
    node.hidden = !known.eventTime && !known.by;
    by.value = known.by ?? "";
    const isEmpty = known.eventTime && known.head && known.head.time === null;
    say(state, known.bytesUnknown != null ? `Indexing event times, ${bytes(known.bytesUnknown)} remaining…` : isEmpty ? `No event has a valid time in ${known.eventTime}.` : "");
  }
  return { node, show };
}

// Query parameters, with the clock.
export function byOf(known, more = {}) {
  return new URLSearchParams(known.by ? { ...more, by: known.by } : more);
}

// A moment as a position for the server.
export const positionAt = (known, ms) => `${known.eventTime ? "event:" : ""}${new Date(ms).toISOString()}`;
