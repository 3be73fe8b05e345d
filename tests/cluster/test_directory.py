"""Segment addresses are only given to clients while the store is reachable, because clients may cache them for long."""

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
from nadi.segmentstore.recovery.storage import LocalStorage
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.load_reports import packed_loads, unpacked_loads
from nadi.wire.rpc import controller_pb2 as pb
from tests.segmentstore.harness import connect
from tests.segmentstore.test_container_registry import REQUESTS, sample
from tests.support.waiting import until_async

AT_ONCE_S = 8.0  # less than the ten seconds that an unresolved query takes
OWN, OTHER, THIRD = ("own", 1), ("other", 2), ("third", 3)
SEGMENT = pb.SegmentId(streamInfo=pb.StreamInfo(scope="home", stream="meters"), segmentId=0)


class Clock(Runtime):
    """Real clock plus an offset set by the test."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Servers(ContainerMap):
    """Map with one owner for all segments. up: servers that accept connections. lives: servers that beat."""

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
        uri = await self.get_uri(SEGMENT)
        return uri.endpoint, uri.port


async def test_get_uri_waits_for_successor_of_killed_store() -> None:
    servers = Servers()
    assert await servers.where() == OTHER
    servers.up.remove(OTHER)
    query = asyncio.create_task(servers.where())
    await asyncio.sleep(0.3)
    assert not query.done()
    servers.owner = None
    await asyncio.sleep(0.1)
    assert not query.done()
    servers.owner = THIRD
    async with asyncio.timeout(AT_ONCE_S):
        assert await query == THIRD


@pytest.mark.parametrize("is_cut_off_from_here", [False, True])
async def test_get_uri_returns_store_that_returns_or_beats(is_cut_off_from_here: bool) -> None:
    servers = Servers()
    servers.up.remove(OTHER)
    query = asyncio.create_task(servers.where())
    await asyncio.sleep(0.2)
    assert not query.done()
    (servers.lives if is_cut_off_from_here else servers.up).add(OTHER)
    async with asyncio.timeout(AT_ONCE_S):
        assert await query == OTHER


async def test_get_uri_of_local_segment_needs_no_probe() -> None:
    servers = Servers()
    servers.owner = OWN
    assert await servers.where() == OWN
    assert servers.rings == 0


async def test_get_uri_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_WHERE_S", 0.2)
    servers = Servers()
    servers.owner = None
    with pytest.raises(UnavailableError, match=r"home/meters/0\.#epoch\.0"):
        await servers.where()
    servers.owner = OTHER
    servers.up.remove(OTHER)
    with pytest.raises(UnavailableError, match=r"home/meters/0\.#epoch\.0"):
        await servers.where()


async def test_concurrent_calls_share_a_probe() -> None:
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


async def test_takes_connections_only_while_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_RING_S", 60.0)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    assert await takes_connections(address)
    server.close()
    await server.wait_closed()
    assert not await takes_connections(address)


async def test_takes_connections_rejects_invalid_address() -> None:
    assert not await takes_connections(("a..b", 9000))


async def test_probes_leave_no_ports_in_time_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular close keeps a port for a minute, and a system has about 28,000."""
    monkeypatch.setattr(limits, "CLUSTER_RING_S", 60.0)

    async def until_it_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    async def peers_in_time_wait(port: int) -> set[str]:
        """Return the peers whose connections to the port are in TIME_WAIT."""
        rows = (line.split() for line in (await asyncio.to_thread(Path("/proc/net/tcp").read_text)).splitlines()[1:])
        return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "06"}  # TIME_WAIT

    server = await asyncio.start_server(until_it_ends, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    before = await peers_in_time_wait(address[1])  # of an earlier server on the port
    for _ in range(50):
        assert await takes_connections(address)
    server.close()
    assert await peers_in_time_wait(address[1]) <= before


async def test_calls_for_silent_store_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further calls are rejected after one shared probe."""
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
    servers.clock.ahead_s = 60.0  # longer than any call waits
    results = await asyncio.gather(*first, *more, return_exceptions=True)
    assert {type(result) for result in results} == {UnavailableError}
    servers.up.add(OTHER)
    assert await servers.where() == OTHER


async def test_waiting_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls need capacity too."""
    monkeypatch.setattr(limits, "CLUSTER_WHERE_AT_ONCE", 3)
    servers = Servers()
    servers.owner = None
    waiting = [asyncio.create_task(servers.where()) for _ in range(3)]
    await asyncio.sleep(0.02)
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(UnavailableError):
            await servers.where()
    servers.owner = THIRD
    assert {*await asyncio.gather(*waiting)} == {THIRD}
    assert await servers.where() == THIRD


# --- routing of a controller's commands ---------------------------------------------------------------


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
    """Two stores; container 0 is in `here`, 1 in `there`. `router` belongs to a controller in the process of `here`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks = ChunkStore.in_folder(folder / "tier2")
        self.here, self.there = (self._store(name, number) for number, name in enumerate(("here", "there")))
        self.where = [self.here, self.there]
        self.asked: list[str] = []

    def _store(self, name: str, number: int) -> SegmentStore:
        return SegmentStore(self._folder / name, CONTAINERS, chunks=self._chunks, parts=[self.parts(number)])

    def parts(self, number: int) -> LocalStorage:
        return LocalStorage(number, self._folder / f"container-{number}", self._chunks)

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
        self.router = SegmentRouter(self.here, both[0], lambda segment: self.owner_of(segment), lambda: both)

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
        stores.router.close()
        for store in (stores.here, stores.there):
            await store.close()


def created(segment: str) -> wire.CreateSegment:
    return wire.CreateSegment(ID, segment, 0, 0, "")


def exists(segment: str) -> wire.GetStreamSegmentInfo:
    return wire.GetStreamSegmentInfo(ID, segment, "")


# --- which store --------------------------------------------------------------------------------------


async def test_router_reaches_segments_in_both_stores(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        for segment, store in ((HERE, stores.here), (THERE, stores.there)):
            assert await stores.router(created(segment)) == wire.SegmentCreated(ID, segment)
            info: Any = await store.exchange(exists(segment))
            assert info.exists
            assert await stores.router(exists(segment)) == info
        assert HERE not in stores.asked


async def test_place_of_returns_store_of_command(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        here, there, router = stores.address(stores.here), stores.address(stores.there), stores.router
        assert [router.place_of(exists(segment)) for segment in (HERE, THERE, RECORDS)] == [here, there, here]
        assert router.place_of(wire.MergeSegmentsBatch(ID, THERE, (HERE,), "")) == there
        append = wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)
        await router(created(THERE))
        await router(wire.SetupAppend(ID, WRITER, THERE, ""))
        assert router.place_of(append) == there
        await stores.move(1)
        assert [router.place_of(command) for command in (exists(THERE), append)] == [here, here]
        assert router.place_of(wire.GetSegmentLoads(ID, LOAD_SEGMENT, "", "")) not in (here, there)


async def test_records_are_in_container_0(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        for number in range(10):
            name = f"{RECORDS}-{number}"
            assert isinstance(await stores.here.exchange(wire.CreateTableSegment(ID, name, "")), wire.SegmentCreated)
            assert isinstance(await stores.there.exchange(wire.CreateTableSegment(ID, name, "")), wire.WrongHost)


@pytest.mark.parametrize("segment", [HERE, THERE], ids=["here", "there"])
async def test_router_replies_match_the_stores_own(segment: str, tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        store = stores.here if segment == HERE else stores.there
        twin = next(name for name in (f"sc/twin{n}/0.#epoch.0" for n in range(99)) if store.has(name))
        for kind in REQUESTS:
            if kind is wire.UpdateTableToFreeSpace and segment == THERE:
                continue  # only for records, which are here
            direct = await store.exchange(sample(kind, twin))
            reply: Any = await stores.router(sample(kind, segment))
            assert reply.request_id == ID
            assert type(reply) is type(direct), kind


async def test_a_moved_container_is_found_again(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.router(created(THERE))
        for _ in range(3):
            await stores.move(1)
            info: Any = await stores.router(exists(THERE))
            assert info.exists


async def test_router_retries_after_wrong_host(tmp_path: Path) -> None:
    """The map first returns a store without the container."""
    async with two_stores(tmp_path) as stores:
        await stores.router(created(HERE))
        await stores.move(0)  # now there
        third = SegmentStore(tmp_path / "third", CONTAINERS, parts=[])
        await third.start()
        await third.listen(HOST, 0)
        answers = [stores.address(third), stores.address(stores.there)]
        stores.owner_of = lambda segment: answers.pop(0)  # type: ignore[method-assign]
        info: Any = await stores.router(exists(HERE))
        await third.close()
        assert info.exists


async def test_unowned_segment_raises_not_owner_on_each_try(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.there.give_up(1)
        for _ in range(2):  # the map returns a store that rejects, then none
            with pytest.raises(NotOwnerError):
                await stores.router(exists(THERE))
            stores.owner_of = lambda segment: ""  # type: ignore[method-assign]


async def test_records_are_never_changed_over_the_wire(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.router(wire.CreateTableSegment(ID, RECORDS, ""))
        await stores.move(0)
        with pytest.raises(NotOwnerError):
            await stores.router(wire.DeleteTableSegment(ID, RECORDS, False, ""))
        assert isinstance(await stores.there.exchange(wire.ReadTable(ID, RECORDS, "", ())), wire.TableRead)


# --- appends of one writer ----------------------------------------------------------------------------


@asynccontextmanager
async def marks(folder: Path) -> AsyncIterator[tuple[TwoStores, Callable[[str], MarkStream]]]:
    async with two_stores(folder) as stores:
        for segment in (HERE, THERE):
            await stores.router(created(segment))
        segments = Segments(stores.router, REAL)
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
        assert not await there.add(mark(7), extent), "the extent is outdated"


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_an_append_whose_container_moved_since_its_setup(times: int, tmp_path: Path) -> None:
    async with marks(tmp_path) as (stores, _):
        router = stores.router
        assert isinstance(await router(wire.SetupAppend(ID, WRITER, THERE, "")), wire.AppendSetup)
        for _ in range(times):
            await stores.move(1)
        append = wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)
        try:
            reply: Any = await router(append)
        except UnavailableError:  # until the old connection's end is noticed
            reply = await router(append)
        assert isinstance(reply, wire.DataAppended)
        assert reply.request_id == ID
        again: Any = await router(append)
        assert isinstance(again, wire.InvalidEventNumber | wire.DataAppended | wire.ConditionalCheckFailed)
        info: Any = await router(exists(THERE))
        assert info.write_offset == 12


async def test_an_append_whose_connection_was_lost_since_its_setup(tmp_path: Path) -> None:
    async with marks(tmp_path) as (stores, _):
        router = stores.router
        append = wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)
        await router(wire.SetupAppend(ID, WRITER, THERE, ""))
        await lose_connections(stores)
        assert isinstance(await router(append), wire.DataAppended)
        await lose_connections(stores)
        assert await router(append) == wire.InvalidEventNumber(WRITER, ID, "", 1), "it is stored"
        info: Any = await router(exists(THERE))
        assert info.write_offset == 12


async def lose_connections(stores: TwoStores) -> None:
    for connection in list(stores.there._connections):
        connection.close()
    before = await stores.router._at(stores.address(stores.there))
    assert isinstance(before, SegmentStoreConnection)
    while before.is_open:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_append_never_goes_to_segment_of_earlier_setup(tmp_path: Path) -> None:
    """The local store still has this writer set up for another segment."""
    async with marks(tmp_path) as (stores, _):
        router = stores.router
        await router(wire.SetupAppend(ID, WRITER, HERE, ""))
        await router(wire.SetupAppend(ID, WRITER, THERE, ""))
        await stores.move(1)
        assert isinstance(
            await router(wire.ConditionalAppend(WRITER, 1, 0, 0, memoryview(b"data"), ID)), wire.DataAppended
        )
        here: Any = await router(exists(HERE))
        there: Any = await router(exists(THERE))
        assert (here.write_offset, there.write_offset) == (0, 12)


# --- loads and peers ----------------------------------------------------------------------------------


async def test_loads_of_all_stores_are_returned_or_none(tmp_path: Path) -> None:
    names = sorted(f"home/meters/{number}.#epoch.0" for number in range(8))
    async with two_stores(tmp_path) as stores:
        for name in names:
            store = (stores.here, stores.there)[container_of(name, CONTAINERS)]
            peer = await connect(store.address)
            await peer.create(name)
            await peer.setup(name)
            await peer.append([b"x" * 92], 1)
            peer.close()
        await asyncio.sleep(0.6)  # loads of the last half second aren't reported
        segments = Segments(stores.router, REAL)
        assert [load.segment for load in await segments.loads()] == names
        await stores.there.close()
        with pytest.raises(UnavailableError):
            await segments.loads()


def test_joined_pages_end_where_loads_are_incomplete() -> None:
    """Pages have three loads."""
    request = wire.GetSegmentLoads(ID, LOAD_SEGMENT, "", "")

    def joint(*pages: tuple[str, bool]) -> tuple[str, bool]:
        replies = [
            wire.SegmentLoads(0, LOAD_SEGMENT, packed_loads([SegmentLoad(name, 1.0, (), ()) for name in page]), is_last)
            for page, is_last in pages
        ]
        reply = joined(request, replies)
        assert reply.request_id == ID
        return "".join(load.segment for load in unpacked_loads(reply.loads)), reply.is_last

    assert joint(("ace", True), ("bd", True)) == ("abcde", True)
    assert joint(("ace", False), ("bdfz", True)) == ("abcde", False)
    assert joint(("ace", False), ("bd", False), ("", True)) == ("abcd", False)
    assert joint(("abc", True), ("bc", True)) == ("abc", True)
    assert joint(("", True)) == ("", True)
    many = [f"{number:04}" for number in range(LOAD_PAGE_SEGMENTS + 1)]
    page = packed_loads([SegmentLoad(name, 1.0, (), ()) for name in many])
    reply = joined(request, [wire.SegmentLoads(0, LOAD_SEGMENT, page, True)])
    assert [load.segment for load in unpacked_loads(reply.loads)] == many[:-1]
    assert not reply.is_last


async def test_unreachable_store_is_unavailable_until_it_returns(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        owner = stores.owner_of
        for address in ("127.0.0.1:1", "nowhere.invalid:1"):
            stores.owner_of = lambda segment, address=address: address  # type: ignore[misc, method-assign]
            with pytest.raises(UnavailableError):
                await stores.router(exists(THERE))
        stores.owner_of = owner  # type: ignore[method-assign]
        assert isinstance(await stores.router(exists(THERE)), wire.NoSuchSegment)
        (slot,) = stores.router._connections._opening
        assert slot == (peers.endpoint_of(stores.address(stores.there)), ""), "old addresses are forgotten"


async def test_silent_store_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEER_SILENCE_S", 0.5)
    requests = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        with closing(writer):
            writer.write(encode(wire.OWN_HELLO))
            while data := await reader.read(1 << 16):
                requests += data.count(exists(THERE).segment.encode())

    async with two_stores(tmp_path) as stores:
        listening = await asyncio.start_server(silent, HOST, 0)
        address = f"{HOST}:{listening.sockets[0].getsockname()[1]}"
        stores.owner_of = lambda segment: address  # type: ignore[method-assign]
        failures = await asyncio.gather(*(stores.router(exists(THERE)) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(failure, UnavailableError) for failure in failures)
        assert requests == 20
        listening.close()


async def test_closed_router_raises_closed_error(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as stores:
        await stores.router(exists(THERE))
        stores.router.close()
        with pytest.raises(ClosedError):
            await stores.router(exists(THERE))
