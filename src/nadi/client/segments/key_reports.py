"""Report the positions of written routing keys in the key space to the servers, about once a second.

A segment store doesn't see routing keys, so only writers know how a segment's load is distributed. All writers and
transactions of a client share one sampler per segment. A sampler picks events at random distances, which grow with the
number of events, so that up to LOAD_REPORT_POSITIONS keys represent all; between two picks an append costs one
subtraction and a clock read, and an event nothing. Few events are reported less often.

Reports go only to servers that accept them (`wire.knows`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from cachetools import LRUCache

from nadi.limits import LOAD_KEYS_WINDOW_S, LOAD_REPORT_POSITIONS
from nadi.model.keyspace import key_position
from nadi.naming import TRANSACTION_DELIMITER
from nadi.wire import commands as wire
from nadi.wire.load_reports import report_of_keys

REPORT_S = 1.0
_FEW_REPORT_S = 5.0  # interval while there are fewer events than a report can hold keys
_SAMPLERS = 4_096


class KeyReports:
    """The samplers of one client, by segment."""

    def __init__(self) -> None:
        self._samplers: LRUCache[str, KeySampler] = LRUCache(_SAMPLERS)

    def sampler(self, segment: str) -> KeySampler:
        """Return the sampler of a segment, or of a transaction segment's parent."""
        parent = segment.partition(TRANSACTION_DELIMITER)[0]
        sampler = self._samplers.get(parent)
        if sampler is None:
            sampler = self._samplers[parent] = KeySampler()
        return sampler


class KeySampler:
    """Sampler of one segment's routing keys. clock: seconds, monotonic. chance: a random number in [0, 1)."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._chance = clock, chance
        self._stride = 1  # average number of events from one pick to the next
        self._begin()

    def _begin(self) -> None:
        self._skip = 0  # events before the next pick
        self._keys: list[str | None] = []  # picked so far
        self._passed = 0  # events up to the next pick
        self._began_s = self._clock()
        self._due_s = self._began_s + REPORT_S

    def passed(
        self, writer_id: bytes, count: int, keys_of: Callable[[Sequence[int]], list[str | None]]
    ) -> wire.ReportKeys | None:
        """Count a sent append of `count` events; return a report to send after it, if one is due.

        keys_of: returns the routing keys of some of these events, given their ascending indexes.
        """
        self._skip -= count
        if (
            self._skip == -1 and len(self._keys) < LOAD_REPORT_POSITIONS
        ):  # the append's last event, and often its only one
            self._keys += keys_of((count - 1,))
            self._skip = int(self._chance() * (2 * self._stride - 1))
            self._passed += 1 + self._skip
        elif self._skip < 0:
            self._pick(count, keys_of)
        now_s = self._clock()
        return None if now_s < self._due_s else self._report(writer_id, now_s)

    def _pick(self, count: int, keys_of: Callable[[Sequence[int]], list[str | None]]) -> None:
        index = first = self._skip + count
        while len(self._keys) + (count - first) // self._stride >= 2 * LOAD_REPORT_POSITIONS:
            self._widen()
        indexes = []
        while index < count:
            indexes.append(index)
            index += 1 + int(self._chance() * (2 * self._stride - 1))
        self._keys += keys_of(indexes)
        self._passed += index - first
        self._skip = index - count

    def _widen(self) -> None:
        del self._keys[1::2]
        self._stride *= 2

    def _report(self, writer_id: bytes, now_s: float) -> wire.ReportKeys | None:
        events, since_s = self._passed - self._skip, now_s - self._began_s
        if events < LOAD_REPORT_POSITIONS and since_s < _FEW_REPORT_S:
            self._due_s = min(now_s + REPORT_S, self._began_s + _FEW_REPORT_S)
            return None
        while len(self._keys) > LOAD_REPORT_POSITIONS:
            self._widen()
        positions = [key_position(key) for key in self._keys if key is not None]
        picked = len(self._keys)
        self._stride = max(1, events // LOAD_REPORT_POSITIONS)
        self._begin()
        if not positions or since_s > LOAD_KEYS_WINDOW_S:
            return None  # no keys, or too old to be useful
        return report_of_keys(writer_id, max(1, events * len(positions) // picked), positions)
