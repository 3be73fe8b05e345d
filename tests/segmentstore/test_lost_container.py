"""A container lost to another server, and a store that continues without it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nadi import limits
from nadi.errors import ClosedError, FencedError, UnavailableError
from nadi.model.framing import frame_events
from nadi.segmentstore.container import container as containers
from nadi.segmentstore.recovery.storage import OpenStorage
from nadi.segmentstore.tier1.log import DurableLog
from nadi.wire import commands as wire
from tests.support.waiting import until_async

from .harness import Peer, connect
from .test_container_registry import HERE, ID, THERE, Held, append_of, is_told, setup_id
from .two_stores import OWNER, OwnedStores, Stores, owned_stores, two_stores


async def until_lost(stores: OwnedStores, number: int = 1) -> None:
    await until_async(lambda: number in stores.lost)


def stored(folder: Path) -> set[str]:
    return {str(path) for path in (folder / "tier2").rglob("*") if path.is_file()}


async def writer_on(stores: OwnedStores) -> Peer:
    """Connect a writer with one stored event; another segment stays in `one`."""
    writer = await connect(stores.one.address)
    await writer.create(THERE)
    await writer.create(HERE)
    await setup_id(writer, THERE)
    assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
    return writer


async def assert_gone(stores: OwnedStores) -> None:
    """Check that `one` serves only the other container, and has nothing of the lost one open."""
    assert [container.number for container in stores.one.containers] == [0]
    assert list(stores.one._writers) == [0]
    assert not stores.one._leaving
    assert not stores.one.taken_over.is_set()
    assert stores.one.scrub.started
    peer = await connect(stores.one.address)
    assert is_told(await peer.ask(wire.SetupAppend(ID, bytes(16), THERE, "")))
    await setup_id(peer, HERE, bytes(16))
    assert isinstance(await peer.append([b"here"], 1, bytes(16)), wire.DataAppended)


async def assert_two_has(stores: OwnedStores, *events: bytes) -> None:
    there = await connect(stores.two.address)
    assert await there.read_all(THERE) == frame_events(list(events))


async def test_fenced_append_ends_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 3600.0)  # its snapshot would be refused earlier
    async with owned_stores(tmp_path) as stores:
        writer = await writer_on(stores)
        reader, idle = await connect(stores.one.address), await connect(stores.one.address)
        await setup_id(idle, THERE, bytes(16))
        reader.send(wire.ReadSegment(THERE, len(frame_events([b"event 1"])), 1_000, "", 1))
        await reader.ask(wire.KeepAlive())
        await stores.claim(1)
        with pytest.raises(ConnectionResetError):  # it might be stored: the writer has to check
            await writer.ask(append_of(2))
        assert is_told(await reader.receive())
        assert await idle.receive() == wire.WrongHost(ID, THERE, OWNER)
        await until_lost(stores)
        assert is_told(await idle.ask(append_of(3, bytes(16))))
        assert stores.parts_of_one[1].opened == 1, "it is never reopened"
        await assert_gone(stores)
        await stores.two.take(stores.parts(1))
        await assert_two_has(stores, b"event 1")
        assert stores.lost == [1]


def fenced(log: DurableLog, patch: pytest.MonkeyPatch) -> None:
    """Make the log refuse appends, though its owner still has the claim."""

    async def append(parts: Any) -> Any:
        raise FencedError(1, 7)

    patch.setattr(log, "append", append)


async def test_fenced_log_ends_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with owned_stores(tmp_path) as stores:
        writer = await writer_on(stores)
        fenced(stores.one.container_of(THERE).log, monkeypatch)
        with pytest.raises(ConnectionResetError):
            await writer.ask(append_of(2))
        await until_lost(stores)
        await assert_gone(stores)
    assert "epoch 7" in caplog.text


async def test_fenced_snapshot_ends_the_container_without_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.05)
    async with owned_stores(tmp_path) as stores:
        await writer_on(stores)
        container = stores.one.container_of(THERE)
        record = stores.records[1]
        await until_async(lambda: container.parts.snapshots.sequence >= container.state.sequence)
        manifest = record.manifest
        assert manifest is not None
        assert manifest.sequence == container.state.sequence
        before = stored(tmp_path)
        record.epoch += 1  # the claimant has not opened the log yet
        other = await connect(stores.one.address)
        await setup_id(other, THERE, bytes(16))
        await other.append([b"more"], 1, bytes(16))
        await until_lost(stores)
        assert stored(tmp_path) >= before
        assert record.manifest is manifest
        await assert_gone(stores)


@pytest.mark.parametrize("what", ["_claimed", "claim_record"])
async def test_record_changed_by_another_server_ends_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """When the container is reopened, and when the scrub reads the snapshot."""
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.05)
    monkeypatch.setattr(containers, "REOPEN_DELAY_S", 0.05)
    async with owned_stores(tmp_path) as stores:
        await writer_on(stores)
        container = stores.one.container_of(THERE)
        snapshots = container.parts.snapshots
        while not snapshots.sequence:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        monkeypatch.setattr(snapshots, "due", lambda *_, **__: False)  # another snapshot would be the newest, and known
        await container.checkpoints.ended()
        await snapshots.ended()

        async def refused(*arguments: Any) -> Any:
            raise FencedError(1, 7)

        monkeypatch.setattr(stores.parts_of_one[1], what, refused)
        before = stored(tmp_path)
        if what == "_claimed":
            container._recover_from(UnavailableError("the disk failed"))
        else:
            with pytest.raises(FencedError):
                await snapshots.verify(lambda size_bytes: asyncio.sleep(0))
        await until_lost(stores)
        assert stored(tmp_path) >= before
        await assert_gone(stores)


# --- dropped by the reconciler ----------------------------------------------------------------------------


async def test_a_dropped_container_is_closed_though_its_log_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned_stores(tmp_path) as stores:
        writer = await writer_on(stores)
        waiting = await connect(stores.one.address)
        await setup_id(waiting, THERE, bytes(16))
        held = Held(stores.one.container_of(THERE), monkeypatch)
        writer.send(append_of(2))
        await held.came.wait()
        waiting.send(append_of(3, bytes(16)))
        await waiting.ask(wire.KeepAlive())
        await stores.one.drop(1)
        assert is_told(await waiting.receive())
        with pytest.raises(ConnectionResetError):
            await writer.receive()
        await assert_gone(stores)
        await stores.two.take(stores.parts(1))
        await assert_two_has(stores, b"event 1")
        await stores.one.drop(1)  # not one of its containers
        with pytest.raises(ClosedError):
            await stores.one.give_up(1)
        assert not stores.lost, "the reconciler knows"


@pytest.mark.parametrize("how", ["dropped", "claimed"])
async def test_container_lost_during_its_release_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with owned_stores(tmp_path) as stores:
        writer = await writer_on(stores)
        held = Held(stores.one.container_of(THERE), monkeypatch)
        writer.send(append_of(2))
        await held.came.wait()
        giving_up = asyncio.create_task(stores.one.give_up(1))
        await asyncio.sleep(0.05)
        assert not giving_up.done()
        if how == "dropped":
            await stores.one.drop(1)
        else:
            await stores.claim(1)
            held.go_on.set()
        await giving_up
        if how == "claimed":
            await until_lost(stores)
        await assert_gone(stores)


@pytest.mark.parametrize("turns", [0, 1, 3, 6])
async def test_container_being_acquired_is_dropped_afterwards(turns: int, tmp_path: Path) -> None:
    async with owned_stores(tmp_path) as stores:
        await writer_on(stores)
        await stores.one.give_up(1)
        taking = asyncio.create_task(stores.two.take(stores.parts(1)))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        await stores.two.drop(1)
        await asyncio.gather(taking, return_exceptions=True)
        assert stores.two.containers == []
        await stores.one.take(stores.parts(1))
        assert await (await connect(stores.one.address)).setup(THERE) == 1


@pytest.mark.parametrize("turns", [1, 2, 4, 7])
async def test_cancelled_drop_runs_to_its_end(turns: int, tmp_path: Path) -> None:
    async with owned_stores(tmp_path) as stores:
        await writer_on(stores)
        dropping = asyncio.create_task(stores.one.drop(1))
        for _ in range(turns):
            await asyncio.sleep(0)
        dropping.cancel()
        await asyncio.gather(dropping, return_exceptions=True)
        while stores.one._moving:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await assert_gone(stores)


async def test_closing_store_closes_a_dropped_container(tmp_path: Path) -> None:
    async with owned_stores(tmp_path) as stores:
        await writer_on(stores)
        lost = stores.one.container_of(THERE)
        closing = asyncio.create_task(stores.one.close())
        await asyncio.gather(stores.one.drop(1), return_exceptions=True)
        await closing
        assert lost._task is not None
        assert lost._task.done()


# --- acquiring -------------------------------------------------------------------------------------------


async def test_refused_acquisition_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused when it is opened, and by the first frame."""
    async with owned_stores(tmp_path) as stores:
        writer = await writer_on(stores)
        await writer.ask(wire.CreateTransientSegment(ID, bytes(16), THERE, ""))
        await stores.one.drop(1)
        parts = stores.parts(1)

        async def refused() -> OpenStorage:
            raise FencedError(1, 7)

        with monkeypatch.context() as patch:
            patch.setattr(parts, "open", refused)
            with pytest.raises(FencedError):
                await stores.two.take(parts)
        parts, opened = stores.parts(1), []
        opening = parts.open

        async def refused_later() -> OpenStorage:
            opened.append(await opening())
            fenced(opened[0].log, monkeypatch)
            return opened[0]

        monkeypatch.setattr(parts, "open", refused_later)
        with pytest.raises(UnavailableError, match="container 1"):
            await stores.two.take(parts)
        assert stores.two.containers == []
        assert not stores.two._writers
        with pytest.raises(Exception, match="closed"):
            opened[0].metadata.state()


# --- interrupted moves of containers: cancellation, the store's end, or a failure halfway ----------------


async def at_rest(stores: Stores) -> None:
    while stores.one._moving or stores.two._moving:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def works(stores: Stores) -> None:
    """Check that the other store can acquire the container, with its acknowledged data."""
    await stores.two.take(stores.parts(1))
    there = await connect(stores.two.address)
    assert await there.setup(THERE) == 1
    assert await there.read_all(THERE) == frame_events([b"event 1"])
    assert stores.one.scrub.started
    assert [container.number for container in stores.one.containers] == [0]


async def test_cancelled_release_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while a frame is in flight: its writer gets a reply, and the other store gets the container."""
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


@pytest.mark.parametrize("turns", range(12))
async def test_release_cancelled_at_any_step_frees_the_container(turns: int, tmp_path: Path) -> None:
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
        else:  # it had not started
            await stores.one.give_up(1)
        await works(stores)


async def test_cancelled_acquisition_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        await stores.two.close()  # so that no store has it
        await stores.one.take(stores.parts(1))
        again = await connect(stores.one.address)
        assert await again.setup(THERE) == 1


async def test_failed_acquisition_without_a_caller_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert "the disk failed" in caplog.text


async def test_failed_acquisition_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        del failed  # a reference until now would keep open files alive


async def test_closed_store_refuses_acquisitions(tmp_path: Path) -> None:
    """Nor does one that is closing: another server may open the folder."""
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


async def test_release_fails_if_the_owner_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_stores(tmp_path) as stores:
        writer = await connect(stores.one.address)
        await writer.create(THERE)
        await setup_id(writer, THERE)

        def fails(number: int) -> str:
            raise LookupError("unknown store")

        monkeypatch.setattr(stores.one._registry, "owner_of", fails)
        with pytest.raises(LookupError):
            await stores.one.give_up(1)
        assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
        monkeypatch.undo()
        await stores.one.give_up(1)
        await works(stores)
