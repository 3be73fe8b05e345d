"""How far a query is behind the tails of its streams: what `reportLatestOffset` says, in bytes, events and seconds.

Bytes are exact. Events are these bytes by the mean size of the stream's events in the last 20 minutes, as the server
measures it. For how long the oldest unread event has waited is told by the segments' time indexes, to about a
twentieth, by this machine's clock. A query that keeps up asks for nothing; another asks once a second while it stands
still.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import NadiError
from nadi.limits import LAG_QUESTIONS, SPARK_LAG_EVERY_S, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.spark.reading.query.offsets import Offsets
from nadi.wire import commands as wire
from nadi.wire.moments import ARRIVAL

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Behind:
    """What lies between a query and the tail of a stream; None is unknown."""

    size_bytes: int = 0
    events: int | None = 0
    seconds: float | None = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.size_bytes, "events": self.events, "seconds": self.seconds}


class Lag:
    """The lag of one query."""

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._asked_at = 0.0
        self._known: tuple[Offsets, dict[str, StreamCut], dict[str, Behind]] | None = None

    async def report(self, at: Offsets, ends: Mapping[str, StreamCut | None], *, is_one: bool) -> dict[str, Any] | None:
        """The tails of the query's streams as an offset, with what lies before them and after `at`. ends: where the
        query ends in each stream that it isn't at the tail of, None for the tail. None if it can't be known now."""
        tails = {name: one.cut for name, one in at.streams.items()}
        behind = dict.fromkeys(tails, Behind())
        if ends:
            is_old = self._known is None or self._known[0] != at
            if is_old or time.monotonic() - self._asked_at >= SPARK_LAG_EVERY_S:
                try:
                    found = {name: await self._behind(at.streams[name].cut, end) for name, end in ends.items()}
                except NadiError as error:  # the next batch finds out what is wrong
                    _logger.warning("the lag of a query can't be told: %s", error)
                    return None
                tails |= {name: tail for name, (tail, _) in found.items()}
                behind |= {name: one for name, (_, one) in found.items()}
                self._asked_at, self._known = time.monotonic(), (at, tails, behind)
            assert self._known is not None
            _, tails, behind = self._known
        each = {name: {"cut": tails[name].as_text(), "behind": behind[name].to_json()} for name in sorted(tails)}
        if is_one:
            return next(iter(each.values()))
        return {"streams": each, "behind": _together(behind).to_json()}

    async def _behind(self, cut: StreamCut, end: StreamCut | None) -> tuple[StreamCut, Behind]:
        cuts = self._manager.cuts(cut.scope, cut.stream)
        tail = end or await cuts.tail()
        cut = await cuts.settled(cut)
        size = await cuts.bytes_between(cut, tail)
        if size == 0:
            return tail, Behind()
        loads = await self._manager.segment_loads(cut.scope, cut.stream)
        events, passed = (sum(rates[-1] for rates in found) for found in _rates(loads))
        seconds = await waited_s(stores_of(self._manager), cut)
        return tail, Behind(size, round(size * events / passed) if passed and events else None, seconds)


def _rates(loads: list[Any]) -> tuple[list[list[float]], list[list[float]]]:
    return [load.events_per_s for load in loads], [load.bytes_per_s for load in loads]


def _together(behind: Mapping[str, Behind]) -> Behind:
    events = [one.events for one in behind.values()]
    seconds = [one.seconds for one in behind.values() if one.seconds is not None]
    return Behind(
        sum(one.size_bytes for one in behind.values()),
        None if None in events else sum(one or 0 for one in events),
        max(seconds, default=0.0) if len(seconds) == len(behind) else None,
    )


async def waited_s(stores: SegmentStores, cut: StreamCut) -> float | None:
    """For how long the oldest event after a cut has waited, by this machine's clock; None if there are too many
    segments to ask."""
    now_ms = time.time_ns() // 1_000_000
    late_ms, early_ms, step_ms = now_ms, now_ms - TIME_INDEX_MOST_MS, TIME_INDEX_MOST_MS
    left = LAG_QUESTIONS
    suspects = [(segment, max(offset, 0)) for segment, offset in cut.positions.items()]

    async def waiting_at(at_ms: int) -> list[tuple[int, int]]:
        names = [segment_name(cut.scope, cut.stream, segment) for segment, _ in suspects]
        asked = (
            stores.ask(wire.LocateMoment(0, name, max(at_ms, 0), ARRIVAL, ""), wire.MomentLocated) for name in names
        )
        found = await asyncio.gather(*asked)
        return [one for one, reply in zip(suspects, found, strict=True) if reply.offset > one[1]]

    while early_ms > 0 and (left := left - len(suspects)) >= 0 and (found := await waiting_at(early_ms)):
        suspects, late_ms, step_ms = found, early_ms, step_ms * 2
        early_ms = now_ms - step_ms
    while left >= 0 and late_ms - max(early_ms, 0) > max(TIME_INDEX_MS, (now_ms - late_ms) // 20):
        left -= len(suspects)
        middle_ms = (late_ms + max(early_ms, 0)) // 2
        if found := await waiting_at(middle_ms):
            suspects, late_ms = found, middle_ms
        else:
            early_ms = middle_ms
    return None if left < 0 else (now_ms - late_ms) / 1000
