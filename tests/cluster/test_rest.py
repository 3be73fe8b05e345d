"""REST at any server of a cluster, whichever has the active controller."""

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
    """Of the server with the active controller, and of the other."""
    async with (
        asyncio.timeout(120),
        cluster(folder) as made,
        client(made.active) as active,
        client(made.other) as other,
    ):
        yield made, active, other


async def test_everything_of_the_controller_is_passed_on(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, active, other):
        assert (await other.post("/v1/scopes", json=SCOPE)).status_code == 201
        assert (await other.post("/v1/scopes", json=SCOPE)).status_code == 409
        stream = {"streamName": "st", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}}
        assert (await other.post("/v1/scopes/sc/streams", json=stream)).status_code == 201
        for asked in ("/v1/scopes", "/v1/scopes/sc/streams?showInternalStreams=true", "/v1/scopes/no", "/v1/nothing"):
            told, expected = await other.get(asked), await active.get(asked)
            assert (told.status_code, told.content) == (expected.status_code, expected.content)
            assert told.headers["content-type"] == expected.headers["content-type"]
            assert len(told.headers.get_list("date")) == 1
        assert (await other.put("/v1/scopes/sc/streams/st/state", json={"streamState": "SEALED"})).status_code == 200
        assert (await other.delete("/v1/scopes/sc/streams/st")).status_code == 204
        assert (await other.request("DELETE", "/v1/scopes/sc")).status_code == 204
        assert (await other.head("/v1/scopes")).content == b""


async def test_a_list_longer_than_any_buffer_is_passed_on(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, active, other):
        controller = made.active.controller
        assert controller is not None
        names = [f"scope-{'x' * 200}-{number}" for number in range(1200)]
        await asyncio.gather(*map(controller.create_scope, names))
        told = await other.get("/v1/scopes")
        assert len(told.content) > 250_000
        assert told.content == (await active.get("/v1/scopes")).content


async def test_health_metrics_and_descriptions_are_each_servers_own(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, active, other):
        for one, server in ((active, made.active), (other, made.other)):
            assert (await one.get("/v1/health/details")).json() == {"server": server.name}
            assert (await one.get("/ping")).text == "pong\n"
            assert (await one.get("/v1/openapi.json")).json()["openapi"] == "3.1.0"
        assert "nadi_" in (await active.get("/metrics")).text
        told = await other.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        assert (told.status_code, told.text) == (200, "# EOF\n")
        made.active.proxy.active(None)
        made.active.proxy.follow(None)
        assert (await active.get("/v1/health")).status_code == 200
        assert (await active.get("/metrics")).status_code == 503


async def test_a_controller_that_may_have_been_replaced_answers_nothing(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, active, other):
        made.active.is_leased = False
        for asked in (active, other):
            told = await asked.get("/v1/scopes")
            assert told.status_code == 503
            assert "another server may have the active controller by now" in told.text
            assert (await asked.get("/v1/health")).status_code == 200
        made.active.is_leased = True
        assert (await other.get("/v1/scopes")).status_code == 200


async def test_it_follows_the_controller(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, one, two):
        assert (await two.post("/v1/scopes", json=SCOPE)).status_code == 201
        await made.move_controller()
        assert (await two.post("/v1/scopes", json=SCOPE)).status_code == 409
        assert (await one.post("/v1/scopes", json=SCOPE)).status_code == 409
        assert "nadi_" in (await two.get("/metrics")).text


async def test_a_request_is_not_passed_on_twice(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, one, two):
        made.active.proxy.active(None)
        made.one.proxy.follow(made.two.addresses)
        made.two.proxy.follow(made.one.addresses)
        for asking in (one, two):
            told = await asking.get("/v1/scopes")
            assert told.status_code == 503
            assert "is elsewhere now" in told.text
            assert told.headers["retry-after"] == "1"


async def test_without_a_controller_there_is_a_reason(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, _, other):
        made.other.proxy.follow(None)
        assert "no server is known" in (await other.get("/v1/scopes")).text
        made.other.proxy.follow(ActiveAddresses("127.0.0.1:1"))
        assert "has no REST port" in (await other.get("/v1/scopes")).text
        made.other.proxy.follow(ActiveAddresses("127.0.0.1:1", "127.0.0.1:1"))
        told = await other.get("/v1/scopes")
        assert told.status_code == 503
        assert "the server at 127.0.0.1:1, which has the active controller, gave no answer" in told.text


# --- another server in the place of the active one ----------------------------------------------------


class Upstream:
    """Takes a request, and sends what the test says."""

    def __init__(self, *answer: bytes) -> None:
        self._answer = answer
        self.request, self.came, self.go_on = b"", asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):  # who asked may have gone
            self.request = await reader.readuntil(b"\r\n\r\n")
            self.came.set()
            for part in self._answer:
                writer.write(part)
                await writer.drain()
            if not self._answer:
                await self.go_on.wait()


@asynccontextmanager
async def before(made: Cluster, *answer: bytes) -> AsyncIterator[Upstream]:
    upstream = Upstream(*answer)
    listening = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    made.other.proxy.follow(ActiveAddresses(address, address))
    yield upstream
    upstream.go_on.set()
    listening.close()


async def test_headers_of_the_connection_stay_behind(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: a\r\nX-End: b\r\nContent-Length: 2\r\n\r\nhi"
    async with clients(tmp_path) as (made, _, other), before(made, answer) as upstream:
        told = await other.get(
            "/v1/scopes/a%2Fb?x=1",
            headers={"Authorization": "Basic abc", "Connection": "X-Mine", "X-Mine": "c", "TE": "trailers"},
        )
        assert (told.text, told.headers["x-end"]) == ("hi", "b")
        assert "x-hop" not in told.headers
        head = upstream.request.lower()
        assert head.startswith(b"get /v1/scopes/a%2fb?x=1 http/1.1\r\n")
        assert b"authorization: basic abc\r\n" in head
        assert FORWARDED.encode() in head
        assert b"x-mine" not in head
        assert b"\r\nte:" not in head
        assert head.count(b"\r\nhost:") == head.count(b"\r\nconnection:") == 1


async def test_half_an_answer_is_no_whole_one(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n"
    async with clients(tmp_path) as (made, _, other), before(made, *answer):
        with pytest.raises(httpx.RemoteProtocolError):
            await other.get("/v1/scopes")


async def test_a_request_that_waits_ends_when_another_takes_over(tmp_path: Path) -> None:
    async with clients(tmp_path) as (made, _, other), before(made) as upstream:
        waiting = asyncio.create_task(other.get("/v1/scopes"))
        await upstream.came.wait()
        made.tell()
        told = await waiting
        assert told.status_code == 503
        assert "another server has the active controller" in told.text
        assert (await other.get("/v1/scopes")).status_code == 200


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with clients(tmp_path) as (_, _, other):
        told = await other.post("/v1/scopes", content=bytes(REST_BODY_MAX_BYTES + 1))
        assert told.status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            yield b'{"scopeName":'
            yield b'"chunked"}'

        told = await other.post("/v1/scopes", content=chunks(), headers={"Content-Type": "application/json"})
        assert told.status_code == 201
