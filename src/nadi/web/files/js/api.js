// Requests to the server, with the user's credentials added by this page. Cookies and credentials that browsers send by
// themselves aren't used, so that no other site can act on behalf of the user.

import { event } from "./events.js";
import { setServerTime } from "./now.js";
import { Lost, Refused } from "./problems.js";

export { Lost, Refused };

const STORAGE_KEY = "nadi-authorization";
const RESPONSE_MS = 20000; // longer than a server waits for another server
const HEARTBEAT_MS = 15000; // a server with events sends something every two seconds
let authorization = sessionStorage.getItem(STORAGE_KEY) ?? "";
let signingIn = null;
let isDeclined = false; // the user declined to sign in: ask again only after a reload
let lostSince = null;

export const changes = event(); // (isLost, since)
let requestSignIn = async () => false; // set by the shell: asks for credentials and calls `signIn`
export function onSignIn(handler) {
  requestSignIn = handler;
}

export function signIn(value, isKept) {
  authorization = value;
  if (isKept) sessionStorage.setItem(STORAGE_KEY, value);
  else sessionStorage.removeItem(STORAGE_KEY);
}

export function basic(user, password) {
  const raw = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...raw))}`;
}

// timeout: from `deadline`; also aborted by `signal`.
async function request(path, options, signal, timeout) {
  const headers = { ...(options.headers ?? {}) };
  const sent = authorization;
  if (sent) headers.Authorization = sent;
  let response;
  try {
    response = await fetch(path, { ...options, headers, signal: timeout?.signal, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (signal?.aborted) throw error;
    setLost(true);
    throw new Lost("the server doesn't respond");
  }
  if (response.status === 401) {
    timeout?.pause(); // signing in takes longer
    const isOther = sent !== authorization || (await signInOnce());
    timeout?.restart();
    if (isOther) return request(path, options, signal, timeout);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    setLost(response.status === 503 && !body.error);
    throw new Refused(response.status, body.error ?? `the server responded with status ${response.status}`);
  }
  setLost(false);
  setServerTime(Date.parse(response.headers.get("date")));
  return response;
}

// A signal for a request, aborted by the caller's signal or if the server sends nothing for too long. `restart` restarts
// the time limit, `pause` stops it; call `done` at the end.
function deadline(signal, ms) {
  const end = new AbortController();
  const stop = () => end.abort();
  let timer = 0;
  const timeout = {
    signal: end.signal,
    pause: () => clearTimeout(timer),
    restart() {
      timeout.pause();
      timer = setTimeout(stop, ms);
    },
    done() {
      timeout.pause();
      signal.removeEventListener("abort", stop);
    },
  };
  signal.addEventListener("abort", stop);
  if (signal.aborted) stop();
  timeout.restart();
  return timeout;
}

function signInOnce() {
  if (isDeclined) return false;
  signingIn ??= requestSignIn().then((is) => is || !(isDeclined = true)).finally(() => (signingIn = null));
  return signingIn;
}

function setLost(now) {
  if (now === (lostSince !== null)) return;
  lostSince = now ? Date.now() : null;
  changes.emit(now, lostSince);
}

export async function ask(path, signal) {
  const timeout = deadline(signal ?? new AbortController().signal, RESPONSE_MS);
  try {
    const response = await request(path, {}, signal, timeout);
    return await response.json();
  } catch (error) {
    if (signal?.aborted || error instanceof Refused || error instanceof Lost) throw error;
    setLost(true);
    throw new Lost("the server's response was interrupted");
  } finally {
    timeout.done();
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

// Reads server-sent events until they end or `signal` is aborted. Calls on(kind, data); returns the last kind.
export async function listen(path, on, signal) {
  const timeout = deadline(signal, HEARTBEAT_MS);
  let reader = null;
  let kind = "";
  let buffer = "";
  try {
    const response = await request(path, { headers: { Accept: "text/event-stream" } }, signal, timeout);
    reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      timeout.restart();
      const { value, done } = await reader.read();
      if (done) return kind;
      const messages = (buffer + value).split("\n\n");
      buffer = messages.pop();
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
    throw new Lost("the connection to the server was interrupted");
  } finally {
    timeout.done();
    reader?.cancel().catch(() => {});
  }
}

// Calls `work` periodically while the page is visible, until `signal` is aborted; passes errors to `failed`.
export function every(ms, work, failed, signal) {
  let timer = 0;
  let isRunning = false;
  let isRequested = false; // during `work`, whose result may be outdated
  async function round() {
    clearTimeout(timer);
    if (isRunning) isRequested = true;
    if (signal.aborted || isRunning) return;
    if (!document.hidden) {
      isRunning = true;
      isRequested = false;
      try {
        await work(signal);
      } catch (error) {
        if (!signal.aborted) failed(error);
      }
      isRunning = false;
    }
    timer = setTimeout(round, isRequested ? 0 : ms);
  }
  const onVisible = () => document.hidden || round();
  document.addEventListener("visibilitychange", onVisible, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  round();
  return round;
}

export function path(strings, ...parts) {
  return strings.reduce((joined, text, i) => joined + text + (i < parts.length ? encodeURIComponent(parts[i]) : ""), "");
}
