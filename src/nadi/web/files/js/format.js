// Formats numbers, times and sizes.

const UNITS = ["", "k", "M", "G", "T"];

export function short(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) < 1) return value.toPrecision(2).replace(/\.?0+$/, "");
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const text = Math.abs(value) >= 100 || (unit === 0 && Number.isInteger(value)) ? value.toFixed(0) : value.toPrecision(digits);
  return text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") + UNITS[unit];
}

export const bytes = (value) => (value === null || value === undefined ? "–" : withUnit(short(value)));
const withUnit = (text) => text.replace(/([kMGT]?)$/, " $1B");
// A rate, or 0 for the remainder of a decaying mean.
export const flow = (value) => (value < 0.05 ? 0 : value);
export const rate = (value) => `${bytes(flow(value))}/s`;
export const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

const two = (value) => String(value).padStart(2, "0");

export function clock(ms, { date = true, millis = false } = {}) {
  if (ms === null || ms === undefined) return "–";
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${date ? `${day} ` : ""}${time}${millis ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : ""}`;
}

// To and from the value of a datetime-local input, which has seconds.
export const toInput = (ms) => (ms === null ? "" : clock(ms).replace(" ", "T"));
export function fromInput(text) {
  const ms = text ? new Date(text).getTime() : NaN;
  return Number.isFinite(ms) ? ms : null;
}

// A time, with its date unless that is today.
export function when(ms) {
  if (ms === null || ms === undefined) return "–";
  return clock(ms, { date: new Date(ms).toDateString() !== new Date().toDateString() });
}

export function span(ms) {
  const s = Math.abs(ms) / 1000;
  if (s < 1) return `${Math.round(Math.abs(ms))} ms`;
  if (s < 100) return `${short(s, 2)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${short(s / 3600, 2)} h`;
  if (s < 86400 * 700) return `${short(s / 86400, 2)} days`;
  return `${short(s / 86400 / 365.25, 2)} years`;
}

// A segment's id as number.epoch
export function segment(id) {
  return `${id % 4294967296}.${Math.floor(id / 4294967296)}`;
}

export const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000, 600000, 900000,
  1800000, 3600000, 7200000, 10800000, 21600000, 43200000, 86400000, 172800000, 604800000,
];
const DAY = 86400000;

// About this many ticks {ms, text} for a time axis, at full local hours, days, months and years.
export function ticks(from, to, about) {
  const target = (to - from) / Math.max(about, 1);
  const marks = [];
  if (target <= STEPS[STEPS.length - 1]) {
    const step = STEPS.find((candidate) => candidate >= target) ?? STEPS[STEPS.length - 1];
    const offset = new Date(from).getTimezoneOffset() * 60000;
    for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) {
      marks.push({ ms: at, text: tickText(at, step) });
    }
    return marks;
  }
  const months = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600].find((candidate) => candidate * 30.4 * DAY >= target) ?? 1200;
  const begin = new Date(from);
  let month = begin.getFullYear() * 12 + begin.getMonth();
  month = Math.ceil(month / months) * months;
  for (; ; month += months) {
    const at = new Date(Math.floor(month / 12), month % 12, 1).getTime();
    if (!(at <= to)) return marks; // also for an invalid date
    const text = months % 12 ? `${Math.floor(month / 12)}-${two((month % 12) + 1)}` : String(Math.floor(month / 12));
    if (at >= from) marks.push({ ms: at, text });
  }
}

function tickText(ms, step) {
  const at = new Date(ms);
  const isMidnight = !(at.getHours() || at.getMinutes() || at.getSeconds() || at.getMilliseconds());
  if (step >= DAY || isMidnight) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  if (step >= 60000) return `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 1000) return clock(ms, { date: false });
  const digits = step >= 100 ? 1 : step >= 10 ? 2 : 3;
  return clock(ms, { date: false, millis: true }).slice(0, digits - 3 || undefined);
}
