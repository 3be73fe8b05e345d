// The source of a stream's events: here the server's endpoints; the player accepts any object with these functions.
// Kinds of messages are "batch", "trouble" and finally "end"; each resolves to the last one, or throws Refused or Lost.

import { ask, listen } from "./api.js";

export function overHttp(data) {
  return {
    first: (query, signal) => ask(`${data}/events?${query}`, signal), // a batch with the first or last events of a range
    play: (query, on, signal) => listen(`${data}/play?${query}`, on, signal),
    tail: (on, signal) => listen(`${data}/tail`, on, signal),
  };
}
