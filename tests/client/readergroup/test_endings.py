"""Ends of waits and readers: timeouts, closed clients, Ctrl-C, dead servers, recreated streams, readers dropped without
`close`; and no leftover tasks or threads.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from nadi.client import ReaderGroup, ReaderGroupManager, StreamManager, aio
from nadi.client.readergroup.reader import drop_out
from nadi.errors import ClosedError, RequestTimeoutError, StreamRecreatedError
from nadi.testing import RestartableServer
from tests.support.waiting import until

from .support import got, new_group, new_stream, numbers, read_all, write

WAITS: dict[str, Callable[[ReaderGroup], Any]] = {
    "read_next_event": lambda group: group.create_reader("w").read_next_event(),
    "read_next_block": lambda group: group.create_reader("w").read_next_block(),
    "iterating": lambda group: list(group.create_reader("w")),
    "initiate_checkpoint": lambda group: group.initiate_checkpoint("c"),
    "generate_stream_cuts": lambda group: group.generate_stream_cuts(),
    "stream_cuts_on_condition": lambda group: group.stream_cuts_on_condition("never"),
    "notifications": lambda group: list(group.notifications()),
}

GONE = re.compile("127.0.0.1:[0-9]+ (was lost|can't be reached)")  # which of them depends on when it was tried last


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_closed_client_ends_every_wait(
    uri: str, manager: StreamManager, groups: ReaderGroupManager, wait: Callable[[ReaderGroup], Any]
) -> None:
    group = new_group(groups, new_stream(manager, 2), dead_after_ms=60_000)
    other = StreamManager(uri)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            wait(other.reader_group_manager("sc").get_reader_group(group.name))
        except BaseException as error:
            ended.append(error)

    waiting = threading.Thread(target=run)
    silent = group.create_reader("silent")._core
    assert isinstance(silent, aio.EventReader)
    drop_out(silent)  # it passes no checkpoint
    waiting.start()
    time.sleep(0.5)
    other.close()
    waiting.join(60)
    assert [type(error) for error in ended] == [ClosedError]


def test_reader_continues_after_ctrl_c(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1)
    with new_group(groups, stream).create_reader("r") as reader:
        former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                reader.read_next_event()
        finally:
            signal.signal(signal.SIGINT, former)
        with manager.create_writer("sc", stream) as writer:
            writer.write_event(b"still there")
        read = got(reader.read_next_event(60))
        assert read.event == b"still there"


def test_read_with_timeout_0_returns_at_once(manager: StreamManager, groups: ReaderGroupManager) -> None:
    with new_group(groups, new_stream(manager, 2, 50)).create_reader("r") as reader:
        found, tries = 0, 0
        while found < 50:
            read = reader.read_next_event(0)
            found += read is not None
            tries += 1
            if read is None:
                time.sleep(0.01)
            assert tries < 5000
        began = time.monotonic()
        assert [reader.read_next_event(0) for _ in range(10)] == [None] * 10
        assert time.monotonic() - began < 30


def test_closing_leaves_no_task_and_no_thread(uri: str, manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 4, 100))
    threads = set(threading.enumerate())

    async def test() -> None:
        before = asyncio.all_tasks()
        async with aio.StreamManager(uri) as client:
            found = await client.reader_group_manager("sc").get_reader_group(group.name)
            count = 0
            async with await found.create_reader("closed") as reader:
                while (read := await reader.read_next_block(60 if count < 100 else 0.3)) is not None:
                    count += len(read.events)
            assert count == 100
            waiting = await found.create_reader("with the client")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await waiting.read_next_event()
        assert asyncio.all_tasks() == before

    asyncio.run(test())
    with StreamManager(uri) as client:
        read_all(0, client.reader_group_manager("sc").get_reader_group(group.name).create_reader("r"))
    assert set(threading.enumerate()) <= threads  # one of an earlier test may have ended meanwhile
    assert group.online_readers() == []


@pytest.mark.crash
def test_dead_server_is_reported_and_reader_reconnects() -> None:
    server = RestartableServer()
    try:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("sc")
            manager.create_stream("sc", "st", 2)
            groups = manager.reader_group_manager("sc")
            groups.create_reader_group("g", "st", refresh_ms=100, dead_after_ms=2000)
            group = groups.get_reader_group("g")
            reader = group.create_reader("r")
            assert reader.read_next_event(1) is None
            server.kill()
            began = time.monotonic()
            message = None
            while message is None:
                assert time.monotonic() - began < 60
                try:
                    assert reader.read_next_event(1) is None
                except RequestTimeoutError as error:
                    message = str(error)
            assert GONE.search(message)
            waits: list[Callable[[], Any]] = [
                lambda: reader.read_next_event(1),
                lambda: group.initiate_checkpoint("c", timeout=1),
                lambda: group.generate_stream_cuts(timeout=1),
                lambda: group.stream_cuts_on_condition("never", timeout=1),
                lambda: group.reset_reader_group([], timeout=1),
            ]

            def time_of(wait: Callable[[], Any]) -> float:
                asked = time.monotonic()
                with pytest.raises(RequestTimeoutError, match=GONE):
                    wait()
                return time.monotonic() - asked

            for wait in waits:  # a second more shows a regression; the machine may pause now and then
                assert any(0.9 <= time_of(wait) < 1.95 for _ in range(10))
            server.start()
            with manager.create_writer("sc", "st") as writer:
                writer.write_event(b"again")
            found = None
            while found is None:
                assert time.monotonic() - began < 150
                try:
                    found = reader.read_next_event(1)
                except RequestTimeoutError:
                    continue
            assert found.event == b"again"
            reader.close()
    finally:
        server.close()


# --- a reader that is dropped without `close`, as after an error: its process lives on, and the group must not wait ---


def test_segments_of_an_abandoned_reader_are_reassigned(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 2, 40), dead_after_ms=600_000)
    reader = group.create_reader("dropped")
    assert reader.read_next_event(60)
    del reader
    until(lambda: group.online_readers() == [])
    with group.create_reader("next") as reader:
        assert sorted(numbers(read_all(40, reader))) == list(range(40))


def test_abandoned_reader_does_not_block_checkpoints(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 2, 40), dead_after_ms=600_000)
    reader = group.create_reader("dropped")
    assert reader.read_next_event(60)
    del reader
    assert group.initiate_checkpoint("passed", timeout=60).stream_cuts


# --- a stream that is deleted and recreated ---


def recreate(manager: StreamManager, stream: str, count: int) -> None:
    manager.seal_stream("sc", stream)
    manager.delete_stream("sc", stream)
    manager.create_stream("sc", stream)
    write(manager, stream, 0, count)


def test_recreated_stream_is_reported_and_read_after_a_reset(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    with group.create_reader("before") as reader:
        assert len(read_all(10, reader)) == 10
    recreate(manager, stream, 25)
    with group.create_reader("after") as reader, pytest.raises(StreamRecreatedError, match=f"sc/{stream}"):
        reader.read_next_event(60)
    group.reset_reader_group([manager.cuts("sc", stream).head()])
    with group.create_reader("again") as reader:
        reads = read_all(25, reader)
    assert numbers(reads) == list(range(25))


def test_recreated_stream_is_reported_after_the_old_one_was_completed(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 2, 10)
    whole, part = new_group(groups, stream), new_group(groups, stream, ends=[manager.cuts("sc", stream).tail()])
    manager.seal_stream("sc", stream)
    for group in (whole, whole, part):
        with group.create_reader("before") as reader:
            list(reader)
    manager.delete_stream("sc", stream)
    manager.create_stream("sc", stream)
    with whole.create_reader("after") as reader, pytest.raises(StreamRecreatedError):
        reader.read_next_event(60)
    with part.create_reader("after") as reader:
        read = reader.read_next_event(60)
    assert read is not None
    assert read.is_read_completed, "it has read everything up to its end cut"
