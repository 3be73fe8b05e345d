"""One broker without ZooKeeper, on loopback, in its own folder."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.jars import BROKER, jars_of
from bench.listening import await_listening, ended, free_port

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """Its address for clients, Java's command for its programs, the broker's process, and its start time by
    time.monotonic, in seconds."""

    address: str
    java: tuple[str, ...]
    pid: int
    started_s: float

    def produce(self, topic: str, records: int, size_bytes: int, per_second: int = -1) -> subprocess.Popen[bytes]:
        """Write random records in a separate process; at full speed by default."""
        command = [*self.java, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
        command += ["--num-records", str(records), "--record-size", str(size_bytes), "--throughput", str(per_second)]
        command += ["--producer-props", f"bootstrap.servers={self.address}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def running(folder: Path, partitions: int, settings: str = "", heap: str = "512m") -> Iterator[Broker]:
    """Run a broker. partitions: of each topic, which is created on first write. settings: additional properties. heap:
    Java's. The folder is formatted by another program before the broker starts. Raises Missing."""
    folder.mkdir(parents=True)
    port, controller = free_port(), free_port()
    properties = folder / "server.properties"
    text = _PROPERTIES.format(port=port, controller=controller, logs=folder / "logs", partitions=partitions)
    properties.write_text(text + settings)
    java = ("java", f"-Xmx{heap}", "-cp", os.pathsep.join(map(str, jars_of(BROKER))))
    identity = "n" + base64.urlsafe_b64encode(os.urandom(16)).decode()[:21]  # a leading "-" would be an option
    format_ = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties)]
    subprocess.run(format_, check=True, capture_output=True)
    started_s = time.monotonic()
    with (folder / "log").open("wb") as said:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=said, stderr=said)
    with ended(process):
        await_listening(process, port)
        yield Broker(f"127.0.0.1:{port}", java, process.pid, started_s)
