"""What of a call the server with the active controller gets, and what comes back: a real gRPC server in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from nadi.cluster.proxy.active import FORWARDED, Addresses, ClusterKey
from nadi.cluster.proxy.request_proxy import RequestProxy
from nadi.controller.grpc.server import Call, Refusal, add_answers, rpc_server
from nadi.limits import RPC_STREAMS_MAX
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import externalscaler_pb2 as scaler
from nadi.wire.rpc.service import path

from .servers import SECRET, Everybody

pytestmark = pytest.mark.uvloop

HOST = "127.0.0.1"
KEY = ClusterKey(SECRET)
Answer = Callable[[Call], Awaitable[Any]]


@asynccontextmanager
async def front_before(answer: Answer) -> AsyncIterator[str]:
    """The address of a server that passes everything on to one that answers so."""
    async with two_servers(answer) as (address, _):
        yield address


@asynccontextmanager
async def two_servers(answer: Answer) -> AsyncIterator[tuple[str, grpc.aio.Server]]:
    """Besides, the one that answers."""
    async with AsyncExitStack() as parts:
        active, passing = rpc_server(), rpc_server()
        add_answers(active, answer)
        front = RequestProxy(Everybody(lambda segment: (HOST, 1)), KEY)
        front.add_to(passing)
        ports = []
        for server in (active, passing):
            ports.append(server.add_insecure_port(f"{HOST}:0"))
            await server.start()
            parts.push_async_callback(server.stop, 0)
        front.follow(Addresses(f"{HOST}:{ports[0]}"))
        parts.push_async_callback(front.close)
        yield f"{HOST}:{ports[1]}", active


def create_scope(channel: grpc.aio.Channel) -> Any:
    """The call, whose request and reply are bytes."""
    return channel.unary_unary(path("createScope"))


async def test_the_request_and_who_asks_are_passed_on() -> None:
    seen: list[tuple[bytes, dict[str, Any], float | None]] = []

    async def answer(call: Call) -> Any:
        seen.append((call.raw, dict(call.invocation_metadata() or ()), call.time_remaining()))  # gone with the call
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)

    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        request = pb.ScopeInfo(scope="sc").SerializeToString()
        metadata = (("authorization", "Basic abc"), ("other", "x" * 20_000))
        reply = await create_scope(channel)(request, metadata=metadata, timeout=50)
        assert pb.CreateScopeStatus.FromString(reply).status == pb.CreateScopeStatus.SCOPE_EXISTS
    ((raw, told, left_s),) = seen
    assert raw == request
    assert told["authorization"] == "Basic abc"
    assert "other" not in told
    peer = KEY.proven(told[FORWARDED])
    assert peer is not None
    assert peer.startswith(f"ipv4:{HOST}:")
    assert left_s is not None
    assert 10 < left_s < 50.3  # the time that is left is rounded up where it is passed on


async def test_who_asks_is_believed_to_servers_of_the_cluster_only() -> None:
    peers: list[str] = []

    async def answer(call: Call) -> Any:
        peers.append(call.peer())
        return b""

    async with asyncio.timeout(60), AsyncExitStack() as parts:
        front = RequestProxy(Everybody(lambda segment: (HOST, 1)), KEY)
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

    async def answer(call: Call) -> Any:
        return large if len(call.raw) == 2_000_000 else b"small"

    async with asyncio.timeout(60), front_before(answer) as address:
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            assert await create_scope(channel)(bytes(2_000_000)) == large


async def test_a_deadline_ends_the_call_there_too() -> None:
    came, ended = asyncio.Event(), asyncio.Event()

    async def answer(call: Call) -> Any:
        came.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        timeout_s = 0.3
        while not came.is_set():  # a slow machine may need more to come so far
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await create_scope(channel)(b"", timeout=timeout_s)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            timeout_s *= 2
        await ended.wait()
        came.clear()
        ended.clear()
        waiting = create_scope(channel)(b"")
        await came.wait()
        waiting.cancel()  # as when a client leaves
        await ended.wait()


async def test_more_calls_than_one_connection_carries_are_passed_on() -> None:
    count, under_way, all_there = 2 * RPC_STREAMS_MAX + 50, 0, asyncio.Event()

    async def answer(call: Call) -> Any:
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

    async def answer(call: Call) -> Any:
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
    """Whatever gRPC says of it: after UNKNOWN the Python client stalls, and others don't try again."""
    came = asyncio.Event()

    async def answer(call: Call) -> Any:
        came.set()
        await asyncio.sleep(60)

    async with (
        asyncio.timeout(60),
        two_servers(answer) as (address, active),
        grpc.aio.insecure_channel(address) as channel,
    ):
        waiting = asyncio.ensure_future(create_scope(channel)(b""))
        await came.wait()
        await active.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND])
async def test_codes_of_broken_connections_are_not_passed_on(code: grpc.StatusCode) -> None:
    async def answer(call: Call) -> Any:
        raise Refusal(code, "so it is")

    expected = code if code is grpc.StatusCode.NOT_FOUND else grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(60), front_before(answer) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create_scope(channel)(b"")
        assert (caught.value.code(), caught.value.details()) == (expected, "so it is")
