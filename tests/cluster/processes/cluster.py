"""The processes of a cluster: its store, its servers, and what befalls them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from nadi.cluster.records import Records
from nadi.cluster.servers import members
from nadi.engines.opening import open_engines
from nadi.runtime import REAL
from nadi.standalone.embedded import Ready, Settings
from nadi.standalone.security import ServerSecurity
from tests.cluster.processes.wires import Wire, Wires

PATIENCE_S = 60.0  # for whatever must happen in the end, on a machine that stops for seconds
_ROOT = Path(__file__).parents[3]


def free_port(host: str = "127.0.0.1") -> int:
    """Below the range of ephemeral ports: nobody's outgoing connection takes it while a server is down."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port


class FolderStore:
    """A folder that all servers use."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}"

    def options(self, number: int) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


class S3Store:
    """A fake S3 in a process of its own, and a wire to it for each server."""

    url = "s3://bucket/cluster"

    def __init__(self, folder: Path, wires: Wires) -> None:
        self._folder, self._port = folder, free_port()
        self._start()
        self._wires = wires
        self.wires: dict[int, Wire] = {}

    def _start(self) -> None:
        command = ["-m", "tests.support.fake_s3", "--port", str(self._port), "--folder", str(self._folder)]
        self._process = subprocess.Popen([sys.executable, *command], cwd=_ROOT, stdout=subprocess.PIPE, process_group=0)
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
        """What it has answered is in its folder, for `restart`."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self._start()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()


class Server:
    """One server's place: a process, and the next one there after it. It listens at the same address for controllers
    each time, so that its clients find it again."""

    def __init__(self, number: int, folder: Path, store: FolderStore | S3Store, containers: int) -> None:
        self.number, self.port = number, free_port()
        self.uri = f"tcp://127.0.0.1:{self.port}"
        self.log = folder / f"server-{number}.log"
        self._folder, self._store, self._containers = folder / f"cache-{number}", store, containers
        self.environment: dict[str, str] = {}
        self.advertised_host: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self.ready = Ready()

    def begin(self) -> None:
        """Start a process; `await_ready` says when it serves."""
        assert self.process is None
        settings = Settings(
            host="127.0.0.1",
            controller_port=self.port,
            rest_port=None,
            containers=self._containers,
            advertised_host=self.advertised_host,
            security=ServerSecurity(),
            store=self._store.url,
            store_options=self._store.options(self.number),
        )
        with self.log.open("a") as log:
            log.write(f"--- started at {time.time():.3f}\n")
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nadi.standalone", str(self._folder), msgspec.json.encode(settings).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "NADI_LOG": "INFO", **self.environment},
                process_group=0,
            )

    def await_ready(self) -> None:
        line = _line(self._process.stdout, PATIENCE_S)
        assert line, f"server {self.number} said nothing within {PATIENCE_S:.0f} s:\n{self.said()}"
        self.ready = msgspec.json.decode(line, type=Ready)
        assert not self.ready.error, f"server {self.number} didn't start: {self.ready.error}\n{self.said()}"

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
        self._ended(PATIENCE_S)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = PATIENCE_S) -> float:
        """A clean stop; return how many seconds it took."""
        began = time.monotonic()
        self.terminate()
        self._ended(timeout_s)
        return time.monotonic() - began

    def _ended(self, timeout_s: float) -> None:
        process = self._process
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"server {self.number} still runs after {timeout_s:.0f} s:\n{self.said()}") from None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self.process, self.is_paused = None, False

    def said(self, most: int = 6000) -> str:
        return self.log.read_text()[-most:] if self.log.exists() else ""

    def last_said(self, what: str) -> str:
        """The last line of its log with that in it, "" if there is none."""
        found = [line for line in self.log.read_text().splitlines() if what in line]
        return found[-1] if found else ""

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._ended(PATIENCE_S)


class Cluster:
    """`servers` in their places, all running; `close` ends what still runs."""

    def __init__(self, folder: Path, servers: int, *, s3: bool = False, containers: int = 4) -> None:
        self.folder, self.wires = folder, Wires()
        self.s3: S3Store | None = None
        if s3:
            self.s3 = S3Store(folder / "s3", self.wires)
        self.store = self.s3 or FolderStore(folder / "store")
        self.containers = containers
        self.servers = [Server(number, folder, self.store, containers) for number in range(servers)]

    def start(self) -> None:
        self.servers[0].begin()
        self.servers[0].await_ready()  # the first decides how many containers there are
        for server in self.servers[1:]:
            server.begin()
        for server in self.servers[1:]:
            server.await_ready()

    def owners(self) -> dict[int, Server]:
        """Who has which container now, as the store says; those that are between two servers are missing."""
        return asyncio.run(self._owners())

    async def _owners(self) -> dict[int, Server]:
        engine, registry = await open_engines(self.store.url, REAL, **self.store.options(-1))
        try:
            places = {}
            for name in await registry.list(members.FOLDER):
                entry = await registry.get(name)
                member = members.decode(entry.value) if entry is not None else None
                if member is not None:
                    places[member.id] = next(one for one in self.servers if member.controller.endswith(f":{one.port}"))
            records = Records(registry, REAL)
            found = {number: (await records.read(number)).record for number in range(self.containers)}
            return {
                number: places[record.owner]
                for number, record in found.items()
                if not record.released and record.owner in places
            }
        finally:
            await engine.close()

    def owner(self, container: int) -> Server:
        """Who has it; waits until it is somebody's who runs."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = self.owners().get(container)
            if found is not None and found.is_running:
                return found
            time.sleep(0.1)
        raise AssertionError(f"nobody has container {container}")

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.store.close()
        self.wires.close()


@contextlib.contextmanager
def running(folder: Path, servers: int, *, s3: bool = False, containers: int = 4) -> Iterator[Cluster]:
    cluster = Cluster(folder, servers, s3=s3, containers=containers)
    try:
        cluster.start()
        yield cluster
    except BaseException as error:
        for server in cluster.servers:
            error.add_note(f"server {server.number} said:\n{server.said(3000)}")
        raise
    finally:
        cluster.close()


def _line(pipe: IO[bytes] | None, timeout_s: float) -> bytes:
    assert pipe is not None
    readable, _, _ = select.select([pipe], [], [], timeout_s)
    return pipe.readline() if readable else b""
