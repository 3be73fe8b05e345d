"""Spark query as a verifier: it copies the stream to another one by nadi's source and sink, exactly once. Its driver is
restarted after a failure, as an operator would, and resumes from the checkpoint.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time

from nadi.client import StreamManager
from tests.cluster.foreign_clients.verifier import TAIL_S, MissingError, check_same
from tests.cluster.processes.client import Client, Promised
from tests.cluster.processes.cluster import Cluster
from tests.cluster.processes.history import read_all
from tests.cluster.processes.patience import ROOT
from tests.crash.load import SCOPE, Ledger

COPIES = "copies"
_SEGMENTS = 3


class Spark:
    """Verifier that connects to the balancer."""

    name = "spark"

    def __init__(self, cluster: Cluster, pause_s: float) -> None:
        if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
            raise MissingError("Spark needs pyspark and Java: one of them isn't installed")
        self._uri = cluster.uri
        with StreamManager(self._uri) as manager:
            manager.create_stream(SCOPE, COPIES, _SEGMENTS)
        folder = cluster.folder / self.name
        command = [sys.executable, "-m", "tests.cluster.foreign_clients.spark_main", self._uri, COPIES, str(folder)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._client = Client("the Spark query", command, folder, {"PYTHONPATH": path})
        self._drivers, self._rows, self._is_signaled = 1, 0, False

    def check(self) -> None:
        if self._client.has_ended:
            self._client.restart()
            self._drivers += 1
            if self._is_signaled:
                self._client.signal()

    def progress(self) -> dict[str, float]:
        return self._client.progress() | {"drivers": self._drivers, "rows": self._rows}

    def settle(self) -> None:
        """Do nothing: it only copies events of others; see `verifier`."""

    def verify(self, ledger: Ledger) -> list[Promised]:
        self._client.signal()
        self._is_signaled = True
        deadline = time.monotonic() + TAIL_S
        while not (self._client.folder / "settled").exists():
            self.check()
            assert time.monotonic() < deadline, f"the Spark query doesn't reach the end:\n{self._client.output()}"
            time.sleep(0.1)
        with StreamManager(self._uri) as manager:
            copies = read_all(manager, COPIES)
        check_same(copies, ledger, "the Spark query's stream")
        self._rows = copies.events
        return []

    def close(self) -> None:
        self._client.close()
