"""Loads in processes of their own, and what must hold of all they were promised, whatever befell the servers:
acknowledged events are there, nothing is there twice, each key's events are in order, transactions are whole, and the
counter counts what was acknowledged."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from nadi.client import StreamManager
from nadi.errors import UnavailableError
from tests.cluster.processes.cluster import PATIENCE_S, Cluster
from tests.cluster.processes.load import Progress, Promised
from tests.crash.load import SCOPE, STREAM, TABLE, Ledger

_ROOT = Path(__file__).parents[3]
_SEGMENTS = 6


class Loads:
    """One for each of the servers at `places`; `finish` ends them and checks all."""

    def __init__(self, cluster: Cluster, places: tuple[int, ...] = (0, 1)) -> None:
        self._cluster = cluster
        with StreamManager(cluster.servers[places[0]].uri) as manager:
            manager.create_scope(SCOPE)
            manager.create_stream(SCOPE, STREAM, _SEGMENTS)
            table = manager.table(SCOPE, TABLE)
            table.create()
            table.put(b"count", b"0")
        self.folders = [cluster.folder / f"load-{place}" for place in places]
        self._processes = [
            self._start(place, number, folder)
            for number, (place, folder) in enumerate(zip(places, self.folders, strict=True))
        ]

    def _start(self, place: int, number: int, folder: Path) -> subprocess.Popen[str]:
        folder.mkdir()
        command = ["-m", "tests.cluster.processes.load", self._cluster.servers[place].uri, str(number), str(folder)]
        with (folder / "said").open("w") as said:
            return subprocess.Popen(
                [sys.executable, *command], cwd=_ROOT, stdin=subprocess.PIPE, stderr=said, text=True, process_group=0
            )

    # --- while they run --------------------------------------------------------------------------------

    def check(self) -> None:
        """AssertionError if one of them saw what may not be."""
        for folder, process in zip(self.folders, self._processes, strict=True):
            if process.poll() is not None:
                said = (folder / "said").read_text()[-3000:]
                raise AssertionError(f"a load ended with {process.returncode}:\n{said}")

    def progress(self) -> list[Progress]:
        self.check()
        return [
            msgspec.json.decode((folder / "progress").read_bytes(), type=Progress)
            if (folder / "progress").exists()
            else Progress()
            for folder in self.folders
        ]

    def await_acknowledgements(self, limit_s: float = PATIENCE_S) -> float:
        """Return how long it is until each load has another event acknowledged; events on all containers, so in each
        load, keys wait for each container."""
        began = time.monotonic()
        before = [one.acknowledged for one in self.progress()]
        while any(now.acknowledged <= then for now, then in zip(self.progress(), before, strict=True)):
            assert time.monotonic() < began + limit_s, f"no acknowledgement within {limit_s:.0f} s"
            time.sleep(0.01)
        return time.monotonic() - began

    def run_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.check()
            time.sleep(0.05)

    # --- the end ---------------------------------------------------------------------------------------

    def _tell(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def _await(self, name: str) -> None:
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not all((folder / name).exists() for folder in self.folders):
            for folder, process in zip(self.folders, self._processes, strict=True):
                if process.poll() is not None and not (folder / name).exists():
                    self.check()
            assert time.monotonic() < deadline, f"a load has not {name} in time"
            time.sleep(0.02)

    def finish(self) -> Ledger:
        """End them, read the stream from its beginning, and check everything; return what was read."""
        self._tell()
        self._await("settled")
        ledger, value = self._read()
        self._await_tails(ledger.events)
        self._tell()
        self._await("promised")
        found = [msgspec.json.decode((folder / "promised").read_bytes(), type=Promised) for folder in self.folders]
        check(ledger, value, found)
        return ledger

    def _read(self) -> tuple[Ledger, int]:
        uri = next(server.uri for server in self._cluster.servers if server.is_running and not server.is_paused)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ledger = Ledger()
            try:
                with StreamManager(uri) as manager:
                    tail = manager.stream_info(SCOPE, STREAM).tail
                    for event in manager.read_events(SCOPE, STREAM, end=tail):
                        ledger.take(event.data)
                    found = manager.table(SCOPE, TABLE).get(b"count")
                    assert found is not None, "the counter is gone"
                    return ledger, int(found.value)
            except UnavailableError:
                assert time.monotonic() < deadline, "the stream can't be read"
                time.sleep(0.2)

    def _await_tails(self, events: int) -> None:
        """Each load's own reader has to see all; it says so by its progress."""
        deadline = time.monotonic() + PATIENCE_S
        while any(one.read < events for one in self.progress()):
            assert time.monotonic() < deadline, f"a tail has {self.progress()} of {events:,} events"
            time.sleep(0.02)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def check(ledger: Ledger, count: int, promised: list[Promised]) -> None:
    """What was read at the end, the counter's value, and what each load was promised."""
    for one in promised:
        for key, written in one.written.items():
            acknowledged, found = one.acknowledged[key], ledger.next_number[key]
            assert acknowledged <= found <= written, f"{key}: {acknowledged} acknowledged, {found} found of {written}"
        assert one.read == dict(ledger.next_number), "a reader at the tail has seen something else"
        assert one.read_events == ledger.events, "a reader at the tail has seen transactions' events otherwise"
        for number, committed in one.committed.items():
            _check_transactions(ledger, number, committed, one.uncertain[number])
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
