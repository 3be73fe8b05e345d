"""Where the controller keeps everything it knows, all of it in table segments:

    _system/_tables/scopes                  scope -> Scope
    _system/_tables/scope/<scope>           stream -> Stream, mark streams included; made by the first one
    _system/_tables/stream/<scope>/<stream> epoch/<n> -> EpochChange, sizes/<n> -> SealedSizes,
                                            base -> EpochBase once older epochs are forgotten; made by
                                            the first scale: before it, `Stream` says it all
    _system/_tables/tags/<scope>            <tag in hex>/<stream> -> Tagged; made by the first one
    _system/_tables/groups/<scope>          reader group -> ReaderGroup; made by the first one
    _system/_tables/subscribers/<scope>/<stream>
                                            scope/reader group -> Subscriber; made by the first one, dropped
                                            with the stream
    _system/_tables/marks/<scope>/<stream>  writer -> WriterMark; made by the first one, dropped with the stream
    _system/_tables/timed                   scope/stream -> TimedStream, those with marks; made by the first one
    _system/_tables/limited                 scope/stream -> LimitedStream, those with a retention policy; made by the
                                            first one
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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from nadi.controller.state.histories import Histories
from nadi.controller.state.history import History
from nadi.controller.state.records import (
    AnyWork,
    CompletedTransaction,
    Config,
    EpochChange,
    HistoryRecord,
    KeyValueTable,
    LimitedStream,
    Number,
    ReaderGroup,
    RetentionType,
    ScalingEntry,
    Scope,
    ScopeState,
    Stream,
    StreamState,
    Subscriber,
    Tagged,
    TimedStream,
    Transaction,
    WriterMark,
)
from nadi.controller.state.store import ANY_VERSION, RecordTable, Store, V, Versioned
from nadi.errors import (
    KeyValueTableNotFoundError,
    NotFoundError,
    PermissionDeniedError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
)
from nadi.limits import NAME_MAX_CHARS
from nadi.naming import (
    CLIENT_TABLES,
    INTERNAL_SCOPE,
    MARK_PREFIX,
    READER_GROUP_PREFIX,
    TABLE_SUFFIX,
    segment_name,
)

_PREFIX = f"{INTERNAL_SCOPE}/_tables"


class StreamName(NamedTuple):
    scope: str
    stream: str

    @classmethod
    def of(cls, key: str) -> StreamName:
        """The name whose `key` that is."""
        scope, stream = key.split("/")
        return cls(scope, stream)

    @property
    def key(self) -> str:
        return f"{self.scope}/{self.stream}"

    @property
    def mark(self) -> StreamName:
        """The stream that holds this one's watermarks."""
        return StreamName(self.scope, MARK_PREFIX + self.stream)

    def segment(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    def __str__(self) -> str:
        return self.key


class GroupName(NamedTuple):
    scope: str
    group: str

    @property
    def key(self) -> str:
        return f"{self.scope}/{self.group}"

    @property
    def stream(self) -> StreamName:
        """The stream that holds the group's state, under whose name its workflows run."""
        return StreamName(self.scope, READER_GROUP_PREFIX + self.group)

    @classmethod
    def of(cls, stream: StreamName) -> GroupName:
        return cls(stream.scope, stream.stream.removeprefix(READER_GROUP_PREFIX))

    def __str__(self) -> str:
        return self.key


class TableName(NamedTuple):
    scope: str
    table: str

    @property
    def key(self) -> str:
        return f"{self.scope}/{self.table}"

    @property
    def stream(self) -> StreamName:
        """The name that its segments have instead of a stream's, under which its workflows run."""
        return StreamName(self.scope, self.table + TABLE_SUFFIX)

    @classmethod
    def of(cls, stream: StreamName) -> TableName:
        return cls(stream.scope, stream.stream.removesuffix(TABLE_SUFFIX))

    def __str__(self) -> str:
        return self.key


class Metadata:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.scopes: RecordTable[Scope] = store.table(f"{_PREFIX}/scopes", Scope)
        self.work: RecordTable[AnyWork] = store.table(f"{_PREFIX}/work", AnyWork)
        self.transactions: RecordTable[Transaction] = store.table(f"{_PREFIX}/transactions", Transaction)
        self.numbers: RecordTable[Number] = store.table(f"{_PREFIX}/numbers", Number)
        self.timed: RecordTable[TimedStream] = store.table(f"{_PREFIX}/timed", TimedStream, made_late=True)
        self.limited: RecordTable[LimitedStream] = store.table(f"{_PREFIX}/limited", LimitedStream, made_late=True)
        self._histories = Histories()

    def streams(self, scope: str) -> RecordTable[Stream]:
        return self._store.table(f"{_PREFIX}/scope/{scope}", Stream, made_late=True)

    def epochs(self, name: StreamName) -> RecordTable[HistoryRecord]:
        return self._store.table(f"{_PREFIX}/stream/{name.key}", HistoryRecord)

    def tags(self, scope: str) -> RecordTable[Tagged]:
        return self._store.table(f"{_PREFIX}/tags/{scope}", Tagged, made_late=True)

    def shared(self, scope: str) -> list[RecordTable[Any]]:
        """The scope's tables that clients write, deleted with it: `naming.CLIENT_TABLES`."""
        return [self._store.table(segment_name(scope, table + TABLE_SUFFIX, 0), Any) for table in CLIENT_TABLES]

    def group_state(self, name: GroupName) -> RecordTable[Any]:
        """The state of a nadi reader group, which only its readers read and write; it is deleted with the group."""
        return self._store.table(segment_name(name.scope, name.stream.stream + TABLE_SUFFIX, 0), Any)

    def groups(self, scope: str) -> RecordTable[ReaderGroup]:
        return self._store.table(f"{_PREFIX}/groups/{scope}", ReaderGroup, made_late=True)

    def subscribers(self, name: StreamName) -> RecordTable[Subscriber]:
        return self._store.table(f"{_PREFIX}/subscribers/{name.key}", Subscriber, made_late=True)

    def marks(self, name: StreamName) -> RecordTable[WriterMark]:
        return self._store.table(f"{_PREFIX}/marks/{name.key}", WriterMark, made_late=True)

    def scalings(self, name: StreamName) -> RecordTable[ScalingEntry]:
        """The stream's scaling log: a ring of its latest entries."""
        return self._store.table(f"{_PREFIX}/scaling/{name.key}", ScalingEntry, made_late=True)

    def tables(self, scope: str) -> RecordTable[KeyValueTable]:
        return self._store.table(f"{_PREFIX}/kvtables/{scope}", KeyValueTable, made_late=True)

    def completed(self, number: int) -> RecordTable[CompletedTransaction]:
        return self._store.table(f"{_PREFIX}/completed/{number}", CompletedTransaction)

    # --- scopes ----------------------------------------------------------------------------------

    async def find_scope(self, scope: str) -> Versioned[Scope] | None:
        return await self.scopes.get(scope) if _may_exist(scope) else None

    async def scope(self, scope: str) -> Versioned[Scope]:
        return _there(await self.find_scope(scope), ScopeNotFoundError, (scope,))

    async def open_scope(self, scope: str) -> None:
        """Check that something can be created in the scope; PermissionDeniedError for the controller's own."""
        if scope == INTERNAL_SCOPE:
            raise PermissionDeniedError(f"the scope {scope} is the server's own: make a scope of yours, and this in it")
        if (await self.scope(scope)).value.state is ScopeState.DELETING:
            raise ScopeNotFoundError(scope)

    # --- streams ---------------------------------------------------------------------------------

    async def find_stream(self, name: StreamName) -> Versioned[Stream] | None:
        return await _find(self.streams, *name)

    async def stream(self, name: StreamName) -> Versioned[Stream]:
        return _there(await self.find_stream(name), StreamNotFoundError, name)

    async def open_stream(self, name: StreamName, *, fresh: bool = False) -> Stream:
        """The stream; StreamSealedError if it is sealed or being sealed."""
        if fresh:
            self._store.forget(self.streams(name.scope).name, [name.stream])
        stream = (await self.stream(name)).value
        if stream.state is not StreamState.ACTIVE:
            raise StreamSealedError(name.key)
        return stream

    async def put_stream(self, name: StreamName, stream: Stream, version: int) -> Versioned[Stream]:
        return await self.streams(name.scope).put(name.stream, stream, version)

    async def keep_limited(self, name: StreamName, config: Config) -> None:
        """List a stream whose configuration has a retention policy, once that is stored: whoever finds none may strike
        the stream off, and then looks again."""
        if config.retention_type is not RetentionType.NONE:
            await self.limited.put(name.key, LimitedStream(), ANY_VERSION)

    # --- reader groups ---------------------------------------------------------------------------

    async def find_group(self, name: GroupName) -> Versioned[ReaderGroup] | None:
        return await _find(self.groups, *name)

    async def group(self, name: GroupName) -> Versioned[ReaderGroup]:
        return _there(await self.find_group(name), ReaderGroupNotFoundError, name)

    async def put_group(self, name: GroupName, group: ReaderGroup) -> None:
        """Only workflows of the group call this, one at a time."""
        await self.groups(name.scope).put(name.group, group, ANY_VERSION)

    # --- key-value tables ------------------------------------------------------------------------

    async def find_table(self, name: TableName) -> Versioned[KeyValueTable] | None:
        return await _find(self.tables, *name)

    async def table(self, name: TableName) -> Versioned[KeyValueTable]:
        return _there(await self.find_table(name), KeyValueTableNotFoundError, name)

    # --- history ---------------------------------------------------------------------------------

    async def history(self, name: StreamName) -> History:
        """All published epochs of a stream that aren't forgotten; shared, so only `publish` may change it."""
        held = self._store.recall(self.streams(name.scope).name, name.stream)
        found = self._histories.kept(name.key, None if held is None else held.value)
        if found is None:
            stream = (await self.stream(name)).value
            found = await self._histories.read(name.key, self.epochs(name), stream)
        return found

    async def publish(self, name: StreamName, changes: Sequence[EpochChange]) -> None:
        """Record new epochs; from now on they determine the successors of what they replace."""
        await self._histories.publish(name.key, self.epochs(name), await self.history(name), changes)

    async def put_sizes(self, name: StreamName, label: str, sizes: dict[int, int]) -> None:
        """Record the lengths of sealed segments under a label that stays the same when the step is repeated."""
        if sizes:
            await self._histories.put_sizes(self.epochs(name), await self.history(name), label, sizes)

    async def forget_epochs(self, name: StreamName, first: int) -> None:
        """Forget what lies before the epoch `first`: nothing may need it any more."""
        await self._histories.forget(name.key, self.epochs(name), await self.history(name), first)

    def forget_history(self, name: StreamName) -> None:
        self._histories.drop(name.key)

    # --- numbers ---------------------------------------------------------------------------------

    async def first_numbers(self, names: Sequence[StreamName]) -> list[int]:
        """The first segment number for each stream: 0, or one past the last of its former incarnation."""
        found = await self.numbers.get_all([f"last/{name.key}" for name in names])
        return [record.value.value + 1 if record else 0 for record in found]

    async def keep_last_numbers(self, numbers: Iterable[tuple[StreamName, int]]) -> None:
        await self.numbers.put_all([(f"last/{n.key}", Number(i), ANY_VERSION) for n, i in numbers])


def _may_exist(name: str) -> bool:
    """False for a name that could never be created, so no odd text gets into a key or a table's name."""
    return 0 < len(name) <= NAME_MAX_CHARS + len(MARK_PREFIX) and "/" not in name


async def _find(table: Callable[[str], RecordTable[V]], scope: str, name: str) -> Versioned[V] | None:
    return await table(scope).get(name) if _may_exist(scope) and _may_exist(name) else None


def _there(found: Versioned[V] | None, absent: Callable[..., NotFoundError], name: Sequence[str]) -> Versioned[V]:
    if found is None:
        raise absent(*name)
    return found
