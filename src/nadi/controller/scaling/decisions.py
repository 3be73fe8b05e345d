"""Decides which segments of a stream to split and where, which to merge, and why.

`ScalingDecider.evaluate` gets the stream, the loads of its segments and the time, and returns the required changes as
one change of the stream (an epoch) with a `ScalingStep` for each split and merge. A decider's memory isn't persisted: a
restart may delay a change but never hastens one.

A hot segment's key range is cut so that each piece gets an equal share of a sample of its keys. A single key can't be
divided: one with more than a piece's share gets its own segment if that leaves the other keys something to divide; one
that alone exceeds a segment's target is a hot key, and splitting doesn't help.

The two scaling profiles: `fast`, the default, follows a load within seconds; `classic`, like Pravega, within tens of
minutes.

A rule compares a segment's mean rate over a window with its target. Windows are named by their seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nadi.controller.state.records import EpochSegment, StreamConfigRecord
from nadi.defaults import DEFAULT_SCALING
from nadi.errors import InvalidArgumentError
from nadi.limits import SCALING_SEGMENTS_A_CHANGE, STREAM_MAX_SEGMENTS
from nadi.model.keyspace import equal_ranges
from nadi.model.load import WINDOWS_S, KeySample, ScaleType, SegmentLoad
from nadi.model.segments import KeyRange


@dataclass(frozen=True, slots=True)
class RateRule:
    """The mean over `window_s` exceeds (or is below) `times` the target, in a segment measured for at least age_s."""

    window_s: float
    times: float
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Parameters of automatic scaling. period_s: between evaluations. hot: rules; any one suffices for a split,
    unless `still` isn't met. A segment must be older than fresh_s; a split waits while its rate grows by the factor
    `rising` between evaluations, so that it is split once and far enough, or drops by `falling`, so that a past load
    doesn't split it. wanted_s: windows whose highest mean determines the number of pieces, each with `share` of the
    target, rounded up if round_up. stays_s: how long a key must be hot to get its own segment. cold: rules that must
    all be met for a merge, for quiet_s, and slightly longer if a neighbour is within together_s of that. joint: a
    merged segment must stay below this multiple of the target. idle_s: a segment without any load for this long is
    cold. merge_at_once: maximum number of segments per merge. rest_s: how long a new segment is left alone, unless its
    rate exceeds `urgent` times the target."""

    name: str
    period_s: float
    hot: tuple[RateRule, ...]
    still: RateRule | None
    fresh_s: float
    rising: float
    falling: float
    wanted_s: tuple[float, ...]
    share: float
    round_up: bool
    stays_s: float
    cold: tuple[RateRule, ...]
    quiet_s: float
    together_s: float
    joint: float | None
    rest_s: float
    urgent: float
    idle_s: float
    merge_at_once: int


CLASSIC = Profile(
    "classic",
    period_s=5.0,
    hot=(RateRule(120.0, 5.0, 120.0), RateRule(300.0, 2.0, 300.0), RateRule(600.0, 1.0, 600.0)),
    still=None,
    fresh_s=600.0,
    rising=float("inf"),
    falling=float("inf"),
    wanted_s=(120.0, 300.0, 600.0),
    share=1.0,
    round_up=False,
    stays_s=0.0,
    cold=(RateRule(120.0, 1.0, 1200.0), RateRule(300.0, 1.0), RateRule(600.0, 1.0), RateRule(1200.0, 0.5)),
    quiet_s=0.0,
    together_s=0.0,
    joint=None,
    rest_s=600.0,
    urgent=float("inf"),
    idle_s=1200.0,
    merge_at_once=3,
)
FAST = Profile(
    "fast",
    period_s=1.0,
    hot=(RateRule(10.0, 1.2, 4.0), RateRule(120.0, 1.0, 120.0)),
    still=RateRule(2.0, 1.0),
    fresh_s=4.0,
    rising=1.1,
    falling=1.25,
    wanted_s=(2.0, 10.0),
    share=2 / 3,
    round_up=True,
    stays_s=30.0,
    cold=(RateRule(2.0, 0.5), RateRule(10.0, 0.5, 10.0)),
    quiet_s=60.0,
    together_s=10.0,
    joint=0.5,
    rest_s=60.0,
    urgent=1.5,
    idle_s=0.0,
    merge_at_once=1_000,
)
PROFILES = {profile.name: profile for profile in (FAST, CLASSIC)}
DEFAULT_PROFILE = PROFILES[DEFAULT_SCALING]


def profile_of(name: str) -> Profile:
    """Return the profile of that name; InvalidArgumentError if there is none."""
    profile = PROFILES.get(name)
    if profile is None:
        raise InvalidArgumentError(f"unknown scaling profile {name[:40]!r}: choose {' or '.join(PROFILES)}")
    return profile


def mean(load: SegmentLoad, window_s: float, *, in_bytes: bool) -> float:
    """Return a segment's mean rate over a window, in its stream's target unit: events/s, or KiB/s if `in_bytes`."""
    at = WINDOWS_S.index(window_s)
    return load.bytes_per_s[at] / 1024 if in_bytes else load.events_per_s[at]


Loads = Mapping[int, SegmentLoad]  # by segment
LEAST_SAMPLES = 20  # with fewer, the distribution of the load is unknown
SAMPLES_A_PIECE = 8


@dataclass(frozen=True, slots=True)
class HotKey:
    """A position in the key space that has `share` of its segment's load, from 0 to 1."""

    position: float
    share: float


@dataclass(frozen=True, slots=True)
class Sampled:
    low: float
    high: float
    positions: tuple[float, ...]
    shares: tuple[float, ...]
    count: int

    @property
    def is_enough(self) -> bool:
        return self.count >= LEAST_SAMPLES

    def heaviest(self) -> HotKey | None:
        if not self.is_enough:
            return None
        share = max(self.shares)
        return HotKey(self.positions[self.shares.index(share)], share)

    def border(self, after: int) -> float:
        """Return where a range may begin that excludes the position of that index and includes the next one."""
        position, following = self.positions[after : after + 2]
        middle = (position + following) / 2
        return middle if middle > position else following  # else they are adjacent floats


def sampled(keys: KeySample | None, low: float, high: float) -> Sampled:
    """Restrict a sample to a key range; positions outside it belong to other segments."""
    weights: dict[float, float] = {}
    count = 0
    for position, weight in zip(keys.positions, keys.weights, strict=True) if keys is not None else ():
        if low <= position < high and weight > 0:
            weights[position] = weights.get(position, 0.0) + weight
            count += 1
    total = sum(weights.values())
    positions = tuple(sorted(weights))
    return Sampled(low, high, positions, tuple(weights[position] / total for position in positions), count)


def cut(sample: Sampled, pieces: int) -> list[KeyRange]:
    """Divide the range into at most `pieces` of similar load; a single one if it can't be cut. Cuts evenly if too
    little is known of its keys, and makes fewer pieces if there are too few samples.

    >>> sample = sampled(KeySample((0.1, 0.2, 0.3, 0.4) * 8, (1.0,) * 32), 0.0, 1.0)
    >>> [round(high, 2) for _, high in cut(sample, 2)]
    [0.25, 1.0]
    """
    if sample.is_enough or pieces < 2:
        return _cut_by_keys(sample, pieces)
    return [piece for piece in equal_ranges(pieces, sample.low, sample.high) if piece[0] < piece[1]]


def _cut_by_keys(sample: Sampled, pieces: int) -> list[KeyRange]:
    pieces = min(pieces, sample.count // SAMPLES_A_PIECE)
    if pieces < 2:
        return [(sample.low, sample.high)]
    borders: list[float] = []
    passed, goal = 0.0, 1 / pieces
    for index, share in enumerate(sample.shares[:-1]):
        passed += share
        following = sample.shares[index + 1]
        # after this key if that is nearer to the next ideal border than after the following key
        if passed >= goal or abs(passed - goal) <= abs(passed + following - goal):
            borders.append(sample.border(index))
            remaining = pieces - len(borders)
            if remaining < 2:
                break
            goal = passed + (1 - passed) / remaining
    return list(pairwise([sample.low, *borders, sample.high]))


def around(sample: Sampled, key: HotKey, pieces: int) -> list[KeyRange]:
    """Divide the range into at most `pieces`: the key in a piece as narrow as the sample allows, and the remainder in
    pieces of similar load. If there are too few pieces for both sides of the key, it keeps the lighter side."""
    index = sample.positions.index(key.position)
    before, after = sum(sample.shares[:index]), sum(sample.shares[index + 1 :])
    left_pieces = round((pieces - 1) * before / (before + after)) if before + after else 0
    right_pieces = pieces - 1 - left_pieces if after else 0
    start = sample.border(index - 1) if left_pieces else sample.low
    end = sample.border(index) if right_pieces else sample.high
    ranges = [(start, end)]
    if left_pieces:
        ranges = _cut_by_keys(_within(sample, sample.low, start), left_pieces) + ranges
    if right_pieces:
        ranges += _cut_by_keys(_within(sample, end, sample.high), right_pieces)
    return ranges


def _within(sample: Sampled, low: float, high: float) -> Sampled:
    within = [(p, s) for p, s in zip(sample.positions, sample.shares, strict=True) if low <= p < high]
    total = sum(share for _, share in within)
    shares = tuple(share / total for _, share in within)
    return Sampled(low, high, tuple(p for p, _ in within), shares, round(sample.count * total))


OTHERS_SHARE = 0.5  # of the target: with less, a hot key's neighbours aren't worth a separate segment,
OTHERS_AT_ONCE = 1.0  # and with less than this they wait until the key has stayed hot
NARROWEST = 2.0**-40  # of the key space: narrower ranges aren't cut without knowing their keys
UNSTEADY_LOOKS = 5  # maximum evaluations in a row that a split waits for a changing rate
VAIN_GENERATIONS = 3  # blind cuts in a row that may leave all load in one piece
VAIN_SHARE = 0.9  # of the load of all pieces


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """A decision on some segments. kind: split, merge or hot-key. into: the new key ranges. rate, target: in `unit`."""

    kind: str
    segments: tuple[int, ...]
    into: tuple[KeyRange, ...]
    rate: float
    target: int
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Steps in key order. The splits and merges form one change of the stream."""

    steps: tuple[ScalingStep, ...] = ()

    @property
    def sealed(self) -> tuple[int, ...]:
        return tuple(segment for step in self.steps if step.into for segment in step.segments)

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        return tuple(piece for step in self.steps for piece in step.into)


@dataclass(slots=True)
class _KnownSegment:
    """A segment since it was first seen. blind: number of consecutive cuts without knowledge of its keys; of: the range
    that the last one cut into it and its siblings. hot: the position of its hot key, since hot_s."""

    seen_s: float
    by_change: bool
    rate: float = 0.0
    unsteady: int = 0
    quiet_s: float | None = None
    absent_s: float | None = None
    blind: int = 0
    of: KeyRange = (0.0, 0.0)
    hot: float | None = None
    hot_s: float = 0.0


@dataclass(slots=True)
class ScalingDecider:
    """Decides on one stream under one profile. hot_keys: by segment; None if suspected but not sampled. logged: the
    segments whose hot keys the caller has logged; until then each evaluation returns them again."""

    profile: Profile
    hot_keys: dict[int, HotKey | None] = field(default_factory=dict)
    logged: set[int] = field(default_factory=set)
    _known: dict[int, _KnownSegment] = field(default_factory=dict)
    _blind: dict[KeyRange, _KnownSegment] = field(default_factory=dict)  # for pieces about to be created
    _is_new: bool = True

    def evaluate(
        self,
        segments: Sequence[EpochSegment],
        config: StreamConfigRecord,
        loads: Loads,
        now_s: float,
        *,
        all_measured: bool = True,
    ) -> Decision:
        """Decide what to do now. segments: the current ones, in key order. loads: by segment id; complete if
        all_measured. now_s: monotonic. To be called at most about once per profile.period_s."""
        self._update_known(segments, loads, now_s)
        self.logged &= self.hot_keys.keys()
        if config.scale_type is ScaleType.FIXED or config.target_rate <= 0:
            self.hot_keys.clear()
            return Decision()
        stream = _MeasuredStream(segments, config, loads, all_measured, self.profile)
        splits = self._splits(stream, now_s)
        order = {segment.id: index for index, segment in enumerate(segments)}
        steps = [*splits, *self._merges(stream, splits, now_s)]
        return Decision(tuple(sorted(steps, key=lambda step: order[step.segments[0]])))

    def _update_known(self, segments: Sequence[EpochSegment], loads: Loads, now_s: float) -> None:
        current = {segment.id for segment in segments}
        for segment_id in self._known.keys() - current:
            del self._known[segment_id]
            self.hot_keys.pop(segment_id, None)
        for segment in segments:
            if segment.id not in self._known:
                prepared = self._blind.pop((segment.low, segment.high), None)
                known = self._known[segment.id] = prepared or _KnownSegment(now_s, by_change=not self._is_new)
                known.seen_s, known.by_change = now_s, not self._is_new
            known = self._known[segment.id]
            if segment.id in loads:
                known.absent_s = None
            elif known.absent_s is None:  # after a store's restart, say: its earlier quiet time is void
                known.absent_s, known.quiet_s = now_s, None
        self._is_new = False

    def _splits(self, stream: _MeasuredStream, now_s: float) -> list[ScalingStep]:
        capacity = min(STREAM_MAX_SEGMENTS - len(stream.segments), SCALING_SEGMENTS_A_CHANGE)
        steps = []
        for segment in stream.segments:
            step = self._split(stream, segment, now_s, capacity)
            if step is not None:
                steps.append(step)
                capacity -= max(len(step.into) - 1, 0)
        return steps

    def _split(self, stream: _MeasuredStream, segment: EpochSegment, now_s: float, capacity: int) -> ScalingStep | None:
        profile, load, known = self.profile, stream.loads.get(segment.id), self._known[segment.id]
        rule = stream.hot_by(load)
        if load is None or rule is None:
            known.hot = None
            if stream.rate(load, profile.hot[0].window_s) < stream.target:
                self.hot_keys.pop(segment.id, None)
            return None
        newest = stream.rate(load, profile.wanted_s[0])
        before, known.rate = known.rate, newest
        is_moving = newest > profile.rising * before or before > profile.falling * newest
        if is_moving and known.unsteady < UNSTEADY_LOOKS:
            known.unsteady += 1
            return None
        known.unsteady = 0
        rests = known.by_change and now_s - known.seen_s < profile.rest_s
        if rests and newest <= profile.urgent * stream.target:
            return None
        rate = max(stream.rate(load, window_s) for window_s in profile.wanted_s)
        sample = sampled(load.keys, segment.low, segment.high)
        reason = stream.reason(load, rule)
        key = sample.heaviest()
        if key is not None and key.share * rate > stream.target:
            if key.position != known.hot:
                known.hot, known.hot_s = key.position, now_s
            stays = now_s - known.hot_s >= profile.stays_s
            return self._split_around(stream, segment, sample, rate, reason, capacity, stays=stays)
        known.hot = None
        if key is None and (segment.id in self.hot_keys or self._is_vain(stream, segment, rate)):
            return self._note_hot_key(
                stream, segment, None, rate, f"{reason}, and cutting it left all its load in one piece"
            )
        pieces = min(stream.pieces(rate), capacity + 1)
        ranges = cut(sample, pieces)
        if len(ranges) < 2 or (key is None and segment.high - segment.low < NARROWEST):
            return None
        self.hot_keys.pop(segment.id, None)
        where = "where its sampled keys divide its load"
        if key is None:
            where = "evenly, as no writer reported its keys lately"
            if len(self._blind) > STREAM_MAX_SEGMENTS:
                self._blind.clear()  # left over from rejected changes
            for piece in ranges:  # adopted when the piece is first seen
                self._blind[piece] = _KnownSegment(0.0, True, blind=known.blind + 1, of=(segment.low, segment.high))
        return stream.step("split", [segment], ranges, rate, f"{reason}: cut into {len(ranges)}, {where}")

    def _split_around(
        self,
        stream: _MeasuredStream,
        segment: EpochSegment,
        sample: Sampled,
        rate: float,
        reason: str,
        capacity: int,
        *,
        stays: bool,
    ) -> ScalingStep | None:
        """Handle a segment with a single key that exceeds the target. stays: the key has been hot for a while; passing
        hot keys mustn't leave a segment each."""
        key = sample.heaviest()
        assert key is not None
        others = (1 - key.share) * rate
        if others > (OTHERS_SHARE if stays else OTHERS_AT_ONCE) * stream.target:
            pieces = min(
                1 + max(1, math.ceil(others / (self.profile.share * stream.target))), stream.most, capacity + 1
            )
            ranges = around(sample, key, pieces)
            if len(ranges) > 1:
                why = f"{reason}: one key has {key.share:.0%}, so the others get their own segments"
                return stream.step("split", [segment], ranges, rate, why)
        why = f"{reason}: one key has {key.share:.0%}, and a key can't be divided"
        return self._note_hot_key(stream, segment, key, rate, why)

    def _note_hot_key(
        self, stream: _MeasuredStream, segment: EpochSegment, key: HotKey | None, rate: float, why: str
    ) -> ScalingStep | None:
        self.hot_keys[segment.id] = key
        return None if segment.id in self.logged else stream.step("hot-key", [segment], (), rate, why)

    def _is_vain(self, stream: _MeasuredStream, segment: EpochSegment, rate: float) -> bool:
        """Return whether repeated blind cuts have left nearly all load in this segment."""
        known = self._known[segment.id]
        others = 0.0
        for other in stream.within(*known.of):
            if other is not segment:
                others += stream.rate(stream.loads.get(other.id), self.profile.wanted_s[-1])
            if rate < VAIN_SHARE * (rate + others):
                known.blind, known.of = 0, (0.0, 0.0)
                return False
        return known.blind >= VAIN_GENERATIONS

    def _merges(self, stream: _MeasuredStream, splits: Sequence[ScalingStep], now_s: float) -> list[ScalingStep]:
        busy = {segment for step in splits for segment in step.segments if step.into}
        added = sum(len(step.into) - 1 for step in splits if step.into)
        spare = min(len(stream.segments) + added - max(stream.config.min_segments, 1), SCALING_SEGMENTS_A_CHANGE)
        steps: list[ScalingStep] = []
        run: list[EpochSegment] = []
        waits = False  # for a neighbour that can soon join the merge
        for segment in [*stream.segments, None]:
            remaining_s = math.inf
            if segment is not None and segment.id not in busy:
                remaining_s = self._cold_in_s(stream, segment, now_s)
            if segment is not None and remaining_s <= 0 and self._may_join(stream, run, segment, spare):
                run.append(segment)
                continue
            is_soon = remaining_s <= self.profile.together_s
            if len(run) > 1 and not (waits or (is_soon and remaining_s > 0)):
                rate, target = sum(stream.calm_rate(quiet) for quiet in run), stream.amount(stream.target)
                why = f"{len(run)} neighbours have been quiet: {stream.amount(rate)} in total, target {target}"
                steps.append(stream.step("merge", run, [(run[0].low, run[-1].high)], rate, why))
                spare -= len(run) - 1
            waits = is_soon and remaining_s > 0
            run = [segment] if segment is not None and remaining_s <= 0 else []
        return steps

    def _may_join(
        self, stream: _MeasuredStream, run: Sequence[EpochSegment], segment: EpochSegment, spare: int
    ) -> bool:
        if not run:
            return True
        joint = self.profile.joint
        together = sum(stream.calm_rate(s) for s in [*run, segment])
        return (
            len(run) < min(self.profile.merge_at_once, spare + 1)
            and run[-1].high == segment.low
            and (joint is None or together <= joint * stream.target)
        )

    def _cold_in_s(self, stream: _MeasuredStream, segment: EpochSegment, now_s: float) -> float:
        """Return for how long the segment must stay quiet to be merged; 0 or less if it can be merged now."""
        profile, known, load = self.profile, self._known[segment.id], stream.loads.get(segment.id)
        if known.absent_s is not None:
            is_quiet = stream.all_measured and now_s - max(known.absent_s, known.seen_s) >= profile.idle_s
        else:
            assert load is not None
            is_quiet = all(
                stream.rate(load, rule.window_s) < rule.times * stream.target and load.age_s >= rule.age_s
                for rule in profile.cold
            )
        if not is_quiet:
            known.quiet_s = None
            return math.inf
        if known.quiet_s is None:
            known.quiet_s = now_s
        rested_s = known.seen_s + profile.rest_s if known.by_change else now_s
        return max(rested_s, known.quiet_s + profile.quiet_s) - now_s


@dataclass(frozen=True, slots=True)
class _MeasuredStream:
    """A stream with the loads of its segments, measured in the unit of its target."""

    segments: Sequence[EpochSegment]
    config: StreamConfigRecord
    loads: Loads
    all_measured: bool
    profile: Profile

    @property
    def target(self) -> int:
        return self.config.target_rate

    @property
    def in_bytes(self) -> bool:
        return self.config.scale_type is ScaleType.KIB_PER_SECOND

    @property
    def unit(self) -> str:
        return "KiB/s" if self.in_bytes else "events/s"

    @property
    def most(self) -> int:
        return max(2, self.config.scale_factor)

    def amount(self, rate: float) -> str:
        return f"{rate:,.0f} {self.unit}"

    def rate(self, load: SegmentLoad | None, window_s: float) -> float:
        return mean(load, window_s, in_bytes=self.in_bytes) if load is not None else 0.0

    def within(self, low: float, high: float) -> Iterator[EpochSegment]:
        index = bisect_left(self.segments, low, key=lambda segment: segment.high)
        while index < len(self.segments) and self.segments[index].low < high:
            if self.segments[index].high > low:
                yield self.segments[index]
            index += 1

    def calm_rate(self, segment: EpochSegment) -> float:
        """Return the rate that decides a merge: over the longest window of the cold rules."""
        return self.rate(self.loads.get(segment.id), self.profile.cold[-1].window_s)

    def hot_by(self, load: SegmentLoad | None) -> RateRule | None:
        if load is None or load.age_s < self.profile.fresh_s:
            return None
        still = self.profile.still
        if still is not None and self.rate(load, still.window_s) <= still.times * self.target:
            return None
        for rule in self.profile.hot:
            if load.age_s >= rule.age_s and self.rate(load, rule.window_s) > rule.times * self.target:
                return rule
        return None

    def pieces(self, rate: float) -> int:
        count = rate / (self.profile.share * self.target)
        return min(max(2, math.ceil(count) if self.profile.round_up else int(count)), self.most)

    def reason(self, load: SegmentLoad, rule: RateRule) -> str:
        rate = self.rate(load, rule.window_s)
        times = f"{rate / self.target:,.1f} times its target of {self.amount(self.target)}"
        return f"{self.amount(rate)} over {rule.window_s:.0f} s, {times}"

    def step(
        self, kind: str, segments: Sequence[EpochSegment], into: Sequence[KeyRange], rate: float, why: str
    ) -> ScalingStep:
        return ScalingStep(kind, tuple(s.id for s in segments), tuple(into), rate, self.target, self.unit, why)
