// What the server is asked: with the user's own credentials, put into each request by this page alone. No cookies, and
// nothing that a browser would send by itself, so no other site can act in the user's name.

import { event } from "./events.js";
import { Lost, Refused } from "./problems.js";

export { Lost, Refused };

const KEPT = "nadi-authorization";
let authorization = sessionStorage.getItem(KEPT) ?? "";
let signingIn = null;
let lostSince = null;

export const changes = event(); // (isLost, since)
export let askWho = async () => false; // set by the shell: asks for credentials, and calls `signIn`
export function whoAsks(asks) {
  askWho = asks;
}

export const isSignedIn = () => authorization !== "";

export function signIn(value, isKept) {
  authorization = value;
  if (isKept) sessionStorage.setItem(KEPT, value);
  else sessionStorage.removeItem(KEPT);
}

export function basic(user, password) {
  const raw = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...raw))}`;
}

async function request(path, options, signal) {
  const headers = { ...(options.headers ?? {}) };
  if (authorization) headers.Authorization = authorization;
  let response;
  try {
    response = await fetch(path, { ...options, headers, signal, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (signal?.aborted) throw error;
    isLost(true);
    throw new Lost("the server does not answer");
  }
  if (response.status === 401 && (await whoIs())) return request(path, options, signal);
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    if (response.status === 503 && !told.error) isLost(true);
    throw new Refused(response.status, told.error ?? `the server answered with ${response.status}`);
  }
  isLost(false);
  return response;
}

function whoIs() {
  signingIn ??= askWho().finally(() => (signingIn = null));
  return signingIn;
}

function isLost(now) {
  if (now === (lostSince !== null)) return;
  lostSince = now ? Date.now() : null;
  changes.tell(now, lostSince);
}

export async function ask(path, signal) {
  const response = await request(path, {}, signal);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Lost("the server's answer broke off");
  }
}

export async function send(verb, path, body) {
  const options = { method: verb };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  const response = await request(path, options);
  return response.status === 204 ? null : response.json();
}

// Server-sent events, until they end or `signal` says so: calls on(kind, data), waits for nobody. Returns the last kind.
export async function listen(path, on, signal) {
  const response = await request(path, { headers: { Accept: "text/event-stream" } }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let kind = "";
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return kind;
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages) {
        let data = "";
        for (const line of message.split("\n")) {
          if (line.startsWith("event: ")) kind = line.slice(7);
          else if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (data) on(kind, JSON.parse(data));
      }
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Lost("the connection to the server broke off");
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Calls `work` every so often while the page is seen, until the signal; what fails is given to `failed` and tried again.
export function every(ms, work, failed, signal) {
  let timer = 0;
  let isAtWork = false;
  async function round() {
    clearTimeout(timer);
    if (signal.aborted || isAtWork) return;
    if (!document.hidden) {
      isAtWork = true;
      try {
        await work(signal);
      } catch (error) {
        if (!signal.aborted) failed(error);
      }
      isAtWork = false;
    }
    timer = setTimeout(round, ms);
  }
  const seen = () => document.hidden || round();
  document.addEventListener("visibilitychange", seen, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  round();
  return round;
}

export function path(strings, ...parts) {
  return strings.reduce((made, text, i) => made + text + (i < parts.length ? encodeURIComponent(parts[i]) : ""), "");
}
