// What goes on while somebody sees the page: a stream's tail, again and again.

import { sentence } from "./dialogs.js";
import { Lost, Refused } from "./problems.js";

// What `work(signal)` resolves to; null if the page was hidden meanwhile: a browser has few connections to a server, and
// hidden pages hold none. It begins when the page is seen.
export async function whileSeen(work, signal) {
  while (document.hidden && !signal.aborted) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  const round = new AbortController();
  const stop = () => round.abort();
  const hidden = () => document.hidden && stop();
  signal.addEventListener("abort", stop);
  document.addEventListener("visibilitychange", hidden);
  try {
    if (signal.aborted) stop();
    return await work(round.signal);
  } catch (error) {
    if (round.signal.aborted && !signal.aborted) return null;
    throw error;
  } finally {
    signal.removeEventListener("abort", stop);
    document.removeEventListener("visibilitychange", hidden);
  }
}

// Calls `on(batch)` for each batch at the tail, over and over, also when the server was away; `state(text)` says what is.
// listen(on, signal) begins at the tail.
export async function follow(listen, on, state, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      const last = await whileSeen((seen) => {
        state("");
        return listen((kind, batch) => {
          wait = 500;
          if (kind === "batch") on(batch);
          else if (kind === "trouble") throw new Refused(503, batch.error);
        }, seen);
      }, signal);
      if (last === "end") return state("The stream is sealed: nothing more comes.");
      if (last === null) continue;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status !== 503) return state(sentence(error));
      state(error instanceof Lost ? `Waiting for the ${error.whom}…` : sentence(error));
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 5000);
  }
}
