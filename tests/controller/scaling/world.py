"""A simulated stream whose load is a function of key and time, measured like in the store; decisions take effect at
once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from nadi.controller.scaling.decisions import Decision, Profile, ScalingDecider
from nadi.controller.state.records import EpochSegment, StreamConfigRecord
from nadi.model.keyspace import equal_ranges
from nadi.model.load import WINDOWS_S, KeySample, ScaleType, SegmentLoad
from nadi.naming import segment_id

EVENTS = ScaleType.EVENTS_PER_SECOND
SAMPLES = 512  # per segment


class Keys:
    """Keys that share a rate: their positions, and their total rate by time since the start."""

    def __init__(self, positions: Sequence[float], total: Callable[[float], float]) -> None:
        self.positions, self.total = sorted(positions), total

    def inside(self, segment: EpochSegment) -> list[float]:
        return self.positions[bisect_left(self.positions, segment.low) : bisect_left(self.positions, segment.high)]

    def rate(self, segment: EpochSegment, at_s: float) -> float:
        """Return the rate of the keys in the segment."""
        first, last = (bisect_left(self.positions, edge) for edge in (segment.low, segment.high))
        return self.total(at_s) * (last - first) / len(self.positions)


class Wandering(Keys):
    """A single key at a time, which changes every `every_s` seconds."""

    def __init__(self, rate: float, every_s: float) -> None:
        super().__init__([], lambda _: rate)
        self.every_s, self.at_s = every_s, 0.0

    def inside(self, segment: EpochSegment) -> list[float]:
        position = Random(int(self.at_s / self.every_s)).random()
        return [position] if segment.low <= position < segment.high else []

    def rate(self, segment: EpochSegment, at_s: float) -> float:
        self.at_s = at_s
        return self.total(at_s) if self.inside(segment) else 0.0


class Means:
    """A segment's rates as measured by the store: weighted over its age."""

    def __init__(self, began_s: float) -> None:
        self.began_s = self.last_s = self.active_s = began_s
        self.means = [0.0] * len(WINDOWS_S)

    def fold(self, rate: float, now_s: float) -> None:
        passed, age = now_s - self.last_s, now_s - self.began_s
        for index, window in enumerate(WINDOWS_S):
            weight = math.expm1(-passed / window) / math.expm1(-age / window)
            self.means[index] += weight * (rate - self.means[index])
        self.last_s = now_s
        if rate:
            self.active_s = now_s


@dataclass
class World:
    """sampled: whether writers report their keys; samples: number of samples per segment."""

    keys: Sequence[Keys]
    profile: Profile
    config: StreamConfigRecord
    sampled: bool = True
    samples: int = SAMPLES
    noise: float = 0.0
    seed: int = 1
    segments: list[EpochSegment] = field(default_factory=list)
    history: list[tuple[float, Decision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now_s, self.epoch = 1_000.0, 0
        self.random, self.decider = Random(self.seed), ScalingDecider(self.profile)
        self.rates: dict[int, Means] = {}
        if not self.segments:
            tiles = enumerate(equal_ranges(self.config.min_segments))
            self.segments = [EpochSegment(segment_id(number, 0), low, high) for number, (low, high) in tiles]

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Run until that time has passed or a condition holds."""
        end = self.now_s + seconds
        while self.now_s < end and not until():
            self.now_s += self.profile.period_s
            self._count()
            self._look()

    def rate(self, segment: EpochSegment) -> float:
        """Return its true current rate."""
        return sum(keys.rate(segment, self.now_s - 1_000) for keys in self.keys)

    def _count(self) -> None:
        for segment in self.segments:
            count = self.rate(segment) * (1 + self.random.uniform(-self.noise, self.noise))
            rates = self.rates.get(segment.id)
            if rates is None:
                if not count:
                    continue
                rates = self.rates[segment.id] = Means(self.now_s - self.profile.period_s)
            rates.fold(count, self.now_s)
            if self.now_s - rates.active_s > 1_200:
                del self.rates[segment.id]

    def _look(self) -> None:
        loads = {s.id: self._load(s, self.rates[s.id]) for s in self.segments if s.id in self.rates}
        decision = self.decider.evaluate(self.segments, self.config, loads, self.now_s)
        if decision.steps:
            self.history.append((self.now_s - 1_000, decision))
        self.decider.logged |= {step.segments[0] for step in decision.steps if not step.into}
        if decision.sealed:
            self._change(decision)

    def _load(self, segment: EpochSegment, rates: Means) -> SegmentLoad:
        means = tuple(rates.means)
        keys = None
        if self.sampled and max(means[:2]) > 0.9 * self.config.target_rate:  # else no samples are requested
            chosen: list[float] = []
            for group in self.keys:
                if (inside := group.inside(segment)) and group.rate(segment, self.now_s - 1_000):
                    share = group.rate(segment, self.now_s - 1_000) / self.rate(segment)
                    chosen += self.random.choices(inside, k=round(self.samples * share))
            keys = KeySample(tuple(chosen), (1.0,) * len(chosen))
        return SegmentLoad(
            str(segment.id), self.now_s - rates.began_s, means, tuple(100 * mean for mean in means), keys
        )

    def _change(self, decision: Decision) -> None:
        self.epoch += 1
        sealed, first = set(decision.sealed), 1 + max(s.id & 0xFFFFFFFF for s in self.segments)
        kept = [s for s in self.segments if s.id not in sealed]
        added = [EpochSegment(segment_id(first + i, self.epoch), *r) for i, r in enumerate(sorted(decision.ranges))]
        self.segments = sorted([*kept, *added], key=lambda s: s.low)
        edges = [s.low for s in self.segments] + [1.0]
        assert edges[0] == 0.0
        assert all(s.high == edge for s, edge in zip(self.segments, edges[1:], strict=True)), "the key space is tiled"
        assert all(s.low < s.high for s in self.segments)
        for gone in sealed:
            self.rates.pop(gone, None)

    def kinds(self, since_s: float = 0.0) -> list[str]:
        return [step.kind for at, decision in self.history if at >= since_s for step in decision.steps]

    def times(self, kind: str) -> list[float]:
        return [at for at, decision in self.history if any(step.kind == kind for step in decision.steps)]


def even(count: int, total: Callable[[float], float], seed: int = 5) -> Keys:
    """Return keys at random positions."""
    random = Random(seed)
    return Keys([random.random() for _ in range(count)], total)


def policy(target: int, factor: int = 16, least: int = 1) -> StreamConfigRecord:
    return StreamConfigRecord(EVENTS, target, factor, least)
