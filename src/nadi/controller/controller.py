"""The control plane: manages scopes, streams, groups and transactions; event data never passes through it.

It stores its records in table segments and commands stream segments, both through one `exchange` with the segment
store. All work in progress is recorded there, so `start` resumes whatever an earlier controller left unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nadi import errors, limits
from nadi.controller import event_time
from nadi.controller.engine.workflows import Schedule, Tasks, WorkBatcher, Workflows, check_all, tagged
from nadi.controller.event_time import WatermarkRounds
from nadi.controller.external_scaler import Demand
from nadi.controller.metrics import Metrics
from nadi.controller.quotas import QuotaCatalog
from nadi.controller.reports import Kind, Page, loads, replaced, report
from nadi.controller.retention.rounds import RetentionRounds, check_policy
from nadi.controller.scaling.decisions import DEFAULT_PROFILE, Profile
from nadi.controller.scaling.rounds import ScalingRounds
from nadi.controller.state import records
from nadi.controller.state.history import Cut, EpochHistory, ask, first_change
from nadi.controller.state.metadata import ControllerMetadata, GroupName, StreamName, TableName
from nadi.controller.state.segments import (
    Exchange,
    Leased,
    PlaceOf,
    RecordTable,
    Segments,
    Store,
    T,
    Versioned,
)
from nadi.controller.stream_rates import Rates
from nadi.controller.transactions.decisions import Transactions
from nadi.controller.workflows import create, delete, groups, scale, scopes, seal, subscribers, tables, truncate, update
from nadi.model.event_time import EventTime
from nadi.model.load import ScaleType
from nadi.model.reports import LOAD, RETENTION, SegmentReport
from nadi.model.segments import KeyRange
from nadi.naming import check_name
from nadi.runtime import Runtime
from nadi.wire.time_index import ARRIVAL, check_clock


class Controller:
    """The controller of the segment stores. exchange: sends a wire command to the store that has the segment and
    returns the reply; called again after WrongHost, since segments move. endpoint_of: (host, port) of the store that
    has a segment, as reported to clients; accepts any segment name. rpc_endpoint: the controller's own address.
    scaling: the automatic scaling profile. is_leased, place_of: see `Segments`. audit_retention_ms: age of deleted
    audit records; 0 keeps all, None turns the audit stream off."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        clock: Runtime | None = None,
        endpoint_of: Callable[[str], tuple[str, int]],
        rpc_endpoint: tuple[str, int],
        scaling: Profile = DEFAULT_PROFILE,
        is_leased: Leased = lambda: True,
        place_of: PlaceOf = lambda _: "",
        audit_retention_ms: int | None = None,
    ) -> None:
        self.endpoint_of, self.rpc_endpoint = endpoint_of, rpc_endpoint
        self._audit_retention_ms = audit_retention_ms
        self.rest_port = 0  # of this server, reported to clients
        self.clock = clock or Runtime()
        self._tasks, self._creations = Tasks(), WorkBatcher()
        segments = Segments(exchange, self.clock, place_of, is_leased)
        metadata = ControllerMetadata(Store(segments))
        flow = Workflows(metadata, segments, self.clock, self._tasks)
        self._flow, self.metadata = flow, metadata
        self.watermarks = WatermarkRounds(flow)
        self.transactions = transactions = Transactions(flow)
        self.retention = RetentionRounds(flow)
        self.scaling = ScalingRounds(flow, scaling)
        self.rates = rates = Rates(flow)
        self.metrics = Metrics(flow, rates, self.scaling, self.retention, lambda: self.unfinished)
        self._reports: dict[str, Kind] = {RETENTION: self.retention.report, LOAD: partial(loads, self.scaling.hot_keys)}
        self.demand = Demand(flow, rates)
        self.quotas = QuotaCatalog(flow)
        flow.admit = self.quotas.admit
        flow.steps = {
            records.CreateWork: partial(create.steps, flow),
            records.UpdateWork: partial(update.steps, flow),
            records.ScaleWork: partial(scale.steps, flow),
            records.TruncateWork: partial(truncate.steps, flow),
            records.SealWork: partial(seal.steps, flow, transactions),
            records.DeleteWork: partial(delete.steps, flow),
            records.RollWork: transactions.roll_steps,
            records.CreateGroupWork: partial(groups.create_steps, flow),
            records.UpdateGroupWork: partial(groups.update_steps, flow),
            records.DeleteGroupWork: partial(groups.delete_steps, flow, transactions),
            records.CreateTableWork: partial(tables.create_steps, flow),
            records.DeleteTableWork: partial(tables.delete_steps, flow),
            records.DeleteScopeWork: partial(scopes.delete_steps, flow),
        }

    async def start(self) -> None:
        """Create missing tables and resume unfinished work; UnavailableError if the store can't be reached."""
        metadata = self.metadata
        for table in (metadata.scopes, metadata.work, metadata.transactions, metadata.numbers):
            await table.create()
        await scopes.make_internal(self._flow)
        await self.transactions.load()
        await self._flow.resume()
        if self._audit_retention_ms is not None:
            await scopes.make_audit(self._flow, self._audit_retention_ms)
        await asyncio.sleep(0)  # resumed workflows take their streams' locks before any request does
        self.transactions.resume()
        schedule = Schedule(self.clock, self._tasks)
        schedule.start("expired transactions", limits.TXN_TICK_MS / 1000, self.transactions.expire_due)
        schedule.start("watermarks", limits.WATERMARK_PERIOD_S, self.watermarks.round)
        schedule.start("measurements for quotas", limits.QUOTA_STORED_S, self.quotas.measure)
        self.retention.start(schedule)
        self.scaling.start(schedule)

    @property
    def unfinished(self) -> dict[str, int]:
        return {"workflows": self._flow.pending_count, "transactions": len(self.transactions.leases)}

    def end_waits(self) -> None:
        """Answer the calls that wait for the end of transactions at once, before the controller stops."""
        self.transactions.leases.end_waits()

    async def stop(self) -> None:
        """Cancel all background tasks; the next start resumes their work."""
        self.end_waits()
        await self._tasks.close()

    async def create_scope(self, scope: str) -> None:
        await scopes.create_scope(self._flow, scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        scopes.check_deletable(scope, recursive=recursive)
        name = scopes.scope_name(scope)
        running = self._flow.pending(name, "scope")
        if recursive and isinstance(running, records.DeleteScopeWork) and running.recursive:
            return
        await self._flow.run(name, lambda: scopes.begin_delete(self._flow, scope, recursive=recursive))

    async def scope_exists(self, scope: str) -> bool:
        return await self.metadata.find_scope(scope) is not None

    async def list_scopes(self, token: str) -> tuple[list[str], str]:
        """Return a page of names and the continuation token; an empty page is the end."""
        return await names_of(self.metadata.scopes, token, limits.LIST_PAGE)

    async def list_streams(self, scope: str, token: str, *, tag: str | None = None) -> tuple[list[str], str]:
        """Return a page of stream names (those with `tag`), mark streams included; an empty page is the end."""
        if tag is not None:
            await self.metadata.scope(scope)
            names, position = await tagged(self._flow, scope, tag, position_of(token), limits.LIST_PAGE)
            return names, position.hex() if names else token
        streams, token = await self.list_stream_records(scope, token)
        return [name for name, _ in streams], token

    async def list_stream_records(
        self, scope: str, token: str, count: int = limits.LIST_PAGE
    ) -> tuple[list[tuple[str, records.StreamRecord]], str]:
        """Return a page of streams, mark streams included, and the continuation token; an empty page is the end."""
        await self.metadata.scope(scope)
        streams, token = await page_of(self.metadata.streams(scope), token, count)
        return [(name, stream.value) for name, stream in streams], token

    async def create_stream(self, name: StreamName, config: records.StreamConfigRecord) -> None:
        """Create a stream; all its segments exist on return."""
        check_name("stream", name.stream, internal=True)
        _check_config(config)
        async with self._creations.member():
            await self._flow.run(name, lambda: create.begin(self._flow, name, config))

    async def update_stream(self, name: StreamName, config: records.StreamConfigRecord) -> None:
        _check_config(config)
        await self._flow.run(name, lambda: update.begin(self._flow, name, config))

    async def truncate_stream(self, name: StreamName, cut: Cut) -> None:
        await self._flow.run(name, lambda: truncate.begin(self._flow, name, cut))

    async def seal_stream(self, name: StreamName) -> None:
        await self._flow.run(name, lambda: seal.begin(self._flow, name))

    async def delete_stream(self, name: StreamName) -> None:
        await self._flow.run(name, lambda: delete.begin(self._flow, name))

    async def stream(self, name: StreamName) -> records.StreamRecord:
        """Return the stream's record; UnavailableError while it is being created, which clients retry."""
        record = await self.metadata.find_stream(name)
        if record is None and self._flow.pending(name, "create") is not None:
            raise errors.UnavailableError(f"{name} is still being created: try again")
        if record is None:
            raise errors.StreamNotFoundError(*name)
        return record.value

    async def history(self, name: StreamName) -> EpochHistory:
        """Return all retained epochs of the stream; the object is shared, so don't change it."""
        await self.metadata.stream(name)
        return await self.metadata.history(name)

    async def report(self, name: StreamName, kind: str, token: str = "") -> Page:
        return await report(self._flow, name, kind, token, self._reports)

    async def replaced_segments(self, name: StreamName, count: int) -> list[SegmentReport]:
        await self.metadata.stream(name)
        return await replaced(self._flow, name, count)

    async def stream_exists(self, name: StreamName) -> bool:
        return self._flow.pending(name, "create") is not None or await self.metadata.find_stream(name) is not None

    async def current_segments(self, name: StreamName) -> Sequence[records.EpochSegment]:
        """Return the segments that take events now; none if the stream is sealed."""
        stream = await self.stream(name)
        return () if stream.state is records.StreamState.SEALED else stream.segments

    async def epoch_segments(self, name: StreamName, epoch: int) -> Sequence[records.EpochSegment]:
        """Return the segments of an epoch; if the epoch is forgotten, only those still known."""
        return (await self.metadata.history(name)).known_segments(epoch)

    async def head(self, name: StreamName) -> Cut:
        stream = await self.stream(name)
        if stream.head:
            return stream.head
        if stream.epoch == 0:
            return {segment.id: 0 for segment in first_change(stream).added}
        return (await self.metadata.history(name)).first_cut()

    async def cut_at(self, name: StreamName, at: int, clock: int = ARRIVAL) -> Cut:
        check_clock(clock)
        await self.stream(name)
        return await event_time.cut_at(self._flow, name, at, clock)

    async def successors(self, name: StreamName, segment: int) -> list[tuple[records.EpochSegment, list[int]]]:
        return (await self.history(name)).successors(segment)

    async def segments_between(self, name: StreamName, start: Cut, end: Cut) -> list[int]:
        history = await self.history(name)
        return await ask(self.clock, history, lambda history: history.between(start, end))

    async def is_segment_valid(self, name: StreamName, segment: int) -> bool:
        return any(segment == current.id for current in await self.current_segments(name))

    async def is_cut_valid(self, name: StreamName, cut: Cut) -> bool:
        history = await self.history(name)
        return await ask(self.clock, history, lambda history: history.is_valid_cut(cut))

    async def scale(
        self, name: StreamName, sealed: Sequence[int], ranges: Sequence[KeyRange], time_ms: int = 0
    ) -> records.ScaleWork:
        """Start replacing the `sealed` segments with new ones over `ranges`; return once the work is recorded."""
        running = self._flow.pending(name, "scale")
        if isinstance(running, records.ScaleWork):
            if scale.same_scale(running, sealed, ranges):
                return running
            raise errors.ConflictError(f"{name} is already being scaled: try again when that has finished")
        work = await self._flow.run(name, lambda: scale.begin(self._flow, name, sealed, ranges, time_ms), wait=False)
        assert isinstance(work, records.ScaleWork)
        return work

    async def is_scaled(self, name: StreamName, epoch: int) -> bool:
        """Return whether the scale that started in `epoch` is done; NotFoundError if that epoch isn't reached."""
        stream = await self.stream(name)
        if epoch > stream.epoch:
            raise errors.NotFoundError(f"{name} has not reached epoch {epoch}")
        running = self._flow.pending(name, "scale")
        if isinstance(running, records.ScaleWork) and running.change.epoch == epoch + 1:
            return False
        return epoch not in (stream.epoch, stream.reference)

    async def create_reader_group(
        self, name: GroupName, config: records.GroupConfig, group_id: str
    ) -> records.ReaderGroupRecord:
        """Return the group as stored: an existing one of that name, else a new one with this UUID."""
        with suppress(errors.AlreadyExistsError):
            await self._flow.run(name.stream, lambda: groups.begin_create(self._flow, name, config, group_id))
        return await self.reader_group(name)

    async def reader_group(self, name: GroupName) -> records.ReaderGroupRecord:
        return (await self.metadata.group(name)).value

    async def list_reader_groups(self, scope: str, token: str, count: int = limits.LIST_PAGE) -> tuple[list[str], str]:
        await self.metadata.scope(scope)
        return await names_of(self.metadata.groups(scope), token, count)

    async def update_reader_group(
        self, name: GroupName, config: records.GroupConfig, group_id: str, generation: int
    ) -> int:
        """Return the new generation; GenerationMismatchError if the group changed since the caller read it."""
        begin = partial(groups.begin_update, self._flow, name, config, group_id, generation)
        work = await self._flow.run(name.stream, begin)
        assert isinstance(work, records.UpdateGroupWork)
        return work.group.generation

    async def delete_reader_group(self, name: GroupName, group_id: str) -> None:
        await self._flow.run(name.stream, lambda: groups.begin_delete(self._flow, name, group_id))

    async def subscribers(self, name: StreamName) -> list[str]:
        return await subscribers.names(self._flow, name)

    async def publish_cut(self, name: StreamName, subscriber: str, group_id: str, generation: int, cut: Cut) -> None:
        """Allow retention to truncate up to this cut on behalf of the subscriber."""
        await subscribers.publish(self._flow, name, subscriber, group_id, generation, cut)

    async def note_time(
        self, name: StreamName, writer: str, time: int, position: Cut, steps: Sequence[records.Step] | None = None
    ) -> None:
        """Record that all the writer's events up to `time` precede `position`. steps: earlier times, each with a
        position that all the writer's later events follow; None if the time and the position are a single step."""
        if await event_time.note(self._flow, name, writer, time, position, steps):
            await self.watermarks.check_stream(name)

    async def remove_writer(self, name: StreamName, writer: str) -> None:
        await event_time.remove_writer(self._flow, name, writer)

    async def create_table(self, name: TableName, config: records.TableConfig) -> None:
        await self._flow.run(name.stream, lambda: tables.begin_create(self._flow, name, config))

    async def delete_table(self, name: TableName) -> None:
        await self._flow.run(name.stream, lambda: tables.begin_delete(self._flow, name))

    async def table(self, name: TableName) -> records.KeyValueTableRecord:
        return (await self.metadata.table(name)).value

    async def list_tables(self, scope: str, token: str) -> tuple[list[str], str]:
        await self.metadata.scope(scope)
        return await names_of(self.metadata.tables(scope), token, limits.LIST_PAGE)


async def page_of(table: RecordTable[T], token: str, count: int) -> tuple[list[tuple[str, Versioned[T]]], str]:
    page, position = await table.page(position_of(token), count)
    return page, position.hex() if page else token


async def names_of(table: RecordTable[Any], token: str, count: int) -> tuple[list[str], str]:
    page, token = await page_of(table, token, count)
    return [name for name, _ in page], token


def position_of(token: str) -> bytes:
    try:
        return bytes.fromhex(token)
    except ValueError as error:
        raise errors.InvalidArgumentError(f"{token[:40]!r} is not a continuation token of this controller") from error


def _check_config(config: records.StreamConfigRecord) -> None:
    check_policy(config)
    if config.event_time:
        EventTime.parse(config.event_time)
    check_all(
        "stream",
        (1 <= config.min_segments <= limits.STREAM_MAX_SEGMENTS, f"1 to {limits.STREAM_MAX_SEGMENTS:,} segments"),
        (config.scale_type is ScaleType.FIXED or config.target_rate > 0, "a target rate over 0"),
        (config.target_rate >= 0 and config.scale_factor >= 0, "no negative rate or scale factor"),
        (config.rollover_size_bytes >= 0, "no negative rollover size"),
        (len(config.tags) <= limits.STREAM_MAX_TAGS, f"at most {limits.STREAM_MAX_TAGS} tags"),
        (
            max(map(len, config.tags), default=0) <= limits.TAG_MAX_CHARS,
            f"tags of up to {limits.TAG_MAX_CHARS} characters",
        ),
    )
