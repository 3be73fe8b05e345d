"""The lag of a position in a stream, over a real store and a manual clock, compared with the appends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nadi.controller import reports as lags
from nadi.controller.reports import LagReport, _measured, measure_lag, measure_lag_seconds
from nadi.controller.retention import cut_sizes
from nadi.controller.state.history import Cut, EpochHistory, first_epoch
from nadi.controller.state.metadata import GroupName
from nadi.controller.state.records import GroupConfig, GroupRetention, StreamConfigRecord
from nadi.controller.stream_rates import by_stream, event_size
from nadi.limits import TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.load import SegmentLoad

from .support import STREAM, with_stream
from .test_moment_cut import World, world

pytestmark = pytest.mark.uvloop

HOUR_S = 3600


async def lag_at(w: World, cut: Cut, end: Cut | None = None) -> tuple[int | None, float | None]:
    flow = w.controller._flow
    lag = await measure_lag(flow, await cut_sizes.measure(flow, STREAM), cut, end)
    return lag.size, await measure_lag_seconds(flow, STREAM, lag.unread)


async def test_age_of_an_unread_event_grows(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        assert await lag_at(w, {0: 0, 1: 0}) == (0, 0)
        await w.append(0, b"12345678")
        assert await lag_at(w, {0: 0, 1: 0}) == (16, 0)
        for hours in (1, 5, 100):
            w.clock.jump(hours * HOUR_S * 1000)
            size, seconds = await lag_at(w, {0: 0, 1: 0})
            waited = (w.clock.now_ms() - w.pieces[0][0]) / 1000
            assert size == 16
            assert seconds is not None
            assert waited * 0.98 - 11 <= seconds <= waited
        await w.append(1, b"new")
        assert (await lag_at(w, {0: 16, 1: 0}))[1] == 0, "a reader that finished the old event is not late"
        assert await lag_at(w, {0: 16, 1: 11}) == (0, 0)
        assert await lag_at(w, {0: 0, 1: 0}, {0: 0, 1: 0}) == (0, 0), "up to an end"
        assert (await lag_at(w, {99: 0}))[0] is None


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 6))])
async def test_the_oldest_unread_event_of_streams_that_live_at_random(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)

    async with world(tmp_path) as w:
        for _ in range(60):
            w.clock.jump(dice.choice((10, 700, 9_000, 40_000, 1_000_000)))
            current = await w.current()
            if dice.random() < 0.1:
                ranges = [(0.0, 0.3), (0.3, 1.0)] if dice.random() < 0.5 else [(0.0, 1.0)]
                await w.scale(current, ranges)
            else:
                await w.append(dice.choice(current), b"." * dice.choice((1, 50, 5_000)))
        w.clock.jump(dice.choice((1, 5_000, 500_000)))
        now_ms = w.clock.now_ms()
        for moment_ms in [1, *(dice.randint(w.pieces[0][0], now_ms) for _ in range(20)), now_ms + 1]:
            cut = await w.at(moment_ms)
            before = await w.lies_before(cut)
            unread = [piece for piece in w.pieces if not before(piece[1], piece[2])]
            size, seconds = await lag_at(w, cut)
            assert size == sum(piece[3] for piece in unread)
            assert seconds is not None
            waited_ms = max((now_ms - piece[0] for piece in unread), default=0)
            assert seconds * 1000 <= waited_ms
            assert seconds * 1000 >= waited_ms * 0.98 - TIME_INDEX_MOST_MS - TIME_INDEX_MS


async def test_lag_of_a_truncated_position_counts_from_the_head(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.append(0, b"12345678")
        w.clock.jump(HOUR_S * 1000)
        await w.append(0, b"12345678")
        w.clock.jump(HOUR_S * 1000)
        await w.controller.truncate_stream(STREAM, {0: 16, 1: 0})
        size, seconds = await lag_at(w, {0: 0, 1: 0})
        assert size == 16
        assert seconds == pytest.approx(HOUR_S, rel=0.03)


async def test_events_after_the_end_do_not_count(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.append(0, b"12345678")
        await w.scale([0], [(0.0, 0.25), (0.25, 0.5)])
        left, right, read, end = *sorted(await w.current())[1:], {0: 16, 1: 0}, {0: 16, 1: 0}
        await w.append(left, b"12345678")
        w.clock.jump(HOUR_S * 1000)
        assert await lag_at(w, read, end) == (0, 0)
        assert await lag_at(w, read, {left: 0, right: 0, 1: 0}) == (0, 0)
        assert (await lag_at(w, {0: 0, 1: 0}, end))[0] == 16
        size, seconds = await lag_at(w, {0: 0, 1: 0}, {left: 0, right: 0, 1: 0})
        assert size == 16
        assert seconds == pytest.approx(HOUR_S, rel=0.03), "only events before the end wait"
        size, seconds = await lag_at(w, read, {left: 16, right: 0, 1: 0})
        assert size == 16
        assert seconds == pytest.approx(HOUR_S, rel=0.03)


def test_forgotten_end_precedes_everything_retained() -> None:
    history = EpochHistory([first_epoch(1, 0)])
    for epoch in range(3):
        (segment,) = (piece.id for piece in history.epoch(epoch))
        history.add(history.plan_scale(epoch, [segment], [(0.0, 1.0)], min_segments=1, time_ms=epoch))
    (last,) = (piece.id for piece in history.epoch(3))
    left = cut_sizes.Past(history.forgetting(3), {last: 10}, {last: 100})
    assert _measured(left, {0: 0}, None) == LagReport(90, {last: 10})
    assert _measured(left, {0: 0}, {0: 16}) == _measured(left, {last: 30}, {0: 16}) == LagReport(0, {})


async def test_lag_of_another_clients_group_uses_published_cuts() -> None:
    async with with_stream(2) as (controller, store, clock):
        other, silent = GroupName("home", "other"), GroupName("home", "silent")
        await controller.create_scope("elsewhere")
        far = GroupName("elsewhere", "far")
        group_id = "11111111-2222-3333-4444-555555555555"
        for name, kind in ((other, GroupRetention.MANUAL), (silent, GroupRetention.NONE), (far, GroupRetention.MANUAL)):
            config = GroupConfig(3000, 3000, 1, kind, {STREAM.key: {}})
            await controller.create_reader_group(name, config, group_id)
        store.append(STREAM.segment(0), b"a" * 100)
        for name in (silent, other):
            (lag,) = (await lags.of_group(controller._flow, name.stream, ""))[0]
            assert (lag.lag_bytes, lag.lag_events, lag.lag_seconds, lag.readers) == (None, None, None, None)
            assert "publishes none" in lag.why
        await controller.publish_cut(STREAM, other.key, group_id, 0, {0: 30, 1: 0})
        (lag,) = (await lags.of_group(controller._flow, other.stream, ""))[0]
        assert (lag.lag_bytes, lag.source, lag.why) == (70, "subscriber", "")
        assert lag.published_ms == clock.now_ms()
        all_lags = (await lags.of_stream(controller._flow, STREAM, ""))[0]
        assert [f"{lag.scope}/{lag.group}" for lag in all_lags] == ["home/other", "elsewhere/far", "home/silent"]


async def test_groups_of_other_streams_are_omitted() -> None:
    async with with_stream(1) as (controller, _, _clock):
        other = STREAM._replace(stream="other")
        await controller.create_stream(other, StreamConfigRecord(min_segments=1))
        config = GroupConfig(3000, 3000, 1, GroupRetention.NONE, {other.key: {}})
        await controller.create_reader_group(GroupName("home", "g"), config, "1" * 8 + "-2222-3333-4444-555555555555")
        assert (await lags.of_stream(controller._flow, STREAM, ""))[0] == []
        assert len((await lags.of_stream(controller._flow, other, ""))[0]) == 1


def test_sizes_of_events_over_all_segments_of_a_stream() -> None:
    def load(segment: str, events: float, size: float) -> SegmentLoad:
        return SegmentLoad(segment, 10.0, (0.0,) * 5 + (events,), (0.0,) * 5 + (size,))

    loads = [load(STREAM.segment(0), 1, 100), load(STREAM.segment(1), 3, 100), load("home/x/0.#epoch.0", 0, 0)]
    found = {name.key: event_size(its.values()) for name, its in by_stream(loads).items()}
    assert found == {STREAM.key: 50, "home/x": None}
