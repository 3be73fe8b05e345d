// What is around every view: the bar with where one is, the server's health, light and dark, help, and who one is.

import * as api from "./api.js";
import { form, note, show, sentence } from "./dialogs.js";
import { el, fill, forgetColours, icon } from "./dom.js";
import { event } from "./events.js";
import { clock } from "./format.js";

export const themed = event();
const place = el("nav", { "aria-label": "Where you are" });
const healthDot = el("span.dot");
const healthText = el("span", {}, "…");
const health = el("button.health", { type: "button", title: "The server's health", onclick: showHealth }, healthDot, healthText);
let components = null;

export function begin() {
  const logo = el("a.name", { href: "#/", "aria-label": "nadi: all streams" }, el("img", { src: new URL("../icon.svg", import.meta.url).href, width: 20, height: 20, alt: "" }), el("span", {}, "nadi"));
  fill(document.getElementById("bar"), logo, place, el("span.grow"), health,
    el("button.button.plain.icon", { type: "button", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: otherTheme }, icon("theme")),
    el("button.button.plain.icon", { type: "button", title: "Keys (?)", "aria-label": "Help: keys", onclick: showHelp }, "?"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  setTheme();
  api.whoAsks(askWho);
  api.changes.on(lost);
  const forever = new AbortController();
  api.every(5000, look, () => healthIs("", "health unknown"), forever.signal);
}

export function at(...steps) {
  fill(place, steps.map((step) => [el("span.sep", { "aria-hidden": "true" }, "/"), step.href ? el("a", { href: step.href }, step.text) : el("span", {}, step.text)]));
  document.title = steps.length ? `${steps.map((step) => step.text).join("/")} · nadi` : "nadi";
}

// --- health ----------------------------------------------------------------------------------------

async function look(signal) {
  try {
    components = await api.ask("/v1/health", signal);
  } catch (error) {
    if (error instanceof api.Refused && error.status === 403) return healthIs("", "health not permitted");
    throw error;
  }
  const kind = { UP: "good", STARTING: "warn", NEW: "warn" }[components.status] ?? "bad";
  healthIs(kind, components.status === "UP" ? "healthy" : components.status.toLowerCase());
}

function healthIs(kind, text) {
  healthDot.className = `dot ${kind}`;
  fill(healthText, text);
}

function showHealth() {
  const rows = [];
  const walk = (component, depth) => {
    const details = Object.entries(component.details).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`);
    const name = el("td.nowrap", {}, component.name);
    name.style.paddingLeft = `${12 + 16 * depth}px`;
    rows.push(el("tr", {}, name, el("td", { class: component.status === "UP" ? "good" : "bad" }, component.status.toLowerCase()), el("td.soft", {}, details.join(", "))));
    Object.values(component.children).forEach((child) => walk(child, depth + 1));
  };
  if (components) walk(components, 0);
  show("Health", components ? el("div.scroll", {}, el("table", {}, el("tbody", {}, rows))) : el("p", {}, "The server has not told yet."));
}

function lost(isLost, since) {
  const banner = document.getElementById("banner");
  banner.hidden = !isLost;
  if (isLost) {
    healthIs("bad", "no answer");
    fill(banner, `The server at ${location.host} has not answered since ${clock(since, { date: false })}. Trying again…`);
  }
}

// --- who -------------------------------------------------------------------------------------------

async function askWho() {
  const done = await form({
    title: "Sign in",
    about: "This server asks who you are. What you give here goes to it alone, and is forgotten when this tab is closed.",
    fields: [
      { name: "user", label: "User", autocomplete: "username" },
      { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
      { name: "token", label: "Or a bearer token", type: "password" },
      { name: "kept", label: "Keep it while this tab is open, also when it is loaded again", type: "checkbox" },
    ],
    confirm: "Sign in",
    act: async ({ user, password, token, kept }) => {
      const given = token ? `Bearer ${token.trim()}` : api.basic(user, password);
      const headers = { Authorization: given };
      const response = await fetch("/v1/scopes", { headers, credentials: "omit", cache: "no-store" });
      if (response.status === 401) throw new Error((await response.json()).error);
      api.signIn(given, kept);
      return true;
    },
  });
  if (!done) note("Nobody signed in: load the page again to do so.", true);
  return Boolean(done);
}

// --- light and dark, help --------------------------------------------------------------------------

function setTheme(chosen = localStorage.getItem("nadi-theme")) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen ?? system;
  forgetColours();
  themed.tell();
}

export function otherTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("nadi-theme", next);
  setTheme(next);
}

export function showHelp() {
  const keys = [
    ["Space", "play, pause"], ["← →", "jump back, ahead; with Shift ten times as far"], [".", "the next event"],
    ["[ ]", "slower, faster"], ["l", "live: what passes now"], ["b", "a bookmark at the chosen moment, or here"],
    ["/", "find a stream, or ask another query"], ["t", "light or dark"], ["?", "this"],
  ];
  show("Keys", el("dl.keys", {}, keys.map(([key, what]) => [el("dt", {}, key.split(" ").map((one) => [el("kbd", {}, one), " "])), el("dd", {}, what)])),
    el("p.soft", {}, "In a picture: click for a moment, drag for a stretch, wheel to zoom, Shift-drag to move."));
}

export function trouble(node, problem) {
  fill(node, el("div.pad", { role: "alert" }, el("p.bad", {}, sentence(problem))));
}
