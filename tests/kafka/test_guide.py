"""The guide's example of rows and cuts runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import nadi
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.support import Door, written


def test_the_guide(server: EmbeddedServer, manager: nadi.StreamManager, door: Door) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "cut_of" in block]
    door.create("guide", 2)
    for partition in range(2):
        written(door.producer(), "guide", [b"%d" % number for number in range(100)], partition=partition)
    here = {"StreamManager()": f"StreamManager({server.controller_uri!r})", "1200": "40", "1350": "60"}
    for printed, own in {**here, '"payments"': '"guide"'}.items():
        assert printed in example
        example = example.replace(printed, own)
    names: dict[str, object] = {}
    exec(compile(example, "docs/kafka.md", "exec"), names)
    assert len(names["rows"]) == 200  # type: ignore[arg-type]
    offsets = names["offsets"]
    assert isinstance(offsets, dict)
    assert offsets[0] <= 40
    assert offsets[1] <= 60
    assert "before-the-release" in [bookmark.name for bookmark in manager.bookmarks("kafka").list()]
