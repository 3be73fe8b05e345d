"""The control plane: knows scopes, streams and transactions, and never a byte of data.

`Controller` is what the gRPC service calls. It reads and writes table segments and commands stream
segments, both through one `exchange` with the segment store. Everything it has begun is recorded
there, so `start` takes up whatever an earlier controller left unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from nadi.controller.engine import comparisons
from nadi.controller.engine.workflows import Tasks, Workflows
from nadi.controller.periodic.watermark_rounds import WatermarkRounds
from nadi.controller.state.clock import Clock
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import GroupName, Metadata, StreamName, TableName, first_change
from nadi.controller.state.records import (
    Config,
    CreateGroupWork,
    CreateTableWork,
    CreateWork,
    DeleteGroupWork,
    DeleteScopeWork,
    DeleteTableWork,
    DeleteWork,
    GroupConfig,
    KeyValueTable,
    ReaderGroup,
    RollWork,
    ScaleType,
    ScaleWork,
    SealWork,
    SegmentRange,
    Stream,
    StreamState,
    TableConfig,
    TruncateWork,
    TxnState,
    UpdateGroupWork,
    UpdateWork,
)
from nadi.controller.state.segments import Exchange, Segments
from nadi.controller.state.store import Store
from nadi.controller.time import marks, moments
from nadi.controller.workflows import (
    commit,
    create,
    delete,
    groups,
    scale,
    scopes,
    seal,
    subscribers,
    tables,
    tags,
    truncate,
    update,
)
from nadi.controller.workflows.transactions import Begun, Transactions
from nadi.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    UnavailableError,
)
from nadi.limits import LIST_PAGE, STREAM_MAX_SEGMENTS, STREAM_MAX_TAGS, TAG_MAX_CHARS
from nadi.model.segments import KeyRange
from nadi.naming import check_name

_I64_MAX = (1 << 63) - 1


class Controller:
    """One controller over one segment store.

    exchange: sends a wire command and gives its reply. store_endpoint: (host, port) told to clients for
    data; rpc_endpoint: where this controller itself answers.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        clock: Clock | None = None,
        store_endpoint: tuple[str, int],
        rpc_endpoint: tuple[str, int],
    ) -> None:
        self.store_endpoint = store_endpoint
        self.rpc_endpoint = rpc_endpoint
        self.clock = clock or Clock()
        self._tasks = Tasks()
        segments = Segments(exchange, self.clock)
        self.metadata = Metadata(Store(segments))
        self._flow = flow = Workflows(self.metadata, segments, self.clock, self._tasks)
        self._deleting: set[str] = set()
        self.transactions = transactions = Transactions(flow, lambda t, name: commit.commit_pass(flow, t, name))
        self.watermarks = WatermarkRounds(flow)
        deleting = self._deleting
        flow.steps = {
            CreateWork: lambda name, work: create.steps(flow, name, work),
            UpdateWork: lambda name, work: update.steps(flow, name, work),
            ScaleWork: lambda name, work: scale.steps(flow, name, work),
            TruncateWork: lambda name, work: truncate.steps(flow, name, work),
            SealWork: lambda name, work: seal.steps(flow, transactions, name, work),
            DeleteWork: lambda name, work: delete.steps(flow, name, work),
            RollWork: lambda name, work: commit.roll_steps(flow, transactions, name, work),
            CreateGroupWork: lambda name, work: groups.create_steps(flow, name, work),
            UpdateGroupWork: lambda name, work: groups.update_steps(flow, name, work),
            DeleteGroupWork: lambda name, work: groups.delete_steps(flow, transactions, name, work),
            CreateTableWork: lambda name, work: tables.create_steps(flow, name, work),
            DeleteTableWork: lambda name, work: tables.delete_steps(flow, name, work),
            DeleteScopeWork: lambda name, work: scopes.delete_steps(flow, deleting, name, work),
        }

    async def start(self) -> None:
        """Make the tables where missing, and take up unfinished work; UnavailableError if the store is away."""
        metadata = self.metadata
        for table in (metadata.scopes, metadata.work, metadata.transactions, metadata.numbers):
            await table.create()
        await scopes.make_internal(self._flow)
        await self.transactions.load()
        await self._flow.resume()
        await asyncio.sleep(0)  # resumed workflows take their streams' locks before any request does
        self.transactions.resume()
        self._tasks.spawn(self.transactions.expire())
        self._tasks.spawn(self.watermarks.run())

    @property
    def unfinished(self) -> dict[str, int]:
        """How much is under way."""
        return {"workflows": self._flow.pending_count, "transactions": self.transactions.unfinished_count}

    async def stop(self) -> None:
        """End all background tasks; what they were doing is taken up by the next start."""
        await self._tasks.close()

    # --- scopes ----------------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> None:
        await scopes.create_scope(self._flow, self._deleting, scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        scopes.check_deletable(scope, recursive=recursive)
        name = scopes.scope_name(scope)
        running = self._flow.pending(name, "scope")
        if recursive and isinstance(running, DeleteScopeWork) and running.recursive:
            return
        try:
            await self._flow.run(
                name, lambda: scopes.begin_delete(self._flow, self._deleting, scope, recursive=recursive)
            )
        finally:
            if self._flow.pending(name, "scope") is None:
                self._deleting.discard(scope)

    async def scope_exists(self, scope: str) -> bool:
        return await self.metadata.find_scope(scope) is not None

    async def list_scopes(self, token: str) -> tuple[list[str], str]:
        """A page of names and the token to go on from; an empty page is the end."""
        found, following = await self.metadata.scopes.page(_token(token), LIST_PAGE)
        return [scope for scope, _ in found], following.hex() if found else token

    async def list_streams(self, scope: str, token: str, *, tag: str | None = None) -> tuple[list[str], str]:
        """A page of stream names (those with `tag`), mark streams included; an empty page is the end."""
        if tag is not None:
            await self.metadata.scope(scope)
            names, position = await tags.page(self._flow, scope, tag, _token(token), LIST_PAGE)
            return names, position.hex() if names else token
        found, following = await self.list_stream_records(scope, token)
        return [name for name, _ in found], following

    async def list_stream_records(
        self, scope: str, token: str, count: int = LIST_PAGE
    ) -> tuple[list[tuple[str, Stream]], str]:
        """A page of streams, mark streams included, and the token to go on from; an empty page is the end."""
        await self.metadata.scope(scope)
        try:
            found, following = await self.metadata.streams(scope).page(_token(token), count)
        except SegmentNotFoundError as error:
            raise ScopeNotFoundError(scope) from error
        return [(name, stream.value) for name, stream in found], following.hex() if found else token

    # --- streams ---------------------------------------------------------------------------------

    async def create_stream(self, name: StreamName, config: Config) -> None:
        """Create a stream: when this returns, all its segments exist."""
        check_name("stream", name.stream, internal=True)
        _check_config(config)
        await self._flow.run(name, lambda: create.begin(self._flow, self._deleting, name, config))

    async def update_stream(self, name: StreamName, config: Config) -> None:
        _check_config(config)
        await self._flow.run(name, lambda: update.begin(self._flow, name, config))

    async def truncate_stream(self, name: StreamName, cut: Cut) -> None:
        await self._flow.run(name, lambda: truncate.begin(self._flow, name, cut))

    async def seal_stream(self, name: StreamName) -> None:
        await self._flow.run(name, lambda: seal.begin(self._flow, name))

    async def delete_stream(self, name: StreamName) -> None:
        await self._flow.run(name, lambda: delete.begin(self._flow, name))

    async def stream(self, name: StreamName) -> Stream:
        """UnavailableError while it is being created: clients try that again."""
        found = await self.metadata.find_stream(name)
        if found is None and self._flow.pending(name, "create") is not None:
            raise UnavailableError(f"{name} is being created: try again")
        if found is None:
            raise StreamNotFoundError(*name)
        return found.value

    async def history(self, name: StreamName) -> History:
        """All epochs of the stream; shared, so not to be changed."""
        await self.metadata.stream(name)
        return await self.metadata.history(name)

    async def stream_exists(self, name: StreamName) -> bool:
        return self._flow.pending(name, "create") is not None or await self.metadata.find_stream(name) is not None

    # --- segments --------------------------------------------------------------------------------

    async def current_segments(self, name: StreamName) -> Sequence[SegmentRange]:
        """The segments that take events now; none if the stream is sealed."""
        stream = await self.stream(name)
        return () if stream.state is StreamState.SEALED else stream.segments

    async def epoch_segments(self, name: StreamName, epoch: int) -> Sequence[SegmentRange]:
        return (await self.metadata.history(name)).epoch(epoch)

    async def head(self, name: StreamName) -> Cut:
        """The stream cut at which the stream begins."""
        stream = await self.stream(name)
        if stream.head:
            return stream.head
        if stream.epoch == 0:
            return {segment.id: 0 for segment in first_change(stream).added}
        return (await self.metadata.history(name)).head_of_time()

    async def cut_at(self, name: StreamName, at_ms: int) -> Cut:
        """The stream cut of a moment, in ms since 1970."""
        await self.stream(name)
        return await moments.cut_at(self._flow, name, at_ms)

    async def successors(self, name: StreamName, segment: int) -> list[tuple[SegmentRange, list[int]]]:
        await self.metadata.stream(name)
        return (await self.metadata.history(name)).successors(segment)

    async def segments_between(self, name: StreamName, start: Cut, end: Cut) -> list[int]:
        await self.metadata.stream(name)
        return await comparisons.ask(await self.metadata.history(name), lambda history: history.between(start, end))

    async def is_segment_valid(self, name: StreamName, segment: int) -> bool:
        return any(segment == current.id for current in await self.current_segments(name))

    async def is_cut_valid(self, name: StreamName, cut: Cut) -> bool:
        await self.metadata.stream(name)
        return await comparisons.ask(await self.metadata.history(name), lambda history: history.is_valid_cut(cut))

    # --- scaling ---------------------------------------------------------------------------------

    async def scale(
        self, name: StreamName, sealed: Sequence[int], ranges: Sequence[KeyRange], time_ms: int = 0
    ) -> ScaleWork:
        """Begin to replace the `sealed` segments by new ones over `ranges`; returns when that is recorded."""
        running = self._flow.pending(name, "scale")
        if isinstance(running, ScaleWork):
            if scale.same_scale(running, sealed, ranges):
                return running
            raise ConflictError(f"{name} is being scaled already: try again when that is done")
        work = await self._flow.run(name, lambda: scale.begin(self._flow, name, sealed, ranges, time_ms), wait=False)
        assert isinstance(work, ScaleWork)
        return work

    async def is_scaled(self, name: StreamName, epoch: int) -> bool:
        """Whether the scale that began in `epoch` is done; NotFoundError for an epoch still to come."""
        stream = await self.stream(name)
        if epoch > stream.epoch:
            raise NotFoundError(f"{name} has not reached epoch {epoch}")
        running = self._flow.pending(name, "scale")
        if isinstance(running, ScaleWork) and running.change.epoch == epoch + 1:
            return False
        return epoch not in (stream.epoch, stream.reference)

    # --- transactions ----------------------------------------------------------------------------

    async def create_transaction(self, name: StreamName, lease_ms: int) -> Begun:
        return await self.transactions.create(name, lease_ms)

    async def ping_transaction(self, name: StreamName, txn_id: int, lease_ms: int) -> TxnState:
        return await self.transactions.ping(name, txn_id, lease_ms)

    async def commit_transaction(
        self, name: StreamName, txn_id: int, writer_id: str = "", commit_time: int | None = None
    ) -> None:
        if writer_id:
            marks.check_writer(writer_id)
        await self.metadata.stream(name)
        await self.transactions.commit(name, txn_id, writer_id, commit_time)

    async def abort_transaction(self, name: StreamName, txn_id: int) -> None:
        await self.metadata.stream(name)
        await self.transactions.abort(name, txn_id)

    async def transaction_state(self, name: StreamName, txn_id: int) -> TxnState:
        return await self.transactions.state(name, txn_id)

    # --- reader groups ---------------------------------------------------------------------------

    async def create_reader_group(self, name: GroupName, config: GroupConfig, group_id: str) -> ReaderGroup:
        """The group as it is stored: the one that had the name already, else a new one with this UUID."""
        begin = partial(groups.begin_create, self._flow, self._deleting, name, config, group_id)
        try:
            await self._flow.run(name.stream, begin)
        except AlreadyExistsError:
            pass
        return await self.reader_group(name)

    async def reader_group(self, name: GroupName) -> ReaderGroup:
        return (await self.metadata.group(name)).value

    async def list_reader_groups(self, scope: str, token: str, count: int = LIST_PAGE) -> tuple[list[str], str]:
        """A page of names, and the token to go on from; an empty page is the end."""
        await self.metadata.scope(scope)
        found, following = await self.metadata.groups(scope).page(_token(token), count)
        return [group for group, _ in found], following.hex() if found else token

    async def update_reader_group(self, name: GroupName, config: GroupConfig, group_id: str, generation: int) -> int:
        """The new generation; GenerationMismatchError if the group isn't (any more) as the caller read it."""
        begin = partial(groups.begin_update, self._flow, name, config, group_id, generation)
        work = await self._flow.run(name.stream, begin)
        assert isinstance(work, UpdateGroupWork)
        return work.group.generation

    async def delete_reader_group(self, name: GroupName, group_id: str) -> None:
        await self._flow.run(name.stream, lambda: groups.begin_delete(self._flow, name, group_id))

    async def subscribers(self, name: StreamName) -> list[str]:
        return await subscribers.names(self._flow, name)

    async def publish_cut(self, name: StreamName, subscriber: str, group_id: str, generation: int, cut: Cut) -> None:
        """Let retention truncate before this cut as far as the subscriber is concerned."""
        await subscribers.publish(self._flow, name, subscriber, group_id, generation, cut)

    # --- event time ------------------------------------------------------------------------------

    async def note_time(self, name: StreamName, writer: str, time: int, position: Cut) -> None:
        """Record that all the writer's events up to `time` lie before `position`."""
        await marks.note(self._flow, name, writer, time, position)

    async def remove_writer(self, name: StreamName, writer: str) -> None:
        await marks.remove_writer(self._flow, name, writer)

    # --- key-value tables ------------------------------------------------------------------------

    async def create_table(self, name: TableName, config: TableConfig) -> None:
        """Create a key-value table: when this returns, all its segments exist."""
        await self._flow.run(name.stream, lambda: tables.begin_create(self._flow, self._deleting, name, config))

    async def delete_table(self, name: TableName) -> None:
        await self._flow.run(name.stream, lambda: tables.begin_delete(self._flow, name))

    async def table(self, name: TableName) -> KeyValueTable:
        return (await self.metadata.table(name)).value

    async def list_tables(self, scope: str, token: str) -> tuple[list[str], str]:
        """A page of names of key-value tables; an empty page is the end."""
        await self.metadata.scope(scope)
        found, following = await self.metadata.tables(scope).page(_token(token), LIST_PAGE)
        return [table for table, _ in found], following.hex() if found else token


def _token(token: str) -> bytes:
    try:
        return bytes.fromhex(token)
    except ValueError as error:
        raise InvalidArgumentError(f"{token[:40]!r} is no continuation token of this controller") from error


def _check_config(config: Config) -> None:
    checks: list[tuple[bool, str]] = [
        (1 <= config.min_segments <= STREAM_MAX_SEGMENTS, f"1 to {STREAM_MAX_SEGMENTS:,} segments"),
        (config.scale_type is ScaleType.FIXED or config.target_rate > 0, "a target rate over 0"),
        (config.target_rate >= 0 and config.scale_factor >= 0, "no negative rate or scale factor"),
        (0 <= config.retention_param <= _I64_MAX and config.retention_max >= 0, "no negative retention"),
        (config.rollover_size_bytes >= 0, "no negative rollover size"),
        (len(config.tags) <= STREAM_MAX_TAGS, f"at most {STREAM_MAX_TAGS} tags"),
        (all(len(tag) <= TAG_MAX_CHARS for tag in config.tags), f"tags of at most {TAG_MAX_CHARS} characters"),
    ]
    for good, wanted in checks:
        if not good:
            raise InvalidArgumentError(f"the stream's configuration is wrong: it needs {wanted}")
