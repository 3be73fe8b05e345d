"""The part of StreamManager that opens writers, transaction writers and readers of events or values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, overload
from uuid import UUID, uuid4

from nadi.client.control.arguments import checked
from nadi.client.reading import reader as readers
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import Event, SliceReader
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers import codec
from nadi.client.serializers.plain import Serializer
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.serializers.values import TransactionalValueWriter, ValueEvent, ValueReader, ValueWriter
from nadi.client.writing.event_time import WriterTimes, check_writer_id
from nadi.client.writing.sender import ACK_TIMEOUT_S, EventSender, EventWriter
from nadi.client.writing.transactions import (
    DEFAULT_LEASE_MS,
    TransactionalEventWriter,
    TransactionWriter,
    id_of,
    is_closed,
)
from nadi.errors import ClosedError, StreamSealedError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name

T = TypeVar("T")


class WriterOptions(TypedDict, total=False):
    ack_timeout: float
    writer_id: str | None
    automatically_note_time: bool


class TransactionWriterOptions(TypedDict, total=False):
    writer_id: str | None
    lease_ms: int
    ack_timeout: float


class ReaderOptions(TypedDict, total=False):
    start: StreamCut | None
    end: StreamCut | None
    routing_keys: Sequence[str] | None
    on_damage: OnDamage


@checked()
class EventStreams:
    """The part of StreamManager for event streams; everything it opened is closed with the client."""

    _stores: SegmentStores

    def __init__(self, blocking: bool) -> None:
        self._blocking = blocking
        self._senders: list[EventSender] = []
        self._txn_writers: list[TransactionWriter[Any]] = []
        self._readers: list[SliceReader] = []

    async def _end_event_streams(self) -> None:
        for sender in self._senders:
            sender.stop(ClosedError(f"the writer of {sender.name} was closed with its client"))
        for reader in self._readers:
            reader.close()
        await asyncio.gather(
            *(sender.times.leave() for sender in self._senders if sender.times is not None),
            *(writer.close() for writer in self._txn_writers),
        )

    # --- writers ----------------------------------------------------------------------------

    @overload
    async def create_writer(self, scope: str, stream: str, **options: Unpack[WriterOptions]) -> EventWriter: ...
    @overload
    async def create_writer(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[WriterOptions]
    ) -> ValueWriter[T]: ...
    async def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        ack_timeout: float = ACK_TIMEOUT_S,
        writer_id: str | None = None,
        automatically_note_time: bool = False,
    ) -> EventWriter | ValueWriter[T]:
        """Create a writer of events, or of the serializer's values.

        Events not stored within `ack_timeout` seconds fail. A serializer's schema is registered here:
        SchemaIncompatibleError if the stream's rule forbids it. writer_id: identifies the writer for event time across
        restarts, but doesn't prevent duplicates: an unacknowledged event that is written again after a restart may be
        stored twice. automatically_note_time: note the wall clock's time every five seconds, and at the end.
        """
        encode = await self._encoder(scope, stream, serializer)
        if writer_id is not None:
            check_writer_id(writer_id)
        controller = self._stores.controller
        segments = await controller.current_segments(scope, stream)
        if not segments:
            raise StreamSealedError(f"stream {scope}/{stream}")
        sender = EventSender(
            self._stores,
            f"{scope}/{stream}",
            segments,
            name_of=lambda segment_id: segment_name(scope, stream, segment_id),
            find_successors=lambda segment_id: controller.successors(scope, stream, segment_id),
            ack_timeout_s=ack_timeout,
            blocking=self._blocking,
        )
        continues = writer_id is not None
        sender.times = WriterTimes(self._stores, scope, stream, writer_id or str(uuid4()), sender, continues=continues)
        if automatically_note_time:
            sender.times.note_automatically()
        self._senders = [*(existing for existing in self._senders if not existing.is_closed), sender]
        return ValueWriter(sender, encode) if encode else EventWriter(sender)

    @overload
    async def create_transaction_writer(
        self, scope: str, stream: str, **options: Unpack[TransactionWriterOptions]
    ) -> TransactionalEventWriter: ...
    @overload
    async def create_transaction_writer(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[TransactionWriterOptions]
    ) -> TransactionalValueWriter[T]: ...
    async def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        writer_id: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
        ack_timeout: float = ACK_TIMEOUT_S,
    ) -> TransactionalEventWriter | TransactionalValueWriter[T]:
        """Create a writer of transactions, whose events are added to the stream atomically.

        writer_id: identifies the writer for event time. lease_ms: a transaction is aborted after this time without
        contact from this client. ack_timeout: seconds after which unstored events fail. A serializer's schema is
        registered here: SchemaIncompatibleError if the stream's rule forbids it.
        """
        encode = await self._encoder(scope, stream, serializer)
        kind: Any = partial(TransactionalValueWriter, encode) if encode else TransactionalEventWriter
        writer: TransactionalEventWriter | TransactionalValueWriter[T] = kind(
            self._stores,
            scope,
            stream,
            writer_id=writer_id,
            lease_ms=lease_ms,
            ack_timeout_s=ack_timeout,
            blocking=self._blocking,
        )
        self._txn_writers = [*(existing for existing in self._txn_writers if not is_closed(existing)), writer]
        return writer

    async def transaction_status(self, scope: str, stream: str, txn_id: UUID | str) -> str:
        """Return OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED, without extending the transaction's lease;
        TransactionNotFoundError."""
        return await self._stores.controller.transaction_state(scope, stream, id_of(txn_id))

    async def _encoder(self, scope: str, stream: str, serializer: Serializer[T] | None) -> Callable[[T], bytes] | None:
        return None if serializer is None else await codec.encoder(self._stores, scope, stream, serializer)

    # --- readers ----------------------------------------------------------------------------

    @overload
    async def create_reader(self, scope: str, stream: str, **options: Unpack[ReaderOptions]) -> SliceReader: ...
    @overload
    async def create_reader(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[ReaderOptions]
    ) -> ValueReader[T]: ...
    async def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
        on_damage: OnDamage = RAISE,
    ) -> SliceReader | ValueReader[T]:
        """Create a reader of event blocks, or of lists of values, from `start` (default: the head) to `end` (default:
        endless).

        routing_keys: read only the segments that can contain these keys, which contain other keys, too. on_damage:
        "raise" reports damaged data once, by a DamagedDataError; "skip" records it in the reader's `skipped`; both
        continue after it.
        """
        decoder = None if serializer is None else codec.decoder(self._stores, scope, stream, serializer)
        reader = await readers.open_reader(self._stores, scope, stream, start, end, routing_keys, on_damage)
        self._readers = [existing for existing in self._readers if not readers.is_closed(existing)]
        self._readers.append(reader)
        return reader if decoder is None else ValueReader(reader, decoder)

    @overload
    def read_events(
        self, scope: str, stream: str, *, timeout: float | None = ..., **options: Unpack[ReaderOptions]
    ) -> AsyncIterator[Event]: ...
    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        timeout: float | None = ...,
        **options: Unpack[ReaderOptions],
    ) -> AsyncIterator[ValueEvent[T]]: ...
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
    ) -> AsyncIterator[Event] | AsyncIterator[ValueEvent[T]]:
        """Iterate over the events one by one; use `create_reader` for blocks and for the position.

        timeout: seconds without new events, once the reader is open, after which the iterator raises
        RequestTimeoutError; None waits as long as the server is up. on_damage: at damaged data, "raise" ends the
        iteration with a DamagedDataError, "skip" logs the damage and continues after it.
        """
        options: ReaderOptions = {"start": start, "end": end, "routing_keys": routing_keys, "on_damage": on_damage}
        if serializer is None:
            return self._read_events(scope, stream, timeout, options)
        return self._read_values(scope, stream, timeout, options, serializer)

    async def read_batches(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
        on_damage: OnDamage = RAISE,
        timeout: float | None = None,
    ) -> AsyncIterator[list[bytes]]:
        """Iterate over the events in lists, one per block read: several times faster than one by one.

        timeout, on_damage: as in `read_events`.
        """
        opening = self.create_reader(
            scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        )
        with closing(await opening) as reader:
            while (entry := await reader.next_block(timeout)) is not None:
                yield entry[1].events()

    async def _read_events(
        self, scope: str, stream: str, timeout: float | None, options: ReaderOptions
    ) -> AsyncIterator[Event]:
        with closing(await self.create_reader(scope, stream, **options)) as reader:
            while (entry := await reader.next_block(timeout)) is not None:
                for event in readers.events_of(*entry):
                    yield event

    async def _read_values(
        self, scope: str, stream: str, timeout: float | None, options: ReaderOptions, serializer: Serializer[T]
    ) -> AsyncIterator[ValueEvent[T]]:
        with closing(await self.create_reader(scope, stream, serializer=serializer, **options)) as reader:
            while (events := await reader.next_events(timeout)) is not None:
                for event in events:
                    yield event

    def read_segment_range(
        self, segment: str, start: int, end: int, *, on_damage: OnDamage = RAISE
    ) -> AsyncIterator[EventBlock]:
        """Iterate over the events of one segment between two event boundaries, in blocks.

        on_damage: at damaged data, "raise" ends with a DamagedDataError, "skip" logs the damage and continues after it.
        """
        return read_segment_range(self._stores, segment, start, end, on_damage)

    # --- schemas ----------------------------------------------------------------------------

    def schemas(self, scope: str, stream: str) -> SchemaGroup:
        """Return the schemas of a stream's serializers, and the rule for new ones."""
        return SchemaGroup(self._stores, scope, stream)
