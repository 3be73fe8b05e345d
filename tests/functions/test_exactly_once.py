"""Each event's output is stored exactly once, in order per key, when the function's process, its handler, its reader or
the server is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from typing import Any

import pytest

from nadi.client.aio import EventRead, StreamManager, Transaction
from nadi.client.readergroup.outputs import UncommittedOutput, open_output_reader, recorded_outputs
from nadi.errors import ConditionFailedError, ReaderOfflineError
from nadi.functions import serve
from nadi.testing import RestartableServer

from .command import runner
from .support import exactly_once, in_order, quick_function, read, read_all, running, streams, until_handled, write

STEPS = ("begun", "written", "recorded", "committed")


async def check(manager: StreamManager, scope: str, count: int) -> None:
    """Check that each number is present once, and each "again" once."""
    out = await read(manager, scope, "out", 2 * count)
    await asyncio.sleep(0.3)  # duplicates would arrive now
    out = await read_all(manager, scope, "out")
    expected = Counter(f"k{i % 16} {i}{again}".encode() for i in range(count) for again in ("", " again"))
    assert Counter(out) == expected
    assert in_order([event for event in out if b"again" not in event])
    assert in_order([event for event in out if b"again" in event])


async def test_a_kill_at_each_step_loses_and_repeats_nothing(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 400)
    for step in STEPS:
        async with runner(nadi_server.controller_uri, nadi_scope, "double", step, 2) as process:
            assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    function = quick_function(nadi_scope, "double", output="out", delivery="exactly-once")
    async with running(function, manager):
        await check(manager, nadi_scope, 400)
    group = await manager.reader_group_manager(nadi_scope).get_reader_group("double")
    assert await recorded_outputs(group) == []


async def test_with_failures_and_dead_letters_and_kills_of_handlers(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 300, poison=(33, 120))
    function = quick_function(
        *(nadi_scope, "die_at_poison"),
        output="out",
        dead_letters="dead",
        delivery="exactly-once",
        retries=1,
        batch_events=50,
    )
    async with running(function, manager):
        await until_handled(manager, function, 300)
    out = await read_all(manager, nadi_scope, "out")
    assert Counter(out) == Counter(f"k{i % 16} {i}".encode() for i in range(300) if i not in (33, 120))
    assert in_order(out)
    assert len(await read_all(manager, nadi_scope, "dead")) == 2


async def test_removed_reader_records_nothing(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 10)
    groups = manager.reader_group_manager(nadi_scope)
    await groups.create_reader_group("g", "in", refresh_ms=100)
    group = await groups.get_reader_group("g")
    late = await open_output_reader(group, "late")
    held = await late.next_batch(4, timeout=60)
    assert not isinstance(held, UncommittedOutput)
    assert held is not None
    assert held.block is not None
    assert len(held.block) == 4
    end = held.block.offset + held.block.size_bytes
    await group.reader_offline("late")
    with pytest.raises((ReaderOfflineError, ConditionFailedError)):
        await late.record(held.block.offset, end, {f"{nadi_scope}/out": "id"})
    assert await recorded_outputs(group) == []
    next_one = await open_output_reader(group, "next")
    again = await next_one.next_batch(4, timeout=60)
    assert not isinstance(again, UncommittedOutput)
    assert again is not None
    assert again.block is not None
    assert list(again.block) == list(held.block)
    await next_one.record(held.block.offset, end, {f"{nadi_scope}/out": "id"})
    await group.reader_offline("next")
    third = await open_output_reader(group, "third")
    found = await third.next_batch(4, timeout=60)
    assert isinstance(found, UncommittedOutput)
    assert found.output.transactions == ((f"{nadi_scope}/out", "id"),)
    third.settle(found)
    after = await third.next_batch(4, timeout=60)
    assert not isinstance(after, UncommittedOutput)
    assert after is not None
    assert after.offset == end
    await third.close()


async def test_undone_output_is_read_again_from_its_start(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 10)
    groups = manager.reader_group_manager(nadi_scope)
    await groups.create_reader_group("g", "in", refresh_ms=50)
    group = await groups.get_reader_group("g")
    for number in range(3):  # by the reader that recorded it, and by a later one
        reader = await open_output_reader(group, f"first {number}")
        held = await reader.next_batch(4, timeout=60)
        assert not isinstance(held, UncommittedOutput)
        assert held is not None
        assert held.block is not None
        assert held.offset == 0
        recorded = await reader.record(0, held.block.size_bytes, {f"{nadi_scope}/out": "id"})
        if number:
            await group.reader_offline(f"first {number}")
            reader = await open_output_reader(group, f"second {number}")
            found = await reader.next_batch(4, timeout=60)
            assert found == recorded
        await reader.undo(recorded)
        await reader.close()
        assert [cut.positions for cut in (await group.stream_cuts()).values()] == [{0: 0}]
        assert await recorded_outputs(group) == []


async def test_group_reset_discards_current_batch(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 10)
    groups = manager.reader_group_manager(nadi_scope)
    await groups.create_reader_group("g", "in", refresh_ms=50)
    group = await groups.get_reader_group("g")
    reader = await open_output_reader(group, "reader")
    first = await reader.next_batch(4, timeout=60)
    assert isinstance(first, EventRead)
    recorded = await reader.record(0, first.block.size_bytes if first.block is not None else 0, {})
    reader.settle(recorded)
    held = await reader.next_batch(4, timeout=60)
    assert isinstance(held, EventRead)
    assert held.block is not None
    await group.reset_reader_group([await manager.cuts(nadi_scope, "in").head()])
    async with asyncio.timeout(60):
        while reader.positions() != {held.segment: 0}:  # noqa: ASYNC110 - until it has noticed
            await asyncio.sleep(0.02)
    with pytest.raises(ConditionFailedError):
        await reader.record(held.offset, held.offset + held.block.size_bytes, {f"{nadi_scope}/out": "id"})
    await reader.close()
    assert [cut.positions for cut in (await group.stream_cuts()).values()] == [{0: 0}]


async def test_an_output_that_was_aborted_meanwhile_is_made_again(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 200)
    async with runner(nadi_server.controller_uri, nadi_scope, "double", "recorded", 2) as process:
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    group = await manager.reader_group_manager(nadi_scope).get_reader_group("double")
    found = await recorded_outputs(group)
    writer = await manager.create_transaction_writer(nadi_scope, "out")
    aborted = 0
    for one in found:
        txn = await writer.get_txn(one.output.transactions[0][1])
        if await txn.status() == "OPEN":
            await txn.abort(wait=True)
            aborted += 1
    assert aborted
    async with running(quick_function(nadi_scope, "double", output="out", delivery="exactly-once"), manager):
        await check(manager, nadi_scope, 200)
    assert "can't commit the recorded output" in caplog.text


async def test_aborted_transaction_repeats_the_output(
    manager: StreamManager, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 200)
    commit, aborted = Transaction.commit, 0

    async def aborted_first(txn: Transaction, **options: Any) -> None:
        nonlocal aborted
        aborted += 1
        if aborted in (2, 5):
            await txn.abort(wait=True)
        await commit(txn, **options)

    monkeypatch.setattr(Transaction, "commit", aborted_first)
    function = quick_function(nadi_scope, "double", output="out", delivery="exactly-once", batch_events=20)
    async with running(function, manager):
        await check(manager, nadi_scope, 200)
    assert aborted > 5


async def kills(server: RestartableServer, manager: StreamManager, scope: str, events: int, times: int) -> None:
    """Run a function whose process is killed at random, next to a second instance, while events are written."""
    await streams(manager, scope, 3)
    chance = random.Random(times)
    other = asyncio.Event()
    second = asyncio.create_task(serve(exactly_once(scope, "double"), manager, stop=other))
    for number in range(times):
        first, last = events * number // times, events * (number + 1) // times
        async with runner(
            server.controller_uri, scope, "double", chance.choice(STEPS), chance.randint(1, 6)
        ) as process:
            await write(manager, scope, first, last)
            try:
                await asyncio.wait_for(process.wait(), 1 + 3 * chance.random())
            except TimeoutError:
                if process.returncode is None:  # unless it was just killed at its step
                    os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
        if number == times // 2:
            other.set()
            await second
    other.set()
    await second
    async with running(exactly_once(scope, "double"), manager):
        await check(manager, scope, events)


@pytest.mark.slow
async def test_many_kills_at_random(nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str) -> None:
    await kills(nadi_server, manager, nadi_scope, 20_000, 40)


async def test_some_kills_at_random_beside_another_instance(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    await kills(nadi_server, manager, nadi_scope, 600, 2)
