"""Every server of a cluster acts as the controller to its clients, whichever server has the active one."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from nadi.client.aio import StreamManager
from nadi.client.control.channel import open_channel
from nadi.client.control.security import Security
from nadi.cluster.proxy.active import FORWARDED, ActiveAddresses, ClusterKey
from nadi.cluster.proxy.request_proxy import RequestProxy
from nadi.controller.grpc.server import ForwardedStatus, RpcCall, add_answers, rpc_server
from nadi.errors import StreamNotSealedError, UnavailableError
from nadi.limits import RPC_STREAMS_MAX
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import externalscaler_pb2 as scaler
from nadi.wire.rpc.service import METHODS, path
from tests.client.test_moving_containers import MOVES, USERS, User, check_events
from tests.keda.support import Keda

from .servers import SECRET, LiveServers, ServerOfCluster, cluster

pytestmark = pytest.mark.uvloop


async def call(server: ServerOfCluster, rpc: str, request: Any, timeout_s: float = 60) -> Any:
    kind, reply = METHODS[rpc]
    async with grpc.aio.insecure_channel(server.addresses.rpc) as channel:
        method = channel.unary_unary(
            path(rpc), request_serializer=kind.SerializeToString, response_deserializer=reply.FromString
        )
        return await method(request, timeout=timeout_s)


async def refused(server: ServerOfCluster, rpc: str, request: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(server, rpc, request)
    return caught.value.code()


# --- all operations through either server -------------------------------------------------------------


async def use_all_operations(manager: StreamManager, scope: str) -> None:
    await manager.create_scope(scope)
    await manager.create_stream(scope, "events", 3)
    writer = await manager.create_writer(scope, "events")
    for number in range(100):
        writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
    await writer.flush()
    segments = await manager.current_segments(scope, "events")
    await manager.scale_stream(
        scope, "events", [segment.segment_id for segment in segments], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)]
    )
    for number in range(100, 200):
        writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
    await writer.flush()
    await writer.close()
    with pytest.raises(StreamNotSealedError):
        await manager.delete_stream(scope, "events")
    await manager.seal_stream(scope, "events")
    reader = await manager.create_reader(scope, "events")
    events: list[bytes] = []
    while (block := await reader.next_block(60)) is not None:
        events += block[1].events()
    reader.close()
    assert sorted(int(event.split()[1]) for event in events) == list(range(200))
    assert await manager.list_streams(scope) == ["events"]
    assert await manager.delete_stream(scope, "events")
    assert await manager.list_streams(scope) == []
    await manager.delete_scope(scope)


async def test_client_of_either_server_completes_all_operations(tmp_path: Path) -> None:
    async with asyncio.timeout(120), cluster(tmp_path) as made:
        for server in made.servers:
            async with made.manager(server) as manager:
                await use_all_operations(manager, server.name)


async def create_and_delete_streams(user: User, manager: StreamManager) -> None:
    for number in itertools.count():
        if not user.next_round():
            return
        await manager.create_stream("sc", f"made-{number}", 2)
        segments = await manager.current_segments("sc", f"made-{number}")
        await manager.scale_stream(
            "sc", f"made-{number}", [segment.segment_id for segment in segments], [(0.0, 0.2), (0.2, 1.0)]
        )
        assert f"made-{number}" in await manager.list_streams("sc")
        await manager.seal_stream("sc", f"made-{number}")
        await manager.delete_stream("sc", f"made-{number}")
        assert f"made-{number}" not in await manager.list_streams("sc")


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 1])
async def test_clients_continue_while_controller_moves(number: int, tmp_path: Path) -> None:
    async with asyncio.timeout(150), cluster(tmp_path) as made, made.manager(made.servers[number]) as manager:
        await manager.create_scope("sc")
        users = [*USERS, create_and_delete_streams]
        async with asyncio.TaskGroup() as tasks:
            all_users = [User(made) for _ in users]  # type: ignore[arg-type]
            for user, uses in zip(all_users, users, strict=True):
                tasks.create_task(uses(user, manager))  # type: ignore[arg-type]
            await asyncio.gather(*(user.rounds(2) for user in all_users))
            while made.moves < MOVES:
                await made.move_controller()
                await asyncio.gather(*(user.rounds(2) for user in all_users))
        assert await manager.list_streams("sc")


async def test_server_takes_over_from_killed_active_controller(tmp_path: Path) -> None:
    async with asyncio.timeout(120), cluster(tmp_path) as made, made.manager(made.other) as manager:
        await manager.create_scope("sc")
        await manager.create_stream("sc", "events", 1)
        writer = await manager.create_writer("sc", "events")
        dead, heir = made.active, made.other
        await dead.rpc.stop(0)  # from now on, the server is unreachable
        await dead.rest.stop()
        code = await refused(heir, "checkScopeExists", pb.ScopeInfo(scope="sc"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert dead.controller is not None
        await dead.controller.stop()
        dead.controller = None
        moving = asyncio.create_task(manager.create_stream("sc", "more", 1))
        for number in (0, 2):
            await made.move(number, heir)
        await heir.start_controller()
        assert await moving
        for number in range(20):
            writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
        await writer.flush()
        await writer.close()
        await check_events(manager, 20)


# --- replies and errors -------------------------------------------------------------------------------


async def test_statuses_and_messages_match_on_either_server(tmp_path: Path) -> None:
    stream = pb.StreamInfo(scope="sc", stream="none")
    async with asyncio.timeout(90), cluster(tmp_path) as made:
        for rpc, request in (
            ("getCurrentSegments", stream),
            ("truncateStream", pb.StreamCut(streamInfo=stream)),
            ("checkStreamExists", stream),
            ("createScope", pb.ScopeInfo(scope="not/a/name")),
        ):
            responses = []
            for server in (made.active, made.other):
                try:
                    responses.append((await call(server, rpc, request)).SerializeToString())
                except grpc.aio.AioRpcError as error:
                    responses.append((error.code(), error.details()))
            assert responses[0] == responses[1], rpc
        assert await refused(made.other, "getCurrentSegments", stream) is grpc.StatusCode.NOT_FOUND


async def test_forwarded_call_is_not_forwarded_again(tmp_path: Path) -> None:
    async with asyncio.timeout(90), cluster(tmp_path) as made:
        made.active.proxy.active(None)
        made.one.proxy.follow(made.two.addresses)
        made.two.proxy.follow(made.one.addresses)
        for server in made.servers:
            code = await refused(server, "createScope", pb.ScopeInfo(scope="sc"))
            assert code is grpc.StatusCode.UNAVAILABLE


async def test_unknown_controller_rejects_calls_but_returns_addresses(tmp_path: Path) -> None:
    async with asyncio.timeout(90), cluster(tmp_path) as made:
        segment = pb.SegmentId(streamInfo=pb.StreamInfo(scope="sc", stream="st"), segmentId=0)
        before = await call(made.active, "getURI", segment)
        made.active.proxy.active(None)
        for server in made.servers:
            server.proxy.follow(None)
            code = await refused(server, "createScope", pb.ScopeInfo(scope="sc"))
            assert code is grpc.StatusCode.UNAVAILABLE
            assert await call(server, "getURI", segment) == before
            responses = await call(server, "getControllerServerList", pb.ServerRequest())
            assert [(one.endpoint, one.port) for one in responses.nodeURI] == [one.rpc_address for one in made.servers]


async def test_get_uri_of_unowned_segment_is_unavailable(tmp_path: Path) -> None:
    async with asyncio.timeout(90), cluster(tmp_path) as made:

        def unknown(segment: str) -> tuple[str, int]:
            raise UnavailableError(f"no server has {segment}")

        made.endpoint_of = unknown  # type: ignore[method-assign]
        other = ServerOfCluster(made, "three")
        await other.start()
        segment = pb.SegmentId(streamInfo=pb.StreamInfo(scope="sc", stream="st"), segmentId=0)
        assert await refused(other, "getURI", segment) is grpc.StatusCode.UNAVAILABLE
        await other.stop()


# --- long calls ---------------------------------------------------------------------------------------


async def test_forwarded_watch_ends_when_controller_moves(tmp_path: Path) -> None:
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


async def test_calls_that_wait_for_a_silent_server_end_when_another_takes_over(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        with closing(writer):
            await reader.read()

    async with asyncio.timeout(90), cluster(tmp_path) as made:
        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        made.other.proxy.follow(ActiveAddresses(f"127.0.0.1:{port}"))
        waiting = asyncio.create_task(call(made.other, "createScope", pb.ScopeInfo(scope="sc")))
        await arrived.wait()
        start = asyncio.get_running_loop().time()
        made.announce()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert asyncio.get_running_loop().time() - start < 10  # otherwise it would wait for a minute
        listening.close()
        assert (await call(made.other, "createScope", pb.ScopeInfo(scope="sc"))).status == 0


# --- forwarding between real gRPC servers -------------------------------------------------------------


HOST = "127.0.0.1"
KEY = ClusterKey(SECRET)
Answer = Callable[[RpcCall], Awaitable[Any]]


@asynccontextmanager
async def front_before(answer: Answer) -> AsyncIterator[str]:
    """Yield the address of a proxy in front of a server that answers by `answer`."""
    async with two_servers(answer) as (address, _):
        yield address


@asynccontextmanager
async def two_servers(answer: Answer) -> AsyncIterator[tuple[str, grpc.aio.Server]]:
    """Yield the proxy's address and the answering server."""
    async with AsyncExitStack() as parts:
        active, passing = rpc_server(), rpc_server()
        add_answers(active, answer)
        front = RequestProxy(LiveServers(lambda segment: (HOST, 1)), KEY)
        front.add_to(passing)
        ports = []
        for server in (active, passing):
            ports.append(server.add_insecure_port(f"{HOST}:0"))
            await server.start()
            parts.push_async_callback(server.stop, 0)
        front.follow(ActiveAddresses(f"{HOST}:{ports[0]}"))
        parts.push_async_callback(front.close)
        yield f"{HOST}:{ports[1]}", active


def create_scope(channel: grpc.aio.Channel) -> Any:
    """Return the callable for a call with request and reply as bytes."""
    return channel.unary_unary(path("createScope"))


async def test_broken_channel_is_replaced_once_certificates_have_changed(tmp_path: Path) -> None:
    """Otherwise it would connect with the certificates of its start until the servers restart."""
    opened: list[grpc.aio.Channel] = []

    async def counted(*arguments: Any) -> grpc.aio.Channel:
        opened.append(await open_channel(*arguments))
        return opened[-1]

    with socket.socket() as reserved:
        reserved.bind((HOST, 0))
        (tmp_path / "authority.pem").write_text("first")
        security = Security(trust_store=str(tmp_path / "authority.pem"))
        front = RequestProxy(LiveServers(lambda segment: (HOST, 1)), KEY, security, channels=counted)
        front.follow(ActiveAddresses(f"{HOST}:{reserved.getsockname()[1]}"))
        passing = rpc_server()
        front.add_to(passing)
        port = passing.add_insecure_port(f"{HOST}:0")
        await passing.start()
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            for content, channels in (("first", 1), ("first", 1), ("the second", 1), ("the second", 2)):
                if (tmp_path / "authority.pem").read_text() != content:
                    (tmp_path / "authority.pem").write_text(content)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await create_scope(channel)(b"", timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert len(opened) == channels
        await passing.stop(0)
        await front.close()


async def test_request_authorization_and_peer_are_forwarded() -> None:
    seen: list[tuple[bytes, dict[str, Any], float | None]] = []

    async def answer(call: RpcCall) -> Any:
        seen.append((call.raw, dict(call.invocation_metadata() or ()), call.time_remaining()))  # unset after the call
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)

    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        request = pb.ScopeInfo(scope="sc").SerializeToString()
        metadata = (("authorization", "Basic abc"), ("other", "x" * 20_000))
        reply = await create_scope(channel)(request, metadata=metadata, timeout=50)
        assert pb.CreateScopeStatus.FromString(reply).status == pb.CreateScopeStatus.SCOPE_EXISTS
    ((raw, received, left_s),) = seen
    assert raw == request
    assert received["authorization"] == "Basic abc"
    assert "other" not in received
    peer = KEY.proven(received[FORWARDED])
    assert peer is not None
    assert peer.startswith(f"ipv4:{HOST}:")
    assert left_s is not None
    assert 10 < left_s < 50.3  # forwarding rounds the remaining time up


async def test_forwarded_peer_needs_proof_of_cluster_key() -> None:
    peers: list[str] = []

    async def answer(call: RpcCall) -> Any:
        peers.append(call.peer())
        return b""

    async with asyncio.timeout(60), AsyncExitStack() as parts:
        front = RequestProxy(LiveServers(lambda segment: (HOST, 1)), KEY)
        server = rpc_server()
        add_answers(server, answer, front.peer_of)
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        parts.push_async_callback(server.stop, 0)
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            for proof in (KEY.proof("ipv4:10.0.0.7:1"), ClusterKey(bytes(32)).proof("ipv4:10.0.0.7:1"), "nonsense"):
                await create_scope(channel)(b"", metadata=((FORWARDED, proof),))
    assert peers[0] == "ipv4:10.0.0.7:1"
    assert all(peer.startswith(f"ipv4:{HOST}:") for peer in peers[1:])


async def test_large_answers_and_requests_pass() -> None:
    large = bytes(range(256)) * (40 << 10)  # 10 MiB

    async def answer(call: RpcCall) -> Any:
        return large if len(call.raw) == 2_000_000 else b"small"

    async with asyncio.timeout(60), front_before(answer) as address:
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            assert await create_scope(channel)(bytes(2_000_000)) == large


async def test_deadline_or_cancellation_ends_forwarded_call() -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def answer(call: RpcCall) -> Any:
        arrived.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        timeout_s = 0.3
        while not arrived.is_set():  # a slow machine may need longer
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await create_scope(channel)(b"", timeout=timeout_s)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            timeout_s *= 2
        await ended.wait()
        arrived.clear()
        ended.clear()
        waiting = create_scope(channel)(b"")
        await arrived.wait()
        waiting.cancel()  # as when a client disconnects
        await ended.wait()


async def test_more_calls_than_one_connection_carries_are_passed_on() -> None:
    count, under_way, all_there = 2 * RPC_STREAMS_MAX + 50, 0, asyncio.Event()

    async def answer(call: RpcCall) -> Any:
        nonlocal under_way
        under_way += 1
        if under_way == count:
            all_there.set()
        await all_there.wait()
        return b"done"

    async with asyncio.timeout(60), front_before(answer) as address, AsyncExitStack() as parts:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await parts.enter_async_context(grpc.aio.insecure_channel(address, own))
            for _ in range(-(-count // RPC_STREAMS_MAX))
        ]
        calls = [create_scope(channels[number // RPC_STREAMS_MAX])(b"") for number in range(count)]
        assert await asyncio.gather(*calls) == [b"done"] * count


async def test_each_reply_of_a_watch_is_passed_on_when_it_comes() -> None:
    more = asyncio.Event()

    async def answer(call: RpcCall) -> Any:
        for active in (False, True):
            await call.write(scaler.IsActiveResponse(result=active))
            await more.wait()

    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        replies = aiter(channel.unary_stream(path("StreamIsActive"))(b""))
        assert scaler.IsActiveResponse.FromString(await anext(replies)).result is False
        more.set()
        assert scaler.IsActiveResponse.FromString(await anext(replies)).result is True
        assert [reply async for reply in replies] == []


async def test_a_server_that_stops_in_the_middle_of_a_call_is_unavailable() -> None:
    """After UNKNOWN, the official Python client stalls, and other clients don't retry."""
    arrived = asyncio.Event()

    async def answer(call: RpcCall) -> Any:
        arrived.set()
        await asyncio.sleep(60)

    async with (
        asyncio.timeout(60),
        two_servers(answer) as (address, active),
        grpc.aio.insecure_channel(address) as channel,
    ):
        waiting = asyncio.ensure_future(create_scope(channel)(b""))
        await arrived.wait()
        await active.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND])
async def test_codes_of_broken_connections_become_unavailable(code: grpc.StatusCode) -> None:
    async def answer(call: RpcCall) -> Any:
        raise ForwardedStatus(code, "reason")

    expected = code if code is grpc.StatusCode.NOT_FOUND else grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create_scope(channel)(b"")
        assert (caught.value.code(), caught.value.details()) == (expected, "reason")
