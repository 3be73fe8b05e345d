"""The blocking face of `event_streams`: the writers and readers that a StreamManager opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

from nadi.client import aio
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.blocking.readers import SliceReader
from nadi.client.blocking.values import Schemas, TransactionalValueWriter, ValueReader, ValueWriter
from nadi.client.blocking.writers import EventWriter, TransactionalEventWriter
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import Event, events_of
from nadi.client.serializers.protocol import Serializer
from nadi.client.serializers.values import ValueEvent
from nadi.client.writing.transactions import DEFAULT_LEASE_MS
from nadi.client.writing.writer import ACK_TIMEOUT_S
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut

T = TypeVar("T")


class EventStreams:
    """The part of the blocking StreamManager that opens them."""

    _thread: LoopThread
    _core: aio.StreamManager

    # --- writers ----------------------------------------------------------------------------

    @overload
    def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> EventWriter: ...
    @overload
    def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> ValueWriter[T]: ...
    def create_writer(
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

        writer_id: under which its times are known, for one that goes on after a restart. It is for event time only:
        an event that was not acknowledged before the restart, and is written again, may be there twice.
        automatically_note_time: note the wall clock's time every five seconds, and at the end.
        """
        core, thread = self._core, self._thread
        if serializer is None:
            return EventWriter(
                thread,
                thread.run(
                    core.create_writer(
                        scope,
                        stream,
                        ack_timeout=ack_timeout,
                        writer_id=writer_id,
                        automatically_note_time=automatically_note_time,
                    )
                ),
            )
        made = core.create_writer(
            scope,
            stream,
            serializer=serializer,
            ack_timeout=ack_timeout,
            writer_id=writer_id,
            automatically_note_time=automatically_note_time,
        )
        return ValueWriter(thread, thread.run(made))

    @overload
    def create_transaction_writer(
        self, scope: str, stream: str, *, writer_id: str | None = ..., lease_ms: int = ..., ack_timeout: float = ...
    ) -> TransactionalEventWriter: ...
    @overload
    def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        writer_id: str | None = ...,
        lease_ms: int = ...,
        ack_timeout: float = ...,
    ) -> TransactionalValueWriter[T]: ...
    def create_transaction_writer(
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
        create = self._core.create_transaction_writer
        if serializer is not None:
            made = create(
                scope, stream, serializer=serializer, writer_id=writer_id, lease_ms=lease_ms, ack_timeout=ack_timeout
            )
            return TransactionalValueWriter(self._thread, self._thread.run(made))
        core = self._thread.run(create(scope, stream, writer_id=writer_id, lease_ms=lease_ms, ack_timeout=ack_timeout))
        return TransactionalEventWriter(self._thread, core)

    # --- readers ----------------------------------------------------------------------------

    @overload
    def create_reader(
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
    def create_reader(
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
    def create_reader(
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
        if serializer is not None:
            made = self._core.create_reader(
                scope,
                stream,
                serializer=serializer,
                start=start,
                end=end,
                routing_keys=routing_keys,
                on_damage=on_damage,
            )
            return ValueReader(self._thread, self._thread.run(made))
        core = self._thread.run(
            self._core.create_reader(
                scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
            )
        )
        return SliceReader(self._thread, core)

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
    ) -> Iterator[Event]: ...
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
    ) -> Iterator[ValueEvent[T]]: ...
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
        """The events one by one, for ever unless `end` is given or the stream is sealed.

        timeout: after so many seconds without anything new, once the reader is open, RequestTimeoutError, which ends
        the iterator; None waits for data as long as the server is there. on_damage: "raise" ends it with a
        DamagedDataError where data is damaged, "skip" logs that and goes on behind it.
        """
        if serializer is None:
            return self._read_events(scope, stream, start, end, routing_keys, on_damage, timeout)
        return self._read_values(scope, stream, start, end, routing_keys, on_damage, timeout, serializer)

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
        """The events as lists, one for each block read: several times as fast as one by one.

        timeout, on_damage: as of `read_events`.
        """
        with self.create_reader(
            scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        ) as reader:
            while (found := reader.next_block(timeout)) is not None:
                yield found[1].events()

    def _read_events(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
        on_damage: OnDamage,
        timeout: float | None,
    ) -> Iterator[Event]:
        with self.create_reader(
            scope, stream, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        ) as reader:
            while (found := reader.next_block(timeout)) is not None:
                yield from events_of(*found)

    def _read_values(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
        on_damage: OnDamage,
        timeout: float | None,
        serializer: Serializer[T],
    ) -> Iterator[ValueEvent[T]]:
        with self.create_reader(
            scope, stream, serializer=serializer, start=start, end=end, routing_keys=routing_keys, on_damage=on_damage
        ) as reader:
            while (events := reader.next_events(timeout)) is not None:
                yield from events

    def read_segment_range(
        self, segment: str, start: int, end: int, *, on_damage: OnDamage = RAISE
    ) -> Iterator[EventBlock]:
        """The events of one segment between two event boundaries, in blocks.

        on_damage: "raise" ends with a DamagedDataError where data is damaged, "skip" logs it and goes on behind it.
        """
        blocks = self._core.read_segment_range(segment, start, end, on_damage=on_damage)

        async def following() -> EventBlock | None:
            return await anext(blocks, None)

        while (block := self._thread.run(following())) is not None:
            yield block

    # --- schemas ----------------------------------------------------------------------------

    def schemas(self, scope: str, stream: str) -> Schemas:
        """The schemas of a stream's serializers, and the rule for new ones."""
        return Schemas(self._thread, self._core.schemas(scope, stream))
