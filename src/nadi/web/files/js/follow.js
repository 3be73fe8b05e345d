// Follows a stream's tail while the page is visible.

import { sentence } from "./dialogs.js";
import { Lost, Refused } from "./problems.js";

// Resolves to the result of `work(signal)`, or null if the page was hidden meanwhile. Browsers allow few connections per
// server, so hidden pages hold none. Starts when the page is visible.
export async function whileVisible(work, signal) {
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

// Calls `on(batch)` for each batch at the tail, and reconnects after interruptions; `state(text)` reports the state.
// listen(on, signal) starts at the tail.
export async function follow(listen, on, state, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      const last = await whileVisible((visible) => {
        state("");
        return listen((kind, batch) => {
          wait = 500;
          if (kind === "batch") on(batch);
          else if (kind === "trouble") throw new Refused(503, batch.error);
        }, visible);
      }, signal);
      if (last === "end") return state("The stream is sealed.");
      if (last === null) continue;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status !== 503) return state(sentence(error));
      state(error instanceof Lost ? `Waiting for the ${error.peer}…` : sentence(error));
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 5000);
  }
}
