"""Moves of containers that are interrupted: by a cancellation, the store's end, or a failure half-way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nadi.errors import ClosedError
from nadi.model.framing import frame_events
from nadi.wire import commands as wire

from .harness import connect
from .test_hosted import THERE, Held, append_of, is_told, run, setup_id
from .two_stores import Stores, two_stores


async def at_rest(stores: Stores) -> None:
    while stores.one._moving or stores.two._moving:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def works(stores: Stores) -> None:
    """The container can be had by the other store, and then has what was acknowledged."""
    await stores.two.take(stores.parts(1))
    there = await connect(stores.two.address)
    assert await there.setup(THERE) == 1
    assert await there.read_all(THERE) == frame_events([b"event 1"])
    assert stores.one.scrub.started
    assert [container.number for container in stores.one.containers] == [0]


def test_who_gives_up_and_waits_no_longer_has_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while a frame is under way: its writer is answered, and the other store gets the container."""

    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            writer = await connect(stores.one.address)
            await writer.create(THERE)
            await setup_id(writer, THERE)
            held = Held(stores.one.container_of(THERE), monkeypatch)
            writer.send(append_of(1))
            await held.came.wait()
            giving_up = asyncio.create_task(stores.one.give_up(1))
            assert is_told(await writer.receive())
            giving_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving_up
            held.go_on.set()
            assert isinstance(await writer.receive(), wire.DataAppended)
            await at_rest(stores)
            await works(stores)

    run(test())


@pytest.mark.parametrize("turns", range(12))
def test_whenever_giving_up_is_cancelled_the_container_can_be_had(turns: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            writer = await connect(stores.one.address)
            await writer.create(THERE)
            await setup_id(writer, THERE)
            assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
            giving_up = asyncio.create_task(stores.one.give_up(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            giving_up.cancel()
            await asyncio.gather(giving_up, return_exceptions=True)
            if turns:
                await at_rest(stores)
            else:  # it had not begun
                await stores.one.give_up(1)
            await works(stores)

    run(test())


def test_who_takes_and_waits_no_longer_has_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            writer = await connect(stores.one.address)
            await writer.create(THERE)
            await setup_id(writer, THERE)
            assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
            await stores.one.give_up(1)
            opening, go_on = asyncio.Event(), asyncio.Event()
            parts = stores.parts(1)
            snapshots_open = parts.snapshots.open

            async def slow(*arguments: Any) -> None:
                opening.set()
                await go_on.wait()
                await snapshots_open(*arguments)

            monkeypatch.setattr(parts.snapshots, "open", slow)
            taking = asyncio.create_task(stores.two.take(parts))
            await opening.wait()
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            go_on.set()
            await stores.two.close()  # so that nobody has it
            await stores.one.take(stores.parts(1))
            again = await connect(stores.one.address)
            assert await again.setup(THERE) == 1

    run(test())


def test_a_take_that_fails_when_nobody_waits_for_it_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            await stores.one.give_up(1)
            parts = stores.parts(1)
            opening, go_on = asyncio.Event(), asyncio.Event()

            async def fails(*arguments: Any) -> None:
                opening.set()
                await go_on.wait()
                raise OSError(5, "the disk failed")

            monkeypatch.setattr(parts.snapshots, "open", fails)
            taking = asyncio.create_task(stores.two.take(parts))
            await opening.wait()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            go_on.set()
            await at_rest(stores)
            await asyncio.sleep(0)

    run(test())
    assert "a container's move failed after its caller had gone" in caplog.text


def test_a_take_that_failed_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            writer = await connect(stores.one.address)
            await writer.create(THERE)
            await setup_id(writer, THERE)
            assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
            await stores.one.give_up(1)
            parts = stores.parts(1)

            async def fails(*arguments: Any) -> None:
                raise OSError(5, "the disk failed")

            monkeypatch.setattr(parts.snapshots, "open", fails)
            with pytest.raises(OSError, match="the disk failed") as failed:
                await stores.two.take(parts)
            assert stores.two.containers == []
            await works(stores)
            del failed  # until here it would have kept alive what was left open

    run(test())


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    """Nor one that is being closed: who else opens the folder may have it."""

    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            writer = await connect(stores.one.address)
            await writer.create(THERE)
            await setup_id(writer, THERE)
            assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
            await stores.one.give_up(1)
            closing = asyncio.create_task(stores.two.close())
            taking = asyncio.create_task(stores.two.take(stores.parts(1)))
            await closing
            with pytest.raises(ClosedError):
                await taking
            with pytest.raises(ClosedError):
                await stores.two.give_up(1)
            assert not stores.two.scrub.started
            await stores.one.take(stores.parts(1))
            assert await (await connect(stores.one.address)).setup(THERE) == 1

    run(test())


def test_where_nobody_can_say_who_has_it_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with two_stores(tmp_path) as stores:
            writer = await connect(stores.one.address)
            await writer.create(THERE)
            await setup_id(writer, THERE)

            def fails(number: int) -> str:
                raise LookupError("there is no such store")

            monkeypatch.setattr(stores.one._hosted, "owner_of", fails)
            with pytest.raises(LookupError):
                await stores.one.give_up(1)
            assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
            monkeypatch.undo()
            await stores.one.give_up(1)
            await works(stores)

    run(test())
