"""A handler's process, without a server: everything the handler does is an outcome, and no processes remain."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nadi.functions import HandlerEvent
from nadi.functions.handlers.event import Outcome
from nadi.functions.handlers.process import NOTE, HandlerCall, HandlerProcess, Start, framed, receive
from tests.support.waiting import until_async

from .support import HANDLERS


@asynccontextmanager
async def handler_process(name: str, **options: Any) -> AsyncIterator[HandlerProcess]:
    reference = name if ":" in name else f"{HANDLERS}:{name}"
    given = {"by_list": None, "timeout_s": 60.0, "memory_mib": None, **options}
    process = HandlerProcess(reference, function="f", worker="w1", logger=logging.getLogger("test"), **given)
    try:
        await process.start()
        yield process
    finally:
        await process.close()


async def call(process: HandlerProcess, *data: str) -> Outcome:
    events = [HandlerEvent(text.encode(), "s/in/0.#epoch.0", at) for at, text in enumerate(data)]
    return await asyncio.wait_for(process.call(events, 1), 50)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("CancelledError", "asyncio.exceptions.CancelledError: "),
        ("GeneratorExit", "GeneratorExit: "),
        ("KeyboardInterrupt", "KeyboardInterrupt: "),
        ("SystemExit", "SystemExit: 3"),
        ("without a text", "Mute: "),
        ("half a character", r"ValueError: \udcff"),
        ("half a key", "UnicodeEncodeError: "),
        ("too much", "OutputTooLargeError: "),
    ],
)
async def test_handler_exception_is_reported_and_keeps_the_process(what: str, error: str) -> None:
    async with handler_process("raises") as process:
        pid = process.pid
        outcome = await call(process, "good", what, "good")
        assert outcome.done == 1
        assert outcome.failure is not None
        assert error in str(outcome.failure)
        assert (await call(process, "good")).done == 1
        assert process.pid == pid


async def test_a_closed_standard_output_is_no_failure_of_the_events() -> None:
    async with handler_process("raises") as process:
        outcome = await call(process, "closes stdout", "good")
        assert (outcome.done, outcome.failure) == (2, None)


async def test_large_results_are_returned_early() -> None:
    async with handler_process("megabytes") as process:
        count, rest = 0, ["7"] * 20
        while rest:
            outcome = await call(process, *rest)
            assert outcome.failure is None
            assert sum(len(data) for _, data in outcome.outputs) < 16_000_000
            count, rest = count + len(outcome.outputs), rest[outcome.done :]
        assert count == 20


async def test_dead_process_is_noticed_despite_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    async with handler_process("forks_and_dies") as process:
        began = time.monotonic()
        outcome = await call(process, str(child))
        assert outcome.failure is not None
        assert "SIGKILL" in outcome.failure.message
        assert time.monotonic() - began < 30  # not the timeout
        await until_gone(child)


async def test_hanging_handler_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    async with handler_process("starts_and_waits", timeout_s=5.0) as process:
        outcome = await call(process, str(child))
        assert outcome.failure is not None
        assert outcome.failure.kind == "timed out"
        await until_gone(child)


async def test_a_handler_is_found_where_this_program_finds_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a_module_of_mine.py").write_text("def handler(event): return event.data\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "far"), *sys.path])
    async with handler_process("a_module_of_mine:handler") as process:
        assert (await call(process, "x")).outputs == [(None, b"x")]


async def until_gone(child: Path) -> None:
    """Wait until the process whose number is in the file has ended."""
    pid = int(await asyncio.to_thread(child.read_text))
    async with asyncio.timeout(30):
        while is_running(pid):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_process_whose_parent_died_with_an_unread_outcome_ends() -> None:
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("notes")
    os.ftruncate(memory, NOTE.size)
    command = [sys.executable, "-m", "nadi.functions.handlers.process", str(theirs.fileno())]
    process = await asyncio.create_subprocess_exec(*command, pass_fds=(theirs.fileno(), memory), start_new_session=True)
    try:
        theirs.close()
        file: Any
        with ours.makefile("rwb") as file:
            start = Start(*(f"{HANDLERS}:echo", "f", "w1", None, 0, memory), log_level=logging.WARNING, path=sys.path)
            file.write(framed(start))
            file.flush()
            assert receive(file) is not None
            file.write(framed(HandlerCall([HandlerEvent(b"hall 7", "s/in/0.#epoch.0", 0)], 1)))
            file.flush()
            await until_async(lambda: bool(select.select([ours], [], [], 0)[0]))
        ours.close()
        assert await asyncio.wait_for(process.wait(), 20) == -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        os.close(memory)
