"""Retention rounds over a store: what is truncated and what is retained, whatever dies or changes concurrently."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest

from nadi.controller.controller import Controller
from nadi.controller.retention.cut_sizes import measure
from nadi.controller.state.history import Cut
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupConfig, GroupRetention, RetentionType, StreamConfigRecord
from nadi.limits import RETENTION_NAMES_MAX, RETENTION_PERIOD_S, RETENTION_SETTLE_S
from nadi.model.framing import frame_events
from nadi.model.named_records import StoredCuts
from nadi.model.streamcut import StreamCut
from nadi.naming import BOOKMARKS_TABLE, TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.fields import NO_VERSION, WireTableEntry

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, running, scaled, settle

EVENT = frame_events([bytes(92)])  # 100 bytes
PERIOD_MS, SETTLE_MS = int(RETENTION_PERIOD_S * 1000), int(RETENTION_SETTLE_S * 1000)
HOUR_MS = 3_600_000
GROUP, ID = GroupName("home", "readers"), "7b0fe3a2-55f1-4b2c-8c80-0e6f6f3b9d11"


def by_size(least: int, most: int = 0, *, over_bookmarks: bool = False, segments: int = 1) -> StreamConfigRecord:
    return StreamConfigRecord(
        min_segments=segments,
        retention_type=RetentionType.SIZE,
        retention_param=least,
        retention_max=most,
        retention_over_bookmarks=over_bookmarks,
    )


def by_time(least: int, *, segments: int = 1) -> StreamConfigRecord:
    return StreamConfigRecord(min_segments=segments, retention_type=RetentionType.TIME, retention_param=least)


@asynccontextmanager
async def limited(config: StreamConfigRecord) -> AsyncIterator[tuple[Controller, FakeStore, FakeClock]]:
    """Start a controller with one stream over a store with the same clock."""
    store, clock = FakeStore(), FakeClock()
    store.container._runtime = clock
    async with running(store, clock) as controller:
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, config)
        yield controller, store, clock


def write(store: FakeStore, events: int, segment: int = 0) -> None:
    for _ in range(events):
        store.append(STREAM.segment(segment), EVENT)


async def a_while(store: FakeStore, clock: FakeClock, minutes: int, segment: int = 0) -> None:
    """Write one event per minute."""
    for _ in range(minutes):
        write(store, 1, segment)
        clock.jump(60_000)


async def settled(controller: Controller) -> None:
    """Wait until the clock is trusted."""
    controller.retention._ages._started_ms -= SETTLE_MS


async def head(controller: Controller) -> Cut:
    return await controller.head(STREAM)


async def kept(controller: Controller) -> int:
    return (await measure(controller._flow, STREAM)).bytes_after({})


async def group(controller: Controller, retention: GroupRetention = GroupRetention.MANUAL) -> None:
    config = GroupConfig(3_000, 30_000, 3, retention, {STREAM.key: {}})
    await controller.create_reader_group(GROUP, config, ID)


async def publish(controller: Controller, cut: Cut) -> None:
    await controller.publish_cut(STREAM, GROUP.key, ID, 0, cut)


async def name(store: FakeStore, kind: str, label: str, *cuts: Cut) -> None:
    """Store a bookmark or slice like a client does."""
    stored = StoredCuts(STREAM.stream, [StreamCut(*STREAM, cut).as_text() for cut in cuts], 0)
    await put(store, f"{kind}/{label}", msgspec.json.encode(stored))


async def put(store: FakeStore, key: str, value: bytes) -> None:
    table = segment_name(STREAM.scope, BOOKMARKS_TABLE + TABLE_SUFFIX, 0)
    store.answer(wire.CreateTableSegment(0, table, "", False, 0, 0))
    reply = store.answer(wire.UpdateTableEntries(0, table, "", (WireTableEntry(key.encode(), NO_VERSION, value),)))
    assert isinstance(reply, wire.TableEntriesUpdated)


async def test_by_size_the_newest_are_kept_to_the_event() -> None:
    async with limited(by_size(1_000)) as (controller, store, clock):
        write(store, 10)
        await controller.retention.round()
        assert await head(controller) == {0: 0}
        await a_while(store, clock, 3)
        write(store, 1)
        await clock.advance(PERIOD_MS)
        assert await head(controller) == {0: 400}
        write(store, 500)
        await controller.update_stream(STREAM, by_size(1_050))
        await controller.retention.round()
        assert await kept(controller) == 1_100, "retention cuts at event boundaries"
        await controller.update_stream(STREAM, StreamConfigRecord(min_segments=1))
        write(store, 500)
        await controller.retention.round()
        assert await kept(controller) == 51_100, "retention was ended"
        assert [key async for key, _ in controller.metadata.limited.scan()] == []
        await controller.update_stream(STREAM, by_size(500))
        await controller.retention.round()
        assert await kept(controller) == 500


async def test_by_size_over_segments_and_epochs_all_keys_go_back_equally_far() -> None:
    async with limited(by_size(1_200, segments=2)) as (controller, store, clock):
        for segment in (0, 1, 0, 1):
            await a_while(store, clock, 5, segment)
        await scaled(controller, [0], [(0.0, 0.25), (0.25, 0.5)])
        left, right = sorted({s.id for s in await controller.current_segments(STREAM)} - {1})
        await a_while(store, clock, 2, left)
        await a_while(store, clock, 2, right)
        await a_while(store, clock, 2, 1)
        await controller.retention.round()
        assert await kept(controller) == 1_200
        assert await head(controller) == {0: 900, 1: 500}
        await controller.update_stream(STREAM, by_size(500, segments=2))
        await controller.retention.round()
        assert await head(controller) == {left: 100, right: 0, 1: 1_000}


async def test_by_time_to_the_minute_also_without_writes() -> None:
    async with limited(by_time(HOUR_MS)) as (controller, store, clock):
        await a_while(store, clock, 62)
        await controller.retention.round()
        assert await head(controller) in ({0: 200}, {0: 300})
        clock.jump(30 * 60_000)
        await controller.retention.round()
        assert await kept(controller) in (2_900, 3_000)
        clock.jump(HOUR_MS)
        await controller.retention.round()
        assert await kept(controller) <= 100


async def test_clock_is_trusted_after_a_delay() -> None:
    async with limited(by_time(1_000)) as (controller, store, clock):
        write(store, 1)
        await clock.advance(SETTLE_MS - PERIOD_MS)
        assert await kept(controller) == 100
        await clock.advance(3 * PERIOD_MS)
        assert await kept(controller) == 0


@pytest.mark.parametrize("jump_ms", [24 * HOUR_MS, -24 * HOUR_MS, 40 * 60_000, -40 * 60_000])
@pytest.mark.parametrize("back_after", [5, 90, 10_000])
async def test_setting_the_clock_truncates_nothing_early(jump_ms: int, back_after: int) -> None:
    """The real age of each event is known."""
    async with limited(by_time(HOUR_MS, segments=2)) as (controller, store, clock):
        await settled(controller)
        written: list[tuple[int, int, int]] = []  # segment, end, and monotonic time
        current = {0: 0, 1: 0}
        for minute in range(240):
            if minute == 70:
                clock.set(jump_ms)
            if minute == 70 + back_after:
                clock.set(-jump_ms)
            if minute in (75, 110, 165):  # fresh segments have no earlier dates
                await scaled(controller, sorted(current), [(0.0, 0.3), (0.3, 1.0)])
                current = {segment.id: 0 for segment in await controller.current_segments(STREAM)}
            for segment in current:
                write(store, 1, segment)
                current[segment] += 100
                written.append((segment, current[segment], clock.monotonic_ms()))
            for _ in range(6):
                clock.jump(10_000)
                await controller.retention._note_clocks()
            if minute % 5 == 0:
                await controller.retention.round()
                history, start = await controller.history(STREAM), await head(controller)
                gone = history.passed(start)
                for segment, end, when in written:
                    if clock.monotonic_ms() - when < HOUR_MS:
                        assert not gone(segment), minute
                        assert start.get(segment, 0) < end, minute
        if jump_ms > 0 and back_after > 1_000:
            assert await kept(controller) <= 2 * 100 * (60 + 10), "an hour, and some rounds"


async def test_slow_subscriber_holds_retention_back_up_to_the_maximum() -> None:
    async with limited(by_size(500, 2_000)) as (controller, store, clock):
        await group(controller)
        await a_while(store, clock, 10)
        await controller.retention.round()
        assert await head(controller) == {0: 500}, "a subscriber without a published cut doesn't count"
        await publish(controller, {0: 600})
        await a_while(store, clock, 10)
        await controller.retention.round()
        assert await head(controller) == {0: 600}
        report = await controller.retention.describe(STREAM)
        (holder,) = report.holders
        assert (holder.kind, holder.name) == ("subscriber", "home/readers")
        assert StreamCut.from_text(holder.cut).positions == {0: 600}
        assert (holder.bytes_after, report.retained_bytes) == (1_400, 1_400)
        await a_while(store, clock, 20)
        await controller.retention.round()
        assert await head(controller) == {0: 2_000}, "the maximum prevails"
        await a_while(store, clock, 3)
        await controller.retention.round()
        assert await head(controller) == {0: 2_300}, "its cut was truncated"
        await publish(controller, {0: 4_200})
        await controller.retention.round()
        assert await head(controller) == {0: 3_800}, "it is past the minimum"
        await publish(controller, {})
        await a_while(store, clock, 1)
        await controller.retention.round()
        assert await head(controller) == {0: 3_900}
        assert (await controller.retention.describe(STREAM)).holders == []


async def test_deleted_group_holds_nothing_back() -> None:
    async with limited(by_time(60_000)) as (controller, store, clock):
        await settled(controller)
        await group(controller, GroupRetention.AUTOMATIC)
        await publish(controller, {0: 0})
        await a_while(store, clock, 10)
        await controller.retention.round()
        assert await head(controller) == {0: 0}
        await controller.delete_reader_group(GROUP, ID)
        await controller.retention.round()
        assert await kept(controller) <= 200


async def test_names_override_the_maximum_unless_the_policy_overrides_them() -> None:
    async with limited(by_size(500, 1_000)) as (controller, store, clock):
        await a_while(store, clock, 10)
        await name(store, "bookmark", "monday", {0: 300})
        await name(store, "slice", "first", {0: 200}, {0: 400})
        await put(store, "bookmark/nonsense", b"{")
        await put(
            store, "slice/half", msgspec.json.encode(StoredCuts("meters", [StreamCut(*STREAM, {0: 0}).as_text()], 0))
        )
        await put(
            store,
            "bookmark/elsewhere",
            msgspec.json.encode(StoredCuts("meters", [StreamCut("a", "b", {0: 0}).as_text()], 0)),
        )
        await name(store, "bookmark", "nowhere", {77: 0})
        await a_while(store, clock, 30)
        await controller.retention.round()
        assert await head(controller) == {0: 200}
        report = await controller.retention.describe(STREAM)
        assert [(h.kind, h.name, h.bytes_after) for h in report.holders] == [
            ("slice", "first", 3_800),
            ("bookmark", "monday", 3_700),
        ]
        table = segment_name(STREAM.scope, BOOKMARKS_TABLE + TABLE_SUFFIX, 0)
        await controller.truncate_stream(STREAM, {0: 350})
        await controller.retention.round()
        assert await head(controller) == {0: 350}, "part of the slice remains"
        await controller.truncate_stream(STREAM, {0: 400})
        await name(store, "bookmark", "now", {0: 4_000})
        await controller.retention.round()
        assert await head(controller) == {0: 3_500}, "neither the slice nor the bookmark remains"
        await name(store, "bookmark", "monday", {0: 3_600})
        await a_while(store, clock, 10)
        await controller.retention.round()
        assert await head(controller) == {0: 3_600}
        await controller.update_stream(STREAM, by_size(500, over_bookmarks=True))
        await controller.retention.round()
        assert await head(controller) == {0: 4_500}
        assert table in store.tables


async def test_name_protects_data_after_its_segment_was_replaced() -> None:
    async with limited(by_size(100)) as (controller, store, clock):
        await a_while(store, clock, 3)
        await name(store, "bookmark", "end", {0: 300})
        await scaled(controller, [0], [(0.0, 0.5), (0.5, 1.0)])
        left, right = (segment.id for segment in await controller.current_segments(STREAM))
        await a_while(store, clock, 3, left)
        await controller.retention.round()
        assert await head(controller) == {0: 300}, "readers can start there"
        await controller.truncate_stream(STREAM, {left: 0, right: 0})
        await controller.retention.round()
        assert await head(controller) == {left: 0, right: 0}, "it is the same position"
        await controller.truncate_stream(STREAM, {left: 100, right: 0})
        await controller.retention.round()
        assert await head(controller) == {left: 200, right: 0}


async def test_sealed_stream_is_not_truncated_and_deleted_one_is_unlisted() -> None:
    async with limited(by_size(100)) as (controller, store, clock):
        await a_while(store, clock, 5)
        await controller.seal_stream(STREAM)
        await controller.retention.round()
        assert await kept(controller) == 500
        assert (await controller.retention.describe(STREAM)).retained_bytes == 500
        await controller.delete_stream(STREAM)
        await controller.retention.round()
        assert [key async for key, _ in controller.metadata.limited.scan()] == []


@pytest.mark.parametrize("change", ["policy", "truncated", "sealed", "deleted"])
async def test_concurrent_change_between_decision_and_truncation(change: str) -> None:
    async with limited(by_size(100)) as (controller, store, clock):
        await a_while(store, clock, 10)

        async def meanwhile(command: Command) -> None:
            if isinstance(command, wire.ReadTableEntries) and "subscribers" in command.segment:
                store.before = None
                if change == "policy":
                    await controller.update_stream(STREAM, by_size(500))
                elif change == "truncated":
                    await controller.truncate_stream(STREAM, {0: 1_000})
                else:
                    await controller.seal_stream(STREAM)
                    if change == "deleted":
                        await controller.delete_stream(STREAM)

        store.before = meanwhile
        await controller.retention.round()
        if change == "deleted":
            assert not await controller.stream_exists(STREAM)
            return
        assert await head(controller) == {0: 1_000 if change == "truncated" else 0}
        await controller.retention.round()
        assert await kept(controller) == {"policy": 500, "truncated": 0, "sealed": 1_000}[change]


async def test_controller_killed_at_any_step_truncates_completely_or_not_at_all() -> None:
    """The controller is killed right before each command, and so right after the previous one."""
    for step in count():
        store, clock = FakeStore(), FakeClock()
        store.container._runtime = clock
        controller = new_controller(store, clock)
        await controller.start()
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, by_size(300))
        await a_while(store, clock, 5)
        await scaled(controller, [0], [(0.0, 0.5), (0.5, 1.0)])
        left, right = (segment.id for segment in await controller.current_segments(STREAM))
        await a_while(store, clock, 4, left)
        await controller.retention.round()
        await a_while(store, clock, 4, left)
        store.die_at(step)
        round_ = controller._tasks.spawn(controller.retention.round())
        while not (round_.done() or store.dead.is_set()):
            await settle(1)
        was_killed = store.dead.is_set()
        await controller.stop()
        store.revive()
        async with running(store, clock) as again:
            await settle(300)
            assert await head(again) in ({left: 100, right: 0}, {left: 500, right: 0}), step
            await again.retention.round()
            await settle(300)
            assert await head(again) == {left: 500, right: 0}, step
            assert store.segments[STREAM.segment(left)].start == 500
            assert STREAM.segment(0) not in store.segments
        if not was_killed:
            assert step > 10
            return


async def test_failure_of_one_stream_or_a_full_disk_does_not_affect_others() -> None:
    async with limited(by_size(100)) as (controller, store, clock):
        other = StreamName("home", "other")
        await controller.create_stream(other, by_size(100))
        await a_while(store, clock, 5)
        for _ in range(5):
            store.append(other.segment(0), EVENT)

        async def refuse(command: Command) -> None:
            if isinstance(command, wire.LocateMoment) and command.segment.startswith(STREAM.key + "/"):
                raise RuntimeError("this stream is odd")

        store.before, store.full = refuse, True
        await controller.retention.round()
        assert (await measure(controller._flow, other)).bytes_after({}) == 100
        assert await kept(controller) == 500
        store.before = None
        await controller.retention.round()
        assert await kept(controller) == 100


async def test_too_many_names_stop_retention_rather_than_some_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RETENTION_NAMES_MAX > 1
    monkeypatch.setattr("nadi.limits.RETENTION_NAMES_MAX", 1)
    async with limited(by_size(100)) as (controller, store, clock):
        await a_while(store, clock, 5)
        for called in ("one", "two"):
            await name(store, "bookmark", called, {0: 500})
        await controller.retention.round()
        assert await kept(controller) == 500


async def test_idle_stream_costs_little() -> None:
    async with limited(by_size(150)) as (controller, store, clock):
        await a_while(store, clock, 50)
        for _ in range(3):
            await controller.retention.round()
        before = len(store.log)
        await controller.retention.round()
        assert len(store.log) - before < 12
        assert not any(isinstance(command, wire.LocateMoment) for command in store.log[before:])
