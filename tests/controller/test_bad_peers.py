"""gRPC under partial calls, too large or too many calls, and a flood from one peer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import nadi
from nadi import limits
from nadi.access.fair_shares import LoopTurns
from nadi.client import StreamManager
from nadi.controller.grpc import server, service
from nadi.controller.grpc.server import RpcCall, add_answers, add_controller, rpc_server
from nadi.controller.state.records import StreamConfigRecord
from nadi.limits import RPC_MESSAGE_MAX_BYTES, RPC_STARTS_A_TURN, RPC_WORK_TIMES
from nadi.standalone import EmbeddedServer
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import path
from tests.controller.fake_store import FakeStore
from tests.controller.support import new_controller
from tests.support.waiting import until, until_async

from .support import STREAM, settle, with_stream


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    controller = new_controller(FakeStore())
    await controller.start()
    server = rpc_server()
    add_controller(server, controller)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        await controller.stop()


async def code_of(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_call_without_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RPC_MESSAGE_TIMEOUT_S", 0.3)

    async def never() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        async with asyncio.timeout(50):
            assert await code_of(channel.stream_unary(path("createScope"))(never())) is grpc.StatusCode.UNAVAILABLE
        monkeypatch.setattr(limits, "RPC_MESSAGE_TIMEOUT_S", 60.0)
        scope = pb.ScopeInfo(scope="s").SerializeToString()
        assert await code_of(channel.unary_unary(path("createScope"))(scope)) is grpc.StatusCode.OK


async def test_silent_calls_of_one_address_leave_capacity_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RPC_AT_ONCE", 20)
    monkeypatch.setattr(limits, "RPC_REFUSED_AT_ONCE", 100)

    async with served() as address:
        port = int(address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        fields = {
            ":path": path("createScope"),
            ":authority": "x",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        head = b"\x83\x86" + b"".join(
            bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in fields.items()
        )
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2_frame(4, 0, b""))
        writer.write(b"".join(_http2_frame(1, 2 * n + 1, head) for n in range(90)))
        refused = b""
        while b"grpc-status" not in refused:
            refused += await asyncio.wait_for(reader.read(1 << 16), 60)
        async with grpc.aio.insecure_channel(address) as channel:
            scope = pb.ScopeInfo(scope="s").SerializeToString()
            call = channel.unary_unary(path("createScope"))(scope, timeout=60)
            assert await code_of(call) is grpc.StatusCode.OK
        writer.close()


def _http2_frame(kind: int, stream: int, payload: bytes) -> bytes:
    flags = 4 * (kind == 1)  # END_HEADERS
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def test_a_call_that_is_too_large_is_refused() -> None:
    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(path("createScope"))
        assert await code_of(call(bytes(RPC_MESSAGE_MAX_BYTES + 1))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await code_of(call(bytes(RPC_MESSAGE_MAX_BYTES - 100))) is grpc.StatusCode.INVALID_ARGUMENT


async def test_concurrently_received_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests wait outside or are rejected in the end; small requests that have arrived are not delayed."""
    monkeypatch.setattr(limits, "RPC_RECEIVING_BYTES", 2 * RPC_MESSAGE_MAX_BYTES)
    monkeypatch.setattr(limits, "RPC_MESSAGE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(limits, "RPC_MEMORY_TIMEOUT_S", 0.5)
    read, most, go = 0, 0, asyncio.Event()
    received = server._received

    async def counted(requests: AsyncIterator[bytes]) -> bytes:
        nonlocal read, most
        read += 1
        most = max(most, read)
        try:
            raw = await received(requests)
            await go.wait()
            return raw
        finally:
            read -= 1

    monkeypatch.setattr(server, "_received", counted)

    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(path("createScope"))
        calls = [asyncio.create_task(code_of(call(bytes(RPC_MESSAGE_MAX_BYTES - 100)))) for _ in range(10)]
        async with asyncio.timeout(60):
            while sum(task.done() for task in calls) < 8:  # noqa: ASYNC110 - they are refused elsewhere
                await asyncio.sleep(0.01)
            monkeypatch.setattr(limits, "RPC_MEMORY_TIMEOUT_S", 60.0)  # the two are processed one after the other
            go.set()
            codes = [await task for task in calls]
        assert codes.count(grpc.StatusCode.UNAVAILABLE) == 8
        assert codes.count(grpc.StatusCode.INVALID_ARGUMENT) == 2
        assert most == 2
        scope = pb.ScopeInfo(scope="s").SerializeToString()
        assert await code_of(call(scope)) is grpc.StatusCode.OK


async def test_concurrently_processed_large_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RPC_WORK_BYTES", 2 * RPC_WORK_TIMES * 100_000)
    monkeypatch.setattr(limits, "RPC_MEMORY_TIMEOUT_S", 60.0)
    working, most, finish = 0, 0, asyncio.Event()

    async def check_scope_exists(self: Any, request: Any) -> Any:
        nonlocal working, most
        working += 1
        most = max(most, working)
        if len(request.scope) > 10:
            await finish.wait()
        working -= 1
        return pb.ExistsResponse(exists=False)

    monkeypatch.setattr(service.Service, "check_scope_exists", check_scope_exists)

    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(path("checkScopeExists"))
        large = pb.ScopeInfo(scope="x" * 99_000).SerializeToString()
        calls = [asyncio.create_task(code_of(call(large))) for _ in range(10)]
        async with asyncio.timeout(60):
            while working < 2:  # noqa: ASYNC110 - it is counted elsewhere
                await asyncio.sleep(0.01)
            small = pb.ScopeInfo(scope="s").SerializeToString()
            assert await code_of(call(small)) is grpc.StatusCode.OK, "a small request does not wait"
            assert most <= 3
            finish.set()
            assert {await task for task in calls} == {grpc.StatusCode.OK}


async def test_calls_start_a_few_per_turn_in_rotation_of_peers() -> None:
    turns, order = LoopTurns(RPC_STARTS_A_TURN), list[str]()

    async def call(peer: str) -> None:
        await turns.wait_for_turn(peer)
        order.append(peer)

    flood = [asyncio.create_task(call("flood")) for _ in range(500)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = len(order)
    good = asyncio.create_task(call("good"))
    await asyncio.wait_for(good, 60)
    assert len(order) - before <= 4 * RPC_STARTS_A_TURN, "it did not wait for all earlier calls"
    seen = [len(order)]
    while len(order) < 501:
        await asyncio.sleep(0)
        seen.append(len(order))
    assert max(b - a for a, b in itertools.pairwise(seen)) <= RPC_STARTS_A_TURN
    flood[0].cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_work_that_asks_for_another_turn_waits_for_it() -> None:
    turns, done = LoopTurns(2), list[int]()

    def work() -> bool:
        done.append(1)
        if len(done) < 100:
            turns.ask("peer", work)
        return True

    turns.ask("peer", work)
    seen = [len(done)]
    while len(done) < 100:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert max(b - a for a, b in itertools.pairwise([0, *seen])) <= 2


async def test_cancelled_calls_leave_their_turns_to_others() -> None:
    turns = LoopTurns(1)
    waiting = [asyncio.create_task(turns.wait_for_turn(f"peer {n}")) for n in range(10)]
    await asyncio.sleep(0)
    for task in waiting[1:9]:
        task.cancel()
    await asyncio.wait_for(waiting[9], 60)
    await asyncio.gather(*waiting, return_exceptions=True)


def test_connections_are_limited_and_calls_continue(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment={"NADI_LIMITS": "rpc_connections_max=10"}) as server:
        host, port = server.controller_uri.removeprefix("tcp://").split(":")
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            idle = [socket.create_connection((host, int(port)), 60) for _ in range(30)]
            refused = 0
            for each in idle:
                each.settimeout(60)
                try:
                    refused += each.recv(100) == b""  # accepted connections receive the server's settings
                except ConnectionError:
                    refused += 1
                except TimeoutError:
                    pass
            assert refused >= 20
            manager.create_scope("t")
            for each in idle:
                each.close()


# --- idle connections don't lock others out: gRPC closes them ---------------------------------------


pytestmark = pytest.mark.timeout(300)
MOST = 40
LIMITS = {"NADI_LIMITS": f"rpc_connections_max={MOST},rpc_idle_s=1,tls_handshake_s=1,rpc_keepalive_s=900"}
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def call() -> bytes:
    """Return the head of a call, which then waits for its message."""
    fields = {
        ":path": "/io.pravega.controller.stream.api.grpc.v1.ControllerService/pingTransaction",
        ":authority": "localhost:9090",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"\x83\x86" + b"".join(  # POST, http; then literals
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return len(block).to_bytes(3, "big") + bytes([1, 4, 0, 0, 0, 1]) + block


def connected(server: EmbeddedServer, stack: ExitStack, count: int, greeting: bytes) -> list[socket.socket]:
    port = int(server.controller_uri.rpartition(":")[2])
    sockets = []
    for _ in range(count):
        sockets.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)))
        sockets[-1].sendall(greeting)
        sockets[-1].setblocking(False)
    return sockets


def has_ended(one: socket.socket) -> bool:
    try:
        while one.recv(1000):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("greeting", [b"", HELLO], ids=["nothing", "a hello"])
def test_idle_connections_are_evicted_for_new_ones(greeting: bytes, tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        silent = connected(server, stack, 3 * MOST, greeting)
        with StreamManager(server.controller_uri) as manager:
            assert manager.create_scope("home")
        until(lambda: all(map(has_ended, silent)))


def test_connections_with_a_call_in_progress_stay(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        asking = connected(server, stack, 5, HELLO + call())
        silent = connected(server, stack, 5, HELLO)
        until(lambda: all(map(has_ended, silent)))
        assert not any(map(has_ended, asking))


# --- callers that disconnect just as they are answered -----------------------------------------------


CALLERS, CALLS = 16, 100


async def test_disconnected_callers_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answered = 0

    async def answer(call: RpcCall) -> pb.CreateScopeStatus:
        nonlocal answered
        await asyncio.sleep(0.002)
        answered += 1
        return pb.CreateScopeStatus()

    server, patience = rpc_server(), random.Random(1)
    port = server.add_insecure_port("127.0.0.1:0")
    add_answers(server, answer)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        create_scope = channel.unary_unary(path("createScope"))

        async def caller() -> None:
            for number in range(CALLS):  # ever more patient, as a busy machine takes longer to answer
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await create_scope(b"", timeout=0.001 + patience.random() * 0.003 * (10 + number))

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await server.stop(None)
    assert answered
    assert not [record.getMessage() for record in caplog.records]


async def test_other_grpc_messages_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    rpc_server()
    logging.getLogger("grpc._cython.cygrpc").error("something else", exc_info=ValueError("something else"))
    of_grpc = [record.getMessage() for record in caplog.records if record.name == "grpc._cython.cygrpc"]
    assert of_grpc == ["something else"]  # other tests' servers may log meanwhile


# --- callers that disconnect while queued leave nothing behind ---------------------------------------


async def test_caller_that_disconnects_while_queued_changes_nothing() -> None:
    async with with_stream() as (controller, store, _):
        await settle()
        before = len(asyncio.all_tasks())
        async with controller._flow.lock(STREAM):  # as a long workflow does
            callers = [
                asyncio.create_task(
                    controller.update_stream(STREAM, StreamConfigRecord(min_segments=2, tags=(f"t{n}",)))
                )
                for n in range(200)
            ]
            await settle()
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            await settle()
            assert len(asyncio.all_tasks()) == before, "no task is waiting for the stream any longer"
            store.log.clear()
        await settle()
        assert not store.log
        assert not (await controller.stream(STREAM)).config.tags
        await controller.update_stream(STREAM, StreamConfigRecord(min_segments=2, tags=("mine",)))


async def test_started_workflow_continues_without_its_caller() -> None:
    async with with_stream() as (controller, store, _):
        caller = asyncio.create_task(
            controller.update_stream(STREAM, StreamConfigRecord(min_segments=2, tags=("mine",)))
        )
        store.log.clear()
        await until_async(lambda: bool(store.log))
        caller.cancel()
        await settle()
        assert (await controller.stream(STREAM)).config.tags == ("mine",)
