// All scopes and streams, with their write rates.

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
const history = new Map(); // of rates, by stream

export function overview(main, { signal }) {
  shell.at();
  let all = [];
  let order = "bytes";
  let scope = "";
  const only = sessionStorage.getItem("nadi-scope"); // for users without permission to list all scopes
  const find = el("input.field", { type: "search", placeholder: "Find a stream", "aria-label": "Find a stream", oninput: show });
  const scopes = el("select.field", { "aria-label": "Scope", onchange: () => { scope = scopes.value; search.href = scope ? path`#/search/${scope}` : "#/search"; show(); } }, el("option", { value: "" }, "All scopes"));
  const shown = el("span.quiet", { role: "status" });
  const search = el("a.button", { href: "#/search" }, "Search events");
  const values = Object.fromEntries(["streams", "scopes", "segments", "events", "bytes"].map((name) => [name, el("div.value", {}, "–")]));
  const tile = (label, name) => el("div.tile", {}, el("div.label", {}, label), values[name]);
  const list = virtualList({ rowHeight: 34, make: row, label: "Streams" });
  const heads = el("div.cells.heads", {}, head("Stream", "name"), head("Segments", "segments", true), head("Events/s", "events", true), head("Bytes/s", "bytes", true), el("span.quiet", {}, "last 2 minutes"));
  const empty = el("div.pad.quiet", { hidden: true });
  fill(main, el("div.overview", {},
    el("h1", { hidden: true }, "Streams"),
    el("div.tiles", {}, tile("Streams", "streams"), tile("Scopes", "scopes"), tile("Segments", "segments"), tile("Events", "events"), tile("Bytes", "bytes")),
    el("div.row", {}, find, scopes, el("span.grow"), shown, search),
    el("div.list", {}, heads, empty, list.node)));
  shell.themed.on(list.redraw, signal);
  every(EVERY_MS, refresh, failed, signal);

  function head(text, name, isNumber = false) {
    return el(`button${isNumber ? ".right" : ""}`, { type: "button", "data-order": name, "aria-sort": name === order ? "descending" : "none", onclick: () => { order = name; show(); } }, text);
  }

  async function refresh() {
    const rates = await ask(only ? path`/v1/scopes/${only}/rates` : "/v1/rates", signal);
    all = rates.map((item) => ({
      key: `${item.scopeName}/${item.streamName}`, scope: item.scopeName, stream: item.streamName, segments: item.segments,
      isSealed: item.isSealed, events: flow(item.eventsPerSecond), bytes: flow(item.bytesPerSecond),
    }));
    for (const item of all) {
      const line = history.get(item.key) ?? [];
      line.push(item.bytes);
      if (line.length > POINTS) line.shift();
      history.set(item.key, line);
      item.line = line;
    }
    const existing = new Set(all.map((item) => item.key));
    for (const key of history.keys()) if (!existing.has(key)) history.delete(key);
    const names = [...new Set(all.map((item) => item.scope))];
    if (names.join() !== [...scopes.options].slice(1).map((item) => item.value).join()) {
      fill(scopes, el("option", { value: "" }, "All scopes"), names.map((name) => el("option", { value: name }, name)));
      if (!names.includes(scope)) scope = "";
      scopes.value = scope;
    }
    const sum = (name) => all.reduce((total, item) => total + item[name], 0);
    fill(values.streams, count(all.length));
    fill(values.scopes, count(names.length));
    fill(values.segments, count(sum("segments")));
    fill(values.events, short(sum("events")), el("small", {}, " /s"));
    fill(values.bytes, bytes(sum("bytes")), el("small", {}, " /s"));
    show();
  }

  function show() {
    const text = find.value.trim().toLowerCase();
    const matching = all.filter((item) => (!scope || item.scope === scope) && (!text || item.key.toLowerCase().includes(text)));
    matching.sort(ORDERS[order]);
    for (const button of heads.querySelectorAll("button")) button.setAttribute("aria-sort", button.dataset.order === order ? "descending" : "none");
    fill(shown, matching.length === all.length ? "" : `${count(matching.length)} of ${count(all.length)}`);
    empty.hidden = matching.length > 0;
    fill(empty, all.length ? "No matching streams." : "No streams yet. Create one with a client or `nadi stream create`.");
    list.show(matching);
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
      title: "Choose a scope",
      about: "You aren't allowed to list all scopes. Name a scope that you have access to.",
      fields: [{ name: "scope", label: "Scope", ...NAME }],
      confirm: "Show",
      act: async ({ scope: name }) => {
        await ask(path`/v1/scopes/${name}/rates`);
        sessionStorage.setItem("nadi-scope", name);
        location.reload();
      },
    });
    if (!signal.aborted && !sessionStorage.getItem("nadi-scope")) note("No scope was chosen. Reload the page to choose one.", true);
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
    update(item) {
      node.href = path`#/stream/${item.scope}/${item.stream}`;
      fill(where, `${item.scope}/`);
      fill(name, item.stream);
      tag.hidden = !item.isSealed;
      fill(segments, count(item.segments));
      fill(events, item.events ? short(item.events) : el("span.quiet", {}, "0"));
      fill(size, item.bytes ? bytes(item.bytes) : el("span.quiet", {}, "0"));
      spark(canvas, item.line);
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
