// A stream's tail, again and again.

import { sentence } from "./dialogs.js";
import { Lost, Refused } from "./problems.js";

// Calls `on(batch)` for each batch at the tail, over and over, also when the server was away; `state(text)` says what is.
// listen(on, signal) begins at the tail.
export async function follow(listen, on, state, signal) {
  let wait = 500;
  while (!signal.aborted) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true, signal }));
      continue;
    }
    const round = new AbortController();
    const stop = () => round.abort();
    signal.addEventListener("abort", stop, { once: true });
    const hidden = () => document.hidden && stop(); // a browser has few connections to a server: hidden pages hold none
    document.addEventListener("visibilitychange", hidden);
    try {
      state("");
      const last = await listen((kind, batch) => {
        wait = 500;
        if (kind === "batch") on(batch);
        else if (kind === "trouble") throw new Refused(503, batch.error);
      }, round.signal);
      if (last === "end") return state("The stream is sealed: nothing more comes.");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status !== 503) return state(sentence(error));
      if (!round.signal.aborted) state(error instanceof Lost ? `Waiting for the ${error.whom}…` : sentence(error));
    } finally {
      signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", hidden);
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 0 : wait));
    wait = Math.min(wait * 2, 5000);
  }
}
