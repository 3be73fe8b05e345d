"""Retention: decides what a stream must retain, reports why, and truncates the rest in periodic rounds.

The rules are Pravega's. Data within the policy's minimum (`least`) is retained. Without subscribers everything else is
truncated; with subscribers, data that some have yet to consume is retained too, up to the maximum (`most`), if any. The
rules apply per key: see `earliest` and `latest`. Bookmarks and slices override even the maximum, unless the policy has
`over_bookmarks`.

A segment's time index dates bytes by the wall clock, and never goes back. Clocks are set, so ages are measured by the
monotonic clock: data is older than an age if its date is before everything that the wall clock has shown since then.
After a restart the wall clock is trusted, but only after a delay, as some machines boot with a wrong clock and then
correct it.

Clients write the table of bookmarks and slices, so a record may be invalid: one that can't be read, or isn't a position
of the stream, protects nothing and is logged once. A bookmark before the head protects nothing either; a slice protects
the data that remains.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Literal, NamedTuple, cast

import msgspec
from cachetools import LRUCache

from nadi import limits
from nadi.controller.engine.workflows import Schedule, Shared, Workflows
from nadi.controller.event_time import cut_at
from nadi.controller.retention.cut_sizes import CutSearch, Past, measure
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import AnyWork, RetentionType, StreamConfigRecord, StreamRecord, StreamState
from nadi.controller.state.segments import Segments
from nadi.controller.workflows import truncate
from nadi.errors import DamagedDataError, InvalidArgumentError, InvalidStreamCutError, NotFoundError, StreamSealedError
from nadi.model.named_records import StoredCuts
from nadi.model.reports import HolderReport, RetentionReport
from nadi.model.streamcut import StreamCut
from nadi.naming import BOOKMARKS_TABLE, TABLE_SUFFIX, segment_name
from nadi.runtime import Runtime
from nadi.throttled_log import ProblemLog
from nadi.wire.time_index import ARRIVAL, clock_of

_I64_MAX = (1 << 63) - 1
_SLACK_MS = 200  # difference between the clocks below which they count as in step
NameKind = Literal["bookmark", "slice"]
HolderKind = Literal["subscriber"] | NameKind
_CUTS = {"bookmark": 1, "slice": 2}
_REMEMBERED = 10_000  # streams
_TRIES = 5  # to describe a stream while truncations move its head
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """A retention policy. least, most: milliseconds or bytes, by `kind`; most is None without a maximum."""

    kind: RetentionType
    least: int
    most: int | None
    over_bookmarks: bool
    by_event_time: bool = False

    @classmethod
    def of(cls, config: StreamConfigRecord) -> RetentionRule | None:
        if config.retention_type is RetentionType.NONE:
            return None
        most = None if config.retention_max in (0, _I64_MAX) else config.retention_max
        rules = config.retention_over_bookmarks, config.retention_by_event_time
        return cls(config.retention_type, config.retention_param, most, *rules)


def check_policy(config: StreamConfigRecord) -> None:
    """Raise InvalidArgumentError for an inconsistent policy, with the correction."""
    unit = "milliseconds" if config.retention_type is RetentionType.TIME else "bytes"
    least, most = config.retention_param, config.retention_max
    if config.retention_type is RetentionType.NONE:
        if least or most or config.retention_over_bookmarks or config.retention_by_event_time:
            raise InvalidArgumentError("the retention policy lacks its type: set it to time or size")
        return
    if config.retention_by_event_time and config.retention_type is not RetentionType.TIME:
        raise InvalidArgumentError("retention by event time needs an age, not a size: set the type to time")
    if config.retention_by_event_time and not config.event_time:
        raise InvalidArgumentError("retention by event time needs an event time field: set the stream's event time")
    if least < 0 or most < 0:
        raise InvalidArgumentError(
            f"the retention policy is negative, {min(least, most):,} {unit}: give a positive limit"
        )
    if least == 0:
        raise InvalidArgumentError(
            f"the retention policy retains 0 {unit}: give it more, or omit it to retain everything"
        )
    if 0 < most < least:
        raise InvalidArgumentError(
            f"the retention policy has a minimum of {least:,} {unit} and a maximum of {most:,}: raise the maximum"
        )


def _allowed(policy: RetentionRule, past: Past, bounds: Bounds, published: Collection[Cut]) -> Cut:
    """Return the cut that the policy and its subscribers allow; subscribers without a published cut don't count."""
    if not published:
        return bounds.least
    consumed = reduce(past.earliest, published)
    if policy.kind is RetentionType.TIME:
        return past.earliest(bounds.least, consumed if bounds.most is None else past.latest(consumed, bounds.most))
    needed = past.bytes_after(consumed)
    if needed < policy.least:
        return past.earliest(bounds.least, consumed)
    if policy.most is None or bounds.most is None or needed < policy.most:
        return consumed
    return bounds.most


class _ClockOffset(NamedTuple):
    """From since_ms on the monotonic clock, the wall clock was this far ahead of it."""

    since_ms: int
    ahead_ms: int


class AgeClock:
    """Dates of ages: reads both clocks at each `note`, and remembers how they diverged."""

    def __init__(self, clock: Runtime) -> None:
        self._clock = clock
        self._started_ms = self._noted_ms = clock.monotonic_ms()
        self._pieces = deque([_ClockOffset(self._started_ms, clock.now_ms() - self._started_ms)])

    @property
    def known_ms(self) -> int:
        return self._clock.monotonic_ms() - self._started_ms

    def note(self) -> None:
        """Compare the clocks; to be called every second or so."""
        now_ms = self._clock.monotonic_ms()
        ahead_ms, last = self._clock.now_ms() - now_ms, self._pieces[-1]
        if abs(ahead_ms - last.ahead_ms) > _SLACK_MS:  # if set back, possibly right after the last note
            self._pieces.append(_ClockOffset(self._noted_ms if ahead_ms < last.ahead_ms else now_ms, ahead_ms))
            if len(self._pieces) > limits.RETENTION_CLOCK_PIECES:
                first, second = self._pieces.popleft(), self._pieces.popleft()
                self._pieces.appendleft(_ClockOffset(first.since_ms, min(first.ahead_ms, second.ahead_ms)))
        self._noted_ms = now_ms

    def moment(self, age_ms: int) -> int:
        """Return a time before which everything is older than that age, in ms since 1970; 0 if there is none."""
        self.note()
        then_ms = self._noted_ms - age_ms
        pieces = list(self._pieces)
        ends_ms = [piece.since_ms for piece in pieces[1:]] + [self._noted_ms]
        begins_ms = [then_ms, *(max(piece.since_ms, then_ms) for piece in pieces[1:])]
        shown = (
            begin + piece.ahead_ms
            for piece, begin, end in zip(pieces, begins_ms, ends_ms, strict=True)
            if end >= then_ms
        )
        return max(0, min(shown) - _SLACK_MS)


@dataclass(frozen=True, slots=True)
class NamedCut:
    """A bookmark, or a slice that ends at `end`."""

    kind: NameKind
    name: str
    stream: str
    start: Cut
    end: Cut | None = None


class Names:
    """Reader of scopes' bookmarks and slices, with a cache of decoded entries by version."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._known: LRUCache[tuple[str, bytes], tuple[int, NamedCut | None]] = LRUCache(limits.RETENTION_NAMES_MAX)
        self._problems = ProblemLog(log, "%s protects nothing from retention")

    async def of_scope(self, scope: str) -> dict[str, list[NamedCut]]:
        """Return the names by stream; InvalidArgumentError if there are too many."""
        by_stream: dict[str, list[NamedCut]] = {}
        count = 0
        async for entry in self._segments.table_entries(segment_name(scope, BOOKMARKS_TABLE + TABLE_SUFFIX, 0)):
            count += 1
            if count > limits.RETENTION_NAMES_MAX:
                raise InvalidArgumentError(
                    f"scope {scope} has more than {limits.RETENTION_NAMES_MAX:,} bookmarks and slices: delete some"
                )
            key = scope, bytes(entry.key)
            known = self._known.get(key)
            if known is None or known[0] != entry.version:
                if count % limits.RETENTION_NAMES_A_TURN == 0:
                    await asyncio.sleep(0)
                known = self._known[key] = entry.version, self._decoded(scope, key[1], bytes(entry.value))
            if known[1] is not None:
                by_stream.setdefault(known[1].stream, []).append(known[1])
        return by_stream

    def _decoded(self, scope: str, key: bytes, value: bytes) -> NamedCut | None:
        kind, _, name = key.decode(errors="replace").partition("/")
        try:
            stored = msgspec.json.decode(value, type=StoredCuts)
            cuts = [StreamCut.from_text(text) for text in stored.cuts]
            if len(cuts) != _CUTS.get(kind) or any((cut.scope, cut.stream) != (scope, stored.stream) for cut in cuts):
                raise InvalidStreamCutError("it is neither a bookmark nor a slice of a stream in this scope")
        except (msgspec.MsgspecError, InvalidStreamCutError) as error:
            self._problems.report(f"{kind} {scope}/{name}", error)
            return None
        ends = [cut.positions for cut in cuts]
        return NamedCut(cast("NameKind", kind), name, stored.stream, ends[0], ends[1] if len(ends) > 1 else None)


def protected(past: Past, named: NamedCut) -> Cut | None:
    """Return the position from which the name protects the stream's data; None if nothing it names remains."""
    head, end = past.start, named.end
    if not all(past.is_of_stream(cut) or past.is_forgotten(cut) for cut in (named.start, end) if cut is not None):
        return None
    start = None if past.is_forgotten(named.start) else past.settled(named.start)
    if start is not None and past.is_at_or_after(start, head):
        return named.start  # as given, so that the segments it names are retained
    if end is None or (past.is_gone(end) if past.is_forgotten(end) else past.is_at_or_after(head, past.settled(end))):
        return None
    return head if start is None else past.latest(start, head)


@dataclass(frozen=True, slots=True)
class RetentionClaim:
    """A claim to more data than the policy would retain, from `cut` on. name: a subscriber's is "scope/reader
    group"."""

    kind: HolderKind
    name: str
    cut: Cut
    bytes_after: int


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """A decision about a stream. stream, past: the state it is based on. cut: where to truncate; None if nowhere.
    holders: the claims that prevent truncating further, the earliest first."""

    stream: StreamRecord
    past: Past
    cut: Cut | None = None
    holders: tuple[RetentionClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The policy's limits as cuts: by time, the cuts at those ages; by size, the newest cut with at least `least` bytes
    after it, and the oldest with at most `most`. most: None without claims or without a maximum."""

    least: Cut
    most: Cut | None


# the stream's state when its size bounds were found, the time where the next search starts, and the bounds
_Sized = tuple[tuple[object, ...], int, Bounds]


@dataclass(frozen=True, slots=True)
class RetentionDecider:
    flow: Workflows
    ages: AgeClock
    _sized: LRUCache[str, _Sized] = field(default_factory=lambda: LRUCache(_REMEMBERED))

    async def decide(self, name: StreamName, named: Sequence[NamedCut]) -> RetentionDecision:
        """Decide about a stream; as in Pravega, a sealed one isn't truncated. named: its bookmarks and slices."""
        record = await self.flow.metadata.stream(name)
        stream, policy = record.value, RetentionRule.of(record.value.config)
        past = await measure(self.flow, name)
        if policy is None or stream.state is not StreamState.ACTIVE:
            return RetentionDecision(stream, past)
        subscribers = self.flow.metadata.subscribers(name).scan()
        published = {key: record.value.cut async for key, record in subscribers if record.value.cut}
        bounds = await self._bounds(name, stream, policy, past, with_most=bool(published))
        if policy.over_bookmarks:
            named = ()
        deciding = partial(decide, past=past, policy=policy, bounds=bounds, published=published, named=named)
        cut, holders = await ask(self.flow.clock, past.history, deciding, cuts=1 + len(published) + len(named))
        return RetentionDecision(stream, past, cut, holders)

    async def report(self, name: StreamName, named: Sequence[NamedCut]) -> RetentionReport:
        for _ in range(_TRIES):
            decision = await self.decide(name, named)
            if (await self.flow.metadata.stream(name)).value.head == decision.stream.head:
                break
        past, holders = decision.past, decision.holders
        retained = past.retained_bytes
        oldest_ms = await self._oldest_ms(name, decision) if retained else 0
        listed = [
            HolderReport(claim.kind, claim.name, StreamCut(*name, claim.cut).as_text(), claim.bytes_after)
            for claim in holders[: limits.RETENTION_HOLDERS_REPORTED]
        ]
        head = StreamCut(*name, past.head or past.history.first_cut()).as_text()
        return RetentionReport(head, retained, oldest_ms, listed, len(holders) - len(listed))

    async def _oldest_ms(self, name: StreamName, decision: RetentionDecision) -> int:
        """Return the first time whose cut is after the head: nothing retained can be older."""
        past = decision.past
        head = past.start
        low_ms, high_ms = decision.stream.created_ms, max(decision.stream.created_ms, self.flow.clock.now_ms()) + 1
        while high_ms - low_ms > limits.TIME_INDEX_MS:
            middle_ms = (low_ms + high_ms) // 2
            if past.is_same(past.settled(await cut_at(self.flow, name, middle_ms)), head):
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return low_ms

    async def _bounds(
        self, name: StreamName, stream: StreamRecord, policy: RetentionRule, past: Past, *, with_most: bool
    ) -> Bounds:
        most = policy.most if with_most else None
        if policy.kind is RetentionType.SIZE:
            return await self._of_size(name, stream, policy.least, most, past)

        async def younger(age_ms: int) -> Cut:
            moment, clock = self.ages.moment(age_ms), ARRIVAL
            if policy.by_event_time:
                moment, clock = moment * 1000 or limits.EVENT_TIME_MIN, clock_of(stream.config.event_time)
            return past.settled(await cut_at(self.flow, name, moment, clock))

        return Bounds(await younger(policy.least), None if most is None else await younger(most))

    async def _of_size(
        self, name: StreamName, stream: StreamRecord, least: int, most: int | None, past: Past
    ) -> Bounds:
        state = (stream.created_ms, least, most, past.retained_bytes, len(past.ends), tuple(past.head.items()))
        known = self._sized.get(name.key)
        if known is not None and known[0] == state:
            return known[2]  # nothing was written since

        async def locate(segment: int, offset: int) -> int:
            try:
                return await self.flow.segments.locate(name.segment(segment), offset)
            except DamagedDataError as damage:  # the damage ends at an event boundary
                return max(offset, damage.end_offset)

        since_ms = known[1] if known is not None else stream.created_ms
        search = CutSearch(past, partial(cut_at, self.flow, name), locate, since_ms, self.flow.clock.now_ms())
        newest, since_ms = await search.find(least, at_most=False)
        oldest = (await search.find(most, at_most=True))[0] if most is not None else None
        if oldest is not None and past.bytes_after(oldest) < least:
            oldest = newest  # both fall within the same event
        bounds = Bounds(newest, oldest)
        self._sized[name.key] = state, since_ms, bounds
        return bounds


def decide(
    history: EpochHistory,
    past: Past,
    policy: RetentionRule,
    bounds: Bounds,
    published: Mapping[str, Cut],
    named: Sequence[NamedCut],
) -> tuple[Cut | None, tuple[RetentionClaim, ...]]:
    """Return where the stream may be truncated, None if at its head, and the claims that hold it back. history: that of
    `past`. published: the subscribers' cuts by name."""
    past = past.over(history)
    head = past.start
    known = {name: cut if past.is_of_stream(cut) else head for name, cut in published.items()}
    cut = _allowed(policy, past, bounds, known.values())
    needs: list[tuple[HolderKind, str, Cut]] = [("subscriber", name, position) for name, position in known.items()]
    for named_cut in named:
        position = protected(past, named_cut)
        if position is not None:
            cut = past.earliest(cut, position)
            needs.append((named_cut.kind, named_cut.name, position))
    holders = [
        RetentionClaim(kind, name, position, past.bytes_after(position))
        for kind, name, position in needs
        if not past.is_at_or_after(past.settled(position), bounds.least)
    ]
    holders.sort(key=lambda holder: (-holder.bytes_after, holder.kind, holder.name))
    if not past.is_at_or_after(past.settled(cut), head):
        cut = past.latest(past.settled(cut), head)
    return None if past.is_same(past.settled(cut), head) else cut, tuple(holders)


IndexTimes = Callable[[StreamName, str, Iterable[int]], Awaitable[None]]  # of those segments by that event time
NamesOfScope = dict[str, list[NamedCut]]  # by stream


@dataclass(slots=True)
class TruncationCounts:
    """Truncations by retention since this controller started; at_s: time of the last one, by the monotonic clock."""

    truncations: int = 0
    size_bytes: int = 0
    at_s: float | None = None


class RetentionRounds:
    """Periodic truncation of all streams with a policy, which are listed in a table. Checking a stream has a time
    limit, so that a slow one doesn't delay the others. Cuts are carried out by the ordinary truncation workflow,
    provided that the stream and its policy haven't changed meanwhile."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self.released = TruncationCounts()
        self._table = flow.metadata.limited
        self._ages = AgeClock(flow.clock)
        self._decider = RetentionDecider(flow, self._ages)
        self._names = Names(flow.segments)
        self.index_times: IndexTimes | None = None  # set by servers that support it
        self._token = b""  # where the next round continues
        self._checking: dict[str, asyncio.Task[None]] = {}  # streams being checked
        self._problems = ProblemLog(log, "retention of %s waits for the next round")

    def start(self, schedule: Schedule) -> None:
        schedule.start("retention", limits.RETENTION_PERIOD_S, self.round)
        schedule.start("the clocks", limits.RETENTION_CLOCK_S, self._note_clocks)

    async def _note_clocks(self) -> None:
        self._ages.note()

    async def describe(self, name: StreamName) -> RetentionReport:
        """Return what the stream retains, and why; StreamNotFoundError if it doesn't exist."""
        stream = (await self._flow.metadata.stream(name)).value
        names = await self._names.of_scope(name.scope) if RetentionRule.of(stream.config) is not None else {}
        return await self._decider.report(name, names.get(name.stream, ()))

    async def report(self, _: Workflows, name: StreamName, token: str) -> tuple[list[RetentionReport], str]:
        return [await self.describe(name)], ""

    async def round(self) -> None:
        # names of scopes, each read once per round
        names = Shared(self._flow.clock, self._names.of_scope, age_s=math.inf, most=limits.RETENTION_STREAMS_A_ROUND)
        permits = asyncio.Semaphore(limits.RETENTION_AT_ONCE)

        async def check(name: StreamName) -> None:
            """Check a stream; continues in the background after RETENTION_WAIT_S."""
            async with permits:
                if name.key not in self._checking:
                    task = self._checking[name.key] = self._flow.tasks.spawn(self._check_stream(name, names))
                    task.add_done_callback(lambda _: self._checking.pop(name.key, None))
                    await asyncio.wait([task], timeout=limits.RETENTION_WAIT_S)

        remaining = limits.RETENTION_STREAMS_A_ROUND
        while remaining > 0:
            page, self._token = await self._table.page(self._token, remaining)
            if not page:
                self._token = b""
                return
            remaining -= len(page)
            await asyncio.gather(*(check(StreamName.of(key)) for key, _ in page))

    async def _check_stream(self, name: StreamName, names: Shared[str, NamesOfScope]) -> None:
        try:
            record = await self._flow.metadata.find_stream(name)
            if record is None or record.value.config.retention_type is RetentionType.NONE:
                await self._unlist(name)
                return
            config = record.value.config
            by_age = config.retention_type is RetentionType.TIME
            is_too_early = by_age and self._ages.known_ms < limits.RETENTION_SETTLE_S * 1000
            if record.value.state is StreamState.ACTIVE and not is_too_early:
                named = (await names.get(name.scope)).get(name.stream, ())
                if config.retention_by_event_time and self.index_times is not None:
                    await self.index_times(name, config.event_time, (await measure(self._flow, name)).ends)
                await self._truncate(name, named)
            self._problems.settled(name.key)
        except (StreamSealedError, NotFoundError) as error:
            if await self._flow.metadata.find_stream(name) is not None and not isinstance(error, StreamSealedError):
                self._problems.report(name.key, error)
        except Exception as error:
            self._problems.report(name.key, error)

    async def _truncate(self, name: StreamName, named: Sequence[NamedCut]) -> None:
        decision = await self._decider.decide(name, named)
        cut = decision.cut
        if cut is None:
            return

        async def begin() -> AnyWork | None:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.config != decision.stream.config or stream.head != decision.stream.head:
                return None  # policy or head changed: the next round checks again
            return await truncate.begin(self._flow, name, cut)

        if await self._flow.run(name, begin) is not None:
            self.released.truncations += 1
            self.released.size_bytes += decision.past.retained_bytes - decision.past.bytes_after(cut)
            self.released.at_s = self._flow.clock.monotonic()

    async def _unlist(self, name: StreamName) -> None:
        """Remove the stream from the table, unless it gets a policy at the same time."""
        await self._table.remove([name.key])
        record = await self._flow.metadata.find_stream(name)
        if record is not None:
            await self._flow.metadata.list_limited(name, record.value.config)
