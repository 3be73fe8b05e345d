// A search hit: time and location, excerpt, and the complete event.

import { el, fill } from "./dom.js";
import { clock, segment } from "./format.js";
import { path } from "./api.js";
import { jsonOf, pretty, shown } from "./payload.js";

export const MOST_BYTES = 65536; // of an event

export function hitNode(hit, scope, stream) {
  const event = { text: hit.event, sizeBytes: hit.sizeBytes > MOST_BYTES ? hit.sizeBytes : undefined };
  const head = el("div.row.soft", {},
    el("a", { href: path`#/play/${scope}/${stream}` + path`?from=${hit.arrival_time}&by=arrival`, title: "Play from here" }, el("time", {}, clock(hit.arrival_time, { millis: true }))),
    el("span.mono", { title: "Segment and offset" }, `segment ${segment(hit.segment)} offset ${hit.offset}`),
    hit.score === null ? null : el("span.mono", { title: "Score" }, hit.score.toFixed(2)));
  if (hit.excerpt === null) return el("div.hit", { role: "listitem" }, head, shown(event));
  const body = el("pre");
  const details = el("details", { ontoggle: () => details.open && !body.hasChildNodes() && fill(body, jsonOf(event) === undefined ? shown(event) : pretty(event)) }, el("summary.quiet", {}, "Full event"), body);
  return el("div.hit", { role: "listitem" }, head, el("p", {}, marked(hit.excerpt, hit.matches)), details);
}

// The text with matches marked. Offsets count Unicode characters, some of which are two UTF-16 units.
export function marked(text, ranges) {
  const characters = Array.from(text);
  const between = (from, to) => characters.slice(from, to).join("");
  const parts = [];
  let last = 0;
  for (const [from, to] of ranges) {
    parts.push(between(last, from), el("mark", {}, between(from, to)));
    last = to;
  }
  return [...parts, between(last)];
}
