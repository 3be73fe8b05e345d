// A hit of a search: when it came and where it is, the part of it that has the words, and the whole event.

import { el, fill } from "./dom.js";
import { clock, segment } from "./format.js";
import { path } from "./api.js";
import { jsonOf, pretty, shown } from "./payload.js";

export const MOST_BYTES = 65536; // of an event

export function hitNode(hit, scope, stream) {
  const event = { text: hit.event, sizeBytes: hit.sizeBytes > MOST_BYTES ? hit.sizeBytes : undefined };
  const head = el("div.row.soft", {},
    el("a", { href: path`#/play/${scope}/${stream}` + path`?from=${hit.came}&by=arrival`, title: "Play from there" }, el("time", {}, clock(hit.came, { millis: true }))),
    el("span.mono", { title: "Where it is in the stream: segment and offset" }, `segment ${segment(hit.segment)} offset ${hit.offset}`),
    hit.score === null ? null : el("span.mono", { title: "How well it fits" }, hit.score.toFixed(2)));
  if (hit.excerpt === null) return el("div.hit", { role: "listitem" }, head, shown(event));
  const body = el("pre");
  const whole = el("details", { ontoggle: () => whole.open && !body.hasChildNodes() && fill(body, jsonOf(event) === undefined ? shown(event) : pretty(event)) }, el("summary.quiet", {}, "The event"), body);
  return el("div.hit", { role: "listitem" }, head, el("p", {}, marked(hit.excerpt, hit.found)), whole);
}

// The text with its words marked. Places are told in characters of Unicode, of which some are two in a script's text.
export function marked(text, found) {
  const characters = Array.from(text);
  const between = (from, to) => characters.slice(from, to).join("");
  const parts = [];
  let last = 0;
  for (const [from, to] of found) {
    parts.push(between(last, from), el("mark", {}, between(from, to)));
    last = to;
  }
  return [...parts, between(last)];
}
