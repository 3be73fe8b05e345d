"""Writers and readers of values: those of bytes, with a serializer before them.

Made by StreamManager where a serializer is given; without one nothing here is in the way. A writer serializes in
the caller's thread, so an error comes at once and from the call that gave the value. A reader serializes nothing
ahead: `event.value` is made when first asked for, and an event that can't be read fails alone, with its bytes
still in `event.data`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from nadi.client.control.arguments import checked
from nadi.client.reading.reader import SliceReader
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.serializers.codec import EventDecoder
from nadi.client.writing.batch import Ack
from nadi.client.writing.blocks import Events, RoutingKeys
from nadi.client.writing.transactions import Transaction, TransactionalEventWriter
from nadi.client.writing.writer import EventWriter
from nadi.errors import DamagedDataError, SerializationError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ValueEvent(Generic[T_co]):
    """One event: its value, its bytes, and where it lies (as in Event)."""

    __slots__ = ("_decode", "_value", "data", "offset", "segment_id")

    _value: T_co

    def __init__(self, data: bytes, segment_id: int, offset: int, decode: Callable[[bytes], T_co]) -> None:
        self.data, self.segment_id, self.offset = data, segment_id, offset
        self._decode: Callable[[bytes], T_co] | None = decode

    @property
    def value(self) -> T_co:
        """SerializationError, SchemaIncompatibleError or UnknownSchemaError if it can't be read; others can."""
        decode = self._decode
        if decode is not None:
            try:
                self._value = decode(self.data)
            except SerializationError as error:
                error.add_note(f"this is the event at offset {self.offset:,} of segment {self.segment_id}")
                raise
            self._decode = None
        return self._value

    def __repr__(self) -> str:
        return f"ValueEvent(data={self.data[:40]!r}, segment_id={self.segment_id}, offset={self.offset})"


class _Taker(Protocol):
    """What takes events: a writer or a transaction, of either face."""

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack: ...

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack: ...


class Values(Generic[T]):
    """The writing of values, the same for writers and transactions of both faces."""

    def __init__(self, taker: _Taker, encode: Callable[[T], bytes]) -> None:
        self._taker, self.encode = taker, encode

    def write_event(self, value: T, routing_key: str | None = None) -> Ack:
        """Take one value; SerializationError, before anything is taken, if it can't be written."""
        return self._taker.write_event(self.encode(value), routing_key)

    def write_batch(self, values: Iterable[T], routing_keys: RoutingKeys = None) -> Ack:
        """Take many values, with one key for all or one each; none if one of them can't be written."""
        return self._taker.write_batch([self.encode(value) for value in values], routing_keys)


@checked(without=("write", "write_many"))
class ValueWriter(Values[T]):
    """EventWriter's methods, for values."""

    def __init__(self, writer: EventWriter, encode: Callable[[T], bytes]) -> None:
        super().__init__(writer, encode)
        self.events = writer

    def note_time(self, timestamp_ms: int) -> Ack:
        """Say that what was written so far has times up to this one, and what comes later none before it."""
        return self.events.note_time(timestamp_ms)

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        await self.events.ready()

    async def write(self, value: T, routing_key: str | None = None) -> Ack:
        """`ready`, then `write_event`."""
        await self.events.ready()
        return self.write_event(value, routing_key)

    async def write_many(self, values: Iterable[T], routing_keys: RoutingKeys = None) -> Ack:
        """`write_batch`, waiting for room wherever there is none: for any number of values."""
        return await self.events.write_many([self.encode(value) for value in values], routing_keys)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored; raise the first failure since the last flush."""
        await self.events.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then end."""
        await self.events.close(timeout)


@checked(without=("write_many",))
class ValueTransaction(Values[T]):
    """Transaction's methods, for values."""

    def __init__(self, txn: Transaction, encode: Callable[[T], bytes]) -> None:
        super().__init__(txn, encode)
        self.events = txn

    @property
    def txn_id(self) -> UUID:
        """By which `get_txn` finds it, here or elsewhere."""
        return self.events.txn_id

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        await self.events.ready()

    async def write_many(self, values: Iterable[T], routing_keys: RoutingKeys = None) -> Ack:
        """`write_batch`, waiting for room wherever there is none: for any number of values."""
        return await self.events.write_many([self.encode(value) for value in values], routing_keys)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored (and not yet part of the stream)."""
        await self.events.flush(timeout)

    async def commit(
        self, *, wait: bool = False, timeout: float | None = 120.0, timestamp_ms: int | None = None
    ) -> None:
        """Make the events part of the stream; with `wait`, return once readers can see them."""
        await self.events.commit(wait=wait, timeout=timeout, timestamp_ms=timestamp_ms)

    async def abort(self, *, wait: bool = False, timeout: float | None = 120.0) -> None:
        """Forget the events."""
        await self.events.abort(wait=wait, timeout=timeout)

    async def ping(self, lease_ms: int | None = None) -> None:
        """Extend the lease now; that is done in the background too, three times a lease."""
        await self.events.ping(lease_ms)

    async def status(self) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return await self.events.status()

    async def __aenter__(self) -> ValueTransaction[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.events.__aexit__(kind, error, trace)


@checked()
class TransactionalValueWriter(Generic[T]):
    """TransactionalEventWriter's methods, for values."""

    def __init__(self, writer: TransactionalEventWriter, encode: Callable[[T], bytes]) -> None:
        self.events, self.encode = writer, encode

    async def begin_txn(self, lease_ms: int | None = None) -> ValueTransaction[T]:
        """A new transaction, which times out if the controller hears nothing of it for the lease."""
        return ValueTransaction(await self.events.begin_txn(lease_ms), self.encode)

    async def get_txn(self, txn_id: UUID | str) -> ValueTransaction[T]:
        """A transaction begun elsewhere or earlier, by its id; see TransactionalEventWriter.get_txn."""
        return ValueTransaction(await self.events.get_txn(txn_id), self.encode)

    async def close(self) -> None:
        """Let go of the open transactions; each ends with its lease."""
        await self.events.close()


@checked()
class ValueReader(Generic[T]):
    """SliceReader, for values; iterate over it for lists of ValueEvent, one list for each block."""

    def __init__(self, reader: SliceReader, decoder: EventDecoder[T]) -> None:
        self._reader, self._decoder = reader, decoder
        self._held: tuple[StreamCut, int, EventBlock] | None = None  # a block not given out, and where it begins

    async def next_events(self, timeout: float | None = None) -> list[ValueEvent[T]] | None:
        """Some events of one segment, or None at the end of the slice or of a sealed stream.

        RequestTimeoutError if nothing came within `timeout` seconds, and UnavailableError if a schema can't be
        fetched now: ask again, nothing was skipped. TruncatedError as in SliceReader.next_block.
        """
        if self._held is None:
            before = self._reader.position()
            found = await self._reader.next_block(timeout)
            if found is None:
                return None
            self._held = (before, *found)
        _, segment_id, block = self._held
        payloads = list(block)
        decode = await self._decoder.prepare(payloads)
        self._held = None
        offsets = block.offsets().tolist()
        return [ValueEvent(data, segment_id, offset, decode) for offset, data in zip(offsets, payloads, strict=True)]

    async def __aiter__(self) -> AsyncIterator[list[ValueEvent[T]]]:
        while True:
            events = await self.next_events()
            if events is None:
                return
            yield events

    def position(self) -> StreamCut:
        """The boundary between what was given out and what was not; start there to go on."""
        return self._reader.position() if self._held is None else self._held[0]

    async def current_time_window(self) -> TimeWindow:
        """In which event time `position()` stands; read from the stream's watermarks."""
        return await self._reader.current_time_window(self.position())

    @property
    def skipped(self) -> list[DamagedDataError]:
        """As SliceReader's."""
        return self._reader.skipped

    def close(self) -> None:
        """End at once; who waits in `next_events` gets ClosedError."""
        self._reader.close()
