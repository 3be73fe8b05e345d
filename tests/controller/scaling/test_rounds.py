"""Scaling rounds over a store with given loads: decisions are carried out completely, once, or not at all, whatever is
killed or interferes, and their reasons are logged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from nadi.controller.controller import Controller
from nadi.controller.scaling.decisions import FAST, Decision, ScalingDecider, ScalingStep
from nadi.controller.scaling.rounds import log_decisions, logged_decisions
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, StreamConfigRecord
from nadi.errors import InvalidArgumentError
from nadi.limits import SCALING_LOG_ENTRIES
from nadi.model.load import WINDOWS_S, KeySample, ScaleType, SegmentLoad
from nadi.model.reports import LOAD, SCALING, LoadReport, ScalingReport
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.load_reports import packed_loads
from tests.controller.fake_store import FakeStore
from tests.controller.support import STREAM, FakeClock, scaled, settle
from tests.support.turns import MostInATurn

TARGET = 1_000
LONG_S = 2_000.0
ELASTIC = StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, TARGET, 4, 1)
HOT = KeySample((0.25,) * 96 + (0.1, 0.4, 0.6, 0.9), (1.0,) * 100)
SPREAD = KeySample(tuple(i / 100 for i in range(100)), (1.0,) * 100)


class LoadedStore(FakeStore):
    """A store with given loads. rates: by segment; keys: the sampled keys by segment."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[str, float] = {}
        self.keys: KeySample | None = SPREAD
        self.is_complete = True
        self.asked = 0

    def answer(self, command: Command) -> Command:
        if isinstance(command, wire.GetSegmentLoads):
            self.asked += 1
            loads = [
                SegmentLoad(name, LONG_S, (rate,) * len(WINDOWS_S), (rate * 100,) * len(WINDOWS_S), self.keys)
                for name, rate in sorted(self.rates.items())
            ]
            page = packed_loads(loads)
            return wire.SegmentLoads(command.request_id, command.segment, page, True, self.is_complete)
        return super().answer(command)


def new_controller(store: FakeStore, clock: FakeClock) -> Controller:
    return Controller(
        store.exchange, clock=clock, endpoint_of=lambda _: ("127.0.0.1", 1), rpc_endpoint=("127.0.0.1", 2), scaling=FAST
    )


@asynccontextmanager
async def elastic(config: StreamConfigRecord = ELASTIC) -> AsyncIterator[tuple[Controller, LoadedStore, FakeClock]]:
    store, clock = LoadedStore(), FakeClock()
    controller = new_controller(store, clock)
    await controller.start()
    try:
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, config)
        yield controller, store, clock
    finally:
        await controller.stop()


async def rounds(controller: Controller, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        await clock.advance(1_000)
        await settle(300)


async def ids(controller: Controller) -> list[int]:
    return [segment.id for segment in await controller.current_segments(STREAM)]


async def logged(controller: Controller) -> list[ScalingReport]:
    page, token = await controller.report(STREAM, SCALING)
    assert not token
    assert all(isinstance(one, ScalingReport) for one in page)
    return list(page)


async def test_a_hot_segment_is_split_by_its_keys_and_its_pieces_merged_when_all_is_quiet() -> None:
    async with elastic() as (controller, store, clock):
        store.rates = {STREAM.segment(0): 2_500.0}
        await rounds(controller, clock, 3)
        made = await ids(controller)
        assert len(made) == 4
        (split,) = await logged(controller)
        assert (split.kind, split.segments, split.epoch, split.is_done) == ("split", [0], 1, True)
        assert (split.rate, split.target, split.unit, split.profile) == (2_500, TARGET, "events/s", "fast")
        assert "2.5 times its target of 1,000 events/s" in split.why
        assert split.into == [(s.low, s.high) for s in await controller.current_segments(STREAM)]
        assert controller.scaling.counts.splits == 1
        store.rates = {STREAM.segment(segment): 5.0 for segment in made}
        await rounds(controller, clock, 200)
        assert len(await ids(controller)) == 1
        assert [one.kind for one in await logged(controller)] == ["split", "merge"]
        assert controller.scaling.counts.merges == 1


async def test_streams_without_load_are_found_and_merged() -> None:
    async with elastic() as (controller, _, clock):
        await scaled(controller, [0], [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
        await controller.create_stream(StreamName("home", "fixed"), StreamConfigRecord(min_segments=1))
        await rounds(controller, clock, 150)
        assert len(await ids(controller)) == 1
        (merge,) = await logged(controller)
        assert (merge.kind, merge.rate) == ("merge", 0.0)


async def test_unmeasured_segments_are_not_idle() -> None:
    async with elastic() as (controller, store, clock):
        store.is_complete = False
        await scaled(controller, [0], [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
        store.rates = {"home/other/0.#epoch.0": 5.0, "home/other/1.#epoch.0": 5.0}
        await rounds(controller, clock, 150)
        assert len(await ids(controller)) == 3
        store.is_complete = True
        await rounds(controller, clock, 150)
        assert len(await ids(controller)) == 1


async def test_hot_key_is_logged_once_and_nothing_is_split() -> None:
    async with elastic() as (controller, store, clock):
        store.rates = {STREAM.segment(0): 5_000.0}
        store.keys = HOT
        await rounds(controller, clock, 300)
        assert await ids(controller) == [0]
        (entry,) = await logged(controller)
        assert (entry.kind, entry.into, entry.epoch, entry.is_done) == ("hot-key", [], -1, True)
        assert "one key has 96%" in entry.why
        ((load,), _) = await controller.report(STREAM, LOAD)
        assert isinstance(load, LoadReport)
        assert load.hot_key is not None
        assert (load.hot_key.position, load.hot_key.share) == (0.25, 0.96)
        assert controller.scaling.counts.hot_keys == 1
        store.rates = {STREAM.segment(0): 500.0}
        await rounds(controller, clock, 5)
        ((load,), _) = await controller.report(STREAM, LOAD)
        assert load.hot_key is None, "it is no longer hot"


@pytest.mark.parametrize("change", ["policy", "fixed", "scaled", "sealed", "deleted"])
async def test_concurrent_change_while_loads_are_read(change: str) -> None:
    async with elastic() as (controller, store, clock):
        store.rates = {STREAM.segment(0): 2_500.0}

        async def meanwhile(command: Command) -> None:
            if isinstance(command, wire.GetSegmentLoads) and store.asked:
                store.before = None
                if change == "policy":
                    await controller.update_stream(STREAM, replace(ELASTIC, target_rate=10_000))
                elif change == "fixed":
                    await controller.update_stream(STREAM, StreamConfigRecord(min_segments=1))
                elif change == "scaled":
                    await scaled(controller, [0], [(0.0, 0.9), (0.9, 1.0)])
                else:
                    await controller.seal_stream(STREAM)
                    if change == "deleted":
                        await controller.delete_stream(STREAM)

        store.before = meanwhile
        await rounds(controller, clock, 5)
        if change == "deleted":
            assert not await controller.stream_exists(STREAM)
            return
        assert await ids(controller) == {"scaled": [1 << 32 | 1, 1 << 32 | 2], "sealed": []}.get(change, [0])
        assert not await logged(controller)


@pytest.mark.parametrize("what", ["policy", "scaled", "sealed"])
async def test_change_that_acquires_the_lock_first_wins(what: str) -> None:
    """An admin's change acquires the lock after the round has decided: the decision is dropped."""
    async with elastic() as (controller, store, clock):
        store.rates = {STREAM.segment(0): 2_500.0}
        lock = controller._flow.lock(STREAM)
        await lock.acquire()
        await rounds(controller, clock, 2)
        assert STREAM.key in controller.scaling._changing, "it is decided"
        if what == "policy":
            person = asyncio.ensure_future(controller.update_stream(STREAM, replace(ELASTIC, target_rate=10_000)))
        elif what == "scaled":
            person = asyncio.ensure_future(scaled(controller, [0], [(0.0, 0.9), (0.9, 1.0)]))
        else:
            person = asyncio.ensure_future(controller.seal_stream(STREAM))
        await settle()
        waiters = lock._waiters
        assert waiters is not None
        waiters.rotate(1)  # the admin's change first
        lock.release()
        await person
        await settle(300)
        await rounds(controller, clock, 3)
        expected = {"policy": [0], "scaled": [1 << 32 | 1, 1 << 32 | 2], "sealed": []}
        assert await ids(controller) == expected[what]
        assert not await logged(controller)


async def test_hot_key_logged_during_stream_deletion_leaves_nothing() -> None:
    async with elastic() as (controller, store, clock):
        store.rates = {STREAM.segment(0): 5_000.0}
        store.keys = HOT
        deletions: list[asyncio.Future[None]] = []

        async def delete() -> None:
            await controller.seal_stream(STREAM)
            await controller.delete_stream(STREAM)

        async def meanwhile(command: Command) -> None:
            if isinstance(command, wire.UpdateTableEntries) and "/scaling/" in command.segment and not deletions:
                store.rates = {}
                deletions.append(asyncio.ensure_future(delete()))
                await settle(500)

        store.before = meanwhile
        await rounds(controller, clock, 4)
        await asyncio.gather(*deletions)
        assert deletions
        assert not [name for name in store.tables if "/scaling/" in name]


async def test_unrecorded_hot_key_is_logged_once_the_disk_has_space() -> None:
    async with elastic() as (controller, store, clock):
        store.rates = {STREAM.segment(0): 5_000.0}
        store.keys = HOT
        store.full = True
        await rounds(controller, clock, 10)
        assert not await logged(controller)
        store.full = False
        await rounds(controller, clock, 10)
        assert [one.kind for one in await logged(controller)] == ["hot-key"]
        assert controller.scaling.counts.hot_keys == 1


async def test_controller_killed_at_any_step_scales_completely_or_not_at_all() -> None:
    """The controller is killed right before each command, and so right after the previous one."""
    for step in count():
        store, clock = LoadedStore(), FakeClock()
        controller = new_controller(store, clock)
        await controller.start()
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, ELASTIC)
        store.rates = {STREAM.segment(0): 2_500.0}
        await rounds(controller, clock, 1)
        store.die_at(step)
        await rounds(controller, clock, 2)
        was_killed = store.dead.is_set()
        await controller.stop()
        store.revive()
        again = new_controller(store, clock)
        await again.start()
        await settle(500)
        epoch = (await again.stream(STREAM)).epoch
        assert epoch in (0, 1), step
        done = [one for one in await logged(again) if one.is_done]
        assert len(done) == epoch, "each scaling is logged, and only those that happened are reported as done"
        await rounds(again, clock, 20)
        assert len(await ids(again)) == 4, step
        assert (await again.stream(STREAM)).epoch == 1, "it was split exactly once"
        assert [one.kind for one in await logged(again) if one.is_done] == ["split"]
        held = {name for name in store.segments if name.startswith(f"{STREAM.key}/")}
        assert held == {STREAM.segment(segment) for segment in (0, *await ids(again))}
        await again.stop()
        if not was_killed:
            assert step > 10
            return


async def test_the_log_is_a_ring_that_ends_with_its_stream() -> None:
    async with elastic() as (controller, store, _):
        metadata = controller.metadata
        entry = controller.scaling._entry(
            ScalingStep("hot-key", (0,), (), 5.0, 1, "events/s", "a single key has the whole load"), -1
        )
        for _ in range(3):
            await log_decisions(metadata, STREAM, [entry] * (SCALING_LOG_ENTRIES // 2 - 1))
        await controller._flow.metadata.scalings(STREAM).delete()
        for size in (1, SCALING_LOG_ENTRIES - 2, 7):
            await log_decisions(metadata, STREAM, [entry] * size)
        fresh = [one.number for one in await logged_decisions(metadata, STREAM)]
        assert len(fresh) == SCALING_LOG_ENTRIES
        assert fresh == list(range(fresh[0], fresh[0] + SCALING_LOG_ENTRIES))
        other = Controller(
            store.exchange, endpoint_of=lambda _: ("127.0.0.1", 1), rpc_endpoint=("127.0.0.1", 2), scaling=FAST
        )
        await log_decisions(other.metadata, STREAM, [entry])
        await log_decisions(metadata, STREAM, [entry])  # its cached state is outdated
        assert [one.number for one in await logged_decisions(metadata, STREAM)][-1] == fresh[-1] + 2
        page, token = await controller.report(STREAM, SCALING, str(fresh[-1]))
        assert [one.number for one in page] == [fresh[-1] + 1, fresh[-1] + 2]
        assert not token
        with pytest.raises(InvalidArgumentError):
            await controller.report(STREAM, SCALING, "x")
        await controller.seal_stream(STREAM)
        await controller.delete_stream(STREAM)
        await controller.create_stream(STREAM, ELASTIC)
        assert not await logged(controller)
        await log_decisions(metadata, STREAM, [entry])
        assert [one.number for one in await logged(controller)] == [1]


async def test_streams_with_many_segments_are_evaluated_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elastic() as (controller, store, _):
        for number in range(12):
            name = StreamName("home", f"wide{number}")
            await controller.create_stream(name, replace(ELASTIC, min_segments=60))
            store.rates |= {name.segment(segment): 900.0 for segment in range(60)}
        turn, evaluate = MostInATurn(), ScalingDecider.evaluate

        def counted(decider: ScalingDecider, segments: Sequence[EpochSegment], *others: Any, **more: Any) -> Decision:
            turn.count(len(segments))
            return evaluate(decider, segments, *others, **more)

        monkeypatch.setattr(ScalingDecider, "evaluate", counted)
        async with turn:
            await controller.scaling.round()
        assert turn.all == 12 * 60
        assert turn.most <= 240


async def test_decisions_about_many_segments_come_in_several_pages() -> None:
    async with elastic() as (controller, _, _):
        metadata, many = controller.metadata, tuple((i / 4_000, (i + 1) / 4_000) for i in range(4_000))
        for step in (ScalingStep("split", (0,), many, 5.0, 1, "events/s", "it is hot"),) * 3:
            await log_decisions(metadata, STREAM, [controller.scaling._entry(step, -1)])
        first, token = await controller.report(STREAM, SCALING)
        assert [one.number for one in first] == [1, 2]
        rest, end = await controller.report(STREAM, SCALING, token)
        assert [one.number for one in rest] == [3]
        assert not end


async def test_invalid_loads_are_ignored() -> None:
    async with elastic() as (controller, store, clock):
        names = ["home/meters/0.#epoch.9", "home/nothing/0.#epoch.0", "home/_hidden/0.#epoch.0", "odd", "a/b/c/d"]
        names += ["_system/_tables/work/0.#epoch.0", f"{STREAM.segment(0)}#transaction.{5:032x}"]
        store.rates = dict.fromkeys(names, 1e9)
        await rounds(controller, clock, 10)
        assert await ids(controller) == [0]
        store.rates[STREAM.segment(0)] = float("nan")
        await rounds(controller, clock, 10)
        assert await ids(controller) == [0]


async def test_setting_the_clock_changes_no_decision() -> None:
    async with elastic() as (controller, store, clock):
        await rounds(controller, clock, 2)
        clock.set(-86_400_000)
        store.rates = {STREAM.segment(0): 2_500.0}
        await rounds(controller, clock, 3)
        assert len(await ids(controller)) == 4
        clock.set(10 * 86_400_000)
        store.rates = {STREAM.segment(segment): 5.0 for segment in await ids(controller)}
        await rounds(controller, clock, 55)
        assert len(await ids(controller)) == 4, "a quiet minute is measured independently of the wall clock"
