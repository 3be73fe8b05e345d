"""The widget's script: the modules of nadi's own page that the player is made of, and the one that puts it in a cell.

They are in it as they are. The browser makes an address of each, those that are imported first, and loads the last one.
"""

from __future__ import annotations

import json
import re
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files

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
    """The whole of it, a module of JavaScript."""
    sources = modules()
    own = files("nadi.notebook") / "files" / "widget.css"
    style = (files("nadi.web") / "files" / "style.css").read_text("utf-8")
    style = re.sub(r":root\[([^\]]*)\]", r":host([\1])", style).replace(":root", ":host") + own.read_text("utf-8")
    named = {"SOURCES": list(sources.items()), "STYLE": style}
    return "".join(f"const {name} = {json.dumps(value)};\n" for name, value in named.items()) + _SCRIPT


def modules() -> dict[str, str]:
    """Texts of the modules by their names, each after those that it imports."""
    page = files("nadi.web") / "files" / "js"
    texts = {"widget.js": (files("nadi.notebook") / "files" / "widget.js").read_text("utf-8")}
    imports: dict[str, list[str]] = {}
    waiting = ["widget.js"]
    while waiting:
        name = waiting.pop()
        texts.setdefault(name, "")
        texts[name] = texts[name] or (page / name).read_text("utf-8")
        imports[name] = _IMPORTED.findall(texts[name])
        waiting += [one for one in imports[name] if one not in texts]
    return {name: texts[name] for name in TopologicalSorter(imports).static_order()}
