"""With at-most-once delivery a handler gets no event twice, whichever process is killed; with at-least-once it misses
none. Counted by a file to which it appends first."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from nadi.client.aio import StreamManager
from nadi.process import DeadLetter
from nadi.testing import RestartableServer
from tests.support.waiting import until_async

from .command import runner
from .support import delivered, quick_function, read_all, running, streams, until_handled, write

EVENTS = 600


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("NOTES", str(path))
    return path


def noted(path: Path) -> Counter[int]:
    return Counter(int(line.split()[1]) for line in path.read_bytes().splitlines())


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once"])
@pytest.mark.parametrize("handler", [pytest.param("note_slowly", marks=pytest.mark.slow), "note_batch"])
@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.slow)])
async def test_function_killed_at_random_steps_keeps_its_guarantee(
    nadi_server: RestartableServer,
    manager: StreamManager,
    nadi_scope: str,
    notes: Path,
    delivery: str,
    handler: str,
    kills: int,
) -> None:
    await streams(manager, nadi_scope, 3)
    chance = random.Random(f"{delivery} {handler}")
    for number in range(kills):
        async with runner(nadi_server.controller_uri, nadi_scope, handler, delivery=delivery) as process:
            before = noted(notes).total()
            await write(manager, nadi_scope, EVENTS * number // kills, EVENTS * (number + 1) // kills)
            await until_async(lambda before=before: noted(notes).total() > before)  # type: ignore[misc]
            await asyncio.sleep(chance.random())  # at a random step
            process.kill()
            assert await process.wait() == -signal.SIGKILL
    async with running(delivered(nadi_scope, handler, delivery), manager):
        await write(manager, nadi_scope, EVENTS, EVENTS + 20)
        await until_async(lambda: set(range(EVENTS, EVENTS + 20)) <= noted(notes).keys())
        await until_handled(manager, delivered(nadi_scope, handler, delivery), 1)
    counts = noted(notes)
    if delivery == "at-most-once":
        assert max(counts.values()) == 1
        assert len(counts) > EVENTS / 10
        outputs = Counter(await read_all(manager, nadi_scope, "out"))
        assert max(outputs.values()) == 1
    else:
        assert counts.keys() == set(range(EVENTS + 20))


async def test_server_killed_at_random_steps_repeats_no_event(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, notes: Path
) -> None:
    await streams(manager, nadi_scope, 2)
    chance = random.Random(3)
    async with running(delivered(nadi_scope, "note_slowly", "at-most-once"), manager):
        for number in range(2):
            await write(manager, nadi_scope, number * 200, (number + 1) * 200)
            await asyncio.sleep(chance.random() / 2)
            await asyncio.to_thread(nadi_server.kill)
            await asyncio.to_thread(nadi_server.start)
        await write(manager, nadi_scope, 400, 420)
        await until_async(lambda: set(range(400, 420)) <= noted(notes).keys())
    assert max(noted(notes).values()) == 1


async def test_function_stopped_within_a_batch_returns_other_events(
    manager: StreamManager, nadi_scope: str, notes: Path
) -> None:
    await streams(manager, nadi_scope, 2)
    await write(manager, nadi_scope, 0, 600)
    function = quick_function(nadi_scope, "note_slowly", delivery="at-most-once", batch_events=600)
    for most in (100, 300, 600):
        async with running(function, manager):
            await until_async(lambda most=most: noted(notes).total() >= most)  # type: ignore[misc]
    assert noted(notes) == Counter(range(600))


@pytest.mark.parametrize(
    ("handler", "together"), [("note", 1), ("note_batch", 20), ("note_and_die_at_poison", 1)], ids=str
)
async def test_event_that_fails_is_a_dead_letter_at_once(
    manager: StreamManager, nadi_scope: str, notes: Path, handler: str, together: int
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 100, poison=(7, 50))
    function = delivered(nadi_scope, handler, "at-most-once")
    async with running(function, manager):
        await until_handled(manager, function, 100 - (0 if together > 1 else 1))
    assert noted(notes) == Counter(range(100))
    letters = [DeadLetter.decode(data) for data in await read_all(manager, nadi_scope, "dead")]
    assert len(letters) == 2 * together
    assert {letter.attempts for letter in letters} == {1}
    out = Counter(await read_all(manager, nadi_scope, "out"))
    assert not {letter.data for letter in letters} & out.keys()
    assert not out or max(out.values()) == 1


async def test_event_that_fails_without_a_dead_letter_stream_is_left_out(
    manager: StreamManager, nadi_scope: str, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 50, poison=(7,))
    function = quick_function(nadi_scope, "note", delivery="at-most-once", output="out")
    async with running(function, manager):
        await until_handled(manager, function, 49)
    assert noted(notes) == Counter(range(50))
    assert len(await read_all(manager, nadi_scope, "out")) == 49
    assert "skipped event" in caplog.text
