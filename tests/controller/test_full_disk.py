"""Workflows on a full disk: those that free space proceed, those that need space are rejected or wait."""

from __future__ import annotations

import asyncio

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord, TxnState
from nadi.errors import StorageFullError
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, settle, with_stream

OTHER = StreamName(STREAM.scope, "other")


async def test_work_that_needs_space_is_rejected_and_work_that_frees_it_is_done() -> None:
    async with with_stream() as (controller, store, _):
        txn = (await controller.transactions.create(STREAM, 30_000)).txn_id
        store.full = True
        for refused in (
            lambda: controller.create_scope("another"),
            lambda: controller.create_stream(OTHER, StreamConfigRecord(min_segments=2)),
            lambda: controller.scale(STREAM, [0], [(0.0, 0.25), (0.25, 0.5)]),
            lambda: controller.transactions.create(STREAM, 30_000),
        ):
            with pytest.raises(StorageFullError):
                await refused()
        assert controller.unfinished["workflows"] == 0, "rejected work is not done later"
        await controller.transactions.abort(STREAM, txn)
        await settle()
        assert await controller.transactions.state(STREAM, txn) is TxnState.ABORTED
        await controller.truncate_stream(STREAM, {0: 0, 1: 0})
        await controller.seal_stream(STREAM)
        await controller.delete_stream(STREAM)
        assert not await controller.stream_exists(STREAM)


async def test_work_interrupted_by_a_full_disk_raises_and_finishes_later() -> None:
    async with with_stream() as (controller, store, clock):

        async def fill(command: Command) -> None:
            store.full = store.full or isinstance(command, wire.CreateSegment)

        store.before = fill
        with pytest.raises(StorageFullError):
            await controller.create_stream(OTHER, StreamConfigRecord(min_segments=2))
        for _ in range(2):  # later requests fail as well, and aren't done later
            with pytest.raises(StorageFullError):
                await controller.seal_stream(OTHER)
            await clock.advance(60_000)
        store.before, store.full = None, False
        await clock.advance(1_000)
        assert controller.unfinished["workflows"] == 0
        assert len(await controller.current_segments(OTHER)) == 2, "created, but not sealed"


async def stuck(controller: Controller, store: FakeStore) -> None:
    """Start a creation that gets stuck for lack of space."""

    async def fill(command: Command) -> None:
        store.full = store.full or isinstance(command, wire.CreateSegment)

    store.before = fill
    with pytest.raises(StorageFullError):
        await controller.create_stream(OTHER, StreamConfigRecord(min_segments=2))
    store.before = None


async def test_work_waiting_for_space_spares_the_reserve_for_deletions() -> None:
    async with with_stream() as (controller, store, clock):
        await stuck(controller, store)
        before = len(store.log)
        for _ in range(100):
            await clock.advance(1_000)
        written = [c for c in store.log[before:] if isinstance(c, wire.UpdateTableToFreeSpace)]
        assert not written
        assert len(store.log) > before, "it keeps retrying"
        store.full = False
        await clock.advance(1_000)
        assert len(await controller.current_segments(OTHER)) == 2


async def test_controller_starts_with_unfinished_work_on_a_full_disk() -> None:
    async with with_stream() as (controller, store, clock):
        await stuck(controller, store)
        await controller.stop()
        store.full, has_room = False, False  # only this flag rejects writes

        async def exchange(command: Command) -> Command:
            if not has_room and isinstance(command, wire.UpdateTableEntries | wire.UpdateTableToFreeSpace):
                return wire.ErrorMessage(command.request_id, command.segment, "no room", wire.STORAGE_FULL)
            return await store.exchange(command)

        address = ("127.0.0.1", 1)
        second = Controller(exchange, clock=clock, endpoint_of=lambda _: address, rpc_endpoint=address)
        await second.start()
        await clock.advance(10_000)
        has_room = True
        await clock.advance(1_000)
        assert len(await second.current_segments(OTHER)) == 2
        await second.stop()


async def test_waiters_get_storage_full_error() -> None:
    async with with_stream() as (controller, store, _):
        goes_on = asyncio.Event()

        async def fill(command: Command) -> None:
            if isinstance(command, wire.CreateSegment):
                await goes_on.wait()
                store.full = True

        store.before = fill
        creating = asyncio.create_task(controller.create_stream(OTHER, StreamConfigRecord(min_segments=2)))
        await settle()
        sealing = asyncio.create_task(controller.seal_stream(OTHER))
        await settle()
        goes_on.set()
        for waiting in (creating, sealing):
            with pytest.raises(StorageFullError):
                await waiting
