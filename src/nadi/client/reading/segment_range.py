"""Part of one segment, as fast as its store sends it: for callers that read each segment of a slice separately."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from nadi.client.reading.damage import RAISE, OnDamage, check_on_damage, note_skipped
from nadi.client.segments.assemble import EventAssembler
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import DamagedDataError, InvalidArgumentError
from nadi.model.event import EventBlock
from nadi.naming import parse_segment_name

_ids = itertools.count()


class ReadBytes(Protocol):
    """As `segment_input.read_bytes`: the bytes of a segment in order, or an error from where those given out end."""

    def __call__(
        self, stores: SegmentStores, segment: str, start: int, end: int, /, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]: ...


async def read_segment_range(
    stores: SegmentStores,
    segment: str,
    start: int,
    end: int,
    on_damage: OnDamage = RAISE,
    *,
    read: ReadBytes = read_bytes,
) -> AsyncGenerator[EventBlock, None]:
    """The events of one segment between two event boundaries, as fast as its store sends them; or from wherever else
    `read` has its bytes."""
    parse_segment_name(segment)
    check_on_damage(on_damage)
    purpose = f"segment reader {next(_ids)}"
    reached = start
    try:
        while reached < end:
            assembler = EventAssembler(reached)
            try:
                async with aclosing(read(stores, segment, reached, end, purpose=purpose)) as pieces:
                    async for data in pieces:
                        for block in assembler.feed(data):
                            yield block
                reached = assembler.offset
                break
            except DamagedDataError as found:
                go_on_at = assembler.next_event_after(found.end_offset)
                error = DamagedDataError(segment, assembler.offset, go_on_at, found.reason)
                if on_damage == RAISE:
                    raise error from found
                note_skipped([], error)
                reached = min(error.end_offset, end)
    finally:
        stores.release(purpose)
    if reached != end:
        raise InvalidArgumentError(
            f"{end:,} is not an event boundary of segment {segment}, or lies past its end ({reached:,})"
        )
