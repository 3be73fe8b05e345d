"""Segment loads as reported over the wire and in the process, over all containers."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi import limits
from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.controller.state.segments import Segments
from nadi.limits import LOAD_REPORT_POSITIONS
from nadi.model.load import WINDOWS_S, KeySample, ScaleType, SegmentLoad
from nadi.naming import LOAD_SEGMENT
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.counters import LoadMeter
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.load_reports import report_of_keys, unpacked_loads
from tests.segmentstore.harness import WRITER, Peer, open_store
from tests.support.memory_store import MemoryStore
from tests.support.waiting import until_async

S = "home/meters/0.#epoch.0"


class Ahead(Runtime):
    """A clock that a test advances; the store's timers follow the real one."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def monotonic(self) -> float:
        return 1_000.0 + self.by_s


class Asked:
    """Counts the pages requested from a store."""

    def __init__(self, store: SegmentStore) -> None:
        self._store, self.pages = store, 0

    async def exchange(self, command: wire.Command) -> wire.Command:
        self.pages += 1
        return await self._store.exchange(command)


async def appended(peer: Peer, segment: str, batches: int, events: int = 10, writer: bytes = WRITER) -> None:
    await peer.create(segment)
    await peer.setup(segment, writer)
    for number in range(batches):
        await peer.append([b"x" * 92] * events, (number + 1) * events, writer)


async def loads(store: SegmentStore | MemoryStore) -> list[SegmentLoad]:
    return await Segments(store.exchange, REAL).loads()


async def test_loads_of_all_containers_are_listed_in_order(tmp_path: Path) -> None:
    clock = Ahead()
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(8))
    async with open_store(tmp_path, containers=3, runtime=clock) as (store, peer):
        for name in names:
            await appended(peer, name, 2)
        await appended(peer, "home/_MARKmeters/0.#epoch.0", 2)
        await appended(peer, "home/t_kvtable/0.#epoch.0", 2)
        clock.by_s += 1.0
        found = await loads(store)
        assert [load.segment for load in found] == names
        for load in found:
            assert 1.0 <= load.age_s < 20
            assert load.events_per_s == pytest.approx([20 / load.age_s] * 6)
            assert load.bytes_per_s == pytest.approx([2000 / load.age_s] * 6)
            assert load.keys is None
        assert all(len(container.load.loads()) < len(names) for container in store.containers)


async def test_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.server.service.LOAD_PAGE_SEGMENTS", 3)
    clock = Ahead()
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(7))
    async with open_store(tmp_path, containers=2, runtime=clock) as (store, peer):
        assert await loads(store) == []
        for name in names:
            await appended(peer, name, 1)
        clock.by_s += 1.0
        first = await peer.ask(wire.GetSegmentLoads(1, LOAD_SEGMENT, "", ""))
        assert [load.segment for load in unpacked_loads(first.loads)] == names[:3]
        assert not first.is_last
        assert [load.segment for load in await loads(store)] == names
        for name in ("home/metal/0.#epoch.0", "home/meters2/0.#epoch.0"):
            await appended(peer, name, 1)
        clock.by_s += 1.0
        asked = Asked(store)
        assert [load.segment for load in await Segments(asked.exchange, REAL).loads("home/meters/")] == names
        assert asked.pages == 3, "no other pages are requested"
        assert await Segments(asked.exchange, REAL).loads("home/none/") == []


async def test_elastic_loads_omit_segments_that_do_not_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ahead()
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(4))
    async with open_store(tmp_path, containers=2, runtime=clock) as (store, peer):
        segments = Segments(store.exchange, REAL)
        for name in names:
            await appended(peer, name, 1)
        await peer.ask(wire.UpdateSegmentPolicy(3, names[1], 100, ScaleType.EVENTS_PER_SECOND, ""))
        await peer.ask(wire.UpdateSegmentPolicy(4, names[2], 100, ScaleType.FIXED, ""))
        clock.by_s += 1.0
        loads, is_complete = await segments.elastic_loads()
        assert ([load.segment for load in loads], is_complete) == (names[1:2], True)
        assert [load.segment for load in await segments.loads()] == names
        monkeypatch.setattr(limits, "LOAD_SEGMENTS", 1)
        assert (await segments.elastic_loads())[1] is False, "a container may have more"
        for container in store.containers:
            monkeypatch.setattr(container.state.record_cache, "in_memory", lambda name: None)
        assert [load.segment for load in (await segments.elastic_loads())[0]] == names


async def test_a_transaction_counts_as_it_passes_and_its_merge_adds_nothing(tmp_path: Path) -> None:
    clock = Ahead()
    transaction = f"{S}#transaction.{1:032x}"
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await peer.create(S)
        await appended(peer, transaction, 3)
        clock.by_s += 1.0
        (before,) = await loads(store)
        assert before.segment == S
        assert before.events_per_s[0] * before.age_s == pytest.approx(30)
        await peer.ask(wire.MergeSegmentsBatch(5, S, (transaction,), ""))
        clock.by_s += 30.0
        (after,) = await loads(store)
        assert after.events_per_s[0] < 0.001


async def test_refused_appends_are_not_counted(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await appended(peer, S, 1)
        await peer.ask(wire.SealSegment(7, S, ""))
        assert isinstance(await peer.append([b"x"] * 1000, 2000), wire.SegmentIsSealed)
        clock.by_s += 1.0
        (load,) = await loads(store)
        assert load.events_per_s[0] * load.age_s == pytest.approx(10)


async def test_loads_require_the_server_token(tmp_path: Path) -> None:
    key = TokenKey(b"k" * 64)
    async with open_store(tmp_path, tokens=key) as (_, peer):
        reply = await peer.ask(wire.GetSegmentLoads(1, LOAD_SEGMENT, key.master(), ""))
        assert reply == wire.SegmentLoads(1, LOAD_SEGMENT, b"\x90", True)
        assert isinstance(await peer.ask(wire.GetSegmentLoads(1, S, key.master(), "")), wire.NoSuchSegment)


async def test_a_container_that_recovers_keeps_its_loads(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, containers=1, runtime=clock) as (store, peer):
        await appended(peer, S, 2)
        (container,) = store.containers
        container._recover_from(OSError("the disk is gone for a moment"))
        before = container.state
        await until_async(lambda: container.failure is None and container.state is not before)
        clock.by_s += 1.0
        (load,) = await loads(store)
        assert load.events_per_s[-1] * load.age_s == pytest.approx(20, rel=0.02)


# --- reports of keys ---------------------------------------------------------------------------------


async def measured(peer: Peer, store: SegmentStore, clock: Ahead, segment: str = S) -> SegmentLoad:
    """Return the load of ten events/s of 100 bytes."""
    await appended(peer, segment, 1)
    await peer.ask(wire.UpdateSegmentPolicy(2, segment, 10, ScaleType.EVENTS_PER_SECOND, ""))
    clock.by_s += 1.0
    (load,) = await loads(store)
    return load


@pytest.mark.parametrize(
    ("target", "scale_type", "is_sent"),
    [
        (19, ScaleType.EVENTS_PER_SECOND, True),
        (21, ScaleType.EVENTS_PER_SECOND, False),
        (1, ScaleType.KIB_PER_SECOND, True),
        (2, ScaleType.KIB_PER_SECOND, False),
        (0, ScaleType.FIXED, False),
    ],
)
async def test_keys_are_sent_of_segments_near_their_target(
    tmp_path: Path, target: int, scale_type: int, is_sent: bool
) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await measured(peer, store, clock)
        await peer.ask(wire.UpdateSegmentPolicy(3, S, target, scale_type, ""))
        peer.send(report_of_keys(WRITER, 300, [0.5]))
        await peer.ask(wire.KeepAlive())
        (load,) = await loads(store)
        assert load.keys == (KeySample((0.5,), (300.0,)) if is_sent else KeySample((), ()))


async def test_a_report_counts_for_the_session_s_segment(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        assert (await measured(peer, store, clock)).keys is None
        peer.send(report_of_keys(WRITER, 300, [0.0, 0.25, math.nextafter(1.0, 0.0)]))
        await peer.ask(wire.KeepAlive())
        (load,) = await loads(store)
        assert load.keys == KeySample((0.0, 0.25, math.nextafter(1.0, 0.0)), (100.0, 100.0, 100.0))
        clock.by_s += 11.0
        (load,) = await loads(store)
        assert load.keys is None


@pytest.mark.parametrize(
    "report",
    [
        wire.ReportKeys(WRITER, 1, b""),
        wire.ReportKeys(WRITER, 1, bytes(7)),
        wire.ReportKeys(WRITER, 1, bytes(8 * 65)),
        report_of_keys(WRITER, 0, [0.5]),
        report_of_keys(WRITER, -1, [0.5]),
        report_of_keys(WRITER, 1, [1.0]),
        report_of_keys(WRITER, 1, [-0.1]),
        report_of_keys(WRITER, 1, [math.nan]),
        report_of_keys(WRITER, 1, [0.5, math.inf]),
        report_of_keys(bytes(16), 1, [0.5]),  # a writer without SetupAppend
    ],
    ids=str,
)
async def test_a_bad_report_ends_its_connection(tmp_path: Path, report: wire.ReportKeys) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await measured(peer, store, clock)
        peer.send(report)
        assert await peer.closed()
        (load,) = await loads(store)
        assert load.keys is None


async def test_report_accepts_the_maximum_of_positions(tmp_path: Path) -> None:
    clock = Ahead()
    async with open_store(tmp_path, runtime=clock) as (store, peer):
        await measured(peer, store, clock)
        peer.send(report_of_keys(WRITER, 1, [0.5] * LOAD_REPORT_POSITIONS))
        await peer.ask(wire.KeepAlive())
        (load,) = await loads(store)
        assert load.keys is not None
        assert sum(load.keys.weights) == 1.0


async def test_key_reports_are_offered_only_to_clients_that_support_them(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        assert await peer.ask(wire.Hello(17, 5)) == wire.Hello(17, 5)
        assert await peer.ask(wire.Hello(10_000, 5)) == wire.Hello(17, 5)
        reply = await peer.ask(wire.OWN_HELLO)
        assert wire.knows(reply, wire.ReportKeys)
        assert reply.low_version == 5


async def test_a_session_whose_token_has_ended_reports_nothing(tmp_path: Path) -> None:
    clock = Ahead()
    key = TokenKey(b"k" * 64, now_s=time.time, monotonic_s=clock.monotonic)
    async with open_store(tmp_path, tokens=key, runtime=clock) as (store, peer):
        token = key.issue("home", "meters", Permission.READ_UPDATE)
        await peer.ask(wire.CreateSegment(1, S, 0, 0, key.master()))
        await peer.ask(wire.SetupAppend(2, WRITER, S, token))
        await peer.append([b"x"], 1)
        clock.by_s += 100_000.0
        peer.send(report_of_keys(WRITER, 1, [0.5]))
        await peer.ask(wire.KeepAlive())
        assert not any(container.load._samples._reports for container in store.containers)


# --- rates of segments: exact for constant loads at any age, decaying after bursts, limited in memory ---


TRANSACTION = f"{S}#transaction.{1:032x}"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[LoadMeter, Clock]:
    clock = Clock()
    return LoadMeter(clock), clock


def run(meter: LoadMeter, clock: Clock, seconds: float, per_s: float, *, step_s: float = 0.1, segment: str = S) -> None:
    """Simulate a steady load: each frame has the events due since the previous one."""
    for _ in range(round(seconds / step_s)):
        clock.now += step_s
        meter.count([(segment, round(per_s * step_s), round(100 * per_s * step_s))], clock.now)


def only(meter: LoadMeter) -> SegmentLoad:
    (load,) = meter.loads()
    return load


@settings(max_examples=40, deadline=None)
@given(
    per_step=st.integers(1, 10_000),
    step_s=st.sampled_from([0.01, 0.1, 0.3, 0.7, 1.5]),
    seconds=st.sampled_from([3, 15, 100, 1500]),
)
def test_a_constant_rate_is_the_rate_of_each_window_at_any_age(per_step: int, step_s: float, seconds: float) -> None:
    meter, clock = made()
    meter.count([(S, 0, 0)], clock.now)  # the first frame starts the age, so it must be empty
    steps = min(round(seconds / step_s), 2_000)
    for _ in range(steps):
        clock.now += step_s
        meter.count([(S, per_step, 7 * per_step)], clock.now)
    load = only(meter)
    rate = per_step / step_s
    # a fold may precede or follow a frame, so a young segment's mean varies by one frame
    assert load.events_per_s == pytest.approx([rate] * len(WINDOWS_S), rel=1.1 * step_s)
    assert load.bytes_per_s == pytest.approx([7 * mean for mean in load.events_per_s])


def test_a_segment_of_a_second_has_its_mean_in_all_windows() -> None:
    meter, clock = made()
    run(meter, clock, 100, 10, segment="home/other/0.#epoch.0")
    clock.now += 0.97  # between folds
    run(meter, clock, 1.2, 500)
    load = next(load for load in meter.loads() if load.segment == S)
    assert 0.5 <= load.age_s <= 1.2
    assert load.events_per_s == pytest.approx([500] * 6, rel=0.15)
    assert len(set(load.events_per_s)) == 1


def test_new_segment_has_no_load_yet() -> None:
    meter, clock = made()
    meter.count([(S, 1_000_000, 1_000_000)], clock.now)
    clock.now += 0.2
    assert meter.loads() == []
    clock.now += 0.4
    assert only(meter).events_per_s == pytest.approx([1_000_000 / 0.6] * 6)


def test_a_burst_decays_by_the_window() -> None:
    meter, clock = made()
    run(meter, clock, 6000, 10, step_s=0.5)
    run(meter, clock, 60, 1000)
    before = only(meter).events_per_s
    assert before[0] == pytest.approx(1000, rel=0.06)  # 0.1 s more or less in the last fold
    assert before[-1] == pytest.approx(10 + 990 * -math.expm1(-60 / 1200), rel=0.06)
    clock.now += 20
    after = only(meter).events_per_s
    for window_s, was, now in zip(WINDOWS_S, before, after, strict=True):
        assert now == pytest.approx(was * math.exp(-20 / window_s), rel=0.05, abs=0.1)


@pytest.mark.parametrize("ask_every_s", [0.3, 1.0, 55.0])
def test_a_pause_after_a_burst_is_not_part_of_it(ask_every_s: float) -> None:
    """No call folds the counts until the next request."""
    meter, clock = made()
    run(meter, clock, 30, 100)
    end = clock.now + 55
    while clock.now < end - 0.001:
        clock.now += ask_every_s
        load = only(meter)
    assert load.events_per_s[0] < 0.01
    assert load.events_per_s[1] == pytest.approx(100 * math.exp(-5.5) / -math.expm1(-8.5), rel=0.2)


def test_counts_before_a_long_stop_stay_a_rate() -> None:
    """The process is stopped for an hour: the clock jumps ahead between two frames."""
    meter, clock = made()
    run(meter, clock, 30, 100)
    clock.now += 3600
    meter.count([(S, 100, 100)], clock.now)
    clock.now += 1
    load = only(meter)
    assert load.events_per_s[0] == pytest.approx(100, rel=0.01)
    assert load.age_s == pytest.approx(1.0)  # it was idle longer than the longest window, so its measurement restarts


def test_a_clock_that_goes_back_changes_nothing() -> None:
    meter, clock = made()
    run(meter, clock, 30, 100)
    load = only(meter)
    clock.now -= 3600
    meter.count([(S, 0, 0)], clock.now)
    assert only(meter) == load
    clock.now += 3600
    run(meter, clock, 10, 100)
    assert only(meter).events_per_s == pytest.approx([100] * 6, rel=0.05)


def test_an_idle_segment_is_forgotten_after_the_longest_window() -> None:
    meter, clock = made()
    run(meter, clock, 5, 100)
    clock.now += WINDOWS_S[-1] - 1
    assert 0 < only(meter).events_per_s[-1] < 100
    clock.now += 2
    assert meter.loads() == []
    assert not meter._rows
    run(meter, clock, 2, 10)
    assert only(meter).events_per_s == pytest.approx([10] * 6, rel=0.2)


def test_recreated_segment_starts_without_the_old_load() -> None:
    meter, clock = made()
    run(meter, clock, 700, 900)
    run(meter, clock, 0.3, 900)  # counted but not folded
    meter.count([(TRANSACTION, 7, 700)], clock.now)
    meter.report(S, [0.5], 100)
    meter.forget(TRANSACTION)
    assert only(meter).keys is not None, "a transaction's end is not its parent's"
    meter.forget(S)
    meter.forget(S)
    assert not meter.loads()
    clock.now += 5
    run(meter, clock, 3, 10)
    load = only(meter)
    assert load.age_s <= 3
    assert load.keys is None
    assert load.events_per_s == pytest.approx([10] * 6, rel=0.15)
    clock.now += 2_000
    assert not meter.loads()


def test_longest_idle_segment_is_evicted_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOAD_SEGMENTS", 10)
    names = [f"home/meters/{number}.#epoch.0" for number in range(12)]
    meter, clock = made()

    def seconds(count: int, taking: list[str]) -> set[str]:
        for _ in range(10 * count):
            clock.now += 0.1
            meter.count([(name, 10, 10) for name in taking], clock.now)
        return {load.segment for load in meter.loads()}

    assert seconds(3, names[:10]) == set(names[:10])
    assert seconds(3, names) == set(names[:10])  # all of them are busy
    assert seconds(9, [*names[2:11]]) == set(names[:10])
    assert seconds(4, [*names[2:11]]) - {names[0], names[1]} == set(names[2:11])
    assert len(meter._names) <= 11
    assert all(
        load.events_per_s[0] == pytest.approx(100, rel=0.1) for load in meter.loads() if load.segment in names[2:11]
    )


def test_transaction_segments_do_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOAD_SEGMENTS", 10)
    meter, clock = made()
    for number in range(1000):
        clock.now += 0.01
        meter.count([(f"{S}#transaction.{number:032x}", 1, 10)], clock.now)
    assert len(meter._rows) <= 40
    assert only(meter).events_per_s == pytest.approx([100] * 6, rel=0.02)


def test_many_reports_are_reduced_to_few_positions() -> None:
    meter, clock = made()
    run(meter, clock, 2, 100)
    chance = np.random.default_rng(7)
    for _ in range(200):
        clock.now += 0.05
        hot = [0.3] * 32  # half of the load is one key
        meter.report(S, [*hot, *chance.uniform(0.5, 1.0, 32)], 640)
    keys = only(meter).keys
    assert keys is not None
    assert len(keys.positions) == limits.LOAD_KEY_POSITIONS
    assert sum(keys.weights) == pytest.approx(200 * 640, rel=0.05)
    weights, positions = np.array(keys.weights), np.array(keys.positions)
    assert weights[positions == 0.3].sum() / weights.sum() == pytest.approx(0.5, abs=0.02)
    assert weights[positions > 0.75].sum() / weights.sum() == pytest.approx(0.25, abs=0.03)
    assert all(each.count <= limits.LOAD_KEY_POSITIONS for each in meter._samples._reports[S])


def test_samples_are_limited_to_a_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.counters.LOAD_KEYS_SEGMENTS", 2)
    meter, clock = made()
    names = [f"home/meters/{number}.#epoch.0" for number in range(3)]
    for _ in range(2):
        clock.now += 0.6
        meter.count([(name, 1, 1) for name in names], clock.now)
    for name in names:
        meter.report(name, [0.5], 1)
    assert [load.keys is not None for load in meter.loads()] == [True, True, False]
