// Permanent changes of a stream, each with a confirmation: split, merge, truncate, seal.

import { send } from "./api.js";
import { positionAt } from "./clocks.js";
import { form, note } from "./dialogs.js";
import { clock, segment } from "./format.js";

const round = (value) => Math.round(value * 10000) / 10000;

const confirmation = (stream) => ({ name: "typed", label: `Type the stream's name, ${stream}, to confirm`, required: true });
function check(values, stream) {
  if (values.typed !== stream) throw new Error(`this is not the stream's name: type ${stream}`);
}

export async function split(model) {
  const { at, loads } = model.known;
  if (!loads.length) return note("The stream is sealed and has no current segments.", true);
  const busiest = [...loads].sort((a, b) => b.bytes_per_s[1] - a.bytes_per_s[1])[0];
  const done = await form({
    title: "Split a segment",
    about: "The segment is sealed, and its successors take over its keys. The order of each key is preserved.",
    fields: [
      { name: "id", label: "Segment", value: String(busiest.segment_id), options: loads.map((load) => [String(load.segment_id), `${segment(load.segment_id)}: keys ${round(load.low)} to ${round(load.high)}`]) },
      { name: "into", label: "Into", options: [["2", "2 segments"], ["3", "3 segments"], ["4", "4 segments"]] },
    ],
    confirm: "Split",
    act: ({ id, into }) => {
      const parent = loads.find((load) => String(load.segment_id) === id);
      const border = (i) => (i === Number(into) ? parent.high : parent.low + ((parent.high - parent.low) * i) / Number(into));
      const ranges = Array.from({ length: Number(into) }, (_, i) => [border(i), border(i + 1)]);
      return send("POST", `${at}/scale`, { segments: [parent.segment_id], ranges });
    },
  });
  if (done) scaled(model, "Splitting the segment.");
}

export async function merge(model) {
  const { at, loads } = model.known;
  const pairs = loads.slice(1).map((load, i) => [loads[i], load]).filter(([a, b]) => a.high === b.low);
  if (!pairs.length) return note("There are no adjacent segments to merge.", true);
  const done = await form({
    title: "Merge two segments",
    about: "Both are sealed, and one successor takes over their keys. The order of each key is preserved.",
    fields: [{ name: "pair", label: "Segments", options: pairs.map(([a, b], i) => [String(i), `${segment(a.segment_id)} and ${segment(b.segment_id)}: keys ${round(a.low)} to ${round(b.high)}`]) }],
    confirm: "Merge",
    act: ({ pair }) => {
      const [a, b] = pairs[Number(pair)];
      return send("POST", `${at}/scale`, { segments: [a.segment_id, b.segment_id], ranges: [[a.low, b.high]] });
    },
  });
  if (done) scaled(model, "Merging the segments.");
}

function scaled(model, text) {
  note(text);
  for (const ms of [300, 1200, 3000]) setTimeout(() => model.again("spans"), ms);
}

export async function truncate(model, ms) {
  const { data, stream } = model.known;
  const done = await form({
    title: "Truncate the stream",
    about: model.known.eventTime
      ? `Permanently deletes the events before the first one with a time of ${clock(ms, { millis: true })} or later.`
      : `Permanently deletes all events that arrived before ${clock(ms, { millis: true })}.`,
    fields: [confirmation(stream)],
    confirm: "Delete events",
    danger: true,
    act: (values) => {
      check(values, stream);
      return send("POST", `${data}/truncation`, { at: positionAt(model.known, ms) });
    },
  });
  if (done) {
    note("Truncated the stream.");
    model.again("spans");
  }
}

export async function seal(model) {
  const { at, stream } = model.known;
  const done = await form({
    title: "Seal the stream",
    about: "Permanently prevents further writes to the stream. Its events stay readable.",
    fields: [confirmation(stream)],
    confirm: "Seal",
    danger: true,
    act: (values) => {
      check(values, stream);
      return send("PUT", `${at}/state`, { streamState: "SEALED" });
    },
  });
  if (done) {
    note("Sealed the stream.");
    model.again("spans");
  }
}
