"""Calls of the controller's RPCs over a real gRPC server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from nadi.controller.controller import Controller
from nadi.controller.grpc.server import SERVER_OPTIONS, add_controller
from nadi.wire.rpc.service import METHODS, OWN_METHODS, path

from .fake_store import FakeStore
from .support import running

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


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Call, FakeStore, Controller]]:
    """Serve a controller's RPCs over an in-memory store that can be made to die."""
    store = FakeStore()
    with pytest.MonkeyPatch.context() as patient:  # for a slow machine
        patient.setattr("nadi.limits.RPC_MESSAGE_TIMEOUT_S", 60.0)
        async with running(store) as controller:
            server = grpc.aio.server(options=SERVER_OPTIONS)
            add_controller(server, controller)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            async with calls(f"127.0.0.1:{port}") as call:
                yield call, store, controller
            await server.stop(None)


async def code_of(awaitable: Awaitable[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    code = caught.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code
