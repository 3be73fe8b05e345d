"""A controller that has as many calls as it takes: the next waits for its turn, and is not told of a full disk."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from nadi.client.control.controller import ControllerClient
from nadi.errors import ClosedError, InvalidArgumentError, StorageFullError, UnavailableError
from nadi.wire.rpc import controller_pb2 as pb
from tests.support.waiting import until_async


class Slow(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers nothing until it is let go."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            await self.goes_on.wait()
            reply: bytes = pb.ExistsResponse(exists=True).SerializeToString()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)


def test_a_call_beyond_those_a_controller_takes_is_tried_again() -> None:
    async def run() -> None:
        server, slow = grpc.aio.server(maximum_concurrent_rpcs=1), Slow()
        server.add_generic_rpc_handlers((slow,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = ControllerClient(f"127.0.0.1:{port}", timeout_s=60)
        try:
            first, second = (asyncio.create_task(client.scope_exists("s")) for _ in range(2))
            await until_async(lambda: client.trouble is not None)
            assert isinstance(client.trouble, UnavailableError)
            assert not isinstance(client.trouble, StorageFullError)
            slow.goes_on.set()
            assert await first
            assert await second
        finally:
            await client.close()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), 120))


class Stopping(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Breaks the first call off, as a server does that is stopped, and answers the next."""

    def __init__(self) -> None:
        self.asked = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            self.asked += 1
            if self.asked == 1:
                await context.abort(grpc.StatusCode.CANCELLED)
            reply: bytes = pb.ExistsResponse(exists=True).SerializeToString()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)


def test_a_call_that_a_stopping_controller_breaks_off_is_made_again() -> None:
    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Stopping(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = ControllerClient(f"127.0.0.1:{port}", timeout_s=60)
        try:
            assert await client.scope_exists("s")
        finally:
            await client.close()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_client_that_is_closed_meanwhile_says_so() -> None:
    async def run() -> None:
        server, slow = grpc.aio.server(), Slow()
        server.add_generic_rpc_handlers((slow,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = ControllerClient(f"127.0.0.1:{port}", timeout_s=60)
        try:
            waiting = asyncio.create_task(client.scope_exists("s"))
            cancelled = asyncio.create_task(client.scope_exists("s"))
            await asyncio.sleep(0.1)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await client.close()
            with pytest.raises(ClosedError):
                await waiting
        finally:
            await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_request_that_is_too_large_is_told_so() -> None:
    async def run() -> None:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", 100)])
        server.add_generic_rpc_handlers((Slow(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = ControllerClient(f"127.0.0.1:{port}", timeout_s=60)
        try:
            with pytest.raises(InvalidArgumentError, match="larger than max"):
                await client.scope_exists("s" * 200)
        finally:
            await client.close()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), 120))
