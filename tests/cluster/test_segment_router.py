"""How a controller reaches segments in its own store and in others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from nadi.client.segments.connection import SegmentStoreConnection
from nadi.cluster.proxy import segment_router as peers
from nadi.cluster.proxy.segment_router import SegmentRouter, joined
from nadi.controller.event_time import MarkStream
from nadi.controller.state.segments import Segments
from nadi.errors import ClosedError, NotOwnerError, UnavailableError
from nadi.limits import LOAD_PAGE_SEGMENTS
from nadi.model.load import SegmentLoad
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import LOAD_SEGMENT
from nadi.runtime import REAL
from nadi.segmentstore.hosted import container_of
from nadi.segmentstore.recovery.parts import LocalParts
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.loads import packed_loads, unpacked_loads
from tests.segmentstore.harness import connect
from tests.segmentstore.test_hosted import REQUESTS, sample

pytestmark = pytest.mark.uvloop

HOST = "127.0.0.1"
CONTAINERS = 2
ID = 7
HERE, THERE = (
    next(name for name in (f"sc/st{n}/0.#epoch.0" for n in range(99)) if container_of(name, CONTAINERS) == number)
    for number in range(CONTAINERS)
)
RECORDS = "_system/_tables/some"
WRITER = bytes(range(16))


class TwoStores:
    """Container 0 is in `here`, 1 in `there`; `reach` is of a controller beside `here`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks = ChunkStore.in_folder(folder / "tier2")
        self.here, self.there = (self._store(name, number) for number, name in enumerate(("here", "there")))
        self.where = [self.here, self.there]
        self.asked: list[str] = []

    def _store(self, name: str, number: int) -> SegmentStore:
        return SegmentStore(self._folder / name, CONTAINERS, chunks=self._chunks, parts=[self.parts(number)])

    def parts(self, number: int) -> LocalParts:
        return LocalParts(number, self._folder / f"container-{number}", self._chunks)

    def address(self, store: SegmentStore) -> str:
        return f"{store.address[0]}:{store.address[1]}"

    def owner_of(self, segment: str) -> str:
        self.asked.append(segment)
        return self.address(self.where[container_of(segment, CONTAINERS)])

    async def start(self) -> None:
        for store in (self.here, self.there):
            await store.start()
            await store.listen(HOST, 0)
        both = [self.address(store) for store in (self.here, self.there)]
        self.reach = SegmentRouter(self.here, both[0], lambda segment: self.owner_of(segment), lambda: both)

    async def move(self, number: int) -> None:
        origin = self.where[number]
        target = self.there if origin is self.here else self.here
        await origin.give_up(number)
        await target.take(self.parts(number))
        self.where[number] = target


@asynccontextmanager
async def two_stores(folder: Path) -> AsyncIterator[TwoStores]:
    stores = TwoStores(folder)
    await stores.start()
    try:
        async with asyncio.timeout(120):
            yield stores
    finally:
        stores.reach.close()
        for store in (stores.here, stores.there):
            await store.close()


def created(segment: str) -> wire.CreateSegment:
    return wire.CreateSegment(ID, segment, 0, 0, "")


def exists(segment: str) -> wire.GetStreamSegmentInfo:
    return wire.GetStreamSegmentInfo(ID, segment, "")


# --- which store --------------------------------------------------------------------------------------


async def test_each_segment_is_where_its_container_is(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        for segment, store in ((HERE, stores.here), (THERE, stores.there)):
            assert await stores.reach(created(segment)) == wire.SegmentCreated(ID, segment)
            info: Any = await store.exchange(exists(segment))
            assert info.exists
            assert await stores.reach(exists(segment)) == info
        assert HERE not in stores.asked


async def test_it_says_which_store_a_command_goes_to(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        here, there, reach = stores.address(stores.here), stores.address(stores.there), stores.reach
        assert [reach.place_of(exists(segment)) for segment in (HERE, THERE, RECORDS)] == [here, there, here]
        assert reach.place_of(wire.MergeSegmentsBatch(ID, THERE, (HERE,), "")) == there
        append = wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)
        await reach(created(THERE))
        await reach(wire.SetupAppend(ID, WRITER, THERE, ""))
        assert reach.place_of(append) == there
        await stores.move(1)
        assert [reach.place_of(command) for command in (exists(THERE), append)] == [here, here]
        assert reach.place_of(wire.GetSegmentLoads(ID, LOAD_SEGMENT, "", "")) not in (here, there)


async def test_records_lie_in_container_0(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        for number in range(10):
            name = f"{RECORDS}-{number}"
            assert isinstance(await stores.here.exchange(wire.CreateTableSegment(ID, name, "")), wire.SegmentCreated)
            assert isinstance(await stores.there.exchange(wire.CreateTableSegment(ID, name, "")), wire.WrongHost)


@pytest.mark.parametrize("segment", [HERE, THERE], ids=["here", "there"])
async def test_every_command_is_answered_as_by_the_store_itself(segment: str, tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        store = stores.here if segment == HERE else stores.there
        twin = next(name for name in (f"sc/twin{n}/0.#epoch.0" for n in range(99)) if store.has(name))
        for kind in REQUESTS:
            if kind is wire.UpdateTableToFreeRoom and segment == THERE:
                continue  # of records alone, and those are here
            direct = await store.exchange(sample(kind, twin))
            reply: Any = await stores.reach(sample(kind, segment))
            assert reply.request_id == ID
            assert type(reply) is type(direct), kind


async def test_a_moved_container_is_found_again(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.reach(created(THERE))
        for _ in range(3):
            await stores.move(1)
            info: Any = await stores.reach(exists(THERE))
            assert info.exists


async def test_a_map_that_lags_is_asked_again(tmp_path: Path) -> None:
    """It names a store that hasn't the container; when that has said so, it names the right one."""
    async with two_stores(tmp_path) as stores:
        await stores.reach(created(HERE))
        await stores.move(0)  # now there
        third = SegmentStore(tmp_path / "third", CONTAINERS, parts=[])
        await third.start()
        await third.listen(HOST, 0)
        told = [stores.address(third), stores.address(stores.there)]
        stores.owner_of = lambda segment: told.pop(0)  # type: ignore[method-assign]
        info: Any = await stores.reach(exists(HERE))
        await third.close()
        assert info.exists


async def test_what_nobody_has_is_refused_and_may_be_tried_again(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.there.give_up(1)
        for _ in range(2):  # the map names a store that says no, or nobody
            with pytest.raises(NotOwnerError):
                await stores.reach(exists(THERE))
            stores.owner_of = lambda segment: ""  # type: ignore[method-assign]


async def test_records_are_never_changed_from_afar(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.reach(wire.CreateTableSegment(ID, RECORDS, ""))
        await stores.move(0)
        with pytest.raises(NotOwnerError):
            await stores.reach(wire.DeleteTableSegment(ID, RECORDS, False, ""))
        assert isinstance(await stores.there.exchange(wire.ReadTable(ID, RECORDS, "", ())), wire.TableRead)


# --- appends of one writer ----------------------------------------------------------------------------


@asynccontextmanager
async def marks(folder: Path) -> AsyncIterator[tuple[TwoStores, Callable[[str], MarkStream]]]:
    async with two_stores(folder) as stores:
        for segment in (HERE, THERE):
            await stores.reach(created(segment))
        segments = Segments(stores.reach, REAL)
        yield stores, lambda segment: MarkStream(segments, segment)


def mark(number: int) -> Watermark:
    return Watermark(number, number, (SegmentPosition(0, 0.0, 1.0, number),))


async def written(stream: MarkStream) -> list[int]:
    extent = await stream.extent()
    return [entry.watermark.lower async for entry in stream.entries(extent.start, extent.end)]


async def test_watermarks_are_added_wherever_their_segment_is(tmp_path: Path) -> None:
    async with marks(tmp_path) as (stores, stream_of):
        here, there = stream_of(HERE), stream_of(THERE)
        for number in range(6):
            for stream in (here, there):
                assert await stream.add(mark(number), await stream.extent())
            if number % 2:
                await stores.move(1)
        assert await written(here) == await written(there) == list(range(6))
        extent = await there.extent()
        assert await there.add(mark(6), extent)
        assert not await there.add(mark(7), extent), "another is there by now"


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_an_append_whose_container_moved_since_its_setup(times: int, tmp_path: Path) -> None:
    async with marks(tmp_path) as (stores, _):
        reach = stores.reach
        assert isinstance(await reach(wire.SetupAppend(ID, WRITER, THERE, "")), wire.AppendSetup)
        for _ in range(times):
            await stores.move(1)
        append = wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)
        try:
            reply: Any = await reach(append)
        except UnavailableError:  # as long as the old one's end is not noticed
            reply = await reach(append)
        assert isinstance(reply, wire.DataAppended)
        assert reply.request_id == ID
        again: Any = await reach(append)
        assert isinstance(again, wire.InvalidEventNumber | wire.DataAppended | wire.ConditionalCheckFailed)
        info: Any = await reach(exists(THERE))
        assert info.write_offset == 12


async def test_an_append_whose_connection_was_lost_since_its_setup(tmp_path: Path) -> None:
    async with marks(tmp_path) as (stores, _):
        reach = stores.reach
        append = wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)
        await reach(wire.SetupAppend(ID, WRITER, THERE, ""))
        await lose_connections(stores)
        assert isinstance(await reach(append), wire.DataAppended)
        await lose_connections(stores)
        assert await reach(append) == wire.InvalidEventNumber(WRITER, ID, "", 1), "it is stored"
        info: Any = await reach(exists(THERE))
        assert info.write_offset == 12


async def lose_connections(stores: TwoStores) -> None:
    for connection in list(stores.there._connections):
        connection.close()
    before = await stores.reach._at(stores.address(stores.there))
    assert isinstance(before, SegmentStoreConnection)
    while before.is_open:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_an_append_is_never_put_into_the_segment_of_an_earlier_setup(tmp_path: Path) -> None:
    """The inner door still has this writer set up for another segment."""
    async with marks(tmp_path) as (stores, _):
        reach = stores.reach
        await reach(wire.SetupAppend(ID, WRITER, HERE, ""))
        await reach(wire.SetupAppend(ID, WRITER, THERE, ""))
        await stores.move(1)
        assert isinstance(
            await reach(wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)), wire.DataAppended
        )
        here: Any = await reach(exists(HERE))
        there: Any = await reach(exists(THERE))
        assert (here.write_offset, there.write_offset) == (0, 12)


# --- loads and peers ----------------------------------------------------------------------------------


async def test_the_loads_of_all_stores_are_told_or_none(tmp_path: Path) -> None:
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(8))
    async with two_stores(tmp_path) as stores:
        for name in names:
            store = (stores.here, stores.there)[container_of(name, CONTAINERS)]
            peer = await connect(store.address)
            await peer.create(name)
            await peer.setup(name)
            await peer.append([b"x" * 92], 1)
            peer.close()
        await asyncio.sleep(0.6)  # those that began in the last half second aren't told
        segments = Segments(stores.reach, REAL)
        assert [load.segment for load in await segments.loads()] == names
        await stores.there.close()
        with pytest.raises(UnavailableError):
            await segments.loads()


def test_pages_of_loads_are_joined_up_to_where_all_are_known() -> None:
    """In pages of three."""
    asked = wire.GetSegmentLoads(ID, LOAD_SEGMENT, "", "")

    def joint(*pages: tuple[str, bool]) -> tuple[str, bool]:
        replies = [
            wire.SegmentLoads(0, LOAD_SEGMENT, packed_loads([SegmentLoad(name, 1.0, (), ()) for name in page]), is_last)
            for page, is_last in pages
        ]
        reply = joined(asked, replies)
        assert reply.request_id == ID
        return "".join(load.segment for load in unpacked_loads(reply.loads)), reply.is_last

    assert joint(("ace", True), ("bd", True)) == ("abcde", True)
    assert joint(("ace", False), ("bdfz", True)) == ("abcde", False)
    assert joint(("ace", False), ("bd", False), ("", True)) == ("abcd", False)
    assert joint(("abc", True), ("bc", True)) == ("abc", True)
    assert joint(("", True)) == ("", True)
    many = [f"{number:04}" for number in range(LOAD_PAGE_SEGMENTS + 1)]
    page = packed_loads([SegmentLoad(name, 1.0, (), ()) for name in many])
    reply = joined(asked, [wire.SegmentLoads(0, LOAD_SEGMENT, page, True)])
    assert [load.segment for load in unpacked_loads(reply.loads)] == many[:-1]
    assert not reply.is_last


async def test_a_store_that_is_not_there_is_unavailable_until_it_is(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        owner = stores.owner_of
        for address in ("127.0.0.1:1", "nowhere.invalid:1"):
            stores.owner_of = lambda segment, address=address: address  # type: ignore[misc, method-assign]
            with pytest.raises(UnavailableError):
                await stores.reach(exists(THERE))
        stores.owner_of = owner  # type: ignore[method-assign]
        assert isinstance(await stores.reach(exists(THERE)), wire.NoSuchSegment)
        (slot,) = stores.reach._connections._opening
        assert slot == (peers.endpoint_of(stores.address(stores.there)), ""), "those that left are forgotten"


async def test_a_store_that_says_nothing_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEER_SILENCE_S", 0.5)
    asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with closing(writer):
            writer.write(encode(wire.OWN_HELLO))
            while data := await reader.read(1 << 16):
                asked += data.count(exists(THERE).segment.encode())

    async with two_stores(tmp_path) as stores:
        listening = await asyncio.start_server(silent, HOST, 0)
        address = f"{HOST}:{listening.sockets[0].getsockname()[1]}"
        stores.owner_of = lambda segment: address  # type: ignore[method-assign]
        failures = await asyncio.gather(*(stores.reach(exists(THERE)) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, UnavailableError) and "silent" in str(one) for one in failures)
        assert asked == 20
        listening.close()


async def test_a_closed_one_says_so(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.reach(exists(THERE))
        stores.reach.close()
        with pytest.raises(ClosedError):
            await stores.reach(exists(THERE))
