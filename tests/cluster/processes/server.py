"""A server of the cluster: a process, and its successors at the same addresses."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO

import msgspec

from nadi.config import ServerConfig
from nadi.standalone.embedded import Ready, encoded
from tests.cluster.processes.patience import PATIENCE_S
from tests.cluster.processes.port_wires import PortWires
from tests.cluster.processes.stores import FolderStore, S3Store
from tests.support.ports import free_port


class Server:
    """Server with fixed addresses, so that its clients find it again after a restart."""

    def __init__(self, number: int, folder: Path, store: FolderStore | S3Store, containers: int) -> None:
        self.number, self.port, self.store_port, self.rest_port = number, free_port(), free_port(), free_port()
        self.log = folder / f"server-{number}.log"
        self._folder, self._store, self._containers = folder / f"cache-{number}", store, containers
        self.environment: dict[str, str] = {}
        self.port_wires: PortWires | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self.ready = Ready()

    @property
    def host(self) -> str:
        """Return the address known to clients and the other servers."""
        return "127.0.0.1" if self.port_wires is None else self.port_wires.host

    @property
    def uri(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    def begin(self) -> None:
        """Start a process, without waiting until it serves: see `await_ready`."""
        assert self.process is None
        config = ServerConfig(
            cache=self._folder,
            port=self.port,
            store_port=self.store_port,
            rest_port=self.rest_port,
            containers=self._containers,
            advertised_host=self.host,
            store=self._store.url,
            store_options=self._store.options(self.number),
        )
        with self.log.open("a") as log:
            log.write(f"--- started at {time.time():.3f}\n")
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nadi.standalone", encoded(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "NADI_LOG": "INFO", **self.environment},
                process_group=0,
            )

    def await_ready(self) -> None:
        line = _line(self._process.stdout, PATIENCE_S)
        assert line, f"server {self.number} isn't ready within {PATIENCE_S:.0f} s:\n{self.log_tail()}"
        self.ready = msgspec.json.decode(line, type=Ready)
        assert not self.ready.error, f"server {self.number} didn't start: {self.ready.error}\n{self.log_tail()}"

    def start(self) -> None:
        self.begin()
        self.await_ready()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"server {self.number} isn't running"
        return self.process

    def kill(self) -> None:
        self._process.kill()
        self._await_end(PATIENCE_S)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = PATIENCE_S) -> float:
        """Stop cleanly; return the duration in seconds."""
        began = time.monotonic()
        self.terminate()
        self._await_end(timeout_s)
        return time.monotonic() - began

    def ask(self, command: str) -> None:
        """Send the operator's command "drain" or "rebalance" by REST."""
        url = f"http://127.0.0.1:{self.rest_port}/v1/cluster/{command}"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=PATIENCE_S).close()

    def _await_end(self, timeout_s: float) -> None:
        process = self._process
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"server {self.number} still runs after {timeout_s:.0f} s:\n{self.log_tail()}"
            ) from None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self.process, self.is_paused = None, False
        if self.port_wires is not None:
            self.port_wires.refuse()

    def log_tail(self, most: int = 6000) -> str:
        return self.log.read_text()[-most:] if self.log.exists() else ""

    def last_logged(self, text: str) -> str:
        """Return the last line of its log that contains the text; "" if there is none."""
        lines = [line for line in self.log.read_text().splitlines() if text in line]
        return lines[-1] if lines else ""

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._await_end(PATIENCE_S)


def _line(pipe: IO[bytes] | None, timeout_s: float) -> bytes:
    assert pipe is not None
    readable, _, _ = select.select([pipe], [], [], timeout_s)
    return pipe.readline() if readable else b""
