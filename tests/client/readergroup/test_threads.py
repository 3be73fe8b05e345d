"""A reader used from a program's thread, while the client's loop synchronizes with the group."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nadi.client import ReaderGroup, ReaderGroupManager, StreamManager, aio
from nadi.client.control import loop_thread
from nadi.client.serializers import Text
from nadi.errors import ClosedError
from nadi.limits import MIB, READ_REPLY_MAX_BYTES
from tests.support.waiting import until

from .support import got, in_order, new_group, new_stream, write


@pytest.mark.parametrize("by", ["event", "block"])
@pytest.mark.parametrize("then", ["event", "block"])
@pytest.mark.parametrize("options", [{}, {"serializer": Text()}], ids=["bytes", "values"])
def test_read_that_arrived_as_its_wait_was_interrupted_is_returned_next(
    manager: StreamManager,
    groups: ReaderGroupManager,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    then: str,
    options: Any,
) -> None:
    group = new_group(groups, new_stream(manager, 1, 3))
    reader = group.create_reader("r", **options)
    run, read_next = reader._thread.run, getattr(reader, f"read_next_{by}")

    def interrupted(work: Any) -> Any:
        run(work)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(reader._thread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_next(60)
    assert set(reader.positions().values()) == {0}
    found: list[Any] = []
    while len(found) < 3:
        read = getattr(reader, f"read_next_{then}")(60)
        assert (read.event if then == "event" else read.block) is not None
        found += read.events
    assert [getattr(event, "data", event) for event in found] == [b"0", b"1", b"2"]
    reader.close()
    assert group.unread_bytes() == 0


@pytest.mark.parametrize("by", ["event", "block"])
def test_read_interrupted_before_it_waits_loses_nothing(
    manager: StreamManager, groups: ReaderGroupManager, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    group = new_group(groups, new_stream(manager, 3, 60))
    found: list[bytes] = []
    with group.create_reader("r") as reader:
        read_next = getattr(reader, f"read_next_{by}")

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        while len(found) < 60:
            with monkeypatch.context() as patched:
                patched.setattr(loop_thread._LoopCall, "result", interrupt)
                with contextlib.suppress(KeyboardInterrupt):
                    found += read_next(60).events
            found += read_next(60).events
    assert sorted(found) == sorted(b"%d" % number for number in range(60))
    assert group.unread_bytes() == 0


def test_slow_application_limits_read_ahead(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1)
    with manager.create_writer("sc", stream) as writer:
        for _ in range(40):
            writer.write_batch([bytes(1000)] * 1000, "k")
    with new_group(groups, stream).create_reader("r") as reader:
        core = reader._core
        assert isinstance(core, aio.EventReader)
        until(lambda: len(reader.positions()) == 1)
        (source,) = core._assigned._sources.values()
        until(lambda: source._waiting_bytes >= READ_REPLY_MAX_BYTES)
        assert source._reached < 30 * MIB
        count = 0
        while count < 40_000:
            read = got(reader.read_next_block(60))
            assert read.block is not None
            count += len(read.block)
        assert source._waiting_bytes == 0


def test_checkpoint_ends_a_wait_and_the_next_read_passes_it(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 2, 10)
    group = new_group(groups, stream)
    with group.create_reader("r") as reader, ThreadPoolExecutor(2) as threads:
        count = 0
        while count < 10:
            read = got(reader.read_next_block(60))
            count += len(read.events)
        waiting = threads.submit(reader.read_next_block)
        checkpoint = threads.submit(group.initiate_checkpoint, "here")
        notice = got(waiting.result(60))
        assert notice.checkpoint == "here"
        assert reader.read_next_block(0.5) is None
        tail = manager.stream_info("sc", stream).tail
        assert checkpoint.result(60).stream_cuts == {f"sc/{stream}": tail}
        write(manager, stream, 10, 20)
        found: list[int] = []
        while (more := reader.read_next_block(60 if len(found) < 10 else 0.3)) is not None:
            found += map(int, more.events)
        assert sorted(found) == list(range(10, 20))


def test_a_reader_of_blocks_continues_within_a_block_of_events(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 1, 20)
    with new_group(groups, stream).create_reader("r") as reader:
        until(lambda: len(reader.positions()) == 1)
        ones = [read.event for _ in range(3) if (read := reader.read_next_event(60)) is not None]
        read = got(reader.read_next_block(60))
        assert ones + read.events == [b"%d" % number for number in range(20)]
        assert reader.positions() == {read.segment: manager.stream_info("sc", stream).tail.positions[0]}


def test_changing_readers_return_each_event_once_in_order(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream, count = new_stream(manager, 8), 4000
    group = new_group(groups, stream, refresh_ms=100, dead_after_ms=20_000, checkpoint_interval_ms=300)
    found: list[int] = []
    adding = threading.Lock()

    def read_for_a_while(name: str, choice: random.Random) -> None:
        while len(found) < count:
            with group.create_reader(name) as reader:
                read_next = choice.choice([reader.read_next_event, reader.read_next_block])
                ends = time.monotonic() + choice.uniform(0.2, 1.0)
                while time.monotonic() < ends and len(found) < count:
                    read = read_next(0.05)
                    with adding:  # before the next is asked for, which is when another reader may have its segment
                        found.extend(map(int, read.events if read is not None else ()))

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read_for_a_while, f"r{n}", random.Random(10 + n)) for n in range(3)]
        with manager.create_writer("sc", stream) as writer:
            for number in range(count):
                writer.write_event(b"%d" % number, f"k{number % 16}")
                if number % 20 == 0:
                    time.sleep(0.01)
        for reader in readers:
            reader.result(60)
    assert sorted(found) == list(range(count))
    assert in_order(found)


def test_reader_in_a_forked_process_fails_at_once(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group: ReaderGroup = new_group(groups, new_stream(manager, 1))
    with group.create_reader("r") as reader:
        assert reader.read_next_event(0.1) is None
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            failures = 0
            for call in (reader.read_next_event, reader.read_next_block):
                try:
                    call()
                except ClosedError as error:
                    failures += "fork" in str(error)
            os._exit(failures)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
