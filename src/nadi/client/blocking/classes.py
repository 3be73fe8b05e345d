"""Blocking writers, readers, cuts, tables and shared state, as opened by the blocking StreamManager.

Writes are batched in the caller's thread, and local state is read without waiting. A group's reader returns buffered
events in the caller's thread, and waits for the client's thread only for the next block. Functions passed to `update`
and `compute` run in the client's thread, so they must not call the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, Unpack, overload
from uuid import UUID

from nadi.client import aio
from nadi.client.blocking.face import (
    Closing,
    Face,
    attribute,
    by_hand,
    each,
    ends,
    on_loop,
    opens,
    overloaded,
    same,
    waits,
)
from nadi.client.bytestream.byte_writer import check_lost, is_closed
from nadi.client.control.loop_thread import LoopThread
from nadi.client.control.policy import KeyValueTableConfiguration
from nadi.client.indexstream.index_reader import bytes_of
from nadi.client.readergroup.event_reads import EventRead, GroupReads, confirm_read, next_ready_of, pending_read
from nadi.client.readergroup.group import GroupReaderOptions
from nadi.client.readergroup.values import ValueRead
from nadi.client.reading.reader import confirm_block, pending_block
from nadi.client.serializers.plain import Serializer
from nadi.client.serializers.values import ValueEvent, reader_and_decoder, values_of
from nadi.client.writing.transactions import OpenTransaction
from nadi.errors import DamagedDataError, NadiError
from nadi.limits import NOTEBOOK_ASKS_S
from nadi.model.event import EventBlock
from nadi.model.reports import GroupLagReport

T = TypeVar("T")
Own = TypeVar("Own", bound=OpenTransaction)
R = TypeVar("R", bound=EventRead | ValueRead[Any])
S = TypeVar("S")
U = TypeVar("U")
V = TypeVar("V")
E = TypeVar("E", bound="str | int | bytes")
Core = TypeVar("Core", bound=aio.SharedState[Any, Any])


# --- writers and transactions --------------------------------------------------------------------------


class EventWriter(Closing[aio.EventWriter]):
    write_event = same(aio.EventWriter.write_event)
    write_batch = same(aio.EventWriter.write_batch)
    note_time = same(aio.EventWriter.note_time)
    flush = waits(aio.EventWriter.flush)
    close = waits(aio.EventWriter.close)


class _Open(Face[Own]):
    flush = waits(OpenTransaction.flush)
    commit = waits(OpenTransaction.commit)
    abort = waits(OpenTransaction.abort)
    ping = waits(OpenTransaction.ping)
    status = waits(OpenTransaction.status)
    __exit__ = waits(OpenTransaction.__aexit__)
    txn_id: UUID = attribute(OpenTransaction.txn_id)

    def __enter__(self) -> Self:
        return self


class Transaction(_Open[aio.Transaction]):
    write_event = same(aio.Transaction.write_event)
    write_batch = same(aio.Transaction.write_batch)


class TransactionalEventWriter(Closing[aio.TransactionalEventWriter]):
    begin_txn = opens(aio.TransactionalEventWriter.begin_txn, Transaction)
    get_txn = opens(aio.TransactionalEventWriter.get_txn, Transaction)
    commit_together = waits(aio.TransactionalEventWriter.commit_together)
    close = waits(aio.TransactionalEventWriter.close)


class ValueWriter(Closing[aio.ValueWriter[T]]):
    write_event = same(aio.ValueWriter[T].write_event)
    write_batch = same(aio.ValueWriter[T].write_batch)
    note_time = same(aio.ValueWriter[T].note_time)
    flush = waits(aio.ValueWriter[T].flush)
    close = waits(aio.ValueWriter[T].close)


class ValueTransaction(_Open[aio.ValueTransaction[T]]):
    write_event = same(aio.ValueTransaction[T].write_event)
    write_batch = same(aio.ValueTransaction[T].write_batch)


class TransactionalValueWriter(Closing[aio.TransactionalValueWriter[T]], Generic[T]):
    begin_txn = opens(aio.TransactionalValueWriter[T].begin_txn, ValueTransaction)
    get_txn = opens(aio.TransactionalValueWriter[T].get_txn, ValueTransaction)
    commit_together = waits(aio.TransactionalValueWriter[T].commit_together)
    close = waits(aio.TransactionalValueWriter[T].close)


# --- readers -------------------------------------------------------------------------------------------


class SliceReader(Closing[aio.SliceReader]):
    position = on_loop(aio.SliceReader.position)
    current_time_window = waits(aio.SliceReader.current_time_window)
    close = ends(on_loop(aio.SliceReader.close))
    skipped: list[DamagedDataError] = attribute(aio.SliceReader.skipped)

    @by_hand(aio.SliceReader.next_block)
    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        block = self._thread.run(pending_block(self._core, timeout))
        confirm_block(self._core)
        return block

    def __iter__(self) -> Iterator[tuple[int, EventBlock]]:
        while (entry := self.next_block()) is not None:
            yield entry

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export all events up to the end as an Arrow stream with the columns event, segment_id and offset."""
        import pyarrow as pa

        schema = pa.schema({"event": pa.binary(), "segment_id": pa.int64(), "offset": pa.int64()})
        batches = (
            block.to_arrow().add_column(1, schema.field(1), pa.repeat(pa.scalar(segment_id, pa.int64()), len(block)))
            for segment_id, block in self
        )
        return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)


class ValueReader(Closing[aio.ValueReader[T]], Generic[T]):
    position = on_loop(aio.ValueReader[T].position)
    current_time_window = waits(aio.ValueReader[T].current_time_window)
    close = ends(on_loop(aio.ValueReader[T].close))
    skipped: list[DamagedDataError] = attribute(aio.ValueReader[T].skipped)

    @by_hand(aio.ValueReader[T].next_events)
    def next_events(self, timeout: float | None = None) -> list[ValueEvent[T]] | None:
        reader, decoder = reader_and_decoder(self._core)
        entry = self._thread.run(pending_block(reader, timeout))
        if entry is None:
            return None
        segment_id, block = entry
        payloads = block.events()
        decode = decoder.at_hand(payloads) or self._thread.run(decoder.prepare(payloads))
        confirm_block(reader)
        return values_of(segment_id, block, payloads, decode)

    def __iter__(self) -> Iterator[list[ValueEvent[T]]]:
        while (events := self.next_events()) is not None:
            yield events


class Schemas(Face[aio.SchemaGroup]):
    register = waits(aio.SchemaGroup.register)
    check = waits(aio.SchemaGroup.check)
    versions = waits(aio.SchemaGroup.versions)
    version = waits(aio.SchemaGroup.version)
    definition = waits(aio.SchemaGroup.definition)
    compatibility = waits(aio.SchemaGroup.compatibility)
    set_compatibility = waits(aio.SchemaGroup.set_compatibility)
    delete = waits(aio.SchemaGroup.delete)


# --- reader groups -------------------------------------------------------------------------------------


class _Reader(Face[GroupReads[R]]):
    positions = on_loop(GroupReads[R].positions)
    current_time_window = waits(GroupReads[R].current_time_window)
    close = ends(waits(GroupReads[R].close))

    def __init__(self, thread: LoopThread, core: GroupReads[R]) -> None:
        super().__init__(thread, core)
        self._next_ready = next_ready_of(core)

    @property
    def name(self) -> str:
        """The reader's id in its group."""
        return self._core.name

    @by_hand(GroupReads[R].read_next_event)
    def read_next_event(self, timeout: float | None = None) -> R | None:
        ready = self._next_ready()
        return ready if ready is not None else self._read(timeout, as_block=False)

    @by_hand(GroupReads[R].read_next_block)
    def read_next_block(self, timeout: float | None = None) -> R | None:
        return self._read(timeout, as_block=True)

    def _read(self, timeout: float | None, *, as_block: bool) -> R | None:
        read = self._thread.run(pending_read(self._core, timeout, as_block=as_block))
        confirm_read(self._core)
        return read

    def __iter__(self) -> Iterator[R]:
        """Iterate over events and other results until everything is read."""
        return self._until_completed(self.read_next_event)

    def blocks(self) -> Iterator[R]:
        """Iterate like the reader itself, but by blocks, with `read_next_block`."""
        return self._until_completed(self.read_next_block)

    def _until_completed(self, read: Callable[[], R | None]) -> Iterator[R]:
        while True:
            result = read()
            assert result is not None
            if result.is_read_completed:
                return
            yield result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(is_done=error is None)


class EventReader(_Reader[EventRead]):
    __doc__ = aio.EventReader.__doc__


class GroupValueReader(_Reader[ValueRead[T]], Generic[T]):
    __doc__ = aio.GroupValueReader.__doc__


class ReaderGroup(Face[aio.ReaderGroup]):
    online_readers = waits(aio.ReaderGroup.online_readers)
    stream_names = waits(aio.ReaderGroup.stream_names)
    segments_of_readers = waits(aio.ReaderGroup.segments_of_readers)
    stream_cuts = waits(aio.ReaderGroup.stream_cuts)
    checkpoints = waits(aio.ReaderGroup.checkpoints)
    unread_bytes = waits(aio.ReaderGroup.unread_bytes)
    lag = waits(aio.ReaderGroup.lag)
    notifications = each(aio.ReaderGroup.notifications)
    reader_offline = waits(aio.ReaderGroup.reader_offline)
    initiate_checkpoint = waits(aio.ReaderGroup.initiate_checkpoint)
    generate_stream_cuts = waits(aio.ReaderGroup.generate_stream_cuts)
    stream_cuts_on_condition = waits(aio.ReaderGroup.stream_cuts_on_condition)
    reset_reader_group = waits(aio.ReaderGroup.reset_reader_group)
    update_retention_stream_cut = waits(aio.ReaderGroup.update_retention_stream_cut)

    @property
    def scope(self) -> str:
        """The group's scope."""
        return self._core.scope

    @property
    def name(self) -> str:
        """The group's name in its scope."""
        return self._core.name

    def _repr_html_(self) -> str:
        """Show the group's current lag in notebooks; queries the server."""
        from nadi.display import table

        title = f"ReaderGroup {self.scope}/{self.name}"

        async def current_lag() -> list[GroupLagReport]:
            async with asyncio.timeout(NOTEBOOK_ASKS_S):
                return await self._core.lag()

        try:
            return table(self._thread.run(current_lag()), title, "")
        except NadiError as error:
            return table([], title, f"lag unknown: {error}")
        except TimeoutError:
            return table([], title, f"lag unknown: the server didn't answer within {NOTEBOOK_ASKS_S:g} s")

    @overload
    def create_reader(self, reader_id: str, **options: Unpack[GroupReaderOptions]) -> EventReader: ...
    @overload
    def create_reader(
        self, reader_id: str, *, serializer: Serializer[T], **options: Unpack[GroupReaderOptions]
    ) -> GroupValueReader[T]: ...
    @overloaded(
        aio.ReaderGroup.create_reader,
        {aio.EventReader: EventReader, aio.GroupValueReader: GroupValueReader},
    )
    def create_reader(self, *args: Any, **options: Any) -> Any: ...


class ReaderGroupManager(Face[aio.ReaderGroupManager]):
    create_reader_group = waits(aio.ReaderGroupManager.create_reader_group)
    get_reader_group = opens(aio.ReaderGroupManager.get_reader_group, ReaderGroup)
    delete_reader_group = waits(aio.ReaderGroupManager.delete_reader_group)
    list_reader_groups = waits(aio.ReaderGroupManager.list_reader_groups)
    lag = waits(aio.ReaderGroupManager.lag)


# --- stream cuts, and named records of a scope ---------------------------------------------------------


class StreamCuts(Face[aio.StreamCuts]):
    head = waits(aio.StreamCuts.head)
    tail = waits(aio.StreamCuts.tail)
    at = waits(aio.StreamCuts.at)
    named = waits(aio.StreamCuts.named)
    after = waits(aio.StreamCuts.after)
    before = waits(aio.StreamCuts.before)
    arrival_times = waits(aio.StreamCuts.arrival_times)
    at_event_time = waits(aio.StreamCuts.at_event_time)
    after_event_time = waits(aio.StreamCuts.after_event_time)
    between = waits(aio.StreamCuts.between)
    check = waits(aio.StreamCuts.check)
    settled = waits(aio.StreamCuts.settled)
    compare = waits(aio.StreamCuts.compare)
    earliest = waits(aio.StreamCuts.earliest)
    latest = waits(aio.StreamCuts.latest)
    segments_between = waits(aio.StreamCuts.segments_between)
    bytes_between = waits(aio.StreamCuts.bytes_between)
    events_between = waits(aio.StreamCuts.events_between)


class Bookmarks(Face[aio.Bookmarks]):
    create = waits(aio.Bookmarks.create)
    get = waits(aio.Bookmarks.get)
    list = waits(aio.Bookmarks.list)
    unreadable = waits(aio.Bookmarks.unreadable)
    list_with_unreadable = waits(aio.Bookmarks.list_with_unreadable)
    tag = waits(aio.Bookmarks.tag)
    rename = waits(aio.Bookmarks.rename)
    delete = waits(aio.Bookmarks.delete)


class NamedSlices(Face[aio.NamedSlices]):
    create = waits(aio.NamedSlices.create)
    get = waits(aio.NamedSlices.get)
    list = waits(aio.NamedSlices.list)
    unreadable = waits(aio.NamedSlices.unreadable)
    list_with_unreadable = waits(aio.NamedSlices.list_with_unreadable)
    tag = waits(aio.NamedSlices.tag)
    rename = waits(aio.NamedSlices.rename)
    delete = waits(aio.NamedSlices.delete)


class StreamTables(Face[aio.StreamTables]):
    define = waits(aio.StreamTables.define)
    get = waits(aio.StreamTables.get)
    list = waits(aio.StreamTables.list)
    unreadable = waits(aio.StreamTables.unreadable)
    list_with_unreadable = waits(aio.StreamTables.list_with_unreadable)
    delete = waits(aio.StreamTables.delete)


# --- index streams -------------------------------------------------------------------------------------


class IndexReader(Closing[aio.IndexReader]):
    record_size = waits(aio.IndexReader.record_size)
    head = waits(aio.IndexReader.head)
    tail = waits(aio.IndexReader.tail)
    first = waits(aio.IndexReader.first)
    last = waits(aio.IndexReader.last)
    at = waits(aio.IndexReader.at)
    search = waits(aio.IndexReader.search)
    read = each(aio.IndexReader.read)
    close = ends(waits(aio.IndexReader.close))


class IndexWriter(Closing[aio.IndexWriter]):
    last = same(aio.IndexWriter.last)
    tell = same(aio.IndexWriter.tell)
    append = waits(aio.IndexWriter.append)
    flush = waits(aio.IndexWriter.flush)
    truncate_before = waits(aio.IndexWriter.truncate_before)
    close_and_seal = waits(aio.IndexWriter.close_and_seal)
    record_size: int = attribute(aio.IndexWriter.record_size)
    data_limit: int = attribute(aio.IndexWriter.data_limit)

    @by_hand(aio.IndexWriter.close)
    def close(self, timeout: float | None = None) -> None:
        """See nadi.client.aio.IndexWriter.close."""
        if is_closed(bytes_of(self._core)):  # perhaps with the client, whose thread has ended
            check_lost(bytes_of(self._core))
        else:
            self._thread.run(self._core.close(timeout))


# --- tables and shared state ---------------------------------------------------------------------------


class Table(Face[aio.Table]):
    create = waits(aio.Table.create)
    delete = waits(aio.Table.delete)
    get = waits(aio.Table.get)
    put = waits(aio.Table.put)
    remove = waits(aio.Table.remove)


class KeyValueTable(Face[aio.KeyValueTable]):
    get = waits(aio.KeyValueTable.get)
    insert = waits(aio.KeyValueTable.insert)
    put = waits(aio.KeyValueTable.put)
    remove = waits(aio.KeyValueTable.remove)
    exists = waits(aio.KeyValueTable.exists)
    get_all = waits(aio.KeyValueTable.get_all)
    update = waits(aio.KeyValueTable.update)
    pages = each(aio.KeyValueTable.pages)
    key_pages = each(aio.KeyValueTable.key_pages)
    entries = each(aio.KeyValueTable.entries)
    keys = each(aio.KeyValueTable.keys)
    entry_count = waits(aio.KeyValueTable.entry_count)
    configuration: KeyValueTableConfiguration = attribute(aio.KeyValueTable.configuration)


class StateSynchronizer(Face[aio.StateSynchronizer[S, U]]):
    refresh = waits(aio.StateSynchronizer[S, U].refresh)
    initialize = waits(aio.StateSynchronizer[S, U].initialize)
    update = waits(aio.StateSynchronizer[S, U].update)
    compact = waits(aio.StateSynchronizer[S, U].compact)
    state: S = attribute(aio.StateSynchronizer[S, U].state)
    revision: int = attribute(aio.StateSynchronizer[S, U].revision)


class SharedState(Face[Core]):
    refresh = waits(aio.SharedState[Any, Any].refresh)
    compact = waits(aio.SharedState[Any, Any].compact)
    name: str = attribute(aio.SharedState[Any, Any].name)
    revision: int = attribute(aio.SharedState[Any, Any].revision)


class SharedMap(SharedState[aio.SharedMap[V]], Generic[V]):
    get = same(aio.SharedMap[V].get)
    as_dict = same(aio.SharedMap[V].as_dict)
    put = waits(aio.SharedMap[V].put)
    put_all = waits(aio.SharedMap[V].put_all)
    put_if_absent = waits(aio.SharedMap[V].put_if_absent)
    replace = waits(aio.SharedMap[V].replace)
    compute = waits(aio.SharedMap[V].compute)
    remove = waits(aio.SharedMap[V].remove)
    clear = waits(aio.SharedMap[V].clear)

    def __getitem__(self, key: str) -> V:
        return self._core[key]

    def __contains__(self, key: object) -> bool:
        return key in self._core

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[str]:
        return iter(self._core)


class SharedSet(SharedState[aio.SharedSet[E]], Generic[E]):
    as_set = same(aio.SharedSet[E].as_set)
    add = waits(aio.SharedSet[E].add)
    discard = waits(aio.SharedSet[E].discard)
    change = waits(aio.SharedSet[E].change)

    def __contains__(self, element: object) -> bool:
        return element in self._core

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[E]:
        return iter(self._core)


class SharedCounter(SharedState[aio.SharedCounter]):
    add = waits(aio.SharedCounter.add)
    compare_and_set = waits(aio.SharedCounter.compare_and_set)
    value: int = attribute(aio.SharedCounter.value)


class Journal(SharedState[aio.Journal]):
    entries = same(aio.Journal.entries)
    append = waits(aio.Journal.append)
    append_all = waits(aio.Journal.append_all)
    append_at = waits(aio.Journal.append_at)
    trim = waits(aio.Journal.trim)
    first_index: int = attribute(aio.Journal.first_index)
    next_index: int = attribute(aio.Journal.next_index)

    def __len__(self) -> int:
        return len(self._core)


class LeaderElection(SharedState[aio.LeaderElection]):
    token = same(aio.LeaderElection.token)
    leader = same(aio.LeaderElection.leader)
    campaign = waits(aio.LeaderElection.campaign)
    resign = waits(aio.LeaderElection.resign)
