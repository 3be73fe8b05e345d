"""The segment store's token check: each command without a token, with wrong ones, and with an expired one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from nadi.access.commands import ACTS, acts_of, token_permission
from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.model.framing import frame_events
from nadi.naming import transient_segment_name
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.commands import CODES
from nadi.wire.fields import NO_VERSION, AttributeUpdate, WireTableEntry, WireTableKey
from tests.segmentstore.harness import WRITER, Peer, connect, open_store

SEGMENT = "home/meters/0.#epoch.0"
TABLE = "home/table_kvtable/0.#epoch.0"
READ, UPDATE = Permission.READ, Permission.READ_UPDATE
REFUSED, EXPIRED = 0, 1


class Time:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A store that checks tokens with the test's clock."""

    def __init__(self, store: SegmentStore, peer: Peer, key: TokenKey, time: Time) -> None:
        self.store, self.peer, self.key, self.time = store, peer, key, time
        self.step_s = 0  # by which the wall clock was changed

    def token(self, permission: Permission = UPDATE, scope: str = "home", stream: str = "meters") -> str:
        return self.key.issue(scope, stream, permission)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    time = Time()
    key = TokenKey(b"k" * 64, 600, time, time)
    async with open_store(tmp_path, tokens=key) as (store, peer):
        reply = await peer.ask(wire.CreateSegment(1, SEGMENT, 0, 0, key.master()))
        assert isinstance(reply, wire.SegmentCreated)
        reply = await peer.ask(wire.CreateTableSegment(2, TABLE, key.master()))
        assert isinstance(reply, wire.SegmentCreated)
        yield World(store, peer, key, time)


def commands(token: str, segment: str = SEGMENT, table: str = TABLE) -> list[Any]:
    """Return a command of each kind that a connection accepts, in an order in which all but the last few succeed."""
    any_key = ((b"", b"", b""),)
    entry, key = WireTableEntry(b"k", -(1 << 63), b"v"), WireTableKey(b"k")
    return [
        wire.GetStreamSegmentInfo(7, segment, token),
        wire.GetSegmentAttribute(7, segment, WRITER, token),
        wire.UpdateSegmentAttribute(7, segment, WRITER, 1, -(1 << 63), token),
        wire.UpdateSegmentPolicy(7, segment, 0, 0, token),
        wire.ReadSegment(segment, 0, 100, token, 7),
        wire.LocateOffset(7, segment, 0, token),
        wire.LocateMoment(7, segment, 0, 0, token),
        wire.LocateChunks(7, segment, 0, 9, token),
        wire.ListMoments(7, segment, 0, 9, token),
        wire.ListEventSizes(7, segment, 0, 0, 9, 9, token),
        wire.IndexTimes(7, segment, 2, 0, b"", token),
        wire.SetupAppend(7, WRITER, segment, token),
        wire.CreateTransientSegment(7, WRITER, segment, token),
        wire.CreateSegment(7, segment, 0, 0, token),
        wire.TruncateSegment(7, segment, 0, token),
        wire.MergeSegments(
            7, segment, transient_segment_name(segment, WRITER, WRITER), token, (AttributeUpdate(WRITER, 0, 0, 0),)
        ),
        wire.MergeSegmentsBatch(7, segment, (segment + "#transaction.x",), token),
        wire.GetTableSegmentInfo(7, table, token),
        wire.UpdateTableEntries(7, table, token, (entry,)),
        wire.ReadTable(7, table, token, (key,)),
        wire.ReadTableKeys(7, table, token, 10, *any_key),
        wire.ReadTableEntries(7, table, token, 10, *any_key),
        wire.ReadTableEntriesDelta(7, table, token, 0, 10),
        wire.RemoveTableKeys(7, table, token, (key,)),
        wire.CreateTableSegment(7, table, token),
        wire.DeleteTableSegment(7, table, False, token),
        wire.Scrub(7, segment, False, token),
        wire.GetSegmentLoads(7, segment, token, ""),
        wire.SealSegment(7, segment, token),
        wire.DeleteSegment(7, segment, token),
    ]


async def test_every_command_with_a_token_is_in_the_table(world: World) -> None:
    admin = {wire.FlushToStorage}
    with_tokens = {kind for kind in CODES.values() if "token" in get_type_hints(kind)} - admin
    assert with_tokens == set(ACTS)
    assert {type(command) for command in commands("")} | {wire.UpdateTableToFreeSpace} == set(ACTS)

    assert set(world.store._service._handlers) <= set(ACTS)


async def test_every_command_rejects_wrong_and_expired_tokens(world: World) -> None:
    expired = world.token()
    expired_table = world.token(stream="table")
    world.time.now += 600
    wrong = {
        "": REFUSED,
        "a.b.c": REFUSED,
        TokenKey(b"x" * 64, now_s=world.time).issue("home", "meters", UPDATE): REFUSED,
        world.token(stream="other"): REFUSED,
        world.token(scope="other"): REFUSED,
        expired: EXPIRED,
        expired_table: EXPIRED,
    }
    for token, code in wrong.items():
        for segment, table in ((SEGMENT, TABLE), ("home/absent/0.#epoch.0", "home/absent_kvtable/0.#epoch.0")):
            for command in commands(token, segment, table):
                reply = await world.peer.ask(command)
                assert reply == wire.AuthTokenCheckFailed(7, "", code), (type(command), token, reply)
    info = await world.peer.ask(wire.GetStreamSegmentInfo(8, SEGMENT, world.token(READ)))
    assert info.exists
    assert not info.is_sealed


async def test_read_token_permits_only_reads(world: World) -> None:
    for command in commands(world.token(READ)):
        if TABLE in dict(acts_of(command)):
            command = msgspec.structs.replace(command, token=world.token(READ, stream="table_kvtable"))
        if isinstance(command, wire.ReadSegment):
            continue  # it would wait at the tail
        reply = await world.peer.ask(command)
        refused = isinstance(reply, wire.AuthTokenCheckFailed)
        assert refused is (token_permission(type(command)) is UPDATE), (command, reply)


async def test_merge_requires_rights_on_both_segments(world: World) -> None:
    other = "home/diary/0.#epoch.0"
    await world.peer.ask(wire.CreateSegment(3, other, 0, 0, world.key.master()))
    for command in (
        wire.MergeSegments(7, SEGMENT, other, world.token()),
        wire.MergeSegments(7, other, SEGMENT, world.token()),
        wire.MergeSegmentsBatch(7, SEGMENT, (SEGMENT + "#transaction.x", other), world.token()),
    ):
        assert await world.peer.ask(command) == wire.AuthTokenCheckFailed(7, "", REFUSED)


async def test_append_after_token_expiry_is_rejected_and_closes_the_connection(world: World) -> None:
    peer = world.peer
    assert isinstance(await peer.ask(wire.SetupAppend(7, WRITER, SEGMENT, world.token())), wire.AppendSetup)
    data = frame_events([b"x"])
    world.time.now += 599
    for number in (1, 2):
        peer.send(wire.AppendBlockEnd(WRITER, len(data), data, 1, number, 9))
    assert [(await peer.receive()).event_number for _ in range(2)] == [1, 2]
    world.time.now += 1
    for number in (3, 4):
        peer.send(wire.AppendBlockEnd(WRITER, len(data), data, 1, number, 9))
    assert await peer.receive() == wire.AuthTokenCheckFailed(9, "", EXPIRED)
    try:
        while True:
            assert isinstance(await peer.receive(), wire.AuthTokenCheckFailed)
    except ConnectionError:
        pass  # the connection has ended
    again = await connect(world.store.address)
    setup = await again.ask(wire.SetupAppend(7, WRITER, SEGMENT, world.token()))
    assert setup.last_event_number == 2
    info = await again.ask(wire.GetStreamSegmentInfo(8, SEGMENT, world.token(READ)))
    assert info.write_offset == 2 * len(data)
    again.close()


async def test_cached_token_expires(world: World) -> None:
    token = world.token(READ)
    request = wire.GetStreamSegmentInfo(7, SEGMENT, token)
    assert isinstance(await world.peer.ask(request), wire.StreamSegmentInfo)
    world.time.now += 600
    assert await world.peer.ask(request) == wire.AuthTokenCheckFailed(7, "", EXPIRED)
    read = wire.ReadSegment(SEGMENT, 0, 100, token, 8)
    assert await world.peer.ask(read) == wire.AuthTokenCheckFailed(8, "", EXPIRED)


@pytest.mark.parametrize("step_s", [86_400, -86_400])
async def test_changed_wall_clock_does_not_change_a_tokens_lifetime(world: World, step_s: int) -> None:
    world.key.now_s = lambda: world.time.now + world.step_s
    token = world.token()
    request = wire.GetStreamSegmentInfo(7, SEGMENT, token)
    assert isinstance(await world.peer.ask(request), wire.StreamSegmentInfo)
    assert isinstance(await world.peer.ask(wire.SetupAppend(7, WRITER, SEGMENT, token)), wire.AppendSetup)
    world.step_s = step_s
    world.time.now += 599
    assert isinstance(await world.peer.ask(request), wire.StreamSegmentInfo)
    assert isinstance(await world.peer.append([b"x"], 1), wire.DataAppended)
    world.time.now += 1
    assert await world.peer.ask(request) == wire.AuthTokenCheckFailed(7, "", EXPIRED)
    assert isinstance(await world.peer.append([b"x"], 2), wire.AuthTokenCheckFailed)


async def test_rejected_setup_leaves_no_session(world: World) -> None:
    peer = world.peer
    assert isinstance(await peer.ask(wire.SetupAppend(7, WRITER, SEGMENT, world.token())), wire.AppendSetup)
    refused = await peer.ask(wire.SetupAppend(7, WRITER, SEGMENT, world.token(READ)))
    assert refused == wire.AuthTokenCheckFailed(7, "", REFUSED)
    data = frame_events([b"x"])
    peer.send(wire.AppendBlockEnd(WRITER, len(data), data, 1, 1, 9))
    assert await peer.closed()


async def test_wrong_token_fails_only_its_request(world: World) -> None:
    peer = world.peer
    strange = ["x" * 60_000, "é" * 20_000, "..", "\x00", "[" * 60_000]
    peer.send(*(wire.GetStreamSegmentInfo(n, SEGMENT, token) for n, token in enumerate(strange)))
    peer.send(wire.GetStreamSegmentInfo(99, SEGMENT, world.token(READ)))
    for number in range(len(strange)):
        assert await peer.receive() == wire.AuthTokenCheckFailed(number, "", REFUSED)
    assert (await peer.receive()).request_id == 99


async def test_requests_inside_the_process_are_checked(world: World) -> None:
    reply = await world.store.exchange(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
    assert reply == wire.AuthTokenCheckFailed(1, "", REFUSED)


@pytest.fixture
def _three_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.server.service.TOKENS_CACHED", 3)


@pytest.mark.usefixtures("_three_tokens")
async def test_token_cache_is_bounded(world: World) -> None:
    for number in range(10):
        world.time.now += 1
        await world.peer.ask(wire.GetStreamSegmentInfo(number, SEGMENT, world.token()))
    assert len(world.store._service.access._good) <= 3


async def test_store_without_a_key_accepts_all_tokens(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (_, peer):
        for token in ("", "nonsense"):
            reply = await peer.ask(wire.GetStreamSegmentInfo(1, SEGMENT, token))
            assert isinstance(reply, wire.NoSuchSegment)


# --- only the controller may use the space reserved for a full disk -------------------------------------------

OF_THE_RESERVE = ["home/table_kvtable/0.#epoch.0", "home/_RGgroup_kvtable/0.#epoch.0", "_system/_tables/work"]


def to_free_space(table: str, token: str = "") -> wire.UpdateTableToFreeSpace:
    return wire.UpdateTableToFreeSpace(7, table, token, (WireTableEntry(b"k", NO_VERSION, b"v"),), True)


@pytest.mark.parametrize("table", OF_THE_RESERVE)
async def test_reserve_is_not_usable_over_the_network_without_access_control(tmp_path: Path, table: str) -> None:
    async with open_store(tmp_path) as (store, peer):
        peer.send(to_free_space(table))
        with pytest.raises(ConnectionResetError):
            await peer.receive()
        read = wire.ReadTable(8, table, "", (WireTableKey(b"k"),))
        other = await connect(store.address)
        assert isinstance(await other.ask(read), wire.NoSuchSegment)
        other.close()
        assert isinstance(await store.exchange(to_free_space(table)), wire.TableEntriesUpdated), "the controller may"


@pytest.mark.parametrize("table", OF_THE_RESERVE)
async def test_reserve_is_only_usable_with_the_servers_token(tmp_path: Path, table: str) -> None:
    key = TokenKey(b"k" * 64)
    async with open_store(tmp_path, tokens=key) as (store, peer):
        scope, name, _ = table.split("/", 2)
        token = key.issue(scope, name, Permission.READ_UPDATE)
        assert isinstance(await store.exchange(to_free_space(table, token)), wire.AuthTokenCheckFailed)
        assert isinstance(await store.exchange(to_free_space(table, key.master())), wire.TableEntriesUpdated)
        peer.send(to_free_space(table, key.master()))  # not even with this token over the network
        with pytest.raises(ConnectionResetError):
            await peer.receive()
