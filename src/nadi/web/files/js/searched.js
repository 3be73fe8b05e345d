// Search indexes of a scope, the state of an index, and the standing queries of a stream.

import { ask, path, Refused } from "./api.js";
import { sentence } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { bytes, count } from "./format.js";

// Chooses scope and stream: `node` contains selects, `list` the choices.
export function picker(scope, stream, signal) {
  const only = sessionStorage.getItem("nadi-scope"); // for users without permission to list all scopes
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
    const names = await visibleScopes();
    const all = names.includes(scope) || !scope ? names : [scope, ...names];
    fill(scopes, scope ? null : option(""), all.map(option));
    scopes.value = scope ?? "";
    if (!scope) {
      fill(list, el("p.soft", {}, all.length ? "Choose a scope." : "There are no scopes that you may list. Open a stream and search there."), links(all, (name) => path`#/search/${name}`));
      return;
    }
    const searched = await ask(path`/v1/data/${scope}/searched`, signal);
    const indexed = searched.map((item) => item.streamName);
    fill(streams, stream && indexed.includes(stream) ? null : option(stream ?? ""), indexed.map(option));
    streams.value = stream ?? "";
    fill(list, el("p.soft", {}, indexed.length ? "Choose a stream." : "No stream in this scope has a search index. Create one with `nadi search create`."), links(indexed, (name) => path`#/search/${scope}/${name}`));
  }

  async function visibleScopes() {
    if (only) return [only];
    try {
      const { scopes: listed } = await ask("/v1/scopes", signal);
      return listed.map((item) => item.scopeName).filter((name) => !name.startsWith("_"));
    } catch (error) {
      if (error instanceof Refused && error.status === 403) return [];
      throw error;
    }
  }
}

const links = (names, address) => el("div.row", {}, names.map((name) => el("a.button", { href: address(name) }, name)));

// The state of an index.
export function indexLine(index, scope, stream) {
  const command = (verb) => el("code", {}, `nadi search ${verb} ${scope} ${stream}`);
  const state = lag(index.lagBytes, index.backfillBytes);
  const notes = [
    index.isStopped ? el("span.warn", {}, "stopped: resume with ", command("run")) : null,
    !index.isStopped && !index.indexers && index.lagBytes ? el("span.warn", {}, "no indexer is running: ", command("run")) : null,
    index.backfillBytes ? el("span.warn", {}, `${bytes(index.backfillBytes)} to backfill: `, command("backfill")) : null,
    index.invalid ? el("span.warn", {}, `${count(index.invalid)} events didn't parse`) : null,
    index.gaps ? el("span.warn", {}, `${count(index.gaps)} gaps`) : null,
  ];
  return [state, el("span.soft", {}, `${count(index.events)} events indexed`), notes];
}

function lag(behind, past) {
  const [kind, text] = behind === null ? ["", "lag unknown"] : behind || past ? ["warn", `${bytes(behind)} behind the stream`] : ["good", "up to date"];
  return el("span.row", {}, el(`span.dot${kind ? `.${kind}` : ""}`), text);
}

// The fields of an index, each with its kind.
export function fieldChips(fields, onField) {
  return fields.slice(0, 30).map((item) => el("button.tag", { type: "button", title: `${item.kind}, in ${item.events} events. Click to add it to the query.`, onclick: () => onField(item.name) }, item.name));
}

export function standingPanel(scope, onQuery) {
  const status = el("span.soft.row", { role: "status" });
  const body = el("tbody");
  const more = el("p.pad.quiet", { hidden: true });
  const node = el("div.panel", { hidden: true }, el("div.head", {}, el("h2", {}, "Standing queries"), status), el("div.scroll", {}, el("table", { "aria-label": "Standing queries" }, body)), more);
  return {
    node,
    show(standing) {
      node.hidden = !standing;
      if (!standing) return;
      const [of, name] = standing.hits.split("/");
      fill(status, lag(standing.lagBytes, 0), `${count(standing.hitCount)} hits of ${count(standing.events)} events, in`,
        el("a", { href: path`#/stream/${of}/${name}` }, of === scope ? name : standing.hits),
        standing.catchingUp ? el("span.warn", {}, `${count(standing.catchingUp)} still matching past events`) : null,
        standing.isStopped ? el("span.warn", {}, "stopped") : null,
        !standing.isStopped && !standing.matchers && standing.lagBytes ? el("span.warn", {}, "no matcher is running") : null);
      fill(body, standing.first.map((item) => el("tr", {}, el("td.nowrap", {}, item.name), el("td.mono", {}, item.query),
        el("td.right", {}, el("button.button.plain", { type: "button", "aria-label": `Search with ${item.name}`, onclick: () => onQuery(item.query) }, "Search")))));
      more.hidden = standing.queries <= standing.first.length;
      fill(more, `Showing ${count(standing.first.length)} of ${count(standing.queries)} queries.`);
    },
  };
}
