"""Two controllers on one store: neither takes the other's record away, and what they make and delete at the same time
is whole in the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import AnyWork, Config, DeleteScopeWork, Scope, ScopeState, TableConfig, Turn
from nadi.controller.state.store import ANY_VERSION
from nadi.errors import ConflictError, NotEmptyError, NotFoundError, ScopeNotFoundError
from nadi.runtime import Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, running, settle
from .test_crashes import ID, check, group_config

Exchange = Callable[[Command], Awaitable[Command]]


class Gate:
    """Holds a controller back just before it removes a record of work."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()

    async def exchange(self, command: Command) -> Command:
        if isinstance(command, wire.RemoveTableKeys) and command.segment.endswith("/work") and not self.open.is_set():
            self.reached.set()
            await self.open.wait()
        return await self._exchange(command)


def over(exchange: Exchange, clock: Runtime | None = None, is_leased: Callable[[], bool] = lambda: True) -> Controller:
    return Controller(
        exchange,
        clock=clock,
        endpoint_of=lambda _: ("127.0.0.1", 12345),
        rpc_endpoint=("127.0.0.1", 9090),
        is_leased=is_leased,
    )


async def unfinished(controller: Controller) -> list[str]:
    return [key async for key, record in controller.metadata.work.scan() if not isinstance(record.value, Turn)]


async def recorded(controller: Controller, works: list[str], clock: FakeClock | None = None) -> None:
    for _ in range(50_000):
        if await unfinished(controller) == works:
            return
        if clock is not None:
            await clock.advance(500)
        await asyncio.sleep(0.001)
    raise AssertionError(f"never {works}")


async def idle(*controllers: Controller) -> None:
    for _ in range(50_000):
        if not any(controller.unfinished["workflows"] for controller in controllers):
            return
        await asyncio.sleep(0.001)
    raise AssertionError("they come to no end")


async def wakes_late(exchange: Exchange) -> None:
    """A pauses before it removes the record of its update; B finishes that and begins its own; A wakes."""
    gate_a, gate_b = Gate(exchange), Gate(exchange)
    a, b = over(gate_a.exchange), over(gate_b.exchange)
    await a.start()
    await a.create_scope(STREAM.scope)
    await a.create_stream(STREAM, Config())
    gate_a.open.clear()
    await a.update_stream(STREAM, Config(tags=("one",)))
    await gate_a.reached.wait()
    await b.start()
    await recorded(b, [])
    gate_b.open.clear()
    await b.update_stream(STREAM, Config(tags=("two",)))
    await gate_b.reached.wait()
    assert await unfinished(b) == [f"{STREAM.key}/update"]
    gate_a.open.set()
    await idle(a)
    assert await unfinished(b) == [f"{STREAM.key}/update"]
    gate_b.open.set()
    await idle(b)
    assert await unfinished(b) == []
    b.metadata.forget(STREAM)
    assert (await b.stream(STREAM)).config.tags == ("two",)
    await a.stop()
    await b.stop()


async def test_one_that_wakes_late_removes_no_record_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.controller.engine.hold.WORKFLOW_HOLD_S", 600.0)  # else A might look, and wait for B
    await wakes_late(FakeStore().exchange)


async def test_one_that_wakes_late_removes_no_record_of_another_in_the_real_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadi.controller.engine.hold.WORKFLOW_HOLD_S", 600.0)  # likewise
    store = SegmentStore(tmp_path, 1)
    await store.start()
    try:
        await wakes_late(store.exchange)
    finally:
        await store.close()


async def test_work_of_a_controller_that_is_gone_is_taken_up_by_who_waits_for_it() -> None:
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as b:
        a = new_controller(store, clock)
        await a.start()
        await a.create_scope(STREAM.scope)
        await a.create_stream(STREAM, Config())
        await settle()
        store.before = no_more = _Stop(store)
        sealing = asyncio.ensure_future(a.seal_stream(STREAM))
        await no_more.reached.wait()
        await a.stop()
        await asyncio.gather(sealing, return_exceptions=True)
        store.before = None
        assert await unfinished(b) == [f"{STREAM.key}/seal"]
        again = asyncio.ensure_future(b.seal_stream(STREAM))
        await clock.advance(20_000)
        assert not again.done()
        await clock.advance(20_000)
        await again
        await settle()
        await check(b, store)


async def test_one_whose_lease_is_over_gives_no_command_though_it_looked_just_now() -> None:
    """A cluster's next controller begins four seconds after the last sign of this one, and finishes its work at once:
    one that woke then deleted the state of a reader group that had been made anew."""
    store, clock, is_leased, group = FakeStore(), FakeClock(), True, GroupName(STREAM.scope, "readers")
    stopped, go_on, dropped = asyncio.Event(), asyncio.Event(), list[str]()

    async def stops(command: Command) -> Command:
        reply = await store.exchange(command)
        if isinstance(command, wire.RemoveTableKeys) and command.segment.endswith("/timed"):
            stopped.set()
            await go_on.wait()
        if isinstance(command, wire.DeleteTableSegment) and go_on.is_set():
            dropped.append(command.segment)
        return reply

    a = over(stops, clock, lambda: is_leased)
    await a.start()
    await a.create_scope(STREAM.scope)
    await a.create_stream(STREAM, Config())
    await a.create_reader_group(group, group_config(STREAM), ID)
    deletion = asyncio.ensure_future(a.delete_reader_group(group, ID))
    await stopped.wait()
    is_leased = False
    async with running(store, clock) as b:  # takes the work up, and finishes it
        await recorded(b, [])
        made = await b.create_reader_group(group, group_config(STREAM), ID)
        go_on.set()
        await deletion
        assert not dropped
        b.metadata.forget(group.stream)
        assert (await b.reader_group(group)).group_id == made.group_id
        await a.stop()


async def test_one_that_is_slow_keeps_its_turn() -> None:
    """It shows that it goes on; two that did the same work would finish it at different times."""
    store, clock = FakeStore(), FakeClock()
    is_slow = False

    async def slowly(command: Command) -> Command:
        if is_slow:
            await clock.sleep(4)
        return await store.exchange(command)

    a = over(slowly, clock)
    await a.start()
    async with running(store, clock) as b:
        await a.create_scope(STREAM.scope)
        await a.create_stream(STREAM, Config())
        is_slow = True
        began = clock.monotonic()
        update = asyncio.ensure_future(a.update_stream(STREAM, Config(min_segments=3, tags=("a", "b"))))
        await recorded(b, [f"{STREAM.key}/update"], clock)
        seal = asyncio.ensure_future(b.seal_stream(STREAM))
        while not update.done():
            await clock.advance(1_000)
        await update
        assert clock.monotonic() - began > 45
        await clock.advance(10_000)
        await seal
        await a.stop()
        made = [c.segment for c in store.log if isinstance(c, wire.CreateSegment) and "#epoch.1" in c.segment]
        assert len(made) == 3
        b.metadata.forget(STREAM)
        await check(b, store)


class _Stop:
    """Lets a controller get no further than to the first command for a segment."""

    def __init__(self, store: FakeStore) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, command: Command) -> None:
        if isinstance(command, wire.SealSegment):
            self.reached.set()
            await asyncio.Event().wait()


async def test_one_waits_for_the_others_turn_on_a_stream() -> None:
    """A stream that was sealed in the middle of its scaling would get segments that nobody seals."""

    store, clock = FakeStore(), FakeClock()
    is_under_way, goes_on = asyncio.Event(), asyncio.Event()

    async def held_back(command: Command) -> Command:
        if isinstance(command, wire.CreateSegment) and "#epoch.1" in command.segment:
            is_under_way.set()
            await goes_on.wait()
        return await store.exchange(command)

    a = over(held_back, clock)
    await a.start()
    async with running(store, clock) as b:
        await a.create_scope(STREAM.scope)
        await a.create_stream(STREAM, Config())
        update = asyncio.ensure_future(a.update_stream(STREAM, Config(min_segments=3)))
        await is_under_way.wait()
        seal = asyncio.ensure_future(b.seal_stream(STREAM))
        await settle()
        goes_on.set()
        async with asyncio.timeout(60):
            await update
            await clock.advance(1_000)
            await seal
        await settle()
        await a.stop()
        b.metadata.forget(STREAM)
        await check(b, store)


async def test_a_scope_that_is_not_empty_stays_as_it_was() -> None:
    """Also if a stream came in after the first look: the deletion was under way then."""

    store = FakeStore()
    async with running(store) as a, running(store) as b:
        await a.create_scope(STREAM.scope)
        is_marked, goes_on = asyncio.Event(), asyncio.Event()

        async def at_the_mark(command: Command) -> None:
            is_put = isinstance(command, wire.UpdateTableEntries | wire.UpdateTableToFreeRoom)
            if is_put and getattr(command, "segment", "").endswith("/scopes"):
                is_marked.set()
                await goes_on.wait()

        store.before = at_the_mark
        deleting = asyncio.ensure_future(a.delete_scope(STREAM.scope))
        await is_marked.wait()
        await b.create_stream(STREAM, Config())
        goes_on.set()
        with pytest.raises(NotEmptyError):
            await deleting
        await b.create_stream(StreamName(STREAM.scope, "another"), Config())
        await settle()
        await check(b, store)


async def test_a_marked_scope_takes_nothing_new_and_its_deletion_is_taken_up_at_a_start() -> None:
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as first:
        await first.create_scope("home")
        held = await first.metadata.scope("home")
        marked = await first.metadata.scopes.put(
            "home", Scope(held.value.created_ms, ScopeState.DELETING), held.version
        )
        with pytest.raises(ScopeNotFoundError):
            await first.create_stream(STREAM, Config())
        with pytest.raises(ScopeNotFoundError):
            await first.create_table(TableName("home", "t"), TableConfig(1, 8, 0))
        await first.metadata.work.put("home//scope", DeleteScopeWork(False, marked.version - 1), ANY_VERSION)
    async with running(store, clock) as second:
        await settle(300)
        assert not await second.scope_exists("home")
        await check(second, store)


@pytest.mark.parametrize("kind", ["stream", "table", "group"])
async def test_what_begins_just_before_its_scope_is_marked_is_not_made(kind: str) -> None:
    """The one who creates has found the scope open; the mark is there when its work is recorded."""
    store = FakeStore()
    async with running(store) as a, running(store) as b:
        away = StreamName("away", "meters")
        await a.create_scope(away.scope)
        await a.create_stream(away, Config())
        await a.create_scope("home")
        await settle()
        there = set(store.segments)
        held = await a.metadata.scope("home")

        async def mark_first(command: Command) -> None:
            if isinstance(command, wire.UpdateTableEntries) and command.segment.endswith("/work"):
                store.before = None
                await a.metadata.scopes.put("home", Scope(held.value.created_ms, ScopeState.DELETING), held.version)

        store.before = mark_first
        create: dict[str, Callable[[], Awaitable[object]]] = {
            "stream": lambda: b.create_stream(STREAM, Config()),
            "table": lambda: b.create_table(TableName("home", "t"), TableConfig(1, 8, 0)),
            "group": lambda: b.create_reader_group(GroupName("home", "readers"), group_config(away), ID),
        }
        with pytest.raises(ScopeNotFoundError):
            await create[kind]()
        assert (await a.metadata.scope("home")).value.state is ScopeState.DELETING
        await settle(300)
        assert set(store.segments) == there
        assert await unfinished(b) == []


async def test_a_deletion_taken_up_late_leaves_a_new_scope_of_the_name() -> None:
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as first:
        await first.create_scope("home")
        version = (await first.metadata.scope("home")).version
        await first.delete_scope("home")
        await first.create_scope("home")
        await first.create_stream(STREAM, Config())
        await settle()
        await first.metadata.work.put("home//scope", DeleteScopeWork(True, version), ANY_VERSION)
    async with running(store, clock) as second:
        await settle(300)
        assert await second.stream_exists(STREAM)
        await check(second, store)


def test_records_of_older_versions_are_read() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([1_700]), type=Scope) == Scope(1_700, ScopeState.ACTIVE)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["scope", True]), type=AnyWork) == DeleteScopeWork(True, -1)


async def test_work_that_an_older_version_recorded_is_finished() -> None:
    """It has no turn with it, and names no version of its scope."""

    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as first:
        await first.create_scope("home")
        await first.create_stream(STREAM, Config())
        await settle()
        await first.metadata.work.put("home//scope", DeleteScopeWork(True), ANY_VERSION)
    async with running(store, clock) as second:
        await settle(600)
        await clock.advance(1_000)
        assert not await second.scope_exists("home")
        await check(second, store)
        assert not store.segments


async def make_stream(controller: Controller) -> list[str]:
    await controller.create_stream(STREAM, Config(min_segments=2))
    mark = await controller.current_segments(STREAM.mark)
    names = [STREAM.segment(segment.id) for segment in await controller.current_segments(STREAM)]
    return names + [STREAM.mark.segment(segment.id) for segment in mark]


async def delete_stream(controller: Controller) -> None:
    await controller.seal_stream(STREAM)
    await controller.delete_stream(STREAM)


async def make_table(controller: Controller) -> list[str]:
    name = TableName(STREAM.scope, "t")
    await controller.create_table(name, TableConfig(2, 8, 0))
    return [name.stream.segment(segment.id) for segment in (await controller.table(name)).segments]


async def delete_table(controller: Controller) -> None:
    await controller.delete_table(TableName(STREAM.scope, "t"))


async def make_group(controller: Controller) -> list[str]:
    name = GroupName(STREAM.scope, "g")
    await controller.create_reader_group(name, group_config(STREAM), ID)
    return [name.stream.segment(segment.id) for segment in await controller.current_segments(name.stream)]


async def delete_group(controller: Controller) -> None:
    await controller.delete_reader_group(GroupName(STREAM.scope, "g"), ID)


@pytest.mark.parametrize(
    ("make", "delete"),
    [(make_stream, delete_stream), (make_table, delete_table), (make_group, delete_group)],
    ids=["stream", "table", "group"],
)
async def test_names_of_segments_that_another_has_made_and_deleted_are_not_used_again(
    make: Callable[[Controller], Awaitable[list[str]]], delete: Callable[[Controller], Awaitable[None]]
) -> None:
    """It was decided which numbers to use before the other's segments of those numbers came and went."""

    store = FakeStore()
    is_about_to_record, goes_on = asyncio.Event(), asyncio.Event()

    async def held_back(command: Command) -> Command:
        if isinstance(command, wire.UpdateTableEntries) and command.segment.endswith("/work"):
            is_about_to_record.set()
            await goes_on.wait()
        return await store.exchange(command)

    a = over(held_back)
    await a.start()
    async with running(store) as b:
        await b.create_scope(STREAM.scope)
        if make is make_group:
            await make_stream(b)
        making = asyncio.ensure_future(make(a))
        await is_about_to_record.wait()
        first = await make(b)
        await delete(b)
        goes_on.set()
        second = await making
        assert len(first) == len(second)
        assert not set(first) & set(second)
        await settle()
        await a.stop()
        await check(b, store, recreated=True)


@pytest.mark.parametrize("scaled", [False, True])
async def test_what_is_known_of_a_stream_isnt_used_for_another_of_its_name(*, scaled: bool) -> None:
    """The one who kept the history of the first used to plan with its segments, and to delete those of the first."""
    store = FakeStore()
    async with running(store) as a, running(store) as b:
        await a.create_scope(STREAM.scope)
        await a.create_stream(STREAM, Config())
        if scaled:
            await a.update_stream(STREAM, Config(min_segments=2))
        await a.history(STREAM)
        await delete_stream(b)
        await b.create_stream(STREAM, Config(min_segments=2))
        async with asyncio.timeout(60):
            await a.update_stream(STREAM, Config(min_segments=3))
        a.metadata.forget(STREAM)
        assert [segment.id for segment in (await a.history(STREAM)).epoch(0)] == [
            segment.id for segment in (await b.history(STREAM)).epoch(0)
        ]
        await delete_stream(a)
        await settle()
        assert not [name for name in store.segments if name.startswith(f"{STREAM.key}/")]


# --- both at once ------------------------------------------------------------------------------------


class Hasty(Runtime):
    """Pauses of a workflow are short."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.002))


class Story:
    """What clients were answered: streams of their own names that were made, and scopes that were deleted after."""

    def __init__(self) -> None:
        self.number = 0
        self.made: dict[StreamName, int] = {}  # when it was asked for
        self.deleted: dict[str, int] = {}  # when that was asked for last, or answered

    def next(self) -> int:
        self.number += 1
        return self.number


async def act(controller: Controller, chance: random.Random, story: Story) -> None:
    """One random request."""
    scope, begun = f"s{chance.randrange(2)}", story.next()
    stream, group, table = StreamName(scope, "x"), GroupName(scope, "g"), TableName(scope, "t")
    choice = chance.randrange(11)
    with contextlib.suppress(NotFoundError, ConflictError):
        match choice:
            case 0 | 1:
                await controller.create_scope(scope)
            case 2:
                try:
                    await controller.delete_scope(scope, recursive=chance.random() < 0.5)
                except NotEmptyError:
                    return
                finally:
                    story.deleted[scope] = story.next()
            case 3:
                await controller.create_stream(stream, Config(min_segments=2, tags=("a",)))
            case 4 | 5:
                own = StreamName(scope, f"y{begun}")
                await controller.create_stream(own, Config(tags=("a",)))
                story.made[own] = begun
            case 6:
                await controller.seal_stream(stream)
                await controller.delete_stream(stream)
            case 7:
                await controller.create_table(table, TableConfig(2, 8, 0))
            case 8:
                await controller.delete_table(table)
            case 9:
                await controller.create_reader_group(group, group_config(stream), ID)
            case 10:
                await controller.update_stream(stream, Config(min_segments=3, tags=("b",)))


async def both_at_once(seed: int) -> None:
    chance, story = random.Random(seed), Story()
    store = FakeStore()

    def paused(exchange: Exchange) -> Exchange:
        async def after_a_pause(command: Command) -> Command:
            for _ in range(chance.choice((0, 0, 1, 5, 40, 200))):
                await asyncio.sleep(0)
            return await exchange(command)

        return after_a_pause

    controllers = [over(paused(store.exchange), Hasty()) for _ in range(2)]
    for controller in controllers:
        await controller.start()

    async def client(controller: Controller) -> None:
        for _ in range(12):
            await act(controller, chance, story)

    async with asyncio.timeout(60):
        await asyncio.gather(*(client(controller) for controller in controllers for _ in range(2)))
        await idle(*controllers)
    for controller in controllers:
        await controller.stop()
    async with running(store) as afterwards:
        await check(afterwards, store, recreated=True)
        for scope in (await afterwards.list_scopes(""))[0]:
            assert (await afterwards.metadata.scope(scope)).value.state is ScopeState.ACTIVE
        for stream, asked in story.made.items():
            if story.deleted.get(stream.scope, 0) < asked:
                assert await afterwards.stream_exists(stream), stream


@pytest.mark.parametrize("seed", range(12))
async def test_what_two_make_and_delete_at_the_same_time_is_whole(seed: int) -> None:
    await both_at_once(seed)
