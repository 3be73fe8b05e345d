// What time it is where events get theirs: this machine's clock, unless the server's is another by more than it tells.

const LEAST_MS = 2000; // the server tells seconds, and they take a while to come
let ahead = 0;

export const serverNow = () => Date.now() + ahead;

export function serverTold(ms) {
  if (!Number.isFinite(ms)) return;
  const by = ms - Date.now();
  if (Math.abs(by - ahead) > LEAST_MS) ahead = Math.abs(by) > LEAST_MS ? by : 0;
}
