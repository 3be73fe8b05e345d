"""One broker without ZooKeeper, on loopback, in a folder of its own."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.kafka.jars import BROKER, jars_of

_START_S = 60.0
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
    """Its address for clients, and what Java runs its programs with."""

    address: str
    java: tuple[str, ...]

    def produce(self, topic: str, records: int, size_bytes: int, per_second: int = -1) -> subprocess.Popen[bytes]:
        """Write records of chance bytes in a process of its own; at full speed unless told otherwise."""
        command = [*self.java, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
        command += ["--num-records", str(records), "--record-size", str(size_bytes), "--throughput", str(per_second)]
        command += ["--producer-props", f"bootstrap.servers={self.address}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def running(folder: Path, partitions: int, settings: str = "") -> Iterator[Broker]:
    """A broker of its own. partitions: of each topic, which is made once it is written to. settings: lines more for
    its properties. Raises Missing."""
    folder.mkdir(parents=True)
    port, controller = _free_port(), _free_port()
    properties = folder / "server.properties"
    text = _PROPERTIES.format(port=port, controller=controller, logs=folder / "logs", partitions=partitions)
    properties.write_text(text + settings)
    java = ("java", "-Xmx512m", "-cp", os.pathsep.join(map(str, jars_of(BROKER))))
    identity = "n" + base64.urlsafe_b64encode(os.urandom(16)).decode()[:21]  # a leading "-" would be an option
    format_ = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties)]
    subprocess.run(format_, check=True, capture_output=True)
    with (folder / "log").open("wb") as said:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=said, stderr=said)
    try:
        _wait(process, port)
        yield Broker(f"127.0.0.1:{port}", java)
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"Kafka's broker doesn't listen after {_START_S:.0f} s")
