"""The player widget: runs in a cell's output, and sends requests over its comm to a client in the kernel.

The kernel handles the browser's messages between cells. While a cell runs, responses to earlier requests still arrive,
and the player waits for others.

The widget's script embeds the modules of nadi's web page that the player uses, unchanged. The browser creates a URL for
each, in the order of imports, and loads the last.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any

import anywidget
import msgspec
import traitlets

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.errors import ClosedError
from nadi.notebook.projector import Projector, RefusalMessage, id_of

_IMPORTED = re.compile(r'^(?:import|export) .*? from "\./([\w-]+\.js)";$', re.MULTILINE)
_SCRIPT = """// nadi's player
const urls = {};
for (const [name, text] of SOURCES) {
  const linked = text.replace(/ from "\\.\\/([\\w-]+\\.js)";$/gm, (_, one) => ` from "${urls[one]}";`);
  urls[name] = URL.createObjectURL(new Blob([linked], { type: "text/javascript" }));
}
const { render } = await import(urls["widget.js"]);
Object.values(urls).forEach((url) => URL.revokeObjectURL(url));
export default { render: (given) => render(given, STYLE) };
"""


@cache
def script() -> str:
    """Build the widget's JavaScript module."""
    sources = modules()
    own = files("nadi.notebook") / "files" / "widget.css"
    style = (files("nadi.web") / "files" / "style.css").read_text("utf-8")
    style = re.sub(r":root\[([^\]]*)\]", r":host([\1])", style).replace(":root", ":host") + own.read_text("utf-8")
    named = {"SOURCES": list(sources.items()), "STYLE": style}
    return "".join(f"const {name} = {json.dumps(value)};\n" for name, value in named.items()) + _SCRIPT


def modules() -> dict[str, str]:
    """Return the modules' sources by name, each after its imports."""
    page = files("nadi.web") / "files" / "js"
    texts = {"widget.js": (files("nadi.notebook") / "files" / "widget.js").read_text("utf-8")}
    imports: dict[str, list[str]] = {}
    waiting = ["widget.js"]
    while waiting:
        name = waiting.pop()
        texts.setdefault(name, "")
        texts[name] = texts[name] or (page / name).read_text("utf-8")
        imports[name] = _IMPORTED.findall(texts[name])
        waiting += [imported for imported in imports[name] if imported not in texts]
    return {name: texts[name] for name in TopologicalSorter(imports).static_order()}


class PlayerWidget(anywidget.AnyWidget):
    """A stream player, created by `nadi.notebook.play`. slice: "" for the entire stream."""

    _esm = script()
    scope = traitlets.Unicode(read_only=True).tag(sync=True)
    stream = traitlets.Unicode(read_only=True).tag(sync=True)
    slice = traitlets.Unicode(read_only=True).tag(sync=True)
    height_px = traitlets.Int(read_only=True).tag(sync=True)

    def __init__(self, manager: StreamManager, scope: str, stream: str, name: str, height_px: int) -> None:
        self._is_over = False
        self._thread, core = inside(manager)
        self._projector = Projector(core, scope, stream, self._reply)
        for trait, value in (("scope", scope), ("stream", stream), ("slice", name), ("height_px", height_px)):
            self.set_trait(trait, value)
        super().__init__()  # sends the initial traits to the browser
        self.on_msg(self._received)

    def close(self) -> None:
        """Stop playing, and remove the widget from the notebook."""
        if not self._is_over:
            self._is_over = True
            with suppress(ClosedError):
                self._thread.call(self._projector.close)
        super().close()

    def __del__(self) -> None:
        # May run in any thread with any lock held, so don't call the client's thread; pending requests keep it alive.
        self._is_over = True
        super().__del__()

    def _received(self, _: Any, content: object, buffers: object) -> None:
        try:
            self._thread.call(self._projector.receive, content)
        except ClosedError as error:
            if (name := id_of(content)) is not None:
                refusal = RefusalMessage(400, f"{error}: open another client and create a player with it")
                self._reply({"id": name, "kind": "refused"}, msgspec.json.encode(refusal))

    def _reply(self, head: dict[str, str], body: bytes) -> None:
        """Send a response, usually in the client's thread; without effect on a closed widget."""
        self.send(head, buffers=[body])
