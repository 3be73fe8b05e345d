"""Stores producers' batches, each once.

A producer's number for a batch becomes an event number of nadi, under a writer id for the producer and partition. The
segments store it with the batch, so that a repeated batch is recognized after a restart of the door, by another door,
and behind splits and merges.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import deque
from collections.abc import Awaitable, Sequence
from uuid import UUID

from cachetools import LRUCache

from nadi.client.idempotent.writer import (
    IdempotentWriter,
    NumberedEvent,
    StoredEvents,
    StreamShape,
    epoch_at,
    id_in,
)
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.errors import NadiError, SegmentNotFoundError, StreamSealedError
from nadi.kafka.batches import NO_TIME, Batch
from nadi.kafka.messages import NONE, ErrorCode, KafkaError
from nadi.kafka.topics import PRODUCER_BITS, Topic
from nadi.kafka.transactions import StreamTransaction
from nadi.limits import KAFKA_APPEND_BYTES, KAFKA_WAITING_BYTES, KAFKA_WRITERS
from nadi.model.framing import frame_events
from nadi.model.segments import SegmentRange, takes
from nadi.naming import transaction_segment_name
from nadi.wire.fields import NO_VERSION

NO_PRODUCER = -1
UNKNOWN_OFFSET = -1
_SEQUENCES = 1 << 31  # a sequence number follows the last one from 0
_COUNT_BITS = 40  # of an event number, for the batches' last records; the producer's epoch is above them
_SLACK_MS = 60_000
_TIMEOUT_S = 110.0


class _WaitingBatches:
    """The batches of one request for one partition. number: the event number of each."""

    __slots__ = ("batches", "numbers", "offset", "size")

    def __init__(self, batches: list[Batch], numbers: list[int], offset: asyncio.Future[int]) -> None:
        self.batches, self.numbers, self.offset = batches, numbers, offset
        self.size = sum(len(batch.data) for batch in batches)


class _PartitionWriter:
    """A producer's batches for one partition, stored in order, and as many at a time as are waiting.

    transaction: that stores them, if any. Their offsets are assigned when it is committed; the producer gets those that
    they will have unless others write to the partition meanwhile.
    """

    def __init__(
        self, topic: Topic, partition: int, producer: int, transaction: StreamTransaction | None = None
    ) -> None:
        self._topic, self._partition, self._producer = topic, partition, producer
        self._transaction = transaction
        identity = f"{topic.properties.topic_id}/{partition}/{producer}".encode()
        self._id = uuid.uuid4().bytes if producer == NO_PRODUCER else hashlib.blake2b(identity, digest_size=16).digest()
        self._position = topic.log.positions[partition]
        self._writer: IdempotentWriter | TransactionWriter | None = None
        self._last: int | None = None  # number of the last batch that is stored or waits
        self._last_ms = NO_TIME  # the latest timestamp in it
        self._waiting: deque[_WaitingBatches] = deque()
        self._size = 0
        self._expected = 0  # offset of the transaction's next record
        self._task: asyncio.Task[None] | None = None
        self._admitting = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        return self._task is None

    async def put(self, batches: list[Batch]) -> Awaitable[int]:
        """Queue batches; return an awaitable of the first record's offset. KafkaError if their numbers don't follow."""
        async with self._admitting:
            while self._size > KAFKA_WAITING_BYTES and self._task is not None:
                await asyncio.wait([self._task])
            if self._writer is None:
                await self._open()
            numbers = []
            last = self._last
            for batch in batches:
                last = self._next(batch, NO_VERSION if last is None else last)
                numbers.append(last)
            if self._last is not None and numbers[-1] <= self._last and self._producer != NO_PRODUCER:
                return self._repeated(batches)
            self._last, self._last_ms = numbers[-1], batches[-1].max_ms
            waiting = _WaitingBatches(batches, numbers, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            self._size += waiting.size
            if self._task is None:
                self._task = asyncio.create_task(self._store(), name=f"store {self._topic.name}/{self._partition}")
            return waiting.offset

    def described(self) -> dict[str, int] | None:
        """Return the fields of an active producer's description; None if nothing was written."""
        if self._last is None or self._last == NO_VERSION or self._producer == NO_PRODUCER:
            return None
        return {
            "producer_id": self._producer,
            "producer_epoch": self._last >> _COUNT_BITS,
            "last_sequence": (self._last & (1 << _COUNT_BITS) - 1) % _SEQUENCES,
            "last_timestamp": self._last_ms,
            "coordinator_epoch": NONE,
            "current_txn_start_offset": NONE,  # an open transaction holds nothing back
        }

    async def _open(self) -> None:
        shape = self._topic.shape
        if self._transaction is not None:
            segments = await self._topic.log.epoch(self._transaction.epoch)
            segment = next(segment for segment in segments if takes(segment, self._position))
            writer = TransactionWriter(shape, segment, self._transaction.transaction_id, self._id)
            self._expected = await self._topic.log.end_offset(self._partition)
            self._last, self._writer = await writer.last_number(self._position), writer
            return
        if self._producer == NO_PRODUCER:
            since = await shape.newest_epoch()
        else:
            since = await epoch_at(shape, max(0, (self._producer >> PRODUCER_BITS) - _SLACK_MS))
        idempotent = IdempotentWriter(shape, self._id, since_epoch=since)
        self._last, self._writer = await idempotent.last_number(self._position), idempotent

    def _next(self, batch: Batch, last: int) -> int:
        """Return the event number of a batch after number `last`; one up to `last` if it was stored before."""
        if self._producer == NO_PRODUCER:
            return last + 1
        final = batch.sequence + batch.count - 1
        if last == NO_VERSION:
            return batch.epoch << _COUNT_BITS | final
        epoch, count = last >> _COUNT_BITS, last & (1 << _COUNT_BITS) - 1
        if batch.epoch < epoch:
            raise KafkaError(ErrorCode.invalid_producer_epoch, "a newer instance of this producer writes")
        if batch.epoch > epoch:
            if batch.sequence:
                raise KafkaError(ErrorCode.out_of_order_sequence_number, "a new epoch starts with sequence number 0")
            return batch.epoch << _COUNT_BITS | final
        if batch.sequence == (count + 1) % _SEQUENCES:
            return last + batch.count
        behind = (count - final) % _SEQUENCES
        if behind < _SEQUENCES // 2 and behind <= count:
            return last - behind
        raise KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"sequence number {batch.sequence} doesn't follow {count % _SEQUENCES}",
        )

    async def _repeated(self, batches: list[Batch]) -> int:
        """Return the offset of batches that were sent before, once they are stored; KafkaError if it is unknown."""
        while self._task is not None:
            await asyncio.wait([self._task])
        offset = UNKNOWN_OFFSET
        if self._transaction is None:
            offset = (await self._topic.log.tail(self._partition)).recent_offset(batches[0])
        self._check_known(offset)
        return offset

    def _check_known(self, offset: int) -> None:
        """Raise the error for a batch stored at an unknown offset. Clients count a batch's records from its offset, so
        -1 would be reported as -1, 0, 1 and so on."""
        if offset == UNKNOWN_OFFSET and self._producer != NO_PRODUCER:
            raise KafkaError(
                ErrorCode.duplicate_sequence_number, "the batch is stored; its offset isn't known any more"
            )

    async def _store(self) -> None:
        """Store what waits until nothing does."""
        try:
            while self._waiting:
                taken = [self._waiting.popleft()]
                size = taken[0].size
                while self._waiting and size + self._waiting[0].size <= KAFKA_APPEND_BYTES:
                    size += self._waiting[0].size
                    taken.append(self._waiting.popleft())
                try:
                    await self._store_all(taken)
                except NadiError as error:
                    self._fail([*taken, *self._waiting], error)
                    self._waiting.clear()
                    self._size = 0
                    return
                self._size -= size
        finally:
            self._task = None

    async def _store_all(self, taken: list[_WaitingBatches]) -> None:
        assert self._writer is not None, "put has opened it"
        events = [
            NumberedEvent(number, self._position, batch.data)
            for waiting in taken
            for number, batch in zip(waiting.numbers, waiting.batches, strict=True)
        ]
        batches = {
            number: batch for waiting in taken for number, batch in zip(waiting.numbers, waiting.batches, strict=True)
        }
        offsets: dict[int, int] = {}
        for stored in await self._writer.write(events, _TIMEOUT_S):
            offsets |= await self._offsets(stored, batches)
        for waiting in taken:
            self._answer(waiting.offset, offsets.get(waiting.numbers[0], UNKNOWN_OFFSET))

    def _answer(self, waiting: asyncio.Future[int], offset: int) -> None:
        if waiting.done():
            return
        try:
            self._check_known(offset)
        except KafkaError as error:
            waiting.set_exception(error)
            waiting.exception()  # the producer may have gone
        else:
            waiting.set_result(offset)

    async def _offsets(self, stored: StoredEvents, batches: dict[int, Batch]) -> dict[int, int]:
        """Return the first offset of each batch that was stored, by its event number."""
        if self._transaction is not None:
            return {event.number: self._take(batches[event.number].count) for event in stored.events}
        log = await self._topic.log.log(stored.segment)
        written = [batches[event.number] for event in stored.events]
        if stored.end < 0:  # its reply was lost
            await log.refresh()
            return {event.number: log.recent_offset(batches[event.number]) for event in stored.events}
        return dict(zip((event.number for event in stored.events), await log.add(stored.end, written), strict=True))

    def _take(self, count: int) -> int:
        self._expected += count
        return self._expected - count

    def _fail(self, waiting: Sequence[_WaitingBatches], error: NadiError) -> None:
        """Fail requests. The next request asks the segments which batches are stored."""
        self.close()
        for each in waiting:
            if not each.offset.done():
                each.offset.set_exception(error)
                each.offset.exception()  # the producer may have gone

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._last = None


class TransactionWriter:
    """Writes to one segment of a transaction, like an `IdempotentWriter` to a stream."""

    def __init__(self, shape: StreamShape, segment: SegmentRange, transaction_id: UUID, writer_id: bytes) -> None:
        name = transaction_segment_name(shape.name_of(segment.segment_id), transaction_id.int)
        self._appender = SegmentAppender(shape.stores, name, id_in(writer_id, segment.segment_id))
        self._segment = segment

    async def last_number(self, position: float) -> int:
        try:
            return await self._appender.last_number()
        except (SegmentNotFoundError, StreamSealedError):
            raise KafkaError(ErrorCode.invalid_txn_state, "the transaction has ended") from None

    async def write(self, events: Sequence[NumberedEvent], timeout: float | None = None) -> list[StoredEvents]:
        try:
            async with asyncio.timeout(timeout):
                framed = frame_events([event.data for event in events])
                await self._appender.append_block(framed, len(events), events[-1].number)
        except (SegmentNotFoundError, StreamSealedError):
            raise KafkaError(ErrorCode.invalid_txn_state, "the transaction has ended") from None
        except TimeoutError:
            raise KafkaError(ErrorCode.request_timed_out) from None
        return [StoredEvents(self._segment, UNKNOWN_OFFSET, list(events))]

    def close(self) -> None:
        self._appender.close()


class Producing:
    """The writers of a door, by topic, partition, producer and transaction."""

    def __init__(self) -> None:
        self._writers: LRUCache[tuple[str, int, int, UUID | None], _PartitionWriter] = LRUCache(KAFKA_WRITERS)

    async def put(
        self, topic: Topic, partition: int, batches: list[Batch], transaction: StreamTransaction | None = None
    ) -> Awaitable[int]:
        """Queue the batches of one request for a partition; return an awaitable of the first record's offset."""
        producer = batches[0].producer_id
        key = topic.name, partition, producer, None if transaction is None else transaction.transaction_id
        writer = self._writers.get(key)
        if writer is None:
            self._close_idle()
            writer = self._writers[key] = _PartitionWriter(topic, partition, producer, transaction)
        return await writer.put(batches)

    def active(self, topic: str, partition: int) -> list[dict[str, int]]:
        """Describe the producers that have written to a partition through this door."""
        writers = [writer for key, writer in self._writers.items() if key[:2] == (topic, partition)]
        return [fields for writer in writers if (fields := writer.described()) is not None]

    def end_transaction(self, producer: int) -> None:
        """Close the writers of a producer's transaction, which has ended."""
        for key in [key for key in self._writers if key[2] == producer and key[3] is not None]:
            self._writers.pop(key).close()

    def _close_idle(self) -> None:
        if len(self._writers) < KAFKA_WRITERS:
            return
        for key in list(self._writers)[: KAFKA_WRITERS // 10]:
            if self._writers[key].is_idle:
                self._writers.pop(key).close()

    def close_topic(self, name: str) -> None:
        for key in [key for key in self._writers if key[0] == name]:
            self._writers.pop(key).close()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()
