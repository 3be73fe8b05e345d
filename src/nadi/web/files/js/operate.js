// What changes a stream for good, each after a question: split, merge, truncate, seal.

import { send } from "./api.js";
import { placeAt } from "./clocks.js";
import { form, note } from "./dialogs.js";
import { clock, segment } from "./format.js";

const round = (value) => Math.round(value * 10000) / 10000;

const typed = (stream) => ({ name: "typed", label: `Type the stream's name, ${stream}, to say that you mean it`, required: true });
function check(values, stream) {
  if (values.typed !== stream) throw new Error(`that is not the stream's name: it is ${stream}`);
}

export async function split(model) {
  const { at, loads } = model.known;
  if (!loads.length) return note("The stream is sealed: it has no current segments.", true);
  const busiest = [...loads].sort((a, b) => b.bytes_per_s[1] - a.bytes_per_s[1])[0];
  const done = await form({
    title: "Split a segment",
    about: "It is sealed, and others take its keys. Each key keeps its order.",
    fields: [
      { name: "id", label: "Segment", value: String(busiest.segment_id), options: loads.map((one) => [String(one.segment_id), `${segment(one.segment_id)}: keys ${round(one.low)} to ${round(one.high)}`]) },
      { name: "into", label: "Into", options: [["2", "2 segments"], ["3", "3 segments"], ["4", "4 segments"]] },
    ],
    confirm: "Split",
    act: ({ id, into }) => {
      const one = loads.find((found) => String(found.segment_id) === id);
      const border = (i) => (i === Number(into) ? one.high : one.low + ((one.high - one.low) * i) / Number(into));
      const ranges = Array.from({ length: Number(into) }, (_, i) => [border(i), border(i + 1)]);
      return send("POST", `${at}/scale`, { segments: [one.segment_id], ranges });
    },
  });
  if (done) scaled(model, "The segment is being split.");
}

export async function merge(model) {
  const { at, loads } = model.known;
  const pairs = loads.slice(1).map((one, i) => [loads[i], one]).filter(([a, b]) => a.high === b.low);
  if (!pairs.length) return note("There are no two segments side by side to be merged.", true);
  const done = await form({
    title: "Merge two segments",
    about: "Both are sealed, and one takes the keys of both. Each key keeps its order.",
    fields: [{ name: "pair", label: "Segments", options: pairs.map(([a, b], i) => [String(i), `${segment(a.segment_id)} and ${segment(b.segment_id)}: keys ${round(a.low)} to ${round(b.high)}`]) }],
    confirm: "Merge",
    act: ({ pair }) => {
      const [a, b] = pairs[Number(pair)];
      return send("POST", `${at}/scale`, { segments: [a.segment_id, b.segment_id], ranges: [[a.low, b.high]] });
    },
  });
  if (done) scaled(model, "The segments are being merged.");
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
      ? `Events before ${clock(ms, { millis: true })} are deleted, for good, up to the first of then or later.`
      : `All events that came before ${clock(ms, { millis: true })} are deleted, for good.`,
    fields: [typed(stream)],
    confirm: "Delete what lies before",
    danger: true,
    act: (values) => {
      check(values, stream);
      return send("POST", `${data}/truncation`, { at: placeAt(model.known, ms) });
    },
  });
  if (done) {
    note("The stream is truncated.");
    model.again("spans");
  }
}

export async function seal(model) {
  const { at, stream } = model.known;
  const done = await form({
    title: "Seal the stream",
    about: "No events can be written to it any more, by anybody, for good. What it has stays readable.",
    fields: [typed(stream)],
    confirm: "Seal it",
    danger: true,
    act: (values) => {
      check(values, stream);
      return send("PUT", `${at}/state`, { streamState: "SEALED" });
    },
  });
  if (done) {
    note("The stream is sealed.");
    model.again("spans");
  }
}
