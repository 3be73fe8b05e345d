"""Loads in processes of their own, and what must hold of all they were promised, whatever befell the servers:
acknowledged events are there, nothing is there twice, each key's events are in order, transactions are whole, and the
counter counts what was acknowledged."""

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
    """One for each of the servers at `places`, which it alone knows; `finish` ends them and checks all."""

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

    # --- while they run --------------------------------------------------------------------------------

    def check(self) -> None:
        """AssertionError if one of them saw what may not be."""
        for client in self.clients:
            client.check()

    def await_acknowledgements(self, limit_s: float = PATIENCE_S) -> float:
        """Return how long it is until each load has another event acknowledged; events on all containers, so in each
        load, keys wait for each container."""
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

    # --- the end ---------------------------------------------------------------------------------------

    def finish(self) -> Ledger:
        """End them, read the stream from its beginning, and check everything; return what was read."""
        self.settle()
        ledger, value = self.read()
        self.await_tails(ledger.events)
        check(ledger, value, self.promised())
        return ledger

    def settle(self) -> None:
        """Have them write no more, and wait until all they wrote is acknowledged."""
        for client in self.clients:
            client.tell()
        for client in self.clients:
            client.await_file("settled")

    def read(self) -> tuple[Ledger, int]:
        """All that is in the stream, and the counter."""
        uri = next(server.uri for server in self._cluster.servers if server.is_running and not server.is_paused)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with StreamManager(uri) as manager:
                    ledger = read_all(manager, STREAM)
                    found = manager.table(SCOPE, TABLE).get(b"count")
                    assert found is not None, "the counter is gone"
                    return ledger, int(found.value)
            except UnavailableError:
                assert time.monotonic() < deadline, "the stream can't be read"
                time.sleep(0.2)

    def await_tails(self, events: int) -> None:
        """Each load's own reader has to see all; it says so by its progress."""
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
    """From the stream's beginning to its present end; AssertionError at the first event that can't be."""
    ledger = Ledger()
    for event in manager.read_events(SCOPE, stream, end=manager.stream_info(SCOPE, stream).tail):
        ledger.take(event.data)
    return ledger


def check(ledger: Ledger, count: int, promised: Sequence[Promised]) -> None:
    """What was read at the end, the counter's value, and what each client was promised."""
    seen = dict(ledger.next_number)
    for one in promised:
        for key, written in one.written.items():
            acknowledged, found = one.acknowledged[key], seen.get(key, 0)
            assert acknowledged <= found <= written, f"{key}: {acknowledged} acknowledged, {found} found of {written}"
        if one.read is not None:
            assert one.read == seen, "a reader at the tail has seen something else"
            assert one.read_events == ledger.events, "a reader at the tail has seen transactions' events otherwise"
        for number, committed in one.committed.items():
            _check_transactions(ledger, number, committed, one.uncertain[number])
    known = {key for one in promised for key in one.written}
    strangers = seen.keys() - known
    assert not strangers, f"there are events under {sorted(strangers)}, and nobody wrote them"
    counted, doubtful = sum(one.counted for one in promised), sum(one.doubtful for one in promised)
    assert counted <= count <= counted + doubtful, f"the counter is {count}: {counted} counted, {doubtful} in doubt"


def _check_transactions(
    ledger: Ledger, number: int, committed: dict[int, dict[str, int]], uncertain: dict[int, dict[str, int]]
) -> None:
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for (key, txn), count in ledger.transactions[f"t{number}"].items():
        found[txn][key] = count
    for txn, events in committed.items():
        assert found.pop(txn, {}) == events, f"transaction {txn} of {number} was committed and is not whole"
    for txn, events in uncertain.items():
        assert found.pop(txn, events) == events, f"transaction {txn} of {number} is there in part"
    assert not found, f"transactions {sorted(found)} of {number} were never committed"
