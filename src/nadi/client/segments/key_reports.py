"""What a client tells its servers of its writers' keys: where in the key space they are, about once a second.

A segment store sees no routing keys, so only writers can say where the load of a segment falls. All writers of a client
share one sampler for each segment, and so do the transactions on it. A sampler picks events at chance distances, wider
the more pass, so that a report has up to LOAD_REPORT_POSITIONS keys that stand for all; between two picks an append
costs one subtraction and a look at the clock, and an event nothing. Few events are reported less often.

Reports go only to servers that say they take them (`wire.knows`).
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
_FEW_REPORT_S = 5.0  # of fewer events than a report has keys
_SAMPLERS = 4_096


class KeyReports:
    def __init__(self) -> None:
        self._samplers: LRUCache[str, KeySampler] = LRUCache(_SAMPLERS)

    def sampler(self, segment: str) -> KeySampler:
        """That of the segment, or of a transaction's parent."""
        parent = segment.partition(TRANSACTION_DELIMITER)[0]
        sampler = self._samplers.get(parent)
        if sampler is None:
            sampler = self._samplers[parent] = KeySampler()
        return sampler


class KeySampler:
    """clock: seconds, monotonic. chance: a random number in [0, 1)."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._chance = clock, chance
        self._stride = 1  # from one pick to the next, on average
        self._begin()

    def _begin(self) -> None:
        self._skip = 0  # events before the next pick
        self._keys: list[str | None] = []  # those picked
        self._passed = 0  # events up to the next pick
        self._began_s = self._clock()
        self._due_s = self._began_s + REPORT_S

    def passed(
        self, writer_id: bytes, count: int, keys_of: Callable[[Sequence[int]], list[str | None]]
    ) -> wire.ReportKeys | None:
        """A writer has sent an append of `count` events; return a report to be sent after it, if one is due.

        keys_of: returns the routing keys of some of these events, given their places in ascending order.
        """
        self._skip -= count
        if self._skip < 0:
            self._pick(count, keys_of)
        now_s = self._clock()
        return None if now_s < self._due_s else self._report(writer_id, now_s)

    def _pick(self, count: int, keys_of: Callable[[Sequence[int]], list[str | None]]) -> None:
        place = first = self._skip + count
        while len(self._keys) + (count - first) // self._stride >= 2 * LOAD_REPORT_POSITIONS:
            self._widen()
        places = []
        while place < count:
            places.append(place)
            place += 1 + int(self._chance() * (2 * self._stride - 1))
        self._keys += keys_of(places)
        self._passed += place - first
        self._skip = place - count

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
            return None  # no keys, or too old to say anything
        return report_of_keys(writer_id, max(1, events * len(positions) // picked), positions)
