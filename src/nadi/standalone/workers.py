"""A machine used whole: several servers of one cluster over a folder, in processes of their own, behind one door.

Each worker has its share of the containers, and with it of the segments; clients are told which one has what. Whoever
connects to the shared ports gets any worker: each answers for all. A worker that ends by itself is started again, and
meanwhile the others take over what it had.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from nadi.backoff import Backoff
from nadi.config import ServerConfig, SharedPorts
from nadi.errors import NadiError
from nadi.standalone.embedded import START_TIMEOUT_S, EmbeddedServer
from nadi.standalone.ports import listening

log = logging.getLogger(__name__)

CONTAINERS_EACH = 4  # of a new folder, for each worker: so many may be moved when one more, or fewer, is started
_LOOK_S = 0.2
_LIVES_S = 60.0  # one that has lived for so long is started again at once


class Workers:
    """config: of `workers` servers. Its data folder is the store of their cluster, which no server without `--workers`
    uses. They share its ports; its store port is the first worker's, and the others have the next ones, 0 is any. After
    the shared REST port come those of each worker alone. `with Workers(…) as workers: workers.watch(until)` serves
    until the event is set. Raises, as it is entered: as a server of a cluster; UnavailableError if a port is taken."""

    def __init__(self, config: ServerConfig) -> None:
        config.check()
        self.controller_uri = self.rest_uri = ""
        self._config = config
        self._count = count = config.workers or 1
        self._store = config.folder.absolute().as_uri()
        self._servers: list[EmbeddedServer | None] = [None] * count
        self._began = [0.0] * count
        self._pauses = [Backoff(first_s=0.5, longest_s=30.0) for _ in range(count)]
        self._due = [0.0] * count
        self._reserved: list[socket.socket] = []

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self._servers if server is not None and not server.has_ended]

    def __enter__(self) -> Workers:
        given = self._config
        try:
            rest = None if given.rest_port is None else self._reserve(given.host, given.rest_port, "--rest-port")
            self._shared = SharedPorts(self._reserve(given.host, given.port, "--port"), rest)
            first = self._start(0)  # it makes the cluster, where there is none
            self.controller_uri, self.rest_uri = first.controller_uri, first.rest_uri
            with ThreadPoolExecutor(self._count) as pool:
                for started in [pool.submit(self._start, number) for number in range(1, self._count)]:
                    started.result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def watch(self, until: threading.Event, died: Callable[[int], None] = lambda number: None) -> None:
        """Start workers again that end by themselves, until the event is set; `died` is told which."""
        while not until.wait(_LOOK_S):
            for number, server in enumerate(self._servers):
                if server is not None and server.has_ended:
                    log.error("worker %d (process %d) has ended, and is started again", number, server.pid)
                    server.stop()  # lets go of its pipes
                    self._servers[number] = None
                    if time.monotonic() - self._began[number] > _LIVES_S:
                        self._pauses[number].reset()
                    self._due[number] = time.monotonic() + self._pauses[number].take()
                    died(number)
                if self._servers[number] is None and time.monotonic() >= self._due[number]:
                    try:
                        self._start(number)
                    except (NadiError, OSError) as error:
                        log.error("worker %d can't be started: %s", number, error)
                        self._due[number] = time.monotonic() + self._pauses[number].take()

    def _start(self, number: int) -> EmbeddedServer:
        given = self._config
        config = replace(
            given,
            data=None,
            workers=None,
            store=self._store,
            cache=None if given.cache is None else Path(given.cache) / f"worker-{number}",
            port=0,
            rest_port=given.rest_port + 1 + number if given.rest_port else given.rest_port,
            store_port=given.store_port + number if given.store_port else 0,
            containers=given.containers if number == 0 else None,
            shared=self._shared,
            drains=False,
        )
        self._began[number] = time.monotonic()
        server = self._servers[number] = EmbeddedServer(config, timeout_s=START_TIMEOUT_S)
        return server

    def _reserve(self, host: str, port: int, option: str) -> int:
        """A port for all of them, which nobody else gets while no worker listens there."""
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        one = socket.socket(family, kind, protocol)
        self._reserved.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with listening(host, port, option):
            one.bind(address)
        return int(one.getsockname()[1])

    def _stop(self) -> None:
        running = [server for server in self._servers if server is not None]
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            for stopped in [pool.submit(server.stop) for server in running]:
                error = stopped.exception()
                if error is not None:
                    log.error("%s", error)
        for one in self._reserved:
            one.close()
