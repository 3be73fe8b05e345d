"""Servers of a cluster over a folder, each in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import nadi
from nadi.standalone.embedded import EmbeddedServer

CONTAINERS = 16


class Servers:
    """The servers; `running` has them by index, at which one can be restarted."""

    def __init__(self, folder: Path, containers: int) -> None:
        self._folder, self._containers, self._started = folder, containers, 0
        self.running: dict[int, EmbeddedServer] = {}

    def start(self, place: int) -> EmbeddedServer:
        self._started += 1
        cache = self._folder / f"cache-{self._started}"
        store = f"file://{self._folder / 'store'}"
        server = nadi.embedded(cache, store=store, containers=self._containers, environment={"NADI_LOG": "ERROR"})
        self.running[place] = server
        return server

    def kill(self, place: int) -> None:
        self.running.pop(place).kill()

    def stop(self, place: int) -> None:
        self.running.pop(place).stop()


@contextmanager
def servers(folder: Path, count: int, containers: int = CONTAINERS) -> Iterator[Servers]:
    """Start that many servers, with indices from 0. All see a new cluster, so each gets its share."""
    cluster = Servers(folder, containers)
    try:
        with ThreadPoolExecutor(count) as starting:
            list(starting.map(cluster.start, range(count)))
        yield cluster
    finally:
        for server in cluster.running.values():
            server.kill()
