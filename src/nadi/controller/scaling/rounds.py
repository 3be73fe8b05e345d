"""Scaling rounds: every few seconds, evaluates streams that have load or more segments than they need.

`scaling.decisions` decides; the ordinary scale workflow carries decisions out, provided that the stream hasn't changed
meanwhile. Deciders keep their state in memory: after a restart their waiting times start over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from msgspec.structs import replace

from nadi import limits
from nadi.controller.engine.workflows import Schedule, Workflows
from nadi.controller.scaling.decisions import Decision, HotKey, Profile, ScalingDecider, ScalingStep
from nadi.controller.state.history import EpochHistory
from nadi.controller.state.metadata import ControllerMetadata, StreamName
from nadi.controller.state.records import AnyWork, ScalingEntry, StreamRecord, StreamState
from nadi.controller.state.segments import ABSENT
from nadi.controller.stream_rates import by_stream
from nadi.controller.workflows import scale
from nadi.errors import ConditionFailedError, ContentionError, NotFoundError, StreamSealedError
from nadi.limits import SCALING_LOG_ENTRIES
from nadi.model.load import ScaleType, SegmentLoad
from nadi.naming import INTERNAL_SCOPE
from nadi.throttled_log import ProblemLog

_TRIES = 5  # after an attempt that got no reply


async def log_decisions(metadata: ControllerMetadata, name: StreamName, entries: Sequence[ScalingEntry]) -> None:
    """Add entries to the stream's scaling log, all or none; numbers them and retains the latest SCALING_LOG_ENTRIES. An
    entry is written before its change starts: so every change has an entry, but an entry may describe a change that
    never happened, which `is_done` detects."""
    table = metadata.scalings(name)
    for _ in range(_TRIES):
        ring = {_slot(record.value): record async for _, record in table.scan()}
        first = 1 + max((record.value.number for record in ring.values()), default=0)
        numbered = [replace(entry, number=first + i) for i, entry in enumerate(entries)][-SCALING_LOG_ENTRIES:]
        versions = [ring[slot].version if (slot := _slot(entry)) in ring else ABSENT for entry in numbered]
        changes = [(f"{_slot(entry)}", entry, version) for entry, version in zip(numbered, versions, strict=True)]
        with suppress(ConditionFailedError):
            await table.put_all(changes, cached=False)
            return
    raise ContentionError(f"the scaling log of {name}", _TRIES)


async def logged_decisions(metadata: ControllerMetadata, name: StreamName) -> list[ScalingEntry]:
    """Return the entries of the stream's scaling log, oldest first, without duplicates from repeated attempts."""
    entries = [record.value async for _, record in metadata.scalings(name).scan()]
    unique = {
        (entry.epoch, entry.segments) if entry.epoch >= 0 else entry.number: entry
        for entry in sorted(entries, key=attrgetter("number"))
    }
    return sorted(unique.values(), key=attrgetter("number"))


def is_done(entry: ScalingEntry, history: EpochHistory) -> bool:
    if entry.epoch < 0 or 0 < entry.epoch <= history.first:  # no change was intended, or its epoch is forgotten
        return True
    return entry.epoch <= history.newest and {*entry.segments} <= {*history.change(entry.epoch).removed}


def _slot(entry: ScalingEntry) -> int:
    return entry.number % SCALING_LOG_ENTRIES


log = logging.getLogger(__name__)

_FIXED_COST = 4  # fixed cost of evaluating a stream, in segments
_NO_LOADS: Mapping[int, SegmentLoad] = {}


@dataclass
class ScalingCounts:
    """Decisions since this controller started: segments split, merges, and hot keys found."""

    splits: int = 0
    merges: int = 0
    hot_keys: int = 0


class ScalingRounds:
    def __init__(self, flow: Workflows, profile: Profile) -> None:
        self.profile, self.counts = profile, ScalingCounts()
        self._flow = flow
        self._deciders: dict[str, ScalingDecider] = {}
        self._watched: set[str] = set()  # streams with more segments than their minimum
        self._changing: set[str] = set()
        self._all: AsyncIterator[tuple[StreamName, StreamRecord]] | None = None
        self._continue_after = ""
        self._loads_due_s = 0.0
        self._problems = ProblemLog(log, "scaling of %s waits for the next round")

    def start(self, schedule: Schedule) -> None:
        schedule.start("scalings", self.profile.period_s, self.round)
        schedule.start("scans for streams to merge", limits.SCALING_SCAN_S, self.find_idle)

    def hot_keys(self, name: StreamName) -> Mapping[int, HotKey | None]:
        """Return the stream's segments with a hot key; the key is None if unknown."""
        decider = self._deciders.get(name.key)
        return decider.hot_keys if decider is not None else {}

    async def round(self) -> None:
        clock = self._flow.clock
        began_s = clock.monotonic()
        if began_s < self._loads_due_s:
            return
        measured, all_measured = await self._flow.segments.elastic_loads()
        loads = {
            name.key: segment_loads
            for name, segment_loads in by_stream(measured).items()
            if name.scope != INTERNAL_SCOPE and not name.stream.startswith("_")
        }
        now_s = clock.monotonic()
        self._loads_due_s = began_s + (now_s - began_s) / limits.SCALING_MEASURING_SHARE
        keys = sorted({*loads, *self._watched})
        self._deciders = {
            key: decider for key, decider in self._deciders.items() if key in loads or key in self._watched
        }
        if len(keys) > limits.SCALING_STREAMS_A_ROUND:
            later = [key for key in keys if key > self._continue_after]
            keys = [*later, *keys][: limits.SCALING_STREAMS_A_ROUND]
            self._continue_after = keys[-1]
        cost = 0  # in this turn
        for key in keys:
            if key in self._changing:
                continue
            cost += await self._evaluate(StreamName.of(key), loads.get(key, _NO_LOADS), now_s, all_measured)
            if cost >= limits.SCALING_SEGMENTS_A_TURN:
                await asyncio.sleep(0)
                cost = 0

    async def _evaluate(
        self, name: StreamName, loads: Mapping[int, SegmentLoad], now_s: float, all_measured: bool
    ) -> int:
        """Evaluate a stream; return the cost, in segments."""
        record = await self._flow.metadata.find_stream(name)
        if record is None or record.value.state is not StreamState.ACTIVE or not _is_elastic(record.value):
            self._watched.discard(name.key)
            self._deciders.pop(name.key, None)
            return _FIXED_COST
        stream = record.value
        decider = self._deciders.get(name.key)
        if decider is None:
            decider = self._deciders[name.key] = ScalingDecider(self.profile)
        try:
            decision = decider.evaluate(stream.segments, stream.config, loads, now_s, all_measured=all_measured)
            self._watch(name, stream)
            if decision.steps and len(self._changing) < limits.SCALING_AT_ONCE:
                self._changing.add(name.key)
                self._flow.tasks.spawn(self._carry_out(name, stream, decider, decision))
        except Exception as error:
            self._problems.report(name.key, error)
        return _FIXED_COST + len(stream.segments)

    def _watch(self, name: StreamName, stream: StreamRecord) -> None:
        """Remember whether the stream has more segments than its minimum, for when its load ends."""
        if len(stream.segments) <= stream.config.min_segments:
            self._watched.discard(name.key)
        elif len(self._watched) < limits.SCALING_WATCHED:
            self._watched.add(name.key)

    async def _carry_out(
        self, name: StreamName, stream: StreamRecord, decider: ScalingDecider, decision: Decision
    ) -> None:
        """Log the decision and change the stream accordingly. A hot key changes nothing."""
        changes = [step for step in decision.steps if step.into]
        hot_keys = [step for step in decision.steps if not step.into]

        async def begin() -> AnyWork | None:
            current = await self._flow.metadata.open_stream(name)
            if current.config != stream.config or current.segments != stream.segments:
                return None  # policy or segments changed: the next round evaluates it again
            work = await scale.begin(self._flow, name, decision.sealed, decision.ranges, 0) if changes else None
            entries = [self._entry(step, -1) for step in hot_keys if step.segments[0] not in decider.logged]
            if work is not None:
                entries += [self._entry(step, work.change.epoch) for step in changes]
            await log_decisions(self._flow.metadata, name, entries)
            for step in hot_keys:
                (segment,) = step.segments
                if segment not in decider.logged:
                    decider.logged.add(segment)
                    self.counts.hot_keys += 1
                    log.warning("%s has a hot key in segment %d: %s", name, segment, step.why)
            return work

        try:
            if await self._flow.run(name, begin) is not None:
                for step in changes:
                    self.counts.splits += len(step.into) > 1
                    self.counts.merges += len(step.into) == 1
                    log.info("%s: %s of %s: %s", name, step.kind, ", ".join(map(str, step.segments)), step.why)
            self._problems.settled(name.key)
        except (NotFoundError, StreamSealedError):
            pass  # meanwhile
        except Exception as error:
            self._problems.report(name.key, error)
        finally:
            self._changing.discard(name.key)

    def _entry(self, step: ScalingStep, epoch: int) -> ScalingEntry:
        measured, now_ms = (step.rate, step.target, step.unit, step.why), self._flow.clock.now_ms()
        return ScalingEntry(0, now_ms, step.kind, epoch, step.segments, step.into, *measured, self.profile.name)

    async def find_idle(self) -> None:
        """Scan the next streams for those with more segments than they need, though without load."""
        for _ in range(limits.SCALING_SCAN_STREAMS):
            if self._all is None:
                self._all = self._flow.metadata.user_streams(limits.SCALING_SCAN_PAGE)
            try:
                item = await anext(self._all, None)
            except BaseException:
                self._all = None
                raise
            if item is None:
                self._all = None
                return
            name, stream = item
            if stream.state is StreamState.ACTIVE and _is_elastic(stream):
                self._watch(name, stream)


def _is_elastic(stream: StreamRecord) -> bool:
    return stream.config.scale_type is not ScaleType.FIXED and stream.config.target_rate > 0
