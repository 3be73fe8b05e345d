"""Health reports the server's real state: during recovery, in service, and after a failure."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from nadi.config import ServerConfig
from nadi.errors import UnavailableError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.state.operations import ChunksDropped
from nadi.standalone.server import Server
from tests.controller.rest.test_resources import error_of

pytestmark = pytest.mark.uvloop


def new_server(folder: Path) -> Server:
    return Server(ServerConfig(data=folder, store_port=0, port=0, rest_port=0, containers=2))


def test_every_health_path(rest: httpx.Client) -> None:
    root = rest.get("/v1/health").json()
    assert (root["name"], root["status"], root["readiness"], root["liveness"]) == ("nadi", "UP", True, True)
    assert set(root["children"]) == {"controller", "segment-store", "rpc"}

    def walk(component: dict[str, Any]) -> None:
        name = component["name"]
        again = rest.get(f"/v1/health/{name}").json()
        assert set(again) == {"name", "status", "readiness", "liveness", "details", "children"}
        assert (again["name"], set(again["children"])) == (name, set(component["children"]))
        assert rest.get(f"/v1/health/readiness/{name}").json() is component["readiness"] is True
        assert rest.get(f"/v1/health/liveness/{name}").json() is component["liveness"] is True
        assert rest.get(f"/v1/health/status/{name}").json() == component["status"] == "UP"
        assert rest.get(f"/v1/health/details/{name}").json().keys() == component["details"].keys()
        for child in component["children"].values():
            walk(child)

    for name in ("controller", "rpc", "segment-store"):
        walk(root["children"][name])
    for kind in ("readiness", "liveness", "status", "details"):
        assert rest.get(f"/v1/health/{kind}").status_code == 200
        error_of(rest.get(f"/v1/health/{kind}/none"), 404)
    error_of(rest.get("/v1/health/none"), 404)
    assert any(rest.get(f"/v1/health/details/container-{n}").json()["frame"] > 0 for n in range(4))
    assert rest.get("/v1/health/details/rpc").json()["uri"].startswith("tcp://")


async def test_health_during_recovery_reports_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recovering, go_on = asyncio.Event(), asyncio.Event()
    opened = Container._open

    async def slowly(container: Container) -> None:
        if container.number == 1:
            recovering.set()
            await go_on.wait()
        await opened(container)

    monkeypatch.setattr(Container, "_open", slowly)
    server = new_server(tmp_path)
    starting = asyncio.create_task(server.start())
    await recovering.wait()
    async with httpx.AsyncClient(base_url=server.rest_uri, timeout=60) as client:

        async def ask(path: str) -> Any:
            return (await client.get(f"/v1/health{path}")).json()

        assert (await client.get("/ping")).status_code == 200
        assert (await ask("/status"), await ask("/readiness"), await ask("/liveness")) == ("STARTING", False, True)
        assert (await ask("/status/container-0"), await ask("/status/container-1")) == ("UP", "STARTING")
        assert not await ask("/readiness/controller")
        assert "recovering" in error_of(await client.get("/v1/scopes"), 503)
        go_on.set()
        await starting
        assert (await ask("/status"), await ask("/readiness")) == ("UP", True)
        assert (await client.get("/v1/scopes")).status_code == 200
        await server.stop()
        with pytest.raises(httpx.ConnectError):
            await client.get("/ping")


async def test_a_container_that_lost_its_log_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with new_server(tmp_path) as server, httpx.AsyncClient(base_url=server.rest_uri, timeout=60) as client:
        container, go_on, opened = server.store.containers[0], asyncio.Event(), Container._open

        async def broken(parts: Any) -> Any:
            raise OSError(5, "the disk failed")

        async def later(container: Container) -> None:
            await go_on.wait()
            await opened(container)

        monkeypatch.setattr(container.log, "append", broken)
        monkeypatch.setattr(Container, "_open", later)  # health is asked before recovery ends
        with pytest.raises(UnavailableError):
            await container.call(lambda frame: frame.emit(ChunksDropped([])))
        component = (await client.get("/v1/health/container-0")).json()
        assert (component["status"], component["readiness"], component["liveness"]) == ("STARTING", False, True)
        assert "the disk failed" in component["details"]["recovers_from"]
        assert (await client.get("/v1/health/readiness")).json() is False
        assert (await client.get("/v1/health/readiness/container-1")).json() is True
        go_on.set()


async def test_occupied_port_raises_error_and_releases_the_folder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=port, containers=2))
        with pytest.raises(UnavailableError, match="--rest-port"):
            await server.start()
    async with new_server(tmp_path):
        pass
