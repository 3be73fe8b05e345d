"""The blocking StreamManager, with the thread that runs the asyncio StreamManager.

The thread ends with `close` or with the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, Unpack, overload

from nadi.client import aio
from nadi.client.blocking import classes
from nadi.client.blocking.byte_file import ByteStreamReader, ByteStreamWriter
from nadi.client.blocking.face import Closing, by_hand, described, each, gives, opens, overloaded, waits
from nadi.client.control.arguments import check_timeout
from nadi.client.control.loop_thread import LoopThread
from nadi.client.control.security import Credentials
from nadi.client.manager.event_streams import ReaderOptions, TransactionWriterOptions, WriterOptions
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import Event, events_of
from nadi.client.serializers.plain import Serializer
from nadi.client.serializers.values import ValueEvent
from nadi.defaults import DEFAULT_URI
from nadi.model.streamcut import StreamCut

T = TypeVar("T")


class StreamManager(Closing[aio.StreamManager]):
    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
    ) -> None:
        thread = LoopThread(f"nadi client of {controller_uri}")
        try:
            core = thread.result(
                aio.StreamManager,
                controller_uri,
                credentials=credentials,
                trust_store=trust_store,
                validate_host_name=validate_host_name,
                timeout=timeout,
                blocking=True,
            )
        except BaseException:
            thread.close(asyncio.sleep(0))
            raise
        super().__init__(thread, core)

    @by_hand(aio.StreamManager.close)
    def close(self) -> None:
        self._thread.close(self._core.close())

    # --- scopes, streams, segments ------------------------------------------------------------

    scrub = waits(aio.StreamManager.scrub)
    create_scope = waits(aio.StreamManager.create_scope)
    delete_scope = waits(aio.StreamManager.delete_scope)
    list_scopes = waits(aio.StreamManager.list_scopes)
    list_quotas = waits(aio.StreamManager.list_quotas)
    quota = waits(aio.StreamManager.quota)
    create_quota = waits(aio.StreamManager.create_quota)
    update_quota = waits(aio.StreamManager.update_quota)
    delete_quota = waits(aio.StreamManager.delete_quota)
    create_stream = waits(aio.StreamManager.create_stream)
    update_stream = waits(aio.StreamManager.update_stream)
    stream_configuration = waits(aio.StreamManager.stream_configuration)
    delete_stream = waits(aio.StreamManager.delete_stream)
    seal_stream = waits(aio.StreamManager.seal_stream)
    truncate_stream = waits(aio.StreamManager.truncate_stream)
    list_streams = waits(aio.StreamManager.list_streams)
    stream_info = waits(aio.StreamManager.stream_info)
    retained = waits(aio.StreamManager.retained)
    segment_info = waits(aio.StreamManager.segment_info)
    current_segments = waits(aio.StreamManager.current_segments)
    segment_history = waits(aio.StreamManager.segment_history)
    segment_loads = waits(aio.StreamManager.segment_loads)
    scaling_log = waits(aio.StreamManager.scaling_log)
    reader_lags = waits(aio.StreamManager.reader_lags)
    segments_between = waits(aio.StreamManager.segments_between)
    scale_stream = waits(aio.StreamManager.scale_stream)
    cuts = gives(aio.StreamManager.cuts, classes.StreamCuts)
    bookmarks = gives(aio.StreamManager.bookmarks, classes.Bookmarks)
    slices = gives(aio.StreamManager.slices, classes.NamedSlices)
    stream_tables = gives(aio.StreamManager.stream_tables, classes.StreamTables)
    open_slice = opens(aio.StreamManager.open_slice, classes.SliceReader)
    reader_group_manager = gives(aio.StreamManager.reader_group_manager, classes.ReaderGroupManager)
    table = gives(aio.StreamManager.table, classes.Table)

    # --- structures -----------------------------------------------------------------------------

    create_byte_reader = opens(aio.StreamManager.create_byte_reader, ByteStreamReader)
    create_index_reader = opens(aio.StreamManager.create_index_reader, classes.IndexReader)
    create_index_writer = opens(aio.StreamManager.create_index_writer, classes.IndexWriter)
    create_key_value_table = waits(aio.StreamManager.create_key_value_table)
    delete_key_value_table = waits(aio.StreamManager.delete_key_value_table)
    list_key_value_tables = waits(aio.StreamManager.list_key_value_tables)
    key_value_table_configuration = waits(aio.StreamManager.key_value_table_configuration)
    key_value_table = opens(aio.StreamManager.key_value_table, classes.KeyValueTable)
    state_synchronizer = opens(aio.StreamManager.state_synchronizer, classes.StateSynchronizer)
    shared_map = opens(aio.StreamManager.shared_map, classes.SharedMap)
    shared_set = opens(aio.StreamManager.shared_set, classes.SharedSet)
    shared_counter = opens(aio.StreamManager.shared_counter, classes.SharedCounter)
    journal = opens(aio.StreamManager.journal, classes.Journal)
    leader_election = opens(aio.StreamManager.leader_election, classes.LeaderElection)

    def create_byte_writer(
        self, scope: str, stream: str, *, timeout: float | None = None, ack_timeout: float | None = None
    ) -> ByteStreamWriter:
        """Open a file that writes at the current end of a one-segment stream.

        Its calls raise RequestTimeoutError if the data isn't stored within `timeout` seconds; if nothing is stored for
        `ack_timeout` seconds, all further calls do.
        """
        check_timeout(timeout)
        core = self._thread.run(self._core.create_byte_writer(scope, stream, ack_timeout=ack_timeout))
        return ByteStreamWriter(self._thread, core, timeout)

    # --- event streams --------------------------------------------------------------------------

    read_segment_range = each(aio.StreamManager.read_segment_range)
    schemas = gives(aio.StreamManager.schemas, classes.Schemas)

    # --- writers ----------------------------------------------------------------------------

    @overload
    def create_writer(self, scope: str, stream: str, **options: Unpack[WriterOptions]) -> classes.EventWriter: ...
    @overload
    def create_writer(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[WriterOptions]
    ) -> classes.ValueWriter[T]: ...
    @overloaded(
        aio.StreamManager.create_writer,
        {aio.EventWriter: classes.EventWriter, aio.ValueWriter: classes.ValueWriter},
    )
    def create_writer(self, *args: Any, **options: Any) -> Any: ...

    @overload
    def create_transaction_writer(
        self, scope: str, stream: str, **options: Unpack[TransactionWriterOptions]
    ) -> classes.TransactionalEventWriter: ...
    @overload
    def create_transaction_writer(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[TransactionWriterOptions]
    ) -> classes.TransactionalValueWriter[T]: ...
    @overloaded(
        aio.StreamManager.create_transaction_writer,
        {
            aio.TransactionalEventWriter: classes.TransactionalEventWriter,
            aio.TransactionalValueWriter: classes.TransactionalValueWriter,
        },
    )
    def create_transaction_writer(self, *args: Any, **options: Any) -> Any: ...

    transaction_status = waits(aio.StreamManager.transaction_status)

    # --- readers ----------------------------------------------------------------------------

    @overload
    def create_reader(self, scope: str, stream: str, **options: Unpack[ReaderOptions]) -> classes.SliceReader: ...
    @overload
    def create_reader(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[ReaderOptions]
    ) -> classes.ValueReader[T]: ...
    @overloaded(
        aio.StreamManager.create_reader,
        {aio.SliceReader: classes.SliceReader, aio.ValueReader: classes.ValueReader},
    )
    def create_reader(self, *args: Any, **options: Any) -> Any: ...

    # These iterate over a blocking reader, which receives blocks without a request for each.

    @overload
    def read_events(
        self, scope: str, stream: str, *, timeout: float | None = ..., **options: Unpack[ReaderOptions]
    ) -> Iterator[Event]: ...
    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        timeout: float | None = ...,
        **options: Unpack[ReaderOptions],
    ) -> Iterator[ValueEvent[T]]: ...
    @described(aio.StreamManager.read_events)
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
        on_damage: OnDamage = RAISE,
        timeout: float | None = None,
    ) -> Iterator[Event] | Iterator[ValueEvent[T]]:
        """See nadi.client.aio.StreamManager.read_events."""
        options: ReaderOptions = {"start": start, "end": end, "routing_keys": routing_keys, "on_damage": on_damage}
        if serializer is None:
            return self._read_events(scope, stream, timeout, options)
        return self._read_values(scope, stream, timeout, options, serializer)

    @described(aio.StreamManager.read_batches)
    def read_batches(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
        on_damage: OnDamage = RAISE,
        timeout: float | None = None,
    ) -> Iterator[list[bytes]]:
        """See nadi.client.aio.StreamManager.read_batches."""
        with self.create_reader(
            scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        ) as reader:
            while (entry := reader.next_block(timeout)) is not None:
                yield entry[1].events()

    def _read_events(self, scope: str, stream: str, timeout: float | None, options: ReaderOptions) -> Iterator[Event]:
        with self.create_reader(scope, stream, **options) as reader:
            while (entry := reader.next_block(timeout)) is not None:
                yield from events_of(*entry)

    def _read_values(
        self, scope: str, stream: str, timeout: float | None, options: ReaderOptions, serializer: Serializer[T]
    ) -> Iterator[ValueEvent[T]]:
        with self.create_reader(scope, stream, serializer=serializer, **options) as reader:
            while (events := reader.next_events(timeout)) is not None:
                yield from events
