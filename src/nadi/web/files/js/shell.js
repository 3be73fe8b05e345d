// The frame around every view: navigation, the server's health, theme, help and sign-in.

import * as api from "./api.js";
import { form, note, show, sentence } from "./dialogs.js";
import { el, fill, forgetColours, icon } from "./dom.js";
import { event } from "./events.js";
import { clock } from "./format.js";

export const themed = event();
const place = el("nav", { "aria-label": "Breadcrumb" });
const healthDot = el("span.dot");
const healthText = el("span", {}, "…");
const health = el("button.health", { type: "button", title: "Server health", onclick: showHealth }, healthDot, healthText);
let components = null;

export function start() {
  const logo = el("a.name", { href: "#/", "aria-label": "nadi: all streams" }, el("img", { src: new URL("../icon.svg", import.meta.url).href, width: 20, height: 20, alt: "" }), el("span", {}, "nadi"));
  fill(document.getElementById("bar"), logo, place, el("span.grow"), health,
    el("button.button.plain.icon", { type: "button", title: "Switch theme (t)", "aria-label": "Switch theme", onclick: otherTheme }, icon("theme")),
    el("button.button.plain.icon", { type: "button", title: "Keyboard shortcuts (?)", "aria-label": "Keyboard shortcuts", onclick: showHelp }, "?"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  setTheme();
  api.onSignIn(signIn);
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
    if (error instanceof api.Refused && error.status === 403) return healthIs("", "health requires permission");
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
  show("Health", components ? el("div.scroll", {}, el("table", {}, el("tbody", {}, rows))) : el("p", {}, "The server hasn't reported its health yet."));
}

function lost(isLost, since) {
  const banner = document.getElementById("banner");
  banner.hidden = !isLost;
  if (isLost) {
    healthIs("bad", "no response");
    fill(banner, `The server at ${location.host} hasn't responded since ${clock(since, { date: false })}. Retrying…`);
  }
}

// --- sign-in ---------------------------------------------------------------------------------------

async function signIn() {
  const done = await form({
    title: "Sign in",
    about: "This server requires authentication. Your credentials are sent only to it and are forgotten when this tab is closed.",
    fields: [
      { name: "user", label: "User", autocomplete: "username" },
      { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
      { name: "token", label: "or bearer token", type: "password" },
      { name: "kept", label: "Stay signed in until this tab is closed", type: "checkbox" },
    ],
    confirm: "Sign in",
    act: async ({ user, password, token, kept }) => {
      const authorization = token ? `Bearer ${token.trim()}` : api.basic(user, password);
      const headers = { Authorization: authorization };
      const response = await fetch("/v1/scopes", { headers, credentials: "omit", cache: "no-store" });
      if (response.status === 401) throw new Error((await response.json()).error);
      api.signIn(authorization, kept);
      return true;
    },
  });
  if (!done) note("Not signed in. Reload the page to sign in.", true);
  return Boolean(done);
}

// --- theme, help -----------------------------------------------------------------------------------

function setTheme(chosen = localStorage.getItem("nadi-theme")) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen ?? system;
  forgetColours();
  themed.emit();
}

export function otherTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("nadi-theme", next);
  setTheme(next);
}

export function showHelp() {
  const keys = [
    ["Space", "play or pause"], ["← →", "jump back or ahead; with Shift ten times as far"], [".", "next event"],
    ["[ ]", "slower or faster"], ["l", "live events"], ["b", "bookmark the selected or current moment"],
    ["/", "find a stream, or edit the query"], ["t", "switch theme"], ["?", "this help"],
  ];
  show("Keyboard shortcuts", el("dl.keys", {}, keys.map(([key, action]) => [el("dt", {}, key.split(" ").map((part) => [el("kbd", {}, part), " "])), el("dd", {}, action)])),
    el("p.soft", {}, "In a picture: click to select a moment, drag to select a range, wheel to zoom, Shift-drag to move."));
}

export function trouble(node, problem) {
  fill(node, el("div.pad", { role: "alert" }, el("p.bad", {}, sentence(problem))));
}
