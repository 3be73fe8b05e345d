"""Drive the reader of a streaming query like Spark, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nadi
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.streaming import StreamReader


@dataclass
class Home:
    uri: str
    manager: nadi.StreamManager

    def events(self, stream: str) -> list[nadi.client.Event]:
        """Return the stream's current events."""
        return list(self.manager.read_events("home", stream, end=self.manager.cuts("home", stream).tail()))


@contextmanager
def served(folder: Path, limits: str = "") -> Iterator[Home]:
    """A server with a scope."""
    with (
        nadi.embedded(folder, environment={"NADI_LIMITS": limits}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        yield Home(server.controller_uri, manager)


class Query:
    """A driver of a reader like Spark: each batch is planned, then read; restarts at any offset."""

    def __init__(self, home: Home, stream: str = "", **options: str) -> None:
        given = {"controller": home.uri, "scope": "home", **({"stream": stream} if stream else {}), **options}
        self.options = ReadOptions.from_spark(given, Use.READ_STREAM)
        self.reader = StreamReader(self.options)
        self.offsets = [self.reader.initialOffset()]
        self.batches: list[list[bytes]] = []

    def trigger(self) -> bool:
        """Run one batch; return False if there is nothing to read."""
        start = self.offsets[-1]
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return False
        self.batches.append(self.read(start, end))
        self.reader.commit(end)
        self.offsets.append(end)
        return True

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        partitions = list(self.reader.partitions(start, end))
        random.Random(len(self.batches)).shuffle(partitions)  # whichever task is first
        return [event for one in partitions for rows in self.reader.read(one) for event in rows.column(0).to_pylist()]

    def restart(self, at: int) -> None:
        self.reader = StreamReader(self.options)
        if at < len(self.batches):
            assert sorted(self.read(self.offsets[at], self.offsets[at + 1])) == sorted(self.batches[at])
        del self.offsets[at + 1 :], self.batches[at:]

    def run(self) -> list[bytes]:
        while self.trigger():
            assert len(self.batches) < 500, "the query never ends"
        return [event for batch in self.batches for event in batch]
