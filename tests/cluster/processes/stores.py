"""Shared stores of a cluster of processes: a folder, or a fake S3 that can be stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.cluster.processes.patience import PATIENCE_S, ROOT
from tests.cluster.processes.wires import Wire, Wires
from tests.support.ports import free_port


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}"

    def options(self, number: int) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


class S3Store:
    """Fake S3 in a separate process, with a wire to it for each server."""

    url = "s3://bucket/cluster"

    def __init__(self, folder: Path, wires: Wires) -> None:
        self._folder, self._port = folder, free_port()
        self._start()
        self._wires = wires
        self.wires: dict[int, Wire] = {}

    def _start(self) -> None:
        command = ["-m", "tests.support.fake_s3", "--port", str(self._port), "--folder", str(self._folder)]
        self._process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, process_group=0)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the fake S3 didn't start"

    def options(self, number: int) -> dict[str, str]:
        if number not in self.wires:
            self.wires[number] = self._wires.wire(("127.0.0.1", self._port))
        host, port = self.wires[number].address
        return {
            "endpoint": f"http://{host}:{port}",
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "us-east-1",
        }

    def faults(self, **changed: object) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/-/faults", json.dumps(changed).encode(), method="PUT"
        )
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def kill(self) -> None:
        """Kill the process. Its folder keeps all acknowledged objects for `restart`."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self._start()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
