// Routes the address after # to a view, and keys to the view or the shell.

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
    const match = form.exec(location.hash);
    if (match) {
      let scope, stream;
      try {
        [scope, stream] = match.slice(1, 3).map((part) => part && decodeURIComponent(part));
      } catch {
        break; // a malformed address
      }
      shown.keys = view(main, { scope, stream, query: new URLSearchParams(match[3] ?? ""), signal: end.signal }) ?? {};
      return;
    }
  }
  shown.keys = overview(main, { signal: end.signal }) ?? {};
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const within = event.target;
  if (within.matches?.("input:not([type=checkbox]), textarea, select")) return;
  if (event.key === " " && within.matches?.("button, a, [role=tab]")) return; // Space activates it
  const act = shown.keys[event.key] ?? { t: shell.otherTheme, "?": shell.showHelp }[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});

shell.start();
addEventListener("hashchange", route);
route();
