"""The unfinished transactions in memory, and when their leases end.

Leases run on the monotonic clock, so setting the wall clock neither ends one nor keeps one alive. That clock means
nothing to the next process. So a start gives each open transaction its full lease again, since its client couldn't
ping meanwhile, up to what was left of its maximum lifetime at its last ping.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Transaction, TxnState
from nadi.controller.state.store import Versioned
from nadi.limits import TXN_GRACE_MS, TXN_MAX_EXECUTION_MS
from nadi.runtime import Runtime

# The lease that the Rust and Python clients always request. Their pinger handles one transaction per
# round, so with k open ones the last is pinged only after k leases.
_RUST_LEASE_MS = 90_000
_DEADLINES_MORE = 1_000  # than twice the open transactions, before those of others are dropped


@dataclass(slots=True)
class Live:
    """An unfinished transaction. The ends of its lease and of its maximum lifetime are on the monotonic clock.
    queued: it has its one entry among the deadlines."""

    record: Versioned[Transaction]
    lease_ends_ms: int
    life_ends_ms: int
    queued: bool = False

    @property
    def is_open(self) -> bool:
        return self.record.value.state is TxnState.OPEN


class Leases:
    """`len` is how many transactions are unfinished."""

    def __init__(self, clock: Runtime) -> None:
        self._clock = clock
        self._live: dict[str, dict[str, Live]] = {}
        self._deadlines: list[tuple[int, str, str]] = []  # (monotonic time, stream key, id), a heap
        self._deadlines_most = _DEADLINES_MORE

    def __len__(self) -> int:
        return sum(map(len, self._live.values()))

    def all(self) -> list[tuple[StreamName, str, Live]]:
        return [(StreamName.of(owner), text, held) for owner, mine in self._live.items() for text, held in mine.items()]

    def of(self, name: StreamName) -> Mapping[str, Live]:
        return self._live.get(name.key, {})

    def find(self, name: StreamName, text: str) -> Live | None:
        return self.of(name).get(text)

    def hold(self, name: StreamName, text: str, record: Versioned[Transaction]) -> None:
        """Hold the record as the newest. An open one's lease runs from now: it was just created, pinged or loaded."""
        now, stored = self._clock.monotonic_ms(), record.value
        mine = self._live.setdefault(name.key, {})
        held = mine.get(text)
        if held is None:
            held = mine[text] = Live(record, now, now + _life_left_ms(stored))
        elif held.record.version > record.version:
            return  # another change was faster
        held.record = record
        if not held.is_open:
            return
        held.lease_ends_ms = min(now + max(stored.lease_ms, 0), held.life_ends_ms)
        if not held.queued:
            held.queued = True
            self.put(held.lease_ends_ms, name, text)
            if len(self._deadlines) > self._deadlines_most:
                self._forget_deadlines()

    def end(self, name: StreamName, texts: Iterable[str]) -> None:
        """They are finished."""
        mine = self._live.get(name.key, {})
        for text in texts:
            mine.pop(text, None)
        if not mine:
            self._live.pop(name.key, None)

    def put(self, at_ms: int, name: StreamName, text: str) -> None:
        """Look at the transaction's lease then."""
        heapq.heappush(self._deadlines, (at_ms, name.key, text))

    def take_due(self, now_ms: int) -> tuple[StreamName, str, Live] | None:
        """The next open transaction whose lease has expired, to be `put` again if it stays open; None if none has."""
        while self._deadlines and self._deadlines[0][0] + TXN_GRACE_MS <= now_ms:
            _, owner, text = heapq.heappop(self._deadlines)
            name = StreamName.of(owner)
            held = self.find(name, text)
            if held is None or not held.is_open:
                continue
            allowed_ms = held.lease_ends_ms + self._grace_ms(name, held.record.value)
            if now_ms >= allowed_ms:
                return name, text, held
            self.put(max(allowed_ms - TXN_GRACE_MS, now_ms + 1), name, text)
        return None

    def _forget_deadlines(self) -> None:
        """Drop the deadlines of transactions that have ended: a lease may last a week."""
        self._deadlines = [(held.lease_ends_ms, name.key, text) for name, text, held in self.all() if held.is_open]
        heapq.heapify(self._deadlines)
        self._deadlines_most = _DEADLINES_MORE + 2 * len(self._deadlines)

    def _grace_ms(self, name: StreamName, held: Transaction) -> int:
        if held.lease_ms != _RUST_LEASE_MS:
            return TXN_GRACE_MS
        mine = self.of(name).values()
        others = sum(live.is_open and live.record.value.lease_ms == _RUST_LEASE_MS for live in mine)
        return max(others - 1, 0) * _RUST_LEASE_MS + TXN_GRACE_MS


def _life_left_ms(stored: Transaction) -> int:
    """How much longer it could have stayed open when it was created or last pinged: at least its lease at that time."""
    lease_ms = max(stored.lease_ms, 0)
    pinged_ms = stored.expires_ms - lease_ms
    return min(max(stored.max_ms - pinged_ms, lease_ms), TXN_MAX_EXECUTION_MS)
