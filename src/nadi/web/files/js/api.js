// What the server is asked: with the user's own credentials, put into each request by this page alone. No cookies, and
// nothing that a browser would send by itself, so no other site can act in the user's name.

import { event } from "./events.js";
import { serverTold } from "./now.js";
import { Lost, Refused } from "./problems.js";

export { Lost, Refused };

const KEPT = "nadi-authorization";
const ANSWER_MS = 20000; // a server that waits for another gives up before that
const SILENCE_MS = 15000; // of a server that tells events, of which something comes every two seconds
let authorization = sessionStorage.getItem(KEPT) ?? "";
let signingIn = null;
let isDeclined = false; // then nobody is asked again until the page is loaded anew
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

// over: aborted by `signal`, or when somebody's patience is at its end.
async function request(path, options, signal, over) {
  const headers = { ...(options.headers ?? {}) };
  const sent = authorization;
  if (sent) headers.Authorization = sent;
  let response;
  try {
    response = await fetch(path, { ...options, headers, signal: over?.signal, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (signal?.aborted) throw error;
    isLost(true);
    throw new Lost("the server does not answer");
  }
  if (response.status === 401) {
    over?.rest(); // somebody who signs in takes longer
    const isOther = sent !== authorization || (await whoIs());
    over?.more();
    if (isOther) return request(path, options, signal, over);
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    isLost(response.status === 503 && !told.error);
    throw new Refused(response.status, told.error ?? `the server answered with ${response.status}`);
  }
  isLost(false);
  serverTold(Date.parse(response.headers.get("date")));
  return response;
}

// A signal for a request: that of who asks, or of a server that says nothing for too long, as one that is stopped or
// whose network is cut. Its time begins anew with `more`, and `rest` ends it; `done` at last.
function patience(signal, ms) {
  const end = new AbortController();
  const stop = () => end.abort();
  let timer = 0;
  const over = {
    signal: end.signal,
    rest: () => clearTimeout(timer),
    more() {
      over.rest();
      timer = setTimeout(stop, ms);
    },
    done() {
      over.rest();
      signal.removeEventListener("abort", stop);
    },
  };
  signal.addEventListener("abort", stop);
  if (signal.aborted) stop();
  over.more();
  return over;
}

function whoIs() {
  if (isDeclined) return false;
  signingIn ??= askWho().then((is) => is || !(isDeclined = true)).finally(() => (signingIn = null));
  return signingIn;
}

function isLost(now) {
  if (now === (lostSince !== null)) return;
  lostSince = now ? Date.now() : null;
  changes.tell(now, lostSince);
}

export async function ask(path, signal) {
  const over = patience(signal ?? new AbortController().signal, ANSWER_MS);
  try {
    const response = await request(path, {}, signal, over);
    return await response.json();
  } catch (error) {
    if (signal?.aborted || error instanceof Refused || error instanceof Lost) throw error;
    isLost(true);
    throw new Lost("the server's answer broke off");
  } finally {
    over.done();
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
  const over = patience(signal, SILENCE_MS);
  let reader = null;
  let kind = "";
  let rest = "";
  try {
    const response = await request(path, { headers: { Accept: "text/event-stream" } }, signal, over);
    reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      over.more();
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
    if (signal.aborted || error instanceof Refused || error instanceof Lost) throw error;
    throw new Lost("the connection to the server broke off");
  } finally {
    over.done();
    reader?.cancel().catch(() => {});
  }
}

// Calls `work` every so often while the page is seen, until the signal; what fails is given to `failed` and tried again.
export function every(ms, work, failed, signal) {
  let timer = 0;
  let isAtWork = false;
  let isWanted = false; // meanwhile: what it finds may be older than that
  async function round() {
    clearTimeout(timer);
    if (isAtWork) isWanted = true;
    if (signal.aborted || isAtWork) return;
    if (!document.hidden) {
      isAtWork = true;
      isWanted = false;
      try {
        await work(signal);
      } catch (error) {
        if (!signal.aborted) failed(error);
      }
      isAtWork = false;
    }
    timer = setTimeout(round, isWanted ? 0 : ms);
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
