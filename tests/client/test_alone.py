"""Events that a caller's thread sends by itself, and whose acknowledgements it reads: what may come in between."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nadi
from nadi.client import StreamManager, blocking
from nadi.client.segments import alone
from nadi.client.segments.alone import Alone
from nadi.client.segments.connection import AppendSession
from nadi.client.writing.ack import Ack
from nadi.client.writing.segment_output import Pump
from nadi.errors import ClosedError, RequestTimeoutError, StreamSealedError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.codec import encode_parts
from tests.support.ports import free_port
from tests.support.waiting import until

from .gate import Gate, gated

SCOPE = "sc"
CUTS = 150  # of connections, at most: on a slow machine they would leave no time to make any
Writer = blocking.writers.EventWriter


@pytest.fixture
def through(uri: str, server: nadi.standalone.EmbeddedServer) -> Iterator[tuple[StreamManager, Gate]]:
    with gated(uri, server.store_address) as found:
        yield found


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is taken back by what needs it, and not because time has passed."""
    monkeypatch.setattr(alone, "LOOK_S", 3600.0)


def made(manager: StreamManager, stream: str, segments: int = 1) -> Writer:
    manager.create_stream(SCOPE, stream, segments)
    return manager.create_writer(SCOPE, stream)


def alone_of(writer: Writer) -> Alone:
    session = next(iter(writer._core._sender.outputs.values()))._session
    assert session is not None
    return session.connection.alone


def lent(writer: Writer) -> Alone:
    """Write until the writer's connection is lent."""
    for _ in range(3000):
        writer.write_event(b"before").result(60)
        if alone_of(writer).is_lent:
            return alone_of(writer)
    raise AssertionError("it is not lent")


def all_lent(writer: Writer) -> bool:
    sessions = [output._session for output in writer._core._sender.outputs.values()]
    return all(session is not None and session.connection.alone.is_lent for session in sessions)


def has_pipe(found: Alone) -> bool:
    return found._wake is not None


def stored(manager: StreamManager, stream: str, key: bytes = b"") -> list[bytes]:
    """The events that begin so, as they lie in the stream's segments."""
    end = manager.stream_info(SCOPE, stream).tail
    events = [event for events in manager.read_batches(SCOPE, stream, end=end) for event in events]
    return [event for event in events if event.startswith(key)]


def in_thread(wait: Callable[[], object]) -> tuple[threading.Thread, list[BaseException | None]]:
    """A thread that waits, and how that ended."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            wait()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


# --- lending ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nobody_looks")
def test_the_loop_has_nothing_to_do_for_events_one_after_another(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(manager, "one", 4) as writer:
        for number in range(3000):
            writer.write_event(b"first", f"k{number % 40}").result(60)
            if number > 40 and all_lent(writer):
                break
        turns: list[Pump] = []
        run = Pump.run

        def counted(pump: Pump) -> None:
            turns.append(pump)
            run(pump)

        monkeypatch.setattr(Pump, "run", counted)
        for number in range(200):
            writer.write_event(b"%d" % number, f"k{number % 40}").result(60)
        assert not turns
        assert sorted(map(int, (e for e in stored(manager, "one") if e.isdigit()))) == list(range(200))


def test_a_connection_that_nobody_uses_is_taken_back(manager: StreamManager) -> None:
    with made(manager, "idle") as writer:
        found = lent(writer)
        until(lambda: not found.is_lent)
        assert found._look_later is not None
        assert found._look_later.cancelled() or found._look_later.when() < found._loop.time()
        writer.write_event(b"after").result(60)
    assert stored(manager, "idle", b"after") == [b"after"]


def test_an_event_whose_acknowledgement_nobody_reads_is_acknowledged(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "_IDLE_LOOKS", 1 << 30)
    with made(manager, "unread") as writer:
        found = lent(writer)
        ack = writer.write_event(b"unread")
        assert found.is_busy or not found.is_lent
        until(ack.done)


def test_a_connection_with_other_appends_under_way_is_not_lent(manager: StreamManager) -> None:
    with made(manager, "not-free") as writer:
        lent(writer)
        session = next(iter(writer._core._sender.outputs.values()))._session
        assert session is not None
        busy = session.connection.add_session(AppendSession(print, print, lambda: False), b"another")
        manager._thread.result(session.connection.take_back)
        for _ in range(100):
            writer.write_event(b"x").result(60)
            assert not session.alone.is_lent
        session.connection._sessions.pop(busy)
        lent(writer)


def test_threads_that_are_in_each_others_way_have_the_loop_do_it(manager: StreamManager) -> None:
    with made(manager, "several") as writer:
        found, needed = lent(writer), set[int]()

        def write() -> None:
            for _ in range(300):
                writer.write_event(b"x").result(60)
                needed.add(found._needed)

        waiting = [in_thread(write) for _ in range(3)]
        for thread, ended in waiting:
            thread.join()
            assert ended == [None]
        assert max(needed) > 3  # it is lent more and more reluctantly
    assert len(stored(manager, "several", b"x")) == 900


# --- what needs the loop while an acknowledgement is awaited ------------------------------------------------


@pytest.mark.usefixtures("nobody_looks")
def test_whoever_else_waits_has_the_loop_read(manager: StreamManager) -> None:
    with made(manager, "others") as writer, made(manager, "others-too") as other:
        other.write_event(b"y").result(60)
        called = threading.Event()
        lent(writer)
        writer.write_event(b"x 0").add_done_callback(lambda _: called.set())
        assert called.wait(60)
        lent(writer)
        writer.write_event(b"x 1")
        writer.flush(60)
        lent(writer)
        writer.write_event(b"x 2")
        writer.write_event(b"x 3").result(60)
        lent(writer)
        writer.write_event(b"x 4")
        other.write_event(b"y").result(60)
        lent(writer)
        uses = alone_of(writer)._uses
        writer.write_batch([b"x 5", b"x 6"]).result(60)
        assert alone_of(writer)._uses == uses  # a batch goes in one append, not its first event by itself
        lent(writer)
        writer.write_event(b"x 7")
        manager.create_stream(SCOPE, "others-bytes")
        began = time.monotonic()
        with manager.create_byte_writer(SCOPE, "others-bytes") as file:
            file.write(b"bytes")
            file.flush()
        assert time.monotonic() - began < 25  # a call may take 30 s
    assert stored(manager, "others", b"x") == [b"x %d" % number for number in range(8)]


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("timeout", [0.0, 0.003, 0.3])
def test_a_timeout_ends_the_wait(through: tuple[StreamManager, Gate], timeout: float) -> None:
    manager, gate = through
    stream = f"late-{timeout}"
    with made(manager, stream) as writer:
        lent(writer)
        gate.answers.clear()
        ack = writer.write_event(b"late")
        began = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            ack.result(timeout)
        assert timeout <= time.monotonic() - began < timeout + 20
        gate.answers.set()
        until(ack.done)  # the loop reads it, though nobody waits
        ack.result(0)
        writer.write_event(b"later").result(60)
    assert stored(manager, stream, b"late") == [b"late", b"later"]


@pytest.mark.usefixtures("nobody_looks")
def test_closing_the_client_ends_the_wait(uri: str, server: nadi.standalone.EmbeddedServer) -> None:
    with gated(uri, server.store_address) as (manager, gate):
        writer = made(manager, "closed")
        found = lent(writer)
        gate.answers.clear()
        thread, ended = in_thread(writer.write_event(b"x").result)
        until(lambda: found._is_reading)
        manager.close()
        thread.join(60)
        assert not thread.is_alive()
        assert isinstance(ended[0], ClosedError)
        assert not has_pipe(found)
        with pytest.raises(ClosedError):
            writer.write_event(b"y")


@pytest.mark.usefixtures("nobody_looks")
def test_nothing_is_left_of_a_closed_client(uri: str) -> None:
    with StreamManager(uri) as manager:
        found = lent(made(manager, "left"))
        assert has_pipe(found)
    assert not has_pipe(found)
    assert not found.is_lent


@pytest.mark.usefixtures("nobody_looks")
def test_a_connection_that_the_loop_gives_up(through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    with made(manager, "silent") as writer:
        found = lent(writer)
        session = next(iter(writer._core._sender.outputs.values()))._session
        assert session is not None
        gate.answers.clear()
        thread, ended = in_thread(writer.write_event(b"x").result)
        until(lambda: found._is_reading)
        manager._thread.call(session.connection.lose, UnavailableError("it has gone silent"))
        gate.answers.set()
        thread.join(60)
        assert ended == [None]
    assert stored(manager, "silent", b"x") == [b"x"]


@pytest.mark.usefixtures("nobody_looks")
def test_closing_the_writer_waits_for_the_event(through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    writer = made(manager, "closing")
    found = lent(writer)
    gate.answers.clear()
    waits, waited = in_thread(writer.write_event(b"x").result)
    until(lambda: found._is_reading)
    closes, closed = in_thread(writer.close)
    until(lambda: not found.is_lent)
    gate.answers.set()
    for thread, ended in ((waits, waited), (closes, closed)):
        thread.join(60)
        assert ended == [None]
    assert stored(manager, "closing", b"x") == [b"x"]


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_lost_connection_sends_the_event_again_if_it_must(
    uri: str, through: tuple[StreamManager, Gate], is_stored: bool
) -> None:
    manager, gate = through
    stream = f"cut-{is_stored}".lower()
    with made(manager, stream) as writer, StreamManager(uri) as direct:
        found = lent(writer)
        (gate.answers if is_stored else gate.requests).clear()
        thread, ended = in_thread(writer.write_event(b"x").result)
        until(lambda: found._is_reading)
        if is_stored:
            until(lambda: stored(direct, stream, b"x") == [b"x"])
        gate.cut()
        thread.join(60)
        assert ended == [None]
        writer.write_event(b"x again").result(60)
    assert stored(manager, stream, b"x") == [b"x", b"x again"]


def test_a_connection_that_is_lost_while_nobody_uses_it(through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    with made(manager, "gone") as writer:
        for number in range(5):
            lent(writer)
            gate.cut()
            time.sleep(0.001 * number)
            writer.write_event(b"x %d" % number).result(60)
    assert stored(manager, "gone", b"x") == [b"x %d" % number for number in range(5)]


def test_the_server_is_killed_while_a_thread_waits(tmp_path: Path) -> None:
    port = free_port()
    server = nadi.embedded(tmp_path, port=port)
    try:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope(SCOPE)
            writer = made(manager, "killed")
            lent(writer)
            os.kill(server.pid, signal.SIGSTOP)
            thread, ended = in_thread(writer.write_event(b"x").result)
            time.sleep(0.005)
            server.kill()
            server = nadi.embedded(tmp_path, port=port)
            thread.join(60)
            assert ended == [None]
            writer.write_event(b"x again").result(60)
            assert stored(manager, "killed", b"x") == [b"x", b"x again"]
    finally:
        server.stop()


@pytest.mark.usefixtures("nobody_looks")
def test_the_segment_is_split_while_a_thread_waits(uri: str, through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    with made(manager, "split") as writer, StreamManager(uri) as direct:
        found = lent(writer)
        gate.requests.clear()
        thread, ended = in_thread(writer.write_event(b"x", "key").result)
        until(lambda: found._is_reading)
        direct.scale_stream(SCOPE, "split", [0], [(0.0, 0.5), (0.5, 1.0)])
        gate.requests.set()
        thread.join(60)
        assert ended == [None]
        writer.write_event(b"x again", "key").result(60)
        assert stored(direct, "split", b"x") == [b"x", b"x again"]
        ends = direct.stream_info(SCOPE, "split").tail.positions
        assert sorted(ends.values()) == [0, len(b"x" + b"x again") + 16]  # both in the successor of their key


@pytest.mark.usefixtures("nobody_looks")
def test_the_stream_is_sealed_while_a_thread_waits(uri: str, through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    writer = made(manager, "sealed")
    found = lent(writer)
    gate.requests.clear()
    thread, ended = in_thread(writer.write_event(b"x").result)
    until(lambda: found._is_reading)
    with StreamManager(uri) as direct:
        direct.seal_stream(SCOPE, "sealed")
        gate.requests.set()
        thread.join(60)
        assert isinstance(ended[0], StreamSealedError)
        assert stored(direct, "sealed", b"x") == []


def test_a_token_that_ends_soon_is_replaced(manager: StreamManager) -> None:
    with made(manager, "token") as writer:
        found = lent(writer)
        session = next(iter(writer._core._sender.outputs.values()))._session
        object.__setattr__(session, "_renew_at", 0.0)
        writer.write_event(b"x").result(60)
        assert next(iter(writer._core._sender.outputs.values()))._session is not session
        assert not found.is_busy
    assert stored(manager, "token", b"x") == [b"x"]


# --- what comes on the connection ---------------------------------------------------------------------------


@pytest.mark.usefixtures("nobody_looks")
def test_answers_in_pieces_and_with_others(through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    keep_alive = b"".join(encode_parts(wire.KeepAlive())[0])
    with made(manager, "pieces") as writer:
        found = lent(writer)
        uses = found._uses
        gate.changed = lambda data: [data[:5], data[5:20], data[20:]]
        most = count = 0
        while count < 20 or most <= uses + 5:  # half an answer is no reason to end it, though a slow machine may be one
            assert count < 3000
            writer.write_event(b"x %02d" % count).result(60)
            most, count = max(most, found._uses), count + 1
        gate.changed = lambda data: [keep_alive + data]
        for number in range(count, count + 20):
            writer.write_event(b"x %02d" % number).result(60)
        gate.changed = lambda data: [data]
    assert stored(manager, "pieces", b"x") == [b"x %02d" % number for number in range(count + 20)]


@pytest.mark.usefixtures("nobody_looks")
def test_what_breaks_the_protocol_costs_the_connection(through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    with made(manager, "broken") as writer:
        found = lent(writer)
        gate.changed = lambda data: [b"\xff" * 8 + data]
        thread, ended = in_thread(writer.write_event(b"x").result)
        until(lambda: not found.is_lent)
        gate.changed = lambda data: [data]
        thread.join(60)
        assert ended == [None]
        assert alone_of(writer) is not found
    assert stored(manager, "broken", b"x") == [b"x"]


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("taken", [0, 1, 30])
def test_a_socket_that_takes_a_part_of_an_append(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    stream = f"part-{taken}"
    with made(manager, stream) as writer:
        lent(writer)
        write, calls = os.write, []

        def some(fd: int, data: bytes) -> int:
            if len(data) < 40:
                return write(fd, data)
            calls.append(fd)
            if not taken:
                raise BlockingIOError
            return write(fd, data[:taken])

        monkeypatch.setattr(os, "write", some)
        writer.write_event(b"x").result(60)
        writer.write_event(b"x again").result(60)
        monkeypatch.undo()
        assert calls
    assert stored(manager, stream, b"x") == [b"x", b"x again"]


@pytest.mark.parametrize("where", ["write", "written", "readv", "poll", "stored"])
def test_control_c(manager: StreamManager, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Wherever it comes, nothing is lost, and the writer goes on."""
    stream = f"interrupted-{where}"
    with made(manager, stream) as writer:
        found = lent(writer)
        interrupted: list[bool] = []

        def raising(call: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
            def raises(*args: Any) -> Any:
                if interrupted or threading.current_thread() is not threading.main_thread():
                    return call(*args)
                if not before:
                    call(*args)
                interrupted.append(True)
                raise KeyboardInterrupt

            return raises

        if where in ("write", "written"):
            monkeypatch.setattr(os, "write", raising(os.write, before=where == "write"))
        elif where == "readv":
            monkeypatch.setattr(os, "readv", raising(os.readv))
        elif where == "poll":
            monkeypatch.setattr(found, "_poll", SimpleNamespace(poll=raising(found._poll.poll)))
        else:
            sender = writer._core._sender
            monkeypatch.setattr(sender, "stored", raising(sender.stored, before=True))
        tries: list[bytes] = []
        acks: list[Ack] = []

        def write() -> None:
            while len(tries) < 3000:  # if this thread hasn't its turn for long, the loop takes the connection back
                tries.append(b"x")
                acks.append(writer.write_event(b"x"))
                acks[-1].result(60)

        with pytest.raises(KeyboardInterrupt):
            write()
        monkeypatch.undo()
        for ack in acks:
            ack.result(60)
        writer.write_event(b"x again").result(60)
        writer.flush(60)
    assert stored(manager, stream, b"x") == [*tries, b"x again"]


@pytest.mark.usefixtures("nobody_looks")
def test_a_forked_process_neither_writes_nor_reads(through: tuple[StreamManager, Gate]) -> None:
    manager, gate = through
    with made(manager, "forked") as writer:
        found = lent(writer)
        assert ended_with(ClosedError, lambda: writer.write_event(b"y"))
        gate.answers.clear()
        ack = writer.write_event(b"x")
        threading.Timer(0.3, gate.answers.set).start()
        assert ended_with(RequestTimeoutError, lambda: ack.result(1))
        ack.result(60)  # the answer is still there
        assert found.is_lent
    assert [event for event in stored(manager, "forked") if event != b"before"] == [b"x"]


def ended_with(error: type[Exception], call: Callable[[], object]) -> bool:
    """Whether the call, in a forked process, raises that."""
    child = os.fork()
    if not child:
        code = 1
        try:
            call()
        except error:
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


# --- everything at once -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_threads_write_alone_and_in_bulk_while_connections_are_cut(
    uri: str, through: tuple[StreamManager, Gate], seed: int
) -> None:
    manager, gate = through
    chance = random.Random(seed)
    stream, threads, rounds = f"hammered-{seed}", 3, 60
    writers = [made(manager, stream, 2), manager.create_writer(SCOPE, stream)]
    wrote: dict[int, list[bytes]] = defaultdict(list)
    failures: list[BaseException] = []
    ends = threading.Event()

    def work(number: int, chance: random.Random) -> None:
        writer, key, count = writers[number % 2], f"key {number}", 0

        def event() -> bytes:
            nonlocal count
            count += 1
            wrote[number].append(b"%d:%d" % (number, count))
            return wrote[number][-1]

        try:
            for _ in range(rounds):
                kind = chance.random()
                if kind < 0.6:
                    for _ in range(chance.randint(1, 20)):
                        writer.write_event(event(), key).result(60)
                elif kind < 0.7:
                    for _ in range(chance.randint(1, 300)):
                        writer.write_event(event(), key)
                elif kind < 0.8:
                    writer.write_batch([event() for _ in range(chance.randint(1, 5))], key).result(60)
                elif kind < 0.9:
                    try:
                        writer.write_event(event(), key).result(chance.choice([0.0, 0.0003, 0.001]))
                    except RequestTimeoutError:
                        pass
                else:
                    writer.write_event(event(), key)
                    writer.flush(60)
                if chance.random() < 0.3:
                    time.sleep(chance.choice([0.001, 0.03]))
        except BaseException as error:
            failures.append(error)

    def cut() -> None:
        for _ in range(CUTS):
            if ends.wait(chance.uniform(0.005, 0.15)):
                return
            gate.cut()

    working = [threading.Thread(target=work, args=(n, random.Random(seed * 10 + n))) for n in range(threads)]
    cutting = threading.Thread(target=cut)
    for thread in [*working, cutting]:
        thread.start()
    for thread in working:
        thread.join(120)
        assert not thread.is_alive()
    ends.set()
    cutting.join()
    assert not failures
    for writer in writers:
        writer.close(60)
    with StreamManager(uri) as direct:
        found = stored(direct, stream)
    for number in range(threads):
        mine = [event for event in found if event.startswith(b"%d:" % number)]
        assert mine == wrote[number]
    assert len(found) == sum(map(len, wrote.values()))
