"""One role of the official Python client: writing, transacting or reading.

    python -m tests.cluster.foreign_clients.official_python_main ROLE URI NUMBER PAUSE_S FOLDER

See `official_python`, and `tests.cluster.processes.client` for the files written to FOLDER.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pravega_client

from tests.cluster.processes.client import Promised, put
from tests.crash.load import SCOPE, STREAM

_IN_FLIGHT = 100
_BATCHES = 10  # of events before each flush
_PATIENCE_S = 180.0
_FAILED = (Exception, BaseException)  # the client's panics aren't Exceptions


class Commands:
    """Commands to this process, by lines on its standard input."""

    def __init__(self) -> None:
        self.settle, self.end = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for event in (self.settle, self.end):
            sys.stdin.readline()
            event.set()


class Writing:
    """Writer of events under its own keys; flushed events count as acknowledged."""

    def __init__(self, manager: Any, number: int, pause_s: float, folder: Path) -> None:
        self._manager, self._name, self._pause_s, self._folder = manager, f"w{number}", pause_s, folder
        self._generation = 0
        self.promised = Promised()
        self._begin()

    def _begin(self) -> None:
        suffix = f"g{self._generation}" if self._generation else ""
        self._keys = [f"{self._name}-{key}{suffix}" for key in range(6)]
        self.promised.written |= dict.fromkeys(self._keys, 0)
        self.promised.acknowledged |= dict.fromkeys(self._keys, 0)
        self._writer = None

    def run(self, commands: Commands) -> None:
        while not commands.settle.is_set():
            try:
                if self._writer is None:
                    self._writer = self._manager.create_writer(SCOPE, STREAM, max_inflight_events=_IN_FLIGHT)
                self._write_events(self._writer)
            except _FAILED as error:
                print(f"the writer failed: {error!r}", file=sys.stderr, flush=True)
                self._generation += 1
                self._begin()
                time.sleep(self._pause_s)
            acknowledged = sum(self.promised.acknowledged.values())
            put(self._folder / "progress", {"writes": acknowledged, "given up": self._generation})
        put(self._folder / "settled", True)

    def _write_events(self, writer: Any) -> None:
        for _ in range(_BATCHES):
            for _ in range(random.randrange(1, 20)):
                key = random.choice(self._keys)
                event = f"{key}:{self.promised.written[key]}:"
                self.promised.written[key] += 1
                writer.write_event_bytes(event.encode().ljust(random.randrange(10, 300), b"."), routing_key=key)
            time.sleep(self._pause_s)
        writer.flush()
        for key in self._keys:
            self.promised.acknowledged[key] = self.promised.written[key]


class Transacting:
    """Writer of transactions, like the Java client's: an unanswered commit is retried."""

    def __init__(self, manager: Any, number: int, pause_s: float, folder: Path) -> None:
        self._manager, self._number, self._pause_s, self._folder = manager, number, pause_s, folder
        self._committed: dict[int, dict[str, int]] = {}
        self._uncertain: dict[int, dict[str, int]] = {}
        self._count = self._failed = 0
        self.promised = Promised(committed={number: self._committed}, uncertain={number: self._uncertain})

    def run(self, commands: Commands) -> None:
        writer = None
        while not commands.settle.is_set():
            try:
                if writer is None:
                    writer = self._manager.create_transaction_writer(SCOPE, STREAM, self._number)
                self._run_transaction(writer)
            except _FAILED as error:
                print(f"transaction {self._count} failed: {error!r}", file=sys.stderr, flush=True)
                self._failed += 1
                writer = None
            put(self._folder / "progress", {"commits": len(self._committed), "transactions failed": self._failed})
            time.sleep(self._pause_s)
        put(self._folder / "settled", True)

    def _run_transaction(self, writer: Any) -> None:
        self._count += 1
        number, commits = self._count, random.random() < 0.7
        transaction = writer.begin_txn()
        events: dict[str, int] = defaultdict(int)
        for index in range(random.randrange(1, 15)):
            key = f"t{self._number}-{random.randrange(3)}"
            verdict = "commit" if commits else "abort"
            transaction.write_event_bytes(f"{key}:{number}:{index}:{verdict}:".encode().ljust(150, b"."), key)
            events[key] += 1
        if not commits:
            transaction.abort()
            self.promised.aborted += 1
            return
        self._uncertain[number] = dict(events)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                transaction.commit()
                break
            except pravega_client.TxnFailedException:
                raise  # an earlier attempt may have succeeded
            except _FAILED as error:
                print(f"the commit of transaction {number} has no answer: {error!r}", file=sys.stderr, flush=True)
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._committed[number] = self._uncertain.pop(number)


class Reading:
    """Single reader of a group; of a new group after a failure."""

    def __init__(self, manager: Any, folder: Path) -> None:
        self._manager, self._folder = manager, folder
        self._events = self._groups = 0

    def run(self, commands: Commands) -> None:
        while not commands.end.is_set():
            name = f"python-{self._groups}"
            self._groups += 1
            try:
                asyncio.run(self._read(name, commands))
            except _FAILED as error:
                print(f"the reader of {name} failed: {error!r}", file=sys.stderr, flush=True)
                time.sleep(0.5)

    async def _read(self, name: str, commands: Commands) -> None:
        group = self._manager.create_reader_group(name, SCOPE, STREAM)
        reader = group.create_reader("reader")
        self._events = 0
        with (self._folder / f"read-{self._groups - 1}").open("wb") as file:
            while not commands.end.is_set():
                segment_slice = await reader.get_segment_slice_async()
                for event in segment_slice:
                    file.write(bytes(event.data()).rstrip(b".") + b"\n")
                    self._events += 1
                file.flush()
                reader.release_segment(segment_slice)
                put(self._folder / "progress", {"reads": self._events, "groups": self._groups})


def main(role: str, uri: str, number: int, pause_s: float, folder: Path) -> None:
    manager, commands = pravega_client.StreamManager(uri), Commands()
    if role == "reading":
        Reading(manager, folder).run(commands)
        return
    kind = Writing if role == "writing" else Transacting
    work = kind(manager, number, pause_s, folder)
    work.run(commands)
    commands.end.wait()
    put(folder / "promised", work.promised)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
