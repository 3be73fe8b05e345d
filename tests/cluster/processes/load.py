"""Load on a cluster, in a separate process that is never killed: writers, transactions, counters and a reader.

    python -m tests.cluster.processes.load URI NUMBER FOLDER PAUSE_S

Each event carries its key and its number under that key, as in `tests.crash.load`, which provides the workers. `client`
describes the files written to FOLDER. PAUSE_S: pause between the writer's batches of events.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from nadi.errors import ConditionFailedError, UnavailableError
from tests.cluster.processes.client import Promised, put
from tests.crash.load import SCOPE, TABLE, KeyedWriter, TailReader, TransactionalWriter, Worker

_POLL_S = 0.02


class Counter(Worker):
    """Worker that increments one key of a table, concurrently with others, by conditional updates of the version it
    read."""

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__("counter", uri, seed)
        self.counted = self.doubtful = 0
        self._seen = -1
        self._table = self.manager.table(SCOPE, TABLE)

    def step(self) -> None:
        try:
            entry = self._table.get(b"count")
            assert entry is not None, "the counter is missing"
            value, version = int(entry.value), entry.version
            assert value >= self._seen, f"the counter went back from {self._seen} to {value}"
            self._seen = value
        except UnavailableError:
            self.pause(0.05)
            return
        try:
            self._table.put(b"count", b"%d" % (value + 1), version=version)
            self.counted += 1
        except ConditionFailedError:
            pass  # another worker was faster
        except UnavailableError:
            self.doubtful += 1
        self.pause(0.02)


class Load:
    def __init__(self, uri: str, number: int, folder: Path, pause_s: float) -> None:
        base = 10 * number
        self.folder = folder
        self.writer = KeyedWriter(base, uri, base, pause_s)
        self.transactions = TransactionalWriter(base, uri, base + 1)
        self.counter, self.tail = Counter(uri, base + 2), TailReader(uri, base + 3)
        self.workers: list[Worker] = [self.writer, self.transactions, self.counter, self.tail]
        self._number = base

    def run(self) -> None:
        signals = [threading.Event(), threading.Event()]

        def listen() -> None:
            for event in signals:
                sys.stdin.readline()
                event.set()

        threading.Thread(target=listen, daemon=True).start()
        for worker in self.workers:
            worker.start()
        self._report_until(signals[0])
        for worker in self.workers[:-1]:
            worker.finish()
        put(self.folder / "settled", True)
        self._report_until(signals[1])  # the reader may not have reached the end yet
        self.tail.finish()
        ledger = self.tail.ledger
        promised = Promised(
            self.writer.written,
            self.writer.acknowledged,
            {self._number: self.transactions.committed},
            {self._number: self.transactions.uncertain},
            len(self.transactions.aborted),
            self.counter.counted,
            self.counter.doubtful,
            dict(ledger.next_number),
            ledger.events,
        )
        put(self.folder / "promised", promised)

    def _report_until(self, over: threading.Event) -> None:
        while not over.wait(_POLL_S):
            for worker in self.workers:
                worker.check()
            progress = {
                "writes": sum(self.writer.acknowledged.values()),
                "commits": len(self.transactions.committed),
                "counts": self.counter.counted,
                "reads": self.tail.ledger.events,
            }
            put(self.folder / "progress", progress)


if __name__ == "__main__":
    Load(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])).run()
