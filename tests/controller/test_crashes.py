"""A controller that dies at any command leaves nothing half done: the next one finishes or undoes it.

Every workflow is killed at each of its commands, once with that command lost and once with only its reply lost. Another
controller then starts over the same store and must settle with the workflow done or never started; repeating it must
have the same result as without a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import (
    GroupConfig,
    GroupRetention,
    ScopeState,
    StreamConfigRecord,
    StreamState,
    TableConfig,
    TxnState,
)
from nadi.controller.workflows.groups import subscribed
from nadi.errors import (
    AlreadyExistsError,
    ClosedError,
    GenerationMismatchError,
    KeyValueTableNotFoundError,
    NotEmptyError,
    NotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from nadi.model.segments import tiles
from nadi.naming import TRANSACTION_DELIMITER, parse_segment_name, segment_id, transaction_segment_name
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, scaled, settle

OTHER = StreamName("home", "other")
GROUP = GroupName("home", "readers")
TABLE = TableName("home", "prices")
ID = "7b0fe3a2-55f1-4b2c-8c80-0e6f6f3b9d11"
Step = Callable[[Controller, FakeStore], Awaitable[None]]


async def nothing(controller: Controller, store: FakeStore) -> None:
    pass


async def two_segments(controller: Controller, store: FakeStore) -> None:
    await controller.create_scope(STREAM.scope)
    await controller.create_stream(STREAM, StreamConfigRecord(min_segments=2, tags=("old", "kept")))
    store.append(STREAM.segment(0), b"a" * 10)
    store.append(STREAM.segment(1), b"b" * 10)


async def sealed_stream(controller: Controller, store: FakeStore) -> None:
    await two_segments(controller, store)
    await scaled(controller, [0], [(0.0, 0.25), (0.25, 0.5)])
    await controller.seal_stream(STREAM)


async def scaled_stream(controller: Controller, store: FakeStore) -> None:
    await two_segments(controller, store)
    await scaled(controller, [0, 1], [(0.0, 0.25), (0.25, 1.0)])


async def open_transactions(controller: Controller, store: FakeStore) -> None:
    await two_segments(controller, store)
    for number in range(2):
        open_ids = await controller.transactions.create(STREAM, 600_000)
        for segment in (0, 1):
            store.append(transaction_segment_name(STREAM.segment(segment), open_ids.txn_id), b"t%d" % number)


async def outlived_transactions(controller: Controller, store: FakeStore) -> None:
    await open_transactions(controller, store)
    await scaled(controller, [0, 1], [(0.0, 0.3), (0.3, 1.0)])


def group_config(*streams: StreamName, refresh_ms: int = 3_000) -> GroupConfig:
    starts: dict[str, dict[int, int]] = {stream.key: {} for stream in streams}
    return GroupConfig(refresh_ms, 30_000, 3, GroupRetention.MANUAL, starts)


async def two_streams(controller: Controller, store: FakeStore) -> None:
    await two_segments(controller, store)
    await controller.create_stream(OTHER, StreamConfigRecord(min_segments=1))


async def group_of_one(controller: Controller, store: FakeStore) -> None:
    await two_streams(controller, store)
    await controller.create_reader_group(GROUP, group_config(STREAM), ID)
    await controller.publish_cut(STREAM, GROUP.key, ID, 0, {0: 3, 1: 4})


async def group_of_a_sealed_stream(controller: Controller, store: FakeStore) -> None:
    await group_of_one(controller, store)
    await controller.seal_stream(STREAM)


async def one_table(controller: Controller, store: FakeStore) -> None:
    await two_segments(controller, store)
    await controller.create_table(TABLE, TableConfig(3, 8, 4))


async def create_scope(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(AlreadyExistsError):
        await controller.create_scope(STREAM.scope)
    assert await controller.scope_exists(STREAM.scope)


async def create(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(AlreadyExistsError):
        await controller.create_stream(OTHER, StreamConfigRecord(min_segments=3, tags=("new",)))
    assert len(await controller.current_segments(OTHER)) == 3
    assert len(await controller.current_segments(OTHER.mark)) == 1


async def update(controller: Controller, store: FakeStore) -> None:
    await controller.update_stream(STREAM, StreamConfigRecord(min_segments=4, tags=("kept", "new")))
    assert len(await controller.current_segments(STREAM)) == 4
    assert (await controller.stream(STREAM)).epoch == 1


async def scale(controller: Controller, store: FakeStore) -> None:
    if (await controller.stream(STREAM)).epoch == 0:
        await scaled(controller, [1], [(0.5, 0.6), (0.6, 1.0)])
    stream = await controller.stream(STREAM)
    assert [s.id for s in stream.segments] == [0, segment_id(2, 1), segment_id(3, 1)]


async def truncate(controller: Controller, store: FakeStore) -> None:
    cut = {segment_id(2, 1): 0, segment_id(3, 1): 0}
    await controller.truncate_stream(STREAM, cut)
    assert await controller.head(STREAM) == cut
    assert STREAM.segment(0) not in store.segments
    assert STREAM.segment(1) not in store.segments


async def seal(controller: Controller, store: FakeStore) -> None:
    await controller.seal_stream(STREAM)
    assert await controller.current_segments(STREAM) == ()
    for name, segment in store.segments.items():
        assert segment.sealed or "_MARK" in name
    assert not any(TRANSACTION_DELIMITER in name for name in store.segments)


async def delete(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(StreamNotFoundError):
        await controller.delete_stream(STREAM)
    assert not store.segments
    assert not any("/stream/" in table for table in store.tables)


async def delete_scope(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(ScopeNotFoundError):
        await controller.delete_scope(STREAM.scope, recursive=True)
    assert not await controller.scope_exists(STREAM.scope)
    assert not store.segments


async def empty_scope(controller: Controller, store: FakeStore) -> None:
    await controller.create_scope(STREAM.scope)


async def delete_empty_scope(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(ScopeNotFoundError):
        await controller.delete_scope(STREAM.scope)
    assert not await controller.scope_exists(STREAM.scope)


async def delete_scope_that_gets_a_stream(controller: Controller, store: FakeStore) -> None:
    """The scope seems empty at first: it is marked, the deletion rejected, and the scope restored."""

    async def at_the_mark(command: Command) -> None:
        if isinstance(command, wire.UpdateTableToFreeSpace) and command.segment.endswith("/scopes"):
            store.before = None
            with contextlib.suppress(AlreadyExistsError):
                await controller.create_stream(STREAM, StreamConfigRecord(min_segments=1))

    store.before = at_the_mark
    with contextlib.suppress(ScopeNotFoundError):  # if it died before recording the stream, the deletion went through
        with pytest.raises(NotEmptyError):
            await controller.delete_scope(STREAM.scope)
        assert (await controller.metadata.scope(STREAM.scope)).value.state is ScopeState.ACTIVE
    store.before = None


async def create_group(controller: Controller, store: FakeStore) -> None:
    config = group_config(STREAM, OTHER)
    group = await controller.create_reader_group(GROUP, config, ID)
    assert (group.config, group.group_id, group.generation) == (config, ID, 0)
    assert len(await controller.current_segments(GROUP.stream)) == 1
    assert await controller.subscribers(OTHER) == [GROUP.key]


async def update_group(controller: Controller, store: FakeStore) -> None:
    config = group_config(OTHER, refresh_ms=1)
    with contextlib.suppress(GenerationMismatchError):
        assert await controller.update_reader_group(GROUP, config, ID, 0) == 1
    group = await controller.reader_group(GROUP)
    assert (group.config, group.generation) == (config, 1)
    assert await controller.subscribers(STREAM) == []
    assert await controller.subscribers(OTHER) == [GROUP.key]


async def delete_group(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(ReaderGroupNotFoundError):
        await controller.delete_reader_group(GROUP, ID)
    assert not await controller.stream_exists(GROUP.stream)
    assert await controller.subscribers(STREAM) == []


async def delete_with_subscribers(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(StreamNotFoundError):
        await controller.delete_stream(STREAM)
    assert (await controller.reader_group(GROUP)).generation == 0
    assert not any("/subscribers/" in table for table in store.tables)


async def create_table(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(AlreadyExistsError):
        await controller.create_table(TABLE, TableConfig(3, 8, 4))
    assert [s.id for s in (await controller.table(TABLE)).segments] == [0, 1, 2]


async def delete_table(controller: Controller, store: FakeStore) -> None:
    with contextlib.suppress(KeyValueTableNotFoundError):
        await controller.delete_table(TABLE)
    assert not any("_kvtable" in table for table in store.tables)


async def delete_scope_with_table(controller: Controller, store: FakeStore) -> None:
    await delete_scope(controller, store)
    assert not any("_kvtable" in table for table in store.tables)


def open_ids(controller: Controller) -> list[int]:
    return sorted(int(text, 16) for text in controller.transactions.live(STREAM, TxnState.OPEN))


async def begin_transaction(controller: Controller, store: FakeStore) -> None:
    txn = await controller.transactions.create(STREAM, 600_000)
    for segment in txn.ranges:
        assert transaction_segment_name(STREAM.segment(segment.id), txn.txn_id) in store.segments


async def commit_all(controller: Controller, store: FakeStore) -> None:
    for txn_id in open_ids(controller):
        await controller.transactions.commit(STREAM, txn_id)
    await settle(600)
    data = {name: bytes(s.data) for name, s in store.segments.items() if "_MARK" not in name}
    assert not any(TRANSACTION_DELIMITER in name for name in data)
    for number in (0, 1):  # the complete data, once, in order, on each of its two segments
        whole = b"".join(v for n, v in sorted(data.items()) if parse_segment_name(n)[2] & 0xFFFFFFFF == number)
        assert whole[10:] == b"t0t1", data


async def commit_at_a_time(controller: Controller, store: FakeStore) -> None:
    for txn_id in open_ids(controller):
        await controller.transactions.commit(STREAM, txn_id, "w", 7)
    await commit_all(controller, store)
    record = await controller.metadata.marks(STREAM).get("w", fresh=True)
    assert record is not None
    assert record.value.time == 7
    assert {offset % 10 for offset in record.value.position.values()} <= {2, 4}, record  # one or both rolled


async def commit_together(controller: Controller, store: FakeStore) -> None:
    ids = open_ids(controller)
    if ids:  # otherwise they were committed before the crash
        await controller.transactions.commit_together(STREAM, ids)
    await commit_all(controller, store)
    if ids:
        assert (await controller.transactions.find_commit(STREAM, ids)).is_merged


async def abort_all(controller: Controller, store: FakeStore) -> None:
    for txn_id in open_ids(controller):
        await controller.transactions.abort(STREAM, txn_id)
    await settle(300)
    assert not any(TRANSACTION_DELIMITER in name for name in store.segments)


CASES: dict[str, tuple[Step, Step]] = {
    "create_scope": (nothing, create_scope),
    "create": (two_segments, create),
    "update": (two_segments, update),
    "scale": (two_segments, scale),
    "truncate": (scaled_stream, truncate),
    "seal": (open_transactions, seal),
    "delete": (sealed_stream, delete),
    "delete_scope": (sealed_stream, delete_scope),
    "delete_empty_scope": (empty_scope, delete_empty_scope),
    "delete_scope_that_is_not_empty": (empty_scope, delete_scope_that_gets_a_stream),
    "create_group": (two_streams, create_group),
    "update_group": (group_of_one, update_group),
    "delete_group": (group_of_one, delete_group),
    "delete_with_subscribers": (group_of_a_sealed_stream, delete_with_subscribers),
    "delete_scope_with_group": (group_of_one, delete_scope),
    "create_table": (two_segments, create_table),
    "delete_table": (one_table, delete_table),
    "delete_scope_with_table": (one_table, delete_scope_with_table),
    "begin": (two_segments, begin_transaction),
    "commit": (open_transactions, commit_all),
    "commit_at_a_time": (open_transactions, commit_at_a_time),
    "commit_over_a_scale_at_a_time": (outlived_transactions, commit_at_a_time),
    "commit_over_a_scale": (outlived_transactions, commit_all),
    "commit_together": (open_transactions, commit_together),
    "commit_together_over_a_scale": (outlived_transactions, commit_together),
    "seal_with_rolling_commit": (outlived_transactions, seal),
    "abort": (open_transactions, abort_all),
}


async def drive(clock: FakeClock, what: Awaitable[None], seconds: int = 60) -> None:
    """Await something that needs time to pass."""
    task = asyncio.ensure_future(what)
    for _ in range(seconds * 2):
        await settle(200)
        if task.done():
            break
        await clock.advance(500)
    assert task.done(), "it is stuck"
    await task


async def check(controller: Controller, store: FakeStore, *, recreated: bool = False) -> None:
    """Check the invariants that hold whenever no work is in progress. `recreated`: streams may have been deleted with
    their subscribers and recreated."""
    assert not store.tables["_system/_tables/work"].entries
    expected: set[str] = set()
    for scope in (await controller.list_scopes(""))[0]:
        for stream_name, record in [item async for item in controller.metadata.streams(scope).scan()]:
            name, stream = StreamName(scope, stream_name), record.value
            controller.metadata.forget_history(name)
            history = await controller.metadata.history(name)
            assert history.newest == stream.epoch
            assert history.epoch(stream.epoch) == stream.segments
            for epoch in range(history.first, history.newest + 1):
                assert tiles(history.epoch(epoch))
            for segment in history.between(stream.head or history.first_cut(), {}):
                segment_state = store.segments[name.segment(segment)]
                is_active = segment not in history.sealed_in and stream.state is StreamState.ACTIVE
                assert segment_state.sealed != is_active, name.segment(segment)
                expected.add(name.segment(segment))
            assert stream.state is not StreamState.SEALING
            assert not controller.transactions.live(name, TxnState.COMMITTING)
            assert not controller.transactions.live(name, TxnState.ABORTING)
            for text, txn in controller.transactions.live(name, TxnState.OPEN).items():
                assert stream.state is StreamState.ACTIVE
                for s in history.epoch(txn.epoch):
                    parent = name.segment(segment_id(s.id & 0xFFFFFFFF, txn.epoch))
                    expected.add(transaction_segment_name(parent, int(text, 16)))
    leaked = set(store.segments) - expected
    assert not leaked, leaked
    await check_tables(controller, store, recreated)


async def check_tables(controller: Controller, store: FakeStore, recreated: bool) -> None:
    """Check that groups have their streams, streams the subscribers that name them, key-value tables their segments,
    and that nothing remains of deleted ones."""
    streams: dict[str, set[str]] = {}
    expected: set[str] = set()
    for scope in (await controller.list_scopes(""))[0]:
        streams |= {f"{scope}/{name}": set() async for name, _ in controller.metadata.streams(scope).scan()}
    for table, record_table in store.tables.items():
        kind, _, owner = table.removeprefix("_system/_tables/").partition("/")
        if kind in ("groups", "kvtables", "tags", "scope") and not await controller.scope_exists(owner):
            assert kind == "scope", table
            assert not record_table.entries  # left by an interrupted creation of the scope, for the next one
        if kind in ("subscribers", "marks", "stream"):
            assert owner in streams, table
    for scope in (await controller.list_scopes(""))[0]:
        async for group, record in controller.metadata.groups(scope).scan():
            assert GroupName(scope, group).stream.key in streams
            for stream in subscribed(record.value.config):
                if stream.key in streams:
                    streams[stream.key].add(f"{scope}/{group} {record.value.generation}")
        async for name, table_record in controller.metadata.tables(scope).scan():
            stream = TableName(scope, name).stream
            expected |= {stream.segment(segment.id) for segment in table_record.value.segments}
        tags = {tag async for tag, _ in controller.metadata.tags(scope).scan()}
        async for name, stream_record in controller.metadata.streams(scope).scan():
            for tag in stream_record.value.config.tags:
                tags.remove(f"{tag.encode().hex()}/{name}")
        assert not tags
    assert {table for table in store.tables if not table.startswith("_system/_tables/")} == expected
    for key, groups in streams.items():
        scan = controller.metadata.subscribers(StreamName(*key.split("/"))).scan()
        subscribed_groups = {f"{name} {record.value.generation}" async for name, record in scan}
        assert subscribed_groups <= groups
        assert subscribed_groups == groups or recreated


async def crash(setup: Step, act: Step, at: int, *, lose_reply: bool) -> bool:
    """Run `act` over a store that dies at its command `at`; return False if it was done before that."""
    store, clock = FakeStore(), FakeClock()
    controller = new_controller(store, clock)
    await controller.start()
    await setup(controller, store)
    await settle()
    store.die_at(at, lose_reply=lose_reply)
    acting = asyncio.ensure_future(act(controller, store))
    waiting = asyncio.ensure_future(store.dead.wait())
    for _ in range(5_000):
        if acting.done() or waiting.done():
            break
        await asyncio.sleep(0)
    await settle(60)
    died = store.dead.is_set()
    await controller.stop()
    acting.cancel()
    waiting.cancel()
    await asyncio.gather(acting, waiting, return_exceptions=True)
    if not died:
        await acting
        store.revive()
        await check(controller, store)
        return False

    store.revive()
    controller = new_controller(store, clock)
    await controller.start()
    await settle(300)  # recovery starts by itself
    await clock.advance(1_000)
    await check(controller, store)
    await drive(clock, act(controller, store))
    await settle()
    await check(controller, store)
    await controller.stop()
    return True


@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_command(case: str) -> None:
    """Kill the controller right before each command, and so right after the previous one; also lose the last reply."""
    setup, act = CASES[case]
    at = 0
    while asyncio.run(crash(setup, act, at, lose_reply=False)):
        at += 1
    assert at >= 2, "the workflow has at least two commands"
    assert asyncio.run(crash(setup, act, at - 1, lose_reply=True))


async def test_a_short_outage_is_waited_out() -> None:
    store, clock = FakeStore(), FakeClock()
    controller = new_controller(store, clock)
    await controller.start()
    await two_segments(controller, store)
    for at in range(12):
        name = StreamName("home", f"s{at}")
        store.die_at(at, lose_reply=at % 2 == 0)
        creating = asyncio.ensure_future(controller.create_stream(name, StreamConfigRecord()))
        await settle(50)
        store.revive()
        await drive(clock, creating)
        assert len(await controller.current_segments(name)) == 1
    await clock.advance(30_000)
    await check(controller, store)
    await controller.stop()


async def test_a_stopped_controller_refuses_work() -> None:
    store = FakeStore()
    controller = new_controller(store, FakeClock())
    await controller.start()
    await two_segments(controller, store)
    await controller.stop()
    with pytest.raises(ClosedError):
        await controller.seal_stream(STREAM)
    with pytest.raises(NotFoundError):
        await controller.stream(OTHER)
