"""The time index of segments, compared with a list of all appends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.limits import (
    EVENT_TIME_MAX,
    EVENT_TIME_MIN,
    MOMENTS_AT_ONCE,
    TIME_INDEX_BYTES,
    TIME_INDEX_MOST_MS,
    TIME_INDEX_MS,
    TIMES_INDEXED_AT_ONCE,
)
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.state import machine, time_index
from nadi.segmentstore.state import metadata as metadata_module
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.machine import StateCheckpoint, StateMachine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.records import FrameRef, SegmentKind, SegmentRecord
from nadi.segmentstore.tier1.log import LogAddress
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL, NO_TIMES, Moments, clock_of, earliest_of, moments_in, packed_stretches
from tests.segmentstore.harness import WallClock, open_segment, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
BEGIN_MS = 1_000_000
SEGMENT, SOURCE = 1, 2
CLOCK = clock_of("json s read_at")


class World:
    """A container's state without its log, which is a list of frames."""

    def __init__(self, folder: Path) -> None:
        self.metadata = ContainerMetadata(folder)
        self.state = StateMachine(self.metadata, 0.0)
        self.frames: list[bytes] = []
        self._checkpointed = 0
        self._under_way: StateCheckpoint | None = None

    @contextmanager
    def frame(self, now_ms: int) -> Iterator[FrameBuilder]:
        """Build one durable frame."""
        ref = FrameRef(self.state.sequence + 1, None, 0.0)
        frame = FrameBuilder(ref, now_ms, self.state, lambda _: 1 << 40)
        yield frame
        parts, _ = frame.finish()
        self.frames.append(b"".join(parts))
        ref.address = LogAddress(ref.sequence, 1, 0)
        self.state.sequence = ref.sequence
        if ref.live_bytes:
            self.state.frames[ref.sequence] = ref
        self.state.durable(frame.touched.values())

    def replay(self, frames: list[bytes]) -> None:
        for payload in frames:
            operations, head = op.decode_frame(payload)
            address = LogAddress(self.state.sequence + 1, 1, 0)
            ref = FrameRef(address.sequence, address, 0.0)
            for operation in operations:
                self.state.apply(operation, ref, head)
            if ref.live_bytes:
                self.state.frames[ref.sequence] = ref
            self.state.sequence = ref.sequence
        self.state.durable(self.state.record_cache.all())

    def begin_checkpoint(self) -> None:
        self._under_way = self.state.checkpoint()

    def checkpoint(self) -> None:
        """Finish the checkpoint in progress, or take one now."""
        checkpoint = self._under_way or self.state.checkpoint()
        self._under_way = None
        pending = [(record.id, added) for record, added in checkpoint.times]
        self.metadata.commit(checkpoint.changes, checkpoint.deleted, checkpoint.extents, (), pending)
        self.state.checkpointed(checkpoint)
        self._checkpointed = checkpoint.sequence
        self.state.evict_idle()

    def crash(self) -> None:
        """Keep only what checkpoints wrote, and the frames."""
        self._under_way = None
        after = self.frames[self._checkpointed :]
        self.state = StateMachine(self.metadata, 0.0)
        assert self.state.sequence == self._checkpointed
        self.replay(after)

    def index(self, segment: int) -> dict[int, int]:
        return dict(self.metadata.times(segment, ARRIVAL, 0)) | self.state.must(segment).times.of(ARRIVAL)

    def locate(self, at_ms: int, now_ms: int) -> int:
        return time_index.locate(self.metadata, self.state.must(SEGMENT), at_ms, now_ms)

    def close(self) -> None:
        self.metadata.close()


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        opened = World(Path(folder))
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Model:
    """The appends: (moment, offset, size), in order."""

    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    length: int = 0
    start: int = 0
    last_ms: int = BEGIN_MS
    sealed_ms: int | None = None

    def append(self, size: int, at_ms: int) -> None:
        self.last_ms = max(self.last_ms, at_ms)
        if size:
            self.pieces.append((self.last_ms, self.length, size))
        self.length += size

    def check(self, at_ms: int, found: int) -> None:
        """Check that the answer for a past moment skips no data, is near, and is a boundary."""
        assert self.start <= found <= self.length
        assert found in {self.start, self.length, *(offset for _, offset, _ in self.pieces)}
        assert all(offset >= found for moment, offset, _ in self.pieces if moment >= at_ms and offset >= self.start)
        early = [p for p in self.pieces if p[0] < at_ms and p[1] >= found and p[1] >= self.start]
        far = [p for p in early if p[0] <= at_ms - TIME_INDEX_MS]
        assert all(p[0] > at_ms - TIME_INDEX_MOST_MS for p in far)
        assert not far or sum(p[2] for p in early) < TIME_INDEX_BYTES
        if self.sealed_ms is not None and at_ms > max(self.sealed_ms, self.last_ms):
            assert found == self.length


def check_entries(live: World, model: Model) -> None:
    """Check that the entries of any range are those of the index, in pages, with the time of each piece."""
    record = live.state.must(SEGMENT)
    index = sorted(live.index(SEGMENT).items())
    offsets = [offset for _, offset, _ in model.pieces if offset >= model.start]
    for start in offsets:
        for end in {*offsets[-3:], start + 1, model.length}:
            for most in (1, 2, 1000):
                listed, is_last, at = list[time_index.Entry](), False, start
                while not is_last:
                    page, is_last = time_index.entries(live.metadata, record, ARRIVAL, at, end, most)
                    assert len(page) <= most
                    assert page or is_last
                    listed += page
                    at = listed[-1][1] if listed else at
                inside = [entry for entry in index if start < entry[1] < end]
                behind = [entry for entry in index if entry[1] >= end and entry[1] > start][:1]
                assert listed == (inside + behind if start < end else [])
    early = 0
    for moment, offset, size in model.pieces:
        if offset >= model.start:
            listed, _ = time_index.entries(live.metadata, record, ARRIVAL, offset, offset + 1, 1)
            listed_ms = listed[0][0] - 1 if listed else record.appended_ms
            assert moment <= listed_ms < moment + TIME_INDEX_MOST_MS
            assert listed_ms < moment + TIME_INDEX_MS or size < TIME_INDEX_BYTES
            assert listed_ms >= early
            early = listed_ms


step = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([0, 1, 100, 4_095, 4_096, 50_000])),
    st.tuples(st.just("append"), st.sampled_from([1, 100])),
    st.tuples(st.just("wait"), st.sampled_from([1, 400, 999, 1_000, 1_001, 9_999, 10_000, 60_000, 86_400_000])),
    st.tuples(st.just("wait"), st.sampled_from([-86_400_000, -50_000, -1])),
    st.tuples(st.just("merge"), st.sampled_from([0, 10, 5_000])),
    st.tuples(st.just("truncate"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["begin", "checkpoint", "tier2", "crash", "seal"]), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(step, max_size=40))
def test_moments_are_located_after_random_histories(steps: list[tuple[str, int]]) -> None:
    now_ms, model, went_back = BEGIN_MS, Model(), False
    answers: dict[int, int] = {}  # earlier answers by moment
    with pytest.MonkeyPatch.context() as patch, world() as live, world() as replayed:
        patch.setattr(machine, "RECORDS_IN_MEMORY", 0)
        with live.frame(now_ms) as frame:
            frame.emit(op.Create(SEGMENT, S, SegmentKind.STREAM, now_ms))
        sources = SOURCE
        for what, value in steps:
            match what:
                case "append" if model.sealed_ms is None:
                    with live.frame(now_ms) as frame:
                        frame.append(live.state.must(SEGMENT), [bytes(value)], value, 1, None, 0)
                        frame.emit(op.Attributes(SEGMENT, {bytes(16): 1}), live.state.must(SEGMENT))
                        frame.append(live.state.must(SEGMENT), [bytes(value)], value, 1, None, 0)
                    model.append(value, now_ms)
                    model.append(value, now_ms)
                case "wait":
                    now_ms, went_back = now_ms + value, went_back or value < 0
                case "merge" if model.sealed_ms is None:
                    with live.frame(now_ms) as frame:
                        frame.emit(op.Create(sources, f"{S}#transaction.{sources}", SegmentKind.STREAM, now_ms))
                        frame.append(live.state.must(sources), [bytes(value)], value, 1, None, 0)
                        source, target = live.state.must(sources), live.state.must(SEGMENT)
                        frame.emit(op.Merge(SEGMENT, sources, now_ms), target, source)
                    model.append(value, now_ms)
                    sources += 1
                case "truncate" if model.pieces:
                    offset = model.pieces[value % len(model.pieces)][1]
                    if offset > model.start:
                        with live.frame(now_ms) as frame:
                            frame.emit(op.Truncate(SEGMENT, offset), live.state.must(SEGMENT))
                        model.start = offset
                case "tier2":  # with its bytes in tier 2, the record may be evicted
                    extents = live.state.must(SEGMENT).extents
                    if extents:
                        first, end = extents[0].offset, extents[-1].end
                        with live.frame(now_ms) as frame:
                            chunk = op.ChunkStored(SEGMENT, first, end - first, f"chunk-{live.state.sequence}")
                            frame.emit(chunk, live.state.must(SEGMENT))
                    live.checkpoint()
                case "checkpoint":
                    live.checkpoint()
                case "crash":
                    live.crash()
                case "seal" if model.sealed_ms is None:
                    with live.frame(now_ms) as frame:
                        frame.emit(op.Seal(SEGMENT, now_ms), live.state.must(SEGMENT))
                    model.sealed_ms = now_ms
                case "begin":
                    live.checkpoint()
                    live.begin_checkpoint()
            edges = {moment + d for moment, _, _ in model.pieces[-8:] for d in (-1, 0, 1, 999, 1_000, 9_999, 10_000)}
            for at_ms in {*edges, now_ms, BEGIN_MS, 1, 0, -5}:
                if at_ms <= now_ms:
                    found = live.locate(at_ms, now_ms)
                    answers.setdefault(at_ms, found)
                    model.check(at_ms, found)
            if not went_back:
                for at_ms, answer in answers.items():
                    found = live.locate(at_ms, now_ms)
                    assert found == max(answer, model.start), "the answer for a moment is stable"
            in_order = [live.locate(at_ms, now_ms) for at_ms in sorted(answers) if at_ms <= now_ms]
            assert in_order == sorted(in_order)
            assert live.locate(max(now_ms, model.last_ms) + 1, now_ms) == model.length
        assert live.locate((1 << 63) - 1, now_ms) == model.length

        check_entries(live, model)

        replayed.replay(live.frames)
        one, other = live.state.must(SEGMENT), replayed.state.must(SEGMENT)
        assert (one.appended_ms, one.entered_ms, one.entered_offset) == (
            other.appended_ms,
            other.entered_ms,
            other.entered_offset,
        )
        kept = {moment: offset for moment, offset in live.index(SEGMENT).items() if offset > model.start}
        assert kept == {m: offset for m, offset in replayed.index(SEGMENT).items() if offset > model.start}
        live.checkpoint()
        live.checkpoint()
        assert not model.start or all(offset > model.start for _, offset in live.metadata.times(SEGMENT, ARRIVAL, 0))
        assert all(not list(live.metadata.times(gone, ARRIVAL, 0)) for gone in range(SOURCE, sources))


@dataclass
class Timed:
    """Events with times, and the ranges in which they were indexed: (offset, time or None), (start, end)."""

    events: list[tuple[int, int | None]] = field(default_factory=list)
    stretches: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0
    start: int = 0

    @property
    def until(self) -> int:
        return max(self.start, self.stretches[-1][1] if self.stretches else 0)

    def within(self, start: int, end: int) -> list[int]:
        return [time for at, time in self.events if start <= at < end and time is not None]

    def check(self, time: int, latest: int, earliest: int) -> None:
        """Check that no event is missed, and at most one range too many is included; truncated events may count."""
        assert all(when < time for when in self.within(self.start, latest))
        timed = [end for start, end in self.stretches if self.within(start, end)]
        for first, is_most in ((0, False), (self.start, True)):
            early = [end for end in timed if all(when < time for when in self.within(first, end))]
            if all(when < time for when in self.within(first, self.until)):
                early = [self.until]  # events without a time go with their neighbours
            most = max(self.start, early[-1] if early else 0)
            assert latest <= most if is_most else latest >= most
        if self.until < self.length:
            assert earliest == self.length
            return
        assert all(when >= time for when in self.within(earliest, self.length))
        for first, is_least in ((0, False), (self.start, True)):
            ends = [e for s, e in self.stretches if any(when < time for when in self.within(max(s, first), e))]
            least = max(self.start, ends[-1] if ends else 0)
            assert earliest >= least if is_least else earliest <= least


some_time = st.one_of(st.none(), st.integers(-5, 30), st.sampled_from([EVENT_TIME_MIN, EVENT_TIME_MAX]))
event_step: st.SearchStrategy[tuple[str, list[int | None]]] = st.one_of(
    st.tuples(st.just("write"), st.lists(some_time, min_size=1, max_size=6)),
    st.tuples(st.just("index"), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
    st.tuples(st.just("index"), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
    st.tuples(st.just("truncate"), st.lists(st.integers(0, 20), min_size=1, max_size=1)),
    st.tuples(st.sampled_from(["begin", "checkpoint", "tier2", "crash", "seal"]), st.just([])),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(event_step, max_size=30))
def test_event_times_are_located_in_any_order(steps: list[tuple[str, list[int | None]]]) -> None:
    model, sealed = Timed(), False
    with pytest.MonkeyPatch.context() as patch, world() as live:
        patch.setattr(machine, "RECORDS_IN_MEMORY", 0)
        with live.frame(BEGIN_MS) as frame:
            frame.emit(op.Create(SEGMENT, S, SegmentKind.STREAM, BEGIN_MS))
        for what, values in steps:
            record = live.state.must(SEGMENT)
            match what:
                case "write" if not sealed:
                    with live.frame(BEGIN_MS) as frame:
                        frame.append(record, [bytes(8 * len(values))], 8 * len(values), len(values), None, 0)
                    model.events += [(model.length + 8 * number, time) for number, time in enumerate(values)]
                    model.length += 8 * len(values)
                case "index":
                    stretches, at = list[tuple[int, int, int]](), model.until
                    assert time_index.indexed_to(live.metadata, record, CLOCK) == at
                    for count in values:
                        assert count is not None
                        end = min(at + 8 * count, model.length)
                        if end > at:
                            times = model.within(at, end)
                            stretches.append((end, *((min(times), max(times)) if times else NO_TIMES)))
                            model.stretches.append((at, end))
                            at = end
                    if stretches:
                        with live.frame(BEGIN_MS) as frame:
                            frame.emit(time_index.indexed(live.metadata, record, CLOCK, stretches), record)
                case "truncate" if model.events:
                    assert values[0] is not None
                    offset = model.events[values[0] % len(model.events)][0]
                    if offset > model.start:
                        with live.frame(BEGIN_MS) as frame:
                            frame.emit(op.Truncate(SEGMENT, offset), record)
                        model.start = offset
                case "tier2":
                    if record.extents:
                        first, end = record.extents[0].offset, record.extents[-1].end
                        with live.frame(BEGIN_MS) as frame:
                            frame.emit(
                                op.ChunkStored(SEGMENT, first, end - first, f"chunk-{live.state.sequence}"), record
                            )
                    live.checkpoint()
                case "checkpoint":
                    live.checkpoint()
                case "crash":
                    live.crash()
                case "seal" if not sealed:
                    with live.frame(BEGIN_MS) as frame:
                        frame.emit(op.Seal(SEGMENT, BEGIN_MS), record)
                    sealed = True
                case "begin":
                    live.checkpoint()
                    live.begin_checkpoint()
            record = live.state.must(SEGMENT)
            for time in (*range(-6, 32), EVENT_TIME_MIN, EVENT_TIME_MAX):
                latest = time_index.locate_event(live.metadata, record, CLOCK, time)
                earliest = time_index.locate_event(live.metadata, record, earliest_of(CLOCK), time)
                model.check(time, latest, earliest)
            check_listed(live.metadata, record)


def check_listed(metadata: ContainerMetadata, record: SegmentRecord) -> None:
    """Check that listed entries, in one page or many, equal located ones."""
    whole, every = (record.start_offset, 1 << 62), MOMENTS_AT_ONCE
    for clock in (CLOCK, earliest_of(CLOCK)):
        listed, is_last = time_index.entries(metadata, record, clock, *whole, every)
        assert is_last
        pages, at = list[tuple[int, int]](), record.start_offset
        while page := time_index.entries(metadata, record, clock, at, whole[1], 1)[0]:
            pages += page
            at = page[0][1]
        assert pages == listed == sorted(listed)
        if clock == CLOCK or time_index.indexed_to(metadata, record, CLOCK) == record.length:
            for time, offset in listed[:-1] if clock == CLOCK else listed:
                assert time_index.locate_event(metadata, record, clock, time + clock % 2) == offset


def test_the_index_is_sparse() -> None:
    """A fast writer gets an entry a second, a slow one every ten seconds, an idle one none."""
    with world() as live:
        with live.frame(BEGIN_MS) as frame:
            frame.emit(op.Create(SEGMENT, S, SegmentKind.STREAM, BEGIN_MS))
        now_ms = BEGIN_MS
        for size, every_ms, seconds, at_most in ((1_000_000, 10, 20, 21), (10, 100, 100, 11), (1, 60_000, 600, 11)):
            before = len(live.index(SEGMENT))
            for _ in range(seconds * 1000 // every_ms):
                now_ms += every_ms
                with live.frame(now_ms) as frame:
                    frame.append(live.state.must(SEGMENT), [b""], size, 1, None, 0)
                    frame.append(live.state.must(SEGMENT), [b""], size, 1, None, 0)
            assert at_most - 3 <= len(live.index(SEGMENT)) - before <= at_most


def test_a_large_truncation_is_cleared_up_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "TIME_INDEX_TRIM_ENTRIES", 10)
    with world() as live:
        with live.frame(BEGIN_MS) as frame:
            frame.emit(op.Create(SEGMENT, S, SegmentKind.STREAM, BEGIN_MS))
        for number in range(36):
            with live.frame(BEGIN_MS + number * 20_000) as frame:
                frame.append(live.state.must(SEGMENT), [b"12345678"], 8, 1, None, 0)
        live.checkpoint()
        assert len(list(live.metadata.times(SEGMENT, ARRIVAL, 0))) == 35
        with live.frame(BEGIN_MS + 800_000) as frame:
            frame.emit(op.Truncate(SEGMENT, 8 * 30), live.state.must(SEGMENT))
        left = []
        for _ in range(4):
            live.checkpoint()
            left.append(len(list(live.metadata.times(SEGMENT, ARRIVAL, 0))))
            live.state.mark(live.state.must(SEGMENT))
            assert live.locate(BEGIN_MS + 1, BEGIN_MS + 800_000) == 8 * 30
            assert live.locate(BEGIN_MS + 32 * 20_000, BEGIN_MS + 800_000) == 8 * 32
        assert left == [25, 15, 5, 5]


def test_tables_have_no_time_index() -> None:
    record = SegmentRecord(1, "t", SegmentKind.TABLE, 0)
    record.length = 1 << 20
    time_index.note(record, 1 << 40)
    assert record.times.is_stored


async def test_a_day_ago_over_the_wire(tmp_path: Path) -> None:
    day_ms, now = 24 * 3600 * 1000, [BEGIN_MS]

    async def located(at_ms: int, segment: str = S) -> tuple[int, bool]:
        reply = await peer.ask(wire.LocateMoment(7, segment, at_ms, 0, ""))
        assert isinstance(reply, wire.MomentLocated), reply
        assert (reply.request_id, reply.segment) == (7, segment)
        return reply.offset, reply.is_sealed

    async with open_segment(tmp_path, S, runtime=WallClock(lambda: now[0])) as (_, peer):
        await peer.append([b"first"], 1)
        now[0] += day_ms
        await peer.append([b"second"], 2)
        now[0] += day_ms
        assert await located(BEGIN_MS) == (0, False)
        assert await located(now[0] - day_ms) == (13, False)
        assert await located(now[0]) == (27, False)
        await peer.ask(wire.SealSegment(1, S, ""))
        now[0] += day_ms
    async with open_store(tmp_path, 1, runtime=WallClock(lambda: now[0])) as (_, peer):
        assert await located(BEGIN_MS) == (0, False)
        assert await located(BEGIN_MS + TIME_INDEX_MOST_MS - 1) == (0, False), "few bytes arrived, so it is near enough"
        assert await located(BEGIN_MS + TIME_INDEX_MOST_MS) == (13, False)
        assert await located(BEGIN_MS + day_ms) == (13, False)
        assert await located(BEGIN_MS + 2 * day_ms) == (27, False), "it was sealed in this millisecond"
        assert await located(BEGIN_MS + 2 * day_ms + 1) == (27, True)
        await peer.ask(wire.TruncateSegment(1, S, 27, ""))
        assert await located(BEGIN_MS) == (27, False)
        assert isinstance(await peer.ask(wire.LocateMoment(7, S + "none", 1, 0, "")), wire.NoSuchSegment)


async def test_moments_over_the_wire(tmp_path: Path) -> None:
    now = [BEGIN_MS]

    async def listed(start: int, end: int) -> Moments:
        reply = await peer.ask(wire.ListMoments(7, S, start, end, ""))
        assert isinstance(reply, wire.MomentsListed), reply
        return moments_in(reply)

    async with open_segment(tmp_path, S, runtime=WallClock(lambda: now[0])) as (_, peer):
        for number in range(MOMENTS_AT_ONCE + 3):
            await peer.append([b"12"], number + 1)
            now[0] += TIME_INDEX_MOST_MS
        first = await listed(0, 1 << 62)
        assert (len(first.offsets), first.is_last, first.start) == (MOMENTS_AT_ONCE, False, 0)
        rest = await listed(int(first.offsets[-1]), 1 << 62)
        assert (len(rest.offsets), rest.is_last, rest.appended_ms) == (2, True, now[0] - TIME_INDEX_MOST_MS)
        assert first.moments[0] == BEGIN_MS + TIME_INDEX_MOST_MS
        await peer.ask(wire.TruncateSegment(1, S, 100, ""))
        some = await listed(0, 101)
        assert (some.start, some.offsets.tolist()) == (100, [110])
        for start, end in ((5, 5), (9, 5), (-1, -1), (1 << 62, (1 << 63) - 1)):
            assert not len((await listed(start, end)).offsets)


async def test_invalid_event_times_are_refused(tmp_path: Path) -> None:
    def packed(*stretches: tuple[int, int, int]) -> bytes:
        return b"".join(number.to_bytes(8, signed=True) for stretch in stretches for number in stretch)

    async def until(start: int, stretches: bytes, clock: int = CLOCK) -> int:
        reply = await peer.ask(wire.IndexTimes(7, S, clock, start, stretches, ""))
        assert isinstance(reply, wire.TimesIndexed), reply
        return reply.until

    async with open_segment(tmp_path, S) as (_, peer):
        await peer.append([b"12345678", b"12345678"], 1)
        end = 2 * 16
        assert await until(0, b"") == 0
        for stretches in (
            packed((end + 1, 1, 2)),
            packed((16, 2, 1)),
            packed((16, 1, 2), (16, 1, 2)),
            packed((16, 1, 2), (8, 1, 2)),
            packed((0, 1, 2)),
            packed((16, 1, EVENT_TIME_MAX + 1)),
            packed((16, EVENT_TIME_MIN - 1, 1)),
            packed((16, 1, 2))[:-1],
            packed(*((16 + number, 1, 2) for number in range(TIMES_INDEXED_AT_ONCE + 1))),
        ):
            reply = await peer.ask(wire.IndexTimes(7, S, CLOCK, 0, stretches, ""))
            assert not isinstance(reply, wire.TimesIndexed), reply
        for clock in (ARRIVAL, 1, -1, -2, CLOCK + 1, -(1 << 63)):
            reply = await peer.ask(wire.IndexTimes(7, S, clock, 0, packed((16, 1, 2)), ""))
            assert not isinstance(reply, wire.TimesIndexed), reply
            if clock not in (ARRIVAL, CLOCK + 1):
                reply = await peer.ask(wire.LocateMoment(7, S, 1, clock, ""))
                assert not isinstance(reply, wire.MomentLocated), reply
        assert await until(16, packed((end, 1, 2))) == 0, "earlier events aren't indexed"
        assert await until(0, packed((16, 1, 2), (end, 5, 6))) == end
        assert await until(0, packed((end, 1, 9))) == end
        for clock, expected_moments in ((CLOCK, [(3, 16), (7, end)]), (earliest_of(CLOCK), [(1, 16), (5, end)])):
            reply = await peer.ask(wire.ListMoments(7, S, 0, end, "", clock))
            assert isinstance(reply, wire.MomentsListed)
            listed = moments_in(reply)
            assert list(zip(listed.moments.tolist(), listed.offsets.tolist(), strict=True)) == expected_moments
        assert isinstance(await peer.ask(wire.ListMoments(7, S, 0, end, "", -2)), wire.ErrorMessage)
        for time, latest, earliest in ((1, 0, 0), (2, 0, 16), (3, 16, 16), (6, 16, end), (7, end, end)):
            for clock, expected in ((CLOCK, latest), (earliest_of(CLOCK), earliest)):
                reply = await peer.ask(wire.LocateMoment(7, S, time, clock, ""))
                assert isinstance(reply, wire.MomentLocated)
                assert (reply.offset, reply.is_sealed) == (expected, False)


@pytest.mark.parametrize("clock", [1, 3, -1, -2, -(1 << 63)])
async def test_a_clock_that_events_cannot_have_is_refused(tmp_path: Path, clock: int) -> None:
    async with open_segment(tmp_path, S) as (_, peer):
        await peer.append([b"12"], 1)
        for stretches in (b"", b"x", packed_stretches(np.array([10]), np.array([1]), np.array([2]))):
            assert isinstance(await peer.ask(wire.IndexTimes(7, S, clock, 0, stretches, "")), wire.ErrorMessage)
        for at in (-(1 << 63), (1 << 63) - 1):
            found = await peer.ask(wire.LocateMoment(7, S, at, clock, ""))
            assert found == wire.MomentLocated(7, S, 10, False) if clock == 3 else isinstance(found, wire.ErrorMessage)
        await peer.append([b"34"], 2)


async def test_no_time_is_earlier_than_the_first(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (_, peer):
        await peer.append([b"12"], 1)
        stretch = packed_stretches(np.array([10]), np.array([1]), np.array([2]))
        assert await peer.ask(wire.IndexTimes(7, S, 2, 0, stretch, "")) == wire.TimesIndexed(7, S, 10)
        assert await peer.ask(wire.LocateMoment(7, S, -(1 << 63), 3, "")) == wire.MomentLocated(7, S, 0, False)


def test_event_times_count_towards_the_frame_size() -> None:
    entries = [(EVENT_TIME_MIN + number, (1 << 62) + number) for number in range(TIMES_INDEXED_AT_ONCE)]
    operation = op.AddIndexTimes(1 << 40, 1 << 62, 1 << 62, entries, entries, EVENT_TIME_MIN)
    assert len(op.encode_head([operation])) <= op.most_bytes(operation)
