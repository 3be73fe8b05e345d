"""The REST port under tiny pieces, endless bodies, and floods: each turn of the loop does a limited amount of work.

Work is counted, not timed: parser events, and requests started, between two turns of the loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from nadi import limits
from nadi.access.budget import Budget
from nadi.access.listener import bound_sockets
from nadi.config import ServerConfig
from nadi.controller.rest import endpoint
from nadi.controller.rest import server as rest_server
from nadi.controller.rest.endpoint import Api, encode
from nadi.controller.rest.server import RestServer, cut_portion
from nadi.limits import (
    KIB,
    MIB,
    PEERS_LEAST_BYTES,
    REST_BODY_MAX_BYTES,
    REST_MESSAGE_MAX_CHARS,
    REST_PORTION_BYTES,
    REST_PORTION_LINES,
    REST_SOCKET_BYTES,
    REST_STEPS_A_TURN,
)
from nadi.observe.health import HealthStatus, leaf
from nadi.standalone.server import Server
from tests.support.peers import open_connection
from tests.support.turns import MostInATurn
from tests.support.waiting import until_async

pytestmark = pytest.mark.uvloop

POST = b"POST /v1/scopes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the end, which may be a reset: the server does not wait for data that it rejected."""
    data_read = b""
    try:
        async with asyncio.timeout(60):
            while data := await reader.read(65_536):
                data_read += data
    except ConnectionError:
        pass
    return data_read


async def sent(made: Any, *pieces: bytes) -> bytes:
    reader, writer = await open_connection(*address(made))
    answer = asyncio.create_task(all_of(reader))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    response = await answer
    writer.close()
    return response


async def test_tiny_chunks_are_handled_a_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = MostInATurn()
    next_event = h11.Connection.next_event

    def counted(self: h11.Connection) -> Any:
        turn.count()
        return next_event(self)

    monkeypatch.setattr(h11.Connection, "next_event", counted)

    async with served(monkeypatch) as made, turn:
        answer = await sent(
            made, CHUNKED, b"1\r\na\r\n" * 10_000, b"0\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:100]
        assert turn.all > 10_000
        assert turn.most <= REST_STEPS_A_TURN * REST_PORTION_LINES
        assert await is_ready(made) == 200


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ((b"GET /ping HTTP/1.1\r\nHost: x\r\n", b"a:\r\n" * 25_000), 400),
        ((b"GET /ping HTTP/1.1\r\nHost: x\r\na: ", b"a" * 100_000), 400),
        ((CHUNKED, b"0\r\n", b"a:\r\n" * 25_000), 400),
        ((CHUNKED, b"1;", b"a" * 100_000), 400),
        ((POST + b"Content-Length: %d\r\n\r\n" % (REST_BODY_MAX_BYTES + 1),), 413),
        ((CHUNKED, b"%x\r\n" % (4 * REST_BODY_MAX_BYTES), b" " * 2 * REST_BODY_MAX_BYTES), 413),
        ((b"this is not HTTP\r\n\r\n",), 400),
    ],
    ids=["head lines", "a long header", "trailers", "a long extension", "a declared length", "payload", "no HTTP"],
)
async def test_oversize_request_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...], status: int
) -> None:
    async with served(monkeypatch) as made:
        assert (await sent(made, *pieces)).startswith(b"HTTP/1.1 %d " % status)
        assert await is_ready(made) == 200


@pytest.mark.parametrize("path", [b"/ping", b"/nothing-here", b"/v1/health"])
async def test_unread_body_ends_in_time(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    """The body is answered before it has arrived."""
    monkeypatch.setattr(limits, "REST_HEAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(limits, "PATROL_S", 0.05)

    async with served(monkeypatch) as made:
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path
        reader, writer = await open_connection(*address(made))
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 40")
        ended = asyncio.create_task(all_of(reader))
        while not ended.done() and not writer.transport.is_closing():
            writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
            await asyncio.sleep(0.001)
        await asyncio.wait_for(ended, 60)
        writer.close()


async def test_many_requests_at_once_start_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections send several requests in a row each; all are answered in order."""
    turn = MostInATurn()

    async def answer(request: Request) -> Response:
        turn.count()
        return PlainTextResponse(request.path_params["number"])

    async with served(monkeypatch, Starlette(routes=[Route("/{number}", answer)])) as made, turn:
        crowd = [await open_connection(*address(made)) for _ in range(50)]
        for _, writer in crowd:
            writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(20)))
        for reader, writer in crowd:
            for number in range(20):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                assert head.startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(len(str(number))) == str(number).encode()
            writer.close()
        assert turn.all == 50 * 20
        assert turn.most <= 2 * REST_STEPS_A_TURN  # another turn may fall between the two observed ones


async def test_pages_of_long_lists_are_built_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits both fetching and encoding, for many connections with pages that are available at once."""
    turn = MostInATurn()

    class Scopes:
        async def list_scopes(self, token: str) -> tuple[list[str], str]:
            turn.count()
            page = int(token or "0")
            return [f"scope-{page}-{n}" for n in range(20)] if page < 10 else [], str(page + 1)

    def counted(value: Any) -> bytes:
        turn.count()
        return encode(value)

    monkeypatch.setattr(endpoint, "encode", counted)

    async with served(monkeypatch, controller=Scopes()) as made, turn:
        crowd = [await open_connection(*address(made)) for _ in range(40)]
        for _, writer in crowd:
            writer.write(b"GET /v1/scopes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for answer in await asyncio.gather(*(all_of(reader) for reader, _ in crowd)):
            assert answer.count(b"scope-") == 200
        assert turn.all == 40 * (11 + 10)
        assert turn.most <= 2 * REST_STEPS_A_TURN  # another turn may fall between the two observed ones


async def test_body_arrives_complete_however_it_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.01)  # so that more arrives than is read
        return Response(await request.body())

    body = b"".join(b"%d\n" % number for number in range(30_000))
    assert REST_BODY_MAX_BYTES // 2 < len(body) < REST_BODY_MAX_BYTES
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"POST / HTTP/1.1\r\nHost: x\r\n"

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    async with served(monkeypatch, app) as made:
        reader, writer = await open_connection(*address(made))
        for _ in range(2):
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        for _ in range(4):
            found = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert found.startswith(b"HTTP/1.1 200 ")
            assert await asyncio.wait_for(reader.readexactly(len(body)), 60) == body
        writer.close()


def test_bad_requests_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: x\r\n\r\n"

    async def main() -> None:
        async with served(monkeypatch) as made:
            for _ in range(10):
                assert (await sent(made, b"this is not HTTP\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
                assert (await sent(made, upgrade)).startswith(b"HTTP/1.1 200 ")

    uvloop.run(main())
    assert len(caplog.records) <= 1


def test_error_quotes_only_part_of_the_request(rest: Any) -> None:
    refused = rest.post("/v1/scopes", json={"scopeName": "x" * 250_000})
    assert refused.status_code == 400
    assert len(refused.content) < 2 * REST_MESSAGE_MAX_CHARS
    assert "xxx... (" in refused.text


@pytest.mark.parametrize("received", [b"", b"a", b"\n" * 1000, b"ab\n" * 1000, b"a" * 100_000, b"a" * 20_000 + b"\n"])
def test_portions_add_up_to_the_input(received: bytes) -> None:
    left, portions = bytearray(received), list[bytes]()
    while left:
        portions.append(cut_portion(left))
        assert 0 < len(portions[-1]) <= REST_PORTION_BYTES
        assert portions[-1].count(b"\n") <= REST_PORTION_LINES
    assert b"".join(portions) == received


# --- half requests, floods, and peers that read nothing: health is still answered -------------------


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
    api = Api(lambda: leaf("nadi", HealthStatus.UP), None, controller, budget=budget or Budget())
    made = RestServer(api)
    made.start(await bound_sockets("127.0.0.1", 0, receive_bytes=limits.REST_SOCKET_BYTES))
    try:
        yield made
    finally:
        await made.stop()


def address(made: RestServer) -> tuple[str, int]:
    host, _, port = made.uri.removeprefix("http://").rpartition(":")
    return host, int(port)


async def halves(made: RestServer, count: int) -> Halves:
    connections = [await open_connection(*address(made)) for _ in range(count)]
    for _, writer in connections:
        writer.write(HALF)
    return connections


async def is_ready(made: RestServer) -> int:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(f"{made.uri}/v1/health/readiness")).status_code


async def test_half_requests_are_evicted_for_complete_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_server, "REST_CONNECTIONS_OF_ADDRESS", 20)
    monkeypatch.setattr(limits, "REST_HEAD_TIMEOUT_S", 600.0)

    async with served(monkeypatch) as made:
        crowd = await halves(made, 60)
        for _ in range(5):
            assert await is_ready(made) == 200
        assert made.connections <= 20
        assert await asyncio.wait_for(crowd[0][0].read(), 60) == b""


async def test_trickling_request_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_health_is_answered_while_all_slots_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_unread_response_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_received_bodies_count_in_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_BODY_TIMEOUT_S", 1.0)

    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0))
    async with server:
        server._rest_due.set()
        assert server._serving is not None
        await server._serving
        assert server._api is not None
        budget = server.store.budget = server._api.budget = Budget(4 * PEERS_LEAST_BYTES)
        host, _, port = server.rest_uri.removeprefix("http://").rpartition(":")
        head = b"POST /v1/scopes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        slow = [await open_connection(host, int(port)) for _ in range(30)]
        for _, writer in slow:
            writer.write(head % (REST_BODY_MAX_BYTES - 1) + b" " * (REST_BODY_MAX_BYTES // 2))
        await until_async(lambda: budget.peak_bytes >= 30 * KIB)
        await asyncio.sleep(0.2)  # more may arrive
        assert budget.peak_bytes <= budget.receiving.total_bytes + 30 * (PEERS_LEAST_BYTES + 2 * REST_SOCKET_BYTES)
        assert budget.peak_bytes < 30 * REST_BODY_MAX_BYTES // 2
        for _, writer in slow:
            writer.close()
        await until_async(lambda: not budget.buffered_bytes)
        monkeypatch.setattr(limits, "REST_BODY_TIMEOUT_S", 60.0)
        async with httpx.AsyncClient(timeout=60) as client:
            made = await client.post(
                f"{server.rest_uri}/v1/scopes",
                content=json.dumps({"scopeName": "s"}),
                headers={"content-type": "application/json"},
            )
            assert made.status_code == 201


def held_in(made: RestServer) -> int:
    """Return the bytes that the server's connections actually hold."""
    total = 0
    for each in made._uvicorn.server_state.connections:
        assert isinstance(each, rest_server.RestProtocol)
        total += len(each._received) + len(each.conn.trailing_data[0])
        total += 0 if each.cycle is None else len(each.cycle.body)
    return total


CROWD = 12
KEPT_POST = b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (REST_BODY_MAX_BYTES - 1)


@pytest.mark.parametrize(
    ("sent", "least_bytes"),
    [
        (HALF + b"a" * 10 * KIB, 10 * KIB),
        (KEPT_POST + bytes(200 * KIB), PEERS_LEAST_BYTES),
        (b"GET /work HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n" * 5000, 14 * KIB),
    ],
    ids=["half a head", "an unread body", "requests in a row"],
)
async def test_received_input_counts_in_the_budget_until_answered(
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
        await until_async(lambda: pool.buffered_bytes >= CROWD * least_bytes)
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert held_in(made) <= pool.buffered_bytes
        assert pool.peak_bytes <= pool.total_bytes + CROWD * (PEERS_LEAST_BYTES + 2 * REST_SOCKET_BYTES)
        finish.set()
        for _, writer in crowd:
            writer.close()
        await until_async(lambda: not pool.buffered_bytes and not pool.waiting)


async def test_answered_body_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applies also to a connection that stays open."""

    budget = Budget()
    app = Starlette(routes=[Route("/work", lambda _: PlainTextResponse("done"), methods=["POST"])])
    async with served(monkeypatch, app, budget) as made:
        reader, writer = await open_connection(*address(made))
        for _ in range(3):
            writer.write(b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000))
            assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
        await until_async(lambda: not budget.buffered_bytes)
        assert held_in(made) == 0
        assert budget.peak_bytes > 0
        writer.close()
