"""Key-value tables and reader groups without a record, as far as their own segments describe them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from nadi.controller.anew.found import Segments
from nadi.controller.state.history import first_epoch
from nadi.controller.state.metadata import GroupName, TableName
from nadi.controller.state.records import GroupConfig, GroupRetention, KeyValueTable, ReaderGroup, TableConfig
from nadi.controller.state.store import RecordTable
from nadi.limits import STREAM_MAX_SEGMENTS
from nadi.model.keyspace import primary_key_position
from nadi.model.segments import takes
from nadi.naming import segment_number

STATE_KEY = "state"  # of a group of nadi's, in its table; see nadi.client.readergroup.stored_state


@dataclass(slots=True)
class TableAnew:
    """A table's record as it should be. create: its missing segments."""

    name: TableName
    table: KeyValueTable
    create: list[int] = field(default_factory=list)
    told: str = ""


def looks_made(segments: Segments) -> bool:
    """Whether the controller made it: the tables that clients make by themselves have one segment, and keys of any
    length."""
    return len(segments.by_id) > 1 or any(one.key_bytes for one in segments.by_id.values())


def table_anew(
    name: TableName, segments: Segments, keys: dict[int, list[bytes]], last_number: int, now_ms: int
) -> TableAnew | None:
    """keys: of each segment some that it has, whose primary keys must all fall in it."""
    numbers = [segment_number(segment) for segment in segments.by_id]
    first = last_number + 1 if last_number >= 0 else min(numbers)
    if min(numbers) < first or max(numbers) - first >= STREAM_MAX_SEGMENTS:
        return None  # of a deleted one, or none that a controller made
    change = first_epoch(max(numbers) + 1 - first, now_ms, first)
    lengths = {one.key_bytes for one in segments.by_id.values() if one.key_bytes}
    lengths = lengths or {len(key) for some in keys.values() for key in some}
    if len(lengths) != 1:
        return None
    (key_bytes,) = lengths
    ranges = {segment.id: segment for segment in change.added}

    def goes(primary_bytes: int) -> bool:
        return all(
            takes(ranges[segment], primary_key_position(key[:primary_bytes]))
            for segment, some in keys.items()
            for key in some
        )

    splits = [length for length in range(key_bytes, 0, -1) if goes(length)]
    if not splits:
        return None
    primary_bytes = splits[0]
    config = TableConfig(len(change.added), primary_bytes, key_bytes - primary_bytes)
    told = f"key-value table {name}: rebuilt from its {len(numbers):,} partitions"
    if len(splits) > 1:
        told += f"; that its keys have {key_bytes} primary bytes and no secondary ones is a guess"
    create = [segment.id for segment in change.added if segment.id not in segments.by_id]
    return TableAnew(name, KeyValueTable(config, now_ms, change.added), create, told)


class _Told(msgspec.Struct):
    """What the record of a nadi group held, according to the group's state; see nadi.client.readergroup.state."""

    group_id: str
    streams: tuple[str, ...]
    timing: tuple[int, int, int] = (500, 10_000, 0)
    retention: GroupRetention = GroupRetention.NONE


async def group_of(state: RecordTable[Any], now_ms: int) -> ReaderGroup | None:
    """The record of the group whose state is in that table; None if there is none that can be read."""
    try:
        found = await state.get(STATE_KEY)
        told = msgspec.convert(found.value, _Told) if found is not None else None
    except msgspec.MsgspecError:
        return None
    if told is None:
        return None
    refresh_ms, _, checkpoint_ms = told.timing
    config = GroupConfig(refresh_ms, checkpoint_ms or -1, 1, told.retention, {stream: {} for stream in told.streams})
    return ReaderGroup(config, told.group_id, 0, now_ms)


@dataclass(slots=True)
class GroupAnew:
    """A group's record as it should be."""

    name: GroupName
    group: ReaderGroup

    @property
    def told(self) -> str:
        return f"reader group {self.name}: rebuilt from its state; where it was to start and end is lost"
