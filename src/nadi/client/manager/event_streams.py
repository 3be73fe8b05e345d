"""What a StreamManager opens on event streams: writers, transactional writers and readers, of events or of values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar, overload

from nadi.client.control.arguments import checked
from nadi.client.reading import reader as readers
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import Event, SliceReader
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers import codec
from nadi.client.serializers.protocol import Serializer
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.serializers.values import TransactionalValueWriter, ValueEvent, ValueReader, ValueWriter
from nadi.client.writing.transactions import DEFAULT_LEASE_MS, TransactionalEventWriter
from nadi.client.writing.writer import ACK_TIMEOUT_S, EventWriter, open_writer
from nadi.errors import ClosedError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut

T = TypeVar("T")


@checked()
class EventStreams:
    """The part of StreamManager that opens them; what it opened ends with the client."""

    stores: SegmentStores

    def __init__(self, blocking: bool) -> None:
        self._blocking = blocking
        self._writers: list[EventWriter] = []
        self._txn_writers: list[TransactionalEventWriter] = []
        self._readers: list[SliceReader] = []

    async def end_event_streams(self) -> None:
        """What is not stored by now fails with ClosedError."""
        for writer in self._writers:
            writer.stop(ClosedError(f"the client was closed, and with it the writer of {writer.name}"))
        for reader in self._readers:
            reader.close()
        await asyncio.gather(
            *(writer.times.leave() for writer in self._writers if writer.times is not None),
            *(writer.close() for writer in self._txn_writers),
        )

    # --- writers ----------------------------------------------------------------------------

    @overload
    async def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> EventWriter: ...
    @overload
    async def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
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
        """A writer of events, or of the serializer's values; what is not stored within `ack_timeout` seconds fails.

        A serializer's schema is registered here: SchemaIncompatibleError if the stream's rule forbids it.
        writer_id: under which its times are known, for one that goes on after a restart. It is for event time only:
        an event that was not acknowledged before the restart, and is written again, may be there twice.
        automatically_note_time: note the wall clock's time every five seconds, and at the end.
        """
        encode = await self._encoder(scope, stream, serializer)
        writer = await open_writer(
            self.stores,
            scope,
            stream,
            ack_timeout_s=ack_timeout,
            blocking=self._blocking,
            writer_id=writer_id,
            automatically_note_time=automatically_note_time,
        )
        self._writers = [known for known in self._writers if not known.is_closed]
        self._writers.append(writer)
        return ValueWriter(writer, encode) if encode else writer

    @overload
    async def create_transaction_writer(
        self, scope: str, stream: str, *, writer_id: str | None = ..., lease_ms: int = ..., ack_timeout: float = ...
    ) -> TransactionalEventWriter: ...
    @overload
    async def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        writer_id: str | None = ...,
        lease_ms: int = ...,
        ack_timeout: float = ...,
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
        """A writer whose events become part of the stream by transactions: all of one together, or none.

        writer_id: under which its commits' times are known. lease_ms: after so long without word from this client, in
        milliseconds, a transaction is aborted. ack_timeout: events that are not stored within so many seconds fail.
        A serializer's schema is registered here: SchemaIncompatibleError if the stream's rule forbids it.
        """
        encode = await self._encoder(scope, stream, serializer)
        writer = TransactionalEventWriter(
            self.stores,
            scope,
            stream,
            writer_id=writer_id,
            lease_ms=lease_ms,
            ack_timeout_s=ack_timeout,
            blocking=self._blocking,
        )
        self._txn_writers = [*(known for known in self._txn_writers if not known.is_closed), writer]
        return TransactionalValueWriter(writer, encode) if encode else writer

    async def _encoder(self, scope: str, stream: str, serializer: Serializer[T] | None) -> Callable[[T], bytes] | None:
        return None if serializer is None else await codec.encoder(self.stores, scope, stream, serializer)

    # --- readers ----------------------------------------------------------------------------

    @overload
    async def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
        on_damage: OnDamage = ...,
    ) -> SliceReader: ...
    @overload
    async def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
        on_damage: OnDamage = ...,
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
        """Blocks of events, or lists of values, from `start` (or the head) to `end` (or on, as they arrive).

        routing_keys: read only the segments that can hold these keys; they hold other keys too. on_damage: "raise"
        says once where data is damaged, by a DamagedDataError, "skip" notes it in the reader's `skipped`; both go on
        behind it.
        """
        decoder = None if serializer is None else codec.decoder(self.stores, scope, stream, serializer)
        reader = await readers.open_reader(self.stores, scope, stream, start, end, routing_keys, on_damage)
        self._readers = [known for known in self._readers if not known.is_closed]
        self._readers.append(reader)
        return reader if decoder is None else ValueReader(reader, decoder)

    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
        on_damage: OnDamage = ...,
        timeout: float | None = ...,
    ) -> AsyncIterator[Event]: ...
    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
        on_damage: OnDamage = ...,
        timeout: float | None = ...,
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
        """The events one by one; use `create_reader` for blocks and for the position.

        timeout: after so many seconds without anything new, once the reader is open, RequestTimeoutError, which ends
        the iterator; None waits for data as long as the server is there. on_damage: "raise" ends it with a
        DamagedDataError where data is damaged, "skip" logs that and goes on behind it.
        """
        if serializer is None:
            return self._read_events(scope, stream, start, end, routing_keys, on_damage, timeout)
        return self._read_values(scope, stream, start, end, routing_keys, on_damage, timeout, serializer)

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
        """The events as lists, one for each block read: several times as fast as one by one.

        timeout, on_damage: as of `read_events`.
        """
        reader = await self.create_reader(
            scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        )
        try:
            while (found := await reader.next_block(timeout)) is not None:
                yield found[1].events()
        finally:
            reader.close()

    async def _read_events(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
        on_damage: OnDamage,
        timeout: float | None,
    ) -> AsyncIterator[Event]:
        reader = await self.create_reader(
            scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        )
        try:
            while (found := await reader.next_block(timeout)) is not None:
                for event in readers.events_of(*found):
                    yield event
        finally:
            reader.close()

    async def _read_values(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
        on_damage: OnDamage,
        timeout: float | None,
        serializer: Serializer[T],
    ) -> AsyncIterator[ValueEvent[T]]:
        reader = await self.create_reader(
            scope, stream, serializer=serializer, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        )
        try:
            while (events := await reader.next_events(timeout)) is not None:
                for event in events:
                    yield event
        finally:
            reader.close()

    def read_segment_range(
        self, segment: str, start: int, end: int, *, on_damage: OnDamage = RAISE
    ) -> AsyncIterator[EventBlock]:
        """The events of one segment between two event boundaries, in blocks.

        on_damage: "raise" ends with a DamagedDataError where data is damaged, "skip" logs it and goes on behind it.
        """
        return readers.read_segment_range(self.stores, segment, start, end, on_damage)

    # --- schemas ----------------------------------------------------------------------------

    def schemas(self, scope: str, stream: str) -> SchemaGroup:
        """The schemas of a stream's serializers, and the rule for new ones."""
        return SchemaGroup(self.stores, scope, stream)
