"""Calls of the controller's RPCs over a real gRPC server, before a store in memory or before the whole server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from nadi.config import ServerConfig
from nadi.controller.grpc.server import SERVER_OPTIONS, add_controller
from nadi.standalone.server import Server
from nadi.wire.rpc.service import METHODS, OWN_METHODS, path

from .fake_store import FakeStore
from .support import new_controller

Call = Callable[[str, Any], Awaitable[Any]]


@asynccontextmanager
async def calls(address: str) -> AsyncIterator[Call]:
    async with grpc.aio.insecure_channel(address) as channel:

        async def call(rpc: str, request: Any) -> Any:
            kind, reply = (METHODS | OWN_METHODS)[rpc]
            assert isinstance(request, kind)
            method = channel.unary_unary(
                path(rpc), request_serializer=kind.SerializeToString, response_deserializer=reply.FromString
            )
            return await method(request, timeout=60)

        yield call


def over_grpc(test: Callable[[Call, FakeStore], Awaitable[None]]) -> None:
    """Run a test over a controller whose store is in memory and can be told to die."""

    async def main() -> None:
        store = FakeStore()
        controller = new_controller(store)
        await controller.start()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add_controller(server, controller)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with calls(f"127.0.0.1:{port}") as call:
            await test(call, store)
        await server.stop(None)
        await controller.stop()

    with pytest.MonkeyPatch.context() as patient:  # for a machine that pauses
        patient.setattr("nadi.limits.RPC_MESSAGE_TIMEOUT_S", 60.0)
        asyncio.run(main())


def _address(server: Server) -> str:
    return server.controller_uri.removeprefix("tcp://")


def over_server(folder: Path, test: Callable[[Call, Server], Awaitable[None]]) -> None:
    """Run a test over a whole server with its data in `folder`."""

    async def main() -> None:
        async with (
            Server(ServerConfig(data=folder, store_port=0, port=0, containers=1)) as server,
            calls(_address(server)) as call,
        ):
            await test(call, server)

    asyncio.run(main())


async def code_of(awaitable: Awaitable[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    code = caught.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code
