// Creates elements. Texts become text nodes, never markup, so that data from streams can't inject any.

export function el(name, props = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className += ` ${value}`;
    else if (key in node && key !== "list" && key !== "form") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const SHAPES = {
  play: "M4 2.5v11l9.5-5.5z",
  pause: "M3.5 2.5h3.2v11H3.5zM9.3 2.5h3.2v11H9.3z",
  back: "M8 3v10L1.5 8zM14.5 3v10L8 8z",
  ahead: "M1.5 3v10L8 8zM8 3v10l6.5-5z",
  step: "M3 2.5v11l7-5.5zM11 2.5h2.2v11H11z",
  theme: "M8 1.2a6.8 6.8 0 1 0 0 13.6a6.8 6.8 0 1 0 0-13.6zM8 2.6v10.8a5.4 5.4 0 1 1 0-10.8z",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "svg");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", SHAPES[name]);
  path.setAttribute("fill-rule", "evenodd");
  svg.append(path);
  return svg;
}

// Sizes a canvas to its place on the screen in device pixels; returns its scaled context, or null if it isn't visible.
export function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (!w || !h) return null;
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

let colours = {};
let root = document.documentElement; // its style defines the colours
export function coloursFrom(node) { // for the notebook's widget
  root = node;
  forgetColours();
}
export const theme = () => root.dataset.theme;
export function colour(name) {
  if (!colours[name]) { // empty before it is attached
    colours[name] = getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  }
  return colours[name];
}
export function forgetColours() {
  colours = {};
}
