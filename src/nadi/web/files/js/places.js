// Bookmarks and slices: dialogs to create, rename and delete them, and their table.

import { path, send } from "./api.js";
import { byOf, positionAt } from "./clocks.js";
import { form, NAME, note } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { clock, span, when } from "./format.js";

const NOTE = { name: "note", label: "Note", type: "text-long" };
const TAGS = { name: "tags", label: "Tags, separated by commas" };
const tagsOf = (text) => text.split(",").map((item) => item.trim()).filter(Boolean);

export async function makeBookmark(model, ms) {
  const { scope, stream } = model.known;
  const result = await form({
    title: "Create a bookmark",
    about: ms === null ? "At the tail, after all current events." : `At ${clock(ms, { millis: true })}, before the events of that time or later.`,
    fields: [{ name: "name", label: "Name", ...NAME }, NOTE, TAGS],
    confirm: "Create",
    act: ({ name, note: text, tags }) => send("POST", path`/v1/data/${scope}/bookmarks`, { name, streamName: stream, at: ms === null ? "tail" : positionAt(model.known, ms), note: text, tags: tagsOf(tags) }),
  });
  if (result) done(model, `Created bookmark ${result.name}.`);
}

export async function makeSlice(model, { from, to }) {
  const { scope, stream } = model.known;
  const result = await form({
    title: "Create a slice",
    about: `From ${clock(from, { millis: true })} to ${clock(to, { millis: true })}, ${span(to - from)}.`,
    fields: [{ name: "name", label: "Name", ...NAME }, NOTE, TAGS],
    confirm: "Create",
    act: ({ name, note: text, tags }) => send("POST", path`/v1/data/${scope}/slices`, { name, streamName: stream, start: positionAt(model.known, from), end: positionAt(model.known, to), note: text, tags: tagsOf(tags) }),
  });
  if (result) done(model, `Created slice ${result.name}.`);
}

function done(model, text) {
  note(text);
  model.again("places");
}

async function rename(model, kind, item) {
  const { scope } = model.known;
  const result = await form({
    title: `Rename ${kind} ${item.name}`,
    fields: [{ name: "name", label: "New name", value: item.name, ...NAME }],
    confirm: "Rename",
    act: ({ name }) => send("PUT", path`/v1/data/${scope}/${`${kind}s`}/${item.name}`, { name }),
  });
  if (result) done(model, `Renamed to ${result.name}.`);
}

async function remove(model, kind, item) {
  const { scope } = model.known;
  const confirmed = await form({
    title: `Delete ${kind} ${item.name}?`,
    about: "The events stay.",
    confirm: "Delete",
    danger: true,
    act: () => send("DELETE", path`/v1/data/${scope}/${`${kind}s`}/${item.name}`),
  });
  if (confirmed) done(model, `Deleted ${kind} ${item.name}.`);
}

export function placesTable(model, see) {
  const body = el("tbody");
  const empty = el("p.pad.quiet", {}, "No bookmarks or slices. Click or drag in the picture to create one.");
  const node = el("div.scroll", {}, el("table.places", { "aria-label": "Bookmarks and slices" }, body), empty);
  let last = "";

  function show() {
    const { scope, stream, bookmarks, slices } = model.known;
    const now = JSON.stringify([bookmarks, slices]);
    if (now === last) return; // keeps elements under the pointer
    last = now;
    empty.hidden = bookmarks.length + slices.length > 0;
    const rows = [
      ...bookmarks.map((item) => row("bookmark", item, item.time, when(item.time), `${path`#/play/${scope}/${stream}`}?${byOf(model.known, { bookmark: item.name })}`)),
      ...slices.map((item) => row("slice", item, item.start.time, `${when(item.start.time)}, ${item.end.time !== null && item.start.time !== null ? span(item.end.time - item.start.time) : "empty"}`, `${path`#/play/${scope}/${stream}`}?${byOf(model.known, { slice: item.name })}`)),
    ];
    rows.sort((a, b) => b.time - a.time);
    fill(body, rows.map((item) => item.node));
  }

  function row(kind, item, time, when, play) {
    const act = (text, label, run, extra = "") => el(`button.button.plain${extra}`, { type: "button", "aria-label": `${label} ${kind} ${item.name}`, onclick: run }, text);
    const title = [item.note, ...item.tags.map((tag) => `#${tag}`)].filter(Boolean).join(" ");
    return {
      time: time ?? 0,
      node: el("tr", {}, el("td", {}, el("span.what", { title }, el(`i${kind === "slice" ? ".slice" : ""}`, { "aria-hidden": "true" }), el("a", { href: "#", onclick: (event) => { event.preventDefault(); see(kind, item); } }, item.name))),
        el("td.mono", {}, when),
        el("td.acts", {}, el("a.button.plain", { href: play, "aria-label": `Play ${kind} ${item.name}` }, "Play"), act("Rename", "Rename", () => rename(model, kind, item)), act("Delete", "Delete", () => remove(model, kind, item), ".danger"))),
    };
  }

  show();
  return { node, show };
}
