"""JSON records that clients store by name in a scope's tables.

The bookmarks table maps `bookmark/<name>` and `slice/<name>` to `StoredCuts`; retention reads it too. The table of
stream tables maps `table/<name>` to `StoredTable` and `changes/<name>` to `ChangesRecord`; a record is deleted with its
stream.
"""

from __future__ import annotations

import msgspec

TABLE_PREFIX, PROGRESS_PREFIX = "table/", "changes/"


class StoredCuts(msgspec.Struct, frozen=True):
    """A bookmark (one cut) or a slice (two). cuts: as text; made_ms: by its creator's clock."""

    stream: str
    cuts: list[str]
    made_ms: int
    note: str = ""
    tags: list[str] = []


class StoredTable(msgspec.Struct, frozen=True):
    """The definition of a stream table.

    value_format: None to use the stream's schema; value_schema: fields in Spark's DDL, None to use the stream's schema.
    made_ms: by its creator's clock.
    """

    stream: str
    made_ms: int
    value_format: str | None = None
    value_schema: str | None = None
    value_mode: str | None = None
    key: tuple[str, ...] = ()
    event_time: str | None = None
    note: str = ""


class ChangesRecord(msgspec.Struct, frozen=True):
    """Progress of writing a table's changes to a stream.

    Changes before the cut `at` are written; changes up to `next` are too if the transaction is committed. table: the
    source table; stream and key: its stream and key columns.
    """

    stream: str
    table: str
    key: tuple[str, ...]
    at: str
    next: str = ""
    transaction: str = ""


class StreamDependent(msgspec.Struct, frozen=True):
    """The field shared by all records that are deleted with their stream."""

    stream: str
