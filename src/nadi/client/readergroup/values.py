"""Readers of a group that return values: an EventReader with a serializer.

As in other readers of values, a block is prepared once (its schemas may have to be fetched), and `event.value` is
decoded on first access; an event that can't be decoded doesn't affect others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from nadi.client.control.arguments import checked
from nadi.client.readergroup.event_reads import EventRead, GroupReads, start_of
from nadi.client.readergroup.reader import EventReader, block_in_hand, time_window_at
from nadi.client.reading.read_ahead import Gap
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.serializers.codec import EventDecoder
from nadi.client.serializers.values import ValueEvent, values_of
from nadi.naming import parse_segment_name

T = TypeVar("T")


class ValueRead(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """The result of a read, like EventRead: `event` or `block` have values, with their bytes and positions."""

    event: ValueEvent[T] | None = None
    block: list[ValueEvent[T]] | None = None
    segment: str = ""
    offset: int = -1
    checkpoint: str | None = None
    gap: Gap | None = None
    is_reset: bool = False
    is_read_completed: bool = False

    @property
    def events(self) -> list[ValueEvent[T]]:
        """All events of this read: of the block, the single event, or none."""
        if self.block is not None:
            return self.block
        return [] if self.event is None else [self.event]


@checked(without=("read_next_event",))
class GroupValueReader(GroupReads[ValueRead[T]], Generic[T]):
    """A reader of values, like EventReader; created by `ReaderGroup.create_reader` with a serializer."""

    def __init__(self, reader: EventReader, decoders: Mapping[str, EventDecoder[T]]) -> None:
        """decoders: one for each stream of the group."""
        self.name = reader.name
        self._reader, self._decoders, self._next_of_reader = reader, decoders, reader._next_ready
        self._undecoded: EventRead | None = None  # read, but its schema hasn't arrived yet
        self._decode: Callable[[bytes], T]  # of the block in use
        self._segment_id = 0

    def _next_ready(self) -> ValueRead[T] | None:
        if self._undecoded is not None or self._undelivered is not None:
            return None
        read = self._next_of_reader()
        return None if read is None else self._value_of(read)

    def _again(self, *, as_block: bool) -> ValueRead[T] | None:
        read = self._reader._again(as_block=as_block)
        return None if read is None else self._value_of(read)

    async def read_next_event(self, timeout: float | None = None) -> ValueRead[T] | None:
        ready = self._next_ready()
        if ready is not None:
            return ready
        if self._undecoded is None:
            self._undecoded = await self._reader.read_next_event(timeout)
        return await self._decode_read()

    async def read_next_block(self, timeout: float | None = None) -> ValueRead[T] | None:
        if self._undecoded is None:
            self._undecoded = await self._reader.read_next_block(timeout)
        return await self._decode_read()

    async def _decode_read(self) -> ValueRead[T] | None:
        read, block = self._undecoded, block_in_hand(self._reader)
        if read is not None and block is not None and (read.event is not None or read.block is not None):
            self._decode = await self._decoder_of(read).prepare(block)
        self._undecoded = None
        return None if read is None else self._value_of(read)

    def _decoder_of(self, read: EventRead) -> EventDecoder[T]:
        scope, stream, self._segment_id = parse_segment_name(read.segment)
        return self._decoders[f"{scope}/{stream}"]

    def _value_of(self, read: EventRead) -> ValueRead[T]:
        if read.event is not None:
            event = ValueEvent(read.event, self._segment_id, read.offset, self._decode)
            return ValueRead(event, None, read.segment, read.offset)
        if read.block is not None:
            events = values_of(self._segment_id, read.block, read.block.events(), self._decode)
            return ValueRead(None, events, read.segment, read.offset)
        return ValueRead(
            None, None, read.segment, read.offset, read.checkpoint, read.gap, read.is_reset, read.is_read_completed
        )

    def positions(self) -> dict[str, int]:
        return self._reader.positions() | start_of(self._undecoded or self._undelivered)

    async def current_time_window(self, stream: str) -> TimeWindow:
        return await time_window_at(self._reader, stream, self.positions())

    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        await self._reader.close(
            is_done=is_done and self._undecoded is None and self._undelivered is None, timeout=timeout
        )
