"""What the controller still knows: all its records of scopes, streams, tables and groups, read at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from nadi.controller.state import histories
from nadi.controller.state.history import History
from nadi.controller.state.metadata import GroupName, Metadata, StreamName, TableName
from nadi.controller.state.records import EpochBase, EpochChange, KeyValueTable, SealedSizes, Stream, Transaction, Turn
from nadi.controller.state.store import Versioned
from nadi.naming import INTERNAL_SCOPE


@dataclass(slots=True)
class Known:
    """work: of each stream the kinds of its unfinished workflows. numbers: the counters. transactions: the unfinished
    ones of each stream, by id."""

    scopes: set[str] = field(default_factory=set)
    streams: dict[StreamName, Versioned[Stream]] = field(default_factory=dict)
    tables: dict[TableName, KeyValueTable] = field(default_factory=dict)
    groups: set[GroupName] = field(default_factory=set)
    work: dict[StreamName, set[str]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    transactions: dict[StreamName, dict[str, Transaction]] = field(default_factory=dict)

    def last_number(self, name: StreamName) -> int:
        """The last segment number of a stream or table of that name that was deleted; -1: none was."""
        return self.numbers.get(f"last/{name.key}", -1)


async def read(metadata: Metadata, scopes: set[str]) -> Known:
    """All records, including those of these scopes, whether or not the scopes have a record."""
    known = Known()
    known.scopes = {scope async for scope, _ in metadata.scopes.scan()}
    known.numbers = {key: record.value.value async for key, record in metadata.numbers.scan()}
    for scope in (known.scopes | scopes) - {INTERNAL_SCOPE}:
        async for stream, record in metadata.streams(scope).scan():
            known.streams[StreamName(scope, stream)] = record
        async for table, kept in metadata.tables(scope).scan():
            known.tables[TableName(scope, table)] = kept.value
        known.groups |= {GroupName(scope, group) async for group, _ in metadata.groups(scope).scan()}
    async for key, work in metadata.work.scan():
        if not isinstance(work.value, Turn):
            owner, _, kind = key.rpartition("/")
            known.work.setdefault(StreamName.of(owner), set()).add(kind)
    async for key, unfinished in metadata.transactions.scan():
        owner, _, text = key.rpartition("/")
        known.transactions.setdefault(StreamName.of(owner), {})[text] = unfinished.value
    return known


async def history_of(metadata: Metadata, name: StreamName) -> tuple[History | None, set[str]]:
    """The stream's recorded epochs, from the first that isn't forgotten up to any gap; and the keys of all its
    records."""
    kept = {key: record.value async for key, record in metadata.epochs(name).scan()}
    changes = [value for value in kept.values() if isinstance(value, EpochChange)]
    sizes = [value for value in kept.values() if isinstance(value, SealedSizes)]
    base = next((value for value in kept.values() if isinstance(value, EpochBase)), None)
    return histories.history_of(base, changes, sizes), set(kept)
