"""The servers of `script/bench peers`: nadi's, NATS's, Kafka's and Pravega's, each in its own folder and process.

Each syncs before it acknowledges. All provide an address, the process, its start time, and a way to wait until it has
nothing left to write.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nadi
from bench.jars import PRAVEGA, jars_of
from bench.kafka.broker import running
from bench.listening import HOST, await_listening, ended, free_port
from bench.peer_environments import CACHE
from bench.peer_work import SCOPE, STREAM
from bench.process import settle
from nadi.segmentstore.data_dir import TIER2
from nadi.standalone.embedded import EmbeddedServer

HEAP = "1g"  # what Kafka's own script gives its broker
_PRAVEGA_START_S = 120.0
_KAFKA = """
auto.create.topics.enable=false
log.flush.interval.messages=1
"""
_NODES = "/pravega/pravega-cluster/bookkeeper"
_PRAVEGA = """
pravegaservice.container.count=4
pravegaservice.cache.size.max=536870912
pravegaservice.service.listener.host.nameOrIp={host}
pravegaservice.service.listener.port={store}
pravegaservice.service.published.host.nameOrIp={host}
pravegaservice.admin.gateway.enable=false
pravegaservice.zk.connect.uri={host}:{zookeeper}
pravegaservice.dataLog.impl.name=BOOKKEEPER
pravegaservice.storage.impl.name=FILESYSTEM
pravegaservice.storage.layout=CHUNKED_STORAGE
filesystem.root={tier2}
bookkeeper.zk.connect.uri={host}:{zookeeper}
bookkeeper.ledger.path={nodes}/ledgers
bookkeeper.ensemble.size=1
bookkeeper.write.quorum.size=1
bookkeeper.ack.quorum.size=1
autoscale.controller.connect.uri=tcp://{host}:{controller}
controller.container.count=4
controller.zk.connect.uri={host}:{zookeeper}
controller.service.rpc.listener.port={controller}
controller.service.rpc.published.host.nameOrIp={host}
controller.service.rpc.published.port={controller}
controller.service.rest.listener.port={rest}
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


@contextmanager
def pravega_server(folder: Path) -> Iterator[Served]:
    """Run Pravega's own servers with BookKeeper and ZooKeeper, all in one process that syncs. Raises Missing."""
    names = ("store", "zookeeper", "controller", "rest", "bookie")
    ports = {name: free_port() for name in names}
    (folder / "tier2").mkdir()
    text = _PRAVEGA.format(host=HOST, nodes=_NODES, tier2=folder / "tier2", **ports)
    settings, logging = folder / "pravega.properties", folder / "logback.xml"
    settings.write_text(text)
    logging.write_text('<configuration><root level="WARN"/></configuration>')
    java = ["java", f"-Xmx{HEAP}", f"-XX:MaxDirectMemorySize={HEAP}", f"-Dlogback.configurationFile={logging}"]
    java += [f"-Dpravega.configurationFile={settings}", *(f"-D{line}" for line in text.split())]
    java += [
        "-cp",
        os.pathsep.join(map(str, jars_of(PRAVEGA))),
        str(Path(__file__).parent / "java/DurablePravega.java"),
    ]
    command = [*java, str(folder), str(ports["zookeeper"]), str(ports["bookie"]), _NODES]
    started_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ended(process):
        await_listening(process, ports["controller"], _PRAVEGA_START_S)
        address, settles = f"tcp://{HOST}:{ports['controller']}", partial(settle, process.pid, folder, 0)
        try:
            _await_scope(address, _PRAVEGA_START_S)
            yield Served(address, process.pid, started_s, settles)
        finally:
            process.kill()  # a clean end takes it minutes, and nothing of it is needed


def _await_scope(controller: str, timeout_s: float) -> None:
    """Wait until a scope is created: Pravega's controller listens before it can do that."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            with nadi.StreamManager(controller) as manager:
                manager.create_scope("ready")
                return
        except nadi.errors.UnavailableError:
            if time.monotonic() > end:
                raise
