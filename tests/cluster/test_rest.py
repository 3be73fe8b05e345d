"""REST on every server of a cluster, whichever has the active controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import httpx
import pytest

from nadi.cluster.proxy.active import FORWARDED, ActiveAddresses
from nadi.limits import REST_BODY_MAX_BYTES

from .servers import Cluster, ServerOfCluster, cluster

pytestmark = pytest.mark.uvloop

SCOPE = {"scopeName": "sc"}


def client(server: ServerOfCluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.rest.uri, timeout=60)


@asynccontextmanager
async def clients(folder: Path) -> AsyncIterator[tuple[Cluster, httpx.AsyncClient, httpx.AsyncClient]]:
    """Yield clients of the server with the active controller, and of the other one."""
    async with (
        asyncio.timeout(120),
        cluster(folder) as made,
        client(made.active) as active,
        client(made.other) as other,
    ):
        yield made, active, other


async def test_controller_requests_are_forwarded(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, active, other):
        assert (await other.post("/v1/scopes", json=SCOPE)).status_code == 201
        assert (await other.post("/v1/scopes", json=SCOPE)).status_code == 409
        stream = {"streamName": "st", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}}
        assert (await other.post("/v1/scopes/sc/streams", json=stream)).status_code == 201
        for target in ("/v1/scopes", "/v1/scopes/sc/streams?showInternalStreams=true", "/v1/scopes/no", "/v1/nothing"):
            response, expected = await other.get(target), await active.get(target)
            assert (response.status_code, response.content) == (expected.status_code, expected.content)
            assert response.headers["content-type"] == expected.headers["content-type"]
            assert len(response.headers.get_list("date")) == 1
        assert (await other.put("/v1/scopes/sc/streams/st/state", json={"streamState": "SEALED"})).status_code == 200
        assert (await other.delete("/v1/scopes/sc/streams/st")).status_code == 204
        assert (await other.request("DELETE", "/v1/scopes/sc")).status_code == 204
        assert (await other.head("/v1/scopes")).content == b""


async def test_long_list_is_forwarded_completely(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, active, other):
        controller = made.active.controller
        assert controller is not None
        names = [f"scope-{'x' * 200}-{number}" for number in range(1200)]
        await asyncio.gather(*map(controller.create_scope, names))
        response = await other.get("/v1/scopes")
        assert len(response.content) > 250_000
        assert response.content == (await active.get("/v1/scopes")).content


async def test_health_metrics_and_openapi_are_local(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, active, other):
        for http_client, server in ((active, made.active), (other, made.other)):
            assert (await http_client.get("/v1/health/details")).json() == {"server": server.name}
            assert (await http_client.get("/ping")).text == "pong\n"
            assert (await http_client.get("/v1/openapi.json")).json()["openapi"] == "3.1.0"
        assert "nadi_" in (await active.get("/metrics")).text
        response = await other.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        assert (response.status_code, response.text) == (200, "# EOF\n")
        made.active.proxy.active(None)
        made.active.proxy.follow(None)
        assert (await active.get("/v1/health")).status_code == 200
        assert (await active.get("/metrics")).status_code == 503


async def test_possibly_replaced_controller_answers_503(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, active, other):
        made.active.is_leased = False
        for asking in (active, other):
            response = await asking.get("/v1/scopes")
            assert response.status_code == 503
            assert (await asking.get("/v1/health")).status_code == 200
        made.active.is_leased = True
        assert (await other.get("/v1/scopes")).status_code == 200


async def test_requests_follow_the_controller(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, one, two):
        assert (await two.post("/v1/scopes", json=SCOPE)).status_code == 201
        await made.move_controller()
        assert (await two.post("/v1/scopes", json=SCOPE)).status_code == 409
        assert (await one.post("/v1/scopes", json=SCOPE)).status_code == 409
        assert "nadi_" in (await two.get("/metrics")).text


async def test_forwarded_request_is_not_forwarded_again(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, one, two):
        made.active.proxy.active(None)
        made.one.proxy.follow(made.two.addresses)
        made.two.proxy.follow(made.one.addresses)
        for asking in (one, two):
            response = await asking.get("/v1/scopes")
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"


async def test_missing_controller_answers_503(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, _, other):
        made.other.proxy.follow(None)
        assert (await other.get("/v1/scopes")).status_code == 503
        made.other.proxy.follow(ActiveAddresses("127.0.0.1:1"))
        assert (await other.get("/v1/scopes")).status_code == 503
        made.other.proxy.follow(ActiveAddresses("127.0.0.1:1", "127.0.0.1:1"))
        response = await other.get("/v1/scopes")
        assert response.status_code == 503
        assert "127.0.0.1:1" in response.text


# --- a fake server with the active controller ---------------------------------------------------------


class Upstream:
    """Server that reads a request, and sends the test's answer."""

    def __init__(self, *answer: bytes) -> None:
        self._answer = answer
        self.request, self.arrived, self.end = b"", asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):  # the client may have disconnected
            self.request = await reader.readuntil(b"\r\n\r\n")
            self.arrived.set()
            for part in self._answer:
                writer.write(part)
                await writer.drain()
            if not self._answer:
                await self.end.wait()


@asynccontextmanager
async def before(made: Cluster, *answer: bytes) -> AsyncIterator[Upstream]:
    upstream = Upstream(*answer)
    listening = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    made.other.proxy.follow(ActiveAddresses(address, address))
    yield upstream
    upstream.end.set()
    listening.close()


async def test_hop_by_hop_headers_are_not_forwarded(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: a\r\nX-End: b\r\nContent-Length: 2\r\n\r\nhi"
    async with clients(tmp_path) as (made, _, other), before(made, answer) as upstream:
        response = await other.get(
            "/v1/scopes/a%2Fb?x=1",
            headers={"Authorization": "Basic abc", "Connection": "X-Mine", "X-Mine": "c", "TE": "trailers"},
        )
        assert (response.text, response.headers["x-end"]) == ("hi", "b")
        assert "x-hop" not in response.headers
        head = upstream.request.lower()
        assert head.startswith(b"get /v1/scopes/a%2fb?x=1 http/1.1\r\n")
        assert b"authorization: basic abc\r\n" in head
        assert FORWARDED.encode() in head
        assert b"x-mine" not in head
        assert b"\r\nte:" not in head
        assert head.count(b"\r\nhost:") == head.count(b"\r\nconnection:") == 1


async def test_truncated_answer_fails(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n"
    async with clients(tmp_path) as (made, _, other), before(made, *answer):
        with pytest.raises(httpx.RemoteProtocolError):
            await other.get("/v1/scopes")


async def test_waiting_request_ends_when_controller_moves(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, _, other), before(made) as upstream:
        waiting = asyncio.create_task(other.get("/v1/scopes"))
        await upstream.arrived.wait()
        made.announce()
        response = await waiting
        assert response.status_code == 503
        assert (await other.get("/v1/scopes")).status_code == 200


async def test_oversized_body_is_rejected(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, _, other):
        response = await other.post("/v1/scopes", content=bytes(REST_BODY_MAX_BYTES + 1))
        assert response.status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            yield b'{"scopeName":'
            yield b'"chunked"}'

        response = await other.post("/v1/scopes", content=chunks(), headers={"Content-Type": "application/json"})
        assert response.status_code == 201
