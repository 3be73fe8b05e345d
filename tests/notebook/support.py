"""A notebook cell in a real browser: the widget's script, and the kernel's side."""

from __future__ import annotations

import base64
import queue
import time
from typing import Any

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.notebook.projector import Projector
from nadi.notebook.widget import script

_PAGE = """<!doctype html><meta charset=utf-8><title>a cell</title><body data-jp-theme-light="true"
style="background:#fff"><div id=cell></div><div id=other><table><tr><td>text</table></div>"""
_START = """async ({ script, traits }) => {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const widget = (await import(url)).default;
  const heard = new Set();
  const model = {
    get: (name) => traits[name],
    send: (content) => window.say(content),
    on: (name, act) => heard.add(act),
    off: (name, act) => heard.delete(act),
  };
  window.listening = () => heard.size;
  (async () => {
    for (;;) {
      for (const [head, body] of await window.hear()) {
        const bytes = Uint8Array.from(atob(body), (c) => c.charCodeAt(0));
        heard.forEach((act) => act(head, [new DataView(bytes.buffer)]));
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  })();
  window.end = await widget.render({ model, el: document.getElementById("cell") });
}"""


class Cell:
    """A page with a player, like a notebook's output."""

    def __init__(self, page: Any, manager: StreamManager, scope: str, stream: str = "meters", named: str = "") -> None:
        self.page = page
        self.troubles: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self._told: queue.SimpleQueue[tuple[dict[str, str], str]] = queue.SimpleQueue()
        self._thread, core = inside(manager)
        self.projector = Projector(core, scope, stream, self._tell)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda said: self.troubles.append(said.text) if said.type == "error" else None)
        page.on(
            "request", lambda asked: self.troubles.append(f"asked for {asked.url}") if "http" in asked.url[:5] else None
        )
        page.set_content(_PAGE)
        page.expose_function("say", self._say)
        page.expose_function("hear", self._hear)
        traits = {"scope": scope, "stream": stream, "slice": named, "height_px": 520}
        page.evaluate(_START, {"script": script(), "traits": traits})

    def _tell(self, head: dict[str, str], body: bytes) -> None:
        self._told.put((head, base64.b64encode(body).decode()))

    def _say(self, message: dict[str, Any]) -> None:
        self.asked.append(message)
        self._thread.call(self.projector.receive, message)

    def _hear(self) -> list[tuple[dict[str, str], str]]:
        return [self._told.get() for _ in range(self._told.qsize())]

    def until_idle(self) -> None:
        ends = time.monotonic() + 60
        while self._thread.result(self.projector.__len__):
            assert time.monotonic() < ends
            self.page.wait_for_timeout(20)
