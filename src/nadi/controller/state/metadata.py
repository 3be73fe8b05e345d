"""The layout of the controller's metadata, all of it in table segments:

    _system/_tables/scopes                  scope -> Scope
    _system/_tables/scope/<scope>           stream -> StreamRecord, including mark streams; (*)
    _system/_tables/stream/<scope>/<stream> epoch/<n> -> EpochChange, sizes/<n> -> SealedSizes, base -> EpochBase once
                                            older epochs are forgotten; created by the first scale
    _system/_tables/tags/<scope>            <tag in hex>/<stream> -> ListedMark; (*)
    _system/_tables/groups/<scope>          reader group -> ReaderGroupRecord; (*)
    _system/_tables/subscribers/<scope>/<stream> scope/reader group -> Subscriber; (*), deleted with the stream
    _system/_tables/marks/<scope>/<stream>  writer -> WriterMark; (*), deleted with the stream
    _system/_tables/timed                   scope/stream -> ListedMark, streams with marks; (*)
    _system/_tables/limited                 scope/stream -> ListedMark, streams with a retention policy; (*)
    _system/_tables/kvtables/<scope>        key-value table -> KeyValueTableRecord; (*)
    _system/_tables/work                    scope/stream/<kind> -> an unfinished workflow
    _system/_tables/transactions            scope/stream/<id> -> TransactionRecord, unfinished ones
    _system/_tables/completed/<n>           scope/stream/<id> -> CompletedTransaction; one per day, a few kept
    _system/_tables/quotas                  scope/<scope> or user/<user> -> QuotaRecord; (*)
    _system/_tables/numbers                 counters; last segment numbers of deleted streams and tables
    (*) created with its first record

The workflows of a reader group run under its stream `_RG<group>`, with that stream's lock and keys in `work`; those of
a key-value table under `<table>_kvtable`, which its segments are named by and no stream can be.

A start reads only `work` and `transactions`, so its cost depends on unfinished work, not on the number of streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from cachetools import LRUCache
from msgspec.structs import replace

from nadi import errors
from nadi.controller.state import records
from nadi.controller.state.history import EpochHistory, base_of, first_change, history_of
from nadi.controller.state.segments import ABSENT, ANY_VERSION, RecordTable, Store, V, Versioned
from nadi.limits import CONTROLLER_HISTORY_SEGMENTS, EPOCHS_FORGOTTEN_AT_ONCE, NAME_MAX_CHARS
from nadi.naming import (
    CLIENT_TABLES,
    INTERNAL_SCOPE,
    MARK_PREFIX,
    READER_GROUP_PREFIX,
    TABLE_SUFFIX,
    segment_name,
    segment_number,
)

_PREFIX = f"{INTERNAL_SCOPE}/_tables"
BASE = "base"
_OWN_WEIGHT = 20  # fixed cost of a history, in segments
_TRIES = 5  # while epochs are forgotten or published


class StreamName(NamedTuple):
    scope: str
    stream: str

    @classmethod
    def of(cls, key: str) -> StreamName:
        scope, stream = key.split("/")
        return cls(scope, stream)

    @property
    def key(self) -> str:
        return "/".join(self)

    @property
    def mark(self) -> StreamName:
        return StreamName(self.scope, MARK_PREFIX + self.stream)

    def segment(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    def __str__(self) -> str:
        return self.key


class GroupName(NamedTuple):
    """A reader group's name. stream: holds the group's state; workflows of the group run under its name."""

    scope: str
    group: str

    @classmethod
    def of(cls, stream: StreamName) -> GroupName:
        return cls(stream.scope, stream.stream.removeprefix(READER_GROUP_PREFIX))

    @property
    def key(self) -> str:
        return "/".join(self)

    @property
    def stream(self) -> StreamName:
        return StreamName(self.scope, READER_GROUP_PREFIX + self.group)

    def __str__(self) -> str:
        return self.key


class TableName(NamedTuple):
    """A key-value table's name. stream: takes a stream's place in segment names; workflows run under it."""

    scope: str
    table: str

    @classmethod
    def of(cls, stream: StreamName) -> TableName:
        return cls(stream.scope, stream.stream.removesuffix(TABLE_SUFFIX))

    @property
    def key(self) -> str:
        return "/".join(self)

    @property
    def stream(self) -> StreamName:
        return StreamName(self.scope, self.table + TABLE_SUFFIX)

    def __str__(self) -> str:
        return self.key


class ControllerMetadata:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.scopes: RecordTable[records.Scope] = self._table("scopes", records.Scope)
        self.work: RecordTable[records.AnyWork] = self._table("work", records.AnyWork)
        self.transactions: RecordTable[records.TransactionRecord] = self._table(
            "transactions", records.TransactionRecord
        )
        self.numbers: RecordTable[records.Number] = self._table("numbers", records.Number)
        self.timed: RecordTable[records.ListedMark] = self._lazy_table("timed", records.ListedMark)
        self.limited: RecordTable[records.ListedMark] = self._lazy_table("limited", records.ListedMark)
        self.quotas: RecordTable[records.QuotaRecord] = self._lazy_table("quotas", records.QuotaRecord)
        most = CONTROLLER_HISTORY_SEGMENTS
        self._histories: LRUCache[str, EpochHistory] = LRUCache(
            most, lambda history: min(_OWN_WEIGHT + len(history.segments), most)
        )

    def _table(self, name: str, kind: Any) -> RecordTable[Any]:
        return self._store.table(f"{_PREFIX}/{name}", kind)

    def _lazy_table(self, name: str, kind: Any) -> RecordTable[Any]:
        return self._store.table(f"{_PREFIX}/{name}", kind, lazy=True)

    def streams(self, scope: str) -> RecordTable[records.StreamRecord]:
        return self._lazy_table(f"scope/{scope}", records.StreamRecord)

    def epochs(self, name: StreamName) -> RecordTable[records.HistoryRecord]:
        return self._table(f"stream/{name}", records.HistoryRecord)

    def tags(self, scope: str) -> RecordTable[records.ListedMark]:
        return self._lazy_table(f"tags/{scope}", records.ListedMark)

    def shared(self, scope: str) -> list[RecordTable[Any]]:
        """Return the scope's tables that clients write (`naming.CLIENT_TABLES`); they are deleted with the scope."""
        return [self._store.table(segment_name(scope, table + TABLE_SUFFIX, 0), Any) for table in CLIENT_TABLES]

    def group_state(self, name: GroupName) -> RecordTable[Any]:
        """Return the state of a nadi reader group, which only its readers access; it is deleted with the group."""
        return self._store.table(segment_name(name.scope, name.stream.stream + TABLE_SUFFIX, 0), Any)

    def groups(self, scope: str) -> RecordTable[records.ReaderGroupRecord]:
        return self._lazy_table(f"groups/{scope}", records.ReaderGroupRecord)

    def subscribers(self, name: StreamName) -> RecordTable[records.Subscriber]:
        return self._lazy_table(f"subscribers/{name}", records.Subscriber)

    def marks(self, name: StreamName) -> RecordTable[records.WriterMark]:
        return self._lazy_table(f"marks/{name}", records.WriterMark)

    def scalings(self, name: StreamName) -> RecordTable[records.ScalingEntry]:
        return self._lazy_table(f"scaling/{name}", records.ScalingEntry)

    def tables(self, scope: str) -> RecordTable[records.KeyValueTableRecord]:
        return self._lazy_table(f"kvtables/{scope}", records.KeyValueTableRecord)

    def completed(self, number: int) -> RecordTable[records.CompletedTransaction]:
        return self._table(f"completed/{number}", records.CompletedTransaction)

    async def find_scope(self, scope: str) -> Versioned[records.Scope] | None:
        return await self.scopes.get(scope) if _may_exist(scope) else None

    async def scope(self, scope: str) -> Versioned[records.Scope]:
        return _there(await self.find_scope(scope), errors.ScopeNotFoundError, (scope,))

    async def open_scope(self, scope: str) -> None:
        """Check that the scope accepts creations; PermissionDeniedError for the controller's own scope."""
        if scope == INTERNAL_SCOPE:
            raise errors.PermissionDeniedError(
                f"the scope {scope} belongs to the server: create a scope of your own and use that"
            )
        if (await self.scope(scope)).value.state is records.ScopeState.DELETING:
            raise errors.ScopeNotFoundError(scope)

    async def find_stream(self, name: StreamName) -> Versioned[records.StreamRecord] | None:
        return await _find(self.streams, *name)

    async def stream(self, name: StreamName) -> Versioned[records.StreamRecord]:
        return _there(await self.find_stream(name), errors.StreamNotFoundError, name)

    async def open_stream(self, name: StreamName, *, fresh: bool = False) -> records.StreamRecord:
        """Return the stream; StreamSealedError if it is sealed or being sealed."""
        if fresh:
            self._store.forget(self.streams(name.scope).name, [name.stream])
        stream = (await self.stream(name)).value
        if stream.state is not records.StreamState.ACTIVE:
            raise errors.StreamSealedError(name.key)
        return stream

    async def put_stream(
        self, name: StreamName, stream: records.StreamRecord, version: int
    ) -> Versioned[records.StreamRecord]:
        return await self.streams(name.scope).put(name.stream, stream, version)

    async def list_limited(self, name: StreamName, config: records.StreamConfigRecord) -> None:
        """List a stream with a retention policy. To be called after storing the configuration, since a round that finds
        no policy unlists the stream and checks once more."""
        if config.retention_type is not records.RetentionType.NONE:
            await self.limited.put(name.key, records.ListedMark(), ANY_VERSION)

    async def user_streams(self, page: int) -> AsyncIterator[tuple[StreamName, records.StreamRecord]]:
        """Yield all streams except internal ones, `page` of them per turn of the loop."""
        async for scope, _ in self.scopes.scan():
            if scope == INTERNAL_SCOPE:
                continue
            async for stream, record in self.streams(scope).scan(page=page):
                if not stream.startswith("_"):
                    yield StreamName(scope, stream), record.value

    async def find_group(self, name: GroupName) -> Versioned[records.ReaderGroupRecord] | None:
        return await _find(self.groups, *name)

    async def group(self, name: GroupName) -> Versioned[records.ReaderGroupRecord]:
        return _there(await self.find_group(name), errors.ReaderGroupNotFoundError, name)

    async def put_group(self, name: GroupName, group: records.ReaderGroupRecord) -> None:
        """Store the group; only the group's workflows call this, one at a time."""
        await self.groups(name.scope).put(name.group, group, ANY_VERSION)

    async def find_table(self, name: TableName) -> Versioned[records.KeyValueTableRecord] | None:
        return await _find(self.tables, *name)

    async def table(self, name: TableName) -> Versioned[records.KeyValueTableRecord]:
        return _there(await self.find_table(name), errors.KeyValueTableNotFoundError, name)

    async def history(self, name: StreamName) -> EpochHistory:
        """Return all retained epochs of a stream; shared, so only `publish` may change it. It is read completely, once
        per stream."""
        stored = self._store.recall(self.streams(name.scope).name, name.stream)
        known = self._known_history(name, None if stored is None else stored.value)
        return known if known is not None else await self._read_history(name, (await self.stream(name)).value)

    def _known_history(self, name: StreamName, stream: records.StreamRecord | None) -> EpochHistory | None:
        """Return the cached history, if it includes the stream's epoch or the stream's record isn't known. The stream
        may have been recreated since, with new segment numbers."""
        history = self._histories.get(name.key)
        if history is None or stream is None:
            return history
        return history if stream.epoch <= history.newest and stream.segments[0].id in history.segments else None

    async def _read_history(self, name: StreamName, stream: records.StreamRecord) -> EpochHistory:
        for _ in range(_TRIES):
            history = await _read(self.epochs(name), stream)
            if history is None:
                continue
            known = self._known_history(name, stream)
            if known is not None and known.newest >= history.newest:
                return known  # another reader was faster, or an epoch was published meanwhile
            self._histories[name.key] = history
            return history
        raise errors.UnavailableError(f"the epochs of {name} kept changing while they were read: try again")

    async def publish(self, name: StreamName, changes: Sequence[records.EpochChange]) -> None:
        """Record new epochs; from now on they determine the successors of the segments they replace."""
        table, history = self.epochs(name), await self.history(name)
        first = [history.change(0)] if history.newest == 0 else []
        if first:
            await table.create()
        self.forget_history(name)
        written = [(f"epoch/{change.epoch}", change, ANY_VERSION) for change in (*first, *changes)]
        await table.put_all(written, cached=False)
        known = self._histories.pop(name.key, history)  # cached meanwhile, with or without these epochs
        for change in changes:
            known.add(change)
        self._histories[name.key] = known

    async def put_sizes(self, name: StreamName, label: str, sizes: dict[int, int]) -> None:
        """Record the lengths of sealed segments under a label that is the same when the step is repeated."""
        if not sizes:
            return
        table, history = self.epochs(name), await self.history(name)
        record: tuple[str, records.HistoryRecord, int] = (f"sizes/{label}", records.SealedSizes(sizes), ANY_VERSION)
        try:
            await table.put_all([record], cached=False)
        except errors.SegmentNotFoundError:  # sealed without ever being scaled
            await table.create()
            await table.put_all([("epoch/0", history.change(0), ANY_VERSION), record])
        history.sizes.update(sizes)

    async def forget_epochs(self, name: StreamName, first: int) -> None:
        """Forget the epochs before `first`, unless they are few, and finish an interrupted removal. The caller has the
        stream's lock. A record of the oldest remaining epoch, `base`, invalidates all records of older ones. Those are
        removed afterwards, some at a time; `base` records the progress. A concurrent reader that misses one of them
        reads again and finds the new `base`."""
        table, history = self.epochs(name), await self.history(name)
        stored = await table.get(BASE, fresh=True)
        base, version = (stored.value, stored.version) if stored is not None else (None, ABSENT)
        assert base is None or isinstance(base, records.EpochBase)
        known = 0 if base is None else base.epoch
        if first - known >= EPOCHS_FORGOTTEN_AT_ONCE:
            history = history.forgetting(first)
            base = base_of(history, cleared=0 if base is None else base.cleared)
            version = (await table.put(BASE, base, version)).version
            self._histories[name.key] = history
        if base is None or base.cleared == base.epoch:
            return
        for begin in range(base.cleared, base.epoch + 1, EPOCHS_FORGOTTEN_AT_ONCE):
            epochs = range(begin, min(begin + EPOCHS_FORGOTTEN_AT_ONCE, base.epoch + 1))
            await table.remove([f"{kind}/{epoch}" for epoch in epochs for kind in ("epoch", "sizes")])
        await table.put(BASE, replace(base, cleared=base.epoch), version)

    def forget_history(self, name: StreamName) -> None:
        """Discard the cached history, so that it is read again when next needed."""
        self._histories.pop(name.key, None)

    async def first_numbers(self, names: Sequence[StreamName]) -> list[int]:
        """Return the first segment number for each stream: 0, or one past the last of its former incarnation."""
        records = await self.numbers.get_all([f"last/{name.key}" for name in names])
        return [record.value.value + 1 if record else 0 for record in records]

    async def keep_last_numbers(self, ends: Iterable[tuple[StreamName, Sequence[records.EpochSegment]]]) -> None:
        """Record the last segment numbers of names that are being deleted."""
        last = {name: records.Number(max(segment_number(s.id) for s in segments)) for name, segments in ends}
        await self.numbers.put_all([(f"last/{name.key}", number, ANY_VERSION) for name, number in last.items()])


def _may_exist(name: str) -> bool:
    """Return False for a name that could never be created, so that odd texts don't get into keys or table names."""
    return 0 < len(name) <= NAME_MAX_CHARS + len(MARK_PREFIX) and "/" not in name


async def _find(table: Callable[[str], RecordTable[V]], scope: str, name: str) -> Versioned[V] | None:
    return await table(scope).get(name) if _may_exist(scope) and _may_exist(name) else None


def _there(record: Versioned[V] | None, absent: Callable[..., Exception], name: Sequence[str]) -> Versioned[V]:
    if record is None:
        raise absent(*name)
    return record


async def _read(table: RecordTable[records.HistoryRecord], stream: records.StreamRecord) -> EpochHistory | None:
    """Read a history; None if the table changed meanwhile and must be read again."""
    base: records.EpochBase | None = None
    changes: list[records.EpochChange] = []
    sizes: list[records.SealedSizes] = []
    async for _, record in table.scan():
        if isinstance(record.value, records.EpochChange):
            changes.append(record.value)
        elif isinstance(record.value, records.SealedSizes):
            sizes.append(record.value)
        else:
            base = record.value
    if not changes and base is None:
        changes = [first_change(stream)]
    history = history_of(base, changes, sizes)
    newest = max((change.epoch for change in changes), default=0)
    return history if history is not None and history.newest >= max(newest, stream.epoch) else None
