"""Loads in separate processes, and checks of the results against their acknowledgements: acknowledged events exist, no
event is duplicated, each key's events are in order, transactions are complete, and the counter has all acknowledged
updates.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence

from nadi.client import StreamManager
from nadi.errors import UnavailableError
from tests.cluster.processes.client import Client, Promised
from tests.cluster.processes.cluster import Cluster
from tests.cluster.processes.patience import PATIENCE_S
from tests.crash.load import SCOPE, STREAM, TABLE, Ledger

_SEGMENTS = 6


class Loads:
    """One load for each server at `places`, which it connects to exclusively; `finish` ends them and checks
    everything."""

    def __init__(self, cluster: Cluster, places: tuple[int, ...] = (0, 1), pause_s: float = 0.01) -> None:
        self._cluster = cluster
        with StreamManager(cluster.servers[places[0]].uri) as manager:
            manager.create_scope(SCOPE)
            manager.create_stream(SCOPE, STREAM, _SEGMENTS)
            table = manager.table(SCOPE, TABLE)
            table.create()
            table.put(b"count", b"0")
        self.clients = [
            Client(f"load {number}", self._command(place, number, pause_s), cluster.folder / f"load-{place}")
            for number, place in enumerate(places)
        ]

    def _command(self, place: int, number: int, pause_s: float) -> list[str]:
        uri, folder = self._cluster.servers[place].uri, self._cluster.folder / f"load-{place}"
        module = "tests.cluster.processes.load"
        return [sys.executable, "-m", module, uri, str(number), str(folder), str(pause_s)]

    # --- running ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if one of them has detected an error."""
        for client in self.clients:
            client.check()

    def await_acknowledgements(self, limit_s: float = PATIENCE_S) -> float:
        """Return the time until each load has another event acknowledged. Its keys are on all containers, so each must
        respond."""
        began = time.monotonic()
        before = self._acknowledged()
        while any(now <= then for now, then in zip(self._acknowledged(), before, strict=True)):
            assert time.monotonic() < began + limit_s, f"no acknowledgement within {limit_s:.0f} s"
            time.sleep(0.01)
        return time.monotonic() - began

    def _acknowledged(self) -> list[float]:
        self.check()
        return [client.progress().get("writes", 0) for client in self.clients]

    def run_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.check()
            time.sleep(0.05)

    # --- finishing -------------------------------------------------------------------------------------

    def finish(self) -> Ledger:
        """End the loads, read the stream from its beginning, and check everything; return the events read."""
        self.settle()
        ledger, value = self.read()
        self.await_tails(ledger.events)
        check(ledger, value, self.promised())
        return ledger

    def settle(self) -> None:
        """Stop writing, and wait until all writes are acknowledged."""
        for client in self.clients:
            client.signal()
        for client in self.clients:
            client.await_file("settled")

    def read(self) -> tuple[Ledger, int]:
        """Return all events of the stream, and the counter."""
        uri = next(server.uri for server in self._cluster.servers if server.is_running and not server.is_paused)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with StreamManager(uri) as manager:
                    ledger = read_all(manager, STREAM)
                    entry = manager.table(SCOPE, TABLE).get(b"count")
                    assert entry is not None, "the counter is missing"
                    return ledger, int(entry.value)
            except UnavailableError:
                assert time.monotonic() < deadline, "the stream can't be read"
                time.sleep(0.2)

    def await_tails(self, events: int) -> None:
        """Wait until each load's own reader has reported all events."""
        for client in self.clients:
            deadline = time.monotonic() + PATIENCE_S
            while (has := client.progress().get("reads", 0)) < events:
                client.check()
                assert time.monotonic() < deadline, f"the tail of {client.name} has {has:,} of {events:,} events"
                time.sleep(0.02)

    def promised(self) -> list[Promised]:
        return [client.promised() for client in self.clients]

    def close(self) -> None:
        for client in self.clients:
            client.close()


def read_all(manager: StreamManager, stream: str) -> Ledger:
    """Read from the stream's beginning to its current end; AssertionError at the first invalid event."""
    ledger = Ledger()
    for event in manager.read_events(SCOPE, stream, end=manager.stream_info(SCOPE, stream).tail):
        ledger.take(event.data)
    return ledger


def check(ledger: Ledger, count: int, promised: Sequence[Promised]) -> None:
    """Check the events read at the end and the counter's value against the clients' acknowledgements."""
    seen = dict(ledger.next_number)
    for promise in promised:
        for key, written in promise.written.items():
            acknowledged, found_count = promise.acknowledged[key], seen.get(key, 0)
            assert acknowledged <= found_count <= written, (
                f"{key}: {acknowledged} acknowledged, {found_count} found of {written}"
            )
        if promise.read is not None:
            assert promise.read == seen, "a tail reader has seen other events"
            assert promise.read_events == ledger.events, "a tail reader has seen other transactional events"
        for number, committed in promise.committed.items():
            _check_transactions(ledger, number, committed, promise.uncertain[number])
    known = {key for promise in promised for key in promise.written}
    strangers = seen.keys() - known
    assert not strangers, f"events under {sorted(strangers)} were never written"
    counted, doubtful = sum(item.counted for item in promised), sum(item.doubtful for item in promised)
    assert counted <= count <= counted + doubtful, f"the counter is {count}: {counted} counted, {doubtful} in doubt"


def _check_transactions(
    ledger: Ledger, number: int, committed: dict[int, dict[str, int]], uncertain: dict[int, dict[str, int]]
) -> None:
    stored: dict[int, dict[str, int]] = defaultdict(dict)
    for (key, txn), count in ledger.transactions[f"t{number}"].items():
        stored[txn][key] = count
    for txn, events in committed.items():
        assert stored.pop(txn, {}) == events, f"transaction {txn} of {number} was committed and is incomplete"
    for txn, events in uncertain.items():
        assert stored.pop(txn, events) == events, f"transaction {txn} of {number} is partial"
    assert not stored, f"transactions {sorted(stored)} of {number} were never committed"
