"""Any server of a cluster is the controller to its clients, whichever has the active one."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from nadi.client.aio import StreamManager
from nadi.cluster.proxy.active import Addresses
from nadi.errors import StreamNotSealedError, UnavailableError
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import METHODS, path
from tests.client.test_moving_containers import MOVES, USERS, User, check_events
from tests.keda.support import Keda

from .servers import ServerOfCluster, cluster

pytestmark = pytest.mark.uvloop


async def call(server: ServerOfCluster, rpc: str, request: Any, timeout_s: float = 60) -> Any:
    kind, reply = METHODS[rpc]
    async with grpc.aio.insecure_channel(server.addresses.rpc) as channel:
        method = channel.unary_unary(
            path(rpc), request_serializer=kind.SerializeToString, response_deserializer=reply.FromString
        )
        return await method(request, timeout=timeout_s)


async def refused(server: ServerOfCluster, rpc: str, request: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(server, rpc, request)
    return caught.value.code(), caught.value.details()


# --- everything, of either ----------------------------------------------------------------------------


async def uses_everything(manager: StreamManager, scope: str) -> None:
    await manager.create_scope(scope)
    await manager.create_stream(scope, "events", 3)
    writer = await manager.create_writer(scope, "events")
    for number in range(100):
        writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
    await writer.flush()
    segments = await manager.current_segments(scope, "events")
    await manager.scale_stream(
        scope, "events", [one.segment_id for one in segments], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)]
    )
    for number in range(100, 200):
        writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
    await writer.flush()
    await writer.close()
    with pytest.raises(StreamNotSealedError):
        await manager.delete_stream(scope, "events")
    await manager.seal_stream(scope, "events")
    reader = await manager.create_reader(scope, "events")
    found: list[bytes] = []
    while (block := await reader.next_block(60)) is not None:
        found += block[1].events()
    reader.close()
    assert sorted(int(event.split()[1]) for event in found) == list(range(200))
    assert await manager.list_streams(scope) == ["events"]
    assert await manager.delete_stream(scope, "events")
    assert await manager.list_streams(scope) == []
    await manager.delete_scope(scope)


async def test_a_controller_that_may_have_been_replaced_answers_nothing(tmp_path: Path) -> None:
    """Cut off from the store, it went on to answer from memory: a segment that another had scaled since had no
    successors, and its writers took the stream for sealed."""
    async with cluster(tmp_path) as made:
        scope = pb.ScopeInfo(scope="home")
        await call(made.other, "createScope", scope)
        made.active.is_leased = False
        for server in (made.active, made.other):
            code, details = await refused(server, "checkScopeExists", scope)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "another server may have the active controller by now" in details
        made.active.is_leased = True
        assert (await call(made.other, "checkScopeExists", scope)).exists


async def test_nor_does_it_say_that_something_is_not_there(tmp_path: Path) -> None:
    """It woke from a long pause, and told a writer that a stream which others had made since doesn't exist."""
    async with cluster(tmp_path) as made:
        stream = pb.StreamInfo(scope="home", stream="later")
        for is_leased, expected in ((False, grpc.StatusCode.UNAVAILABLE), (True, grpc.StatusCode.NOT_FOUND)):
            made.active.is_leased = is_leased
            for server in (made.active, made.other):
                assert (await refused(server, "getCurrentSegments", stream))[0] is expected


async def test_a_client_of_either_server_does_everything(tmp_path: Path) -> None:
    async with asyncio.timeout(120), cluster(tmp_path) as made:
        for server in made.servers:
            async with made.manager(server) as manager:
                await uses_everything(manager, server.name)


async def makes_and_deletes(user: User, manager: StreamManager) -> None:
    for number in itertools.count():
        if not user.goes_on():
            return
        await manager.create_stream("sc", f"made-{number}", 2)
        segments = await manager.current_segments("sc", f"made-{number}")
        await manager.scale_stream(
            "sc", f"made-{number}", [one.segment_id for one in segments], [(0.0, 0.2), (0.2, 1.0)]
        )
        assert f"made-{number}" in await manager.list_streams("sc")
        await manager.seal_stream("sc", f"made-{number}")
        await manager.delete_stream("sc", f"made-{number}")
        assert f"made-{number}" not in await manager.list_streams("sc")


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 1])
async def test_all_goes_on_while_the_controller_moves(number: int, tmp_path: Path) -> None:
    async with asyncio.timeout(150), cluster(tmp_path) as made, made.manager(made.servers[number]) as manager:
        await manager.create_scope("sc")
        users = [*USERS, makes_and_deletes]
        async with asyncio.TaskGroup() as tasks:
            all_users = [User(made) for _ in users]  # type: ignore[arg-type]
            for user, uses in zip(all_users, users, strict=True):
                tasks.create_task(uses(user, manager))  # type: ignore[arg-type]
            await asyncio.gather(*(user.rounds(2) for user in all_users))
            while made.moves < MOVES:
                await made.move_controller()
                await asyncio.gather(*(user.rounds(2) for user in all_users))
        assert await manager.list_streams("sc")


async def test_a_server_whose_controllers_server_was_killed_takes_over(tmp_path: Path) -> None:
    async with asyncio.timeout(120), cluster(tmp_path) as made, made.manager(made.other) as manager:
        await manager.create_scope("sc")
        await manager.create_stream("sc", "events", 1)
        writer = await manager.create_writer("sc", "events")
        gone, heir = made.active, made.other
        await gone.rpc.stop(0)  # from here on nobody is there
        await gone.rest.stop()
        code, text = await refused(heir, "checkScopeExists", pb.ScopeInfo(scope="sc"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "connect" in text
        assert gone.controller is not None
        await gone.controller.stop()
        gone.controller = None
        moving = asyncio.create_task(manager.create_stream("sc", "more", 1))
        for number in (0, 2):
            await made.move(number, heir)
        await heir.begin()
        assert await moving
        for number in range(20):
            writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
        await writer.flush()
        await writer.close()
        await check_events(manager, 20)


# --- what it says -------------------------------------------------------------------------------------


async def test_statuses_and_texts_are_the_same_at_either_server(tmp_path: Path) -> None:
    stream = pb.StreamInfo(scope="sc", stream="none")
    async with asyncio.timeout(90), cluster(tmp_path) as made:
        for rpc, request in (
            ("getCurrentSegments", stream),
            ("truncateStream", pb.StreamCut(streamInfo=stream)),
            ("checkStreamExists", stream),
            ("createScope", pb.ScopeInfo(scope="not/a/name")),
        ):
            told = []
            for server in (made.active, made.other):
                try:
                    told.append((await call(server, rpc, request)).SerializeToString())
                except grpc.aio.AioRpcError as error:
                    told.append((error.code(), error.details()))
            assert told[0] == told[1], rpc
        assert (await refused(made.other, "getCurrentSegments", stream))[0] is grpc.StatusCode.NOT_FOUND


async def test_a_call_is_not_passed_on_twice(tmp_path: Path) -> None:
    async with asyncio.timeout(90), cluster(tmp_path) as made:
        made.active.proxy.active(None)
        made.one.proxy.follow(made.two.addresses)
        made.two.proxy.follow(made.one.addresses)
        for server in made.servers:
            code, text = await refused(server, "createScope", pb.ScopeInfo(scope="sc"))
            assert code is grpc.StatusCode.UNAVAILABLE
            assert text == "the active controller was here and is elsewhere now: try again"


async def test_without_a_known_controller_a_call_is_refused_and_places_are_told(tmp_path: Path) -> None:
    async with asyncio.timeout(90), cluster(tmp_path) as made:
        segment = pb.SegmentId(streamInfo=pb.StreamInfo(scope="sc", stream="st"), segmentId=0)
        before = await call(made.active, "getURI", segment)
        made.active.proxy.active(None)
        for server in made.servers:
            server.proxy.follow(None)
            code, text = await refused(server, "createScope", pb.ScopeInfo(scope="sc"))
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "no server is known" in text
            assert await call(server, "getURI", segment) == before
            told = await call(server, "getControllerServerList", pb.ServerRequest())
            assert [(one.endpoint, one.port) for one in told.nodeURI] == [one.rpc_address for one in made.servers]


async def test_where_a_segment_is_that_nobody_has_is_unavailable(tmp_path: Path) -> None:
    async with asyncio.timeout(90), cluster(tmp_path) as made:

        def unknown(segment: str) -> tuple[str, int]:
            raise UnavailableError(f"nobody has {segment} now: try again")

        made.endpoint_of = unknown  # type: ignore[method-assign]
        other = ServerOfCluster(made, "three")
        await other.start()
        segment = pb.SegmentId(streamInfo=pb.StreamInfo(scope="sc", stream="st"), segmentId=0)
        assert (await refused(other, "getURI", segment)) == (
            grpc.StatusCode.UNAVAILABLE,
            "nobody has sc/st/0.#epoch.0 now: try again",
        )
        await other.stop()


# --- what lasts ---------------------------------------------------------------------------------------


async def test_a_watch_is_passed_on_and_ends_when_the_controller_moves(tmp_path: Path) -> None:
    async with asyncio.timeout(120), cluster(tmp_path) as made, made.manager(made.one) as manager:
        await manager.create_scope("sc")
        for server in made.servers:
            await manager.create_stream("sc", server.name, 1)
            async with grpc.aio.insecure_channel(server.addresses.rpc) as channel:
                changes = aiter(Keda(channel).watch(scope="sc", stream=server.name))
                assert (await anext(changes)).result is False
                writer = await manager.create_writer("sc", server.name)
                writer.write_event(b"some")
                await writer.close()
                assert (await anext(changes)).result is True
                await made.move_controller()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await anext(changes)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "another server has the active controller" in caught.value.details()


async def test_calls_that_wait_for_a_silent_server_end_when_another_takes_over(tmp_path: Path) -> None:
    came = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        with closing(writer):
            await reader.read()

    async with asyncio.timeout(90), cluster(tmp_path) as made:
        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        made.other.proxy.follow(Addresses(f"127.0.0.1:{port}"))
        waiting = asyncio.create_task(call(made.other, "createScope", pb.ScopeInfo(scope="sc")))
        await came.wait()
        begun = asyncio.get_running_loop().time()
        made.tell()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert asyncio.get_running_loop().time() - begun < 10  # it would wait for a minute
        listening.close()
        assert (await call(made.other, "createScope", pb.ScopeInfo(scope="sc"))).status == 0
