"""The blocking client, against a store in another process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nadi.client import StreamManager, aio
from nadi.client.blocking.face import inside
from nadi.client.control import loop_thread
from nadi.client.control.loop_thread import LoopThread
from nadi.client.reading.reader import pending_block
from nadi.client.serializers import Text
from nadi.errors import ClosedError, RequestTimeoutError, UnavailableError


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    main = Path(__file__).parent / "fake_main.py"
    process = subprocess.Popen([sys.executable, main], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    yield f"tcp://127.0.0.1:{int(process.stdout.readline())}"
    process.stdin.close()
    process.stdout.close()
    process.kill()
    process.wait()


@pytest.fixture
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager


def test_write_and_read(manager: StreamManager) -> None:
    start = manager.stream_info("sc", "st4").tail
    with manager.create_writer("sc", "st4") as writer:
        writer.write_event(b"first", "k").result(60)
        writer.write_batch([b"%d" % i for i in range(1000)], [str(i % 10) for i in range(1000)])
    end = manager.stream_info("sc", "st4").tail
    events = [event.data for event in manager.read_events("sc", "st4", start=start, end=end)]
    assert sorted(events) == sorted([b"first", *(b"%d" % i for i in range(1000))])
    lists = list(manager.read_batches("sc", "st4", start=start, end=end))
    assert all(type(event) is bytes for event in lists[0])
    assert [event for events in lists for event in events] == events
    few = manager.read_batches("sc", "st4", start=start, end=end, routing_keys=["k"])
    narrowed = [event for events in few for event in events]
    assert b"first" in narrowed
    assert len(narrowed) < len(events)
    with manager.create_reader("sc", "st4", start=end) as reader:
        with pytest.raises(RequestTimeoutError):
            reader.next_block(0.05)
        assert reader.position() == end


def test_iterators_without_new_events_end_after_their_timeout(uri: str, manager: StreamManager) -> None:
    start = manager.stream_info("sc", "st4").tail
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("read_events", {}),
        ("read_events", {"serializer": Text()}),
        ("read_batches", {}),
    ]
    with manager.create_writer("sc", "st4") as writer:
        writer.write_event(b"now").result(60)
    end = manager.stream_info("sc", "st4").tail
    for name, options in kinds:
        assert next(getattr(manager, name)("sc", "st4", start=start, timeout=60, **options))
        events = getattr(manager, name)("sc", "st4", start=end, timeout=0.2, **options)
        with pytest.raises(RequestTimeoutError, match=r"sc/st4"):
            list(events)
        assert list(events) == []

    async def run() -> None:
        async with aio.StreamManager(uri) as manager:
            for name, options in kinds:
                assert await anext(getattr(manager, name)("sc", "st4", start=start, timeout=60, **options))
                events = getattr(manager, name)("sc", "st4", start=end, timeout=0.2, **options)
                with pytest.raises(RequestTimeoutError, match=r"sc/st4"):
                    [_ async for _ in events]
                assert [_ async for _ in events] == []

    asyncio.run(run())


def test_writer_with_more_events_than_its_memory_limit_stores_all(manager: StreamManager) -> None:
    writer = manager.create_writer("sc", "st1")
    started = time.perf_counter()
    event = b"x" * 1000
    for i in range(100_000):
        writer.write_event(event, f"k{i % 100}")
    writer.flush(120)
    seconds = time.perf_counter() - started
    tail = manager.stream_info("sc", "st1").tail.positions[0]
    assert tail % 1008 == 0
    count = sum(len(block) for block in manager.read_segment_range("sc/st1/0.#epoch.0", 0, tail))
    assert count == tail // 1008
    print(f"{100_000 / seconds:,.0f} events/s of 1 KB")


def test_closing_ends_every_wait(uri: str) -> None:
    manager = StreamManager(uri)
    reader = manager.create_reader("sc", "st4", start=manager.stream_info("sc", "st4").tail)
    ended: list[Exception] = []

    def wait() -> None:
        try:
            reader.next_block()
        except Exception as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    manager.close()
    waiting.join(60)
    assert [type(error) for error in ended] == [ClosedError]
    with pytest.raises(ClosedError):
        manager.list_scopes()
    manager.close()


def test_call_during_close_raises_closed_error(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = StreamManager(uri)
    submit, closing = loop_thread._LoopCall, threading.Thread(target=manager.close)

    def after_the_other_thread(work: Any, loop: Any) -> Any:
        closing.start()
        closing.join(0.5)  # it must not end the loop now
        return submit(work, loop)

    monkeypatch.setattr(loop_thread, "_LoopCall", after_the_other_thread)
    with pytest.raises(ClosedError):
        manager.create_reader("sc", "st4").next_block()
    closing.join(60)
    assert not closing.is_alive()


def test_client_in_a_forked_process_raises_closed_error(manager: StreamManager) -> None:
    writer = manager.create_writer("sc", "st4")
    reader = manager.create_reader("sc", "st4", start=manager.stream_info("sc", "st4").tail)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends this process if a call hangs
        failed = 0
        for call in (manager.list_scopes, reader.next_block, lambda: writer.write_event(b"x")):
            try:
                call()
            except ClosedError as error:
                failed += "fork" in str(error)
        manager.close()
        os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    writer.write_event(b"the parent's writer still works").result(60)


def test_processes_start_while_a_client_is_busy(manager: StreamManager) -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            manager.stream_info("sc", "st4")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        # with a preexec_fn, which PySpark uses to start Java, the child is first a fork of this process
        codes = {subprocess.run(["true"], preexec_fn=lambda: None, check=False).returncode for _ in range(40)}
    finally:
        done.set()
        worker.join()
    assert codes == {0}


def test_ctrl_c_ends_a_wait(manager: StreamManager) -> None:
    reader = manager.create_reader("sc", "st4", start=manager.stream_info("sc", "st4").tail)
    with interrupted():
        reader.next_block()
    reader.close()


def test_ctrl_c_cancels_the_coroutine_on_the_loop() -> None:
    thread = LoopThread("a loop's")
    ended = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def nothing() -> None:
        pass

    with interrupted():
        thread.run(wait())
    assert ended.wait(60)
    thread.run(nothing())
    thread.close(nothing())


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Send Ctrl-C soon, and expect it to end the block."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGINT, handler)


def test_missing_controller_is_named_in_the_error() -> None:
    from nadi.client.control import calls as controller_calls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller_calls, "DEFAULT_TIMEOUT_S", 0.3)
        with StreamManager("tcp://127.0.0.1:1") as manager, pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
            manager.create_writer("sc", "st")


def test_read_timeouts_while_events_arrive_lose_no_event(manager: StreamManager) -> None:
    start = manager.stream_info("sc", "st1").tail
    events = [b"%d" % number for number in range(300)]
    with manager.create_reader("sc", "st1", start=start) as reader, manager.create_writer("sc", "st1") as writer:

        def write() -> None:
            for event in events:
                writer.write_event(event, "k").result(60)

        writing = threading.Thread(target=write)
        writing.start()
        received: list[bytes] = []
        timeouts = 0
        while len(received) < len(events):
            try:
                block = reader.next_block(0.0002)
            except RequestTimeoutError:
                timeouts += 1
            else:
                assert block is not None
                received += block[1]
        writing.join()
    assert received == events
    assert timeouts > 10


def test_block_that_did_not_reach_its_thread_is_returned_again(manager: StreamManager) -> None:
    start = manager.stream_info("sc", "st1").tail
    with manager.create_reader("sc", "st1", start=start) as reader, manager.create_writer("sc", "st1") as writer:
        writer.write_event(b"a", "k").result(60)
        thread, core = inside(reader)
        for _ in range(2):  # as if Ctrl-C interrupted the wait
            pending = thread.run(pending_block(core, 60))
            assert pending is not None
            assert list(pending[1]) == [b"a"]
            assert reader.position() == start
        assert reader.next_block(60) == pending
        assert reader.position() == manager.stream_info("sc", "st1").tail
