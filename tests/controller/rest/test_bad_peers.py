"""The REST port under halves of requests, crowds, and peers that take nothing: health is answered all the while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from nadi import limits
from nadi.access.budget import Budget
from nadi.config import ServerConfig
from nadi.controller.rest import server as rest_server
from nadi.controller.rest.endpoint import Api
from nadi.controller.rest.server import RestServer
from nadi.limits import KIB, MIB, PEERS_LEAST_BYTES, REST_BODY_MAX_BYTES, REST_SOCKET_BYTES
from nadi.observe.health import Status, leaf
from nadi.standalone.server import Server
from tests.support.peers import open_connection
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

HALF = b"GET /v1/scopes HTTP/1.1\r\nHost: x\r\nX-a: "
Halves = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch,
    app: Starlette | None = None,
    budget: Budget | None = None,
    controller: Any = None,
) -> AsyncIterator[RestServer]:
    if app is not None:
        monkeypatch.setattr(rest_server, "rest_app", lambda _: app)
    api = Api(lambda: leaf("nadi", Status.UP), None, controller, budget=budget or Budget())
    made = RestServer(api, "127.0.0.1", 0)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def address(made: RestServer) -> tuple[str, int]:
    host, _, port = made.uri.removeprefix("http://").rpartition(":")
    return host, int(port)


async def halves(made: RestServer, count: int) -> Halves:
    found = [await open_connection(*address(made)) for _ in range(count)]
    for _, writer in found:
        writer.write(HALF)
    return found


async def is_ready(made: RestServer) -> int:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(f"{made.uri}/v1/health/readiness")).status_code


async def test_half_requests_go_for_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_server, "REST_CONNECTIONS_OF_ADDRESS", 20)
    monkeypatch.setattr(limits, "REST_HEAD_TIMEOUT_S", 600.0)

    async with served(monkeypatch) as made:
        crowd = await halves(made, 60)
        for _ in range(5):
            assert await is_ready(made) == 200
        assert made.connections <= 20
        assert await asyncio.wait_for(crowd[0][0].read(), 60) == b""


async def test_half_a_request_has_a_deadline_also_if_it_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(limits, "PATROL_S", 0.05)

    async with served(monkeypatch) as made:
        ((reader, writer),) = await halves(made, 1)
        silent, _ = await open_connection(*address(made))
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(60):
            while not ended.done():
                writer.write(b"a")
                await asyncio.sleep(0.01)
        assert await asyncio.wait_for(silent.read(), 60) == b""
        monkeypatch.setattr(limits, "REST_HEAD_TIMEOUT_S", 60.0)
        assert await is_ready(made) == 200


async def test_health_is_answered_while_all_places_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_server, "REST_CONNECTIONS_OF_ADDRESS", 5)
    finish, at_work = asyncio.Event(), 0

    async def work(request: Request) -> Response:
        nonlocal at_work
        at_work += 1
        await finish.wait()
        return PlainTextResponse("done")

    async def health(request: Request) -> Response:
        return PlainTextResponse("true")

    app = Starlette(routes=[Route("/work", work), Route("/v1/health/readiness", health)])

    async with served(monkeypatch, app) as made, httpx.AsyncClient(timeout=60) as client:
        working = [asyncio.create_task(client.get(f"{made.uri}/work")) for _ in range(5)]
        await until_async(lambda: made.connections == at_work == 5)
        for _ in range(3):
            assert await is_ready(made) == 200
        async with httpx.AsyncClient(timeout=60) as other:
            assert (await other.get(f"{made.uri}/work")).status_code == 503
        finish.set()
        assert [(await task).text for task in working] == ["done"] * 5


async def test_an_answer_that_nobody_takes_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEND_TIMEOUT_S", 0.3)
    monkeypatch.setattr(limits, "PATROL_S", 0.05)
    made_pages = 0

    async def long_list(request: Request) -> Response:
        async def pages() -> AsyncIterator[bytes]:
            nonlocal made_pages
            while True:
                made_pages += 1
                yield bytes(64 * KIB)
                await asyncio.sleep(0)

        return StreamingResponse(pages())

    async with served(monkeypatch, Starlette(routes=[Route("/list", long_list)])) as made:
        _, writer = await open_connection(*address(made), limit=1024)
        writer.write(b"GET /list HTTP/1.1\r\nHost: x\r\n\r\n")
        await until_async(lambda: made_pages)
        await until_async(lambda: not made.connections)
        assert made_pages * 64 * KIB < 32 * MIB
        writer.close()


async def test_bodies_that_come_count_in_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_BODY_TIMEOUT_S", 1.0)

    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0))
    async with server:
        assert server._api is not None
        budget = server.store.budget = server._api.budget = Budget(4 * PEERS_LEAST_BYTES)
        host, _, port = server.rest_uri.removeprefix("http://").rpartition(":")
        head = b"POST /v1/scopes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        slow = [await open_connection(host, int(port)) for _ in range(30)]
        for _, writer in slow:
            writer.write(head % (REST_BODY_MAX_BYTES - 1) + b" " * (REST_BODY_MAX_BYTES // 2))
        await until_async(lambda: budget.peak_bytes >= 30 * KIB)
        await asyncio.sleep(0.2)  # more may come
        assert budget.peak_bytes <= budget.receiving.total_bytes + 30 * (PEERS_LEAST_BYTES + 2 * REST_SOCKET_BYTES)
        assert budget.peak_bytes < 30 * REST_BODY_MAX_BYTES // 2
        for _, writer in slow:
            writer.close()
        await until_async(lambda: not budget.held_bytes)
        monkeypatch.setattr(limits, "REST_BODY_TIMEOUT_S", 60.0)
        async with httpx.AsyncClient(timeout=60) as client:
            made = await client.post(
                f"{server.rest_uri}/v1/scopes",
                content=json.dumps({"scopeName": "s"}),
                headers={"content-type": "application/json"},
            )
            assert made.status_code == 201


def held_in(made: RestServer) -> int:
    """What its connections hold in truth."""
    found = 0
    for each in made._uvicorn.server_state.connections:
        assert isinstance(each, rest_server.RestProtocol)
        found += len(each._received) + len(each.conn.trailing_data[0])
        found += 0 if each.cycle is None else len(each.cycle.body)
    return found


CROWD = 12
KEPT_POST = b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (REST_BODY_MAX_BYTES - 1)


@pytest.mark.parametrize(
    ("sent", "least_bytes"),
    [
        (HALF + b"a" * 10 * KIB, 10 * KIB),
        (KEPT_POST + bytes(200 * KIB), PEERS_LEAST_BYTES),
        (b"GET /work HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n" * 5000, 14 * KIB),
    ],
    ids=["half a head", "a body that nobody reads", "requests in a row"],
)
async def test_all_that_came_counts_in_the_budget_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, least_bytes: int
) -> None:
    monkeypatch.setattr(limits, "REST_HEAD_TIMEOUT_S", 600.0)
    finish = asyncio.Event()

    async def work(request: Request) -> Response:
        await finish.wait()
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/work", work, methods=["GET", "POST"])])

    budget = Budget(4 * PEERS_LEAST_BYTES)
    pool = budget.receiving
    async with served(monkeypatch, app, budget) as made:
        crowd = [await open_connection(*address(made)) for _ in range(CROWD)]
        for _, writer in crowd:
            writer.write(sent)
        await until_async(lambda: pool.held_bytes >= CROWD * least_bytes)
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert held_in(made) <= pool.held_bytes
        assert pool.peak_bytes <= pool.total_bytes + CROWD * (PEERS_LEAST_BYTES + 2 * REST_SOCKET_BYTES)
        finish.set()
        for _, writer in crowd:
            writer.close()
        await until_async(lambda: not pool.held_bytes and not pool.waiting)


async def test_an_answered_body_is_held_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a connection that stays."""

    budget = Budget()
    app = Starlette(routes=[Route("/work", lambda _: PlainTextResponse("done"), methods=["POST"])])
    async with served(monkeypatch, app, budget) as made:
        reader, writer = await open_connection(*address(made))
        for _ in range(3):
            writer.write(b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000))
            assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
        await until_async(lambda: not budget.held_bytes)
        assert held_in(made) == 0
        assert budget.peak_bytes > 0
        writer.close()
