// The page's player, with the server's endpoints and bookmarks.

import { path } from "./api.js";
import { streamModel } from "./model.js";
import { makeBookmark } from "./places.js";
import { player } from "./player.js";
import * as shell from "./shell.js";
import { overHttp } from "./source.js";

export function playing(main, { scope, stream, query, signal }) {
  shell.at({ text: scope, href: "#/" }, { text: stream, href: path`#/stream/${scope}/${stream}` }, { text: "player" });
  const model = streamModel(scope, stream, signal, query.get("by") === "arrival" ? "arrival" : null);
  return player(main, {
    stream, query, model, signal, from: overHttp(model.known.data), themed: shell.themed, makeBookmark: (ms) => makeBookmark(model, ms),
  });
}
