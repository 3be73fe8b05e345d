"""Copy a topic in transactions with the offsets of a group: `python -m tests.kafka.copier SERVERS FROM TO`.

Some transactions are aborted after they have written `ABORTED` instead. Prints how each ended.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

ABORTED = b"aborted"
NAME = "copier"  # the group and the transactional id
BATCH, BATCH_S, CALL_S = 5_000, 0.2, 10.0


class Copier:
    def __init__(self, servers: str, source: str, target: str) -> None:
        self._client = {"bootstrap.servers": servers, "log_level": 0}
        self._source, self._target = source, target
        self._consumer = Consumer(
            {
                **self._client,
                "group.id": NAME,
                "group.instance.id": NAME,  # takes the place of its predecessor at once
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._batch: list[Message] = []
        self._producer = self._opened()

    def run(self) -> None:
        """Copy until the process is killed."""
        clear = lambda *_: self._batch.clear()  # noqa: E731 - what was read before a rebalance is read again
        self._consumer.subscribe([self._source], on_assign=clear, on_revoke=clear)
        while True:
            self._read()
            if not self._batch:
                continue
            aborts = random.random() < 0.2
            try:
                self._copy(aborts=aborts)
                print("aborted" if aborts else "committed", flush=True)
            except KafkaException as error:
                print("failed:", error.args[0], flush=True)
                self._recover(error)
                aborts = True
            if aborts:
                self._rewind()

    def _read(self) -> None:
        self._batch.clear()
        until = time.monotonic() + BATCH_S
        while len(self._batch) < BATCH and time.monotonic() < until:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._batch.append(message)

    def _copy(self, *, aborts: bool) -> None:
        positions: dict[int, int] = {}
        self._producer.begin_transaction()
        for message in self._batch:
            self._producer.produce(self._target, ABORTED if aborts else message.value(), message.key())
            positions[message.partition()] = message.offset() + 1
        if aborts:
            self._producer.flush(CALL_S)
            _until_done(self._producer.abort_transaction)
            return
        offsets = [TopicPartition(self._source, partition, offset) for partition, offset in positions.items()]
        group = self._consumer.consumer_group_metadata()
        _until_done(lambda timeout: self._producer.send_offsets_to_transaction(offsets, group, timeout))
        _until_done(self._producer.commit_transaction)

    def _recover(self, error: KafkaException) -> None:
        try:
            if error.args[0].txn_requires_abort():
                _until_done(self._producer.abort_transaction)
                return
        except KafkaException as again:
            print("failed to abort:", again.args[0], flush=True)
        self._producer = self._opened()

    def _opened(self) -> Producer:
        """Return a producer, after the broker has ended what the former one has left."""
        while True:
            producer = Producer({**self._client, "transactional.id": NAME})
            try:
                _until_done(producer.init_transactions)
            except KafkaException as error:
                print("failed to begin:", error.args[0], flush=True)
            else:
                return producer

    def _rewind(self) -> None:
        """Go back to what is committed."""
        while True:
            try:
                for each in self._consumer.committed(self._consumer.assignment(), timeout=CALL_S):
                    offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
                    self._consumer.seek(TopicPartition(each.topic, each.partition, offset))
            except KafkaException:
                time.sleep(0.1)
            else:
                return


def _until_done(call: Callable[[float], object]) -> None:
    """Repeat a call of a transactional producer while its error allows that."""
    while True:
        try:
            call(CALL_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    Copier(*sys.argv[1:]).run()
