"""Kafka's transactions as transactions of nadi: one for each stream that a Kafka transaction writes to.

The door that coordinates a transactional id changes its record by compare-and-set. The record's state decides: once it
says that the transaction is being committed, this door or a later one commits the streams' transactions, then stores
the groups' offsets. So no consumer ever sees records that are aborted or undecided, whatever it asks for.

Protocol: https://cwiki.apache.org/confluence/display/KAFKA/KIP-98
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import entries_of, remove_all
from nadi.client.tables.table import ABSENT, ANY_VERSION, Table
from nadi.errors import ConditionFailedError, NadiError, NotFoundError, TransactionFailedError
from nadi.kafka.group_records import CommittedOffset, commit_key
from nadi.kafka.messages import ErrorCode, KafkaError
from nadi.kafka.topics import stream_of
from nadi.limits import KAFKA_TRANSACTION_S, KAFKA_TRANSACTIONAL_ID_S, KAFKA_TRANSACTIONS_CHECKED_S, TXN_LEASE_MAX_MS
from nadi.naming import segment_epoch
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableEntry

log = logging.getLogger(__name__)
EMPTY, ONGOING, COMMITTING, STORING, ABORTING = "empty", "ongoing", "committing", "storing", "aborting"
_LAST_EPOCH = (1 << 15) - 1
_TRANSACTIONS, _PENDING = b"transaction/", b"pending/"


class StreamTransaction(msgspec.Struct, frozen=True, array_like=True):
    """The transaction of one stream. epoch: of the stream's segments that it writes to."""

    transaction_id: UUID
    epoch: int


class StoredTransaction(msgspec.Struct, frozen=True, array_like=True):
    """The record of a transactional id, which belongs to the user that first used it.

    state: STORING once all streams are committed, and the offsets are stored. used_ms: when it was last changed.
    raised_from: the epoch with which the producer itself asked for its present one; -1 if a new instance did.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = EMPTY
    started_ms: int = 0
    partitions: tuple[tuple[str, int], ...] = ()
    streams: dict[str, StreamTransaction] = {}
    groups: tuple[str, ...] = ()
    user: str = ""
    used_ms: int = 0
    raised_from: int = -1


class ProducerInstance(NamedTuple):
    """The sender of a request: its transactional id, its user, and the producer's id and epoch; -1 for none yet."""

    name: str
    user: str
    producer_id: int
    epoch: int


class _Record(msgspec.Struct):
    """A record as it was read; version: in the table."""

    stored: StoredTransaction | None
    version: int


class Transactions:
    """The transactions of the scope; this door coordinates those for which `is_own` returns True."""

    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        table: Table,
        is_own: Callable[[str], bool],
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._stores, self._scope, self._table = stores, scope, table
        self._is_own, self._new_producer_id = is_own, new_producer_id
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: dict[str, StoredTransaction] = {}  # as this door last read them, for batches
        self._checking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._checking = asyncio.create_task(self._check_on(), name="check Kafka transactions")

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            with suppress(asyncio.CancelledError):
                await self._checking

    # --- producers ----------------------------------------------------------------------------

    async def begin_producer(self, producer: ProducerInstance, timeout_ms: int) -> tuple[int, int]:
        """Return a producer's id and epoch, after ending what an earlier instance has left; KafkaError."""
        if not 0 < timeout_ms <= KAFKA_TRANSACTION_S * 1000:
            raise KafkaError(ErrorCode.invalid_transaction_timeout)
        name = producer.name
        async with self._turn(name):
            record = await self._read(name)
            stored = record.stored
            if stored is None:
                stored = StoredTransaction(await self._new_producer_id(), -1, timeout_ms, user=producer.user)
            _check_user(stored, producer)
            is_known = producer.producer_id >= 0
            if is_known and producer[2:] == (stored.producer_id, stored.raised_from):
                return stored.producer_id, stored.epoch  # a repeated request, whose response was lost
            if is_known and producer[2:] != (stored.producer_id, stored.epoch):
                raise KafkaError(ErrorCode.producer_fenced)
            if stored.state == ONGOING:
                stored = await self._ended(name, record, commits=False)
            elif stored.state != EMPTY:
                stored = await self._finished(name, record)
            if stored.epoch + 1 >= _LAST_EPOCH:
                stored = StoredTransaction(await self._new_producer_id(), -1, timeout_ms, user=stored.user)
            raised_from = stored.epoch if is_known else -1
            stored = msgspec.structs.replace(
                stored, epoch=stored.epoch + 1, timeout_ms=timeout_ms, raised_from=raised_from
            )
            await self._write(name, record, stored)
            return stored.producer_id, stored.epoch

    # --- a transaction ------------------------------------------------------------------------

    async def add_partitions(self, producer: ProducerInstance, partitions: Iterable[tuple[str, int]]) -> None:
        async with self._turn(producer.name):
            record = await self._current(producer)
            stored = _ongoing(record)
            new = [partition for partition in partitions if partition not in stored.partitions]
            streams = dict(stored.streams)
            for topic in {topic for topic, _ in new} - streams.keys():
                txn_id, segments = await self._stores.controller.create_transaction(
                    self._scope, stream_of(topic), TXN_LEASE_MAX_MS
                )
                streams[topic] = StreamTransaction(txn_id, max(segment_epoch(each.segment_id) for each in segments))
            if new or stored is not record.stored:
                changed = msgspec.structs.replace(stored, partitions=(*stored.partitions, *new), streams=streams)
                await self._write(producer.name, record, changed)

    async def add_group(self, producer: ProducerInstance, group: str) -> None:
        async with self._turn(producer.name):
            record = await self._current(producer)
            stored = _ongoing(record)
            if group not in stored.groups:
                changed = msgspec.structs.replace(stored, groups=(*stored.groups, group))
                await self._write(producer.name, record, changed)

    async def commit_offsets(
        self, producer: ProducerInstance, group: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> None:
        """Store offsets that count once the transaction is committed."""
        name = producer.name
        while True:
            record = await self._current(producer)
            assert record.stored is not None
            if record.stored.state != ONGOING or group not in record.stored.groups:
                raise KafkaError(ErrorCode.invalid_txn_state)
            entries = [
                WireTableEntry(_pending_key(group, name, *partition), ANY_VERSION, msgspec.msgpack.encode(offset))
                for partition, offset in offsets.items()
            ]
            try:
                await self._write(name, record, record.stored, entries)
            except KafkaError as error:
                if error.code != ErrorCode.concurrent_transactions:
                    raise
                continue  # the record has changed
            return

    async def stream_of_batch(self, producer: ProducerInstance, topic: str, partition: int) -> StreamTransaction:
        """Return the stream's transaction that a batch belongs to; KafkaError."""
        name = producer.name
        for is_cached in (True, False):
            if is_cached and not self._is_own(name):
                continue  # another door changes it
            stored = self._known.get(name) if is_cached else (await self._read(name)).stored
            if stored is None or (stored.producer_id, stored.epoch) != producer[2:]:
                continue
            _check_user(stored, producer)
            if stored.state == ONGOING and (topic, partition) in stored.partitions:
                return stored.streams[topic]
        if stored is None or stored.producer_id != producer.producer_id:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        is_current = stored.epoch == producer.epoch
        raise KafkaError(ErrorCode.invalid_txn_state if is_current else ErrorCode.invalid_producer_epoch)

    async def end(self, producer: ProducerInstance, *, commits: bool) -> None:
        """Commit or abort the transaction; return once consumers see it."""
        name = producer.name
        async with self._turn(name):
            record = await self._current(producer)
            assert record.stored is not None
            if record.stored.state == EMPTY:
                return  # a repetition, or a transaction that wrote nothing
            is_committing = record.stored.state in (COMMITTING, STORING)
            if record.stored.state != ONGOING and is_committing != commits:
                raise KafkaError(ErrorCode.invalid_txn_state)
            if record.stored.state == ONGOING:
                await self._write(name, record, await self._ended(name, record, commits=commits))
            else:
                await self._write(name, record, await self._finished(name, record))

    async def pending(self, group: str) -> set[tuple[str, int]]:
        """Return the partitions whose offsets a transaction of the group may change."""
        partitions = set()
        async for entry in entries_of(self._stores, self._scope, self._table, _pending_of(group)):
            _, topic, partition = entry.key.decode().rsplit("\0", 2)
            partitions.add((topic, int(partition)))
        return partitions

    async def all(self) -> AsyncIterator[tuple[str, StoredTransaction]]:
        """Yield each transactional id with its record."""
        async for entry in entries_of(self._stores, self._scope, self._table, _TRANSACTIONS):
            yield entry.key.decode(), msgspec.msgpack.decode(entry.value, type=StoredTransaction)

    async def stored(self, name: str) -> StoredTransaction | None:
        return (await self._read(name)).stored

    # --- ending -------------------------------------------------------------------------------

    async def _ended(self, name: str, record: _Record, *, commits: bool) -> StoredTransaction:
        """Decide an ongoing transaction and carry it out; return its record, to be written."""
        assert record.stored is not None
        state = COMMITTING if commits else ABORTING
        await self._write(name, record, msgspec.structs.replace(record.stored, state=state))
        return await self._finished(name, record)

    async def _finished(self, name: str, record: _Record) -> StoredTransaction:
        """Carry out what the record has decided; return its record, to be written."""
        stored = record.stored
        assert stored is not None
        for topic, each in stored.streams.items():
            with suppress(NotFoundError):  # the stream was deleted
                if stored.state == ABORTING:
                    await self._abort(topic, each.transaction_id)
                elif stored.state == COMMITTING:
                    await self._commit(topic, each.transaction_id)
        if stored.state == COMMITTING:
            offsets = []
            for group in stored.groups:
                async for entry in entries_of(self._stores, self._scope, self._table, _pending_of(group, name)):
                    topic, _, partition = entry.key.decode().rpartition("\0")
                    offsets.append(WireTableEntry(commit_key(group, topic, int(partition)), ANY_VERSION, entry.value))
            stored = msgspec.structs.replace(stored, state=STORING)
            await self._write(name, record, stored, offsets)
        for group in stored.groups:
            await remove_all(self._stores, self._scope, self._table, _pending_of(group, name))
        return msgspec.structs.replace(stored, state=EMPTY, partitions=(), streams={}, groups=(), started_ms=0)

    async def _commit(self, topic: str, txn_id: UUID) -> None:
        controller, stream = self._stores.controller, stream_of(topic)
        try:
            await controller.commit_transaction(self._scope, stream, txn_id)
        except TransactionFailedError:
            if await controller.transaction_state(self._scope, stream, txn_id) not in ("COMMITTING", "COMMITTED"):
                raise
        await controller.await_commit(self._scope, stream, [txn_id])

    async def _abort(self, topic: str, txn_id: UUID) -> None:
        with suppress(TransactionFailedError):  # it has ended
            await self._stores.controller.abort_transaction(self._scope, stream_of(topic), txn_id)

    async def _check_on(self) -> None:
        """End the transactions that have timed out, or whose door has died while it ended them, and remove the records
        of transactional ids that aren't used any more."""
        while True:
            self._known = {name: stored for name, stored in self._known.items() if self._is_own(name)}
            try:
                async for name, stored in self.all():
                    if (stored.state != EMPTY or _is_old(stored)) and self._is_own(name):
                        try:
                            await self._check(name)
                        except NadiError as error:  # the others don't wait for it
                            log.warning("the Kafka transaction of %s can't be ended: %s", name, error)
            except NadiError as error:
                log.warning("Kafka transactions could not be checked: %s", error)
            await asyncio.sleep(KAFKA_TRANSACTIONS_CHECKED_S)

    async def _check(self, name: str) -> None:
        async with self._turn(name):
            record = await self._read(name)
            stored = record.stored
            if stored is None or stored.state == EMPTY:
                if stored is not None and _is_old(stored):
                    with suppress(ConditionFailedError):  # it is used again
                        await self._table.remove(_TRANSACTIONS + name.encode(), record.version)
                        self._known.pop(name, None)
                return
            if stored.state == ONGOING:
                if _now_ms() < stored.started_ms + stored.timeout_ms:
                    return
                stored = await self._ended(name, record, commits=False)
                stored = msgspec.structs.replace(
                    stored, epoch=stored.epoch + 1, raised_from=-1
                )  # the producer is fenced
            else:
                stored = await self._finished(name, record)
            await self._write(name, record, stored)

    # --- records ------------------------------------------------------------------------------

    def _turn(self, name: str) -> asyncio.Lock:
        if not name or "\0" in name or len(name) > 255:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id has 1 to 255 characters")
        return self._turns.setdefault(name, asyncio.Lock())

    async def _current(self, producer: ProducerInstance) -> _Record:
        """Return the record of this producer; KafkaError."""
        record = await self._read(producer.name)
        if record.stored is None or record.stored.producer_id != producer.producer_id:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        _check_user(record.stored, producer)
        if record.stored.epoch != producer.epoch:
            raise KafkaError(ErrorCode.producer_fenced)
        return record

    async def _read(self, name: str) -> _Record:
        entry = await self._table.get(_TRANSACTIONS + name.encode())
        if entry is None:
            return _Record(None, ABSENT)
        stored = msgspec.msgpack.decode(entry.value, type=StoredTransaction)
        self._known[name] = stored
        return _Record(stored, entry.version)

    async def _write(
        self, name: str, record: _Record, stored: StoredTransaction, more: Iterable[WireTableEntry] = ()
    ) -> None:
        """Replace the record, in one step with other entries; KafkaError if it has changed."""
        stored = msgspec.structs.replace(stored, used_ms=_now_ms())
        entry = WireTableEntry(_TRANSACTIONS + name.encode(), record.version, msgspec.msgpack.encode(stored))
        update = wire.UpdateTableEntries(0, self._table.segment, "", (entry, *more))
        try:
            versions = (await self._stores.ask(update, wire.TableEntriesUpdated, repeat=False)).versions
        except ConditionFailedError:
            self._known.pop(name, None)
            raise KafkaError(ErrorCode.concurrent_transactions) from None
        record.stored, record.version = stored, versions[0]
        self._known[name] = stored


def _check_user(stored: StoredTransaction, producer: ProducerInstance) -> None:
    if stored.user != producer.user:
        raise KafkaError(ErrorCode.transactional_id_authorization_failed, f"{producer.name} belongs to another user")


def _ongoing(record: _Record) -> StoredTransaction:
    """Return the record of an ongoing transaction, which may begin now; KafkaError."""
    stored = record.stored
    assert stored is not None
    if stored.state == EMPTY:
        return msgspec.structs.replace(stored, state=ONGOING, started_ms=_now_ms())
    if stored.state != ONGOING:
        raise KafkaError(ErrorCode.concurrent_transactions)
    return stored


def _pending_of(group: str, name: str | None = None) -> bytes:
    return _PENDING + group.encode() + b"\0" + (b"" if name is None else name.encode() + b"\0")


def _pending_key(group: str, name: str, topic: str, partition: int) -> bytes:
    return _pending_of(group, name) + f"{topic}\0{partition}".encode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_old(stored: StoredTransaction) -> bool:
    return _now_ms() > stored.used_ms + KAFKA_TRANSACTIONAL_ID_S * 1000
