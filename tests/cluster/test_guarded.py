"""A cluster with users and TLS: each server checks credentials, and accepts the other's tokens."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.cluster.proxy.active import ClusterKey
from nadi.errors import NotAuthenticatedError, PermissionDeniedError
from tests.access.support import PASSWORD, certificate, users_file

from .servers import SECRET, Cluster, Guards, cluster

pytestmark = pytest.mark.uvloop


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.access.users._ITERATIONS", {"sha256": 4096, "sha512": 4096})


@pytest.fixture
async def made(tmp_path: Path, _cheap_passwords: None) -> AsyncIterator[Cluster]:
    guards = Guards(users_file(tmp_path / "settings"), certificate(tmp_path / "tls"))
    async with asyncio.timeout(120), cluster(tmp_path, guards) as made:
        yield made


async def test_clients_write_and_read_at_either_server(made: Cluster) -> None:
    async with made.manager(made.other, "root") as manager:
        await manager.create_scope("home")
        await manager.create_stream("home", "events", 4)
    for server in made.servers:
        async with made.manager(server, "writer") as manager:
            writer = await manager.create_writer("home", "events")
            first = 10 if server is made.two else 0
            for number in range(first, first + 10):
                writer.write_event(b"%d %d" % (number % 7, number), f"{number % 7}")
            await writer.close()
            transactions = await manager.create_transaction_writer("home", "events")
            txn = await transactions.begin_txn()
            await txn.commit(wait=True)
            await transactions.close()
        await made.move_controller()
    async with made.manager(made.other, "reader") as manager:
        reader = await manager.create_reader("home", "events")
        events: list[bytes] = []
        while len(events) < 20:
            block = await reader.next_block(60)
            assert block is not None
            events += block[1].events()
        reader.close()
        assert sorted(int(event.split()[1]) for event in events) == list(range(20))


async def test_either_server_rejects_unauthorized_calls(made: Cluster) -> None:
    async with made.manager(made.active, "root") as manager:
        await manager.create_scope("home")
        await manager.create_stream("home", "events", 1)
    for server in made.servers:
        async with made.manager(server, "stranger") as manager:
            with pytest.raises(PermissionDeniedError):
                await manager.current_segments("home", "events")
            with pytest.raises(PermissionDeniedError):
                await manager._controller.segment_endpoint("home/events/0.#epoch.0")
        async with made.manager(server) as manager:
            with pytest.raises(NotAuthenticatedError):
                await manager.list_scopes()


async def test_rest_requires_credentials_at_either_server(made: Cluster) -> None:
    for server in made.servers:
        context = ssl.create_default_context(cafile=str(made.guards.tls.authority) if made.guards.tls else None)
        async with httpx.AsyncClient(base_url=server.rest.uri, verify=context, timeout=60) as asking:
            assert (await asking.get("/v1/scopes")).status_code == 401
            wrong = await asking.get("/v1/scopes", auth=("root", "wrong"))
            assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, 'Basic realm="nadi"')
            assert (await asking.get("/v1/health")).status_code == 401
            made_now = await asking.post("/v1/scopes", json={"scopeName": server.name}, auth=("root", PASSWORD))
            assert made_now.status_code == 201
            listed = await asking.get("/v1/scopes", auth=("root", PASSWORD))
            assert {"scopeName": server.name} in listed.json()["scopes"]


# --- keys that the servers of a cluster share ---------------------------------------------------------


def test_delegation_token_is_valid_at_other_servers() -> None:
    issuing, checking = ClusterKey(SECRET).token_key(600), ClusterKey(SECRET).token_key(60)
    token = checking.check(issuing.issue("sc", "st", Permission.READ))
    assert token.permits("sc/st/0.#epoch.0", Act.READ)
    assert not token.permits("sc/st/0.#epoch.0", Act.WRITE)
    with pytest.raises(PermissionDeniedError):
        ClusterKey(bytes(32)).token_key(600).check(issuing.master())


def test_proof_is_bound_to_peer_and_cluster() -> None:
    key = ClusterKey(SECRET)
    proof = key.proof("ipv4:10.0.0.7:1")
    assert key.proven(proof) == "ipv4:10.0.0.7:1"
    assert key.proven(proof.replace("10.0.0.7", "10.0.0.8")) is None
    for other in ("", " ", "x", "é é", proof[:-1]):
        assert key.proven(other) is None
    assert ClusterKey(bytes(32)).proven(proof) is None
