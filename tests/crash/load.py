"""The load on a server that is killed: writers, transactions, a table, and readers that check everything.

Every event contains its key and its number under that key, 0, 1, 2, ..., so readers detect losses, duplicates and
changes of order. Each worker has a thread, and stores the acknowledgements it received.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol, TypeVar

from nadi.client import Ack, StreamManager, Transaction
from nadi.errors import ClosedError, RequestTimeoutError, UnavailableError
from nadi.model.streamcut import StreamCut

SCOPE, STREAM, TABLE = "crash", "events", "table"
ACK_TIMEOUT_S = 90.0
T = TypeVar("T")


class Worker:
    """A thread that repeats `step` until `finish`, which raises its errors."""

    def __init__(self, name: str, uri: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.manager = StreamManager(uri)
        self.name = name
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Stop, finish operations in flight, close the client."""
        self._stop.set()
        self._thread.join(2 * ACK_TIMEOUT_S)
        try:
            assert not self._thread.is_alive(), f"{self.name} hangs"
            self.check()
            self.settle()
        finally:
            self.manager.close()

    def abandon(self) -> None:
        """Stop, abandoning operations in flight: otherwise it would retry until the process ends."""
        self._stop.set()
        self.manager.close()
        self._thread.join(ACK_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
        except BaseException as error:  # re-raised in the test's thread
            self._error = error

    def pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def step(self) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        pass


class KeyedWriter(Worker):
    """Writes events under its own keys; `acknowledged` counts by key, in order."""

    def __init__(self, number: int, uri: str, seed: int, pause_s: float = 0.01) -> None:
        super().__init__(f"writer {number}", uri, seed)
        self.keys = [f"w{number}-{k}" for k in range(6)]
        self.written = dict.fromkeys(self.keys, 0)
        self.acknowledged = dict.fromkeys(self.keys, 0)
        self._pending: deque[tuple[Ack, str]] = deque()
        self._writer = self.manager.create_writer(SCOPE, STREAM, ack_timeout=ACK_TIMEOUT_S)
        self._pause_s = pause_s

    def step(self) -> None:
        for _ in range(self.random.randrange(1, 40)):
            key = self.random.choice(self.keys)
            size = 20_000 if self.random.random() < 0.005 else self.random.randrange(10, 300)
            event = f"{key}:{self.written[key]}:".encode().ljust(size, b".")
            self._pending.append((self._writer.write_event(event, key), key))
            self.written[key] += 1
        self._collect(wait=len(self._pending) > 20_000)
        self.pause(self._pause_s)

    def settle(self) -> None:
        self._writer.close(ACK_TIMEOUT_S)
        self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        while self._pending and (wait or self._pending[0][0].done()):
            ack, key = self._pending.popleft()
            ack.result(ACK_TIMEOUT_S)
            self.acknowledged[key] += 1


class TransactionalWriter(Worker):
    """Runs transactions one after another: some committed, some aborted.

    `committed` maps a transaction to its number of events by key; `uncertain` has those whose commit got no answer:
    they must be complete or absent.
    """

    def __init__(self, number: int, uri: str, seed: int) -> None:
        super().__init__(f"transactions {number}", uri, seed)
        self.keys = [f"t{number}-{k}" for k in range(3)]
        self.committed: dict[int, dict[str, int]] = {}
        self.uncertain: dict[int, dict[str, int]] = {}
        self.aborted: set[int] = set()
        self._to_await: list[tuple[int, Transaction]] = []
        self._count = 0
        self._writer = self.manager.create_transaction_writer(SCOPE, STREAM, ack_timeout=ACK_TIMEOUT_S)

    def step(self) -> None:
        try:
            txn = self._writer.begin_txn()
        except UnavailableError:
            return
        self._count += 1
        number, commits = self._count, self.random.random() < 0.7
        events: dict[str, int] = defaultdict(int)
        for index in range(self.random.randrange(1, 15)):
            key = self.random.choice(self.keys)
            verdict = "commit" if commits else "abort"
            txn.write_event(f"{key}:{number}:{index}:{verdict}:".encode().ljust(150, b"."), key)
            events[key] += 1
        try:
            txn.flush(ACK_TIMEOUT_S)
            if not commits:
                self.aborted.add(number)
                txn.abort()
                return
            self.uncertain[number] = events
            wait = self.random.random() < 0.5
            txn.commit(wait=wait, timeout=ACK_TIMEOUT_S)
        except UnavailableError:
            return
        self.committed[number] = self.uncertain.pop(number)
        if not wait:
            self._to_await.append((number, txn))
        self.pause(0.02)

    def settle(self) -> None:
        for number, txn in self._to_await[-100:]:
            for _ in range(600):
                status = txn.status()
                if status != "COMMITTING":
                    break
                threading.Event().wait(0.1)
            assert status == "COMMITTED", f"transaction {number} of {self.name} is {status} after its commit"


class TableWriter(Worker):
    """Counts up one key of a table; `acknowledged` ≤ stored value ≤ `tried`, and versions only grow."""

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__("table", uri, seed)
        self.acknowledged = self.tried = 0
        self._version = -1
        self._table = self.manager.table(SCOPE, TABLE)
        self._table.create()

    def step(self) -> None:
        self.tried += 1
        try:
            version = self._table.put(b"count", b"%d" % self.tried)
        except UnavailableError:
            return
        assert version > self._version, "a table's versions decreased"
        self._version, self.acknowledged = version, self.tried
        self._table.put(b"key-%d" % self.random.randrange(200), self.random.randbytes(100))
        self.pause(0.01)

    def value(self, manager: StreamManager) -> int:
        found = manager.table(SCOPE, TABLE).get(b"count")
        return int(found.value) if found else 0


@dataclass
class Ledger:
    """The events that one reader has seen; raises at the first invalid one."""

    events: int = 0
    next_number: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    transactions: dict[str, dict[tuple[str, int], int]] = field(default_factory=lambda: defaultdict(dict))
    last_of_key: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, event: bytes) -> None:
        self.events += 1
        key, number, rest = event.split(b":", 2)
        name = key.decode()
        if name.startswith("w"):
            expected = self.next_number[name]
            what = "a duplicate or out of order" if int(number) < expected else "events are missing before it"
            assert int(number) == expected, f"{name} has event {int(number)} where {expected} was expected: {what}"
            self.next_number[name] += 1
            return
        index, verdict, _ = rest.split(b":", 2)
        assert verdict == b"commit", f"transaction {int(number)} of {name} was aborted and is in the stream"
        place, last = (int(number), int(index)), self.last_of_key.get(name, (0, 0))
        assert place > last, f"{name} has event {place} of its transactions after {last}"
        self.last_of_key[name] = place
        counts = self.transactions[name[: name.index("-")]]
        counts[name, int(number)] = counts.get((name, int(number)), 0) + 1

    def check_transactions(self, number: int, writer: TransactionalWriter) -> None:
        """Check that committed transactions are complete, uncertain ones complete or absent, and no others exist."""
        found: dict[int, dict[str, int]] = defaultdict(dict)
        for (key, txn), count in self.transactions[f"t{number}"].items():
            found[txn][key] = count
        for txn, events in writer.committed.items():
            assert found.pop(txn, {}) == events, f"transaction {txn} of {writer.name} was committed but is incomplete"
        for txn, events in writer.uncertain.items():
            assert found.pop(txn, events) == events, f"transaction {txn} of {writer.name} is partially stored"
        assert not found, f"transactions {sorted(found)} of {writer.name} were never committed"


class TailReader(Worker):
    """Follows the stream over all kills and checks every event as it arrives."""

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__("tail reader", uri, seed)
        self.ledger = Ledger()
        self._reader = self.manager.create_reader(SCOPE, STREAM)

    def step(self) -> None:
        try:
            found = self._reader.next_block(0.2)
        except RequestTimeoutError:
            return
        assert found is not None, "the stream ended"
        for event in found[1]:
            self.ledger.take(event)


class StreamCycle(Worker):
    """Creates, writes, truncates, seals and deletes streams, one after another, over kills."""

    EVENTS, KEPT = 60, 25

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__("stream cycle", uri, seed)
        self.done = 0
        self._count = 0

    def step(self) -> None:
        self._count += 1
        name = f"short-{self._count}"
        self._insist(lambda: self.manager.create_stream(SCOPE, name, 2))
        events = [b"%d:%d" % (self._count, number) for number in range(self.EVENTS)]
        with self.manager.create_writer(SCOPE, name, ack_timeout=ACK_TIMEOUT_S) as writer:
            for event in events[: -self.KEPT]:
                writer.write_event(event, str(self.random.randrange(10)))
            writer.flush(ACK_TIMEOUT_S)
            cut = self._insist(lambda: self.manager.stream_info(SCOPE, name)).tail
            for event in events[-self.KEPT :]:
                writer.write_event(event, str(self.random.randrange(10)))
            writer.flush(ACK_TIMEOUT_S)
        self._insist(lambda: self.manager.truncate_stream(cut))
        info = self._insist(lambda: self.manager.stream_info(SCOPE, name))
        assert info.head.positions == cut.positions, f"{name} was truncated at {cut} but starts at {info.head}"
        found = {event.data for event in self.manager.read_events(SCOPE, name, end=info.tail)}
        assert found == set(events[-self.KEPT :]), f"{name} has {len(found)} events after its truncation"
        self._insist(lambda: self.manager.seal_stream(SCOPE, name))
        self._insist(lambda: self.manager.delete_stream(SCOPE, name))
        left = self._insist(lambda: self.manager.list_streams(SCOPE))
        assert name not in left, f"{name} was deleted but exists"
        self.done += 1
        self.pause(0.2)

    def _insist(self, call: Callable[[], T]) -> T:
        """Retry a call without an answer: each of these calls may be made twice."""
        deadline = time.monotonic() + ACK_TIMEOUT_S
        while True:
            try:
                return call()
            except UnavailableError as error:
                if time.monotonic() > deadline or (self._stop.is_set() and isinstance(error, ClosedError)):
                    raise
                self.pause(0.05)


class Digests:
    """A sha256 over each segment's events: a repeated read must give the same."""

    def __init__(self) -> None:
        self._by_segment: dict[int, _Hash] = defaultdict(sha256)

    def take(self, segment: int, offset: int, event: bytes) -> None:
        self._by_segment[segment].update(b"%d:%d:" % (offset, len(event)) + event)

    def result(self) -> dict[int, str]:
        return {segment: value.hexdigest() for segment, value in self._by_segment.items()}


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def read_slice(
    manager: StreamManager, start: StreamCut | None, end: StreamCut, *takers: Callable[[int, int, bytes], None]
) -> None:
    """Pass every event between two cuts to each receiver, as (segment, offset, event)."""
    for event in manager.read_events(SCOPE, STREAM, start=start, end=end):
        for take in takers:
            take(event.segment_id, event.offset, event.data)
