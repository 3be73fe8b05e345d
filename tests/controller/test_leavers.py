"""Callers that leave just as they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import grpc
import pytest

from nadi.controller.grpc.server import Call, add_answers, rpc_server
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import path

CALLERS, CALLS = 16, 100


async def test_nothing_is_logged_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answered = 0

    async def answer(call: Call) -> pb.CreateScopeStatus:
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
            for _ in range(CALLS):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await create_scope(b"", timeout=0.001 + patience.random() * 0.03)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await server.stop(None)
    assert answered
    assert not [record.getMessage() for record in caplog.records]


async def test_what_else_grpc_says_stays(caplog: pytest.LogCaptureFixture) -> None:
    rpc_server()
    logging.getLogger("grpc._cython.cygrpc").error("something else", exc_info=ValueError("something else"))
    of_grpc = [record.getMessage() for record in caplog.records if record.name == "grpc._cython.cygrpc"]
    assert of_grpc == ["something else"]  # servers of other tests' threads may log meanwhile
