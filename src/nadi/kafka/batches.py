"""Headers of Kafka's record batches (version 2), which pass through undecoded.

A stored event is one batch as its producer sent it. Two header fields are outside the batch's checksum and belong to
the broker: the first offset, which is stored as 0, and the leader's epoch, in which the partition's number is stored.

Layout: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import crc32c

from nadi.client.serializers.kafka import (
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Record,
    appended_at,
    batch_of,
    records_of,
)
from nadi.errors import SerializationError
from nadi.kafka.messages import ErrorCode, KafkaError
from nadi.limits import KAFKA_BATCH_RECORDS

NO_TIME = -1
_PREFIX = struct.Struct(">qii")  # first offset, length of what follows it, leader's epoch
_PREFIX_BYTES = 12  # not counted by the length
_CHECKED_FROM = 21  # the checksum covers the bytes from here
_MAGIC = 2
_CONTROL, _TRANSACTIONAL, _CODEC = 0x20, 0x10, 0x07
_LAST_CODEC = 4
_LEAST_RECORD_BYTES = 7  # length, attributes, time, offset, key, value and headers, a byte each


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's header. count: offsets that it takes. max_ms: of its records' timestamps, in ms since 1970.
    sequence: of its first record; producer_id is -1 without idempotence. data: the whole event. is_plain: it isn't a
    batch, but the value of one record.
    """

    partition: int
    count: int
    max_ms: int
    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    data: bytes
    is_plain: bool = False

    def repeats(self, other: Batch) -> bool:
        """Return whether a producer sent the same batch twice, maybe to be stored with another time."""
        if self.producer_id < 0:
            return self.data == other.data
        numbers = self.producer_id, self.epoch, self.sequence
        return numbers == (other.producer_id, other.epoch, other.sequence)

    def appended_at(self, time_ms: int) -> Batch:
        return replace(self, data=appended_at(self.data, time_ms), max_ms=time_ms)


def read_header(data: bytes) -> Batch | None:
    """Return the header of a stored event; None if the event isn't a batch."""
    if len(data) < HEADER_BYTES:
        return None
    _, size, partition, magic, _, attributes, last, _, max_ms, producer, epoch, sequence, _ = HEADER.unpack_from(data)
    if magic != _MAGIC or size != len(data) - _PREFIX_BYTES or last < 0 or partition < 0:
        return None
    return Batch(partition, last + 1, max_ms, producer, epoch, sequence, bool(attributes & _TRANSACTIONAL), data)


def event_batch(event: bytes, partitions: Collection[int], spare: int) -> Batch:
    """Return a stored event as a batch: its own if that is for one of these partitions, else one for the spare one."""
    batch = read_header(event)
    if batch is None:
        return Batch(spare, 1, NO_TIME, -1, -1, -1, False, event, is_plain=True)
    return batch if batch.partition in partitions else replace(batch, partition=spare)


def check_batches(records: bytes, partition: int) -> list[Batch]:
    """Return the batches of a produce request, with the partition in their headers; KafkaError."""
    batches = []
    position = 0
    while position < len(records):
        if len(records) - position < HEADER_BYTES:
            raise KafkaError(
                ErrorCode.corrupt_message, f"{len(records) - position} bytes are left after the last record batch"
            )
        size = _PREFIX.unpack_from(records, position)[1] + _PREFIX_BYTES
        if size < HEADER_BYTES or position + size > len(records):
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"a record batch states a length of {size:,} bytes, of {len(records) - position:,}",
            )
        whole = _PREFIX.pack(0, size - _PREFIX_BYTES, partition) + records[position + _PREFIX.size : position + size]
        batch = read_header(whole)
        _, _, _, magic, crc, attributes, last, _, _, _, _, _, count = HEADER.unpack_from(whole)
        if batch is None:
            raise KafkaError(ErrorCode.corrupt_message, f"record batches must have version {_MAGIC}, not {magic}")
        if crc != crc32c.crc32c(memoryview(whole)[_CHECKED_FROM:]):
            raise KafkaError(ErrorCode.corrupt_message, "a record batch doesn't match its checksum")
        if count != last + 1 or attributes & (_CONTROL | LOG_APPEND_TIME) or attributes & _CODEC > _LAST_CODEC:
            raise KafkaError(
                ErrorCode.invalid_record,
                "a producer may not send control batches, log append times or offsets with gaps",
            )
        most = KAFKA_BATCH_RECORDS if attributes & _CODEC else (size - HEADER_BYTES) // _LEAST_RECORD_BYTES
        if not 0 < count <= most:
            raise KafkaError(
                ErrorCode.invalid_record, f"a record batch states {count:,} records; at most {most:,} are possible"
            )
        batches.append(batch)
        position += size
    return batches


class InvalidRecordsError(KafkaError):
    """Records of a batch are refused, and the batch with them. indexes: theirs in the batch."""

    def __init__(self, message: str, indexes: Sequence[int]) -> None:
        super().__init__(ErrorCode.invalid_record, message)
        self.indexes = indexes


def check_keys(batches: Iterable[Batch]) -> None:
    """Check that all records have keys; InvalidRecordsError, KafkaError."""
    for batch in batches:
        try:
            missing = [index for index, record in enumerate(records_of(batch.data)) if record.key is None]
        except SerializationError as error:
            raise KafkaError(ErrorCode.corrupt_message, str(error)) from error
        if missing:
            raise InvalidRecordsError("a compacted topic takes only records with keys", missing)


def placed(batch: Batch, offset: int) -> bytes:
    """Return a batch as consumers get it, with the offset of its first record."""
    if batch.is_plain:
        return placed(replace(batch, data=batch_of([Record(0, NO_TIME, None, batch.data)]), is_plain=False), offset)
    return _PREFIX.pack(offset, len(batch.data) - _PREFIX_BYTES, 0) + batch.data[_PREFIX.size :]
