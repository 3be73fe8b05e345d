"""Processors: each output once despite kills and splits, order, retries, dead letters, and stopping."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client.aio import StreamManager
from nadi.errors import InvalidArgumentError, InvalidNameError, NotFoundError, StreamNotFoundError, StreamRecreatedError
from nadi.process import DeadLetter, Processor, ProcessorStoppedError, StreamEvent, delete, serve, status
from nadi.process.processor import Positions
from nadi.process.segment_follower import PositionConflictError, SegmentProgress
from nadi.standalone import EmbeddedServer
from tests.functions.command import nadi_command

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("process") / "data") as running:
        yield running


@pytest.fixture
async def manager(server: EmbeddedServer) -> AsyncIterator[StreamManager]:
    async with StreamManager(server.controller_uri) as client:
        yield client


@pytest.fixture
async def scope(manager: StreamManager, request: pytest.FixtureRequest) -> str:
    name = f"s{abs(hash(request.node.name)):x}"
    await manager.create_scope(name)
    for stream in ("in", "out", "dead"):
        await manager.create_stream(name, stream, 2)
    return name


async def write(manager: StreamManager, scope: str, events: list[bytes], keys: int = 7) -> None:
    async with await manager.create_writer(scope, "in") as writer:
        for number, event in enumerate(events):
            writer.write_event(event, routing_key=f"key {number % keys}")
        await writer.flush()


async def read(manager: StreamManager, scope: str, stream: str) -> list[bytes]:
    end = (await manager.stream_info(scope, stream)).tail
    return [event.data async for event in manager.read_events(scope, stream, end=end)]


@asynccontextmanager
async def running(processor: Processor, manager: StreamManager) -> AsyncIterator[asyncio.Task[None]]:
    ending = asyncio.Event()
    task = asyncio.create_task(serve(processor, manager, stop=ending))
    try:
        yield task
    finally:
        ending.set()
        await task


def echo(event: StreamEvent) -> list[tuple[str, bytes]]:
    return [(event.data.decode(), event.data)]


async def test_each_event_of_a_sealed_stream_is_handled_once_by_two_workers(manager: StreamManager, scope: str) -> None:
    await write(manager, scope, [b"%d" % number for number in range(500)])
    await manager.seal_stream(scope, "in")
    processor = Processor(scope, "in", "echo", echo, output="out")
    await asyncio.wait_for(asyncio.gather(serve(processor, manager), serve(processor, manager)), 60)
    assert sorted(await read(manager, scope, "out")) == sorted(b"%d" % number for number in range(500))
    found = await status(manager, scope, "in", "echo")
    assert (found.positions.events, found.positions.gaps, found.lag_bytes) == (500, 0, 0)


async def test_events_of_a_key_are_in_order_through_a_split(manager: StreamManager, scope: str) -> None:
    seen: list[bytes] = []

    async def handle(event: StreamEvent) -> None:
        seen.append(event.data)

    async with running(Processor(scope, "in", "order", handle), manager):
        await write(manager, scope, [b"%d" % number for number in range(300)])
        await manager.scale_stream(scope, "in", [0, 1], [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)])
        await write(manager, scope, [b"%d" % number for number in range(300, 600)], keys=7)
        await until(lambda: len(seen) >= 600)
    for key in range(7):
        numbers = [int(one) for one in seen if (int(one) % 300) % 7 == key]
        assert [one for one in numbers if one < 300] == sorted(one for one in numbers if one < 300)
        assert [one for one in numbers if one >= 300] == sorted(one for one in numbers if one >= 300)
        assert max(map(numbers.index, (one for one in numbers if one < 300))) < numbers.index(
            min(one for one in numbers if one >= 300)
        )


async def until(is_so: object, limit_s: float = 60.0) -> None:
    began = time.monotonic()
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() - began < limit_s
        await asyncio.sleep(0.02)


async def test_failed_event_is_retried_then_dead_letter(manager: StreamManager, scope: str) -> None:
    tries: Counter[bytes] = Counter()

    def handle(event: StreamEvent) -> list[tuple[str, bytes]]:
        tries[event.data] += 1
        if event.data == b"bad" or (event.data == b"flaky" and tries[event.data] < 3):
            raise ValueError("no number")
        return echo(event)

    await write(manager, scope, [b"one", b"bad", b"flaky", b"two"], keys=1)
    await manager.seal_stream(scope, "in")
    processor = Processor(
        scope, "in", "tries", handle, output="out", dead_letters="dead", retries=2, retry_first_s=0.01
    )
    await serve(processor, manager)
    assert sorted(await read(manager, scope, "out")) == [b"flaky", b"one", b"two"]
    (letter,) = map(DeadLetter.decode, await read(manager, scope, "dead"))
    assert (letter.data, letter.attempts, letter.kind, letter.error) == (b"bad", 3, "raised", "ValueError")
    assert (letter.by, letter.reason) == ("processor tries", "no number")
    assert (tries[b"one"], tries[b"bad"]) == (1, 3)


async def test_failed_event_without_dead_letters_stops_until_fixed(manager: StreamManager, scope: str) -> None:
    is_fixed = False

    def handle(event: StreamEvent) -> list[tuple[str, bytes]]:
        if event.data == b"bad" and not is_fixed:
            raise ValueError("no number")
        return echo(event)

    await write(manager, scope, [b"one", b"bad", b"two"], keys=1)
    await manager.seal_stream(scope, "in")
    processor = Processor(scope, "in", "stops", handle, output="out", retries=0)
    with pytest.raises(ProcessorStoppedError):
        await serve(processor, manager)
    is_fixed = True
    await serve(processor, manager)
    assert sorted(await read(manager, scope, "out")) == [b"bad", b"one", b"two"]


async def test_events_before_a_failed_one_are_recorded(manager: StreamManager, scope: str) -> None:
    def handle(event: StreamEvent) -> list[tuple[str, bytes]]:
        return [("k", b"%d" % (10 // int(event.data)))]

    await write(manager, scope, [b"1", b"2", b"0", b"5"], keys=1)
    with pytest.raises(ProcessorStoppedError):
        await serve(Processor(scope, "in", "poison", handle, output="out", retries=0), manager)
    assert await read(manager, scope, "out") == [b"10", b"5"]
    assert (await status(manager, scope, "in", "poison")).positions.events == 2


async def test_deleted_processor_repeats_all_outputs(manager: StreamManager, scope: str) -> None:
    await write(manager, scope, [b"a", b"b", b"c", b"d"], keys=1)
    await manager.seal_stream(scope, "in")
    for letters in (b"bd", b"abcd"):  # the first handler omits events
        outputs = {bytes([letter]): [("k", bytes([letter]))] for letter in letters}
        handle: Any = outputs.get
        await serve(Processor(scope, "in", "fixed", lambda event, to=handle: to(event.data), output="out"), manager)  # type: ignore[misc]
        assert await delete(manager, scope, "in", "fixed")
    assert await read(manager, scope, "out") == [b"b", b"d", b"a", b"b", b"c", b"d"]


async def test_slow_handler_is_recorded_each_second_and_at_the_end(manager: StreamManager, scope: str) -> None:
    def slow(event: StreamEvent) -> list[tuple[str, bytes]]:
        time.sleep(0.02)  # like a database call
        return [("k", event.data)]

    await write(manager, scope, [b"%d" % number for number in range(400)])
    async with running(Processor(scope, "in", "slow", slow, output="out"), manager):
        while not (done := await _events_of(manager, scope, "slow")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert done < 400
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert done < await _events_of(manager, scope, "slow") == len(await read(manager, scope, "out")) < 400


async def _events_of(manager: StreamManager, scope: str, name: str) -> int:
    try:
        return (await status(manager, scope, "in", name)).positions.events
    except NotFoundError:
        return 0


@pytest.mark.parametrize("result", ["text", b"bytes", [("k", "text")], [(None, b"x")], {"k": b"x"}, 7, ("k", b"x", 1)])
async def test_invalid_output_becomes_a_dead_letter(manager: StreamManager, scope: str, result: object) -> None:
    await write(manager, scope, [b"a"])
    await manager.seal_stream(scope, "in")
    handle: Any = {b"a": result}.get
    processor = Processor(scope, "in", "odd", lambda event: handle(event.data), "out", "dead", retries=0)
    await serve(processor, manager)
    (letter,) = [DeadLetter.decode(data) for data in await read(manager, scope, "dead")]
    assert letter.data == b"a"
    assert await read(manager, scope, "out") == []


async def test_single_pair_is_an_output(manager: StreamManager, scope: str) -> None:
    await write(manager, scope, [b"a"])
    await manager.seal_stream(scope, "in")
    await serve(Processor(scope, "in", "pair", lambda event: ("k", event.data), output="out"), manager)
    assert await read(manager, scope, "out") == [b"a"]


def test_hanging_handler_does_not_block_exit(server: EmbeddedServer) -> None:
    program = (
        "import sys, time\nfrom nadi.process import Processor, run\n"
        "def hang(event):\n    print('called', flush=True)\n    time.sleep(600)\n"
        "run(Processor('hangs', 'in', 'hang', hang), sys.argv[1])\n"
    )
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("hangs")
        manager.create_stream("hangs", "in", 1)
        with manager.create_writer("hangs", "in") as writer:
            writer.write_event(b"a")
    process = subprocess.Popen([sys.executable, "-c", program, server.controller_uri], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"called\n"
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


async def test_stop_ends_all_workers_and_run_resumes(
    server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    processor = Processor(scope, "in", "stopped", echo, output="out")
    workers = [asyncio.create_task(serve(processor, manager)) for _ in range(2)]
    await write(manager, scope, [b"1"])
    await until_out(manager, scope, 1)
    assert len((await status(manager, scope, "in", "stopped")).workers) == 2
    assert '"processor": "in/stopped"' in await nadi_command(server, "processor", "list", scope, "--json")
    shown = await nadi_command(server, "processor", "status", scope, "in/stopped", "--json")
    assert (shown.count('"worker_'), '"lag_bytes": 0' in shown) == (2, True)
    assert "stopped processor" in await nadi_command(server, "processor", "stop", scope, "in/stopped")
    await asyncio.wait_for(asyncio.gather(*workers), 30)
    await write(manager, scope, [b"2"])
    async with running(processor, manager):
        await until_out(manager, scope, 2)
    assert await read(manager, scope, "out") != []
    assert "deleted" in await nadi_command(server, "processor", "delete", scope, "in/stopped", "--yes")
    assert not await delete(manager, scope, "in", "stopped")
    for stream, name in (("in", "\udcff"), ("i/n", "stopped"), ("in", "")):
        with pytest.raises(InvalidNameError):
            await delete(manager, scope, stream, name)


async def until_out(manager: StreamManager, scope: str, count: int) -> None:
    began = time.monotonic()
    while len(await read(manager, scope, "out")) < count:
        assert time.monotonic() - began < 60
        await asyncio.sleep(0.05)


async def test_recreated_stream_rejects_old_positions(manager: StreamManager, scope: str) -> None:
    await write(manager, scope, [b"%d" % number for number in range(20)])
    await manager.seal_stream(scope, "in")
    processor = Processor(scope, "in", "again", echo, output="out")
    await serve(processor, manager)
    await manager.delete_stream(scope, "in")
    await manager.create_stream(scope, "in", 2)
    with pytest.raises(StreamRecreatedError):
        await serve(processor, manager)


async def test_processor_invalid_arguments_fail(manager: StreamManager, scope: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Processor(scope, "in", "loop", echo, output="in")
    with pytest.raises(InvalidArgumentError):
        Processor(scope, "in", "none", "echo")  # type: ignore[arg-type]
    with pytest.raises(StreamNotFoundError):
        await serve(Processor(scope, "in", "lost", echo, output="nowhere"), manager)
    await write(manager, scope, [b"1"])
    with pytest.raises(InvalidArgumentError):
        await serve(Processor(scope, "in", "outputs", echo), manager)
    for options in ({"retries": -1}, {"retries": "5"}, {"retry_first_s": -1}, {"output": "x/y/z"}):
        with pytest.raises(InvalidArgumentError):
            Processor(scope, "in", "odd", echo, **options)


def test_positions_have_one_owner() -> None:
    one = Positions({0: SegmentProgress(0, 0.0, 1.0)}).advanced([(0, 0, 10)], 1, 0)
    with pytest.raises(PositionConflictError):
        one.advanced([(0, 0, 10)], 1, 0)
    with pytest.raises(PositionConflictError):
        one.completed(0, 5, [])
    assert one.passed(0, 10, 20).gaps == 1


def test_the_example_makes_each_alarm_once_though_its_workers_are_killed(server: EmbeddedServer) -> None:
    """examples/alarms, three workers at a time, killed at random, while the stream is written and split."""
    chance = random.Random(7)
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        for stream in ("degrees", "alarms"):
            manager.create_stream("home", stream, 2)

        def started() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", "examples.alarms", server.controller_uri], cwd=ROOT, stderr=subprocess.DEVNULL
            )

        workers = [started() for _ in range(3)]
        expected: Counter[str] = Counter()
        try:
            with manager.create_writer("home", "degrees") as writer:
                for number in range(12):
                    for _ in range(400):
                        room, degrees = f"room {chance.randrange(20)}", chance.randrange(20, 40)
                        writer.write_event(json.dumps({"room": room, "degrees": degrees}).encode(), routing_key=room)
                        expected[room] += degrees > 30
                    writer.flush()
                    if number == 5:
                        manager.scale_stream("home", "degrees", [0, 1], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
                    killed = chance.randrange(len(workers))
                    workers[killed].kill()
                    workers[killed].wait()
                    workers[killed] = started()
            manager.seal_stream("home", "degrees")
            for worker in workers:
                assert worker.wait(120) == 0
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
                worker.wait()
        end = manager.stream_info("home", "alarms").tail
        alarms = [json.loads(event.data) for event in manager.read_events("home", "alarms", end=end)]
    assert Counter(alarm["room"] for alarm in alarms) == +expected
