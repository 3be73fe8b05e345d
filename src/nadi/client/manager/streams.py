"""StreamManager: scopes, streams, and everything that opens writers, readers and tables.

A StreamManager is one client: its objects share one controller connection and one set of segment store connections, and
are closed with it. `event_streams` opens writers and readers, `structures` byte streams, tables and shared state; the
remaining methods are here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import EllipsisType

import msgspec

from nadi.backoff import Backoff
from nadi.client.control.arguments import check_strings, checked
from nadi.client.control.closing import Closing
from nadi.client.control.controller import ControllerClient
from nadi.client.control.policy import (
    RetentionHolder,
    RetentionPolicy,
    RetentionStatus,
    ScalingPolicy,
    StreamConfiguration,
)
from nadi.client.control.security import Credentials, security_of, split_uri
from nadi.client.control.time_limit import TimeLimit
from nadi.client.definitions.stream_tables import StreamTables
from nadi.client.manager.event_streams import EventStreams
from nadi.client.manager.structures import Structures
from nadi.client.readergroup.manager import ReaderGroupManager
from nadi.client.readergroup.reader import EventReader, ReaderMembership, membership_of
from nadi.client.reading.boundary import check_cut
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import SliceReader
from nadi.client.segments.info import SegmentInfo, StreamInfo, segment_info, stream_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.bookmark_store import Bookmarks
from nadi.client.stream_cuts.cuts import StreamCuts
from nadi.client.stream_cuts.slices import NamedSlices
from nadi.client.tables.table import Table
from nadi.defaults import DEFAULT_URI
from nadi.errors import ConflictError, NotFoundError, TruncatedError, UnavailableError
from nadi.model.event_time import EventTime
from nadi.model.quotas import Quota, QuotaLimits, check_owner
from nadi.model.reports import (
    LOAD,
    RETENTION,
    SCALING,
    SEGMENTS,
    STREAM_LAG,
    GroupLagReport,
    LoadReport,
    RetentionReport,
    ScalingReport,
    SegmentReport,
)
from nadi.model.scrub import ScrubReport
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import SCRUB_SEGMENT, check_name
from nadi.wire import commands as wire
from nadi.wire.rpc.quotas_pb2 import QuotaChange, QuotasRequest

_LEAVING_TIMEOUT_S = 2.0
_CLOSING_TIMEOUT_S = 6.0  # a writer stops signing off after 5 s, and logs it


@checked()
class StreamManager(EventStreams, Structures, Closing):
    """A client of the controller at `controller_uri`.

    The asyncio client must be created in a running event loop; the blocking client has a thread, which ends with
    `close` or with the process. credentials: Basic or Bearer; None takes them from the environment, if set.
    trust_store: for tls:// addresses, the PEM file (or folder) of the certificates to trust; None means the system's.
    timeout: seconds for each request, and for each call without a `timeout` argument. None means 30, and 130 for
    changes of streams and scopes, which can be slow. RequestTimeoutError after that.
    """

    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
        controller: ControllerClient | None = None,
        blocking: bool = False,
    ) -> None:
        if controller is None:
            security = security_of(controller_uri, credentials, trust_store, validate_host_name)
            controller = ControllerClient(split_uri(controller_uri)[0], security, timeout)
        self._controller = controller
        self._stores = SegmentStores(self._controller)
        EventStreams.__init__(self, blocking)
        Structures.__init__(self)
        self._memberships: list[ReaderMembership] = []  # of readers in their groups

    async def close(self) -> None:
        """Close everything that this client created; pending waits and unstored writes fail with ClosedError.

        Writers that noted times and readers of groups sign off at the server; if it is down, closing takes at most 6 s.
        """
        try:
            with suppress(TimeoutError):  # objects that can't sign off will count as dead
                async with asyncio.timeout(_CLOSING_TIMEOUT_S):
                    await asyncio.gather(self._end_event_streams(), *map(self._leave, self._memberships))
        finally:
            await self._end_structures()
            self._stores.close()
            await self._controller.close()
            await asyncio.sleep(0)  # let cancelled tasks finish

    async def _leave(self, membership: ReaderMembership) -> None:
        with suppress(UnavailableError):  # the other readers will take it offline
            await membership.end(_LEAVING_TIMEOUT_S)

    # --- cuts, bookmarks, slices --------------------------------------------------------------

    def cuts(self, scope: str, stream: str) -> StreamCuts:
        """Return the stream's cuts, to create, check, compare and measure them."""
        return StreamCuts(self._stores, scope, stream)

    async def truncate_stream(self, cut: StreamCut) -> None:
        """Delete all events before the cut; InvalidStreamCutError unless it is a boundary between events."""
        with suppress(TruncatedError):  # the controller rejects cuts before the head
            await self.cuts(cut.scope, cut.stream).check(cut)
        await self._controller.truncate_stream(cut)

    def bookmarks(self, scope: str) -> Bookmarks:
        """Return the scope's bookmarks."""
        return Bookmarks(self._stores, scope)

    def slices(self, scope: str) -> NamedSlices:
        """Return the scope's named slices."""
        return NamedSlices(self._stores, scope)

    def stream_tables(self, scope: str) -> StreamTables:
        """Return the scope's stream tables, which define how to read streams as tables; see `nadi.stream_table`."""
        return StreamTables(self._stores, scope)

    async def open_slice(
        self, scope: str, name: str, *, routing_keys: Sequence[str] | None = None, on_damage: OnDamage = RAISE
    ) -> SliceReader:
        """Create a reader of the named slice; SliceNotFoundError.

        routing_keys, on_damage: as in `create_reader`.
        """
        named = await self.slices(scope).get(name)
        return await self.create_reader(
            scope, named.stream, start=named.start, end=named.end, routing_keys=routing_keys, on_damage=on_damage
        )

    # --- reader groups, tables ----------------------------------------------------------------

    def reader_group_manager(self, scope: str) -> ReaderGroupManager:
        """Return the manager of the scope's reader groups, to create and find them."""
        return ReaderGroupManager(self._stores, self._adopt, scope)

    def _adopt(self, reader: EventReader) -> None:
        """Register a group's reader, which leaves the group with this client; its last event doesn't count as done."""
        self._memberships = [existing for existing in self._memberships if not existing.is_over]
        self._memberships.append(membership_of(reader))

    def table(self, scope: str, name: str) -> Table:
        """Return a key-value table of the scope; create it with its `create`."""
        return Table(self._stores, scope, name)

    # --- the store --------------------------------------------------------------------------

    async def scrub(self, *, start: bool = False) -> ScrubReport:
        """Return the progress of the server's current scrub, and the results of the last.

        start: start a scrub now, unless a requested scrub is running. PermissionDeniedError unless the caller may
        create scopes.
        """
        reply = await self._stores.ask(wire.Scrub(0, SCRUB_SEGMENT, start, ""), wire.ScrubReported)
        return msgspec.json.decode(reply.report, type=ScrubReport)

    # --- scopes -----------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """Create a scope; return False if it already exists."""
        check_name("scope", scope)
        return await self._controller.create_scope(scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete a scope; return False if it doesn't exist. NotEmptyError unless it is empty or `recursive` is set."""
        return await self._controller.delete_scope(scope, recursive=recursive)

    async def list_scopes(self) -> list[str]:
        """Return the names of all scopes."""
        return await self._controller.list_scopes()

    # --- quotas -----------------------------------------------------------------------------

    async def list_quotas(self) -> list[Quota]:
        """Return the quotas of all scopes and users, with their current use."""
        return await self._controller.quotas("listQuotas", QuotasRequest())

    async def quota(self, owner: str) -> Quota:
        """Return the quota of an owner, `scope/NAME` or `user/NAME`, with its current use; NotFoundError."""
        check_owner(owner)
        (quota,) = await self._controller.quotas("listQuotas", QuotasRequest(owner=owner))
        return quota

    async def create_quota(self, owner: str, limits: QuotaLimits) -> bool:
        """Limit a scope or a user; return False if it has a quota already.

        >>> from nadi.client import QuotaLimits, StreamManager
        >>> with StreamManager() as manager:  # doctest: +SKIP
        ...     manager.create_quota("scope/home", QuotaLimits(bytes_in=10_000_000, streams=100))
        """
        try:
            await self._change_quota(owner, QuotaChange.CREATE, limits)
        except ConflictError:
            return False
        return True

    async def update_quota(self, owner: str, limits: QuotaLimits) -> None:
        """Replace all limits of a quota; NotFoundError. Servers apply the change within seconds."""
        await self._change_quota(owner, QuotaChange.UPDATE, limits)

    async def delete_quota(self, owner: str) -> bool:
        """Remove all limits of a scope or a user; return False if it doesn't have a quota."""
        try:
            await self._change_quota(owner, QuotaChange.DELETE)
        except NotFoundError:
            return False
        return True

    async def _change_quota(self, owner: str, kind: QuotaChange.Kind, limits: QuotaLimits | None = None) -> None:
        check_owner(owner)
        request = QuotaChange(owner=owner, kind=kind, limits=msgspec.json.encode(limits))
        await self._controller.quotas("changeQuota", request)

    # --- streams ----------------------------------------------------------------------------

    async def create_stream(
        self,
        scope: str,
        stream: str,
        segments: int = 1,
        *,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] = (),
        timestamp_aggregation_timeout_ms: int = 0,
        event_time: EventTime | str | None = None,
    ) -> bool:
        """Create a stream with `segments` segments, or with a scaling policy; return False if it already exists.

        timestamp_aggregation_timeout_ms: how long watermarks wait for a writer that has stopped noting times.
        event_time: the field with an event's time, for finding cuts by event time.
        """
        check_name("stream", stream)
        tags = check_strings(tags, "tags")
        config = StreamConfiguration(
            scaling or ScalingPolicy.fixed(segments),
            retention,
            tags,
            timestamp_aggregation_timeout_ms,
            event_time=_event_time(event_time),
        )
        return await self._controller.create_stream(scope, stream, config)

    async def update_stream(
        self,
        scope: str,
        stream: str,
        *,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | EllipsisType | None = ...,
        tags: Iterable[str] | None = None,
        timestamp_aggregation_timeout_ms: int | None = None,
        event_time: EventTime | EllipsisType | str | None = ...,
    ) -> None:
        """Change the given settings; `retention=None` removes the retention policy, so that nothing is truncated.

        >>> import nadi
        >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
        ...     manager.update_stream("home", "meters", retention=nadi.RetentionPolicy.by_time(3_600_000))
        ...     manager.update_stream("home", "meters", retention=None, tags=["power"])
        """
        old = await self._controller.stream_configuration(scope, stream)
        timeout_ms = timestamp_aggregation_timeout_ms
        config = replace(
            old,
            scaling=old.scaling if scaling is None else scaling,
            retention=old.retention if retention is ... else retention,
            tags=old.tags if tags is None else check_strings(tags, "tags"),
            timestamp_aggregation_timeout_ms=old.timestamp_aggregation_timeout_ms if timeout_ms is None else timeout_ms,
            event_time=old.event_time if event_time is ... else _event_time(event_time),
        )
        await self._controller.update_stream(scope, stream, config)

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        """Return the stream's scaling, retention and tags; StreamNotFoundError."""
        return await self._controller.stream_configuration(scope, stream)

    async def delete_stream(self, scope: str, stream: str) -> bool:
        """Delete a stream; return False if it doesn't exist. StreamNotSealedError unless it is sealed."""
        return await self._controller.delete_stream(scope, stream)

    async def seal_stream(self, scope: str, stream: str) -> None:
        """Seal a stream: events can no longer be written to it."""
        await self._controller.seal_stream(scope, stream)

    async def list_streams(self, scope: str, tag: str | None = None) -> list[str]:
        """Return the names of the scope's streams, without internal ones; only those with `tag` if given."""
        names = await self._controller.list_streams(scope, tag)
        return [name for name in names if not name.startswith("_")]

    async def stream_info(self, scope: str, stream: str) -> StreamInfo:
        """Return the stream's current head and tail, as stream cuts."""
        return await stream_info(self._stores, scope, stream)

    async def retained(self, scope: str, stream: str) -> RetentionStatus:
        """Return the stream's retained data, and the subscribers and cuts that delay its truncation.

        Requires READ_UPDATE on the stream with access control, because it names the subscribed reader groups.

        >>> import nadi
        >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
        ...     status = manager.retained("home", "meters")
        ...     print(status.size_bytes, status.oldest_at, [holder.name for holder in status.holders])
        """
        (report,) = await self._controller.report(scope, stream, RETENTION, RetentionReport)
        return RetentionStatus(
            StreamCut.from_text(report.head),
            report.retained_bytes,
            datetime.fromtimestamp(report.oldest_ms / 1000, UTC) if report.oldest_ms else None,
            tuple(
                RetentionHolder(holder.kind, holder.name, StreamCut.from_text(holder.cut), holder.bytes_after)
                for holder in report.holders
            ),
            report.more_holders,
        )

    async def segment_info(self, segment: str) -> SegmentInfo:
        """Return the store's information about a segment, by its name."""
        return await segment_info(self._stores, segment)

    # --- segments ---------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """Return the segments currently open for writing, by key range; none if the stream is sealed."""
        return await self._controller.current_segments(scope, stream)

    async def segment_history(self, scope: str, stream: str) -> list[SegmentReport]:
        """Return all segments that the stream ever had, ordered by id, older epochs first."""
        return await self._controller.report(scope, stream, SEGMENTS, SegmentReport)

    async def segment_loads(self, scope: str, stream: str) -> list[LoadReport]:
        """Return the load of the stream's current segments, by key range; none if the stream is sealed.

        >>> import nadi
        >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
        ...     for load in manager.segment_loads("home", "meters"):
        ...         print(load.low, load.high, f"{load.events_per_s[1]:,.0f} events/s over 10 s", load.hot_key)
        """
        return await self._controller.report(scope, stream, LOAD, LoadReport)

    async def scaling_log(self, scope: str, stream: str) -> list[ScalingReport]:
        """Return the latest 1,000 scaling decisions for the stream, with their reasons, oldest first.

        >>> import nadi
        >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
        ...     for decision in manager.scaling_log("home", "meters"):
        ...         print(decision.kind, decision.segments, decision.into, decision.why)
        """
        return await self._controller.report(scope, stream, SCALING, ScalingReport)

    async def reader_lags(self, scope: str, stream: str) -> list[GroupLagReport]:
        """Return the lag of each group that reads the stream, largest first: groups of its scope, and groups of other
        scopes that delay its retention.

        Requires READ_UPDATE on the stream with access control, as `retained` does.

        >>> import nadi
        >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
        ...     for lag in manager.reader_lags("home", "meters"):
        ...         print(lag.group, lag.lag_bytes, lag.lag_seconds, lag.why)
        """
        return await self._controller.report(scope, stream, STREAM_LAG, GroupLagReport)

    async def segments_between(
        self, scope: str, stream: str, start: StreamCut | None, end: StreamCut | None
    ) -> list[int]:
        """Return the ids of all segments with data between the cuts (None: head, tail), including the cuts' own."""
        for cut in (start, end):
            check_cut(cut, scope, stream)
        if start is None and end is None:
            start = await self._controller.head(scope, stream)
        return await self._controller.segments_between(scope, stream, start, end)

    async def scale_stream(
        self,
        scope: str,
        stream: str,
        sealed_segments: Sequence[int],
        new_ranges: Sequence[tuple[float, float]],
        *,
        timeout: float = 120.0,
    ) -> None:
        """Replace segments by new segments with these key ranges; return when the scaling is complete."""
        epoch = await self._controller.scale(scope, stream, sealed_segments, new_ranges)
        backoff = Backoff()
        async with TimeLimit(timeout, lambda: f"scaling {scope}/{stream} isn't complete after {timeout} s"):
            while not await self._controller.scale_is_done(scope, stream, epoch):
                await backoff.pause()


def _event_time(event_time: EventTime | str | None) -> EventTime | None:
    return EventTime(event_time) if isinstance(event_time, str) else event_time


def stores_of(manager: StreamManager) -> SegmentStores:
    """Return a client's segment store connections, with its `controller`, for other parts of nadi."""
    return manager._stores
