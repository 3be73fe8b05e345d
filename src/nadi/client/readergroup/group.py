"""ReaderGroupManager and ReaderGroup: make a group, look at it, steer it.

A group is registered at the controller as Pravega's groups are, so lists and REST know it; what its
readers agree on lies in a table of its own (docs/decisions/0003). The id of a group of nadi begins with
the four bytes `nadi`, so that one of another client, whose state has another form, is never mistaken for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from msgspec.structs import replace

from nadi.client import reader as readers
from nadi.client.readergroup.reader import EventReader
from nadi.client.readergroup.reads import Condition
from nadi.client.readergroup.shared import SharedState
from nadi.client.readergroup.state import GroupState, KeyRange, Timing, cut_of, cuts_of, first_state, segments_of
from nadi.client.readergroup.updates import CreateCheckpoint, Forget, Join, Leave, Reset
from nadi.client.stores import SegmentStores
from nadi.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidStreamCutError,
    ReaderGroupNotFoundError,
    RequestTimeoutError,
    SegmentNotFoundError,
)
from nadi.limits import PREFIXED_NAME_MAX_CHARS
from nadi.model.streamcut import StreamCut
from nadi.naming import READER_GROUP_PREFIX, check_name, segment_name
from nadi.wire import commands as wire

if TYPE_CHECKING:
    from nadi.client.streams import StreamManager

_LOOK_EVERY_S = 0.05
_ID_PREFIX = b"nadi"
_UNREAD_AT_ONCE = 100  # segments whose length is asked for at one time


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A boundary that all readers of the group have passed: one stream cut for each stream."""

    name: str
    stream_cuts: Mapping[str, StreamCut]


@dataclass(frozen=True, slots=True)
class GroupSize:
    """How many readers a group has, and how many segments they share."""

    readers: int
    segments: int


class ReaderGroup:
    """One group of one scope; made by `ReaderGroupManager`."""

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        self.scope, self.name = scope, name
        self._manager = manager
        self._stores: SegmentStores = manager.stores
        self._shared = SharedState(manager.stores, scope, name)

    async def create_reader(self, reader_id: str, *, conditions: Mapping[str, Condition] | None = None) -> EventReader:
        """A reader that takes its share of the segments; AlreadyExistsError if one of that id is online."""
        token = uuid4().hex

        def join(state: GroupState) -> tuple[GroupState, None]:
            held = state.readers.get(reader_id)
            return state if held and held.token == token else state.apply(Join(reader_id, token)), None

        if not reader_id:
            raise InvalidArgumentError("a reader needs an id, by which the others know it")
        state, _ = await self._shared.change(join)
        reader = EventReader(self._stores, self._shared, reader_id, token, state, conditions or {})
        self._manager.adopt(reader)
        return reader

    # --- what there is ----------------------------------------------------------------------

    async def online_readers(self) -> list[str]:
        return sorted((await self._shared.read()).readers)

    async def stream_names(self) -> list[str]:
        """`scope/stream` of each."""
        return sorted((await self._shared.read()).streams)

    async def segments_of_readers(self) -> dict[str, list[str]]:
        """The segments of each reader now, by name; under "" those that nobody has."""
        state = await self._shared.read()
        return {
            name: sorted(s for s, held in state.owned_by(name).items() if held.is_active)
            for name in ("", *sorted(state.readers))
        }

    async def stream_cuts(self) -> dict[str, StreamCut]:
        """Up to where the group has recorded that it read, by stream; some seconds old."""
        return cuts_of((await self._shared.read()).positions())

    async def checkpoints(self) -> list[Checkpoint]:
        """The newest complete ones, oldest first."""
        state = await self._shared.read()
        return [Checkpoint(one.name, cuts_of(one.positions)) for one in state.checkpoints if one.is_complete]

    async def unread_bytes(self) -> int:
        """How many bytes lie between the recorded positions and the end cuts or the tails; event headers count."""
        state = await self._shared.read()
        limit = asyncio.Semaphore(_UNREAD_AT_ONCE)

        async def unread(name: str, offset: int | None) -> int:
            async with limit:
                try:
                    info = await self._stores.call(name, wire.GetStreamSegmentInfo, segment=name)
                except SegmentNotFoundError:
                    return 0  # truncated away
            assert isinstance(info, wire.StreamSegmentInfo)
            end = state.end_of(name)
            last = info.write_offset if end is None else min(info.write_offset, end)
            return max(0, last - max(info.start_offset, offset or 0))

        wanted: dict[str, int | None] = {n: s.offset for n, s in state.segments.items() if s.is_active}
        for cut in cuts_of(state.positions()).values():
            ends = {n: e for n, e in state.ends.items() if n.startswith(f"{cut.scope}/{cut.stream}/")}
            end = cuts_of({n: e.offset for n, e in ends.items()}).get(f"{cut.scope}/{cut.stream}")
            for segment_id in await self._stores.controller.segments_between(cut.scope, cut.stream, cut, end):
                name = segment_name(cut.scope, cut.stream, segment_id)
                if name not in state.segments or state.segments[name].is_waiting:
                    wanted[name] = None
        return sum(await asyncio.gather(*(unread(name, offset) for name, offset in wanted.items())))

    async def notifications(self, *, every_s: float = 0.2) -> AsyncIterator[GroupSize]:
        """The number of readers and segments: now, and whenever it has changed."""
        known = None
        while True:
            state = await self._shared.read()
            active = sum(1 for segment in state.segments.values() if segment.is_active)
            size = GroupSize(len(state.readers), active)
            if size != known:
                known = size
                yield size
            await asyncio.sleep(every_s)

    # --- steering -----------------------------------------------------------------------------

    async def reader_offline(self, reader_id: str) -> dict[str, StreamCut]:
        """Take a reader for dead: others go on at its last recorded positions, which are returned."""

        def leave(state: GroupState) -> tuple[GroupState, dict[str, int]]:
            owned = {name: held.offset for name, held in state.owned_by(reader_id).items()}
            return state.apply(Leave(reader_id)), owned

        return cuts_of((await self._shared.change(leave))[1])

    async def initiate_checkpoint(self, name: str, *, timeout: float = 60.0) -> Checkpoint:
        """A checkpoint that every reader passes when its application next reads; returns once all have.

        RequestTimeoutError if one has not in time: it reads on slowly or is dead, see `reader_offline`; the
        checkpoint still becomes complete. AlreadyExistsError if there is one of that name.
        """
        await self._create_checkpoint(name, is_silent=False)
        return await self._complete(name, timeout)

    async def generate_stream_cuts(self, *, timeout: float = 60.0) -> dict[str, StreamCut]:
        """Where the group is now, to the event: all that readers have returned lies before these cuts."""
        name = f"cuts-{uuid4().hex}"
        await self._create_checkpoint(name, is_silent=True)
        try:
            return dict((await self._complete(name, timeout)).stream_cuts)
        finally:
            await self._shared.change(lambda state: (_without(state, name), None))

    async def stream_cuts_on_condition(self, name: str, *, timeout: float = 60.0) -> dict[str, StreamCut]:
        """The stream cuts made where the readers' condition `name` first held; waits for that."""
        return dict((await self._complete(name, timeout)).stream_cuts)

    async def reset_reader_group(self, to: Checkpoint | Iterable[StreamCut]) -> None:
        """All readers go on from a checkpoint or from stream cuts, one for each stream of the group."""
        cuts = list(to.stream_cuts.values() if isinstance(to, Checkpoint) else to)
        state = await self._shared.read()
        given = {f"{cut.scope}/{cut.stream}" for cut in cuts}
        if given != set(state.streams) or len(cuts) != len(given):
            raise InvalidStreamCutError(f"the group needs one stream cut for each of {', '.join(state.streams)}")
        segments = segments_of([piece for cut in cuts for piece in await pieces_of(self._stores, cut)])
        await self._shared.change(lambda state: (state.apply(Reset(segments)), None))

    # --- inside -----------------------------------------------------------------------------

    async def _create_checkpoint(self, name: str, *, is_silent: bool) -> None:
        await self._shared.change(lambda state: (state.apply(CreateCheckpoint(name, is_silent)), None))

    async def _complete(self, name: str, timeout: float) -> Checkpoint:
        deadline = time.monotonic() + timeout
        while True:
            state = await self._shared.read()
            held = state.checkpoint(name)
            if held is not None and held.is_complete:
                return Checkpoint(name, cuts_of(held.positions))
            if time.monotonic() >= deadline:
                missing = ", ".join(held.pending) if held is not None else "it is not made"
                raise RequestTimeoutError(
                    f"checkpoint {name} is not complete after {timeout} s, not passed by: {missing}"
                )
            await asyncio.sleep(_LOOK_EVERY_S)


class ReaderGroupManager:
    """The reader groups of one scope; made by `StreamManager.reader_group_manager`."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self.scope = scope
        self._manager = manager
        self._stores = manager.stores

    async def create_reader_group(
        self,
        name: str,
        streams: Iterable[str] | str,
        *,
        starts: Iterable[StreamCut] = (),
        ends: Iterable[StreamCut] = (),
        refresh_ms: int = 500,
        dead_after_ms: int = 10_000,
        checkpoint_interval_ms: int = 0,
    ) -> bool:
        """A group that reads `streams` (of this scope, or as `scope/stream`); False if it existed.

        Each stream is read from its cut in `starts`, or its head, to its cut in `ends`, or for ever. Readers
        look at the group's state every `refresh_ms`; one that has not reported for `dead_after_ms` is taken
        offline by the others; every `checkpoint_interval_ms` there is a checkpoint, if it isn't 0.
        """
        check_name("reader group", name, max_chars=PREFIXED_NAME_MAX_CHARS)
        keys = [
            key if "/" in key else f"{self.scope}/{key}" for key in ([streams] if isinstance(streams, str) else streams)
        ]
        first, last = _by_stream(starts, keys), _by_stream(ends, keys)
        if not keys or len(set(keys)) != len(keys):
            raise InvalidArgumentError("a reader group needs at least one stream, and each once")
        if refresh_ms <= 0 or dead_after_ms < 4 * refresh_ms or checkpoint_interval_ms < 0:
            raise InvalidArgumentError(
                "refresh_ms must be above 0, dead_after_ms at least four times that, checkpoint_interval_ms not below 0"
            )
        begins: list[tuple[KeyRange, int]] = []
        for key in keys:
            begins += await pieces_of(
                self._stores, first.get(key) or await self._stores.controller.head(*key.split("/"))
            )
        finish = [piece for cut in last.values() for piece in await pieces_of(self._stores, cut)]
        timing = Timing(refresh_ms, dead_after_ms, checkpoint_interval_ms)
        state = first_state("", begins, finish, streams=keys, timing=timing)
        wanted = str(UUID(bytes=_ID_PREFIX + os.urandom(12)))
        group_id = await self._stores.controller.create_reader_group(
            self.scope,
            name,
            wanted,
            [first.get(key) or cut_of(key, {}) for key in keys],
            last.values(),
            refresh_ms=refresh_ms,
            checkpoint_interval_ms=checkpoint_interval_ms,
        )
        _check_nadis(group_id, self.scope, name)
        return await SharedState(self._stores, self.scope, name).create(replace(state, group_id=group_id))

    async def get_reader_group(self, name: str) -> ReaderGroup:
        """ReaderGroupNotFoundError if there is none."""
        group = ReaderGroup(self._manager, self.scope, name)
        await SharedState(self._stores, self.scope, name).read()
        return group

    async def delete_reader_group(self, name: str) -> bool:
        """False if there was none; its readers end with ReaderGroupNotFoundError."""
        controller = self._stores.controller
        try:
            group_id = await controller.reader_group_id(self.scope, name)
        except ReaderGroupNotFoundError:
            return False
        _check_nadis(group_id, self.scope, name)
        await SharedState(self._stores, self.scope, name).delete()
        return await controller.delete_reader_group(self.scope, name, group_id)

    async def list_reader_groups(self) -> list[str]:
        """All groups of the scope, those of other clients too."""
        names = await self._stores.controller.list_streams(self.scope)
        return sorted(n.removeprefix(READER_GROUP_PREFIX) for n in names if n.startswith(READER_GROUP_PREFIX))


async def pieces_of(stores: SegmentStores, cut: StreamCut) -> list[tuple[KeyRange, int]]:
    """The segments of a cut with their keys; InvalidStreamCutError if one isn't of the stream."""
    ranges = await readers.segment_ranges(stores, cut.scope, cut.stream, cut)
    return [
        (KeyRange(segment_name(cut.scope, cut.stream, r.segment_id), r.low, r.high), cut.positions[r.segment_id])
        for r in ranges
    ]


def _by_stream(cuts: Iterable[StreamCut], streams: list[str]) -> dict[str, StreamCut]:
    found = {f"{cut.scope}/{cut.stream}": cut for cut in cuts}
    strange = found.keys() - set(streams)
    if strange:
        raise InvalidStreamCutError(f"there is a cut of {min(strange)}, which is no stream of the group")
    return found


def _check_nadis(group_id: str, scope: str, name: str) -> None:
    if not UUID(group_id).bytes.startswith(_ID_PREFIX):
        raise AlreadyExistsError("reader group", f"{scope}/{name}, made by another client, which nadi's can't share,")


def _without(state: GroupState, name: str) -> GroupState:
    return state.apply(Forget(name)) if state.checkpoint(name) is not None else state
