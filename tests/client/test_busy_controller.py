"""A controller that has as many calls as it takes: the next waits for its turn, and is not told of a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from nadi.client.control.controller import ControllerClient
from nadi.errors import ClosedError, InvalidArgumentError, StorageFullError, UnavailableError
from nadi.wire.rpc import controller_pb2 as pb
from tests.support.waiting import until_async


class Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers once it is let go; breaks off the first call, as a server does that is stopped, if it `stops`."""

    def __init__(self, *, stops: bool = False) -> None:
        self.goes_on, self.stops = asyncio.Event(), stops

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            if self.stops:
                self.stops = False
                self.goes_on.set()
                await context.abort(grpc.StatusCode.CANCELLED)
            await self.goes_on.wait()
            reply: bytes = pb.ExistsResponse(exists=True).SerializeToString()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def answering(answers: Answers, **given: Any) -> AsyncIterator[ControllerClient]:
    server = grpc.aio.server(**given)
    server.add_generic_rpc_handlers((answers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient(f"127.0.0.1:{port}", timeout_s=60)
    try:
        async with asyncio.timeout(120):
            yield client
    finally:
        await client.close()
        await server.stop(0)


async def test_a_call_beyond_those_a_controller_takes_is_tried_again() -> None:
    async with answering(slow := Answers(), maximum_concurrent_rpcs=1) as client:
        first, second = (asyncio.create_task(client.scope_exists("s")) for _ in range(2))
        await until_async(lambda: client.trouble is not None)
        assert isinstance(client.trouble, UnavailableError)
        assert not isinstance(client.trouble, StorageFullError)
        slow.goes_on.set()
        assert await first
        assert await second


async def test_a_call_that_a_stopping_controller_breaks_off_is_made_again() -> None:
    async with answering(Answers(stops=True)) as client:
        assert await client.scope_exists("s")


async def test_a_client_that_is_closed_meanwhile_says_so() -> None:
    async with answering(Answers()) as client:
        waiting = asyncio.create_task(client.scope_exists("s"))
        cancelled = asyncio.create_task(client.scope_exists("s"))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await client.close()
        with pytest.raises(ClosedError):
            await waiting


async def test_a_request_that_is_too_large_is_told_so() -> None:
    async with answering(Answers(), options=[("grpc.max_receive_message_length", 100)]) as client:
        with pytest.raises(InvalidArgumentError, match="larger than max"):
            await client.scope_exists("s" * 200)
