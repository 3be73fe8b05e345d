"""ReaderGroup: inspects and controls a reader group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack, overload
from uuid import uuid4

from nadi.client.control.arguments import checked
from nadi.client.control.time_limit import TimeLimit
from nadi.client.readergroup.event_reads import Condition
from nadi.client.readergroup.reader import EventReader
from nadi.client.readergroup.state import GroupState, cuts_of, segments_of
from nadi.client.readergroup.stored_state import StoredGroupState, release
from nadi.client.readergroup.updates import CreateCheckpoint, Forget, Join, Leave, Reset
from nadi.client.readergroup.values import GroupValueReader
from nadi.client.reading.boundary import check_boundary, segment_ranges
from nadi.client.reading.damage import RAISE, OnDamage, check_on_damage
from nadi.client.segments.info import map_concurrently, resolve_missing, segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers import codec
from nadi.client.serializers.codec import EventDecoder
from nadi.client.serializers.plain import Serializer
from nadi.display import Displayed
from nadi.errors import (
    InvalidArgumentError,
    InvalidStreamCutError,
    ReaderGroupNotFoundError,
    RequestTimeoutError,
    SegmentNotFoundError,
    StreamNotFoundError,
    StreamRecreatedError,
    UnavailableError,
)
from nadi.model.delivery import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Guarantee, check_delivery
from nadi.model.readergroup import NamedRange, StreamDataRetention
from nadi.model.reports import GROUP_LAG, GroupLagReport
from nadi.model.streamcut import StreamCut
from nadi.naming import READER_GROUP_PREFIX, parse_segment_name, segment_name

T = TypeVar("T")
R = TypeVar("R", bound=EventReader)
_POLL_EVERY_S = 0.05
_FORGETTING_S = 1.0  # reserved of the timeout for stream cuts, but at most a tenth of it
_UNREAD_AT_ONCE = 100  # segments whose length is queried concurrently


@dataclass(frozen=True, slots=True)
class Checkpoint(Displayed):
    """A boundary that all readers of the group have passed: a stream cut for each stream."""

    name: str
    stream_cuts: Mapping[str, StreamCut]


@dataclass(frozen=True, slots=True)
class GroupSize(Displayed):
    """The number of readers of a group, and of the segments they share."""

    readers: int
    segments: int


class GroupReaderOptions(TypedDict, total=False):
    conditions: Mapping[str, Condition] | None
    on_damage: OnDamage
    delivery: Guarantee
    timeout: float | None


@checked()
class ReaderGroup:
    """A reader group; opened by `ReaderGroupManager`.

    timeout: seconds for each call; None means the client's.
    """

    def __init__(self, stores: SegmentStores, adopt: Callable[[EventReader], None], scope: str, name: str) -> None:
        self.scope, self.name = scope, name
        self._stores, self._adopt = stores, adopt
        self._shared = StoredGroupState(stores, scope, name)

    @overload
    async def create_reader(self, reader_id: str, **options: Unpack[GroupReaderOptions]) -> EventReader: ...
    @overload
    async def create_reader(
        self, reader_id: str, *, serializer: Serializer[T], **options: Unpack[GroupReaderOptions]
    ) -> GroupValueReader[T]: ...
    async def create_reader(
        self,
        reader_id: str,
        *,
        serializer: Serializer[T] | None = None,
        conditions: Mapping[str, Condition] | None = None,
        on_damage: OnDamage = RAISE,
        delivery: Guarantee = AT_LEAST_ONCE,
        timeout: float | None = None,
    ) -> EventReader | GroupValueReader[T]:
        """Create a reader with a share of the segments; AlreadyExistsError if a reader with that id is online.

        With a serializer it returns values; conditions still receive bytes. on_damage: "raise" reports damaged data by
        a DamagedDataError, "skip" by a gap; both continue after it. delivery: "at-most-once" records events as done
        before they are returned, so that no reader of the group ever gets them again.
        """
        if not isinstance(reader_id, str) or not reader_id:
            raise InvalidArgumentError(f"a reader's id must be a non-empty string, not {reader_id!r}")
        check_on_damage(on_damage)
        if check_delivery(delivery) == EXACTLY_ONCE:
            raise InvalidArgumentError(
                "a reader's delivery must be at-most-once or at-least-once: for exactly-once, run a function, or store "
                "`positions()` together with your results in one transaction"
            )
        if not all(callable(condition) for condition in (conditions or {}).values()):
            raise InvalidArgumentError("a reader's conditions must be a dict of functions by name: see `on_events`")
        decoders: dict[str, EventDecoder[T]] = {}
        if serializer is not None:
            for key in (await self._shared.read()).streams:
                scope, _, stream = key.partition("/")
                decoders[key] = codec.decoder(self._stores, scope, stream, serializer)
        reader = await join(
            self, EventReader, reader_id, conditions or {}, on_damage, timeout, records_first=delivery == AT_MOST_ONCE
        )
        return reader if serializer is None else GroupValueReader(reader, decoders)

    # --- inspection -------------------------------------------------------------------------

    async def online_readers(self) -> list[str]:
        """Return the ids of the readers in the group, including dead readers not yet detected."""
        return sorted((await self._shared.read()).readers)

    async def stream_names(self) -> list[str]:
        """Return the group's streams, each as `scope/stream`."""
        return sorted((await self._shared.read()).streams)

    async def segments_of_readers(self) -> dict[str, list[str]]:
        """Return each reader's current segments, by reader; unassigned segments are under ""."""
        state = await self._shared.read()
        return {
            name: sorted(segment for segment, stored in state.owned_by(name).items() if stored.is_active)
            for name in ("", *sorted(state.readers))
        }

    async def stream_cuts(self) -> dict[str, StreamCut]:
        """Return the group's recorded positions, by stream; they may be a few seconds old."""
        return cuts_of((await self._shared.read()).positions())

    async def checkpoints(self) -> list[Checkpoint]:
        """Return the newest complete checkpoints, oldest first."""
        state = await self._shared.read()
        complete = [
            checkpoint for checkpoint in state.checkpoints if checkpoint.is_complete and not checkpoint.is_silent
        ]
        return [Checkpoint(checkpoint.name, cuts_of(checkpoint.positions)) for checkpoint in complete]

    async def lag(self) -> list[GroupLagReport]:
        """Return the group's lag on each of its streams, as `ReaderGroupManager.lag` does."""
        return await lag_of(self._stores, self.scope, self.name)

    async def unread_bytes(self) -> int:
        """Return the number of bytes, including event headers, between the recorded positions and the ends or tails."""
        state = await self._shared.read()

        async def unread(name: str) -> int:
            try:
                info = await segment_info(self._stores, name)
            except SegmentNotFoundError:
                return 0  # truncated
            end = state.end_of(name)
            last = info.write_offset if end is None else min(info.write_offset, end)
            return max(0, last - max(info.start_offset, offsets[name]))

        offsets = {n: s.offset for n, s in state.segments.items() if s.is_active}
        for cut in cuts_of(state.positions()).values():
            ends = {n: e for n, e in state.ends.items() if n.startswith(f"{cut.scope}/{cut.stream}/")}
            end = cuts_of({n: e.offset for n, e in ends.items()}).get(f"{cut.scope}/{cut.stream}")
            for segment_id in await self._stores.controller.segments_between(cut.scope, cut.stream, cut, end):
                name = segment_name(cut.scope, cut.stream, segment_id)
                if name not in state.segments or state.segments[name].is_waiting:
                    offsets[name] = 0
        return sum(await map_concurrently(offsets, unread, _UNREAD_AT_ONCE))

    async def notifications(self, *, every_s: float = 0.2) -> AsyncIterator[GroupSize]:
        """Yield the numbers of readers and segments, now and after each change."""
        last = None
        while True:
            state = await self._shared.read()
            active = sum(1 for segment in state.segments.values() if segment.is_active)
            size = GroupSize(len(state.readers), active)
            if size != last:
                last = size
                yield size
            await asyncio.sleep(every_s)

    # --- control ------------------------------------------------------------------------------

    async def reader_offline(
        self, reader_id: str, positions: Mapping[str, int] | None = None, *, timeout: float | None = None
    ) -> dict[str, StreamCut]:
        """Declare a reader dead: others continue from its last recorded positions, which are returned.

        positions: positions to continue from instead, as returned by the reader's `positions()` and stored by the
        application with its results; segments that aren't named, or belong to other readers now, aren't affected.
        """
        if not all(isinstance(offset, int) and offset >= 0 for offset in (positions or {}).values()):
            raise InvalidArgumentError("a reader's positions must be offsets by segment, at least 0")

        owned: dict[str, int] = {}

        def leave(state: GroupState) -> GroupState:
            nonlocal owned
            owned = {name: segment.offset for name, segment in state.owned_by(reader_id).items()}
            owned |= {name: offset for name, offset in (positions or {}).items() if name in owned}
            return state.apply(Leave(reader_id, owned))

        await self._shared.change(leave, timeout)
        return cuts_of(owned)

    async def initiate_checkpoint(self, name: str, *, timeout: float = 60.0) -> Checkpoint:
        """Start a checkpoint, which every reader passes at its application's next read; return when all have passed it.

        RequestTimeoutError if a reader is too slow or dead (see `reader_offline`); the checkpoint can still complete
        later. AlreadyExistsError if the name is in use.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"a checkpoint's name must be a non-empty string, not {name!r}")
        return await self._make_checkpoint(name, timeout, is_silent=False)

    async def generate_stream_cuts(self, *, timeout: float = 60.0) -> dict[str, StreamCut]:
        """Return the group's exact current position: all events returned by its readers are before these cuts.

        RequestTimeoutError as in `initiate_checkpoint`.
        """
        name = f"cuts-{uuid4().hex}"
        ends = time.monotonic() + timeout

        async def forget() -> None:
            with suppress(UnavailableError):  # it stays, without effect, until newer checkpoints replace it
                await self._shared.change(lambda state: state.apply(Forget(name)), max(ends - time.monotonic(), 0.0))

        try:
            checkpoint = await self._make_checkpoint(name, timeout - min(_FORGETTING_S, timeout / 10), is_silent=True)
        except RequestTimeoutError:
            await forget()
            raise
        await forget()
        return dict(checkpoint.stream_cuts)

    async def stream_cuts_on_condition(self, name: str, *, timeout: float = 60.0) -> dict[str, StreamCut]:
        """Wait until the readers' condition `name` first holds, and return the stream cuts at that position."""
        return dict((await self._complete(name, timeout)).stream_cuts)

    async def reset_reader_group(self, to: Checkpoint | Iterable[StreamCut], *, timeout: float | None = None) -> None:
        """Reset all readers to a checkpoint, or to stream cuts, one for each stream of the group."""
        cuts = list(to.stream_cuts.values() if isinstance(to, Checkpoint) else to)
        if not all(isinstance(cut, StreamCut) for cut in cuts):
            raise InvalidArgumentError("a group can be reset to a Checkpoint (see `checkpoints`) or to stream cuts")
        streams = {f"{cut.scope}/{cut.stream}" for cut in cuts}
        timeout_s = self._stores.timeout_s if timeout is None else timeout
        async with TimeLimit(
            timeout_s,
            lambda: f"resetting reader group {self.scope}/{self.name} took longer than {timeout_s:.1f} s",
            self._stores.waits_for,
        ):
            state = await self._shared.read()
            if streams != set(state.streams) or len(cuts) != len(streams):
                raise InvalidStreamCutError(f"pass one stream cut for each of {', '.join(state.streams)}")
            segments = segments_of([piece for cut in cuts for piece in await pieces_of(self._stores, cut)])
            await self._shared.change(lambda state: state.apply(Reset(segments)), timeout_s)

    async def update_retention_stream_cut(self, cuts: Iterable[StreamCut]) -> None:
        """Release all events before these cuts, in a group with manual release.

        InvalidStreamCutError if a cut isn't a boundary of its stream, or is before an earlier release.
        """
        state = await self._shared.read()
        if state.retention is not StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT:
            raise InvalidArgumentError(
                f"the group's retention is {state.retention.name}: only MANUAL_RELEASE_AT_USER_STREAMCUT allows this"
            )
        await release(self._stores, self.scope, self.name, state.group_id, cuts)

    # --- inside -----------------------------------------------------------------------------

    async def _make_checkpoint(self, name: str, timeout: float, *, is_silent: bool) -> Checkpoint:
        started = time.monotonic()
        await self._shared.change(lambda state: state.apply(CreateCheckpoint(name, is_silent)), timeout)
        return await self._complete(name, max(timeout - (time.monotonic() - started), 0.0))

    async def _complete(self, name: str, timeout: float) -> Checkpoint:
        missing = "the group's state can't be read"
        async with TimeLimit(
            timeout,
            lambda: f"waiting for checkpoint {name} ({missing}) took longer than {timeout:.1f} s",
            self._stores.waits_for,
        ):
            while True:
                stored = (await self._shared.read()).checkpoint(name)
                if stored is not None and stored.is_complete:
                    return Checkpoint(name, cuts_of(stored.positions))
                missing = f"not passed by: {', '.join(stored.pending)}" if stored is not None else "not created yet"
                await asyncio.sleep(_POLL_EVERY_S)


# --- for other modules of the client ----------------------------------------------------------


async def join(
    group: ReaderGroup,
    kind: type[R],
    reader_id: str,
    conditions: Mapping[str, Condition],
    on_damage: OnDamage,
    timeout: float | None,
    *,
    records_first: bool = False,
) -> R:
    """Add a reader of class `kind` to the group."""
    token = uuid4().hex

    def joined(state: GroupState) -> GroupState:
        return state if state.has_member(reader_id, token) else state.apply(Join(reader_id, token))

    state = await group._shared.change(joined, timeout)
    reader = kind(
        group._stores, group._shared, reader_id, token, state, conditions, on_damage, records_first=records_first
    )
    group._adopt(reader)
    if state.is_completed:
        reader._error = await find_recreated_stream(group._stores, state)
    return reader


async def find_recreated_stream(stores: SegmentStores, state: GroupState) -> StreamRecreatedError | None:
    """Return the error for a group that read its streams to their ends if one was deleted and recreated.

    Streams with an end cut were read, even if they were recreated since.
    """
    last = {parse_segment_name(name)[:2]: name for name in state.segments}
    ended = {parse_segment_name(name)[:2] for name in state.ends}
    for stream, segment in last.items():
        if stream not in ended:
            error = await resolve_missing(stores, segment)
            if isinstance(error, StreamRecreatedError):
                return error
    return None


async def pieces_of(stores: SegmentStores, cut: StreamCut) -> list[tuple[NamedRange, int]]:
    """Return a cut's segments with keys and offsets; InvalidStreamCutError if it isn't a boundary of the stream."""
    ranges = await segment_ranges(stores, cut.scope, cut.stream, cut)
    await check_boundary(stores, cut)
    return [
        (NamedRange(segment_name(cut.scope, cut.stream, r.segment_id), r.low, r.high), cut.positions[r.segment_id])
        for r in ranges
    ]


async def lag_of(stores: SegmentStores, scope: str, name: str) -> list[GroupLagReport]:
    """Return the controller's report of a group's lag; ReaderGroupNotFoundError."""
    try:
        return await stores.controller.report(scope, READER_GROUP_PREFIX + name, GROUP_LAG, GroupLagReport)
    except StreamNotFoundError:
        raise ReaderGroupNotFoundError(scope, name) from None


def shared_state_of(group: ReaderGroup) -> StoredGroupState:
    return group._shared
