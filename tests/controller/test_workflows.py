"""Workflows: a deposed controller stops, records with unknown outcome are read again, and what many clients create and
delete concurrently is intact in the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from nadi.controller.controller import Controller
from nadi.controller.engine.workflows import Tasks
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import (
    DeleteScopeWork,
    Scope,
    ScopeState,
    StreamConfigRecord,
    StreamState,
    TableConfig,
    TxnState,
)
from nadi.controller.state.segments import ANY_VERSION
from nadi.errors import ConflictError, NotEmptyError, NotFoundError, ScopeNotFoundError, UnavailableError
from nadi.limits import SEGMENT_CALL_ATTEMPTS
from nadi.runtime import Runtime
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, FakeClock, running, settle, with_stream
from .test_crashes import ID, check, group_config
from .test_transactions import LEASE, wait_for, write

Exchange = Callable[[Command], Awaitable[Command]]


def over(exchange: Exchange, clock: Runtime | None = None, is_leased: Callable[[], bool] = lambda: True) -> Controller:
    return Controller(
        exchange,
        clock=clock,
        endpoint_of=lambda _: ("127.0.0.1", 12345),
        rpc_endpoint=("127.0.0.1", 9090),
        is_leased=is_leased,
    )


async def unfinished(controller: Controller) -> list[str]:
    return [key async for key, _ in controller.metadata.work.scan()]


async def recorded(controller: Controller, works: list[str]) -> None:
    for _ in range(50_000):
        if await unfinished(controller) == works:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"never {works}")


async def test_controller_without_its_lease_sends_no_commands() -> None:
    """The cluster's next controller finishes the work at once: formerly a deposed one that woke in the middle of a
    deletion deleted the state of a reader group that had been recreated."""
    store, clock, is_leased, group = FakeStore(), FakeClock(), True, GroupName(STREAM.scope, "readers")
    stopped, go_on, given = asyncio.Event(), asyncio.Event(), list[Command]()

    async def stops(command: Command) -> Command:
        if go_on.is_set():
            given.append(command)
        reply = await store.exchange(command)
        if isinstance(command, wire.RemoveTableKeys) and command.segment.endswith("/timed"):
            stopped.set()
            await go_on.wait()
        return reply

    a = over(stops, clock, lambda: is_leased)
    await a.start()
    await a.create_scope(STREAM.scope)
    await a.create_stream(STREAM, StreamConfigRecord())
    await a.create_reader_group(group, group_config(STREAM), ID)
    deletion = asyncio.ensure_future(a.delete_reader_group(group, ID))
    await stopped.wait()
    is_leased = False
    async with running(store, clock) as b:  # resumes the work and finishes it
        await recorded(b, [])
        made = await b.create_reader_group(group, group_config(STREAM), ID)
        go_on.set()
        asking = asyncio.ensure_future(a.list_scopes(""))
        await clock.advance(60_000)
        with pytest.raises(UnavailableError):
            await asking
        assert not deletion.done()
        assert not given
        assert (await b.reader_group(group)).group_id == made.group_id
        await a.stop()
        await asyncio.gather(deletion, return_exceptions=True)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_record_with_unknown_outcome_is_read_before_other_work(*, is_stored: bool) -> None:
    """Otherwise the work would be done after later work, or by the next controller."""
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as controller:
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, StreamConfigRecord())
        await settle()

        async def lose(command: Command) -> None:
            if isinstance(command, wire.UpdateTableEntries) and command.segment.endswith("/work"):
                if is_stored:
                    store.before = None
                    await store.exchange(command)
                    store.before = lose
                raise UnavailableError("no answer")

        store.before = lose
        update = asyncio.ensure_future(controller.update_stream(STREAM, StreamConfigRecord(min_segments=3)))
        seal = asyncio.ensure_future(controller.seal_stream(STREAM))
        for _ in range(5):  # all attempts of the call fail
            await clock.advance(300)
        with pytest.raises(UnavailableError):
            await update
        store.before = None
        await clock.advance(60_000)
        await seal
        await recorded(controller, [])
        stream = await controller.stream(STREAM)
        assert (stream.state, len(stream.segments)) == (StreamState.SEALED, 3 if is_stored else 1)
        await check(controller, store)


async def test_a_scope_that_is_not_empty_stays_as_it_was() -> None:
    """Holds also if a stream was created after the first check, when the deletion was in progress."""

    store = FakeStore()
    async with running(store) as controller:
        await controller.create_scope(STREAM.scope)
        is_marked, goes_on = asyncio.Event(), asyncio.Event()

        async def at_the_mark(command: Command) -> None:
            is_put = isinstance(command, wire.UpdateTableEntries | wire.UpdateTableToFreeSpace)
            if is_put and getattr(command, "segment", "").endswith("/scopes"):
                is_marked.set()
                await goes_on.wait()

        store.before = at_the_mark
        deleting = asyncio.ensure_future(controller.delete_scope(STREAM.scope))
        await is_marked.wait()
        await controller.create_stream(STREAM, StreamConfigRecord())
        goes_on.set()
        with pytest.raises(NotEmptyError):
            await deleting
        await controller.create_stream(StreamName(STREAM.scope, "another"), StreamConfigRecord())
        await settle()
        await check(controller, store)


async def test_marked_scope_rejects_creations_and_its_deletion_is_resumed() -> None:
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as first:
        await first.create_scope("home")
        record = await first.metadata.scope("home")
        marked = await first.metadata.scopes.put(
            "home", Scope(record.value.created_ms, ScopeState.DELETING), record.version
        )
        with pytest.raises(ScopeNotFoundError):
            await first.create_stream(STREAM, StreamConfigRecord())
        with pytest.raises(ScopeNotFoundError):
            await first.create_table(TableName("home", "t"), TableConfig(1, 8, 0))
        await first.metadata.work.put("home//scope", DeleteScopeWork(False, marked.version - 1), ANY_VERSION)
    async with running(store, clock) as second:
        await settle(300)
        assert not await second.scope_exists("home")
        await check(second, store)


@pytest.mark.parametrize("kind", ["stream", "table", "group"])
async def test_creation_recorded_after_the_scope_is_marked_is_undone(kind: str) -> None:
    """The creation found the scope open; the mark is set by the time its work is recorded."""
    store = FakeStore()
    async with running(store) as controller:
        away = StreamName("away", "meters")
        await controller.create_scope(away.scope)
        await controller.create_stream(away, StreamConfigRecord())
        await controller.create_scope("home")
        await settle()
        there = set(store.segments)
        record = await controller.metadata.scope("home")

        async def mark_first(command: Command) -> None:
            if isinstance(command, wire.UpdateTableEntries) and command.segment.endswith("/work"):
                store.before = None
                await controller.metadata.scopes.put(
                    "home", Scope(record.value.created_ms, ScopeState.DELETING), record.version
                )

        store.before = mark_first
        create: dict[str, Callable[[], Awaitable[object]]] = {
            "stream": lambda: controller.create_stream(STREAM, StreamConfigRecord()),
            "table": lambda: controller.create_table(TableName("home", "t"), TableConfig(1, 8, 0)),
            "group": lambda: controller.create_reader_group(GroupName("home", "readers"), group_config(away), ID),
        }
        with pytest.raises(ScopeNotFoundError):
            await create[kind]()
        assert (await controller.metadata.scope("home")).value.state is ScopeState.DELETING
        await settle(300)
        assert set(store.segments) == there
        assert await unfinished(controller) == []


async def test_resumed_deletion_spares_a_recreated_scope() -> None:
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as first:
        await first.create_scope("home")
        version = (await first.metadata.scope("home")).version
        await first.delete_scope("home")
        await first.create_scope("home")
        await first.create_stream(STREAM, StreamConfigRecord())
        await settle()
        await first.metadata.work.put("home//scope", DeleteScopeWork(True, version), ANY_VERSION)
    async with running(store, clock) as second:
        await settle(300)
        assert await second.stream_exists(STREAM)
        await check(second, store)


# --- many clients ------------------------------------------------------------------------------------


class Hasty(Runtime):
    """A clock that shortens the pauses of workflows."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.002))


class Story:
    """The replies that clients got: streams created under unique names, and scopes deleted later."""

    def __init__(self) -> None:
        self.number = 0
        self.made: dict[StreamName, int] = {}  # when it was requested
        self.deleted: dict[str, int] = {}  # when it was last requested or answered

    def next(self) -> int:
        self.number += 1
        return self.number


async def act(controller: Controller, chance: random.Random, story: Story) -> None:
    """Perform one random request."""
    scope, number = f"s{chance.randrange(2)}", story.next()
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
                await controller.create_stream(stream, StreamConfigRecord(min_segments=2, tags=("a",)))
            case 4 | 5:
                own = StreamName(scope, f"y{number}")
                await controller.create_stream(own, StreamConfigRecord(tags=("a",)))
                story.made[own] = number
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
                await controller.update_stream(stream, StreamConfigRecord(min_segments=3, tags=("b",)))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
async def test_concurrent_creations_and_deletions_stay_consistent(seed: int) -> None:
    chance, story = random.Random(seed), Story()
    store = FakeStore()

    def paused(exchange: Exchange) -> Exchange:
        async def after_a_pause(command: Command) -> Command:
            for _ in range(chance.choice((0, 0, 1, 5, 40, 200))):
                await asyncio.sleep(0)
            return await exchange(command)

        return after_a_pause

    controller = over(paused(store.exchange), Hasty())
    await controller.start()

    async def client() -> None:
        for _ in range(12):
            await act(controller, chance, story)

    async with asyncio.timeout(60):
        await asyncio.gather(*(client() for _ in range(4)))
        await recorded(controller, [])
    await controller.stop()
    async with running(store) as afterwards:
        await check(afterwards, store, recreated=True)
        for scope in (await afterwards.list_scopes(""))[0]:
            assert (await afterwards.metadata.scope(scope)).value.state is ScopeState.ACTIVE
        for stream, asked in story.made.items():
            if story.deleted.get(stream.scope, 0) < asked:
                assert await afterwards.stream_exists(stream), stream


# --- a transaction's decision is carried out, whatever happens to its caller -------------------------


@pytest.mark.parametrize("decision", ["commit", "commit together", "abort"])
@pytest.mark.parametrize("answered", [True, False])
async def test_decision_is_carried_out_after_its_caller_is_cancelled(decision: str, *, answered: bool) -> None:
    """Formerly, if a caller was cancelled while the decision was being stored, the decision was left to the next one:
    transactions committed later were merged first."""
    async with with_stream(1) as (controller, store, clock):
        first, second = [await controller.transactions.create(STREAM, LEASE) for _ in range(2)]
        write(store, first.txn_id, 0, b"1")
        write(store, second.txn_id, 0, b"2")
        stored, goes_on = asyncio.Event(), asyncio.Event()
        left = 1 if answered else SEGMENT_CALL_ATTEMPTS

        async def hold(command: Command) -> None:
            nonlocal left
            is_change = isinstance(command, wire.UpdateTableEntries | wire.UpdateTableToFreeSpace)
            if not is_change or not command.segment.endswith("/transactions"):  # type: ignore[attr-defined]
                return
            left -= 1
            store.before = None
            stored.set()
            await goes_on.wait()
            if not answered:
                await store.exchange(command)
                store.before = hold if left else None
                raise UnavailableError("the reply is lost")

        store.before = hold
        call: Coroutine[object, object, object]
        match decision:
            case "commit":
                call = controller.transactions.commit(STREAM, first.txn_id)
            case "abort":
                call = controller.transactions.abort(STREAM, first.txn_id)
            case _:
                call = controller.transactions.commit_together(STREAM, [first.txn_id], "", None)
        caller = asyncio.ensure_future(call)
        await stored.wait()
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        goes_on.set()
        for _ in range(5):
            await clock.advance(1_000)  # pauses between attempts; the lease has not expired
        ends = TxnState.ABORTED if decision == "abort" else TxnState.COMMITTED
        await wait_for(controller, first.txn_id, ends)
        await controller.transactions.commit(STREAM, second.txn_id)
        await wait_for(controller, second.txn_id, TxnState.COMMITTED)
        assert store.data(STREAM.segment(0)) == (b"2" if decision == "abort" else b"12")


# --- background tasks end with the controller, even if one mistakes the cancellation for a timeout -----


async def test_task_that_ignores_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.controller.engine.workflows._AGAIN_S", 0.05)
    tasks, heard = Tasks(), 0

    async def insist() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                heard += 1
                if heard == 2:
                    raise

    task = tasks.spawn(insist())
    await asyncio.sleep(0)
    async with asyncio.timeout(60.0):
        await tasks.close()
    assert task.cancelled()
