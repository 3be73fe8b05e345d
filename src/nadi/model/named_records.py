"""What a scope's tables hold that clients write, and read by name: bookmarks and slices, which retention reads too, and
how streams are read as tables, which goes with its stream.

The first table has a key `bookmark/<name>` or `slice/<name>` for each, and `StoredCuts` as JSON; the other one has
`table/<name>` and `StoredTable`, and `changes/<name>` and `ChangesRecord`.
"""

from __future__ import annotations

import msgspec

TABLE_PREFIX, PROGRESS_PREFIX = "table/", "changes/"


class StoredCuts(msgspec.Struct, frozen=True):
    """A bookmark (one cut) or a slice (two). cuts: as texts; made_ms: by the clock of whoever made it."""

    stream: str
    cuts: list[str]
    made_ms: int
    note: str = ""
    tags: list[str] = []


class StoredTable(msgspec.Struct, frozen=True):
    """A table's definition. value_format: None if the stream's schema says it; value_schema: fields in Spark's DDL,
    None for those of the stream's schema. made_ms: by the clock of whoever made it."""

    stream: str
    made_ms: int
    value_format: str | None = None
    value_schema: str | None = None
    value_mode: str | None = None
    key: tuple[str, ...] = ()
    event_time: str | None = None
    note: str = ""


class ChangesRecord(msgspec.Struct, frozen=True):
    """How far the changes of a table are written into a stream: all before the cut `at` are there; those up to `next`,
    too, if the transaction is committed. table: what they are changes of; key: by which columns, of which stream."""

    stream: str
    table: str
    key: tuple[str, ...]
    at: str
    next: str = ""
    transaction: str = ""


class StreamDependent(msgspec.Struct, frozen=True):
    """What has a stream with which it goes: any of the other table's values."""

    stream: str
