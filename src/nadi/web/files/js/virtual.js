// A list of any length that only creates visible rows: a few dozen elements, reused while scrolling.

import { el } from "./dom.js";

export function virtualList({ rowHeight, make, label }) {
  const space = el("div.space", { role: "presentation" });
  const scroller = el("div.scroller", { role: "list", "aria-label": label, tabIndex: -1 }, space);
  const pool = []; // {node, update, index}
  let items = [];
  let waiting = 0;

  function draw() {
    waiting = 0;
    const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - 4);
    const last = Math.min(items.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / rowHeight) + 4);
    while (pool.length < last - first) {
      const row = make();
      row.node.setAttribute("role", "listitem");
      pool.push(row);
      space.append(row.node);
    }
    // each row of the pool takes the indexes with its remainder, so that a visible item keeps its element
    const size = pool.length;
    for (let i = 0; i < size; i++) {
      const index = first + ((((i - first) % size) + size) % size);
      const row = pool[i];
      row.node.hidden = index >= last;
      if (index >= last) continue;
      row.node.style.top = `${index * rowHeight}px`;
      row.node.setAttribute("aria-posinset", index + 1);
      row.node.setAttribute("aria-setsize", items.length);
      row.update(items[index], index);
    }
  }

  function later() {
    waiting ||= requestAnimationFrame(draw);
  }
  scroller.addEventListener("scroll", later, { passive: true });
  new ResizeObserver(later).observe(scroller);

  scroller.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    const row = pool.find((entry) => entry.node === document.activeElement);
    if (!step || !row) return;
    event.preventDefault();
    event.stopPropagation();
    const index = Math.min(Math.max(Number(row.node.getAttribute("aria-posinset")) - 1 + step, 0), items.length - 1);
    const top = index * rowHeight;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    if (top + rowHeight > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + rowHeight - scroller.clientHeight;
    draw();
    pool.find((entry) => !entry.node.hidden && Number(entry.node.getAttribute("aria-posinset")) === index + 1)?.node.focus({ preventScroll: true });
  });

  return {
    node: scroller,
    show(all) {
      items = all;
      space.style.height = `${items.length * rowHeight}px`;
      draw();
    },
    redraw: draw,
  };
}
