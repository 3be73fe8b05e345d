"""The guide's chain of two queries: one is stopped and loses its checkpoint while the other continues."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import World

pytestmark = pytest.mark.spark
GUIDE = Path(__file__).parents[2] / "docs" / "spark-clusters.md"


def test_the_guides_chain(world: World, tmp_path: Path) -> None:
    for stream in ("raw", "cleaned", "by-sensor"):
        world.manager.create_stream("home", stream, 2)
    names: dict[str, Any] = {
        "spark": world.spark,
        "home": {"controller": world.uri, "scope": "home"},
        "folder": str(tmp_path),
    }
    written: list[int] = []

    def write() -> None:
        with world.manager.create_writer("home", "raw") as writer:
            for number in range(len(written), len(written) + 100):
                writer.write_event(b"  " if number % 10 == 0 else b" s%d,%d " % (number % 7, number), "k")
                written.append(number)

    write()
    (example,) = [
        code for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "def link" in code
    ]
    exec(example, names)
    first, second = names["clean"], names["by_sensor"]
    for query in (first, second):
        query.processAllAvailable()
    second.stop()
    shutil.rmtree(tmp_path / "by-sensor")
    write()
    first.processAllAvailable()
    second = names["link"]("cleaned", "by-sensor", names["keyed"])
    write()
    for query in (first, second):
        query.processAllAvailable()
        query.stop()
    end = world.manager.cuts("home", "by-sensor").tail()
    events = [event.data for event in world.manager.read_events("home", "by-sensor", end=end)]
    for sensor in range(7):
        mine = [int(event.split(b",")[1]) for event in events if event.startswith(b"s%d," % sensor)]
        assert mine == [number for number in written if number % 7 == sensor and number % 10]
    groups = set(world.manager.reader_group_manager("home").list_reader_groups())
    assert {"raw-to-cleaned", "cleaned-to-by-sensor"} <= groups
