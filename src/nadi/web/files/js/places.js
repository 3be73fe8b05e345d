// Bookmarks and slices: made, renamed, deleted; and the list of them.

import { path, send } from "./api.js";
import { byOf, placeAt } from "./clocks.js";
import { form, NAME, note } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { clock, span, when } from "./format.js";

const NOTE = { name: "note", label: "Note", type: "text-long" };
const TAGS = { name: "tags", label: "Tags, separated by commas" };
const tagsOf = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

export async function makeBookmark(model, ms) {
  const { scope, stream } = model.known;
  const made = await form({
    title: "Make a bookmark",
    about: ms === null ? "At the tail: everything that came until now lies before it." : `At ${clock(ms, { millis: true })}: what came or happened then or later lies behind it.`,
    fields: [{ name: "name", label: "Name", ...NAME }, NOTE, TAGS],
    confirm: "Make it",
    act: ({ name, note: text, tags }) => send("POST", path`/v1/data/${scope}/bookmarks`, { name, streamName: stream, at: ms === null ? "tail" : placeAt(model.known, ms), note: text, tags: tagsOf(tags) }),
  });
  if (made) done(model, `Bookmark ${made.name} is made.`);
}

export async function makeSlice(model, { from, to }) {
  const { scope, stream } = model.known;
  const made = await form({
    title: "Make a slice",
    about: `From ${clock(from, { millis: true })} to ${clock(to, { millis: true })}, ${span(to - from)}.`,
    fields: [{ name: "name", label: "Name", ...NAME }, NOTE, TAGS],
    confirm: "Make it",
    act: ({ name, note: text, tags }) => send("POST", path`/v1/data/${scope}/slices`, { name, streamName: stream, start: placeAt(model.known, from), end: placeAt(model.known, to), note: text, tags: tagsOf(tags) }),
  });
  if (made) done(model, `Slice ${made.name} is made.`);
}

function done(model, text) {
  note(text);
  model.again("places");
}

async function rename(model, kind, one) {
  const { scope } = model.known;
  const made = await form({
    title: `Rename ${kind} ${one.name}`,
    fields: [{ name: "name", label: "New name", value: one.name, ...NAME }],
    confirm: "Rename",
    act: ({ name }) => send("PUT", path`/v1/data/${scope}/${`${kind}s`}/${one.name}`, { name }),
  });
  if (made) done(model, `It is ${made.name} now.`);
}

async function remove(model, kind, one) {
  const { scope } = model.known;
  const is = await form({
    title: `Delete ${kind} ${one.name}?`,
    about: "Its name goes; the events stay.",
    confirm: "Delete",
    danger: true,
    act: () => send("DELETE", path`/v1/data/${scope}/${`${kind}s`}/${one.name}`),
  });
  if (is) done(model, `The ${kind} ${one.name} is deleted.`);
}

export function placesTable(model, see) {
  const body = el("tbody");
  const empty = el("p.pad.quiet", {}, "None yet. Click in the picture for a moment, or drag over a stretch, and give it a name.");
  const node = el("div.scroll", {}, el("table.places", { "aria-label": "Bookmarks and slices" }, body), empty);
  let last = "";

  function show() {
    const { scope, stream, bookmarks, slices } = model.known;
    const now = JSON.stringify([bookmarks, slices]);
    if (now === last) return; // what somebody points at stays where it is
    last = now;
    empty.hidden = bookmarks.length + slices.length > 0;
    const rows = [
      ...bookmarks.map((one) => row("bookmark", one, one.time, when(one.time), `${path`#/play/${scope}/${stream}`}?${byOf(model.known, { bookmark: one.name })}`)),
      ...slices.map((one) => row("slice", one, one.start.time, `${when(one.start.time)}, ${one.end.time !== null && one.start.time !== null ? span(one.end.time - one.start.time) : "empty"}`, `${path`#/play/${scope}/${stream}`}?${byOf(model.known, { slice: one.name })}`)),
    ];
    rows.sort((a, b) => b.time - a.time);
    fill(body, rows.map((one) => one.node));
  }

  function row(kind, one, time, when, play) {
    const act = (text, label, run, extra = "") => el(`button.button.plain${extra}`, { type: "button", "aria-label": `${label} ${kind} ${one.name}`, onclick: run }, text);
    const title = [one.note, ...one.tags.map((tag) => `#${tag}`)].filter(Boolean).join(" ");
    return {
      time: time ?? 0,
      node: el("tr", {}, el("td", {}, el("span.what", { title }, el(`i${kind === "slice" ? ".slice" : ""}`, { "aria-hidden": "true" }), el("a", { href: "#", onclick: (event) => { event.preventDefault(); see(kind, one); } }, one.name))),
        el("td.mono", {}, when),
        el("td.acts", {}, el("a.button.plain", { href: play, "aria-label": `Play ${kind} ${one.name}` }, "Play"), act("Rename", "Rename", () => rename(model, kind, one)), act("Delete", "Delete", () => remove(model, kind, one), ".danger"))),
    };
  }

  show();
  return { node, show };
}
