// The server's time: this machine's clock, unless the server's differs by more than its resolution.

const LEAST_MS = 2000; // the server sends seconds, and the network takes time
let ahead = 0;

export const serverNow = () => Date.now() + ahead;

export function setServerTime(ms) {
  if (!Number.isFinite(ms)) return;
  const by = ms - Date.now();
  if (Math.abs(by - ahead) > LEAST_MS) ahead = Math.abs(by) > LEAST_MS ? by : 0;
}
