"""Where a segment is, is told of servers that are there: a client may keep the answer for long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest

from nadi import limits
from nadi.client.segments.connection import SegmentStoreConnection
from nadi.cluster.container_map import Address, ContainerMap, takes_connections
from nadi.cluster.proxy import segment_router as peers
from nadi.cluster.proxy.segment_router import SegmentRouter, joined
from nadi.controller.event_time import MarkStream
from nadi.controller.state.segments import Segments
from nadi.errors import ClosedError, NotOwnerError, UnavailableError
from nadi.limits import LOAD_PAGE_SEGMENTS
from nadi.model.load import SegmentLoad
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import LOAD_SEGMENT
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.container_registry import container_of
from nadi.segmentstore.recovery.storage import LocalParts
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.load_reports import packed_loads, unpacked_loads
from nadi.wire.rpc import controller_pb2 as pb
from tests.segmentstore.harness import connect
from tests.segmentstore.test_hosted import REQUESTS, sample
from tests.support.waiting import until_async

AT_ONCE_S = 8.0  # where nothing is settled one waits for ten seconds
OWN, OTHER, THIRD = ("own", 1), ("other", 2), ("third", 3)
SEGMENT = pb.SegmentId(streamInfo=pb.StreamInfo(scope="home", stream="meters"), segmentId=0)


class Clock(Runtime):
    """The real one, and ahead of it as the test says."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Servers(ContainerMap):
    """owner: of all segments. up: which take connections. lives: which are heard of."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(cast("Any", None), 1, self.clock, self._ring)
        self.own = OWN
        self.owner: Address | None = OTHER
        self.up, self.lives = {OWN, OTHER, THIRD}, set[Address]()
        self.rings = self.at_once = 0
        self.answers_after_s = 0.0
        self.answers = asyncio.Event()
        self.answers.set()

    def find(self, segment: str) -> Address | None:
        return self.owner

    def lives_since(self, store: Address, since: float) -> bool:
        return store in self.lives

    async def _ring(self, address: Address) -> bool:
        self.rings += 1
        self.at_once += 1
        await asyncio.sleep(self.answers_after_s)
        await self.answers.wait()
        self.at_once -= 1
        return address in self.up

    async def where(self) -> Address:
        found = await self.get_uri(SEGMENT)
        return found.endpoint, found.port


async def test_one_that_was_just_killed_is_not_named_and_its_successor_is_at_once() -> None:
    servers = Servers()
    assert await servers.where() == OTHER
    servers.up.remove(OTHER)
    asked = asyncio.create_task(servers.where())
    await asyncio.sleep(0.3)
    assert not asked.done()
    servers.owner = None
    await asyncio.sleep(0.1)
    assert not asked.done()
    servers.owner = THIRD
    async with asyncio.timeout(AT_ONCE_S):
        assert await asked == THIRD


@pytest.mark.parametrize("is_cut_off_from_here", [False, True])
async def test_one_that_is_back_or_lives_is_named(is_cut_off_from_here: bool) -> None:
    servers = Servers()
    servers.up.remove(OTHER)
    asked = asyncio.create_task(servers.where())
    await asyncio.sleep(0.2)
    assert not asked.done()
    (servers.lives if is_cut_off_from_here else servers.up).add(OTHER)
    async with asyncio.timeout(AT_ONCE_S):
        assert await asked == OTHER


async def test_what_lies_here_is_told_without_asking_anybody() -> None:
    servers = Servers()
    servers.owner = OWN
    assert await servers.where() == OWN
    assert servers.rings == 0


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_WHERE_S", 0.2)
    servers = Servers()
    servers.owner = None
    with pytest.raises(UnavailableError, match=r"home/meters/0\.#epoch\.0 is between two servers: try again"):
        await servers.where()
    servers.owner = OTHER
    servers.up.remove(OTHER)
    with pytest.raises(UnavailableError, match=r"home/meters/0\.#epoch\.0 takes no connections: try again"):
        await servers.where()


async def test_callers_at_the_same_time_share_a_ring() -> None:
    servers = Servers()
    servers.answers.clear()
    first = asyncio.create_task(servers.where())
    await until_async(lambda: servers.at_once)
    late = [asyncio.create_task(servers.where()) for _ in range(100)]
    await asyncio.sleep(0.02)
    servers.answers.set()
    assert {*await asyncio.gather(first, *late)} == {OTHER}
    assert servers.rings == 1
    assert await servers.where() == OTHER
    assert servers.rings == 2


async def test_a_port_that_listens_takes_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_RING_S", 60.0)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    assert await takes_connections(address)
    server.close()
    await server.wait_closed()
    assert not await takes_connections(address)


async def test_what_cant_be_an_address_takes_no_connections() -> None:
    assert not await takes_connections(("a..b", 9000))


async def test_rings_leave_no_ports_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is kept for a minute once its connection was closed in order; a system has some 28,000."""
    monkeypatch.setattr(limits, "CLUSTER_RING_S", 60.0)

    async def until_it_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    async def kept(port: int) -> set[str]:
        """Whose connections to the port are kept."""
        rows = (line.split() for line in (await asyncio.to_thread(Path("/proc/net/tcp").read_text)).splitlines()[1:])
        return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "06"}  # TIME_WAIT

    server = await asyncio.start_server(until_it_ends, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    before = await kept(address[1])  # of another server that had it
    for _ in range(50):
        assert await takes_connections(address)
    server.close()
    assert await kept(address[1]) <= before


async def test_of_a_store_that_says_nothing_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are refused after one ring, which they share."""
    monkeypatch.setattr(limits, "CLUSTER_WHERE_AT_ONCE", 3)
    servers = Servers()
    servers.up.remove(OTHER)
    servers.answers_after_s = 0.2
    first = [asyncio.create_task(servers.where()) for _ in range(10)]
    for _ in range(7):
        await asyncio.wait([task for task in first if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        if sum(task.done() for task in first) == 7:
            break
    assert sum(task.done() for task in first) == 7
    more = [asyncio.create_task(servers.where()) for _ in range(10)]
    await asyncio.wait(more, timeout=60)
    assert sum(task.done() for task in first) == 7
    servers.clock.ahead_s = 60.0  # longer than anybody waits
    found = await asyncio.gather(*first, *more, return_exceptions=True)
    assert {type(one) for one in found} == {UnavailableError}
    servers.up.add(OTHER)
    assert await servers.where() == OTHER


async def test_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls need room, too."""
    monkeypatch.setattr(limits, "CLUSTER_WHERE_AT_ONCE", 3)
    servers = Servers()
    servers.owner = None
    waiting = [asyncio.create_task(servers.where()) for _ in range(3)]
    await asyncio.sleep(0.02)
    with pytest.raises(UnavailableError, match="is between two servers: try again"):
        await servers.where()
    servers.owner = THIRD
    assert {*await asyncio.gather(*waiting)} == {THIRD}
    assert await servers.where() == THIRD


# --- how a controller reaches segments in its own store and in others ---------------------------------


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
