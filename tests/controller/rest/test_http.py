"""HTTP behaviour of all paths: methods, malformed bodies, limits, the description."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from nadi.access.authentication import Gate
from nadi.access.permissions import Caller, Permission, Permissions
from nadi.access.users import User, hash_password, write_users
from nadi.config import ServerConfig
from nadi.controller.rest.endpoint import Api
from nadi.controller.rest.intake import LOGS_PATH
from nadi.controller.rest.server import ENDPOINTS, rest_app
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord, StreamRecord, StreamState
from nadi.controller.state.segments import ABSENT
from nadi.errors import PermissionDeniedError
from nadi.limits import MIB, REST_BODY_MAX_BYTES
from nadi.loopback_clients import OwnClients
from nadi.observe.health import Component, HealthStatus, leaf
from nadi.segmentstore.recovery import snapshotter
from nadi.standalone.server import Server
from nadi.web.site import live_site
from tests.controller.fake_store import FakeStore
from tests.controller.rest.test_resources import error_of
from tests.controller.support import running

MOST_BYTES = 2 * MIB


def test_unknown_paths_and_methods_fail(rest: httpx.Client) -> None:
    for path in ("/v2", "/v1", "/v1/scopes/", "/v1/scopes/a/b", "/v1/health/status/x/y"):
        assert "openapi.json" in error_of(rest.get(path), 404)
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{", "").replace("}", "")
        message = error_of(rest.patch(path), 405)
        assert f"does not support PATCH, only {', '.join(verbs_of(rest.patch(path)))}: see /v1/openapi.json" in message
        assert rest.patch(path).headers["allow"]
        if endpoint.verb == "GET":
            assert "unknown parameter 'none': " in error_of(rest.get(path, params={"none": "1"}), 400)
    assert rest.head("/v1/scopes").status_code == 200


def verbs_of(response: httpx.Response) -> list[str]:
    return sorted({*response.headers["allow"].split(", ")} - {"HEAD"})


def test_body_of_another_type_is_named_in_words_of_json(rest: httpx.Client) -> None:
    message = error_of(rest.post("/v1/scopes", json={"scopeName": 5}), 400)
    assert message.endswith("Expected `string`, got `integer` - at `$.scopeName`")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"\xff",
        b'{"scopeName":"\\ud800"}',
        b'{"scopeName":' + b"[" * 100_000,
        b'{"scopeName":null}',
    ],
)
def test_malformed_bodies_fail(rest: httpx.Client, body: bytes) -> None:
    error_of(rest.post("/v1/scopes", content=body, headers={"content-type": "application/json"}), 400)


def test_oversize_body_is_rejected_with_and_without_length(rest: httpx.Client) -> None:
    large = json.dumps({"scopeName": "x" * REST_BODY_MAX_BYTES}).encode()
    headers = {"content-type": "application/json"}
    assert "bytes" in error_of(rest.post("/v1/scopes", content=large, headers=headers), 413)
    assert "bytes" in error_of(rest.post("/v1/scopes", content=iter([large]), headers=headers), 413)


def test_body_needs_json_content_type(rest: httpx.Client) -> None:
    """Otherwise a browser page could post across sites without a preflight request."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = rest.post("/v1/scopes", content=b'{"scopeName":"sneaked"}', headers={"content-type": kind})
        assert "Content-Type" in error_of(response, 415)
    assert rest.get("/v1/scopes/sneaked").status_code == 404


def test_ping_and_description(rest: httpx.Client) -> None:
    assert rest.get("/ping").status_code == 200
    description = rest.get("/v1/openapi.json").json()
    assert description["openapi"] == "3.1.0"
    described = {(path, verb.upper()) for path, verbs in description["paths"].items() for verb in verbs}
    served = (*ENDPOINTS, *live_site(OwnClients(15.0)).endpoints)
    assert described == {(endpoint.path, endpoint.verb) for endpoint in served}
    assert len(described) == len(served)


# --- the application over a controller in this process -------------------------------------------


def _up() -> Component:
    return leaf("nadi", HealthStatus.UP)


def _client(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://nadi")


class _Refusing(Gate):
    """Records the requested permission and denies it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Permission | None]] = []

    async def authorized(
        self, authorization: str | None, resource: str, permission: Permission | None, peer: str = ""
    ) -> Caller:
        self.asked.append((resource, permission))
        raise PermissionDeniedError("not for you")


def test_each_endpoint_requires_its_resource_and_permission() -> None:
    access = _Refusing()
    asked = access.asked

    async def main() -> None:
        async with _client(rest_app(Api(_up, access))) as client:
            for endpoint in ENDPOINTS:
                names = {"scopeName": "S", "streamName": "T", "readerGroupName": "G"}
                path = endpoint.path.format(**names, id="x", kind="scope", name="S")
                of_logs = {"stream": "S/T"} if path == LOGS_PATH else None
                response = await client.request(endpoint.verb, path, params=of_logs)
                assert error_of(response, 403) == "not for you", path

    asyncio.run(main())
    read, update = Permission.READ, Permission.READ_UPDATE
    root, scope, stream = "prn::/", "prn::/scope:S", "prn::/scope:S/stream:T"
    group = "prn::/scope:S/reader-group:G"
    of_scope = "/v1/scopes/{scopeName}"
    of_stream, of_group = of_scope + "/streams/{streamName}", of_scope + "/readergroups/{readerGroupName}"
    wanted = {
        f"GET {of_scope}": (scope, read),
        f"GET {of_scope}/streams": (scope, read),
        f"POST {of_scope}/streams": (scope, update),
        f"GET {of_stream}": (stream, read),
        f"PUT {of_stream}": (stream, update),
        f"DELETE {of_stream}": (stream, update),
        f"PUT {of_stream}/state": (stream, update),
        f"GET {of_stream}/retention": (stream, update),
        f"GET {of_stream}/scaling-events": (stream, read),
        f"GET {of_stream}/scaling-log": (stream, read),
        f"GET {of_stream}/load": (stream, read),
        f"GET {of_stream}/lag": (stream, update),
        f"POST {of_stream}/events": (stream, update),
        "POST /v1/logs": (stream, update),
        f"GET {of_scope}/readergroups": (scope, read),
        f"GET {of_group}": (group, read),
        f"GET {of_group}/lag": (group, read),
        f"DELETE {of_group}": (scope, update),
    }
    found = {f"{endpoint.verb} {endpoint.path}": one for endpoint, one in zip(ENDPOINTS, asked, strict=True)}
    assert wanted.items() <= found.items()
    for name in found.keys() - wanted.keys():  # endpoints about the whole server
        assert found[name] == (root, read if name.startswith("GET ") else update), name


async def test_no_credentials_is_401_and_lists_hold_only_what_may_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadi.access.users._ITERATIONS", {"sha256": 4096, "sha512": 4096})  # cheap
    grants = "prn::/,READ;prn::/scope:b,READ;prn::/scope:c,READ;prn::/scope:b/stream:b,READ;prn::/scope:b/stream:c,READ"
    users = tmp_path / "users"
    write_users(users, {"ann": User("ann", hash_password("secret"), Permissions.parse(grants))})

    gate = Gate(users)
    async with running(FakeStore()) as controller:
        for scope in "abc":
            await controller.create_scope(scope)
        for stream in "abc":
            await controller.create_stream(StreamName("b", stream), StreamConfigRecord())
        async with _client(rest_app(Api(_up, gate, controller))) as client:
            for wrong in (None, ("ann", "guessed"), ("bob", "secret")):
                refused = await client.get("/v1/scopes", auth=wrong)
                assert error_of(refused, 401)
                assert refused.headers["www-authenticate"].startswith("Basic")
            client.auth = httpx.BasicAuth("ann", "secret")
            scopes = (await client.get("/v1/scopes")).json()["scopes"]
            assert sorted(s["scopeName"] for s in scopes) == ["b", "c"]
            streams = (await client.get("/v1/scopes/b/streams")).json()["streams"]
            assert sorted(s["streamName"] for s in streams) == ["b", "c"]
            there = await client.get("/v1/scopes/b/streams/a")
            absent = await client.get("/v1/scopes/b/streams/none")
            assert error_of(there, 403).replace("stream:a:", "stream:none:") == error_of(absent, 403)
    gate.close()


async def test_unexpected_error_leaks_no_details(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FakeStore()
    async with running(store) as controller:

        async def broken(token: str) -> tuple[list[str], str]:
            raise KeyError("an internal secret")

        monkeypatch.setattr(controller, "list_scopes", broken)
        async with _client(rest_app(Api(_up, None, controller))) as client:
            assert "secret" not in error_of(await client.get("/v1/scopes"), 500)
            assert "an internal secret" in caplog.text
            store.die_at(0)
            away = await client.get("/v1/scopes/x")
            assert error_of(away, 503)
            assert away.headers["retry-after"] == "1"


@pytest.mark.uvloop
async def test_long_list_is_sent_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's memory has a single page at a time, however many streams a scope has."""
    for period in ("SCALING_SCAN_S", "RETENTION_PERIOD_S"):  # these rounds have pages in memory, too
        monkeypatch.setattr(f"nadi.limits.{period}", 3600.0)
        monkeypatch.setattr(snapshotter, "PACE", snapshotter.PACE._replace(interval_s=3600.0))  # also uses memory
    count = 10_000

    async with Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0)) as server:
        await fill(server, "full", count)
    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0))  # writes nothing more
    async with server, httpx.AsyncClient(timeout=60) as client:
        path = f"{server.rest_uri}/v1/scopes/full/streams"
        assert await length_of(client, path) > 1.5 * MIB
        tracemalloc.start()
        try:
            await length_of(client, path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MOST_BYTES
        names = [stream["streamName"] for stream in (await client.get(path)).json()["streams"]]
        assert sorted(names) == sorted(f"stream-{i}" for i in range(count))


@pytest.mark.uvloop
async def test_stop_answers_request_with_missing_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nadi.limits.REST_BODY_TIMEOUT_S", 600.0)
    monkeypatch.setattr("nadi.standalone.assembly.STOP_PORT_S", 60.0)  # ample for a slow machine
    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0))
    await server.start()
    reader, writer = await asyncio.open_connection(*server.rest_uri.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/scopes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
    writer.write(b"content-length: 100\r\nexpect: 100-continue\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 100")  # the handler is waiting for the body
    async with asyncio.timeout(90):
        await server.stop()
        assert b" 503 " in await reader.read()
    writer.close()
    assert "Traceback" not in caplog.text


async def fill(server: Server, scope: str, count: int) -> None:
    """Create streams as the listing sees them: only their records."""
    controller = server.controller
    await controller.create_scope(scope)
    stream = StreamRecord(StreamConfigRecord(tags=("a tag",)), 0, StreamState.ACTIVE, 0, 0, 0, ())
    table = controller.metadata.streams(scope)
    for first in range(0, count, 1000):
        await table.put_all([(f"stream-{i}", stream, ABSENT) for i in range(first, min(first + 1000, count))])


async def length_of(client: httpx.AsyncClient, path: str) -> int:
    async with client.stream("GET", path) as response:
        assert response.status_code == 200
        return sum([len(chunk) async for chunk in response.aiter_raw()])
