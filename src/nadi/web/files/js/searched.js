// What search keeps: which streams have an index, how far that is, and the standing queries of a stream.

import { ask, path, Refused } from "./api.js";
import { sentence } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { bytes, count } from "./format.js";

// To choose where to search: `node` has the selects, `list` what there is in the scope.
export function picker(scope, stream, signal) {
  const only = sessionStorage.getItem("nadi-scope"); // for who may not list them all
  const go = (address) => { location.hash = address; };
  const scopes = el("select.field", { "aria-label": "Scope", onchange: () => go(path`#/search/${scopes.value}`) });
  const streams = el("select.field", { "aria-label": "Stream", onchange: () => go(path`#/search/${scope}/${streams.value}`) });
  const list = el("div.panel.pad", {}, el("p.quiet", {}, "…"));
  const option = (name) => el("option", { value: name }, name);
  const node = el("div.row", {}, el("h1", {}, "Search"), scopes, streams);
  streams.hidden = !scope;
  fill(scopes, option(scope ?? ""));
  fill(streams, option(stream ?? ""));
  load().catch((error) => signal.aborted || fill(list, el("p.bad", { role: "alert" }, sentence(error))));
  return { node, list };

  async function load() {
    const names = await scopesSeen();
    const all = names.includes(scope) || !scope ? names : [scope, ...names];
    fill(scopes, scope ? null : option(""), all.map(option));
    scopes.value = scope ?? "";
    if (!scope) {
      fill(list, el("p.soft", {}, all.length ? "In which scope?" : "There are no scopes yet, or none that you may list: open a stream, and search there."), links(all, (name) => path`#/search/${name}`));
      return;
    }
    const found = await ask(path`/v1/data/${scope}/searched`, signal);
    const kept = found.map((one) => one.streamName);
    fill(streams, stream && kept.includes(stream) ? null : option(stream ?? ""), kept.map(option));
    streams.value = stream ?? "";
    fill(list, el("p.soft", {}, kept.length ? "In which stream?" : "No stream of this scope has a search index: nadi search create makes one."), links(kept, (name) => path`#/search/${scope}/${name}`));
  }

  async function scopesSeen() {
    if (only) return [only];
    try {
      const { scopes: found } = await ask("/v1/scopes", signal);
      return found.map((one) => one.scopeName).filter((name) => !name.startsWith("_"));
    } catch (error) {
      if (error instanceof Refused && error.status === 403) return [];
      throw error;
    }
  }
}

const links = (names, address) => el("div.row", {}, names.map((name) => el("a.button", { href: address(name) }, name)));

// How far an index is.
export function indexLine(index, scope, stream) {
  const command = (verb) => el("code", {}, `nadi search ${verb} ${scope} ${stream}`);
  const state = level(index.bytesBehind, index.bytesOfPast);
  const notes = [
    index.isStopped ? el("span.warn", {}, "stopped: ", command("start"), " goes on") : null,
    !index.isStopped && !index.indexers && index.bytesBehind ? el("span.warn", {}, "nobody indexes it: ", command("start")) : null,
    index.bytesOfPast ? el("span.warn", {}, `${bytes(index.bytesOfPast)} of the past are left: `, command("past")) : null,
    index.unfit ? el("span.warn", {}, `${count(index.unfit)} events didn't parse`) : null,
    index.gaps ? el("span.warn", {}, `${count(index.gaps)} gaps`) : null,
  ];
  return [state, el("span.soft", {}, `${count(index.events)} events indexed`), notes];
}

function level(behind, past) {
  const [kind, text] = behind === null ? ["", "how far it is behind isn't known"] : behind || past ? ["warn", `${bytes(behind)} behind the stream`] : ["good", "level with the stream"];
  return el("span.row", {}, el(`span.dot${kind ? `.${kind}` : ""}`), text);
}

// The fields that one may ask for, each with its kind.
export function fieldChips(fields, onField) {
  return fields.slice(0, 30).map((one) => el("button.tag", { type: "button", title: `${one.kind}, in ${one.events} events: add it to the query`, onclick: () => onField(one.name) }, one.name));
}

export function standingPanel(scope, onQuery) {
  const told = el("span.soft.row", { role: "status" });
  const body = el("tbody");
  const more = el("p.pad.quiet", { hidden: true });
  const node = el("div.panel", { hidden: true }, el("div.head", {}, el("h2", {}, "Standing queries"), told), el("div.scroll", {}, el("table", { "aria-label": "Standing queries" }, body)), more);
  return {
    node,
    show(found) {
      node.hidden = !found;
      if (!found) return;
      const [of, name] = found.hits.split("/");
      fill(told, level(found.bytesBehind, 0), `${count(found.found)} hits of ${count(found.events)} events, in`,
        el("a", { href: path`#/stream/${of}/${name}` }, of === scope ? name : found.hits),
        found.catchingUp ? el("span.warn", {}, `${count(found.catchingUp)} still in the past`) : null,
        found.isStopped ? el("span.warn", {}, "stopped") : null,
        !found.isStopped && !found.matchers && found.bytesBehind ? el("span.warn", {}, "nobody matches") : null);
      fill(body, found.first.map((one) => el("tr", {}, el("td.nowrap", {}, one.name), el("td.mono", {}, one.query),
        el("td.right", {}, el("button.button.plain", { type: "button", "aria-label": `Search what ${one.name} asks`, onclick: () => onQuery(one.query) }, "Search")))));
      more.hidden = found.queries <= found.first.length;
      fill(more, `These are the first ${count(found.first.length)} of ${count(found.queries)}.`);
    },
  };
}
