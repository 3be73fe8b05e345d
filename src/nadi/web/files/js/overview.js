// All scopes and streams, with what passes into them.

import { ask, every, path, Refused } from "./api.js";
import { form, note, NAME, sentence } from "./dialogs.js";
import { colour, el, fill, sized } from "./dom.js";
import { bytes, count, flow, short } from "./format.js";
import * as shell from "./shell.js";
import { virtualList } from "./virtual.js";

const POINTS = 60;
const EVERY_MS = 2000;
const SPARK = [168, 26];
const ORDERS = {
  name: (a, b) => (a.key < b.key ? -1 : 1),
  segments: (a, b) => b.segments - a.segments || ORDERS.name(a, b),
  events: (a, b) => b.events - a.events || ORDERS.name(a, b),
  bytes: (a, b) => b.bytes - a.bytes || ORDERS.name(a, b),
};
const history = new Map(); // of rates, by stream, kept while the page is open

export function overview(main, { signal }) {
  shell.at();
  let all = [];
  let order = "bytes";
  let scope = "";
  const only = sessionStorage.getItem("nadi-scope"); // for who may not list them all
  const find = el("input.field", { type: "search", placeholder: "Find a stream", "aria-label": "Find a stream", oninput: show });
  const scopes = el("select.field", { "aria-label": "Scope", onchange: () => { scope = scopes.value; search.href = scope ? path`#/search/${scope}` : "#/search"; show(); } }, el("option", { value: "" }, "All scopes"));
  const shown = el("span.quiet", { role: "status" });
  const search = el("a.button", { href: "#/search" }, "Search events");
  const values = Object.fromEntries(["streams", "scopes", "segments", "events", "bytes"].map((name) => [name, el("div.value", {}, "–")]));
  const tile = (label, name) => el("div.tile", {}, el("div.label", {}, label), values[name]);
  const list = virtualList({ rowHeight: 34, make: row, label: "Streams" });
  const heads = el("div.cells.heads", {}, head("Stream", "name"), head("Segments", "segments", true), head("Events/s", "events", true), head("Bytes/s", "bytes", true), el("span.quiet", { class: "hide-small" }, "last 2 minutes"));
  const empty = el("div.pad.quiet", { hidden: true });
  fill(main, el("div.overview", {},
    el("h1", { hidden: true }, "Streams"),
    el("div.tiles", {}, tile("Streams", "streams"), tile("Scopes", "scopes"), tile("Segments", "segments"), tile("Events", "events"), tile("Bytes", "bytes")),
    el("div.row", {}, find, scopes, el("span.grow"), shown, search),
    el("div.list", {}, heads, empty, list.node)));
  shell.themed.on(list.redraw, signal);
  every(EVERY_MS, look, failed, signal);

  function head(text, name, isNumber = false) {
    return el(`button${isNumber ? ".right" : ""}`, { type: "button", "data-order": name, "aria-sort": name === order ? "descending" : "none", onclick: () => { order = name; show(); } }, text);
  }

  async function look() {
    const found = await ask(only ? path`/v1/scopes/${only}/rates` : "/v1/rates", signal);
    all = found.map((one) => ({
      key: `${one.scopeName}/${one.streamName}`, scope: one.scopeName, stream: one.streamName, segments: one.segments,
      isSealed: one.isSealed, events: flow(one.eventsPerSecond), bytes: flow(one.bytesPerSecond),
    }));
    for (const one of all) {
      const line = history.get(one.key) ?? [];
      line.push(one.bytes);
      if (line.length > POINTS) line.shift();
      history.set(one.key, line);
      one.line = line;
    }
    const there = new Set(all.map((one) => one.key));
    for (const key of history.keys()) if (!there.has(key)) history.delete(key);
    const names = [...new Set(all.map((one) => one.scope))];
    if (names.join() !== [...scopes.options].slice(1).map((one) => one.value).join()) {
      fill(scopes, el("option", { value: "" }, "All scopes"), names.map((name) => el("option", { value: name }, name)));
      if (!names.includes(scope)) scope = "";
      scopes.value = scope;
    }
    const sum = (name) => all.reduce((total, one) => total + one[name], 0);
    fill(values.streams, count(all.length));
    fill(values.scopes, count(names.length));
    fill(values.segments, count(sum("segments")));
    fill(values.events, short(sum("events")), el("small", {}, " /s"));
    fill(values.bytes, bytes(sum("bytes")), el("small", {}, " /s"));
    show();
  }

  function show() {
    const wanted = find.value.trim().toLowerCase();
    const found = all.filter((one) => (!scope || one.scope === scope) && (!wanted || one.key.toLowerCase().includes(wanted)));
    found.sort(ORDERS[order]);
    for (const button of heads.querySelectorAll("button")) button.setAttribute("aria-sort", button.dataset.order === order ? "descending" : "none");
    fill(shown, found.length === all.length ? "" : `${count(found.length)} of ${count(all.length)}`);
    empty.hidden = found.length > 0;
    fill(empty, all.length ? "No stream has that in its name." : "There are no streams yet: a client, or nadi stream create, makes them.");
    list.show(found);
  }

  async function failed(error) {
    if (error instanceof Refused && error.status === 403 && !only) return askScope();
    if (error instanceof Refused && error.status === 404 && only) sessionStorage.removeItem("nadi-scope");
    if (error instanceof Refused) {
      empty.hidden = false;
      fill(empty, sentence(error));
    }
  }

  let isAsking = false;
  async function askScope() {
    if (isAsking) return;
    isAsking = true;
    await form({
      title: "Which scope?",
      about: "You may not list all scopes. Name one that you may see.",
      fields: [{ name: "scope", label: "Scope", ...NAME }],
      confirm: "Show it",
      act: async ({ scope: name }) => {
        await ask(path`/v1/scopes/${name}/rates`);
        sessionStorage.setItem("nadi-scope", name);
        location.reload();
      },
    });
    if (!signal.aborted && !sessionStorage.getItem("nadi-scope")) note("No scope was chosen: load the page again to choose one.", true);
  }

  return { "/": () => find.focus() };
}

function row() {
  const where = el("span.in");
  const name = el("span");
  const tag = el("span.tag", { hidden: true }, "sealed");
  const segments = el("span.num.right");
  const events = el("span.num.right");
  const size = el("span.num.right");
  const canvas = el("canvas", { "aria-hidden": "true" });
  const node = el("a.cells", {}, el("span.title", {}, where, name, tag), segments, events, size, canvas);
  return {
    node,
    update(one) {
      node.href = path`#/stream/${one.scope}/${one.stream}`;
      fill(where, `${one.scope}/`);
      fill(name, one.stream);
      tag.hidden = !one.isSealed;
      fill(segments, count(one.segments));
      fill(events, one.events ? short(one.events) : el("span.quiet", {}, "0"));
      fill(size, one.bytes ? bytes(one.bytes) : el("span.quiet", {}, "0"));
      spark(canvas, one.line);
    },
  };
}

function spark(canvas, line) {
  const [width, height] = [canvas.clientWidth || SPARK[0], SPARK[1]];
  const context = sized(canvas, width, height);
  if (!context || line.length < 2) return;
  const most = Math.max(...line) || 1;
  const step = width / (POINTS - 1);
  const x = (i) => width - (line.length - 1 - i) * step;
  const y = (value) => height - 2 - (value / most) * (height - 5);
  context.beginPath();
  line.forEach((value, i) => context.lineTo(x(i), y(value)));
  context.strokeStyle = colour("accent");
  context.lineWidth = 1.25;
  context.stroke();
  context.lineTo(width, height);
  context.lineTo(x(0), height);
  context.globalAlpha = 0.12;
  context.fillStyle = colour("accent");
  context.fill();
  context.globalAlpha = 1;
}
