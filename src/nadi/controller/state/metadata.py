"""Where the controller keeps everything it knows, all of it in table segments:

    _system/_tables/scopes                  scope -> Scope
    _system/_tables/scope/<scope>           stream -> Stream, mark streams included; made by the first one
    _system/_tables/stream/<scope>/<stream> epoch/<n> -> EpochChange, sizes/<n> -> SealedSizes, base -> EpochBase once
                                            older epochs are forgotten; made by the first scale
    _system/_tables/tags/<scope>            <tag in hex>/<stream> -> Listed; made by the first one
    _system/_tables/groups/<scope>          reader group -> ReaderGroup; made by the first one
    _system/_tables/subscribers/<scope>/<stream> scope/reader group -> Subscriber; as the marks
    _system/_tables/marks/<scope>/<stream>  writer -> WriterMark; made by the first one, dropped with the stream
    _system/_tables/timed                   scope/stream -> Listed, those with marks; made by the first one
    _system/_tables/limited                 scope/stream -> Listed, those with a retention policy; made by the first one
    _system/_tables/kvtables/<scope>        key-value table -> KeyValueTable; made by the first one
    _system/_tables/work                    scope/stream/<kind> -> the workflow to be finished
    _system/_tables/transactions            scope/stream/<id> -> Transaction, the unfinished ones
    _system/_tables/completed/<n>           scope/stream/<id> -> CompletedTransaction; one for each day, a few kept
    _system/_tables/numbers                 counters; last segment numbers of deleted streams and tables

A reader group's workflows are those of its stream `_RG<group>`: they share its lock and its keys in `work`. Those of
a key-value table run under `<table>_kvtable`, the name its segments carry and which no stream can have.

A start reads only `work` and `transactions`, so its cost depends on what is unfinished, not on how many streams exist.
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
_OWN_WEIGHT = 20  # what a history takes besides, in segments
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
    """stream: the one that holds the group's state, under whose name its workflows run."""

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
    """stream: the name that its segments have instead of a stream's, under which its workflows run."""

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
        self.timed: RecordTable[records.ListedMark] = self._made_late("timed", records.ListedMark)
        self.limited: RecordTable[records.ListedMark] = self._made_late("limited", records.ListedMark)
        most = CONTROLLER_HISTORY_SEGMENTS
        self._histories: LRUCache[str, EpochHistory] = LRUCache(
            most, lambda history: min(_OWN_WEIGHT + len(history.segments), most)
        )

    def _table(self, name: str, kind: Any) -> RecordTable[Any]:
        return self._store.table(f"{_PREFIX}/{name}", kind)

    def _made_late(self, name: str, kind: Any) -> RecordTable[Any]:
        return self._store.table(f"{_PREFIX}/{name}", kind, made_late=True)

    def streams(self, scope: str) -> RecordTable[records.StreamRecord]:
        return self._made_late(f"scope/{scope}", records.StreamRecord)

    def epochs(self, name: StreamName) -> RecordTable[records.HistoryRecord]:
        return self._table(f"stream/{name}", records.HistoryRecord)

    def tags(self, scope: str) -> RecordTable[records.ListedMark]:
        return self._made_late(f"tags/{scope}", records.ListedMark)

    def shared(self, scope: str) -> list[RecordTable[Any]]:
        """The scope's tables that clients write, deleted with it: `naming.CLIENT_TABLES`."""
        return [self._store.table(segment_name(scope, table + TABLE_SUFFIX, 0), Any) for table in CLIENT_TABLES]

    def group_state(self, name: GroupName) -> RecordTable[Any]:
        """The state of a nadi reader group, which only its readers read and write; it is deleted with the group."""
        return self._store.table(segment_name(name.scope, name.stream.stream + TABLE_SUFFIX, 0), Any)

    def groups(self, scope: str) -> RecordTable[records.ReaderGroupRecord]:
        return self._made_late(f"groups/{scope}", records.ReaderGroupRecord)

    def subscribers(self, name: StreamName) -> RecordTable[records.Subscriber]:
        return self._made_late(f"subscribers/{name}", records.Subscriber)

    def marks(self, name: StreamName) -> RecordTable[records.WriterMark]:
        return self._made_late(f"marks/{name}", records.WriterMark)

    def scalings(self, name: StreamName) -> RecordTable[records.ScalingEntry]:
        return self._made_late(f"scaling/{name}", records.ScalingEntry)

    def tables(self, scope: str) -> RecordTable[records.KeyValueTableRecord]:
        return self._made_late(f"kvtables/{scope}", records.KeyValueTableRecord)

    def completed(self, number: int) -> RecordTable[records.CompletedTransaction]:
        return self._table(f"completed/{number}", records.CompletedTransaction)

    async def find_scope(self, scope: str) -> Versioned[records.Scope] | None:
        return await self.scopes.get(scope) if _may_exist(scope) else None

    async def scope(self, scope: str) -> Versioned[records.Scope]:
        return _there(await self.find_scope(scope), errors.ScopeNotFoundError, (scope,))

    async def open_scope(self, scope: str) -> None:
        """Check that something can be created in the scope; PermissionDeniedError for the controller's own."""
        if scope == INTERNAL_SCOPE:
            raise errors.PermissionDeniedError(
                f"the scope {scope} is the server's own: make a scope of yours, and this in it"
            )
        if (await self.scope(scope)).value.state is records.ScopeState.DELETING:
            raise errors.ScopeNotFoundError(scope)

    async def find_stream(self, name: StreamName) -> Versioned[records.StreamRecord] | None:
        return await _find(self.streams, *name)

    async def stream(self, name: StreamName) -> Versioned[records.StreamRecord]:
        return _there(await self.find_stream(name), errors.StreamNotFoundError, name)

    async def open_stream(self, name: StreamName, *, fresh: bool = False) -> records.StreamRecord:
        """The stream; StreamSealedError if it is sealed or being sealed."""
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

    async def keep_limited(self, name: StreamName, config: records.StreamConfigRecord) -> None:
        """List a stream whose configuration has a retention policy, once that is stored: whoever finds none may strike
        the stream off, and then looks again."""
        if config.retention_type is not records.RetentionType.NONE:
            await self.limited.put(name.key, records.ListedMark(), ANY_VERSION)

    async def people_streams(self, page: int) -> AsyncIterator[tuple[StreamName, records.StreamRecord]]:
        """All streams but internal ones, so many in a turn of the loop."""
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
        """Only workflows of the group call this, one at a time."""
        await self.groups(name.scope).put(name.group, group, ANY_VERSION)

    async def find_table(self, name: TableName) -> Versioned[records.KeyValueTableRecord] | None:
        return await _find(self.tables, *name)

    async def table(self, name: TableName) -> Versioned[records.KeyValueTableRecord]:
        return _there(await self.find_table(name), errors.KeyValueTableNotFoundError, name)

    async def history(self, name: StreamName) -> EpochHistory:
        """All published epochs of a stream that aren't forgotten; shared, so only `publish` may change it. It is read
        whole, once."""
        held = self._store.recall(self.streams(name.scope).name, name.stream)
        known = self._known_history(name, None if held is None else held.value)
        return known if known is not None else await self._read_history(name, (await self.stream(name)).value)

    def _known_history(self, name: StreamName, stream: records.StreamRecord | None) -> EpochHistory | None:
        """What is in memory of a stream, if that reaches its epoch, or if its record isn't known. Another of the same
        name, whose segments have new numbers, may have been made since."""
        found = self._histories.get(name.key)
        if found is None or stream is None:
            return found
        return found if stream.epoch <= found.newest and stream.segments[0].id in found.segments else None

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
        raise errors.UnavailableError(f"the epochs of {name} can't be read whole while they change: try again")

    async def publish(self, name: StreamName, changes: Sequence[records.EpochChange]) -> None:
        """Record new epochs; from now on they determine the successors of what they replace."""
        table, history = self.epochs(name), await self.history(name)
        first = [history.change(0)] if history.newest == 0 else []
        if first:
            await table.create()
        self.forget_history(name)
        written = [(f"epoch/{change.epoch}", change, ANY_VERSION) for change in (*first, *changes)]
        await table.put_all(written, cached=False)
        known = self._histories.pop(name.key, history)  # read meanwhile: with these epochs, or without
        for change in changes:
            known.add(change)
        self._histories[name.key] = known

    async def put_sizes(self, name: StreamName, label: str, sizes: dict[int, int]) -> None:
        """Record the lengths of sealed segments under a label that stays the same when the step is repeated."""
        if not sizes:
            return
        table, history = self.epochs(name), await self.history(name)
        record: tuple[str, records.HistoryRecord, int] = (f"sizes/{label}", records.SealedSizes(sizes), ANY_VERSION)
        try:
            await table.put_all([record], cached=False)
        except errors.SegmentNotFoundError:  # sealed before it was ever scaled
            await table.create()
            await table.put_all([("epoch/0", history.change(0), ANY_VERSION), record])
        history.sizes.update(sizes)

    async def forget_epochs(self, name: StreamName, first: int) -> None:
        """Forget what lies before the epoch `first`, unless that is little; finish forgetting what a crash has left.
        The caller holds the stream's lock. A record of the oldest epoch that stays, `base`, makes all records of older
        ones count for nothing. They are removed after it, some at a time, and `base` says how far that has got. Who
        reads meanwhile, and finds one missing, finds the new `base` when it reads again."""
        table, history = self.epochs(name), await self.history(name)
        found = await table.get(BASE, fresh=True)
        base, version = (found.value, found.version) if found is not None else (None, ABSENT)
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
        """Read it anew when it is next needed."""
        self._histories.pop(name.key, None)

    async def first_numbers(self, names: Sequence[StreamName]) -> list[int]:
        """The first segment number for each stream: 0, or one past the last of its former incarnation."""
        found = await self.numbers.get_all([f"last/{name.key}" for name in names])
        return [record.value.value + 1 if record else 0 for record in found]

    async def keep_last_numbers(self, ends: Iterable[tuple[StreamName, Sequence[records.EpochSegment]]]) -> None:
        """ends: the names that end, with their last segments."""
        last = {name: records.Number(max(segment_number(s.id) for s in segments)) for name, segments in ends}
        await self.numbers.put_all([(f"last/{name.key}", number, ANY_VERSION) for name, number in last.items()])


def _may_exist(name: str) -> bool:
    """False for a name that could never be created, so no odd text gets into a key or a table's name."""
    return 0 < len(name) <= NAME_MAX_CHARS + len(MARK_PREFIX) and "/" not in name


async def _find(table: Callable[[str], RecordTable[V]], scope: str, name: str) -> Versioned[V] | None:
    return await table(scope).get(name) if _may_exist(scope) and _may_exist(name) else None


def _there(found: Versioned[V] | None, absent: Callable[..., Exception], name: Sequence[str]) -> Versioned[V]:
    if found is None:
        raise absent(*name)
    return found


async def _read(table: RecordTable[records.HistoryRecord], stream: records.StreamRecord) -> EpochHistory | None:
    """None if something else is there as soon as it is read again."""
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
