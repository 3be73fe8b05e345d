"""Functions on a real server, with real processes: each event is handled, whatever its handler does."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from nadi.client.aio import StreamManager
from nadi.errors import StreamRecreatedError
from nadi.functions import FunctionError, FunctionStoppedError
from nadi.process import DeadLetter

from .support import (
    HANDLERS,
    in_order,
    quick_function,
    read,
    read_all,
    running,
    streams,
    until_handled,
    until_workers,
    write,
)


async def test_each_event_is_handled_in_order_and_from_zero_to_many_and_back(
    manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope, 4)
    function = quick_function(nadi_scope, "echo", output="out", max_workers=3)
    async with running(function, manager):
        await until_workers(manager, function, 0, 0)
        await write(manager, nadi_scope, 0, 500)
        await until_workers(manager, function, 1, 3)
        out = await read(manager, nadi_scope, "out", 500)
        assert len(set(out)) == 500
        await until_workers(manager, function, 0, 0)
        started = asyncio.get_running_loop().time()
        await write(manager, nadi_scope, 500, 501)
        await read(manager, nadi_scope, "out", 501)
        print(f"from zero in {asyncio.get_running_loop().time() - started:.2f} s")
    assert in_order(await read_all(manager, nadi_scope, "out"))


POISONED: dict[str, tuple[str, dict[str, Any]]] = {
    "raise_at_poison": ("raised", {}),
    "batch_with_poison": ("raised", {}),
    "die_at_poison": ("died", {}),
    "exit_at_poison": ("died", {}),
    "hang_at_poison": ("timed out", {"timeout_s": 2.0}),
    "eat_memory_at_poison": ("raised", {"memory_mib": 512}),
}


async def test_poison_event_becomes_a_dead_letter(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 60, poison=(20,))

    async def check(handler: str) -> None:
        kind, options = POISONED[handler]
        name = handler.replace("_", "-")
        for what in ("dead", "out"):
            await manager.create_stream(nadi_scope, f"{what}-{name}", 1)
        function = quick_function(
            *(nadi_scope, handler),
            output=f"out-{name}",
            dead_letters=f"dead-{name}",
            **{"retries": 1, "max_workers": 2, **options},
        )
        async with running(function, manager):
            [letter] = [DeadLetter.decode(data) for data in await read(manager, nadi_scope, f"dead-{name}", 1)]
            out = await read(manager, nadi_scope, f"out-{name}", 59)
            record = await until_handled(manager, function, 60)
        assert letter.data == b"k4 20 poison"
        assert (letter.kind, letter.by) == (kind, f"function {function.name}")
        assert letter.attempts >= 2
        assert sorted(set(out)) == sorted(f"k{i % 16} {i}".encode() for i in range(60) if i != 20)
        assert in_order(out)
        assert record.counts.dead_letters == 1
        assert kind in record.last_error

    await asyncio.gather(*map(check, POISONED))


async def test_an_event_that_fails_for_a_while_is_handled_in_its_place(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 40, poison=(5, 21))
    function = quick_function(nadi_scope, "third_time_lucky", output="out")
    async with running(function, manager):
        out = await read(manager, nadi_scope, "out", 40)
        record = await until_handled(manager, function, 40)
    assert in_order(out)
    assert (record.counts.retries, record.counts.failures, record.counts.dead_letters) == (4, 4, 0)


async def test_failed_process_start_is_retried(
    manager: StreamManager, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 40, poison=(5,))
    start, starts = asyncio.create_subprocess_exec, 0

    async def sometimes(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1  # 1: test of loading; 2, 3: start of the worker; 4: after its process died
        if starts in (2, 4):
            raise OSError(errno.EAGAIN, "no more processes")
        return await start(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", sometimes)
    function = quick_function(nadi_scope, "die_at_poison", output="out", dead_letters="dead", retries=1)
    async with running(function, manager):
        record = await until_handled(manager, function, 40)
    assert record.counts.dead_letters == 1
    assert len(set(await read_all(manager, nadi_scope, "out"))) == 39
    assert starts > 4


async def test_failed_event_without_dead_letters_stops_the_function(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 30, poison=(12,))
    function = quick_function(nadi_scope, "reject_poison", output="out", retries=50)
    with pytest.raises(FunctionStoppedError) as stopped:
        async with running(function, manager) as task:
            await asyncio.wait([task], timeout=60)
    assert stopped.value.attempts == 1
    assert await read_all(manager, nadi_scope, "out") == [f"k{i % 16} {i}".encode() for i in range(12)]
    fixed = quick_function(nadi_scope, "echo", output="out", name=function.name)
    async with running(fixed, manager):
        out = await read(manager, nadi_scope, "out", 30)
    assert [int(event.split()[1]) for event in out] == list(range(30))


async def test_batches_are_filled_or_wait_their_time(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    function = quick_function(nadi_scope, "count", output="out", batch_events=10, batch_ms=10_000)
    async with running(function, manager):
        for first in range(0, 25, 5):  # five events per append
            await write(manager, nadi_scope, first, first + 5)
        assert await read(manager, nadi_scope, "out", 3) == [b"10", b"10", b"5"]


async def test_full_batch_does_not_wait(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    function = quick_function(nadi_scope, "count", output="out", batch_events=1000, batch_ms=600_000)
    async with running(function, manager) as task:
        writer = await manager.create_writer(nadi_scope, "in")
        await writer.write_many([bytes(1_000_000)] * 12, "k")
        await writer.close()
        [first] = await read(manager, nadi_scope, "out", 1)
        await manager.seal_stream(nadi_scope, "in")
        await asyncio.wait([task], timeout=60)
        assert task.done()
    assert sum(map(int, await read_all(manager, nadi_scope, "out"))) == 12
    assert 8 <= int(first) < 12


async def test_it_follows_a_scaling_and_ends_with_a_sealed_stream(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    function = quick_function(nadi_scope, "echo_later", output="out")
    async with running(function, manager) as task:
        await write(manager, nadi_scope, 0, 100)
        await manager.scale_stream(nadi_scope, "in", [0], [(0.0, 0.5), (0.5, 1.0)])
        await write(manager, nadi_scope, 100, 200)
        await manager.seal_stream(nadi_scope, "in")
        await asyncio.wait_for(task, 60)
    out = await read_all(manager, nadi_scope, "out")
    assert len(out) == 200
    assert in_order(out)


async def test_recreated_stream_raises_after_completion(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    function = quick_function(nadi_scope, "echo", output="out")
    await write(manager, nadi_scope, 0, 5)
    await manager.seal_stream(nadi_scope, "in")
    for _ in range(2):
        async with running(function, manager) as task:
            await asyncio.wait_for(task, 60)
    await manager.delete_stream(nadi_scope, "in")
    await manager.create_stream(nadi_scope, "in", 1)
    with pytest.raises(StreamRecreatedError):
        async with running(function, manager) as task:
            await asyncio.wait([task], timeout=60)


async def test_serve_invalid_handler_or_group_fails(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 1)
    with pytest.raises(FunctionError, match="'missing'"):
        async with running(quick_function(nadi_scope, "missing", min_workers=1), manager) as task:
            await asyncio.wait([task], timeout=60)
    groups = manager.reader_group_manager(nadi_scope)
    await groups.create_reader_group("taken", "out")
    with pytest.raises(FunctionError, match="taken"):
        async with running(quick_function(nadi_scope, "echo", name="taken"), manager) as task:
            await asyncio.wait([task], timeout=60)
    assert HANDLERS.endswith("handlers.py")


async def test_invalid_result_stops_the_function(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 1)
    function = quick_function(nadi_scope, "returns_nonsense", output="out", retries=0)
    with pytest.raises(FunctionStoppedError, match="InvalidArgumentError"):
        async with running(function, manager) as task:
            await asyncio.wait([task], timeout=60)
