"""The cut at a point in time, over a real segment store and a manual clock, compared with the appends."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.history import Cut
from nadi.controller.state.records import StreamConfigRecord, StreamState, TxnState
from nadi.errors import StreamNotFoundError
from nadi.limits import TIME_INDEX_BYTES, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.framing import frame_events
from nadi.model.load import ScaleType
from nadi.naming import segment_number, transaction_segment_name
from nadi.segmentstore.recovery import storage
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.wire import commands as wire
from tests.controller.support import STREAM, FakeClock, until
from tests.segmentstore.harness import Peer, WallClock, connect

pytestmark = pytest.mark.uvloop

DAY_MS = 24 * 3600 * 1000
PATIENCE = 10_000_000  # rounds: the store uses a real disk


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FileLog", SimpleNamespace(open=partial(FileLog.open, file_bytes=1 << 20)))


@dataclass
class World:
    """A stream, and everything ever appended to it: (time, segment, offset, size)."""

    controller: Controller
    store: SegmentStore
    peer: Peer
    clock: FakeClock
    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    writers: int = 0

    async def write(self, name: str, events: list[bytes]) -> int:
        self.writers += 1
        writer = self.writers.to_bytes(16, "big")
        await self.peer.setup(name, writer)
        reply = await self.peer.append(events, len(events), writer)
        assert isinstance(reply, wire.DataAppended), reply
        return len(frame_events(events))

    def note(self, segment: int, size: int) -> None:
        offset = self.lengths.get(segment, 0)
        self.pieces.append((self.clock.now_ms(), segment, offset, size))
        self.lengths[segment] = offset + size

    async def append(self, segment: int, *events: bytes) -> None:
        self.note(segment, await self.write(STREAM.segment(segment), list(events)))

    async def current(self) -> list[int]:
        return [segment.id for segment in await self.controller.current_segments(STREAM)]

    async def scale(self, sealed: list[int], ranges: list[tuple[float, float]]) -> None:
        work = await self.controller.scale(STREAM, sealed, ranges)
        await until(lambda: self.controller.is_scaled(STREAM, work.change.epoch - 1), PATIENCE)

    async def commit(self, txn_id: int) -> None:
        await self.controller.transactions.commit(STREAM, txn_id)

        async def done() -> bool:
            return await self.controller.transactions.state(STREAM, txn_id) is TxnState.COMMITTED

        await until(done, PATIENCE)

    async def at(self, moment_ms: int) -> Cut:
        return await self.controller.cut_at(STREAM, moment_ms)

    async def lies_before(self, cut: Cut) -> Callable[[int, int], bool]:
        """Return a predicate for offsets before the cut."""
        history = await self.controller.history(STREAM)
        assert history.is_valid_cut(cut)

        def before(segment: int, offset: int) -> bool:
            if segment in cut:
                return offset < cut[segment]
            own, others = history.segments[segment], [history.segments[other] for other in cut]
            keys = {own.low, *(o.low for o in others if own.low < o.low < own.high)}
            sides = {segment < min(o.id for o in others if o.low <= key < o.high) for key in keys}
            assert len(sides) == 1, "a segment is before a cut with all its keys or with none"
            return sides == {True}

        return before


@asynccontextmanager
async def world(folder: Path, segments: int = 2) -> AsyncIterator[World]:
    clock = FakeClock()
    store = SegmentStore(folder, 2, runtime=WallClock(clock.now_ms))
    await store.start()
    peer = await connect(await store.listen("127.0.0.1", 0))
    address = ("127.0.0.1", 1)
    controller = Controller(store.exchange, clock=clock, endpoint_of=lambda segment: address, rpc_endpoint=address)
    await controller.start()
    try:
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, StreamConfigRecord(min_segments=segments))
        await controller.update_stream(STREAM, StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, 100, 2, 1))
        clock.jump(60_000)
        yield World(controller, store, peer, clock)
    finally:
        await controller.stop()
        peer.close()
        await store.close()


async def test_head_tail_and_days_between(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        begin = w.clock.now_ms()
        for _ in range(3):
            await w.append(0, b"12345678")
            w.clock.jump(DAY_MS)
        assert await w.at(1) == await w.at(begin) == {0: 0, 1: 0}
        for day in range(1, 3):
            assert await w.at(begin + day * DAY_MS) == {0: 16 * day, 1: 0}
            assert await w.at(begin + (day - 1) * DAY_MS + TIME_INDEX_MOST_MS) == {0: 16 * day, 1: 0}
        assert await w.at(w.clock.now_ms()) == {0: 48, 1: 0}
        await w.append(1, b"1234")
        assert await w.at(w.clock.now_ms()) == {0: 48, 1: 0}
        assert await w.at(w.clock.now_ms() + 1) == await w.at((1 << 63) - 1) == {0: 48, 1: 12}, "the tail"
        await w.controller.truncate_stream(STREAM, {0: 32, 1: 0})
        assert await w.at(begin + DAY_MS) == await w.controller.head(STREAM) == {0: 32, 1: 0}
        await w.controller.seal_stream(STREAM)
        assert (await w.controller.stream(STREAM)).state is StreamState.SEALED
        w.clock.jump(DAY_MS)
        assert await w.at(begin + DAY_MS) == {0: 32, 1: 0}
        assert await w.at(w.clock.now_ms()) == {0: 48, 1: 12}
        with pytest.raises(StreamNotFoundError):
            await w.controller.cut_at(STREAM._replace(stream="none"), 1)


async def test_while_a_scale_seals_its_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments are merged; between their seals, events go to one of them and to the new one."""

    async with world(tmp_path) as w:
        begin = w.clock.now_ms()
        await w.append(0, b"a0")
        await w.append(1, b"b0")
        w.clock.jump(DAY_MS)
        seal = w.controller._flow.segments.seal
        turn: list[int] = []

        async def slow_seal(name: str) -> None:
            if name == STREAM.segment(1):
                await until(lambda: _true(bool(turn)), PATIENCE)
            await seal(name)
            if name == STREAM.segment(0):
                w.clock.jump(DAY_MS)
                await w.append(1, b"b1")  # it still takes events
                await w.append(merged, b"a1")
                w.clock.jump(DAY_MS)
                turn.append(1)

        monkeypatch.setattr(w.controller._flow.segments, "seal", slow_seal)
        merged = 1 << 32 | 2
        await w.scale([0, 1], [(0.0, 1.0)])
        w.clock.jump(DAY_MS)
        await w.append(merged, b"c")
        assert (await w.controller.stream(STREAM)).epoch_created_ms == begin + DAY_MS
        assert await w.at(begin + DAY_MS) == {0: 10, 1: 10}
        assert await w.at(begin + DAY_MS + 1) == {1: 10, merged: -1}
        assert await w.at(begin + 2 * DAY_MS) == {1: 10, merged: -1}, "b1 may still come, so a1 is yet to be read"
        assert await w.at(begin + 3 * DAY_MS) == {1: 20, merged: -1}, "1 was sealed in this very millisecond"
        assert await w.at(begin + 3 * DAY_MS + 1) == {merged: 10}
        assert await w.at(w.clock.now_ms() + 1) == {merged: 19}


async def _true(value: bool) -> bool:
    return value


async def test_a_rolling_transaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments are merged and sealed before their predecessors are sealed."""

    async with world(tmp_path) as w:
        transaction = await w.controller.transactions.create(STREAM, 30_000)
        await w.write(transaction_segment_name(STREAM.segment(0), transaction.txn_id), [b"late"])
        await w.scale([0, 1], [(0.0, 1.0)])
        (single,) = await w.current()
        before = w.clock.now_ms()
        await w.append(single, b"one")
        seal = w.controller._flow.segments.seal

        async def slow_seal(name: str) -> None:
            if name == STREAM.segment(single):
                w.clock.jump(5_000)
                await w.append(single, b"two")
                w.clock.jump(5_000)
            await seal(name)

        monkeypatch.setattr(w.controller._flow.segments, "seal", slow_seal)
        await w.commit(transaction.txn_id)
        w.clock.jump(DAY_MS)
        history = await w.controller.history(STREAM)
        assert history.newest == 3
        (restored,) = await w.current()
        assert await w.at(before + 4_000) == {single: 0}
        assert await w.at(before + 5_000) == {single: 0}, "less than 4 KiB, less than 10 s ago"
        assert await w.at(before + 10_000) == {single: 22}
        assert await w.at(before + 10_001) == {restored: 0}


async def test_a_head_that_is_old_on_one_side_and_new_on_the_other(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.append(0, b"a0")
        await w.append(1, b"b0")
        w.clock.jump(DAY_MS)
        await w.scale([0], [(0.0, 0.5)])
        w.clock.jump(DAY_MS)
        await w.scale([1], [(0.5, 1.0)])
        left, right = await w.current()
        w.clock.jump(DAY_MS)
        await w.append(right, b"b1")
        await w.controller.truncate_stream(STREAM, {0: 10, right: 0})
        now_ms = w.clock.now_ms()
        for days in range(4, 1, -1):
            assert await w.at(now_ms - days * DAY_MS) == {0: 10, right: 0}
        assert await w.at(now_ms - DAY_MS) == {left: 0, right: 0}
        assert await w.at(now_ms + 1) == {left: 0, right: 10}


async def test_a_truncation_that_comes_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as w:
        begin = w.clock.now_ms()
        await w.append(0, b"a0")
        w.clock.jump(DAY_MS)
        await w.scale([0, 1], [(0.0, 1.0)])
        (merged,) = await w.current()
        locate = w.controller._flow.segments.locate_moment
        asked: list[str] = []

        async def after_truncation(name: str, at_ms: int, clock: int) -> tuple[int, bool]:
            asked.append(name)
            if len(asked) == 1:
                await w.controller.truncate_stream(STREAM, {merged: 0})
            return await locate(name, at_ms, clock)

        monkeypatch.setattr(w.controller._flow.segments, "locate_moment", after_truncation)
        assert await w.at(begin) == {merged: 0}
        assert STREAM.segment(0) in asked, "it was requested after its deletion"


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
async def test_whatever_happened_nothing_is_lost_and_little_comes_twice(tmp_path: Path, seed: int) -> None:
    r = random.Random(seed)

    async with world(tmp_path) as w:
        open_transactions: list[tuple[int, dict[int, int]]] = []  # transactions, with their sizes by segment
        times = [w.clock.now_ms() - 1]
        answers: dict[int, tuple[set[tuple[int, int]], int]] = {}
        for _ in range(60):
            w.clock.jump(r.choice([1, 300, 1_000, 4_000, 15_000, DAY_MS]))
            current = await w.current()
            match r.randrange(12):
                case 0:
                    history = await w.controller.history(STREAM)
                    at = r.randrange(len(current))
                    piece = history.segments[current[at]]
                    if len(current) > 1 and r.random() < 0.5:
                        low, high = (history.segments[i] for i in (current[max(at, 1) - 1], current[max(at, 1)]))
                        await w.scale([low.id, high.id], [(low.low, high.high)])
                    else:
                        middle = (piece.low + piece.high) / 2
                        await w.scale([piece.id], [(piece.low, middle), (middle, piece.high)])
                case 1 if len(open_transactions) < 2:
                    transaction = await w.controller.transactions.create(STREAM, 7 * DAY_MS)
                    sizes = {}
                    for piece in transaction.ranges:
                        name = transaction_segment_name(STREAM.segment(piece.id), transaction.txn_id)
                        sizes[segment_number(piece.id)] = await w.write(name, [bytes(r.choice([1, 5_000]))])
                    open_transactions.append((transaction.txn_id, sizes))
                case 2 if open_transactions:
                    epoch = (await w.controller.stream(STREAM)).epoch
                    txn_id, sizes = open_transactions.pop(0)
                    await w.commit(txn_id)
                    history = await w.controller.history(STREAM)
                    rolled = history.newest > epoch
                    targets = history.changes[epoch + 1].added if rolled else history.epoch(epoch)
                    for target in targets:
                        w.note(target.id, sizes[segment_number(target.id)])
                case 3:
                    cut = await w.at(r.choice(times))
                    head = await w.controller.head(STREAM)
                    history = await w.controller.history(STREAM)
                    if history.is_at_or_after(cut, head):
                        await w.controller.truncate_stream(STREAM, cut)
                case _:
                    segment = r.choice(current)
                    await w.append(segment, *[bytes(r.choice([1, 50, 5_000]))] * r.randrange(1, 4))
            times += [w.clock.now_ms(), w.clock.now_ms() - r.randrange(20_000)]
            for moment in r.sample(times, min(4, len(times))):
                await check(w, moment, answers)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_clock_was_set_the_cuts_of_later_moments_lie_later(tmp_path: Path, seed: int) -> None:
    r = random.Random(seed)

    async with world(tmp_path) as w:
        times = [w.clock.now_ms()]
        for step in range(40):
            w.clock.jump(r.choice([300, 4_000, 15_000, 3_600_000]))
            if step % 8 == 4:
                w.clock.set(r.choice([DAY_MS, -DAY_MS, -2 * DAY_MS]))
            current = await w.current()
            if r.randrange(6) == 0:
                piece = (await w.controller.history(STREAM)).segments[r.choice(current)]
                middle = (piece.low + piece.high) / 2
                await w.scale([piece.id], [(piece.low, middle), (middle, piece.high)])
            else:
                await w.append(r.choice(current), bytes(r.choice([1, 5_000])))
            times += [w.clock.now_ms() - r.randrange(20_000), w.clock.now_ms() + 1]
        behind = None
        for moment in sorted(times):
            before = await w.lies_before(await w.at(moment))
            now = {(s, o) for _, s, o, _ in w.pieces if not before(s, o)}
            assert behind is None or now <= behind, moment
            behind = now


async def check(w: World, moment: int, answers: dict[int, tuple[set[tuple[int, int]], int]]) -> None:
    before = await w.lies_before(await w.at(moment))
    head = await w.lies_before(await w.controller.head(STREAM))
    after = {(s, o) for _, s, o, _ in w.pieces if not before(s, o)}
    for at_ms, segment, offset, _ in w.pieces:
        if at_ms >= moment and not head(segment, offset):
            assert (segment, offset) in after, "an event at that time or later is before the cut"
    for segment in {s for s, _ in after}:
        early = [p for p in w.pieces if p[1] == segment and p[0] < moment and (segment, p[2]) in after]
        early = [p for p in early if not head(segment, p[2])]
        far = [p for p in early if p[0] <= moment - TIME_INDEX_MS]
        assert all(p[0] > moment - TIME_INDEX_MOST_MS for p in far)
        assert not far or sum(p[3] for p in early) < TIME_INDEX_BYTES
    known, count = answers.setdefault(moment, (after, len(w.pieces)))
    retained = {(s, o) for _, s, o, _ in w.pieces[:count] if not head(s, o)}
    assert after & retained == known & retained, "the answer for a time never changes"
