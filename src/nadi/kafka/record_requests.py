"""Requests for records: producing, fetching, and finding offsets.

Methods are named as in Kafka's protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from nadi.access.permissions import Permission
from nadi.client.serializers.kafka import Record, records_of
from nadi.errors import NadiError, SegmentNotFoundError, TruncatedError
from nadi.kafka.access import Access, Peer
from nadi.kafka.batches import NO_TIME, InvalidRecordsError, check_batches, check_keys, placed
from nadi.kafka.messages import (
    LEADER_EPOCH,
    NONE,
    ErrorCode,
    Fields,
    KafkaError,
    Request,
    code_of,
    coordinator_code,
    ms_of,
)
from nadi.kafka.producing import Producing
from nadi.kafka.segment_log import SegmentLog
from nadi.kafka.topics import Topic, Topics
from nadi.kafka.transactions import Transactions
from nadi.limits import KAFKA_FETCH_BYTES, KAFKA_MAX_WAIT_S

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5


class RecordRequests:
    """A door's requests for records."""

    def __init__(self, access: Access, topics: Topics, producing: Producing, transactions: Transactions) -> None:
        self._access, self._topics, self._producing, self._transactions = access, topics, producing, transactions

    # --- producing ----------------------------------------------------------------------------

    async def produce(self, peer: Peer, request: Request) -> Awaitable[Fields]:
        """Queue a request's batches, in the order of requests; return an awaitable of the response's fields."""
        queued: list[tuple[str, list[_QueuedPartition]]] = []
        for topic_data in request.body.topic_data:
            partitions = []
            for data in topic_data.partition_data:
                time_ms: int | None = None
                try:
                    self._access.require_topic(peer, topic_data.name, Permission.READ_UPDATE)
                    topic = await self._topics.get(topic_data.name)
                    if topic.properties.has_append_times:
                        time_ms = time.time_ns() // 1_000_000
                    offset: Awaitable[int] | NadiError = await self._queue(peer, topic, data, request.body, time_ms)
                except NadiError as error:
                    offset = error
                partitions.append(_QueuedPartition(data.index, offset, time_ms))
            queued.append((topic_data.name, partitions))
        return self._produced(queued)

    async def _queue(self, peer: Peer, topic: Topic, data: Any, body: Any, time_ms: int | None) -> Awaitable[int]:
        topic.check_partition(data.index)
        if body.acks not in (-1, 0, 1):
            raise KafkaError(ErrorCode.invalid_required_acks)
        batches = check_batches(data.records or b"", data.index)
        if not batches:
            raise KafkaError(ErrorCode.invalid_record, "a produce request without records")
        if any(len(batch.data) > topic.properties.max_batch_bytes for batch in batches):
            raise KafkaError(ErrorCode.message_too_large)
        if len({batch.producer_id for batch in batches}) > 1:
            raise KafkaError(ErrorCode.invalid_record, "the batches of a request have several producers")
        if topic.properties.is_compacted:
            await asyncio.to_thread(check_keys, batches)
        if time_ms is not None:
            batches = [batch.appended_at(time_ms) for batch in batches]
        if not batches[0].is_transactional:
            return await self._producing.put(topic, data.index, batches)
        if body.transactional_id is None:
            raise KafkaError(ErrorCode.invalid_txn_state, "a transactional batch needs a transactional id")
        producer = self._access.producer(peer, body.transactional_id, batches[0].producer_id, batches[0].epoch)
        transaction = await self._transactions.stream_of_batch(producer, topic.name, data.index)
        return await self._producing.put(topic, data.index, batches, transaction)

    async def _produced(self, queued: list[tuple[str, list[_QueuedPartition]]]) -> Fields:
        responses = []
        for name, partitions in queued:
            answers = [await self._stored(partition) for partition in partitions]
            responses.append({"name": name, "partition_responses": answers})
        return {"responses": responses}

    async def _stored(self, queued: _QueuedPartition) -> Fields:
        try:
            if isinstance(queued.offset, NadiError):
                raise queued.offset
            stored = {"base_offset": await queued.offset, "log_append_time": queued.time_ms, "log_start_offset": NONE}
            return {"index": queued.partition, **stored}
        except NadiError as error:
            refused = error.indexes if isinstance(error, InvalidRecordsError) else ()
            return {
                "index": queued.partition,
                "error_code": code_of(error),
                "base_offset": NONE,
                "record_errors": [
                    {"batch_index": record, "batch_index_error_message": str(error)} for record in refused
                ],
                "error_message": str(error)[:500],
            }

    async def init_producer_id(self, peer: Peer, request: Request) -> Fields:
        try:
            producer, epoch = await self._producer_of(peer, request.body)
        except NadiError as error:
            return {"error_code": coordinator_code(error), "producer_id": NONE, "producer_epoch": NONE}
        return {"producer_id": producer, "producer_epoch": epoch}

    async def _producer_of(self, peer: Peer, body: Any) -> tuple[int, int]:
        """Return the id and the epoch that a producer shall use."""
        producer, epoch = getattr(body, "producer_id", NONE), getattr(body, "producer_epoch", NONE)
        if (name := body.transactional_id) is not None:
            self._access.check_transaction(name)
            instance = self._access.producer(peer, name, producer, epoch)
            return await self._transactions.begin_producer(instance, ms_of(body.transaction_timeout))
        if producer >= 0 and 0 <= epoch < (1 << 15) - 1:
            return producer, epoch + 1
        return await self._topics.new_producer_id(), 0

    async def describe_producers(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            partitions: list[Fields] = []
            for partition in asked.partition_indexes:
                try:
                    topic = await self._access.readable(peer, asked.name)
                    topic.check_partition(partition)
                    active = self._producing.active(asked.name, partition)
                    partitions.append({"partition_index": partition, "active_producers": active})
                except NadiError as error:
                    failed = {"error_code": code_of(error), "error_message": str(error)[:500]}
                    partitions.append({"partition_index": partition, **failed, "active_producers": ()})
            topics.append({"name": asked.name, "partitions": partitions})
        return {"topics": topics}

    # --- fetching -----------------------------------------------------------------------------

    async def fetch(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        deadline = time.monotonic() + min(_seconds(body.max_wait), KAFKA_MAX_WAIT_S)
        while True:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            logs: list[SegmentLog] = []
            await peer.sending.wait_for_capacity()
            fetch = _Fetch(min(max(body.max_bytes, 1), KAFKA_FETCH_BYTES, peer.sending.capacity_bytes))
            responses = []
            peer.sending.take(fetch.most)  # until the response is sent, which takes its own size
            try:
                for asked in body.topics:
                    name, topic_id = getattr(asked, "topic", None), getattr(asked, "topic_id", None)
                    partitions = [
                        await self._fetch_partition(peer, name, topic_id, part, fetch, logs)
                        for part in asked.partitions
                    ]
                    responses.append({"topic": name, "topic_id": topic_id, "partitions": partitions})
            finally:
                peer.sending.give(fetch.most)
            wait_s = deadline - time.monotonic()
            if fetch.taken >= body.min_bytes or fetch.has_failed or wait_s <= 0:
                return {"responses": responses, "session_id": 0}
            try:
                for log in logs:
                    log.notify(waiter)
                if not any(log.version != version for log, version in zip(logs, fetch.versions, strict=True)):
                    await asyncio.wait([waiter], timeout=wait_s)
            finally:
                for log in logs:
                    log.forget(waiter)

    async def _fetch_partition(
        self, peer: Peer, name: str | None, topic_id: UUID | None, asked: Any, fetch: _Fetch, logs: list[SegmentLog]
    ) -> Fields:
        known = {
            "partition_index": asked.partition,
            "high_watermark": NONE,
            "aborted_transactions": None,
            "records": b"",
        }
        try:
            topic = await self._access.readable(peer, name or self._topics.name_of(topic_id or UUID(int=0)))
            topic.check_partition(asked.partition)
            try:
                records = await self._records(topic, asked, fetch, logs)
                end = await topic.log.known_end(asked.partition)
                start = await topic.log.start_offset(asked.partition)
            except TruncatedError:
                topic.log.forget_head()
                raise KafkaError(ErrorCode.offset_out_of_range) from None
        except NadiError as error:
            fetch.has_failed = True
            if isinstance(error, KafkaError) and error.code == ErrorCode.offset_out_of_range:
                known |= await self._ends(topic, asked.partition)
            return {**known, "error_code": code_of(error)}
        return {
            **known,
            "high_watermark": end,
            "last_stable_offset": end,
            "log_start_offset": start,
            "records": records,
        }

    async def _ends(self, topic: Topic, partition: int) -> Fields:
        try:
            end, start = await topic.log.end_offset(partition), await topic.log.start_offset(partition)
        except NadiError:
            return {}
        return {"high_watermark": end, "last_stable_offset": end, "log_start_offset": start}

    async def _records(self, topic: Topic, asked: Any, fetch: _Fetch, logs: list[SegmentLog]) -> bytes:
        partition, offset = asked.partition, asked.fetch_offset
        log = await topic.log.waiting_log(partition)
        version = log.version
        if offset > await topic.log.known_end(partition) and offset > await topic.log.end_offset(partition):
            raise KafkaError(ErrorCode.offset_out_of_range)
        if offset < await topic.log.start_offset(partition):
            raise KafkaError(ErrorCode.offset_out_of_range)
        parts: list[bytes] = []
        size = 0
        most = min(asked.partition_max_bytes, fetch.most - fetch.taken)
        while size < most:
            found = await topic.log.batches_from(partition, offset)
            for each in found:
                if size + len(each.batch.data) > most and (size or fetch.taken):
                    most = size
                    break
                parts.append(placed(each.batch, each.offset))
                size += len(each.batch.data)
                offset = each.end
            if not found:
                break
        fetch.taken += size
        logs.append(log)
        fetch.versions.append(version)
        return b"".join(parts)

    # --- offsets ------------------------------------------------------------------------------

    async def list_offsets(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            partitions = [await self._offset_at(peer, asked.name, part) for part in asked.partitions]
            topics.append({"name": asked.name, "partitions": partitions})
        return {"topics": topics}

    async def _offset_at(self, peer: Peer, name: str, asked: Any) -> Fields:
        known: Fields = {"partition_index": asked.partition_index, "timestamp": NONE, "offset": NONE}
        try:
            topic = await self._access.readable(peer, name)
            topic.check_partition(asked.partition_index)
            try:
                found = await _found_offset(topic, asked.partition_index, asked.timestamp)
            except (TruncatedError, SegmentNotFoundError):
                topic.log.forget_head()
                found = await _found_offset(topic, asked.partition_index, asked.timestamp)
        except NadiError as error:
            return {**known, "error_code": code_of(error), "leader_epoch": NONE}
        if found is None:
            return known
        return {**known, "offset": found[0], "timestamp": found[1], "leader_epoch": LEADER_EPOCH}

    async def offset_for_leader_epoch(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            partitions = []
            for part in asked.partitions:
                try:
                    topic = await self._access.readable(peer, asked.topic)
                    topic.check_partition(part.partition)
                    end = await topic.log.end_offset(part.partition)
                    partitions.append({"partition": part.partition, "leader_epoch": LEADER_EPOCH, "end_offset": end})
                except NadiError as error:
                    failed = {"error_code": code_of(error), "leader_epoch": NONE, "end_offset": NONE}
                    partitions.append({"partition": part.partition, **failed})
            topics.append({"topic": asked.topic, "partitions": partitions})
        return {"topics": topics}


class _QueuedPartition(NamedTuple):
    """A partition of a produce request. offset: of its first record, once stored. time_ms: that its records get."""

    partition: int
    offset: Awaitable[int] | NadiError
    time_ms: int | None


@dataclass(slots=True)
class _Fetch:
    """The limits and the state of a fetch. versions: of the logs that it may wait for."""

    most: int
    taken: int = 0
    has_failed: bool = False
    versions: list[int] = field(default_factory=list)


async def _found_offset(topic: Topic, partition: int, timestamp: int) -> tuple[int, int] | None:
    """Return offset and timestamp for a timestamp or one of the special values; None if no record is that late."""
    if timestamp in (_LATEST,):
        return await topic.log.end_offset(partition), NONE
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return await topic.log.start_offset(partition), NONE
    if timestamp == _LATEST_TIERED:
        return None
    if timestamp == _MAX_TIMESTAMP:
        timestamp = (await topic.log.tail(partition)).state(partition)[1]
        if timestamp == NO_TIME:
            return None
    if timestamp < 0:
        raise KafkaError(ErrorCode.unsupported_version)
    start = await topic.log.start_offset(partition)
    for found in await topic.log.batches_since(partition, timestamp):
        # in a thread, since a batch of some KiB may contain a million records
        record = await asyncio.to_thread(_first_record, found.batch.data, timestamp, start - found.offset)
        if record is not None:
            return found.offset + record.delta, record.timestamp_ms
    return None


def _first_record(batch: bytes, timestamp: int, delta: int) -> Record | None:
    """Return a batch's first record that isn't before a time, nor before an offset."""
    for record in records_of(batch):
        if record.timestamp_ms >= timestamp and record.delta >= delta:
            return record
    return None


def _seconds(wait: timedelta) -> float:
    return max(0.0, wait.total_seconds())
