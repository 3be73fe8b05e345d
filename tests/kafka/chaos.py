"""Idempotent producers, a consumer group and a transactional copy, while a server and two doors are killed.

Producers write numbers to `in`, each key in order. Readers share `in` and commit what they have seen. A copier, which
is killed as well, copies all records to `out` (`copier.py`).
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from nadi.testing import RestartableServer
from tests.kafka.support import Door, start_door
from tests.support.ports import free_port

PARTITIONS, KEYS, PRODUCERS, READERS = 4, 6, 2, 2
SETTLED_S = 120.0
SERVER = "server"


class Chaos:
    """The processes, the clients, and what they saw. failed: the errors of clients' threads, which end them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._chance = chance
        self._server = RestartableServer(folder)
        self._ports = [free_port(), free_port()]
        self._doors: list[Door] = []
        self._stop, self._copied = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)  # by key
        self.reported: dict[tuple[int, int], bytes] = {}  # what was acknowledged, by partition and offset
        self.seen: dict[tuple[int, int], bytes] = {}  # what the readers saw, by partition and offset
        self._committed: dict[int, int] = defaultdict(int)  # the readers' offsets, by partition
        self.failed: list[str] = []
        self.repeats = 0
        self._copier: subprocess.Popen[bytes] | None = None
        self.copier_log = folder.parent / "copier.log"

    @property
    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in self._ports), "log_level": 0}

    def _consumer(self, group: str, **more: Any) -> Consumer:
        usual = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "session.timeout.ms": 10_000}
        return Consumer({**self._client, "group.id": group, **usual, **more})

    # --- processes ----------------------------------------------------------------------------

    def start(self) -> None:
        self._doors = [start_door(self._server.controller_uri, port=port) for port in self._ports]
        for topic in ("in", "out"):
            self._doors[0].create(topic, PARTITIONS)
        work: list[Callable[[], None]] = [partial(self._produce, number) for number in range(PRODUCERS)]
        work += [self._read] * READERS
        self._run(*work)
        self._start_copier()

    def _run(self, *work: Callable[[], None]) -> None:
        def guarded(call: Callable[[], None]) -> None:
            try:
                call()
            except BaseException as error:  # the test's thread reports it
                self.failed.append(repr(error))
                raise

        for call in work:
            self._threads.append(threading.Thread(target=guarded, args=(call,)))
            self._threads[-1].start()

    def kill(self) -> list[str]:
        """Kill one or two processes, and sometimes the copier, and start them again after a while; return which."""
        names = [SERVER, *map(str, range(len(self._doors)))]
        victims = sorted(self._chance.sample(names, 1 + (self._chance.random() < 0.25)), reverse=True)
        for victim in victims:
            if victim == SERVER:
                self._server.kill()
            else:
                self._doors[int(victim)].kill(hangs_s=self._chance.choice([0.0, 0.1]))
        if self._chance.random() < 0.2:
            self._start_copier()
        time.sleep(self._chance.random())
        for victim in victims:  # the server first, as doors need it to start
            if victim == SERVER:
                self._server.start()
            else:
                self._doors[int(victim)] = start_door(self._server.controller_uri, port=self._ports[int(victim)])
        return victims

    def close(self) -> None:
        self._stop.set()
        self._copied.set()
        for thread in self._threads:
            thread.join(SETTLED_S)
        self._kill_copier()
        for door in self._doors:
            door.kill()
        self._server.close()

    # --- clients ------------------------------------------------------------------------------

    def _produce(self, number: int) -> None:
        options = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 1000 * SETTLED_S}
        producer = Producer({**self._client, **options})

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(f"producer {number}: {error}")
            elif (offset := message.offset()) is None:
                self.repeats += 1
            else:
                self.reported[message.partition(), offset] = message.value()

        count = 0
        while not self._stop.is_set():
            key, value = b"%d.%d" % (number, count % KEYS), b"%d" % count
            producer.produce("in", value, key, on_delivery=acknowledged)
            self.sent[key].append(value)
            count += 1
            producer.poll(0)
            self._stop.wait(0.004)
        if left := producer.flush(SETTLED_S):
            self.failed.append(f"producer {number}: {left} records are not acknowledged")

    def _read(self) -> None:
        consumer = self._consumer("readers")

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            with self._lock:
                known = dict(self._committed)
            try:
                for stored in consumer.committed(partitions, timeout=10):
                    if stored.partition in known and stored.offset < known[stored.partition]:
                        self.failed.append(f"offset {known[stored.partition]} was committed, now it is {stored}")
            except KafkaException:
                pass  # the coordinator is away

        consumer.subscribe(["in"], on_assign=assigned)
        while not self._copied.is_set():
            messages = [message for message in consumer.consume(100, 0.2) if message.error() is None]
            with self._lock:
                for message in messages:
                    self.seen[message.partition(), message.offset()] = message.value()
            if messages:
                try:
                    stored = consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # the coordinator is away, or the partitions are another reader's
                with self._lock:
                    for each in stored:
                        if each.error is None:
                            self._committed[each.partition] = max(self._committed[each.partition], each.offset)
        consumer.close()

    def _start_copier(self) -> None:
        """Start the copier, or kill and start it again; it ends what the former one has left."""
        self._kill_copier()
        command = [sys.executable, "-m", "tests.kafka.copier", self._client["bootstrap.servers"], "in", "out"]
        with self.copier_log.open("ab") as log:
            self._copier = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _kill_copier(self) -> None:
        if self._copier is not None:
            self._copier.kill()
            self._copier.wait()

    # --- the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stop the producers, and wait until readers and the copier have all records."""
        self._stop.set()
        for thread in self._threads[:PRODUCERS]:
            thread.join(SETTLED_S)
        total = sum(map(len, self.sent.values()))
        consumer = self._consumer("copier", **{"isolation.level": "read_committed"})
        partitions = [TopicPartition("in", partition) for partition in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions]
        committed: list[int] = []
        deadline = time.monotonic() + SETTLED_S
        restart_at = deadline - 3 * SETTLED_S / 4
        while time.monotonic() < deadline and not self.failed:
            committed = [each.offset for each in consumer.committed(partitions, timeout=30)]
            if committed == ends and len(self.seen) >= total:
                break
            if time.monotonic() > restart_at:  # it may wait forever: librdkafka's issue 5511
                self._start_copier()
                restart_at += SETTLED_S / 4
            time.sleep(0.2)
        else:
            self.failed.append(f"of {ends} in `in`, {committed} were copied; {len(self.seen)} of {total} were seen")
        consumer.close()
        self._copied.set()
        for thread in self._threads:
            thread.join(SETTLED_S)

    def stored(self, topic: str) -> list[Message]:
        """Return all records of a topic as a consumer of committed records gets them."""
        consumer = self._consumer("checker", **{"isolation.level": "read_committed"})
        starts = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=30)[1] for each in starts}
        consumer.assign(starts)
        messages: list[Message] = []
        deadline = time.monotonic() + SETTLED_S
        while any(each.offset < ends[each.partition] for each in consumer.position(starts)):
            assert time.monotonic() < deadline, f"{len(messages)} records of {topic} came"
            messages += [message for message in consumer.consume(1000, 0.5) if message.error() is None]
        consumer.close()
        return messages
