"""Runs several servers of one cluster over a folder, each in its own process, behind shared ports, to use a whole
machine.

Each worker has its share of the containers and their segments; clients are told which worker has which segment. A
connection to the shared ports reaches any worker, and each answers for all. A worker that dies is restarted; meanwhile
the others take over its containers.
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
from nadi.errors import InvalidArgumentError, NadiError
from nadi.segmentstore.data_dir import find_store
from nadi.standalone.embedded import START_TIMEOUT_S, EmbeddedServer
from nadi.standalone.ports import listening

log = logging.getLogger(__name__)

CONTAINERS_EACH = 4  # per worker, in a new folder: enough to rebalance when the number of workers changes
_POLL_S = 0.2
_LIVES_S = 60.0  # a worker that lived longer is restarted at once


class Workers:
    """Group of `workers` servers, configured by `config`.

    Its data folder is the store of their cluster; servers without `--workers` can't use it. The workers share its
    ports; store ports and Kafka ports count up from the configured one, 0 for any. Each worker's own REST port follows
    the shared one.
    `with Workers(…) as workers: workers.watch(until)` serves until the event is set. InvalidArgumentError: the folder
    is a single server's. Raises, on entry, as a server of a cluster; UnavailableError if a port is taken.
    """

    def __init__(self, config: ServerConfig) -> None:
        config.check()
        if find_store(config.folder).store is not None:
            raise InvalidArgumentError(
                f"the data folder {config.folder} was created without --workers: start it without, or move its data "
                f"to a new folder: `nadi migrate {config.folder} file:///NEW`, then `nadi up --workers N --data /NEW`"
            )
        self.controller_uri = self.rest_uri = ""
        self._config = config
        self._count = count = config.workers or 1
        self._store = config.folder.absolute().as_uri()
        self._servers: list[EmbeddedServer | None] = [None] * count
        self._started_at = [0.0] * count
        self._pauses = [Backoff(first_s=0.5, longest_s=30.0) for _ in range(count)]
        self._due = [0.0] * count
        self._reserved: list[socket.socket] = []

    @property
    def kafka_addresses(self) -> list[str]:
        """The addresses for Kafka clients, each of one worker; none without --kafka-port."""
        return [server.kafka_address for server in self._servers if server is not None and server.kafka_address]

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self._servers if server is not None and not server.has_ended]

    def __enter__(self) -> Workers:
        config = self._config
        try:
            rest = None if config.rest_port is None else self._reserve(config.host, config.rest_port, "--rest-port")
            self._shared = SharedPorts(self._reserve(config.host, config.port, "--port"), rest)
            first = self._start(0)  # creates the cluster if there is none
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
        """Restart workers that die, until the event is set; `died` is called with each one's number."""
        while not until.wait(_POLL_S):
            for number, server in enumerate(self._servers):
                if server is not None and server.has_ended:
                    log.error("worker %d (process %d) has ended; restarting it", number, server.pid)
                    server.stop()  # closes its pipes
                    self._servers[number] = None
                    if time.monotonic() - self._started_at[number] > _LIVES_S:
                        self._pauses[number].reset()
                    self._due[number] = time.monotonic() + self._pauses[number].take()
                    died(number)
                if self._servers[number] is None and time.monotonic() >= self._due[number]:
                    try:
                        self._start(number)
                    except (NadiError, OSError) as error:
                        log.error("starting worker %d failed: %s; retrying", number, error)
                        self._due[number] = time.monotonic() + self._pauses[number].take()

    def _start(self, number: int) -> EmbeddedServer:
        base = self._config
        config = replace(
            base,
            data=None,
            workers=None,
            store=self._store,
            cache=None if base.cache is None else Path(base.cache) / f"worker-{number}",
            port=0,
            rest_port=base.rest_port + 1 + number if base.rest_port else base.rest_port,
            store_port=base.store_port + number if base.store_port else 0,
            kafka_port=base.kafka_port + number if base.kafka_port else base.kafka_port,
            containers=base.containers if number == 0 else None,
            shared=self._shared,
            drains=False,
        )
        self._started_at[number] = time.monotonic()
        server = self._servers[number] = EmbeddedServer(config, timeout_s=START_TIMEOUT_S)
        return server

    def _reserve(self, host: str, port: int, option: str) -> int:
        """Reserve a port for all workers, so that no other program gets it while none of them listens."""
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = socket.socket(family, kind, protocol)
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with listening(host, port, option):
            reserved.bind(address)
        return int(reserved.getsockname()[1])

    def _stop(self) -> None:
        running = [server for server in self._servers if server is not None]
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            for stopped in [pool.submit(server.stop) for server in running]:
                error = stopped.exception()
                if error is not None:
                    log.error("%s", error)
        for reserved in self._reserved:
            reserved.close()
