"""A container that is another server's, and a store that goes on without it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nadi import limits
from nadi.errors import ClosedError, FencedError, UnavailableError
from nadi.model.framing import frame_events
from nadi.segmentstore.container import container as containers
from nadi.segmentstore.recovery.parts import Opened
from nadi.segmentstore.tier1.log import DurableLog
from nadi.wire import commands as wire

from .harness import Peer, connect
from .owned_parts import OwnedStores, owned_stores
from .test_hosted import HERE, ID, THERE, Held, append_of, is_told, run, setup_id
from .two_stores import OWNER


async def until_lost(stores: OwnedStores, number: int = 1) -> None:
    async with asyncio.timeout(60):
        while number not in stores.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def stored(folder: Path) -> set[str]:
    return {str(path) for path in (folder / "tier2").rglob("*") if path.is_file()}


async def writer_on(stores: OwnedStores) -> Peer:
    """One whose first event is stored, beside another segment that stays."""
    writer = await connect(stores.one.address)
    await writer.create(THERE)
    await writer.create(HERE)
    await setup_id(writer, THERE)
    assert isinstance(await writer.ask(append_of(1)), wire.DataAppended)
    return writer


async def assert_gone(stores: OwnedStores) -> None:
    """`one` has only the other container, and serves it; nothing of the lost one is open."""
    assert [container.number for container in stores.one.containers] == [0]
    assert list(stores.one._writers) == [0]
    assert not stores.one._leaving
    assert not stores.one.taken.is_set()
    assert stores.one.scrub.started
    peer = await connect(stores.one.address)
    assert is_told(await peer.ask(wire.SetupAppend(ID, bytes(16), THERE, "")))
    await setup_id(peer, HERE, bytes(16))
    assert isinstance(await peer.append([b"here"], 1, bytes(16)), wire.DataAppended)


async def assert_two_has(stores: OwnedStores, *events: bytes) -> None:
    there = await connect(stores.two.address)
    assert await there.read_all(THERE) == frame_events(list(events))


def test_an_append_that_is_refused_ends_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 3600.0)  # whose snapshot would be refused before it

    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            writer = await writer_on(stores)
            reader, idle = await connect(stores.one.address), await connect(stores.one.address)
            await setup_id(idle, THERE, bytes(16))
            reader.send(wire.ReadSegment(THERE, len(frame_events([b"event 1"])), 1_000, "", 1))
            await reader.ask(wire.KeepAlive())
            await stores.claim(1)
            with pytest.raises(ConnectionResetError):  # it might have been stored: the writer has to ask
                await writer.ask(append_of(2))
            assert is_told(await reader.receive())
            assert await idle.receive() == wire.WrongHost(ID, THERE, OWNER)
            await until_lost(stores)
            assert is_told(await idle.ask(append_of(3, bytes(16))))
            assert stores.parts_of_one[1].opened == 1, "it is never opened again"
            await assert_gone(stores)
            await stores.two.take(stores.parts(1))
            await assert_two_has(stores, b"event 1")
            assert stores.lost == [1]

    run(test())


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (wire.GetStreamSegmentInfo(1, THERE, ""), wire.StreamSegmentInfo),
        (wire.CreateSegment(1, THERE, 0, 0, ""), wire.SegmentAlreadyExists),
        (wire.SealSegment(1, f"{THERE}0", ""), wire.NoSuchSegment),
        (wire.DeleteSegment(1, f"{THERE}0", ""), wire.NoSuchSegment),
    ],
)
def test_who_may_have_lost_it_says_nothing_of_what_is_there(
    command: wire.Command, answer: type[wire.Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor of what isn't. One that was cut off from the store said that a table exists which had been deleted since."""

    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            await writer_on(stores)
            peer = await connect(stores.one.address)
            told = await peer.ask(command)
            assert isinstance(told, answer), told
            for parts in stores.parts_of_one:
                monkeypatch.setattr(parts, "may_answer", lambda: False)
            with pytest.raises(ConnectionResetError):
                raise AssertionError(await peer.ask(command))

    run(test())


def fenced(log: DurableLog, patch: pytest.MonkeyPatch) -> None:
    """From now on the log refuses, though who asks believes to own it."""

    async def append(parts: Any) -> Any:
        raise FencedError(1, 7)

    patch.setattr(log, "append", append)


def test_a_log_that_says_so_ends_it_whatever_the_parts_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            writer = await writer_on(stores)
            fenced(stores.one.container_of(THERE).log, monkeypatch)
            with pytest.raises(ConnectionResetError):
                await writer.ask(append_of(2))
            await until_lost(stores)
            await assert_gone(stores)

    run(test())
    assert "container 1 ends here: another server has container 1 since epoch 7" in caplog.text


def test_a_snapshot_that_is_refused_ends_it_and_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.05)

    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            await writer_on(stores)
            container = stores.one.container_of(THERE)
            record = stores.records[1]
            async with asyncio.timeout(60):
                while container.parts.snapshots.sequence < container.state.sequence:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            manifest = record.manifest
            assert manifest is not None
            assert manifest.sequence == container.state.sequence
            before = stored(tmp_path)
            record.epoch += 1  # who has claimed it has not opened the log yet
            other = await connect(stores.one.address)
            await setup_id(other, THERE, bytes(16))
            await other.append([b"more"], 1, bytes(16))
            await until_lost(stores)
            assert stored(tmp_path) >= before
            assert record.manifest is manifest
            await assert_gone(stores)

    run(test())


def test_one_that_finds_out_when_it_is_opened_again_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "REOPEN_DELAY_S", 0.05)

    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            await writer_on(stores)
            parts, tries = stores.parts_of_one[1], 0

            async def opening() -> Opened:
                nonlocal tries
                tries += 1
                raise FencedError(1, 7)

            monkeypatch.setattr(parts, "open", opening)
            stores.one.container_of(THERE)._recover_from(UnavailableError("the disk failed"))
            await until_lost(stores)
            assert tries == 1
            await assert_gone(stores)

    run(test())


@pytest.mark.parametrize("what", ["_claimed", "claim_record"])
def test_a_record_that_another_server_may_have_changed_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """When the container is opened again, and when the scrub reads the snapshot."""
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.05)
    monkeypatch.setattr(containers, "REOPEN_DELAY_S", 0.05)

    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            await writer_on(stores)
            container = stores.one.container_of(THERE)
            snapshots = container.parts.snapshots
            while not snapshots.sequence:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            monkeypatch.setattr(snapshots, "due", lambda *_, **__: False)  # another would be the newest, and known
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

    run(test())


# --- dropped by its keeper ----------------------------------------------------------------------------


def test_a_dropped_container_is_closed_though_its_log_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
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
            await stores.one.drop(1)  # which it doesn't have
            with pytest.raises(ClosedError, match="container 1 is not here any more"):
                await stores.one.give_up(1)
            assert not stores.lost, "its keeper knows"

    run(test())


def test_dropping_ends_what_gives_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            writer = await writer_on(stores)
            held = Held(stores.one.container_of(THERE), monkeypatch)
            writer.send(append_of(2))
            await held.came.wait()
            giving_up = asyncio.create_task(stores.one.give_up(1))
            await asyncio.sleep(0.05)
            assert not giving_up.done()
            await stores.one.drop(1)
            await giving_up
            await assert_gone(stores)

    run(test())


def test_one_that_is_lost_while_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            writer = await writer_on(stores)
            held = Held(stores.one.container_of(THERE), monkeypatch)
            writer.send(append_of(2))
            await held.came.wait()
            giving_up = asyncio.create_task(stores.one.give_up(1))
            await asyncio.sleep(0.05)
            await stores.claim(1)
            held.go_on.set()
            await giving_up
            await until_lost(stores)
            await assert_gone(stores)

    run(test())


@pytest.mark.parametrize("turns", range(10))
def test_one_that_is_being_taken_is_dropped_afterwards(turns: int, tmp_path: Path) -> None:
    async def test() -> None:
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

    run(test())


@pytest.mark.parametrize("turns", range(1, 10))
def test_who_drops_and_waits_no_longer_has_dropped(turns: int, tmp_path: Path) -> None:
    async def test() -> None:
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

    run(test())


def test_a_store_that_is_closed_meanwhile_closes_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            await writer_on(stores)
            lost = stores.one.container_of(THERE)
            closing = asyncio.create_task(stores.one.close())
            await asyncio.gather(stores.one.drop(1), return_exceptions=True)
            await closing
            assert lost._task is not None
            assert lost._task.done()

    run(test())


# --- taking -------------------------------------------------------------------------------------------


def test_a_take_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused when it is opened, and by the first frame."""

    async def test() -> None:
        async with owned_stores(tmp_path) as stores:
            writer = await writer_on(stores)
            await writer.ask(wire.CreateTransientSegment(ID, bytes(16), THERE, ""))
            await stores.one.drop(1)
            parts = stores.parts(1)

            async def refused() -> Opened:
                raise FencedError(1, 7)

            with monkeypatch.context() as patch:
                patch.setattr(parts, "open", refused)
                with pytest.raises(FencedError):
                    await stores.two.take(parts)
            parts, opened = stores.parts(1), []
            opening = parts.open

            async def refused_later() -> Opened:
                opened.append(await opening())
                fenced(opened[0].log, monkeypatch)
                return opened[0]

            monkeypatch.setattr(parts, "open", refused_later)
            with pytest.raises(UnavailableError, match="another server has container 1"):
                await stores.two.take(parts)
            assert stores.two.containers == []
            assert not stores.two._writers
            with pytest.raises(Exception, match="closed"):
                opened[0].metadata.state()

    run(test())
