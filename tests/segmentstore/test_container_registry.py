"""A store with some of the containers: its replies about the others, and releasing a container during use."""

from __future__ import annotations

import asyncio
import gc
import time
import typing
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nadi.errors import UnavailableError
from nadi.model.framing import frame_events
from nadi.segmentstore.container import container as containers
from nadi.segmentstore.container.container import Container, ContainerPhase
from nadi.segmentstore.container_registry import container_of
from nadi.segmentstore.server.replies import Replies
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION
from tests.support.waiting import until_async

from .harness import WRITER, Peer, connect
from .two_stores import CONTAINERS, OWNER, two_stores

HERE, THERE = (
    next(name for name in (f"sc/st{n}/0.#epoch.0" for n in range(99)) if container_of(name, CONTAINERS) == number)
    for number in range(CONTAINERS)
)
ID = 7
NAMING = ("segment", "target", "source", "parent_segment")
OF_THE_STORE = {wire.Scrub, wire.GetSegmentLoads}  # commands on the store: the name is a permission's
INNER = {wire.UpdateTableToFreeSpace}  # not over the wire


def fields(kind: type[wire.Command]) -> set[str]:
    return set(kind.__struct_fields__)


REQUESTS = [
    kind
    for kind in wire.CODES.values()
    if "token" in fields(kind) and fields(kind) & set(NAMING) and kind not in OF_THE_STORE
]
APPENDS = [kind for kind in wire.CODES.values() if {"writer_id", "data"} <= fields(kind)]


def sample(kind: type[wire.Command], segment: str) -> Any:
    """Return a command of that kind on the segment."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        plain = typing.get_args(field.type)[0]
        if field.name in NAMING:
            values[field.name] = segment
        elif field.name == "request_id":
            values[field.name] = ID
        elif field.name == "token":
            values[field.name] = ""
        elif plain in (int, bool, str):
            values[field.name] = plain(1)
        elif plain is bytes:
            values[field.name] = WRITER
        elif field.name == "range":
            values[field.name] = (b"", b"", b"")
        elif typing.get_origin(plain) is tuple:
            values[field.name] = ()
        else:
            values[field.name] = b"data"
    return kind(**values)


def is_told(reply: Any) -> bool:
    return bool(reply == wire.WrongHost(reply.request_id, THERE, OWNER))


async def setup_id(peer: Peer, segment: str, writer: bytes = WRITER) -> None:
    assert await peer.ask(wire.SetupAppend(ID, writer, segment, "")) == wire.AppendSetup(ID, segment, writer, -1 << 63)


def append_of(number: int, writer: bytes = WRITER) -> wire.AppendBlockEnd:
    data = frame_events([b"event %d" % number])
    return wire.AppendBlockEnd(writer, len(data), data, 1, number, 100 + number)


# --- requests ---------------------------------------------------------------------------------------


def test_the_commands_that_name_a_segment_are_known() -> None:
    assert {wire.SetupAppend, wire.ReadSegment, wire.ReadTable, wire.MergeSegments} < set(REQUESTS)
    assert {wire.AppendBlock, wire.AppendBlockEnd, wire.ConditionalAppend, wire.ConditionalBlockEnd} == set(APPENDS)


async def test_requests_for_another_stores_segment_get_not_owner(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.one.give_up(1)
        peer = await connect(stores.one.address)
        for kind in REQUESTS:
            command = sample(kind, THERE)
            reply = wire.WrongHost(ID, THERE, OWNER)
            assert await stores.one.exchange(command) == reply, kind
            if kind not in INNER:
                assert await peer.ask(command) == reply, kind
        for kind in (kind for kind in REQUESTS if kind not in INNER):  # only for that segment
            reply = await peer.ask(sample(kind, HERE))
            assert not isinstance(reply, wire.WrongHost), kind
            if kind is wire.ReadSegment:
                assert isinstance(reply, wire.NoSuchSegment)


@pytest.mark.parametrize(
    "kind", [kind for kind in APPENDS if kind is not wire.AppendBlock], ids=lambda kind: kind.__name__
)
async def test_appends_of_a_writer_that_was_set_up_before_are_refused(kind: type[wire.Command], tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        peer = await connect(stores.one.address)
        await peer.create(THERE)
        await setup_id(peer, THERE)
        await stores.one.exchange(wire.SetupAppend(ID, WRITER, THERE, ""))
        await stores.one.give_up(1)
        assert is_told(await peer.receive()), "the writer is notified before it sends anything"
        command = sample(kind, THERE)
        if kind is wire.AppendBlockEnd:
            peer.send(wire.AppendBlock(WRITER, b"data"), msgspec.structs.replace(command, size_of_whole_events=4))
            assert is_told(await peer.receive())
        else:
            assert is_told(await peer.ask(command))
        assert is_told(await peer.ask(command)), "each append is answered"
        assert is_told(await peer.ask(wire.SetupAppend(ID, WRITER, THERE, ""))), "and the connection stays open"
        if kind is wire.ConditionalAppend:
            assert is_told(await stores.one.exchange(command)), "in the process too"


# --- releasing during use -----------------------------------------------------------------------


class Held:
    """Delays the container's next frame until `go_on`."""

    def __init__(self, container: Container, patch: pytest.MonkeyPatch) -> None:
        self.came, self.go_on = asyncio.Event(), asyncio.Event()
        append = container.log.append

        async def held(parts: Any) -> Any:
            self.came.set()
            await self.go_on.wait()
            return await append(parts)

        patch.setattr(container.log, "append", held)


async def test_release_acknowledges_the_frame_in_flight_and_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_stores(tmp_path) as stores:
        one = stores.one
        writer, reader, idle, other = [await connect(one.address) for _ in range(4)]
        await writer.create(THERE)
        await writer.create(HERE)
        await setup_id(writer, THERE)
        await setup_id(idle, THERE, bytes(16))
        await setup_id(other, HERE, bytes(16))
        reader.send(wire.ReadSegment(THERE, 0, 1_000, "", 1))
        await reader.ask(wire.KeepAlive())
        held = Held(one.container_of(THERE), monkeypatch)
        writer.send(append_of(1), append_of(2))
        await held.came.wait()
        writer.send(append_of(3), append_of(4))
        info = asyncio.create_task(one.exchange(wire.GetStreamSegmentInfo(3, THERE, "")))
        await writer.ask(wire.KeepAlive())
        assert one.container_of(THERE).queue

        giving_up = asyncio.create_task(one.give_up(1))
        assert await reader.receive() == wire.WrongHost(1, THERE, OWNER)
        assert await info == wire.WrongHost(3, THERE, OWNER)
        assert await idle.receive() == wire.WrongHost(ID, THERE, OWNER)
        assert [await writer.receive() for _ in range(2)] == [
            wire.WrongHost(100 + number, THERE, OWNER) for number in (3, 4)
        ]
        assert not giving_up.done()
        held.go_on.set()
        stored = [await writer.receive() for _ in range(2)]
        assert [(type(reply), reply.event_number) for reply in stored] == [
            (wire.DataAppended, 1), (wire.DataAppended, 2),
        ]  # fmt: skip
        await giving_up

        await stores.two.take(stores.parts(1))
        there = await connect(stores.two.address)
        assert await there.read_all(THERE) == frame_events([b"event 1", b"event 2"])
        assert await there.setup(THERE) == 2, "the new owner knows the writer's number"
        assert isinstance(await other.append([b"here"], 1, bytes(16)), wire.DataAppended), "other writers continue"


async def test_release_answers_thousands_of_waiting_reads(tmp_path: Path) -> None:
    """More reads than are woken in one turn of the loop: the container is released before the last one."""
    async with two_stores(tmp_path) as stores:
        peer = await connect(stores.one.address)
        await peer.create(THERE)
        for number in range(1_000):
            peer.send(wire.ReadSegment(THERE, 0, 10, "", number))
        await peer.ask(wire.KeepAlive())
        await stores.one.give_up(1)
        answers = [await peer.receive() for _ in range(1_000)]
        assert sorted(answer.request_id for answer in answers) == list(range(1_000))
        assert all(map(is_told, answers))


async def test_many_writers_of_one_connection_are_notified_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open: each append of each writer is answered."""
    writers = [number.to_bytes(16, "big") for number in range(1_500)]
    turn = 0
    notified: Counter[int] = Counter()
    fail = Replies.fail

    def counted(self: Replies, *arguments: Any) -> None:
        notified[turn] += 1
        fail(self, *arguments)

    async def turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(Replies, "fail", counted)
    async with two_stores(tmp_path) as stores:
        peer = await connect(stores.one.address)
        await peer.create(THERE)
        for writer in writers:
            await setup_id(peer, THERE, writer)
        counting = asyncio.create_task(turns())
        await stores.one.give_up(1)
        counting.cancel()
        assert all([is_told(await peer.receive()) for _ in writers])
        assert sum(notified.values()) == len(writers)
        assert max(notified.values()) <= 200
        assert is_told(await peer.ask(append_of(1, writers[0])))


async def test_connection_does_not_keep_a_released_container_alive(tmp_path: Path) -> None:
    """The connection may last for months without its writer returning."""
    async with two_stores(tmp_path) as stores:
        peer = await connect(stores.one.address)
        await peer.create(THERE)
        await setup_id(peer, THERE)
        container = weakref.ref(stores.one.container_of(THERE))
        await stores.one.give_up(1)
        assert is_told(await peer.receive())
        deadline = time.monotonic() + 60
        while container() is not None and time.monotonic() < deadline:  # its last tasks may still be ending
            gc.collect()
            await asyncio.sleep(0.01)
        assert container() is None
        assert is_told(await peer.append([b"late"], 1))


async def test_released_container_can_be_acquired_again(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        one, two = stores.one, stores.two
        await one.exchange(wire.CreateSegment(ID, THERE, 0, 0, ""))
        for number, (origin, target) in enumerate([(one, two), (two, one), (one, two)], 1):
            await stores.move(1, origin, target)
            peer = await connect(target.address)
            await peer.setup(THERE)
            assert (await peer.append([b"%d" % number], number)).event_number == number
            assert await peer.read_all(THERE) == frame_events([b"%d" % n for n in range(1, number + 1)])
            assert [container.number for container in target.containers] == ([0, 1] if target is one else [1])
            assert target.scrub.started, "its data is scrubbed every week"
            assert not target.scrub.ended
            assert is_told(await origin.exchange(wire.GetStreamSegmentInfo(ID, THERE, "")))


async def test_failed_append_is_not_reported_as_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be stored, so its writer must check: the connection is closed."""
    async with two_stores(tmp_path) as stores:
        one = stores.one
        peer = await connect(one.address)
        await peer.create(THERE)
        await setup_id(peer, THERE)
        container = one.container_of(THERE)
        failing, came = asyncio.Event(), asyncio.Event()

        async def fail(parts: Any) -> Any:
            came.set()
            await failing.wait()
            raise OSError(5, "the disk failed")

        monkeypatch.setattr(container.log, "append", fail)
        peer.send(append_of(1))
        await came.wait()
        giving_up = asyncio.create_task(one.give_up(1))
        assert is_told(await peer.receive()), "the writer"
        failing.set()
        with pytest.raises(ConnectionResetError):
            await peer.receive()
        await giving_up
        await stores.two.take(stores.parts(1))
        reply = await stores.two.exchange(wire.GetStreamSegmentInfo(ID, THERE, ""))
        assert isinstance(reply, wire.StreamSegmentInfo)
        assert (await (await connect(stores.two.address)).setup(THERE)) == NO_VERSION


async def test_released_container_is_not_reopened_by_its_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reopening would stop the store that has acquired it."""
    async with two_stores(tmp_path) as stores:
        await stores.one.exchange(wire.CreateSegment(ID, THERE, 0, 0, ""))
        container = stores.one.container_of(THERE)
        waits, go_on = asyncio.Event(), asyncio.Event()

        async def pause(_: float) -> None:
            waits.set()
            await go_on.wait()

        monkeypatch.setattr(containers, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))

        async def fail(parts: Any) -> Any:
            raise OSError(5, "the disk failed")

        monkeypatch.setattr(container.log, "append", fail)
        opened: list[int] = []
        monkeypatch.setattr(container.parts, "open", lambda: opened.append(1))
        with pytest.raises(UnavailableError):
            await stores.one.exchange(wire.SealSegment(ID, THERE, ""))
        await waits.wait()  # before it reopens its storage
        moving = asyncio.create_task(stores.move(1, stores.one, stores.two))
        await until_async(lambda: container.phase is not ContainerPhase.RUNNING)
        go_on.set()
        await moving
        assert not opened
        assert isinstance(await stores.two.exchange(wire.SealSegment(ID, THERE, "")), wire.SegmentSealed)
