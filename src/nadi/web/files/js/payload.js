// Events as they are shown: text, JSON with its keys and values told apart, or pictures.

import { el } from "./dom.js";
import { sizeOf } from "./pixels.js";

const MOST_CHARS = 2000; // of an event in a list
const MOST_PRETTY_CHARS = 16000; // of one that has a line for each value
const MOST_INDENTS = 40;
const MOST_PIXELS = 40e6; // of a picture: it takes four bytes for each

export function bytesOf(base64) {
  const raw = atob(base64);
  const made = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
  return made;
}

export function jsonOf(event) {
  if (event.text === undefined || event.sizeBytes) return undefined;
  if (event.json === undefined) {
    event.json = null;
    const first = event.text.trimStart()[0];
    if (first === "{" || first === "[" || (first >= "0" && first <= "9") || first === "-") {
      try {
        event.json = { value: JSON.parse(event.text) };
      } catch {
        // it only looked like it
      }
    }
  }
  return event.json?.value;
}

// The numbers in an event, by their paths: {"a.b": 1}. "" is that of an event which is a number.
export function numbersOf(value, before = "", found = {}, depth = 0) {
  if (typeof value === "number") found[before] = value;
  else if (value && typeof value === "object" && depth < 4 && Object.keys(found).length < 64) {
    for (const [key, inner] of Object.entries(value)) numbersOf(inner, before ? `${before}.${key}` : key, found, depth + 1);
  }
  return found;
}

// What is there: a name may have dots itself.
export function at(value, dotted) {
  if (dotted === "") return value;
  if (value === null || typeof value !== "object") return undefined;
  if (Object.hasOwn(value, dotted)) return value[dotted];
  for (let dot = dotted.indexOf("."); dot >= 0; dot = dotted.indexOf(".", dot + 1)) {
    const name = dotted.slice(0, dot);
    const found = Object.hasOwn(value, name) ? at(value[name], dotted.slice(dot + 1)) : undefined;
    if (found !== undefined) return found;
  }
  return undefined;
}

// A small file may be a huge picture: its size is read before it is unpacked.
export async function bitmapOf(event) {
  const bytes = bytesOf(event.base64);
  const size = sizeOf(bytes, event.media);
  if (!size || size[0] * size[1] > MOST_PIXELS) throw new RangeError("a picture that is too large, or none");
  return createImageBitmap(new Blob([bytes], { type: event.media }));
}

export function shown(event) {
  if (event.media) return pictureOf(event);
  if (event.base64 !== undefined) return el("span.body.soft", {}, hex(event.base64), more(event));
  const text = event.text.length > MOST_CHARS ? `${event.text.slice(0, MOST_CHARS)}…` : event.text;
  if (jsonOf(event) === undefined || text.length > 800) return el("span.body", {}, text, more(event));
  return el("span.body", {}, coloured(text));
}

const more = (event) => (event.sizeBytes ? el("span.quiet", {}, ` … ${event.sizeBytes.toLocaleString("en")} bytes in all`) : null);

function pictureOf(event) {
  const canvas = el("canvas", { role: "img", "aria-label": `picture, ${event.media}` });
  canvas.width = canvas.height = 1;
  bitmapOf(event).then((bitmap) => {
    const scale = Math.min(1, 240 / bitmap.width);
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
  }, () => canvas.replaceWith(el("span.quiet", {}, "a picture that can't be read")));
  return el("span.body", {}, canvas);
}

function hex(base64) {
  const raw = bytesOf(base64.slice(0, 256));
  return Array.from(raw.slice(0, 96), (byte) => byte.toString(16).padStart(2, "0")).join(" ") + (raw.length > 96 ? " …" : "");
}

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)/g;

function coloured(text) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(TOKEN)) {
    if (found.index > last) parts.push(text.slice(last, found.index));
    const kind = found[2] !== undefined ? "key" : found[3] !== undefined ? "lit" : "";
    parts.push(el(kind ? `span.${kind}` : "span", {}, found[1] ?? found[3]), found[2] ?? "");
    last = found.index + found[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}

// A line for each value, every one as it was written: numbers aren't rounded, and names keep their order.
export function pretty(event) {
  return event.text.length > MOST_PRETTY_CHARS ? event.text : coloured(indented(event.text));
}

const PART = /"(?:\\.|[^"\\])*"|[{}[\],:]|[^\s{}[\],:"]+/g;

function indented(json) {
  const parts = json.match(PART);
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, MOST_INDENTS))}`;
  return parts.map((part, i) => {
    if (part === ":") return ": ";
    if (part === ",") return part + line();
    if (part === "{" || part === "[") {
      depth += 1;
      return "}]".includes(parts[i + 1]) ? part : part + line();
    }
    if (part === "}" || part === "]") {
      depth -= 1;
      return "{[".includes(parts[i - 1]) ? part : line() + part;
    }
    return part;
  }).join("");
}
