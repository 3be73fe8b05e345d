"""What a stream must keep now, and why: its policy's wish, and who holds the head back from it.

`Judge` asks for what the rules (`policy`) need: the cuts of moments or sizes, what subscribers have published, and the
names in the scope. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from cachetools import LRUCache

from nadi.controller.engine.workflows import Workflows
from nadi.controller.retention.ages import Ages
from nadi.controller.retention.by_size import Search
from nadi.controller.retention.cuts import Cuts
from nadi.controller.retention.names import Named, NameKind, protected
from nadi.controller.retention.past import Past, look
from nadi.controller.retention.policy import Policy, consumed_by_all, cut_by_size, cut_by_time
from nadi.controller.state.histories import ask
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import RetentionType, Stream, StreamState
from nadi.controller.time.moment_cut import cut_at
from nadi.errors import DamagedDataError
from nadi.limits import EVENT_TIME_MIN, RETENTION_HOLDERS_TOLD, TIME_INDEX_MS
from nadi.wire.moments import ARRIVAL, clock_of

_REMEMBERED = 10_000  # streams
_TRIES = 5  # to describe a stream while truncations move its head
HolderKind = Literal["subscriber"] | NameKind


@dataclass(frozen=True, slots=True)
class Holder:
    """Who needs more than the policy would keep: from `cut` on, so many bytes. name: a subscriber's as
    "scope/reader group"."""

    kind: HolderKind
    name: str
    cut: Cut
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """stream: what was judged; past: how much it had. cut: where it may be truncated; None if it stays as it is.
    holders: those because of whom it isn't more, the farthest behind first."""

    stream: Stream
    past: Past
    policy: Policy | None
    cut: Cut | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What people are told. oldest_ms: when the oldest event that is kept came, to about ten seconds, in ms since 1970;
    0 if there is none. more_holders: how many there are besides those listed."""

    policy: Policy | None
    head: Cut
    kept_bytes: int
    oldest_ms: int
    holders: tuple[Holder, ...]
    more_holders: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The cuts that the policy speaks of; none for the most if nobody needs more, or there is no maximum."""

    least: Cut
    most: Cut | None


@dataclass(frozen=True, slots=True)
class _Sized:
    """What was found by size when a stream was like that; since_ms: where to begin the next search."""

    same: tuple[object, ...]
    since_ms: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Judge:
    flow: Workflows
    ages: Ages
    _sized: LRUCache[str, _Sized] = field(default_factory=lambda: LRUCache(_REMEMBERED))

    async def judge(self, name: StreamName, named: Sequence[Named]) -> Verdict:
        """The verdict on a stream. named: what has a name in it, for policies that heed that.

        A sealed stream stays as it is: as with Pravega, nothing of it is truncated any more.
        """
        found = await self.flow.metadata.stream(name)
        stream, policy = found.value, Policy.of(found.value.config)
        past = await look(self.flow, name)
        if policy is None or stream.state is not StreamState.ACTIVE:
            return Verdict(stream, past, policy)
        cuts = Cuts(past)
        published = {
            key: record.value.cut
            async for key, record in self.flow.metadata.subscribers(name).scan()
            if record.value.cut
        }
        bounds = await self._bounds(name, stream, policy, cuts, with_most=bool(published))
        if policy.over_bookmarks:
            named = ()
        deciding = partial(decide, past=past, policy=policy, bounds=bounds, published=published, named=named)
        cut, holders = await ask(self.flow.clock, past.history, deciding, cuts=1 + len(published) + len(named))
        return Verdict(stream, past, policy, cut, holders)

    async def report(self, name: StreamName, named: Sequence[Named]) -> Report:
        """The verdict as people are told it."""
        for _ in range(_TRIES):
            verdict = await self.judge(name, named)
            if (await self.flow.metadata.stream(name)).value.head == verdict.stream.head:
                break
        past = verdict.past
        kept = past.kept_bytes
        oldest_ms = await self._oldest_ms(name, verdict) if kept else 0
        shown = verdict.holders[:RETENTION_HOLDERS_TOLD]
        head = past.head or past.history.head_of_time()
        return Report(verdict.policy, head, kept, oldest_ms, shown, len(verdict.holders) - len(shown))

    async def _oldest_ms(self, name: StreamName, verdict: Verdict) -> int:
        """The first moment whose cut has something of what is kept before it: nothing can be older than that."""
        cuts = Cuts(verdict.past)
        head = cuts.head
        low_ms, high_ms = verdict.stream.created_ms, max(verdict.stream.created_ms, self.flow.clock.now_ms()) + 1
        while high_ms - low_ms > TIME_INDEX_MS:
            middle_ms = (low_ms + high_ms) // 2
            if cuts.is_same(cuts.settled(await cut_at(self.flow, name, middle_ms)), head):
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return low_ms

    async def _bounds(self, name: StreamName, stream: Stream, policy: Policy, cuts: Cuts, *, with_most: bool) -> Bounds:
        most = policy.most if with_most else None
        if policy.kind is RetentionType.SIZE:
            return await self._of_size(name, stream, policy.least, most, cuts)

        async def younger(age_ms: int) -> Cut:
            moment, clock = self.ages.moment(age_ms), ARRIVAL
            if policy.by_event_time:
                moment, clock = moment * 1000 or EVENT_TIME_MIN, clock_of(stream.config.event_time)
            return cuts.settled(await cut_at(self.flow, name, moment, clock))

        return Bounds(await younger(policy.least), None if most is None else await younger(most))

    async def _of_size(self, name: StreamName, stream: Stream, least: int, most: int | None, cuts: Cuts) -> Bounds:
        past = cuts.past
        same = (stream.created_ms, least, most, past.kept_bytes, len(past.ends), tuple(past.head.items()))
        known = self._sized.get(name.key)
        if known is not None and known.same == same:
            return known.bounds  # nobody has written anything since

        async def locate(segment: int, offset: int) -> int:
            try:
                return await self.flow.segments.locate(name.segment(segment), offset)
            except DamagedDataError as damage:  # an event begins where it ends
                return max(offset, damage.end_offset)

        since_ms = known.since_ms if known is not None else stream.created_ms
        search = Search(cuts, partial(cut_at, self.flow, name), locate, since_ms, self.flow.clock.now_ms())
        newest = await search.newest_with(least)
        oldest = (await search.oldest_with(most)).cut if most is not None else None
        if oldest is not None and past.bytes_after(oldest) < least:
            oldest = newest.cut  # no boundary lies between the two
        bounds = Bounds(newest.cut, oldest)
        self._sized[name.key] = _Sized(same, newest.since_ms, bounds)
        return bounds


def decide(
    history: History,
    past: Past,
    policy: Policy,
    bounds: Bounds,
    published: Mapping[str, Cut],
    named: Sequence[Named],
) -> tuple[Cut | None, tuple[Holder, ...]]:
    """Where the stream may be truncated, None if at its head, and who holds it back. history: that of `past`.
    published: the cuts of its subscribers, by their names."""
    cuts = Cuts(past.over(history))
    head = cuts.head
    known = {name: cut if cuts.is_of_stream(cut) else head for name, cut in published.items()}
    consumed = consumed_by_all(cuts, known.values())
    if policy.kind is RetentionType.TIME:
        cut = cut_by_time(cuts, bounds.least, consumed, bounds.most)
    else:
        cut = cut_by_size(policy, cuts, bounds.least, consumed, bounds.most)
    needs: list[tuple[HolderKind, str, Cut]] = [("subscriber", name, place) for name, place in known.items()]
    for one in named:
        place = protected(cuts, one)
        if place is not None:
            cut = cuts.earliest(cut, place)
            needs.append((one.kind, one.name, place))
    holders = [
        Holder(kind, name, place, cuts.past.bytes_after(place))
        for kind, name, place in needs
        if not cuts.is_at_or_after(cuts.settled(place), bounds.least)
    ]
    holders.sort(key=lambda holder: (-holder.bytes_after, holder.kind, holder.name))
    if not cuts.is_at_or_after(cuts.settled(cut), head):
        cut = cuts.latest(cuts.settled(cut), head)
    return None if cuts.is_same(cuts.settled(cut), head) else cut, tuple(holders)
