"""What a stream must keep now, and why: its policy's wish, and who holds the head back from it.

The rules are Pravega's. What is within `least` is kept. Without subscribers, everything else goes; with them, what not
all of them have consumed stays too, unless there is a maximum and it is older, or more, than `most`. The rules are kept
key by key: `earliest` and `latest`. Bookmarks and slices hold back even the maximum, unless it says `over_bookmarks`.

A segment's time index dates bytes by the wall clock, never less than what it showed when they came. Clocks are set, so
ages are measured by the monotonic clock: data is older than an age if its date lies before everything that the wall
clock has shown since then. Over a restart the wall clock is believed; but not at once, as some machines start with a
wrong one and correct it then.

Clients write the table of bookmarks and slices, so a record may be invalid: one that can't be read, or names no place
of the stream, protects nothing and is logged once. Nor does a bookmark before the head; a slice protects what is left.
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
from nadi.controller.retention.cut_sizes import CutSearch, Past, look
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
from nadi.throttled_log import Complaints
from nadi.wire.time_index import ARRIVAL, clock_of

_I64_MAX = (1 << 63) - 1
_SLACK_MS = 200  # by which two clocks may differ before it is taken for a change
NameKind = Literal["bookmark", "slice"]
HolderKind = Literal["subscriber"] | NameKind
_CUTS = {"bookmark": 1, "slice": 2}
_REMEMBERED = 10_000  # streams
_TRIES = 5  # to describe a stream while truncations move its head
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """least, most: milliseconds or bytes, by `kind`; most is None if there is no maximum."""

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
    """InvalidArgumentError for a policy that can't be meant, saying what to do."""
    unit = "milliseconds" if config.retention_type is RetentionType.TIME else "bytes"
    least, most = config.retention_param, config.retention_max
    if config.retention_type is RetentionType.NONE:
        if least or most or config.retention_over_bookmarks or config.retention_by_event_time:
            raise InvalidArgumentError("a retention policy says what to keep by time or by size: set its type")
        return
    if config.retention_by_event_time and config.retention_type is not RetentionType.TIME:
        raise InvalidArgumentError("retention by event time is by age: give an age to keep, not a size")
    if config.retention_by_event_time and not config.event_time:
        raise InvalidArgumentError(
            "retention by event time needs the field that has an event's time: set the stream's event time"
        )
    if least < 0 or most < 0:
        raise InvalidArgumentError(f"a retention policy keeps no negative {unit}: {min(least, most):,}")
    if least == 0:
        raise InvalidArgumentError(
            f"a retention policy that keeps 0 {unit} keeps nothing: give it more, or leave it out to keep everything"
        )
    if 0 < most < least:
        raise InvalidArgumentError(
            f"a retention policy can't keep at least {least:,} {unit} and at most {most:,}: raise the maximum"
        )


def _allowed(policy: RetentionRule, past: Past, bounds: Bounds, published: Collection[Cut]) -> Cut:
    """The cut that the policy and its subscribers allow; those who never published one don't count."""
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
    """From then on, by the monotonic clock, the wall clock was so much ahead of it."""

    since_ms: int
    ahead_ms: int


class Ages:
    """Reads both clocks whenever `note` is called, and remembers how they have parted."""

    def __init__(self, clock: Runtime) -> None:
        self._clock = clock
        self._started_ms = self._noted_ms = clock.monotonic_ms()
        self._pieces = deque([_ClockOffset(self._started_ms, clock.now_ms() - self._started_ms)])

    @property
    def known_ms(self) -> int:
        return self._clock.monotonic_ms() - self._started_ms

    def note(self) -> None:
        """Compare the clocks; call it every second or so."""
        now_ms = self._clock.monotonic_ms()
        ahead_ms, last = self._clock.now_ms() - now_ms, self._pieces[-1]
        if abs(ahead_ms - last.ahead_ms) > _SLACK_MS:  # set back, it may have been so since the last note
            self._pieces.append(_ClockOffset(self._noted_ms if ahead_ms < last.ahead_ms else now_ms, ahead_ms))
            if len(self._pieces) > limits.RETENTION_CLOCK_PIECES:
                first, second = self._pieces.popleft(), self._pieces.popleft()
                self._pieces.appendleft(_ClockOffset(first.since_ms, min(first.ahead_ms, second.ahead_ms)))
        self._noted_ms = now_ms

    def moment(self, age_ms: int) -> int:
        """A moment before which everything is older than that age, in ms since 1970; 0 if there is none."""
        self.note()
        then_ms = self._noted_ms - age_ms
        pieces = list(self._pieces)
        ends_ms = [piece.since_ms for piece in pieces[1:]] + [self._noted_ms]
        began_ms = [then_ms, *(max(piece.since_ms, then_ms) for piece in pieces[1:])]
        shown = (
            began + piece.ahead_ms
            for piece, began, end in zip(pieces, began_ms, ends_ms, strict=True)
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
    """Reads the names of scopes; what it has decoded is kept while its entry stays as it is."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._known: LRUCache[tuple[str, bytes], tuple[int, NamedCut | None]] = LRUCache(limits.RETENTION_NAMES_MAX)
        self._complaints = Complaints(log, "%s protects nothing from retention")

    async def of_scope(self, scope: str) -> dict[str, list[NamedCut]]:
        """By stream; InvalidArgumentError if there are too many."""
        found: dict[str, list[NamedCut]] = {}
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
                found.setdefault(known[1].stream, []).append(known[1])
        return found

    def _decoded(self, scope: str, key: bytes, value: bytes) -> NamedCut | None:
        kind, _, name = key.decode(errors="replace").partition("/")
        try:
            stored = msgspec.json.decode(value, type=StoredCuts)
            cuts = [StreamCut.from_text(text) for text in stored.cuts]
            if len(cuts) != _CUTS.get(kind) or any((cut.scope, cut.stream) != (scope, stored.stream) for cut in cuts):
                raise InvalidStreamCutError("it is neither a bookmark nor a slice of one of the scope's streams")
        except (msgspec.MsgspecError, InvalidStreamCutError) as error:
            self._complaints.tell(f"{kind} {scope}/{name}", error)
            return None
        ends = [cut.positions for cut in cuts]
        return NamedCut(cast("NameKind", kind), name, stored.stream, ends[0], ends[1] if len(ends) > 1 else None)


def protected(past: Past, named: NamedCut) -> Cut | None:
    """From where on the name keeps the stream's data; None if it names none that is left."""
    head, end = past.start, named.end
    if not all(past.is_of_stream(cut) or past.is_forgotten(cut) for cut in (named.start, end) if cut is not None):
        return None
    start = None if past.is_forgotten(named.start) else past.settled(named.start)
    if start is not None and past.is_at_or_after(start, head):
        return named.start  # as it was given, so that the segments it names stay
    if end is None or (past.is_gone(end) if past.is_forgotten(end) else past.is_at_or_after(head, past.settled(end))):
        return None
    return head if start is None else past.latest(start, head)


@dataclass(frozen=True, slots=True)
class RetentionClaim:
    """Who needs more than the policy would keep: from `cut` on, so many bytes. name: a subscriber's as
    "scope/reader group"."""

    kind: HolderKind
    name: str
    cut: Cut
    bytes_after: int


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """stream: what was judged; past: how much it had. cut: where it may be truncated; None if it stays as it is.
    holders: those because of whom it isn't more, the farthest behind first."""

    stream: StreamRecord
    past: Past
    cut: Cut | None = None
    holders: tuple[RetentionClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The cuts that the policy speaks of: by time, those of the moments that long ago; by size, the newest cut after
    which there are at least that many bytes, and the oldest with at most that many. most: None if nobody needs more, or
    there is no maximum."""

    least: Cut
    most: Cut | None


# what was found by size when a stream was like that, and where in time to begin the next search
_Sized = tuple[tuple[object, ...], int, Bounds]


@dataclass(frozen=True, slots=True)
class RetentionJudge:
    flow: Workflows
    ages: Ages
    _sized: LRUCache[str, _Sized] = field(default_factory=lambda: LRUCache(_REMEMBERED))

    async def judge(self, name: StreamName, named: Sequence[NamedCut]) -> RetentionDecision:
        """The verdict on a stream; as with Pravega, nothing of a sealed one is truncated. named: what has a name in
        it."""
        found = await self.flow.metadata.stream(name)
        stream, policy = found.value, RetentionRule.of(found.value.config)
        past = await look(self.flow, name)
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
            verdict = await self.judge(name, named)
            if (await self.flow.metadata.stream(name)).value.head == verdict.stream.head:
                break
        past, holders = verdict.past, verdict.holders
        kept = past.kept_bytes
        oldest_ms = await self._oldest_ms(name, verdict) if kept else 0
        shown = [
            HolderReport(one.kind, one.name, StreamCut(*name, one.cut).as_text(), one.bytes_after)
            for one in holders[: limits.RETENTION_HOLDERS_TOLD]
        ]
        head = StreamCut(*name, past.head or past.history.head_of_time()).as_text()
        return RetentionReport(head, kept, oldest_ms, shown, len(holders) - len(shown))

    async def _oldest_ms(self, name: StreamName, verdict: RetentionDecision) -> int:
        """The first moment whose cut has something of what is kept before it: nothing can be older than that."""
        past = verdict.past
        head = past.start
        low_ms, high_ms = verdict.stream.created_ms, max(verdict.stream.created_ms, self.flow.clock.now_ms()) + 1
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
        same = (stream.created_ms, least, most, past.kept_bytes, len(past.ends), tuple(past.head.items()))
        known = self._sized.get(name.key)
        if known is not None and known[0] == same:
            return known[2]  # nobody has written anything since

        async def locate(segment: int, offset: int) -> int:
            try:
                return await self.flow.segments.locate(name.segment(segment), offset)
            except DamagedDataError as damage:  # an event begins where it ends
                return max(offset, damage.end_offset)

        since_ms = known[1] if known is not None else stream.created_ms
        search = CutSearch(past, partial(cut_at, self.flow, name), locate, since_ms, self.flow.clock.now_ms())
        newest, since_ms = await search.find(least, at_most=False)
        oldest = (await search.find(most, at_most=True))[0] if most is not None else None
        if oldest is not None and past.bytes_after(oldest) < least:
            oldest = newest  # no boundary lies between the two
        bounds = Bounds(newest, oldest)
        self._sized[name.key] = same, since_ms, bounds
        return bounds


def decide(
    history: EpochHistory,
    past: Past,
    policy: RetentionRule,
    bounds: Bounds,
    published: Mapping[str, Cut],
    named: Sequence[NamedCut],
) -> tuple[Cut | None, tuple[RetentionClaim, ...]]:
    """Where the stream may be truncated, None if at its head, and who holds it back. history: that of `past`.
    published: the cuts of its subscribers, by their names."""
    past = past.over(history)
    head = past.start
    known = {name: cut if past.is_of_stream(cut) else head for name, cut in published.items()}
    cut = _allowed(policy, past, bounds, known.values())
    needs: list[tuple[HolderKind, str, Cut]] = [("subscriber", name, place) for name, place in known.items()]
    for one in named:
        place = protected(past, one)
        if place is not None:
            cut = past.earliest(cut, place)
            needs.append((one.kind, one.name, place))
    holders = [
        RetentionClaim(kind, name, place, past.bytes_after(place))
        for kind, name, place in needs
        if not past.is_at_or_after(past.settled(place), bounds.least)
    ]
    holders.sort(key=lambda holder: (-holder.bytes_after, holder.kind, holder.name))
    if not past.is_at_or_after(past.settled(cut), head):
        cut = past.latest(past.settled(cut), head)
    return None if past.is_same(past.settled(cut), head) else cut, tuple(holders)


IndexTimes = Callable[[StreamName, str, Iterable[int]], Awaitable[None]]  # of those segments, of that event time
NamesOfScope = dict[str, list[NamedCut]]  # by stream


@dataclass(slots=True)
class Released:
    """What retention has truncated since this controller began; at_s: when last, by the monotonic clock."""

    truncations: int = 0
    size_bytes: int = 0
    at_s: float | None = None


class RetentionRounds:
    """Moves heads every few seconds, of the streams in a table: those that have a policy. Each is looked at for a
    limited time: what holds one up is waited for by nobody else. Cuts are carried out by the truncation that anybody
    can ask for, if stream and policy still are what they were then."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self.released = Released()
        self._table = flow.metadata.limited
        self._ages = Ages(flow.clock)
        self._judge = RetentionJudge(flow, self._ages)
        self._names = Names(flow.segments)
        self.index_times: IndexTimes | None = None  # set by a server that can
        self._token = b""  # where the next round continues
        self._going_on: dict[str, asyncio.Task[None]] = {}  # streams that are being looked at
        self._complaints = Complaints(log, "retention of %s waits for the next round")

    def start(self, schedule: Schedule) -> None:
        schedule.start("retention", limits.RETENTION_PERIOD_S, self.round)
        schedule.start("the clocks", limits.RETENTION_CLOCK_S, self._note_clocks)

    async def _note_clocks(self) -> None:
        self._ages.note()

    async def describe(self, name: StreamName) -> RetentionReport:
        """What the stream keeps now, and why; StreamNotFoundError if there is none."""
        stream = (await self._flow.metadata.stream(name)).value
        names = await self._names.of_scope(name.scope) if RetentionRule.of(stream.config) is not None else {}
        return await self._judge.report(name, names.get(name.stream, ()))

    async def report(self, _: Workflows, name: StreamName, token: str) -> tuple[list[RetentionReport], str]:
        return [await self.describe(name)], ""

    async def round(self) -> None:
        # of scopes, each read once a round
        names = Shared(self._flow.clock, self._names.of_scope, age_s=math.inf, most=limits.RETENTION_STREAMS_A_ROUND)
        permits = asyncio.Semaphore(limits.RETENTION_AT_ONCE)

        async def one(name: StreamName) -> None:
            """What takes longer than RETENTION_WAIT_S goes on by itself."""
            async with permits:
                if name.key not in self._going_on:
                    task = self._going_on[name.key] = self._flow.tasks.spawn(self._look_at(name, names))
                    task.add_done_callback(lambda _: self._going_on.pop(name.key, None))
                    await asyncio.wait([task], timeout=limits.RETENTION_WAIT_S)

        left = limits.RETENTION_STREAMS_A_ROUND
        while left > 0:
            found, self._token = await self._table.page(self._token, left)
            if not found:
                self._token = b""
                return
            left -= len(found)
            await asyncio.gather(*(one(StreamName.of(key)) for key, _ in found))

    async def _look_at(self, name: StreamName, names: Shared[str, NamesOfScope]) -> None:
        try:
            found = await self._flow.metadata.find_stream(name)
            if found is None or found.value.config.retention_type is RetentionType.NONE:
                await self._strike_off(name)
                return
            config = found.value.config
            by_age = config.retention_type is RetentionType.TIME
            is_too_early = by_age and self._ages.known_ms < limits.RETENTION_SETTLE_S * 1000
            if found.value.state is StreamState.ACTIVE and not is_too_early:
                named = (await names.get(name.scope)).get(name.stream, ())
                if config.retention_by_event_time and self.index_times is not None:
                    await self.index_times(name, config.event_time, (await look(self._flow, name)).ends)
                await self._truncate(name, named)
            self._complaints.settled(name.key)
        except (StreamSealedError, NotFoundError) as error:
            if await self._flow.metadata.find_stream(name) is not None and not isinstance(error, StreamSealedError):
                self._complaints.tell(name.key, error)
        except Exception as error:
            self._complaints.tell(name.key, error)

    async def _truncate(self, name: StreamName, named: Sequence[NamedCut]) -> None:
        verdict = await self._judge.judge(name, named)
        cut = verdict.cut
        if cut is None:
            return

        async def begin() -> AnyWork | None:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.config != verdict.stream.config or stream.head != verdict.stream.head:
                return None  # another policy, another head: the next round looks again
            return await truncate.begin(self._flow, name, cut)

        if await self._flow.run(name, begin) is not None:
            self.released.truncations += 1
            self.released.size_bytes += verdict.past.kept_bytes - verdict.past.bytes_after(cut)
            self.released.at_s = self._flow.clock.monotonic()

    async def _strike_off(self, name: StreamName) -> None:
        """End the stream's rounds, unless it has got a policy before it was struck off."""
        await self._table.remove([name.key])
        found = await self._flow.metadata.find_stream(name)
        if found is not None:
            await self._flow.metadata.keep_limited(name, found.value.config)
