// Where events of a stream come from: here the server's own endpoints. Whatever else has these three may be played, too.
// Kinds of messages are "batch", "trouble" and, at last, "end"; each resolves to the last one, or throws Refused or Lost.

import { ask, listen } from "./api.js";

export function overHttp(data) {
  return {
    first: (query, signal) => ask(`${data}/events?${query}`, signal), // a batch with the first events of a stretch, or its last
    play: (query, on, signal) => listen(`${data}/play?${query}`, on, signal),
    tail: (on, signal) => listen(`${data}/tail`, on, signal),
  };
}
