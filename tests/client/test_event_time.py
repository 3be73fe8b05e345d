"""Event time against a complete server: noted times, time windows of readers, cuts for a time."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from nadi.client import StreamManager, TimeWindow, aio
from nadi.client.manager.streams import stores_of
from nadi.client.reading import watermarks
from nadi.client.serializers import Text
from nadi.client.state_sync.revisioned_stream import open_revisioned_stream
from nadi.errors import ClosedError, InvalidArgumentError, StreamNotFoundError
from nadi.limits import MAX_EVENT_BYTES, WATERMARKS_A_ROUND
from nadi.model.keyspace import key_position
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import SegmentPosition, Watermark, encode_watermark
from nadi.testing import RestartableServer

_names = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RestartableServer]:
    limits = {"NADI_LIMITS": "log_file_bytes=16777216,watermark_period_s=0.2"}
    with RestartableServer(environment=limits) as server:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("sc")
        yield server


@pytest.fixture
def manager(server: RestartableServer) -> Iterator[StreamManager]:
    server.ensure_running()
    with StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.fixture(scope="module")
def seldom() -> Iterator[StreamManager]:
    """A client of a server with four seconds between two rounds of watermarks."""
    environment = {"NADI_LIMITS": "watermark_period_s=4"}
    with RestartableServer(environment=environment) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        yield manager


def new_stream(manager: StreamManager, segments: int = 1, **more: Any) -> str:
    stream = f"st{next(_names)}"
    manager.create_stream("sc", stream, segments, **more)
    return stream


T = TypeVar("T")


def until(poll: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    deadline = time.monotonic() + timeout_s
    while (result := poll()) is None:
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)
    return result


def reached(manager: StreamManager, stream: str, timestamp_ms: int) -> StreamCut:
    """Wait for the cut after that time and return it."""
    cuts = manager.cuts("sc", stream)
    return until(lambda: cuts.after_event_time(timestamp_ms))


def await_a_round(manager: StreamManager) -> None:
    """Return once the controller has checked all streams again."""
    stream = new_stream(manager)
    with manager.create_writer("sc", stream) as writer:
        writer.note_time(1).result(60)
        reached(manager, stream, 1)


def times(
    manager: StreamManager, stream: str, start: StreamCut | None = None, end: StreamCut | None = None
) -> list[int]:
    """Return the events' data as numbers, which are their times."""
    end = end or manager.cuts("sc", stream).tail()
    return sorted(int(event.data) for event in manager.read_events("sc", stream, start=start, end=end))


def test_events_before_a_noted_time_are_before_its_watermark(manager: StreamManager) -> None:
    stream = new_stream(manager, 2)
    cuts = manager.cuts("sc", stream)
    assert cuts.after_event_time(1) is None
    assert cuts.at_event_time(1) == cuts.head()
    with manager.create_writer("sc", stream) as writer:
        for step in range(0, 60, 10):
            writer.write_batch([b"%d" % (step + i) for i in range(10)], [f"k{i}" for i in range(10)])
            writer.note_time(step + 10).result(60)
            reached(manager, stream, step + 10)
            for past in range(10, step + 11, 10):
                assert times(manager, stream, end=reached(manager, stream, past)) == list(range(past))
                later = [t for t in times(manager, stream, cuts.at_event_time(past)) if t >= past]
                assert later == list(range(past, step + 10))
        assert cuts.after_event_time(61) is None
        assert cuts.at_event_time(61) == cuts.after_event_time(60)  # no event between them


def test_note_waits_until_earlier_events_are_stored(server: RestartableServer, manager: StreamManager) -> None:
    stream = new_stream(manager)
    with manager.create_writer("sc", stream) as writer:
        writer.write_event(b"1").result(60)
        with server.down():
            stored = writer.write_event(b"2")
            noted = writer.note_time(3)
            assert not noted.done()
        noted.result(60)
        assert stored.done()
        assert times(manager, stream, end=reached(manager, stream, 3)) == [1, 2]


def test_only_the_newest_waiting_note_is_sent(server: RestartableServer) -> None:
    sent: list[int] = []

    async def main() -> None:
        async with aio.StreamManager(server.controller_uri) as manager:
            name = f"st{next(_names)}"
            await manager.create_stream("sc", name)
            writer = await manager.create_writer("sc", name)
            send = stores_of(manager).controller._send

            async def counting(rpc: str, request: Any, timeout_s: float) -> Any:
                if rpc == "noteTimestampFromWriter":
                    sent.append(request.timestamp)
                return await send(rpc, request, timeout_s)

            stores_of(manager).controller._send = counting  # type: ignore[method-assign]
            acks = []
            for number in range(1_000):
                writer.write_event(b"%d" % number)
                acks.append(writer.note_time(number))
                if number % 100 == 0:
                    await acks[-1]
            for ack in acks:
                await ack
            await writer.close()

    asyncio.run(main())
    assert sent == sorted(sent)
    assert sent[-1] == 999
    assert len(sent) < 200  # of 1,000; a few dozen on a quiet machine


def test_decreasing_time_of_a_writer_id_is_rejected_even_after_reuse(manager: StreamManager) -> None:
    stream = new_stream(manager, timestamp_aggregation_timeout_ms=600_000)
    with manager.create_writer("sc", stream) as other, manager.create_writer("sc", stream, writer_id="w") as writer:
        other.note_time(1).result(60)  # so that the mark of writer w is not removed
        writer.note_time(50).result(60)
        writer.note_time(50).result(60)
        with pytest.raises(InvalidArgumentError):
            writer.note_time(49)
        for wrong in (1 << 63, -(1 << 63), 1.5):
            with pytest.raises(InvalidArgumentError):
                writer.note_time(wrong)  # type: ignore[arg-type]
        writer.close()
        with pytest.raises(ClosedError):
            writer.note_time(51)
        with manager.create_writer("sc", stream, writer_id="w") as again:
            with pytest.raises(InvalidArgumentError):
                again.note_time(49).result(60)
            again.note_time(51).result(60)
    for wrong_id in ("", "w" * 256):
        with pytest.raises(InvalidArgumentError):
            manager.create_writer("sc", stream, writer_id=wrong_id)


def test_silent_writer_delays_watermarks_until_it_is_closed(manager: StreamManager) -> None:
    stream = new_stream(manager, timestamp_aggregation_timeout_ms=600_000)
    cuts = manager.cuts("sc", stream)
    with manager.create_writer("sc", stream) as silent, manager.create_writer("sc", stream) as busy:
        silent.note_time(10).result(60)
        busy.note_time(20).result(60)
        reached(manager, stream, 10)
        busy.note_time(30).result(60)
        for _ in range(3):
            await_a_round(manager)
        assert cuts.after_event_time(11) is None
        silent.close()
        reached(manager, stream, 30)


def test_writers_of_a_client_that_ends_are_removed(server: RestartableServer, manager: StreamManager) -> None:
    stream = new_stream(manager, timestamp_aggregation_timeout_ms=600_000)
    with manager.create_writer("sc", stream) as busy:
        with StreamManager(server.controller_uri) as ending:
            ending.create_writer("sc", stream).note_time(10).result(60)
            transactions = ending.create_transaction_writer("sc", stream)
            transactions.begin_txn().commit(wait=True, timestamp_ms=11)
            busy.note_time(20).result(60)
            reached(manager, stream, 10)
        busy.note_time(30).result(60)
        reached(manager, stream, 30)


def test_close_without_a_server_ends_within_seconds(
    server: RestartableServer, manager: StreamManager, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the default leaves only a second after a writer's timeout, and a machine may stall for longer
    monkeypatch.setattr("nadi.client.manager.streams._CLOSING_TIMEOUT_S", 15.0)
    stream = new_stream(manager)
    groups = manager.reader_group_manager("sc")
    groups.create_reader_group("left", stream, dead_after_ms=60_000)
    other = StreamManager(server.controller_uri)
    writers = [f"writer {number}" for number in range(6)]
    for name in writers[:3]:
        other.create_writer("sc", stream, writer_id=name).note_time(1).result(60)
    for name in writers[3:]:
        with other.create_transaction_writer("sc", stream, writer_id=name).begin_txn() as txn:
            txn.commit(wait=True, timestamp_ms=1)
    reader = other.reader_group_manager("sc").get_reader_group("left").create_reader("r")
    assert reader.read_next_event(0.1) is None
    server.kill()
    began = time.monotonic()
    other.close()
    assert time.monotonic() - began < 20
    assert sorted(name for name in writers if f"{name} of" in caplog.text) == writers
    with pytest.raises(ClosedError):
        reader.read_next_event(1)


def test_silent_writer_delays_watermarks_until_the_streams_timeout(manager: StreamManager) -> None:
    stream = new_stream(manager, timestamp_aggregation_timeout_ms=1_000)
    manager.update_stream("sc", stream, tags=["timed"])
    assert manager.stream_configuration("sc", stream).timestamp_aggregation_timeout_ms == 1_000
    with manager.create_writer("sc", stream) as silent, manager.create_writer("sc", stream) as busy:
        silent.note_time(10).result(60)
        busy.note_time(20).result(60)
        reached(manager, stream, 10)
        busy.note_time(30).result(60)
        reached(manager, stream, 30)


def test_the_wall_clock_is_noted_automatically(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.client.writing.event_time.AUTOMATIC_NOTE_S", 0.1)
    stream = new_stream(manager)
    before_ms = time.time_ns() // 1_000_000
    with manager.create_writer("sc", stream, automatically_note_time=True) as writer:
        writer.write_event(b"1")
        assert times(manager, stream, end=reached(manager, stream, before_ms + 300)) == [1]


def test_automatic_notes_include_the_time_of_close(manager: StreamManager) -> None:
    stream = new_stream(manager)
    before_ms = time.time_ns() // 1_000_000
    with manager.create_writer("sc", stream, serializer=Text(), automatically_note_time=True) as writer:
        writer.write_event("1")
        assert writer.note_time(before_ms) is not None
    assert times(manager, stream, end=reached(manager, stream, before_ms)) == [1]


def test_transaction_notes_the_time_of_its_commit(manager: StreamManager) -> None:
    stream = new_stream(manager, 2)
    with manager.create_transaction_writer("sc", stream, serializer=Text()) as writer:
        for step in (10, 20):
            txn = writer.begin_txn()
            txn.write_batch([str(step - i) for i in range(5)], [f"k{i}" for i in range(5)])
            txn.commit(timestamp_ms=step)
            assert len(times(manager, stream, end=reached(manager, stream, step))) == step // 2
        with writer.begin_txn() as txn:
            with pytest.raises(InvalidArgumentError):
                txn.commit(timestamp_ms=1 << 63)
            txn.abort()


def test_the_window_of_a_reader_follows_it(manager: StreamManager) -> None:
    stream = new_stream(manager, 2)
    boundaries = [0]
    with manager.create_writer("sc", stream) as writer:
        for step in (10, 20, 30):
            for i in range(40):
                writer.write_event(b"%d" % (step - 10 + i // 4), f"k{i}")
            writer.note_time(step).result(60)
            boundaries.append(step)
            reached(manager, stream, step)
    cuts = manager.cuts("sc", stream)
    cut_of = {step: reached(manager, stream, step) for step in (10, 20, 30)}
    expected = {
        cuts.head(): TimeWindow(None, 10),
        cut_of[10]: TimeWindow(10, 20),
        cuts.after(cut_of[10], 4): TimeWindow(10, 20),
        cut_of[20]: TimeWindow(20, 30),
        cut_of[30]: TimeWindow(30, None),
    }
    for cut, window in expected.items():
        with manager.create_reader("sc", stream, start=cut) as reader:
            assert reader.current_time_window() == window
    first, second = cut_of[10].positions.items()
    between = StreamCut("sc", stream, dict([first, (second[0], 0)]))
    with manager.create_reader("sc", stream, start=between) as reader:
        assert reader.current_time_window() == TimeWindow(None, 10)
    with manager.create_reader("sc", stream, serializer=Text(), end=cut_of[30], routing_keys=["k0"]) as values:
        windows = [values.current_time_window()]
        while (events := values.next_events()) is not None:
            windows.append(values.current_time_window())
            assert all(int(event.value) < 30 for event in events)
        assert windows[0] == TimeWindow(None, 10)
        assert windows[-1] == TimeWindow(30, None)
        lowers = [window.lower or 0 for window in windows]
        assert lowers == sorted(lowers)


def test_the_window_of_a_reader_of_a_group(manager: StreamManager) -> None:
    stream = new_stream(manager, 2)
    groups = manager.reader_group_manager("sc")
    groups.create_reader_group(f"{stream}-readers", stream)
    with (
        manager.create_writer("sc", stream) as writer,
        groups.get_reader_group(f"{stream}-readers").create_reader("reader") as reader,
    ):
        assert reader.current_time_window(f"sc/{stream}") == TimeWindow(None, None)
        for i in range(8):
            writer.write_event(b"%d" % i, f"k{i}")
        writer.note_time(8).result(60)
        reached(manager, stream, 8)
        assert reader.current_time_window(f"sc/{stream}") == TimeWindow(None, 8)
        for _ in range(8):
            read = reader.read_next_event(60)
            assert read is not None
            assert read.event is not None
        assert reader.current_time_window(f"sc/{stream}") == TimeWindow(8, None)
        with pytest.raises(InvalidArgumentError, match="sc/other"):
            reader.current_time_window("sc/other")


def test_event_times_of_a_missing_stream_raise(manager: StreamManager) -> None:
    cuts = manager.cuts("sc", "nothing")
    for find_cut in (cuts.at_event_time, cuts.after_event_time):
        with pytest.raises(StreamNotFoundError):
            find_cut(5)
    stream = new_stream(manager)
    with manager.create_writer("sc", stream) as writer:
        writer.note_time(10).result(60)
        reached(manager, stream, 10)
        manager.seal_stream("sc", stream)
        manager.delete_stream("sc", stream)
        with pytest.raises(StreamNotFoundError):
            writer.note_time(20).result(60)
    manager.create_stream("sc", stream)
    assert manager.cuts("sc", stream).after_event_time(10) is None


def test_cuts_for_a_time_before_the_head_are_the_head(manager: StreamManager) -> None:
    stream = new_stream(manager)
    cuts = manager.cuts("sc", stream)
    with manager.create_writer("sc", stream) as writer:
        for step in range(10, 70, 10):
            writer.write_event(b"%d" % step)
            writer.note_time(step).result(60)
            reached(manager, stream, step)
        manager.truncate_stream(reached(manager, stream, 40))
        assert cuts.at_event_time(35) == cuts.after_event_time(10) == cuts.head()
        writer.note_time(70).result(60)
        reached(manager, stream, 70)
        assert until(lambda: manager.cuts("sc", f"_MARK{stream}").head() if _trimmed(manager, stream) else None)
        assert cuts.at_event_time(35) == cuts.after_event_time(10) == cuts.head()
        assert times(manager, stream, cuts.at_event_time(60))[-1] == 60


@pytest.mark.parametrize(
    ("scanned", "entry", "usual"),
    [pytest.param(100, 200, 20, marks=pytest.mark.slow), (1_000, 200, 100), (1 << 18, 1 << 20, 1 << 12)],
)
async def test_search_in_a_long_mark_stream_finds_every_watermark(
    server: RestartableServer, monkeypatch: pytest.MonkeyPatch, scanned: int, entry: int, usual: int
) -> None:
    sizes = {"SCANNED_BYTES": scanned, "ENTRY_MAX_BYTES": entry, "_NEAR_BYTES": scanned, "_ENTRY_USUAL_BYTES": usual}
    for constant, value in sizes.items():
        monkeypatch.setattr(watermarks, constant, value)
    rng = random.Random(scanned)
    name = f"st{next(_names)}"

    async with aio.StreamManager(server.controller_uri) as manager:
        await manager.create_stream("sc", name)
        marks = await open_revisioned_stream(stores_of(manager), "sc", f"_MARK{name}")
        stored, end = [Watermark(0, 3, (SegmentPosition(0, 0.0, 1.0, 0),))], 0
        for offset in range(1, 30):
            last = stored[-1]
            lower = last.lower + rng.randint(1, 4)
            upper = max(last.upper, lower) + rng.randint(0, 4)
            floor = {0: offset - 1} if offset % 3 else {}
            stored.append(Watermark(lower, upper, (SegmentPosition(0, 0.0, 1.0, offset),), floor))
        for mark in stored:
            end = await marks.append(encode_watermark(mark), end)
        for timestamp in range(-1, stored[-1].upper + 2):
            after = [mark for mark in stored if mark.lower >= timestamp]
            cut = await watermarks.cut_after(stores_of(manager), "sc", name, timestamp)
            assert cut == (StreamCut("sc", name, after[0].positions()) if after else None)
            before = [mark for mark in stored if mark.lower < timestamp and mark.floor]
            cut = await watermarks.cut_before(stores_of(manager), "sc", name, timestamp)
            assert cut == (StreamCut("sc", name, dict(before[-1].floor)) if before else None)
        for number, mark in enumerate(stored):
            next_upper = stored[number + 1].upper if number < 29 else None
            windows = watermarks.TimeWindows(stores_of(manager), "sc", name)
            assert await windows.at({0: number}) == TimeWindow(mark.lower, next_upper)
        for low in (stored[0].lower - 1, *(mark.lower for mark in stored[::7])):
            accepted = [mark for mark in stored if mark.lower <= low]
            start = await watermarks.find_last(stores_of(manager), "sc", name, functools.partial(_is_at_most, low))
            read = [mark async for _, mark in watermarks.watermarks(stores_of(manager), "sc", name, start)]
            assert accepted[-1:] == [mark for mark in read if mark.lower <= low][-1:]
            skipped = len(accepted) - sum(mark.lower <= low for mark in read)
            assert skipped >= len(accepted) - 1 - scanned // 73  # the size of an entry


def _is_at_most(lower: int, watermark: Watermark) -> bool:
    return watermark.lower <= lower


def _trimmed(manager: StreamManager, stream: str) -> bool:
    return any(manager.cuts("sc", f"_MARK{stream}").head().positions.values())


def test_half_a_year_loaded_between_two_rounds_is_cut_by_its_notes(seldom: StreamManager) -> None:
    hours, stream = 4_380, "year"
    seldom.create_stream("sc", stream, 2, timestamp_aggregation_timeout_ms=60_000)
    with seldom.create_writer("sc", stream) as first_half, seldom.create_writer("sc", stream) as other_half:
        for hour in range(hours):
            for number, writer in enumerate((first_half, other_half)):
                writer.write_event(b"%d" % hour, f"meter {number} {hour % 3}")
                writer.note_time(hour)
                if hour % 100 == 0:
                    writer.flush()  # so that the writers' events alternate
    reached(seldom, stream, hours - 1)
    marks = seldom.cuts("sc", f"_MARK{stream}")
    assert marks.events_between(marks.head(), marks.tail()) <= 3 * WATERMARKS_A_ROUND
    cuts = seldom.cuts("sc", stream)
    for start in random.Random(5).choices(range(hours - 168), k=8):
        first, last = cuts.between(start, start + 168)
        week = times(seldom, stream, first, last)
        expected = sorted([*range(start, start + 168)] * 2)
        assert [hour for hour in week if start <= hour < start + 168] == expected
        assert len(week) < len(expected) + 4_000  # of 8,760: each writer's steps have 8 KiB, which is 700 events


def test_writer_id_reused_within_a_round_keeps_its_earlier_events_before_the_cut(seldom: StreamManager) -> None:
    stream = new_stream(seldom, timestamp_aggregation_timeout_ms=60_000)
    with seldom.create_writer("sc", stream) as other:
        with seldom.create_writer("sc", stream, writer_id="w") as writer:
            for ready in (writer, other):
                ready.note_time(0).result(60)
            reached(seldom, stream, 0)  # the next round is four seconds away
            other.note_time(9).result(60)
            writer.write_batch([b"%d" % event for event in range(1, 8)])
            writer.note_time(7).result(60)
        with seldom.create_writer("sc", stream, writer_id="w") as writer:
            writer.note_time(9).result(60)
            writer.write_event(b"10")
            writer.note_time(20).result(60)
            assert [t for t in times(seldom, stream, reached(seldom, stream, 9)) if t < 9] == []


def test_event_with_an_unknown_end_does_not_hold_back_later_cuts(manager: StreamManager) -> None:
    stream = new_stream(manager, 2, timestamp_aggregation_timeout_ms=60_000)
    low, high = (
        next(key for key in map(str, range(99)) if (key_position(key) < 0.5) is is_low) for is_low in (True, False)
    )
    with manager.create_writer("sc", stream) as writer:
        writer.write_event(bytes(MAX_EVENT_BYTES + 1), low).result(60)
        for hour in range(10):
            writer.write_event(bytes(9_000), high)
            writer.note_time(hour).result(60)
            reached(manager, stream, hour)
    assert sum(manager.cuts("sc", stream).at_event_time(9).positions.values()) > MAX_EVENT_BYTES


def test_several_writers_scaling_and_a_crash_between(server: RestartableServer, manager: StreamManager) -> None:
    """Each event's data is its time; the writers' times differ and grow randomly."""
    rng = random.Random(7)
    stream = new_stream(manager, 2, timestamp_aggregation_timeout_ms=60_000)
    cuts = manager.cuts("sc", stream)
    clocks = [0, 15, 40]
    writers = [manager.create_writer("sc", stream, writer_id=f"w{i}") for i in range(3)]
    written: list[int] = []
    for clock, writer in zip(clocks, writers, strict=True):
        writer.note_time(clock).result(60)  # the slowest first: watermarks wait only after a note

    def step() -> None:
        for number, writer in enumerate(writers):
            for _ in range(rng.randrange(6)):
                clocks[number] += rng.randrange(3)
                written.append(clocks[number])
                writer.write_event(b"%d" % clocks[number], f"k{rng.randrange(50)}")
            writer.note_time(clocks[number])

    deadline = time.monotonic() + 100
    for number in itertools.count():
        step()
        time.sleep(0.02)
        match number:
            case 20:
                first = manager.current_segments("sc", stream)[0]
                middle = (first.low + first.high) / 2
                manager.scale_stream("sc", stream, [first.segment_id], [(first.low, middle), (middle, first.high)])
            case 40:
                server.restart()
            case 60:
                one, two = manager.current_segments("sc", stream)[:2]
                manager.scale_stream("sc", stream, [one.segment_id, two.segment_id], [(one.low, two.high)])
        if number > 80 and number % 10 == 0 and cuts.at_event_time(min(clocks)) != cuts.head():
            break
        assert time.monotonic() < deadline, "watermarks don't advance"
    for writer in writers:
        writer.close()
    slowest = min(clocks)
    reached(manager, stream, slowest)
    assert times(manager, stream) == sorted(written)
    for timestamp in [*range(1, slowest, max(1, slowest // 20)), slowest]:
        end = reached(manager, stream, timestamp)
        cuts.check(end)
        before = times(manager, stream, end=end)
        assert [t for t in before if t < timestamp] == sorted(t for t in written if t < timestamp)
        start = cuts.at_event_time(timestamp)
        cuts.check(start)
        after = times(manager, stream, start)
        assert [t for t in after if t >= timestamp] == sorted(t for t in written if t >= timestamp)
    assert start != cuts.head()
