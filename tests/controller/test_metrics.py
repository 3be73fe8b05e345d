"""Gathering metrics: slow, broken or excessive parts are omitted, and the metrics report that they are incomplete."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nadi import limits
from nadi.controller import metrics
from nadi.controller import reports as lags
from nadi.controller.controller import Controller
from nadi.controller.metrics import Figures
from nadi.controller.retention import cut_sizes
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupConfig, GroupRetention, StreamConfigRecord
from nadi.errors import UnavailableError
from nadi.model.load import SegmentLoad
from nadi.model.readergroup import EndOf, GroupRecord, NamedRange, SegmentState
from nadi.naming import segment_id
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .support import STREAM, with_stream

ID = "11111111-2222-3333-4444-555555555555"
OTHER = STREAM._replace(stream="other")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits, so that a slow machine omits nothing."""
    for limit in ("METRICS_NAMES_S", "METRICS_LAGS_S", "METRICS_CACHE_S"):
        monkeypatch.setattr(limits, limit, 60.0)


@asynccontextmanager
async def with_groups(count: int = 3) -> AsyncIterator[Controller]:
    """Start a controller with two streams, and groups that have published positions in the first."""
    async with with_stream(2) as (controller, store, _):
        await controller.create_stream(OTHER, StreamConfigRecord(min_segments=1))
        store.append(STREAM.segment(0), b"a" * 100)
        for number in range(count):
            name = GroupName("home", f"g{number}")
            config = GroupConfig(3000, 3000, 1, GroupRetention.MANUAL, {STREAM.key: {}})
            await controller.create_reader_group(name, config, ID)
            await controller.publish_cut(STREAM, name.key, ID, 0, {0: number, 1: 0})
        yield controller


async def figures_of(controller: Controller) -> Figures:
    return await metrics.gather(controller._flow, controller.rates, controller.scaling.hot_keys)


async def test_all_metrics_are_gathered() -> None:
    async with with_groups() as controller:
        figures = await figures_of(controller)
        assert figures.is_complete
        assert {name: one.segments for name, one in figures.streams.items()} == {STREAM: 2, OTHER: 1}
        assert {name: one.retained_bytes for name, one in figures.streams.items()} == {STREAM: 100, OTHER: 0}
        assert sorted(lag.lag_bytes or 0 for lag in figures.lags) == [98, 99, 100]


async def test_a_rate_stays_the_same_over_a_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_groups(0) as controller:
        old, new = (1.0, 100.0, 0.0, 0.0, 0.0, 0.0), (50.0, 50.0, 50.0, 50.0, 50.0, 50.0)

        async def loads() -> list[SegmentLoad]:  # a segment sealed 0.1 s ago, and its two successors
            return [
                SegmentLoad(STREAM.segment(0), 1000.0, old, old),
                *(SegmentLoad(STREAM.segment(segment_id(i, 1)), 0.1, new, new) for i in (1, 2)),
            ]

        monkeypatch.setattr(controller._flow.segments, "loads", loads)
        busy = (await figures_of(controller)).streams[STREAM]
        assert busy.events_per_s == busy.bytes_per_s == pytest.approx(100, rel=0.02)


async def test_hanging_parts_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cut_sizes.measure

    async def measure(flow: object, name: StreamName) -> cut_sizes.Past:
        if name == OTHER:
            await asyncio.Event().wait()
        return await real(flow, name)  # type: ignore[arg-type]

    async with with_groups() as controller:
        monkeypatch.setattr(cut_sizes, "measure", measure)
        monkeypatch.setattr(limits, "METRICS_CACHE_S", 0.05)
        figures = await figures_of(controller)
        assert not figures.is_complete
        assert {name: one.retained_bytes for name, one in figures.streams.items()} == {STREAM: 100, OTHER: None}
        assert len(figures.lags) == 3


async def test_work_without_a_permit_is_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that is never awaited warns when it is collected."""

    async def standing(flow: object, name: GroupName, group: object) -> lags.GroupReport:
        await asyncio.Event().wait()
        raise AssertionError

    async with with_groups() as controller:
        monkeypatch.setattr(lags, "standing", standing)
        monkeypatch.setattr(limits, "METRICS_AT_ONCE", 1)
        monkeypatch.setattr(limits, "METRICS_LAGS_S", 0.05)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not (await figures_of(controller)).is_complete
            gc.collect()
        assert not caught


async def test_unreadable_group_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lags.standing

    async def standing(flow: object, name: GroupName, group: object) -> lags.GroupReport:
        if name.group == "g1":
            raise UnavailableError("its segment moves")
        return await real(flow, name, group)  # type: ignore[arg-type]

    async with with_groups() as controller:
        monkeypatch.setattr(lags, "standing", standing)
        figures = await figures_of(controller)
        assert not figures.is_complete
        assert sorted(lag.group for lag in figures.lags) == ["g0", "g2"]


async def test_unknown_sums_have_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_GROUPS", 0)
    async with with_groups(2) as controller:
        text = (await controller.metrics.scrape("")).decode()
        assert 'nadi_reader_group_lag_bytes{reader_group="(others)",scope="",stream="(others)"} 199.0' in text
        for unknown in ("lag_events", "segments", "unassigned_segments"):  # the size of an event is unknown here
            assert f"nadi_reader_group_{unknown}{{" not in text


@pytest.mark.parametrize("segment", [STREAM.segment(0), "junk", "home/meters/x.#epoch.0"])
@pytest.mark.parametrize("stream", [STREAM.key, OTHER.key, "junk", "a/b/c", ""])
async def test_group_with_invalid_state_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, stream: str, segment: str
) -> None:
    nadis = "6e616469-2222-3333-4444-555555555555"
    keys = NamedRange(segment, 0.0, 1.0)
    record = GroupRecord(nadis, (stream,), {segment: SegmentState(keys, 40)}, {segment: EndOf(keys, 90)})

    async def state(flow: object, name: GroupName) -> tuple[GroupRecord, str]:
        return record, ""

    async with with_groups() as controller:
        config = GroupConfig(3000, 3000, 1, GroupRetention.NONE, {STREAM.key: {}})
        odd = GroupName("home", "odd")
        await controller.create_reader_group(odd, config, nadis)
        monkeypatch.setattr(lags, "_state", state)
        figures = await figures_of(controller)
        assert figures.is_complete
        assert {lag.group: lag.lag_bytes for lag in figures.lags} == {"g0": 100, "g1": 99, "g2": 98, "odd": None}
        (lag,) = (await lags.of_group(controller._flow, odd.stream, ""))[0]
        assert (lag.stream, lag.lag_bytes) == (STREAM.key, None), "streams outside its configuration are ignored"
        assert len((await lags.of_stream(controller._flow, STREAM, ""))[0]) == 4


async def test_counts_are_unknown_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_PAGE", 2)
    monkeypatch.setattr(limits, "METRICS_GROUPS_MEASURED", 4)
    async with with_groups(6) as controller:
        figures = await figures_of(controller)
        assert not figures.is_complete
        assert len(figures.lags) == 4
        assert (figures.streams_count, figures.groups_count) == (2, None)
        assert "\nnadi_reader_groups " not in (await controller.metrics.scrape("")).decode(), "the total is unknown"


async def test_uncounted_streams_have_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_NAMES_S", 0.0)
    async with with_groups() as controller:
        text = (await controller.metrics.scrape("")).decode()
        assert "\nnadi_metrics_complete 0.0" in text
        assert "\nnadi_streams " not in text
        assert "\nnadi_reader_groups " not in text


async def test_concurrent_scrapes_share_one_gathering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with with_groups() as controller:
        asked: list[Command] = []
        real = controller._flow.segments._exchange

        async def exchange(command: Command) -> Command:
            if isinstance(command, wire.GetSegmentLoads):
                asked.append(command)
                await asyncio.sleep(0)
            return await real(command)

        monkeypatch.setattr(controller._flow.segments, "_exchange", exchange)
        for _ in range(100):
            await asyncio.sleep(0)
        assert asked == []
        first, *others = await asyncio.gather(*(controller.metrics.scrape("") for _ in range(10)))
        assert all(text == first for text in others)
        assert len(asked) == 1


@pytest.mark.parametrize("version", ["1.x", "a.b.c", '"1.0.0"', "1;version=1", "2.0.0", "99", "1.0.7"])
@pytest.mark.parametrize("kind", metrics.CONTENT_TYPES)
async def test_unsupported_versions_are_ignored(kind: str, version: str) -> None:
    async with with_groups(0) as controller:
        await controller.metrics.scrape(plainly := f"{kind};version={version}")
        assert metrics.encoder(plainly)[1] == "text/plain; version=0.0.4; charset=utf-8"
        await controller.metrics.scrape(better := f"{kind};version={version},application/openmetrics-text")
        assert metrics.encoder(better)[1].startswith("application/openmetrics-text; version=1.0.0")
        assert len(controller.metrics._texts._answers) == 2, "versions don't multiply the cached texts"


async def test_unreachable_store_makes_metrics_incomplete_until_it_returns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_groups() as controller:

        async def away() -> None:
            raise UnavailableError("the store is away")

        with monkeypatch.context() as patched:
            patched.setattr(controller._flow.segments, "loads", away)
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    await controller.metrics.scrape("")
        assert b"nadi_metrics_complete 1.0" in await controller.metrics.scrape("")
        assert "failed" not in caplog.text
