"""A controller that was paused or killed in the middle of a workflow, which another one finished meanwhile.

Each workflow of A is held up after each of its commands, once it is recorded. B, which has run all the while over the
same store, is asked for the same and takes A's work up. A goes on late, or never.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable
from functools import partial

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.records import Config, TableConfig
from nadi.errors import NadiError, ScopeNotFoundError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, settle, until
from .test_crashes import CASES, GROUP, ID, OTHER, TABLE, Step, check, group_config, seal, two_segments
from .test_two_controllers import over

_TAKING_PART = {
    name: case
    for name, case in CASES.items()
    if not name.startswith(("commit", "abort", "begin", "seal", "create_scope", "delete_scope_that"))
} | {"seal": (two_segments, seal)}  # transactions have one controller


class Held:
    """A's way to the store: from the `at`-th command after its work was recorded it gets no reply, until `goes_on`."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self._left: int | None = None
        self._is_recorded = False
        self.is_held = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.dead = False

    def hold_at(self, commands: int) -> None:
        self._left = commands

    async def exchange(self, command: Command) -> Command:
        if self.dead:
            raise UnavailableError("it is dead")
        reply = await self._store.exchange(command)
        if self._left is not None and self._is_counted(command):
            self._left -= 1
            if self._left < 0:
                self.is_held.set()
        if self.is_held.is_set():
            await self.goes_on.wait()
        return reply

    def _is_counted(self, command: Command) -> bool:
        if isinstance(command, wire.UpdateTableEntries | wire.UpdateTableToFreeRoom) and command.segment.endswith(
            "/work"
        ):
            self._is_recorded = True
        return self._is_recorded


def everything(store: FakeStore) -> dict[str, object]:
    """All that the store holds, but for what is to be done, and what every controller's first round notes."""
    found: dict[str, object] = {
        name: (held.data, held.start, held.sealed, held.target_rate) for name, held in store.segments.items()
    }
    for name, table in store.tables.items():
        if name.endswith("/work"):
            continue
        found[name] = {key: value for key, (_, value) in table.entries.items() if key != b"limited/all"}
    return found


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [
        f"{name}: {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


async def done(clock: FakeClock, what: Awaitable[None]) -> None:
    """Await something for which time must pass, in long steps."""
    task = asyncio.ensure_future(what)
    for _ in range(100):
        await settle(60)
        if task.done():
            break
        await clock.advance(2_000)
    assert task.done(), "it is stuck"
    await task


async def delete_all(clock: FakeClock, controller: Controller) -> None:
    with contextlib.suppress(ScopeNotFoundError):
        await done(clock, controller.delete_scope(STREAM.scope, recursive=True))


async def make_anew(clock: FakeClock, controller: Controller, store: FakeStore) -> None:
    """Delete all there is, and make as much under the same names."""
    await delete_all(clock, controller)
    await done(clock, fill(controller, store))


async def fill(controller: Controller, store: FakeStore) -> None:
    await controller.create_scope(STREAM.scope)
    for name in (STREAM, OTHER):
        await controller.create_stream(name, Config(min_segments=2, tags=("old", "kept", "new")))
        first, _ = await controller.current_segments(name)
        work = await controller.scale(name, [first.id], [(0.0, 0.25), (0.25, 0.5)])
        await until(partial(controller.is_scaled, name, work.change.epoch - 1))
        for segment in await controller.current_segments(name):
            store.append(name.segment(segment.id), b"new")
    await controller.create_reader_group(GROUP, group_config(STREAM, OTHER), ID)
    await controller.create_table(TABLE, TableConfig(3, 8, 4))


async def passed_over(setup: Step, act: Step, at: int, *, wakes: bool, anew: bool) -> bool:
    store, clock = FakeStore(), FakeClock()
    held = Held(store)
    a, b = over(held.exchange, clock), new_controller(store, clock)
    await a.start()
    await b.start()
    await setup(a, store)
    await settle()
    held.hold_at(at)
    acting = asyncio.ensure_future(act(a, store))
    for _ in range(5_000):
        if acting.done() or held.is_held.is_set():
            break
        await asyncio.sleep(0)
    await settle()
    if not held.is_held.is_set():
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
        await a.stop()
        await b.stop()
        return False
    try:
        with contextlib.suppress(AssertionError, NadiError):  # what it says of a stream that is gone
            await done(clock, act(b, store))
        if anew:
            await make_anew(clock, b, store)
        await settle()
        before = everything(store)
        if wakes:
            held.goes_on.set()
            await settle(300)
            await clock.advance(60_000)
        else:
            held.dead = True
        await a.stop()
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
        found = differences(before, everything(store))
        assert not found, "\n".join(found)
        if wakes:
            b.metadata.forget(STREAM)
            await check(b, store, recreated=anew)
        await delete_all(clock, b)
        await done(clock, b.create_scope(STREAM.scope))  # what A left of a deletion is finished at the latest now
        await delete_all(clock, b)
        await check(b, store)
        assert not store.segments
        left = {name for name in store.tables if "home" in name}
        assert not left, left
    finally:
        await b.stop()
    return True


_EVERY = {"delete_scope": 19, "delete_scope_with_group": 61, "delete_scope_with_table": 61, "delete_group": 7}


@pytest.mark.parametrize("case", _TAKING_PART)
@pytest.mark.parametrize("wakes", [False, True], ids=["killed", "late"])
def test_work_that_another_has_finished(case: str, wakes: bool) -> None:
    """Who wakes late changes nothing of what was made anew under the same names."""
    setup, act = _TAKING_PART[case]
    first = 2 if wakes else 1
    for at in itertools.count(first, _EVERY.get(case, 3)):
        if not asyncio.run(passed_over(setup, act, at, wakes=wakes, anew=wakes)):
            break
    assert at > first, "the workflow gives some commands"
