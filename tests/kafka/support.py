"""A door in a process of its own, and clients of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

SCOPE = "kafka"
LIMIT_S = 60.0


@dataclass
class Door:
    """A running door. address: "host:port". process: None if it belongs to a server."""

    address: str
    process: subprocess.Popen[str] | None = None

    def kill(self, hangs_s: float = 0.0) -> None:
        """Kill its process. hangs_s: stop it before, so that what it has sent is stored and not answered."""
        assert self.process is not None
        if hangs_s:
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(hangs_s)
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Close the pipe to its process."""
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int, **properties: str) -> None:
        configured = {name.replace("_", "."): value for name, value in properties.items()}
        new = NewTopic(topic, partitions, 1, config=configured)
        admin = self.admin()  # its futures fail when it is freed
        for created in admin.create_topics([new]).values():
            created.result()

    def producer(self, **options: Any) -> Producer:
        named = {name.replace("_", "."): value for name, value in options.items()}
        return Producer({"bootstrap.servers": self.address, "enable.idempotence": True, **named})

    def consumer(self, group: str = "test", **options: Any) -> Consumer:
        named = {name.replace("_", "."): value for name, value in options.items()}
        usual = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return Consumer({"bootstrap.servers": self.address, **usual, **named})


def start_door(controller: str, *options: str, port: int = 0) -> Door:
    """Start a door; return it once clients can connect."""
    command = [sys.executable, "-m", "nadi", "kafka", "--controller", controller, "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"bootstrap\.servers\s+(\S+)", line):
            return Door(found[1], process)
    raise AssertionError(f"the door ended with {process.wait()}")


@contextmanager
def running_door(controller: str, *options: str, port: int = 0) -> Iterator[Door]:
    door = start_door(controller, *options, port=port)
    try:
        yield door
    finally:
        if door.process is not None and door.process.poll() is None:
            os.killpg(door.process.pid, signal.SIGTERM)
            door.process.wait(30)
        door.close()


def python_client(code: str, *arguments: str) -> str:
    """Run code that imports `kafka`, which is this folder in the tests' process; return what it prints."""
    command = [sys.executable, "-I", "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def written(
    producer: Producer, topic: str, values: Iterator[bytes] | list[bytes], key: Any = None, **more: Any
) -> list[Message]:
    """Produce all values; return the acknowledged messages. key: a function of the value's index."""
    messages: list[Message] = []

    def acknowledged(error: Any, message: Message) -> None:
        assert error is None, error
        messages.append(message)

    for index, value in enumerate(values):
        producer.produce(topic, value, None if key is None else key(index), on_delivery=acknowledged, **more)
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0
    return messages


def consumed(consumer: Consumer, count: int, limit_s: float = LIMIT_S) -> list[Message]:
    """Return the next `count` messages of a consumer that is subscribed or assigned."""
    messages: list[Message] = []
    deadline = time.monotonic() + limit_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        for message in consumer.consume(count - len(messages), 0.5):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages
