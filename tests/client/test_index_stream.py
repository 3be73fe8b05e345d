"""Index streams against a server: records, search, truncation, and invalid arguments."""

from __future__ import annotations

import asyncio
import bisect
import threading
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nadi.client import StreamManager, aio
from nadi.client.indexstream.record import RECORD_SIZE_ATTRIBUTE, Fields, decode
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    EventTooLargeError,
    InvalidArgumentError,
    RequestTimeoutError,
    SerializationError,
    StreamSealedError,
    TruncatedError,
)
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION
from tests.support.asking import ask
from tests.support.waiting import until

SIZE = 4096
BOTH = ("time", "offset")


def write(manager: StreamManager, stream: str, count: int, *, size: int | None = None) -> None:
    """Write records with time 10, 20, ... and offset 1, 2, ..."""
    manager.create_stream("sc", stream)
    with manager.create_index_writer("sc", stream, BOTH, record_size=size) as writer:
        for n in range(1, count + 1):
            writer.append({"time": 10 * n, "offset": n}, b"%d" % n)


def test_appended_records_are_found_and_read(manager: StreamManager) -> None:
    manager.create_stream("sc", "frames")
    with manager.create_index_writer("sc", "frames", BOTH) as writer, manager.create_index_reader("sc", "frames") as r:
        assert (writer.record_size, writer.tell(), writer.last()) == (SIZE, 0, {})
        assert (r.first(), r.last(), list(r.read()), r.search("time", 5)) == (None, None, [], 0)
        places = [writer.append({"offset": n, "time": 10 * n}, bytes([n]) * n) for n in range(5)]
        assert places == [0, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE]
        writer.flush()
        assert writer.last() == {"time": 40, "offset": 4}
        assert [r.search("time", time) for time in (0, 1, 10, 11, 40, 41)] == [
            0, SIZE, SIZE, 2 * SIZE, 4 * SIZE, 5 * SIZE
        ]  # fmt: skip
        assert (r.head(), r.tail(), r.record_size()) == (0, 5 * SIZE, SIZE)
        assert [(one.offset, one.value("time"), one.data) for one in r.read(SIZE, 3 * SIZE)] == [
            (SIZE, 10, b"\1"),
            (2 * SIZE, 20, b"\2\2"),
        ]
        first, last, third = r.first(), r.last(), r.at(2 * SIZE)
        assert first is not None
        assert last is not None
        assert (first.data, last.data, third.value("offset"), third.has("pos")) == (b"", b"\4" * 4, 2, False)
        assert [one.data for one in r.read(3 * SIZE)] == [b"\3" * 3, b"\4" * 4]
        assert list(r.read(3 * SIZE, SIZE)) == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), min_size=1, max_size=9, unique=True),
    st.data(),
)
def test_record_round_trips(names: list[str], data: st.DataObject) -> None:
    fields = Fields(names)
    values = data.draw(st.tuples(*[st.integers(0, (1 << 64) - 1) for _ in names]))
    size = data.draw(st.integers(32 + 24 * len(names), 4096))
    payload = data.draw(st.binary(max_size=min(size - 32 - 24 * len(names), 300)))
    found = decode(fields.encode(values, payload, size), 7)
    assert (found.offset, found.data, [found.value(name) for name in names]) == (7, payload, list(values))


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_invalid_record_is_rejected(noise: bytes) -> None:
    record = bytearray(Fields(["t"]).encode([5], b"data", 200))
    record[: len(noise)] = noise
    try:
        decode(record, 0)
    except SerializationError:
        return
    assert record[:16] == Fields(["t"]).encode([5], b"data", 200)[:16]


def test_new_writer_continues_after_the_last_record(manager: StreamManager) -> None:
    write(manager, "longer", 3)
    with manager.create_index_writer("sc", "longer", BOTH) as writer:
        assert writer.last() == {"time": 30, "offset": 3}
        with pytest.raises(InvalidArgumentError):
            writer.append({"time": 40, "offset": 2})
        assert writer.append({"time": 30, "offset": 3}) == 3 * SIZE
    with manager.create_index_writer("sc", "longer", (*BOTH, "pos")) as writer:
        assert writer.last() == {"time": 30, "offset": 3}
        writer.append({"time": 31, "offset": 4, "pos": 0})
        writer.append({"time": 31, "offset": 4, "pos": 7})
    reader = manager.create_index_reader("sc", "longer")
    assert reader.search("pos", 0) == 4 * SIZE
    assert reader.search("pos", 1) == 5 * SIZE
    for names in (["offset", "time"], ["time"], ["time", "offset"], ["time", "offset", "other"], ["time", "pos"]):
        with pytest.raises(InvalidArgumentError):
            manager.create_index_writer("sc", "longer", names)
    with pytest.raises(InvalidArgumentError, match="speed"):
        reader.search("speed", 0)


def test_only_after_a_given_record(manager: StreamManager) -> None:
    manager.create_stream("sc", "after")
    with manager.create_index_writer("sc", "after", ["t"]) as writer:
        writer.append({"t": 1}, after={})
        with pytest.raises(ConditionFailedError):
            writer.append({"t": 2}, after={})
        assert writer.append({"t": 2}, after={"t": 1}) == SIZE
    with manager.create_index_writer("sc", "after", ["t"]) as writer:
        with pytest.raises(ConditionFailedError):
            writer.append({"t": 3}, after={"t": 1})
        assert writer.append({"t": 3}, after={"t": 2}) == 2 * SIZE


def test_second_writer_makes_the_first_fail(manager: StreamManager) -> None:
    manager.create_stream("sc", "two")
    first = manager.create_index_writer("sc", "two", ["t"])
    second = manager.create_index_writer("sc", "two", ["t"])
    first.append({"t": 5}, b"first")
    first.flush()
    second.append({"t": 3}, b"second")
    with pytest.raises(ConditionFailedError):
        second.flush()
    with pytest.raises(ConditionFailedError):
        second.append({"t": 6})
    first.append({"t": 6})
    first.close()
    assert [record.value("t") for record in manager.create_index_reader("sc", "two").read()] == [5, 6]


def test_records_of_another_size(manager: StreamManager) -> None:
    write(manager, "small", 100, size=83)
    reader = manager.create_index_reader("sc", "small")
    assert (reader.record_size(), reader.tail()) == (83, 8300)
    assert reader.search("time", 505) == 83 * 50
    with manager.create_index_writer("sc", "small", BOTH) as writer:
        assert (writer.record_size, writer.data_limit) == (83, 3)
        with pytest.raises(EventTooLargeError):
            writer.append({"time": 1000, "offset": 100}, b"four")
    with pytest.raises(InvalidArgumentError, match="4,096"):
        manager.create_index_writer("sc", "small", BOTH, record_size=SIZE)
    with pytest.raises(InvalidArgumentError):
        manager.create_index_writer("sc", "small", (*BOTH, "more"))


def test_wrong_arguments_are_refused_and_harm_nothing(manager: StreamManager) -> None:
    manager.create_stream("sc", "wrong")
    fields: list[Any] = [[], "time", ["t", "t"], [""], [5], ["\ud800"], [f"f{n}" for n in range(101)], None]
    sizes: list[Any] = [0, -1, 55, 65_537, 1 << 40, True, 64.0]
    for names, size in [*((names, None) for names in fields), *((["t"], size) for size in sizes)]:
        with pytest.raises(InvalidArgumentError):
            manager.create_index_writer("sc", "wrong", names, record_size=size)
    values: list[Any] = [-1, 1 << 64, True, 1.0, "1", None]
    others: list[Any] = [{}, {"t": 1, "u": 1}, {"T": 1}, [("t", 1)], 5]
    with manager.create_index_writer("sc", "wrong", ["t"]) as writer:
        for record in [*({"t": value} for value in values), *others]:
            with pytest.raises(InvalidArgumentError):
                writer.append(record)
        with pytest.raises(TypeError):
            writer.append({"t": 9}, "text")  # type: ignore[arg-type]
        assert writer.tell() == 0
        writer.append({"t": np.uint64(9)}, memoryview(array("q", [1, 2, 3])))  # type: ignore[dict-item]
    last = manager.create_index_reader("sc", "wrong").last()
    assert last is not None
    assert (last.value("t"), len(last.data)) == (9, 24)


def test_offset_between_records_is_rejected(manager: StreamManager) -> None:
    write(manager, "places", 2)
    reader = manager.create_index_reader("sc", "places")
    for offset in (1, -SIZE, SIZE - 1, 2 * SIZE, 100 * SIZE):
        with pytest.raises(InvalidArgumentError):
            reader.at(offset)
    for offset in (1, -SIZE):
        with pytest.raises(InvalidArgumentError):
            next(reader.read(offset))
        with pytest.raises(InvalidArgumentError):
            next(reader.read(0, offset))
    for value in (-1, 1 << 64, 1.5, True):
        with pytest.raises(InvalidArgumentError):
            reader.search("time", value)  # type: ignore[arg-type]
    assert [one.data for one in reader.read(0, 100 * SIZE)] == [b"1", b"2"]
    assert list(reader.read(100 * SIZE)) == []


def test_the_head_is_dropped_up_to_a_value(manager: StreamManager) -> None:
    write(manager, "dropped", 20)
    reader = manager.create_index_reader("sc", "dropped")
    with manager.create_index_writer("sc", "dropped", BOTH) as writer:
        assert writer.truncate_before("time", 95) == 9 * SIZE
        assert reader.head() == 9 * SIZE
        first = reader.first()
        assert first is not None
        assert first.value("time") == 100
        assert [reader.search("time", time) // SIZE for time in (0, 100, 101, 200, 201)] == [9, 9, 10, 19, 20]
        with pytest.raises(TruncatedError):
            reader.at(8 * SIZE)
        with pytest.raises(TruncatedError) as gap:
            next(reader.read(0))
        assert gap.value.start_offset == 9 * SIZE
        assert len(list(reader.read())) == 11
        assert writer.truncate_before("offset", 1 << 40) == 20 * SIZE
        assert (reader.first(), reader.last(), reader.head(), reader.tail()) == (None, None, 20 * SIZE, 20 * SIZE)
        with pytest.raises(InvalidArgumentError):
            writer.append({"time": 199, "offset": 20})
        assert writer.append({"time": 200, "offset": 20}) == 20 * SIZE
    with manager.create_index_writer("sc", "dropped", BOTH) as writer:
        assert writer.last() == {"time": 200, "offset": 20}


def test_a_head_within_a_record(manager: StreamManager) -> None:
    """Official writers can leave it there: their `truncate` takes any offset."""
    write(manager, "within", 5)
    with manager.create_byte_writer("sc", "within") as writer:
        writer.truncate_before(SIZE + 1)
    reader = manager.create_index_reader("sc", "within")
    assert reader.head() == 2 * SIZE
    assert [one.data for one in reader.read()] == [b"3", b"4", b"5"]
    assert reader.search("time", 0) == 2 * SIZE


def test_a_search_goes_on_while_the_head_is_dropped(uri: str, manager: StreamManager) -> None:
    """At each step of the search, everything up to its position is truncated."""
    write(manager, "racing", 64)

    async def search() -> int:
        async with aio.StreamManager(uri) as client:
            writer = await client.create_index_writer("sc", "racing", BOTH)
            reader = await client.create_index_reader("sc", "racing")
            found = reader._bytes

            async def late(start: int, end: int) -> bytes:
                await writer._writer.truncate_before(max(await reader.head(), min(start + SIZE, 40 * SIZE)))
                asked.append((start // SIZE, end // SIZE))
                return await found(start, end)

            reader._bytes = late  # type: ignore[method-assign]
            return await reader.search("time", 300)

    asked: list[tuple[int, int]] = []
    assert asyncio.run(search()) == 40 * SIZE
    assert len({start for start, end in asked if end - start == 1}) > 1
    assert sum(end - start > 1 for start, end in asked) > 1


def test_other_bytes_are_no_records(manager: StreamManager) -> None:
    manager.create_stream("sc", "events")
    with manager.create_writer("sc", "events") as events:
        for n in range(4):
            events.write_event(b"x" * 2040 if n % 2 else b"y" * 2040)
    reader = manager.create_index_reader("sc", "events")
    for call in (reader.first, reader.last, lambda: reader.search("t", 1), lambda: next(reader.read())):
        with pytest.raises(SerializationError):
            call()
    with pytest.raises(SerializationError):
        manager.create_index_writer("sc", "events", ["t"])
    with manager.create_byte_writer("sc", "events") as bytes_writer:
        bytes_writer.write(b"odd")
    with pytest.raises(InvalidArgumentError):
        manager.create_index_writer("sc", "events", ["t"])
    manager.create_stream("sc", "wide", 2)
    with pytest.raises(InvalidArgumentError):
        manager.create_index_reader("sc", "wide")
    with pytest.raises(InvalidArgumentError):
        manager.create_index_writer("sc", "wide", ["t"])


def test_invalid_stored_record_size_is_rejected(uri: str, manager: StreamManager) -> None:
    manager.create_stream("sc", "odd-size")
    update = wire.UpdateSegmentAttribute(0, "sc/odd-size/0.#epoch.0", RECORD_SIZE_ATTRIBUTE, -5, NO_VERSION, "")
    assert ask(uri, update, wire.SegmentAttributeUpdated).success
    with pytest.raises(InvalidArgumentError, match="-5"):
        manager.create_index_writer("sc", "odd-size", ["t"])
    with pytest.raises(InvalidArgumentError, match="-5"):
        manager.create_index_reader("sc", "odd-size").first()


def test_following_reader_waits_for_records(manager: StreamManager) -> None:
    manager.create_stream("sc", "followed")
    reader = manager.create_index_reader("sc", "followed", timeout=60)
    found: list[int] = []

    def follow() -> None:
        found.extend(record.value("t") for record in reader.read(follow=True))

    thread = threading.Thread(target=follow)
    thread.start()
    writer = manager.create_index_writer("sc", "followed", ["t"], record_size=100)
    for n in range(5):
        writer.append({"t": n})
        writer.flush()
        until(lambda n=n: found == list(range(n + 1)))  # type: ignore[misc]
    writer.close_and_seal()
    thread.join(60)
    assert found == list(range(5))
    assert [one.value("t") for one in reader.read(200, 400, follow=True)] == [2, 3]
    with pytest.raises(StreamSealedError):
        manager.create_index_writer("sc", "followed", ["t"])


def test_following_reader_times_out_and_closes(manager: StreamManager) -> None:
    write(manager, "quiet", 1)
    short = manager.create_index_reader("sc", "quiet", timeout=0.2)
    with pytest.raises(RequestTimeoutError):
        next(short.read(SIZE, follow=True))
    patient = manager.create_index_reader("sc", "quiet", timeout=None)
    times: list[int] = []
    raised: list[BaseException] = []
    waiting = threading.Event()

    def follow() -> None:
        try:
            for record in patient.read(follow=True):
                times.append(record.value("time"))
                waiting.set()
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    waiting.wait(60)
    patient.close()
    thread.join(60)
    assert (times, len(raised)) == ([10], 1)
    with pytest.raises(ClosedError):
        patient.first()


def test_with_its_client_a_writer_and_a_reader_are_closed(uri: str, manager: StreamManager) -> None:
    manager.create_stream("sc", "closed")
    with StreamManager(uri) as client:
        writer = client.create_index_writer("sc", "closed", ["t"])
        reader = client.create_index_reader("sc", "closed")
        writer.append({"t": 1})
        writer.flush()
    writer.close()
    reader.close()
    for call in (lambda: writer.append({"t": 2}), reader.first):
        with pytest.raises(ClosedError):
            call()


def test_records_are_events(manager: StreamManager) -> None:
    """As in the official format; nadi's readers, Spark and exports can read them."""
    write(manager, "as-events", 3, size=100)
    with manager.create_reader("sc", "as-events", end=manager.stream_info("sc", "as-events").tail) as reader:
        assert [len(event) for _, block in reader for event in block] == [92] * 3


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 40), st.integers(0, 60))
def test_a_search_finds_what_a_list_would(manager: StreamManager, steps: list[int], dropped: int, value: int) -> None:
    times = sorted(steps)
    manager.create_stream("sc", "list")
    with manager.create_index_writer("sc", "list", ["t"], record_size=56) as writer:
        if writer.last():  # of the previous example: start over if nothing is retained
            writer.truncate_before("t", 1 << 40)
    with manager.create_index_writer("sc", "list", ["t"]) as writer:
        begin = writer.tell() // 56
        for time in times:
            writer.append({"t": time})
        writer.flush()
        start = writer.truncate_before("t", dropped) // 56 - begin
    reader = manager.create_index_reader("sc", "list")
    assert start == bisect.bisect_left(times, dropped)
    assert reader.search("t", value) == 56 * (begin + max(bisect.bisect_left(times, value), start))
    assert [one.value("t") for one in reader.read()] == times[start:]
