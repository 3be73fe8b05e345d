"""Watermark rounds: the contents of mark streams, whatever dies, is deleted or interferes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nadi.controller.controller import Controller
from nadi.controller.event_time import MarkStream
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Step, StreamConfigRecord
from nadi.errors import UnavailableError
from nadi.limits import (
    SEGMENT_CALL_ATTEMPTS,
    SEGMENT_CALLS_AT_ONCE,
    TIME_STEPS_MAX,
    WATERMARK_PERIOD_S,
    WATERMARKS_A_ROUND,
)
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import MARK_PREFIX, REVISION_MARK, segment_id
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from tests.support.waiting import until_async

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, running, scaled, settle, with_stream

MARK = "home/_MARKmeters/0.#epoch.0"
OTHER = StreamName("home", "others")


def whole(lower: int, upper: int, offset: int) -> Watermark:
    return Watermark(lower, upper, (SegmentPosition(0, 0.0, 1.0, offset),))


async def stored(controller: Controller, store: FakeStore, segment: str = MARK) -> list[Watermark]:
    """Return all stored watermarks, without their floors."""
    return [replace(watermark, floor={}) for watermark in await whole_entries(controller, store, segment)]


async def whole_entries(controller: Controller, store: FakeStore, segment: str = MARK) -> list[Watermark]:
    data = store.segments[segment]
    entries = MarkStream(controller._flow.segments, segment).entries(data.start, len(data.data))
    return [entry.watermark async for entry in entries]


async def timed(controller: Controller) -> set[str]:
    return {key async for key, _ in controller.metadata.timed.scan()}


async def writers(controller: Controller, name: StreamName = STREAM) -> set[str]:
    return {key async for key, _ in controller.metadata.marks(name).scan()}


async def test_marks_become_watermarks_every_period() -> None:
    async with with_stream(1) as (controller, store, clock):
        await controller.note_time(STREAM, "a", 10, {0: 70})
        await controller.note_time(STREAM, "b", 50, {0: 30})
        await clock.advance(int(WATERMARK_PERIOD_S * 1000) - 1)
        assert store.data(MARK) == b""
        await clock.advance(1)
        assert await stored(controller, store) == [whole(10, 50, 70)]
        assert store.segments[MARK].attributes[REVISION_MARK] == 0
        await controller.note_time(STREAM, "a", 20, {0: 80})
        await clock.advance(int(WATERMARK_PERIOD_S * 1000))
        assert await stored(controller, store) == [whole(10, 50, 70), whole(20, 50, 80)]
        assert store.segments[MARK].attributes[REVISION_MARK] == 0
        await controller.note_time(STREAM, "a", 30, {0: 90})
        await clock.advance(int(WATERMARK_PERIOD_S * 1000))
        assert await stored(controller, store) == [whole(10, 50, 70), whole(20, 50, 80), whole(30, 50, 90)]
        assert store.segments[MARK].attributes[REVISION_MARK] == len(store.data(MARK)) // 3


async def test_steps_become_watermarks_and_are_dropped() -> None:
    async with with_stream(1) as (controller, store, _):
        steps: list[Step] = [(time, {0: 1_000 * time}) for time in range(1, 51)]
        await controller.note_time(STREAM, "a", 50, {0: 50_100}, steps)
        await controller.watermarks.round()
        made = await whole_entries(controller, store)
        assert [mark.lower for mark in made] == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]  # at least 4 KiB apart
        assert [one.positions() for one in made[:-1]] == [one.floor for one in made[:-1]]
        assert made[-1] == Watermark(50, 50, (SegmentPosition(0, 0.0, 1.0, 50_100),), {0: 50_000})
        marks = await controller.metadata.marks(STREAM).get("a", fresh=True)
        assert marks is not None
        assert marks.value.steps == ((50, {0: 50_000}),)


async def test_watermarks_are_made_at_once_of_many_steps() -> None:
    async with with_stream(1) as (controller, store, _):
        for first in (0, TIME_STEPS_MAX):
            steps: list[Step] = [(first + time, {0: 8192 * (first + time)}) for time in range(1, TIME_STEPS_MAX + 1)]
            await controller.note_time(STREAM, "a", steps[-1][0], steps[-1][1], steps)
        made = await whole_entries(controller, store)
        assert made[-1].lower == 2 * TIME_STEPS_MAX
        assert len(made) == WATERMARKS_A_ROUND
        await controller.note_time(STREAM, "a", steps[-1][0] + 1, {0: 1 << 30})
        assert len(await whole_entries(controller, store)) == len(made)


async def test_stream_without_active_writers_is_unlisted_until_the_next_mark() -> None:
    async with with_stream(1) as (controller, store, _):
        await controller.note_time(STREAM, "a", 10, {0: 70})
        assert await timed(controller) == {"home/meters"}
        await controller.watermarks.round()
        assert (await writers(controller), await timed(controller)) == ({"a"}, {"home/meters"})
        await controller.watermarks.round()
        assert (await writers(controller), await timed(controller)) == (set(), set())
        await controller.note_time(STREAM, "a", 11, {0: 70})
        await controller.watermarks.round()
        assert await stored(controller, store) == [whole(10, 10, 70), whole(11, 11, 70)]


async def test_late_writer_delays_the_watermark_until_timeout_or_removal() -> None:
    async with with_stream(1, timestamp_aggregation_timeout_ms=60_000) as (controller, store, clock):
        await controller.note_time(STREAM, "late", 10, {0: 1})
        await controller.note_time(STREAM, "b", 50, {0: 2})
        await controller.watermarks.round()
        await controller.watermarks.round()  # the late writer is now known to be stalled
        clock.jump(59_000)
        await controller.watermarks.round()
        assert len(await stored(controller, store)) == 1
        await controller.note_time(STREAM, "late", 20, {0: 3})  # and its timeout restarts
        await controller.watermarks.round()
        await controller.watermarks.round()
        clock.jump(59_000)
        await controller.watermarks.round()
        assert (await stored(controller, store))[1:] == [whole(20, 50, 3)]
        clock.jump(2_000)
        await controller.watermarks.round()
        assert (await stored(controller, store))[2:] == [whole(50, 50, 3)]
        assert await writers(controller) == {"b"}
        await controller.note_time(STREAM, "c", 60, {0: 4})
        await controller.watermarks.round()
        assert len(await stored(controller, store)) == 3  # b is stalled now
        await controller.remove_writer(STREAM, "b")
        await controller.watermarks.round()
        assert (await stored(controller, store))[3:] == [whole(60, 60, 4)]
        assert await writers(controller) == {"c"}


async def test_a_writer_that_notes_a_time_while_it_is_dropped_stays() -> None:
    async with with_stream(1) as (controller, store, _):
        await controller.note_time(STREAM, "a", 10, {0: 70})
        await controller.note_time(STREAM, "b", 50, {0: 80})
        await controller.watermarks.round()

        noted = asyncio.Event()

        async def note_before_the_mark_is_removed(command: wire.Command) -> None:
            if isinstance(command, wire.RemoveTableKeys) and command.segment.endswith("marks/home/meters"):
                store.before = None
                await controller.note_time(STREAM, "a", 60, {0: 90})
                noted.set()

        store.before = note_before_the_mark_is_removed
        await controller.watermarks.round()
        assert noted.is_set()
        assert await writers(controller) == {"a", "b"}
        await controller.watermarks.round()
        assert (await stored(controller, store))[-1] == whole(60, 60, 90)


async def test_mark_stored_while_unlisting_lists_the_stream_again() -> None:
    async with with_stream(1) as (controller, store, _):
        await controller.note_time(STREAM, "a", 10, {0: 70})
        await controller.watermarks.round()

        async def note_before_it_is_struck_off(command: wire.Command) -> None:
            if isinstance(command, wire.RemoveTableKeys) and command.segment.endswith("/timed"):
                store.before = None
                await controller.note_time(STREAM, "b", 60, {0: 90})

        store.before = note_before_it_is_struck_off
        await controller.watermarks.round()
        assert await timed(controller) == {"home/meters"}
        await controller.watermarks.round()
        assert (await stored(controller, store))[-1] == whole(60, 60, 90)


async def test_store_death_in_a_round_loses_and_duplicates_no_watermark() -> None:
    commands = 0
    while True:
        async with with_stream(1, timestamp_aggregation_timeout_ms=5) as (controller, store, clock):
            await controller.note_time(STREAM, "a", 10, {0: 1})
            await controller.note_time(STREAM, "b", 20, {0: 2})
            await controller.watermarks.round()
            await controller.note_time(STREAM, "b", 30, {0: 3})
            store.die_at(commands)
            failed = False
            for _ in range(3):
                task = asyncio.ensure_future(controller.watermarks.round())
                while not task.done():
                    await clock.advance(5_000)
                failed |= task.exception() is not None
            store.revive()
        async with running(store, clock) as controller:
            for _ in range(5):
                await controller.watermarks.round()
                clock.jump(5)
            assert await stored(controller, store) == [whole(10, 20, 2), whole(30, 30, 3)]
            assert (await writers(controller), await timed(controller)) == (set(), set())
        if not failed:
            assert commands > 10
            return
        commands += 1


async def test_a_scale_in_between() -> None:
    async with with_stream(2) as (controller, store, _):
        await controller.note_time(STREAM, "a", 10, {0: 70, 1: 5})
        await controller.watermarks.round()
        store.append(STREAM.segment(0), b"x" * 100)
        await scaled(controller, [0], [(0.0, 0.25), (0.25, 0.5)])
        low, high = segment_id(2, 1), segment_id(3, 1)
        await controller.note_time(STREAM, "a", 20, {0: 100, 1: 6})  # it hasn't noticed the scale yet
        await controller.watermarks.round()
        await controller.note_time(STREAM, "a", 30, {low: 3, high: 4, 1: 6})
        await controller.note_time(STREAM, "b", 31, {0: 100, 1: 7})
        await controller.watermarks.round()
        assert [one.positions() for one in await stored(controller, store)] == [
            {0: 70, 1: 5},
            {0: 100, 1: 6},
            {low: 3, high: 4, 1: 7},
        ]
        await scaled(controller, [low, high, 1], [(0.0, 0.5), (0.5, 1.0)])
        await controller.note_time(STREAM, "c", 40, {segment_id(5, 2): 1})
        await controller.watermarks.round()
        last = (await stored(controller, store))[-1]
        new = (SegmentPosition(segment_id(4, 2), 0.0, 0.5, 0), SegmentPosition(segment_id(5, 2), 0.5, 1.0, 1))
        assert last == Watermark(31, 40, new)


async def test_deleted_stream_is_unlisted_and_a_recreated_one_starts_over() -> None:
    async with with_stream(1) as (controller, store, _):
        await controller.note_time(STREAM, "a", 10, {0: 70})
        await controller.watermarks.round()
        await controller.seal_stream(STREAM)
        await controller.delete_stream(STREAM)
        assert await timed(controller) == set()
        await controller.watermarks.round()
        await controller.create_stream(STREAM, StreamConfigRecord())
        await controller.note_time(STREAM, "a", 3, {1: 8})
        await controller.watermarks.round()
        new = STREAM.mark.segment(1)
        assert await stored(controller, store, new) == [Watermark(3, 3, (SegmentPosition(1, 0.0, 1.0, 8),))]


def test_a_stream_deleted_in_the_middle_of_its_round_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with with_stream(1) as (controller, store, _):
            await controller.note_time(STREAM, "a", 10, {0: 70})
            await controller.seal_stream(STREAM)

            deleted = asyncio.Event()

            async def delete_before_the_watermark_is_stored(command: wire.Command) -> None:
                if isinstance(command, wire.ConditionalAppend):
                    store.before = None
                    await controller.delete_stream(STREAM)
                    deleted.set()

            store.before = delete_before_the_watermark_is_stored
            await controller.watermarks.round()
            assert deleted.is_set()
            await controller.watermarks.round()
            assert MARK not in store.segments
            assert await timed(controller) == set()

    asyncio.run(main())
    assert not [record for record in caplog.records if "watermark" in record.getMessage()]


def test_error_of_one_stream_is_logged_once_and_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with with_stream(1) as (controller, store, _):
            await controller.create_stream(OTHER, StreamConfigRecord())
            store.append(MARK, b"not a valid entry at all")
            for time in (10, 20, 30):
                await controller.note_time(STREAM, "a", time, {0: 1})
                await controller.note_time(OTHER, "a", time, {0: 1})
                await controller.watermarks.round()
            assert len(await stored(controller, store, OTHER.mark.segment(0))) == 3

    asyncio.run(main())
    messages = [record.getMessage() for record in caplog.records if "no watermarks" in record.getMessage()]
    assert len(messages) == 1
    assert "home/meters" in messages[0]


async def test_many_streams_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.WATERMARK_STREAMS_A_ROUND", 4)
    async with with_stream(1) as (controller, store, _):
        names = [StreamName("home", f"s{number}") for number in range(10)]
        for name in names:
            await controller.create_stream(name, StreamConfigRecord())
            await controller.note_time(name, "a", 10, {0: 1})

        def made() -> int:
            return sum(bool(store.data(name.mark.segment(0))) for name in names)

        counts = []
        for _ in range(3):
            await controller.watermarks.round()
            counts.append(made())
        assert counts == [4, 8, 10]


async def test_a_truncated_stream_drops_the_watermarks_before_its_head() -> None:
    async with with_stream(1) as (controller, store, _):
        store.append(STREAM.segment(0), b"x" * 100)
        for time in range(10, 60, 10):
            await controller.note_time(STREAM, "a", time, {0: time})
            await controller.watermarks.round()
        await controller.truncate_stream(STREAM, {0: 35})
        assert len(await stored(controller, store)) == 5
        await controller.note_time(STREAM, "a", 60, {0: 60})
        await controller.watermarks.round()
        assert [one.lower for one in await stored(controller, store)] == [30, 40, 50, 60]
        start = store.segments[MARK].start
        assert (await controller.head(STREAM.mark)) == {0: start}
        await controller.truncate_stream(STREAM, {0: 100})
        await controller.note_time(STREAM, "a", 70, {0: 70})
        await controller.watermarks.round()
        assert [one.lower for one in await stored(controller, store)] == [50, 60, 70]
        assert store.segments[MARK].attributes[REVISION_MARK] >= store.segments[MARK].start


def test_too_many_writers_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        monkeypatch.setattr("nadi.limits.WATERMARK_WRITERS_MAX", 9)
        async with with_stream(1) as (controller, store, _):
            for number in range(9):
                await controller.note_time(STREAM, f"w{number}", 10, {0: 1})
            await controller.watermarks.round()
            assert len(await stored(controller, store)) == 1
            await controller.note_time(STREAM, "one more", 20, {0: 1})
            await controller.watermarks.round()
            assert len(await stored(controller, store)) == 1

    asyncio.run(main())
    assert ["more than 9 writers" in record.getMessage() for record in caplog.records] == [True]


async def test_invalid_attribute_is_ignored() -> None:
    async with with_stream(1) as (controller, store, _):
        await controller.note_time(STREAM, "a", 10, {0: 1})
        await controller.watermarks.round()
        for wrong in (1 << 40, len(store.data(MARK)), -5):
            store.segments[MARK].attributes[REVISION_MARK] = wrong
            await controller.note_time(STREAM, "a", 10, {0: 1})
            await controller.watermarks.round()
            assert await stored(controller, store) == [whole(10, 10, 1)]


async def test_internal_streams_have_no_watermarks() -> None:
    async with with_stream(1) as (controller, _store, _):
        for name in (StreamName("home", "_RGgroup"), STREAM.mark):
            if name != STREAM.mark:
                await controller.create_stream(name, StreamConfigRecord())
            await controller.note_time(name, "a", 10, {0: 0})
        assert await timed(controller) == set()


async def test_rounds_end_with_the_controller() -> None:
    store, clock = FakeStore(), FakeClock()
    controller = new_controller(store, clock)
    await controller.start()
    await clock.advance(int(WATERMARK_PERIOD_S * 1000))
    await controller.stop()
    asked = len(store.log)
    await clock.advance(int(WATERMARK_PERIOD_S * 1000))
    await settle()
    assert len(store.log) == asked
    assert len(asyncio.all_tasks()) == 1


# --- a store that doesn't answer doesn't delay calls to others ---------------------------------------


FAR = "far"  # prefix of streams in another store, which never replies


def place_of(command: Command) -> str:
    its = getattr(command, "segment", "").removeprefix("home/").removeprefix(MARK_PREFIX)
    return FAR if its.startswith(FAR) else "here"


async def test_unresponsive_store_does_not_delay_calls_to_others() -> None:
    store, answers, waiting, most = FakeStore(), asyncio.Event(), 0, 0

    async def exchange(command: Command) -> Command:
        nonlocal waiting, most
        if place_of(command) == FAR and not answers.is_set():
            waiting += 1
            most = max(most, waiting)
            try:
                await answers.wait()
                raise UnavailableError("no reply")
            finally:
                waiting -= 1
        return await store.exchange(command)

    controller = Controller(
        exchange, endpoint_of=lambda _: ("127.0.0.1", 1), rpc_endpoint=("127.0.0.1", 2), place_of=place_of
    )
    await controller.start()
    await controller.create_scope("home")
    names = [StreamName("home", f"{FAR}-{number}") for number in range(2 * SEGMENT_CALLS_AT_ONCE)]
    far = asyncio.gather(*(controller.create_stream(name, StreamConfigRecord()) for name in names))
    await until_async(lambda: waiting == SEGMENT_CALLS_AT_ONCE)
    async with asyncio.timeout(60):
        for number in range(3):
            await controller.create_stream(StreamName("home", f"near-{number}"), StreamConfigRecord())
        await controller.list_streams("home", "")
    assert not far.done()
    answers.set()
    await far
    assert all([await controller.stream_exists(name) for name in names])
    assert most == SEGMENT_CALLS_AT_ONCE, "each store has its own limit"
    await controller.stop()


async def test_unresponsive_store_is_asked_once_per_round() -> None:
    store, clock, is_away, asked = FakeStore(), FakeClock(), False, 0

    async def exchange(command: Command) -> Command:
        nonlocal asked
        if place_of(command) == FAR and is_away:
            asked += 1
            raise UnavailableError("unreachable")
        return await store.exchange(command)

    controller = Controller(
        exchange, clock=clock, endpoint_of=lambda _: ("127.0.0.1", 1), rpc_endpoint=("127.0.0.1", 2), place_of=place_of
    )
    await controller.start()
    await controller.create_scope("home")
    names = [StreamName("home", f"{kind}-{number}") for number in range(4) for kind in (FAR, "near")]
    for name in names:
        await controller.create_stream(name, StreamConfigRecord())
        await controller.note_time(name, "writer", 10, {0: 70})

    def are_made(kind: str) -> list[bool]:
        return [store.data(name.mark.segment(0)) != b"" for name in names if name.stream.startswith(kind)]

    is_away = True
    for _ in range(3):  # a round that overruns delays the next one
        await clock.advance(int(WATERMARK_PERIOD_S * 1000))
    assert all(are_made("near"))
    assert asked <= 3 * SEGMENT_CALL_ATTEMPTS
    is_away = False
    for _ in range(3):
        await clock.advance(int(WATERMARK_PERIOD_S * 1000))
    assert all(are_made(FAR))
    await controller.stop()
