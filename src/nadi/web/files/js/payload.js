// Renders events: text, JSON with highlighted keys and values, or pictures.

import { el } from "./dom.js";
import { sizeOf } from "./pixels.js";

const MOST_CHARS = 2000; // of an event in a list
const MOST_PRETTY_CHARS = 16000; // of an event with one line per value
const MOST_INDENTS = 40;
const MOST_PIXELS = 40e6; // of a picture, each taking four bytes

function bytesOf(base64) {
  const raw = atob(base64);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
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
        // not JSON after all
      }
    }
  }
  return event.json?.value;
}

// The numbers in an event by path: {"a.b": 1}; the path of the event itself is "".
export function numbersOf(value, before = "", numbers = {}, depth = 0) {
  if (typeof value === "number") numbers[before] = value;
  else if (value && typeof value === "object" && depth < 4 && Object.keys(numbers).length < 64) {
    for (const [key, inner] of Object.entries(value)) numbersOf(inner, before ? `${before}.${key}` : key, numbers, depth + 1);
  }
  return numbers;
}

// The value at a path; names may contain dots.
export function at(value, dotted) {
  if (dotted === "") return value;
  if (value === null || typeof value !== "object") return undefined;
  if (Object.hasOwn(value, dotted)) return value[dotted];
  for (let dot = dotted.indexOf("."); dot >= 0; dot = dotted.indexOf(".", dot + 1)) {
    const name = dotted.slice(0, dot);
    const inner = Object.hasOwn(value, name) ? at(value[name], dotted.slice(dot + 1)) : undefined;
    if (inner !== undefined) return inner;
  }
  return undefined;
}

// A small file may be a huge picture, so its size is read before it is decoded.
export async function bitmapOf(event) {
  const bytes = bytesOf(event.base64);
  const size = sizeOf(bytes, event.media);
  if (!size || size[0] * size[1] > MOST_PIXELS) throw new RangeError("the picture is too large or invalid");
  return createImageBitmap(new Blob([bytes], { type: event.media }));
}

export function shown(event) {
  if (event.media) return pictureOf(event);
  if (event.base64 !== undefined) return el("span.body.soft", {}, hex(event.base64), more(event));
  const text = event.text.length > MOST_CHARS ? `${event.text.slice(0, MOST_CHARS)}…` : event.text;
  if (jsonOf(event) === undefined || text.length > 800) return el("span.body", {}, text, more(event));
  return el("span.body", {}, coloured(text));
}

const more = (event) => (event.sizeBytes ? el("span.quiet", {}, ` … ${event.sizeBytes.toLocaleString("en")} bytes in total`) : null);

function pictureOf(event) {
  const canvas = el("canvas", { role: "img", "aria-label": `picture, ${event.media}` });
  canvas.width = canvas.height = 1;
  bitmapOf(event).then((bitmap) => {
    const scale = Math.min(1, 240 / bitmap.width);
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
  }, () => canvas.replaceWith(el("span.quiet", {}, "unreadable picture")));
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
  for (const token of text.matchAll(TOKEN)) {
    if (token.index > last) parts.push(text.slice(last, token.index));
    const kind = token[2] !== undefined ? "key" : token[3] !== undefined ? "lit" : "";
    parts.push(el(kind ? `span.${kind}` : "span", {}, token[1] ?? token[3]), token[2] ?? "");
    last = token.index + token[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}

// One line per value, each as written: numbers aren't rounded, and names keep their order.
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
