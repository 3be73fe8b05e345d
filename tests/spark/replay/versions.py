"""Run a version of a job like Spark, without Spark: its offset log, its commit log, its state, and its death."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from nadi.spark.options.parsed import ReadOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.streaming import StreamReader
from tests.spark.queries import Home

STEPS = ("planned", "logged", "read", "sunk", "committed")


class Killed(Exception):
    pass


class Version:
    """A query that emits a batch's events only with the next one, like operators that wait for a watermark.

    Its checkpoint, its sinks' contents and its outcome outlive its reader.
    """

    def __init__(self, home: Home, mark: bytes, chance: random.Random) -> None:
        self._home, self._mark, self._chance = home, mark, chance
        self.offsets: list[dict[str, Any]] = []
        self._held: list[list[bytes]] = []  # after each batch that is committed
        self._sunk: dict[str, int] = {}  # by stream: the batch it has
        self._reader: StreamReader | None = None
        self.kills = 0

    def start(self, output: str, **options: str) -> None:
        self._output, self._given = output, {"controller": self._home.uri, "scope": "home", **options}
        self._reader = None

    def trigger(self, kills: float = 0.0) -> bool:
        """Run one batch, which may be killed at any step; return False if there is nothing to do."""
        try:
            return self._trigger(lambda _: self._die(kills))
        except Killed:
            self._reader = None
            self.kills += 1
            return True

    def _die(self, kills: float) -> None:
        if self._chance.random() < kills:
            raise Killed

    def _trigger(self, at: Callable[[str], None]) -> bool:
        reader = self._reader
        if reader is None:
            reader = self._reader = StreamReader(ReadOptions.from_spark(self._given, Use.READ_STREAM))
        if not self.offsets:
            self.offsets.append(reader.initialOffset())
        batch = len(self._held)
        if len(self.offsets) == batch + 1:
            end = reader.latestOffset(self.offsets[-1], reader.getDefaultReadLimit())
            if end == self.offsets[-1]:
                return False
            at("planned")
            self.offsets.append(end)
            at("logged")
        partitions = reader.partitions(*self.offsets[batch : batch + 2])
        events = [event for one in partitions for rows in reader.read(one) for event in rows.column(0).to_pylist()]
        at("read")
        self._sink(batch, self._held[-1] if self._held else [])
        at("sunk")
        self._held.append(events)
        at("committed")
        return True

    def _sink(self, batch: int, events: list[bytes]) -> None:
        if self._sunk.get(self._output, -1) >= batch:
            return
        with self._home.manager.create_writer("home", self._output) as writer:
            for event in events:
                writer.write_event(event + self._mark, event.split(b":")[0].decode())
        self._sunk[self._output] = batch
