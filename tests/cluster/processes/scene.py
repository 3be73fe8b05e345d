"""Cluster with loads shared by all tests of a file: each test covers a line of the failure table, and begins once the
cluster works again after the previous one. All acknowledgements are checked at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.processes.cluster import Cluster, running
from tests.cluster.processes.history import Loads
from tests.cluster.processes.patience import PATIENCE_S
from tests.cluster.processes.server import Server

CONTAINERS = 4


class Scene:
    """Three servers; the loads connect to the first two."""

    def __init__(self, cluster: Cluster, loads: Loads) -> None:
        self.cluster, self.loads = cluster, loads

    def begin(self) -> dict[int, int]:
        """Wait until all servers work; return the owner of each container."""
        for server in self.cluster.servers:
            if not server.is_running:
                server.start()
        self.until(lambda: len(self.owned()) == CONTAINERS)
        self.loads.await_acknowledgements()
        return self.owned()

    def owned(self) -> dict[int, int]:
        return {container: server.number for container, server in self.cluster.owners().items()}

    def until(self, holds: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
        began = time.monotonic()
        while not holds():
            assert time.monotonic() < began + limit_s, f"condition not met within {limit_s:.0f} s"
            time.sleep(0.1)

    def until_replaced(self, server: Server) -> None:
        self.until(lambda: len(owned := self.owned()) == CONTAINERS and server.number not in owned.values())


@contextmanager
def scene(folder: Path, *, s3: bool) -> Iterator[Scene]:
    with running(folder, 3, s3=s3, containers=CONTAINERS) as cluster:
        loads = Loads(cluster)
        try:
            created = Scene(cluster, loads)
            created.begin()
            yield created
            created.begin()
            loads.finish()
        finally:
            loads.close()
