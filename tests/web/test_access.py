"""The page's requests need the user's credentials and permissions, over TLS and at every server of a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import nadi
from nadi.client import StreamManager
from nadi.testing import fill_stream
from tests.access.support import PASSWORD, Certificate, certificate, guarded, user
from tests.web.support import error_of, events_of

PATH = "/v1/data/home/streams/meters"


class Guarded:
    """A server with users and TLS; `clients` contains the REST clients of users."""

    def __init__(self, uri: str, tls: Certificate, manager: StreamManager) -> None:
        self.manager = manager
        context = ssl.create_default_context(cafile=tls.authority)
        self.clients = {
            name: httpx.Client(base_url=uri, timeout=60, verify=context, auth=(name, PASSWORD) if name else None)
            for name in ("", "root", "reader", "writer", "stranger")
        }


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tls = certificate(folder / "tls")
    with (
        guarded(folder, tls=tls, rest_port=0) as server,
        nadi.StreamManager(server.controller_uri, credentials=user("root"), trust_store=tls.authority) as manager,
    ):
        manager.create_scope("home")
        manager.create_scope("other")
        manager.create_stream("other", "st")
        fill_stream(manager, "home", "meters", [b"x"] * 10)
        guard = Guarded(server.rest_uri, tls, manager)
        yield guard
        for client in guard.clients.values():
            client.close()


def test_page_is_public_but_its_data_requires_credentials(guard: Guarded) -> None:
    anonymous = guard.clients[""]
    assert anonymous.get("/").status_code == 200
    for path in (
        f"{PATH}/tail",
        f"{PATH}/play",
        f"{PATH}/events",
        f"{PATH}/span",
        "/v1/data/home/bookmarks",
        "/v1/data/home/unreadable",
        "/v1/rates",
    ):
        assert "docs/security.md" in error_of(anonymous.get(path), 401)


def test_reader_can_read_but_not_change(guard: Guarded) -> None:
    reader = guard.clients["reader"]
    with events_of(reader, f"{PATH}/tail") as events:
        fill_stream(guard.manager, "home", "meters", [b"seen"])
        assert next(events)["text"] == "seen"
    assert len(reader.get(f"{PATH}/events", params={"most": 5}).json()["events"]) == 5
    assert reader.get("/v1/data/home/bookmarks").json() == []
    mark = {"name": "mine", "streamName": "meters", "at": "tail"}
    assert "READ_UPDATE" in error_of(reader.post("/v1/data/home/bookmarks", json=mark), 403)
    error_of(reader.post(f"{PATH}/truncation", json={"at": "tail"}), 403)
    error_of(reader.post("/v1/scopes/home/streams/meters/scale", json={"segments": [0], "ranges": [[0, 1]]}), 403)
    error_of(reader.get(f"{PATH}/groups"), 403)
    assert {rate["scopeName"] for rate in reader.get("/v1/rates").json()} == {"home"}


def test_writer_can_create_bookmarks(guard: Guarded) -> None:
    writer = guard.clients["writer"]
    mark = {"name": "mine", "streamName": "meters", "at": "tail"}
    assert writer.post("/v1/data/home/bookmarks", json=mark).status_code == 201
    assert writer.delete("/v1/data/home/bookmarks/mine").status_code == 204
    error_of(writer.get("/v1/rates"), 403)
    assert [rate["streamName"] for rate in writer.get("/v1/scopes/home/rates").json()] == ["meters"]


def test_stranger_cannot_tell_existing_from_missing_streams(guard: Guarded) -> None:
    stranger = guard.clients["stranger"]
    for path in ("tail", "play", "events", "span", "groups"):
        existing, missing = (stranger.get(f"/v1/data/home/streams/{name}/{path}") for name in ("meters", "none"))
        assert error_of(existing, 403) == error_of(missing, 403).replace("stream:none:", "stream:meters:")


def test_post_from_another_site_is_rejected(guard: Guarded) -> None:
    mark = '{"name":"sneaked","streamName":"meters","at":"tail"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": kind, "Origin": "https://elsewhere.example"}
        error_of(guard.clients["root"].post("/v1/data/home/bookmarks", content=mark, headers=headers), 403)
        del headers["Origin"]
        error_of(guard.clients["root"].post("/v1/data/home/bookmarks", content=mark, headers=headers), 415)
    for path in ("/v1/migration/go-on", "/v1/migration/refresh", "/v1/cluster/drain"):  # without a body
        for headers in ({"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
            error_of(guard.clients["root"].post(path, headers=headers), 403)
    own = str(guard.clients["root"].base_url)
    for headers in ({"Origin": own}, {"Origin": "https://[", "Sec-Fetch-Site": "same-origin"}):
        assert guard.clients["root"].post("/v1/migration/go-on", headers=headers).status_code == 204
    answer = guard.clients["root"].get(f"{PATH}/span", headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_every_server_of_a_cluster_serves_the_page(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    patient = {"NADI_LIMITS": "cluster_lease_s=20,cluster_dead_s=25"}  # no container moves, even if the machine stalls
    with (
        nadi.embedded(store=store, rest_port=0, containers=4, environment=patient) as one,
        nadi.embedded(store=store, rest_port=0, environment=patient) as two,
        StreamManager(one.controller_uri) as manager,
    ):
        manager.create_scope("home")
        fill_stream(manager, "home", "meters", [b"before"], segments=8)
        for server in (one, two):
            with httpx.Client(base_url=server.rest_uri, timeout=60) as rest:
                assert rest.get("/").status_code == 200
                assert [s["streamName"] for s in rest.get("/v1/rates").json()] == ["meters"]
                assert len(rest.get("/v1/scopes/home/streams/meters/segments").json()) == 8
                with events_of(rest, f"{PATH}/tail") as events:
                    fill_stream(manager, "home", "meters", [b"now"])
                    assert next(events)["text"] == "now"
                assert rest.get(f"{PATH}/events").json()["events"][0]["text"] == "before"
                headers = {"Origin": server.rest_uri}  # whichever server has the controller
                scale = {"segments": [99], "ranges": [[0, 1]]}
                path = "/v1/scopes/home/streams/meters/scale"
                error_of(rest.post(path, json=scale, headers=headers), 409)
                error_of(rest.post(path, json=scale, headers={"Origin": "https://elsewhere.example"}), 403)
                mark = {"name": f"by-{server.pid}", "streamName": "meters", "at": "tail"}
                assert rest.post("/v1/data/home/bookmarks", json=mark).status_code == 201
        assert len(manager.bookmarks("home").list()) == 2
