"""Activity of streams under a manual clock, derived from a store's loads, sealed segments and published cuts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from nadi.controller.controller import Controller
from nadi.controller.engine.workflows import Shared
from nadi.controller.external_scaler import Trigger, trigger
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupConfig, GroupRetention, StreamConfigRecord
from nadi.errors import ConflictError, ReaderGroupNotFoundError, StreamNotFoundError, UnavailableError
from nadi.model.framing import frame_events
from nadi.naming import segment_id
from nadi.runtime import REAL
from nadi.wire import commands as wire
from tests.controller.fake_store import FakeStore
from tests.controller.support import STREAM, FakeClock, running, scaled, settle

from .support import METERS

EVENT = frame_events([bytes(92)])  # 100 bytes
READERS, ID = GroupName("home", "readers"), "7b0fe3a2-55f1-4b2c-8c80-0e6f6f3b9d11"
LAG = trigger({**METERS, "metric": "lag", "readerGroup": "readers", "activationTarget": "250"})


@asynccontextmanager
async def metered() -> AsyncIterator[tuple[Controller, FakeStore, FakeClock]]:
    store, clock = FakeStore(), FakeClock()
    store.container._runtime = clock
    store.container.load.__init__(clock.monotonic)  # type: ignore[misc]
    async with running(store, clock) as controller:
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, StreamConfigRecord(min_segments=1))
        yield controller, store, clock


def write(store: FakeStore, events: int = 1, segment: int = 0) -> None:
    for _ in range(events):
        store.append(STREAM.segment(segment), EVENT)


async def group(controller: Controller, retention: GroupRetention = GroupRetention.MANUAL, **starts: int) -> None:
    config = GroupConfig(500, 0, 1, retention, {STREAM.key: {int(k[1:]): at for k, at in starts.items()}})
    await controller.create_reader_group(READERS, config, ID)


class Watch:
    """Records a watch's replies with their times, in milliseconds of the clock."""

    def __init__(self, controller: Controller, asked: Trigger, clock: FakeClock) -> None:
        self.replies: list[tuple[int, bool]] = []
        self.task = asyncio.ensure_future(self._watch(controller, asked, clock))

    async def _watch(self, controller: Controller, asked: Trigger, clock: FakeClock) -> None:
        async with aclosing(controller.demand.watch(asked)) as changes:
            async for active in changes:
                self.replies.append((clock.monotonic_ms(), active))


@asynccontextmanager
async def watching(controller: Controller, asked: Trigger, clock: FakeClock) -> AsyncIterator[Watch]:
    watch = Watch(controller, asked, clock)
    try:
        yield watch
    finally:
        watch.task.cancel()
        await asyncio.gather(watch.task, return_exceptions=True)


@pytest.mark.parametrize("metric", ["segments", "rate"])
async def test_watch_reports_the_first_event_within_a_second_and_the_end_after_ten(metric: str) -> None:
    async with metered() as (controller, store, clock):
        async with watching(controller, trigger({**METERS, "metric": metric}), clock) as watch:
            await clock.advance(60_000)
            first_ms = clock.monotonic_ms()
            write(store)
            for _ in range(20):
                await clock.advance(100)
                write(store)
            last_ms = clock.monotonic_ms()
            await clock.advance(60_000)
        (_, before), (began_ms, active), (ended_ms, after) = watch.replies
        assert (before, active, after) == (False, True, False)
        assert began_ms - first_ms <= 1000
        assert 10_000 <= ended_ms - last_ms <= 15_000


async def test_events_that_trickle_keep_a_stream_active() -> None:
    async with metered() as (controller, store, clock):
        async with watching(controller, trigger(METERS), clock) as watch:
            await clock.advance(1000)
            for _ in range(12):
                write(store)
                await clock.advance(9_500)
        assert [active for _, active in watch.replies] == [False, True]


async def test_a_rate_counts_from_the_activation_target_on() -> None:
    asked = trigger({**METERS, "metric": "rate", "activationTarget": "30"})
    async with metered() as (controller, store, clock):
        for per_s, is_active in ((20, False), (50, True)):
            for _ in range(300):
                write(store, per_s // 10)
                await clock.advance(100)
            assert await controller.demand.value(asked) == pytest.approx(per_s, rel=0.1)
            assert await controller.demand.is_active(asked) is is_active


async def test_scaling_does_not_count_as_activity() -> None:
    async with metered() as (controller, _, clock):
        async with watching(controller, trigger(METERS), clock) as watch:
            await clock.advance(1000)
            await scaled(controller, [0], [(0.0, 0.5), (0.5, 1.0)])
            await clock.advance(5000)
        assert [active for _, active in watch.replies] == [False]
        assert await controller.demand.value(trigger(METERS)) == 2


async def test_a_sealed_stream_has_no_segments_to_follow() -> None:
    async with metered() as (controller, _, _):
        await controller.seal_stream(STREAM)
        assert await controller.demand.value(trigger(METERS)) == 0


async def test_watch_of_a_missing_or_deleted_stream_ends() -> None:
    async with metered() as (controller, _, clock):
        with pytest.raises(StreamNotFoundError):
            await controller.demand.is_active(trigger({**METERS, "stream": "gas"}))
        async with watching(controller, trigger(METERS), clock) as watch:
            await clock.advance(1000)
            await controller.seal_stream(STREAM)
            await controller.delete_stream(STREAM)
            await clock.advance(1000)
            with pytest.raises(StreamNotFoundError):
                await watch.task


# --- lag --------------------------------------------------------------------------------------------


async def test_lag_counts_from_the_published_cut() -> None:
    async with metered() as (controller, store, clock):
        write(store, 5)
        await group(controller, s0=100)
        assert await controller.demand.value(LAG) == 400  # without a published cut it counts from its start
        async with watching(controller, LAG, clock) as watch:
            await clock.advance(1000)
            await controller.publish_cut(STREAM, READERS.key, ID, 0, {0: 300})
            await clock.advance(1000)
            assert await controller.demand.value(LAG) == 200
            await scaled(controller, [0], [(0.0, 0.5), (0.5, 1.0)])
            write(store, 1, segment_id(1, 1))
            await clock.advance(1000)
            assert await controller.demand.value(LAG) == 300
        assert [active for _, active in watch.replies] == [True, False, True]


@pytest.mark.parametrize("metric", ["segments", "rate"])
async def test_unread_events_keep_an_idle_stream_active(metric: str) -> None:
    asked = trigger({**METERS, "metric": metric, "readerGroup": "readers"})
    async with metered() as (controller, store, clock):
        await group(controller, s0=0)
        async with watching(controller, asked, clock) as watch:
            write(store, 3)
            await clock.advance(60_000)
            assert [active for _, active in watch.replies] == [True]
            await controller.publish_cut(STREAM, READERS.key, ID, 0, {0: 300})
            await clock.advance(1000)
        assert [active for _, active in watch.replies] == [True, False]


async def test_unknown_lag_raises_conflict_error() -> None:
    async with metered() as (controller, _, _):
        with pytest.raises(ReaderGroupNotFoundError):
            await controller.demand.value(LAG)
        await group(controller, GroupRetention.NONE, s0=0)
        with pytest.raises(ConflictError, match="home/readers"):
            await controller.demand.value(LAG)
        await controller.delete_reader_group(READERS, ID)
        await group(controller, s7=1_000_000)
        with pytest.raises(ConflictError, match="home/meters"):
            await controller.demand.value(LAG)
        gas = STREAM._replace(stream="gas")
        await controller.create_stream(gas, StreamConfigRecord(min_segments=1))
        with pytest.raises(ConflictError, match="home/gas"):
            await controller.demand.value(
                trigger({**METERS, "stream": "gas", "metric": "lag", "readerGroup": "readers"})
            )


# --- concurrent questions ---------------------------------------------------------------------------


async def test_concurrent_watches_share_one_query() -> None:
    async with metered() as (controller, store, clock):
        watches = [Watch(controller, trigger(METERS), clock) for _ in range(50)]
        await clock.advance(1000)
        del store.log[:]
        await clock.advance(10_000)
        asked = [type(command) for command in store.log]
        assert asked.count(wire.GetSegmentLoads) < 60
        for watch in watches:
            watch.task.cancel()
        await asyncio.gather(*(watch.task for watch in watches), return_exceptions=True)


async def test_answers_are_shared_while_fresh_and_errors_are_not_cached() -> None:
    clock, asked = FakeClock(), []

    async def ask(key: str) -> int:
        asked.append(key)
        await clock.sleep(1.0)
        if key == "bad" and len(asked) < 2:
            raise UnavailableError("try again")
        return len(asked)

    shared = Shared(clock, ask, age_s=0.25, most=2)
    waiting = [asyncio.ensure_future(shared.get("bad")) for _ in range(3)]
    await settle()
    await clock.advance(900)
    waiting[0].cancel()  # the others keep waiting
    await clock.advance(200)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in results] == [asyncio.CancelledError, UnavailableError, UnavailableError]
    again = asyncio.ensure_future(shared.get("bad"))
    await settle()
    await clock.advance(1000)
    assert await again == 2
    await clock.advance(200)
    assert await shared.get("bad") == 2
    await clock.advance(100)
    retry = asyncio.ensure_future(shared.get("bad"))
    await settle()
    assert len(asked) == 3
    await clock.advance(1000)
    assert await retry == 3


async def test_questions_take_a_fifth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    began, at_work = time.monotonic(), 0.0

    async def ask(flow: object, name: GroupName, stream: StreamName) -> int:
        nonlocal at_work
        asked = time.monotonic()
        time.sleep(0.02)  # blocks the loop  # noqa: ASYNC251
        at_work += time.monotonic() - asked
        return 7

    monkeypatch.setattr("nadi.controller.external_scaler.unread", ask)
    monkeypatch.setattr("nadi.controller.external_scaler.SCALER_AT_ONCE", 1)
    async with running(FakeStore(), REAL) as controller:
        names = [GroupName("home", f"readers-{number}") for number in range(6)]
        lags = await asyncio.gather(*(controller.demand._lags.get((name, STREAM)) for name in names))
        assert lags == [7] * 6
        assert time.monotonic() - began >= at_work + 4 * at_work * 5 / 6


async def test_hanging_question_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(flow: object, name: GroupName, stream: StreamName) -> int:
        await asyncio.sleep(3600 if name.group == "silent" else 0)
        return 7

    monkeypatch.setattr("nadi.controller.external_scaler.unread", ask)
    async with running(FakeStore(), REAL) as controller, asyncio.timeout(60):
        silent = asyncio.ensure_future(controller.demand._lags.get((GroupName("home", "silent"), STREAM)))
        await settle()
        assert await controller.demand._lags.get((READERS, STREAM)) == 7
        silent.cancel()
