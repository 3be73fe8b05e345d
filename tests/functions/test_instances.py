"""Several instances of a function, and recovery from killed ones."""

from __future__ import annotations

import asyncio
import os
import signal
from uuid import uuid4

import pytest

from nadi.client.aio import StreamManager
from nadi.client.readergroup.outputs import UncommittedOutput, open_output_reader, recorded_outputs
from nadi.functions import FunctionError, serve
from nadi.functions.definition import FunctionOptions
from nadi.functions.progress import FunctionProgressRecord
from nadi.functions.writing import UnknownOutcomeError
from nadi.process import members
from nadi.testing import RestartableServer

from .command import nadi_command, runner
from .support import delivered, quick_function, read, read_all, running, streams, until_workers, write

CHANGES: list[FunctionOptions] = [{"output": "dead"}, {"dead_letters": None}, {"delivery": "at-least-once"}]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
async def test_instance_with_other_options_fails(
    manager: StreamManager, nadi_scope: str, change: FunctionOptions
) -> None:
    await streams(manager, nadi_scope)
    function = quick_function(nadi_scope, "echo", output="out", dead_letters="dead", delivery="exactly-once")
    option = next(iter(change)).replace("_", " ")
    async with running(function, manager):
        with pytest.raises(FunctionError, match=option):
            await serve(function.changed(**change), manager)


async def test_killed_instance_is_detected_at_once(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("PROCESS_DEAD_S", "PROCESS_SILENT_S"):
        monkeypatch.setattr(members, limit, 1e6)  # regardless of its silence
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 20)
    async with runner(nadi_server.controller_uri, nadi_scope, "echo", "recorded", 1) as process:
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    group = await manager.reader_group_manager(nadi_scope).get_reader_group("echo")
    progress = FunctionProgressRecord(manager, nadi_scope, "echo")
    left = set(await group.online_readers())
    assert left
    assert await progress.running() == []
    async with running(delivered(nadi_scope, "echo", "exactly-once"), manager):
        assert [instance.pid for instance in await progress.running()] == [os.getpid()]
        shown = await nadi_command(nadi_server, "function", "status", nadi_scope, "echo")
        assert f"process {os.getpid()}, " in shown
        assert len(await read(manager, nadi_scope, "out", 20)) == 20
        assert not left & set(await group.online_readers())
    assert "deleted" in await nadi_command(nadi_server, "function", "delete", nadi_scope, "echo", "--yes")


async def test_settle_commits_recorded_outputs(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 20)
    async with runner(nadi_server.controller_uri, nadi_scope, "echo", "recorded", 1) as process:
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    settle = ("function", "settle", nadi_scope, "echo")
    assert " 0 " in await nadi_command(nadi_server, *settle, "--redo")
    assert len(await read(manager, nadi_scope, "out", 20)) == 20
    async with running(quick_function(nadi_scope, "echo", output="out", delivery="exactly-once"), manager):
        await until_workers(manager, quick_function(nadi_scope, "echo"), 0, 0)
    assert len(await read_all(manager, nadi_scope, "out")) == 20


@pytest.mark.parametrize("redo", [False, True])
async def test_unknown_outcome_needs_settle(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, redo: bool
) -> None:
    await streams(manager, nadi_scope, 1)
    function = quick_function(nadi_scope, "echo", output="out", delivery="exactly-once")
    async with running(function, manager):
        pass
    await write(manager, nadi_scope, 0, 20)
    group = await manager.reader_group_manager(nadi_scope).get_reader_group(function.name)
    reader = await open_output_reader(group, "elsewhere")
    held = await reader.next_batch(5, timeout=60)
    assert not isinstance(held, UncommittedOutput)
    assert held is not None
    assert held.block is not None
    await reader.record(0, held.block.size_bytes, {f"{nadi_scope}/out": str(uuid4())})
    with pytest.raises(UnknownOutcomeError):
        await serve(function, manager)
    settle = ("function", "settle", nadi_scope, function.name, *(["--redo"] if redo else []))
    assert " 1 " in await nadi_command(nadi_server, *settle)
    assert await recorded_outputs(group) == []
    async with running(function, manager):
        out = await read(manager, nadi_scope, "out", 20 if redo else 15)
    assert out[0] == (b"k0 0" if redo else b"k5 5")
