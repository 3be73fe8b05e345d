"""Writers and readers of values: those of bytes, wrapped with a serializer.

Created by StreamManager if a serializer is given; without one, nothing here is involved. A writer serializes in the
caller's thread, so an error is raised at once by the call that passed the value. A reader decodes lazily: `event.value`
is decoded on first access, and an unreadable event fails alone, with its bytes still in `event.data`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import cached_property
from typing import Any, Generic, TypeVar

from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.reading.reader import SliceReader
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.serializers.codec import EventDecoder
from nadi.client.writing.ack import Ack
from nadi.client.writing.blocks import RoutingKeys
from nadi.client.writing.sender import EventSender, Writing
from nadi.client.writing.transactions import OpenTransaction, TransactionWriter
from nadi.errors import DamagedDataError, SerializationError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ValueEvent(Generic[T_co]):
    """An event: its value, its bytes, and its location (as in Event)."""

    __slots__ = ("_decode", "_value", "data", "offset", "segment_id")

    _value: T_co

    def __init__(self, data: bytes, segment_id: int, offset: int, decode: Callable[[bytes], T_co]) -> None:
        self.data, self.segment_id, self.offset = data, segment_id, offset
        self._decode: Callable[[bytes], T_co] | None = decode

    @property
    def value(self) -> T_co:
        """The decoded value; SerializationError, SchemaIncompatibleError or UnknownSchemaError if it can't be read."""
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


class ValueWriting(Generic[T]):
    """The write methods shared by writers and transactions of values."""

    _encode: Callable[[T], bytes]

    @property
    def _open_sender(self) -> EventSender:
        raise NotImplementedError

    def write_event(self, value: T, routing_key: str | None = None) -> Ack:
        """Accept one value; SerializationError if it can't be serialized."""
        return self._open_sender.write_event(self._encode(value), routing_key)

    def write_batch(self, values: Iterable[T], routing_keys: RoutingKeys = None) -> Ack:
        """Accept many values, with one key for all or one each; none is accepted if one can't be serialized."""
        return self._open_sender.write_batch([self._encode(value) for value in values], routing_keys)

    async def write_many(self, values: Iterable[T], routing_keys: RoutingKeys = None) -> Ack:
        """Accept any number of values as `write_batch` does, waiting for capacity as needed."""
        return await self._open_sender.write_many([self._encode(value) for value in values], routing_keys)


@checked(without=("write",))
class ValueWriter(Writing, ValueWriting[T]):
    """A writer of values with EventWriter's methods."""

    def __init__(self, sender: EventSender, encode: Callable[[T], bytes]) -> None:
        super().__init__(sender)
        self._encode = encode

    @cached_property
    def _open_sender(self) -> EventSender:
        return self._sender

    async def write(self, value: T, routing_key: str | None = None) -> Ack:
        """`ready`, then `write_event`."""
        await self._sender.ready()
        return self.write_event(value, routing_key)


class ValueTransaction(OpenTransaction, ValueWriting[T]):
    """A transaction of values with Transaction's methods."""

    def __init__(self, owner: TransactionalValueWriter[T], *args: Any) -> None:
        super().__init__(owner, *args)
        self._encode = owner._encode


@checked()
class TransactionalValueWriter(TransactionWriter[ValueTransaction[T]], Generic[T]):
    """A writer of values with TransactionalEventWriter's methods."""

    _kind: type[ValueTransaction[T]] = ValueTransaction

    def __init__(self, encode: Callable[[T], bytes], *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._encode = encode


@checked()
class ValueReader(Closing, Generic[T]):
    """A SliceReader of values; iterating yields one list of ValueEvent per block."""

    def __init__(self, reader: SliceReader, decoder: EventDecoder[T]) -> None:
        self._reader, self._decoder = reader, decoder
        self._pending: tuple[StreamCut, int, EventBlock] | None = (
            None  # a block not yet returned, and the cut before it
        )

    async def next_events(self, timeout: float | None = None) -> list[ValueEvent[T]] | None:
        """Return some events of one segment; None at the end of the slice or of a sealed stream.

        RequestTimeoutError if no event arrives within `timeout` seconds, UnavailableError if a schema can't be fetched
        now: call again, nothing was skipped. TruncatedError as in SliceReader.next_block.
        """
        if self._pending is None:
            before = self._reader.position()
            following = await self._reader.next_block(timeout)
            if following is None:
                return None
            self._pending = (before, *following)
        _, segment_id, block = self._pending
        payloads = block.events()
        decode = await self._decoder.prepare(payloads)
        self._pending = None
        return values_of(segment_id, block, payloads, decode)

    async def __aiter__(self) -> AsyncIterator[list[ValueEvent[T]]]:
        while (events := await self.next_events()) is not None:
            yield events

    def position(self) -> StreamCut:
        """Return the cut between the events returned and those that follow; start there to continue."""
        return self._reader.position() if self._pending is None else self._pending[0]

    async def current_time_window(self) -> TimeWindow:
        """Return the window of event time at `position()`, from the stream's watermarks."""
        return await self._reader.current_time_window(self.position())

    @property
    def skipped(self) -> list[DamagedDataError]:
        """With on_damage="skip": errors of the last 1,000 damaged ranges that were skipped."""
        return self._reader.skipped

    def close(self) -> None:
        """Close at once; a pending `next_events` raises ClosedError."""
        self._reader.close()


def values_of(
    segment_id: int, block: EventBlock, payloads: list[bytes], decode: Callable[[bytes], T]
) -> list[ValueEvent[T]]:
    """Return the events of a block with these payloads."""
    offsets = block.offsets().tolist()
    return [ValueEvent(data, segment_id, offset, decode) for offset, data in zip(offsets, payloads, strict=True)]


def reader_and_decoder(reader: ValueReader[T]) -> tuple[SliceReader, EventDecoder[T]]:
    """Return the reader of blocks that the reader wraps, and its decoder."""
    return reader._reader, reader._decoder
