"""Shared state while the processes that change it, and the server, are killed: nothing is lost or done twice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from tests.support.ports import free_port

WORKER = Path(__file__).parent / "shared_worker.py"


class Worker:
    def __init__(self, uri: str, name: str) -> None:
        self.name = name
        self.rounds = 0  # that it has reported
        self._process = subprocess.Popen(
            [sys.executable, WORKER, uri, name], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )

    def await_rounds(self, count: int) -> None:
        """Return once it has reported `count` more rounds."""
        assert self._process.stdout is not None
        for _ in range(count):
            line = self._process.stdout.readline()
            assert line, f"{self.name} ended by itself"
            self.rounds = int(line)

    def kill(self) -> None:
        """End it as a crash would, and hear what it had reported."""
        if self._process.poll() is None:
            self._process.kill()
            output, _ = self._process.communicate()
            self.rounds = max([self.rounds, *map(int, output.split())])


@pytest.mark.crash
def test_workers_and_the_server_are_killed(tmp_path: Path) -> None:
    port = free_port()
    server = nadi.embedded(tmp_path, port=port)
    uri = server.controller_uri
    with StreamManager(uri) as manager:
        manager.create_scope("sc")
        for stream in ("counter", "journal", "counts"):
            manager.create_stream("sc", stream)
    workers = [Worker(uri, f"w{n}") for n in range(4)]
    try:
        for n in range(2):
            for worker in workers[n : n + 2]:
                worker.await_rounds(5)
            workers[n].kill()
            time.sleep(0.01 * n)  # so that the server dies at another point of the workers' rounds
            server.kill()
            server = nadi.embedded(tmp_path, port=port)
        for worker in workers[2:]:
            worker.await_rounds(5)
            worker.kill()
        with StreamManager(uri) as manager:
            counts = manager.shared_map("sc", "counts").as_dict()
            entries = [entry.decode().split() for entry in manager.journal("sc", "journal").entries()]
            total = manager.shared_counter("sc", "counter").value
    finally:
        for worker in workers:
            worker.kill()
        server.stop()
    for worker in workers:
        numbers = [int(number) for name, number in entries if name == worker.name]
        assert numbers == list(range(len(numbers)))
        assert worker.rounds <= counts[worker.name] <= len(numbers) <= worker.rounds + 1
    assert len(entries) <= total <= sum(worker.rounds + 1 for worker in workers)
