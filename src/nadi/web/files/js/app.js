// Which view is shown, by the part of the address after #, and keys.

import { overview } from "./overview.js";
import { playing } from "./playing.js";
import { searchView } from "./search.js";
import * as shell from "./shell.js";
import { streamView } from "./stream.js";

const VIEWS = [
  [/^#\/stream\/([^/]+)\/([^/?]+)$/, streamView],
  [/^#\/play\/([^/]+)\/([^/?]+)(?:\?(.*))?$/, playing],
  [/^#\/search(?:\/([^/?]+)(?:\/([^/?]+))?)?(?:\?(.*))?$/, searchView],
];
const main = document.getElementById("main");
let shown = null; // {keys, end}

function route() {
  shown?.end.abort();
  const end = new AbortController();
  main.replaceChildren();
  main.scrollTop = 0;
  shown = { end, keys: {} };
  for (const [form, view] of VIEWS) {
    const found = form.exec(location.hash);
    if (found) {
      let scope, stream;
      try {
        [scope, stream] = found.slice(1, 3).map((part) => part && decodeURIComponent(part));
      } catch {
        break; // an address that nobody made here
      }
      shown.keys = view(main, { scope, stream, query: new URLSearchParams(found[3] ?? ""), signal: end.signal }) ?? {};
      return;
    }
  }
  shown.keys = overview(main, { signal: end.signal }) ?? {};
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const within = event.target;
  if (within.matches?.("input:not([type=checkbox]), textarea, select")) return;
  if (event.key === " " && within.matches?.("button, a, [role=tab]")) return; // it presses that
  const act = shown.keys[event.key] ?? { t: shell.otherTheme, "?": shell.showHelp }[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});

shell.begin();
addEventListener("hashchange", route);
route();
