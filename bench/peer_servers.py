"""The servers of `script/bench peers`: nadi's, NATS's and Kafka's, each in its own folder and process.

Each syncs before it acknowledges. All provide an address, the process, its start time, and a way to wait until it has
nothing left to write.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nadi
from bench.kafka.broker import running
from bench.listening import HOST, await_listening, ended, free_port
from bench.peer_environments import CACHE
from bench.peer_work import SCOPE, STREAM
from bench.process import settle
from nadi.segmentstore.data_dir import TIER2
from nadi.standalone.embedded import EmbeddedServer

HEAP = "1g"  # what Kafka's own script gives its broker
_KAFKA = """
auto.create.topics.enable=false
log.flush.interval.messages=1
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that accepts clients. started_s: the start time of its process by time.monotonic. settle: returns once
    all data is at its final location, or raises TimeoutError. filled: the folder in which its log's files are filled
    with zeros before use, if any."""

    address: str
    pid: int
    started_s: float
    settle: Callable[[], None]
    filled: Path | None = None


Server = Callable[[Path], AbstractContextManager[Served]]


@contextmanager
def nadi_server(folder: Path) -> Iterator[Served]:
    started_s = time.monotonic()
    with nadi.embedded(folder) as server:
        settles = partial(_settle_nadi, server)
        log = folder / "container-0" / "log"
        yield Served(server.controller_uri, server.pid, started_s, settles, log)


def _settle_nadi(server: EmbeddedServer) -> None:
    """Wait until everything is in tier 2, and compacted."""
    with nadi.StreamManager(server.controller_uri) as manager:
        stored = sum(manager.stream_info(SCOPE, STREAM).tail.positions.values())
    settle(server.pid, server.folder / TIER2, stored)


@contextmanager
def nats_server(folder: Path) -> Iterator[Served]:
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(
        f'host: {HOST}\nport: {port}\njetstream {{ store_dir: "{folder / "store"}"\nsync_interval: always }}\n'
    )
    program = CACHE / "peer_nats" / "bin" / "nats-server"  # the server itself: no script that starts it
    started_s = time.monotonic()
    process = subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL)
    with ended(process):
        await_listening(process, port)
        yield Served(f"nats://{HOST}:{port}", process.pid, started_s, partial(settle, process.pid, folder, 0))


@contextmanager
def kafka_server(folder: Path) -> Iterator[Served]:
    """Run Kafka's server. Formatting its folder starts Java separately, and isn't in the start time. Raises Missing."""
    with running(folder / "kafka", 1, _KAFKA, HEAP) as broker:
        yield Served(broker.address, broker.pid, broker.started_s, partial(settle, broker.pid, folder, 0))
