"""Spark's tasks backfill an index of a stream in parts, and each event is found once, whatever tasks do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nadi import search
from tests.search.support import event

from .conftest import World

pytest.importorskip("tantivy", reason="search needs tantivy")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
COUNT = 12_000  # before it begins; a twentieth more comes meanwhile


def write(world: World, stream: str, numbers: range) -> None:
    with world.manager.create_writer("home", stream) as writer:
        for number in numbers:
            writer.write_event(event(number), f"k{number % 50}")


def found(index: Any) -> Counter[int]:
    numbers: Counter[int] = Counter()
    after = None
    while True:
        page = index.query(order="oldest", limit=1_000, after=after)
        numbers.update(json.loads(hit.data)["ms"] for hit in page.hits)
        if (after := page.next) is None:
            return numbers


def test_tasks_that_fail_and_are_repeated_index_each_event_once(world: World, tmp_path: Path) -> None:
    manager = world.manager
    manager.create_stream("home", "logs", 2)
    indexes = search.indexes(manager, "home")
    indexes.create("logs", "message:text,ms:long", where=str(tmp_path / "shards"))
    write(world, "logs", range(COUNT // 3))
    manager.scale_stream("home", "logs", [0], [(0.0, 0.25), (0.25, 0.5)])
    write(world, "logs", range(COUNT // 3, COUNT * 2 // 3))
    halves = sorted(segment for segment in manager.cuts("home", "logs").tail().positions if segment > 1)
    manager.scale_stream("home", "logs", halves, [(0.0, 0.5)])
    write(world, "logs", range(COUNT * 2 // 3, COUNT))
    parts = search.backfill_parts(manager, "home", "logs", max_bytes=60_000)
    assert len(parts) > 10
    write(world, "logs", range(COUNT, COUNT * 21 // 20))

    def indexed(part: search.BackfillPart) -> tuple[int, bool]:
        """Fail the first attempt of every task after it is done, as if its result had been lost."""
        from pyspark import TaskContext

        is_new = part.index()
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() % 3 == 0:
            raise ConnectionError("killed once it was done")
        return os.getpid(), is_new

    environment = {**os.environ, "NADI_CONTROLLER": world.uri}
    command = [sys.executable, "-m", "nadi", "search", "run", "home", "logs"]
    indexer = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        done = world.spark.sparkContext.parallelize(parts, len(parts)).map(indexed).collect()
        assert len({process for process, _ in done}) > 1
        assert Counter(is_new for _, is_new in done)[False] == len(range(0, len(parts), 3))
        with indexes.open("logs", cache=tmp_path / "cache") as index:
            index.wait("tail", 150)
            assert found(index) == Counter(range(COUNT * 21 // 20))
    finally:
        indexer.terminate()
        assert indexer.wait(60) == 0
    status = indexes.status("logs")
    assert (status.backfill_bytes, status.lag_bytes, status.indexed) == (0, 0, COUNT * 21 // 20)


def test_backfill_as_in_the_guide(world: World, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "search.md").read_text(), re.DOTALL)
    (shown,) = (one for one in blocks if "parallelize" in one)
    world.manager.create_stream("home", "past", 2)
    indexes = search.indexes(world.manager, "home")
    indexes.create("past", "message:text,ms:long", where=str(tmp_path / "shards"))
    shown = shown.replace("StreamManager()", f"StreamManager({world.uri!r})").replace('"logs"', '"past"')
    program = compile(shown, "search.md", "exec")
    exec(program, {})  # of nothing
    write(world, "past", range(500))
    exec(program, {})
    exec(program, {})  # indexed events are omitted
    with indexes.open("past", cache=tmp_path / "cache") as index:
        index.wait("tail", 0)
        assert found(index) == Counter(range(500))
