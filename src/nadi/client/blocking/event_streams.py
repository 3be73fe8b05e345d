"""The blocking face of `event_streams`: the writers and readers that a StreamManager opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, Unpack, overload

from nadi.client import aio
from nadi.client.blocking.face import Face, described, each, gives, overloaded, waits
from nadi.client.blocking.readers import Schemas, SliceReader, ValueReader
from nadi.client.blocking.writers import EventWriter, TransactionalEventWriter, TransactionalValueWriter, ValueWriter
from nadi.client.manager.event_streams import ReaderOptions, TransactionWriterOptions, WriterOptions
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import Event, events_of
from nadi.client.serializers.serializer import Serializer
from nadi.client.serializers.values import ValueEvent
from nadi.model.streamcut import StreamCut

T = TypeVar("T")


class EventStreams(Face[aio.StreamManager]):
    """The part of the blocking StreamManager that opens them."""

    read_segment_range = each(aio.StreamManager.read_segment_range)
    schemas = gives(aio.StreamManager.schemas, Schemas)

    # --- writers ----------------------------------------------------------------------------

    @overload
    def create_writer(self, scope: str, stream: str, **options: Unpack[WriterOptions]) -> EventWriter: ...
    @overload
    def create_writer(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[WriterOptions]
    ) -> ValueWriter[T]: ...
    @overloaded(aio.StreamManager.create_writer)
    def create_writer(self, *args: Any, **options: Any) -> Any:
        """See nadi.client.aio.StreamManager.create_writer."""
        made = self._thread.run(self._core.create_writer(*args, **options))
        face = EventWriter if isinstance(made, aio.EventWriter) else ValueWriter
        return face(self._thread, made)

    @overload
    def create_transaction_writer(
        self, scope: str, stream: str, **options: Unpack[TransactionWriterOptions]
    ) -> TransactionalEventWriter: ...
    @overload
    def create_transaction_writer(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[TransactionWriterOptions]
    ) -> TransactionalValueWriter[T]: ...
    @overloaded(aio.StreamManager.create_transaction_writer)
    def create_transaction_writer(self, *args: Any, **options: Any) -> Any:
        """See nadi.client.aio.StreamManager.create_transaction_writer."""
        made = self._thread.run(self._core.create_transaction_writer(*args, **options))
        of_events = isinstance(made, aio.TransactionalEventWriter)
        face = TransactionalEventWriter if of_events else TransactionalValueWriter
        return face(self._thread, made)

    transaction_status = waits(aio.StreamManager.transaction_status)

    # --- readers ----------------------------------------------------------------------------

    @overload
    def create_reader(self, scope: str, stream: str, **options: Unpack[ReaderOptions]) -> SliceReader: ...
    @overload
    def create_reader(
        self, scope: str, stream: str, *, serializer: Serializer[T], **options: Unpack[ReaderOptions]
    ) -> ValueReader[T]: ...
    @overloaded(aio.StreamManager.create_reader)
    def create_reader(self, *args: Any, **options: Any) -> Any:
        """See nadi.client.aio.StreamManager.create_reader."""
        made = self._thread.run(self._core.create_reader(*args, **options))
        face = SliceReader if isinstance(made, aio.SliceReader) else ValueReader
        return face(self._thread, made)

    # These iterate over a blocking reader, which has its blocks handed over without asking for each.

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
            while (found := reader.next_block(timeout)) is not None:
                yield found[1].events()

    def _read_events(self, scope: str, stream: str, timeout: float | None, options: ReaderOptions) -> Iterator[Event]:
        with self.create_reader(scope, stream, **options) as reader:
            while (found := reader.next_block(timeout)) is not None:
                yield from events_of(*found)

    def _read_values(
        self, scope: str, stream: str, timeout: float | None, options: ReaderOptions, serializer: Serializer[T]
    ) -> Iterator[ValueEvent[T]]:
        with self.create_reader(scope, stream, serializer=serializer, **options) as reader:
            while (events := reader.next_events(timeout)) is not None:
                yield from events
