"""KEDA with a server that has TLS and users: what it must send, and in which part of the trigger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.standalone import EmbeddedServer, ServerSecurity
from tests.access.support import GRANTS, PASSWORD, Certificate, certificate, users_file

from .support import METERS, keda, refused

READER = {"username": "reader", "password": PASSWORD}
USERS = {**GRANTS, "one": "prn::/scope:home/stream:meters,READ"}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return users_file(tmp_path_factory.mktemp("settings"), USERS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tls: Certificate, users: Path) -> Iterator[EmbeddedServer]:
    security = ServerSecurity(users_file=str(users), tls_certificate=str(tls.certificate), tls_key=str(tls.key))
    often = {"NADI_LIMITS": "scaler_permit_s=0.2"}
    with nadi.embedded(tmp_path_factory.mktemp("data"), security=security, environment=often) as server:
        root = nadi.Basic("root", PASSWORD)
        with nadi.StreamManager(server.controller_uri, credentials=root, trust_store=tls.authority) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters", 2)
        yield server


async def test_credentials_come_in_the_metadata(server: EmbeddedServer, tls: Certificate) -> None:
    async with keda(server.controller_uri, tls.authority) as asking:
        for credentials in (READER, {"usernameFromEnv": "reader", "passwordFromEnv": PASSWORD}):
            assert (await asking.spec(**METERS, **credentials)).metricName == "nadi-segments-home-meters"
            assert await asking.value(**METERS, **credentials) == 2
            assert not await asking.is_active(**METERS, **credentials)
            assert (await anext(aiter(asking.watch(**METERS, **credentials)))).result is False


@pytest.mark.parametrize(
    ("credentials", "code", "message"),
    [
        ({}, "UNAUTHENTICATED", "docs/security.md"),
        ({**READER, "password": "guess"}, "UNAUTHENTICATED", "password"),
        ({**READER, "username": "nobody"}, "UNAUTHENTICATED", "password"),
        ({"token": "a.b.c"}, "UNAUTHENTICATED", "docs/security.md"),
        ({"username": "reader"}, "INVALID_ARGUMENT", "username"),
        ({**READER, "username": "stranger"}, "PERMISSION_DENIED", "prn::/scope:home/stream:meters"),
    ],
)
async def test_unauthorised_calls_reveal_nothing(
    server: EmbeddedServer, tls: Certificate, credentials: dict[str, str], code: str, message: str
) -> None:
    async with keda(server.controller_uri, tls.authority) as asking:
        for stream in ("meters", "absent"):
            asked = {**METERS, "stream": stream, **credentials}
            for answer in (asking.spec(**asked), anext(aiter(asking.watch(**asked)))):
                actual, text = await refused(answer)
                assert actual == code
                assert message in text.replace("absent", "meters")


async def test_a_lag_needs_the_group_as_well(server: EmbeddedServer, tls: Certificate) -> None:
    asked = {**METERS, **READER, "username": "one"}
    async with keda(server.controller_uri, tls.authority) as asking:
        assert await asking.value(**asked) == 2
        for metric in ("lag", "rate"):
            code, text = await refused(asking.value(**asked, metric=metric, readerGroup="readers"))
            assert code == "PERMISSION_DENIED"
            assert "prn::/scope:home/reader-group:readers" in text


async def test_watch_ends_when_its_permission_is_revoked(server: EmbeddedServer, tls: Certificate, users: Path) -> None:
    async with keda(server.controller_uri, tls.authority) as asking:
        changes = aiter(asking.watch(**METERS, **READER))
        assert (await anext(changes)).result is False
        users_file(users.parent, {"root": USERS["root"]})
        async with asyncio.timeout(60):
            assert (await refused(anext(changes)))[0] == "UNAUTHENTICATED"
        users_file(users.parent, USERS)


async def test_without_tls_nothing_is_answered(server: EmbeddedServer) -> None:
    async with keda(server.controller_uri.replace("tls://", "tcp://")) as asking:
        assert (await refused(asking.value(**METERS, **READER)))[0] == "UNAVAILABLE"
