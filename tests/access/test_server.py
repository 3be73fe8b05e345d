"""Complete servers with access control: start conditions, users, TLS on all ports, and expiring tokens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

import nadi
from nadi.access.tokens import KEY_FILE
from nadi.cli.app import app
from nadi.client import aio
from nadi.client.manager.streams import stores_of
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.segments.connection import SegmentStoreConnection
from nadi.config import ServerConfig
from nadi.errors import (
    InvalidArgumentError,
    NadiError,
    NotAuthenticatedError,
    PermissionDeniedError,
    RequestTimeoutError,
    TokenExpiredError,
    UnavailableError,
)
from nadi.limits import CONNECTION_UNSENT_BYTES
from nadi.segmentstore.server.connection import Connection
from nadi.standalone import EmbeddedServer, ServerSecurity
from nadi.standalone.server import Server
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from tests.support.decoder import Decoder
from tests.support.waiting import until

from .support import GRANTS, PASSWORD, Certificate, certificate, guarded, user, users_file


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[EmbeddedServer]:
    """A server with the users of GRANTS, and the scope `home`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NADI_LIMITS", "log_file_bytes=16777216,watermark_period_s=0.2")
        with guarded(folder) as server, connected(server, "root") as manager:
            manager.create_scope("home")
            yield server


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, tls: Certificate) -> Iterator[EmbeddedServer]:
    """A server like `plain` with TLS and REST."""
    with (
        guarded(tmp_path_factory.mktemp("secure"), tls=tls, rest_port=0) as server,
        connected(server, "root", tls) as manager,
    ):
        manager.create_scope("home")
        yield server


def connected(server: EmbeddedServer, name: str, tls: Certificate | None = None) -> nadi.StreamManager:
    """Return a client with the credentials of that user."""
    return nadi.StreamManager(server.controller_uri, credentials=user(name), trust_store=tls.authority if tls else None)


# --- starting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_public_server_without_access_control_does_not_start(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--insecure-public"):
        nadi.embedded(tmp_path, host=host, advertised_host="127.0.0.1")
    assert not (tmp_path / "store.json").exists()


def test_insecure_public_server_starts_if_requested(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="--advertised-host"):
        nadi.embedded(tmp_path, host="0.0.0.0", security=ServerSecurity(insecure_public=True))
    security = ServerSecurity(insecure_public=True)
    with nadi.embedded(tmp_path, host="0.0.0.0", advertised_host="127.0.0.1", security=security) as server:
        assert server.store_address[0] == "127.0.0.1"
        with nadi.StreamManager(server.controller_uri) as manager:
            assert manager.create_scope("sc")
            assert manager.create_stream("sc", "st")
            manager.create_writer("sc", "st").write_event(b"x").result(60)


def test_nadi_up_without_access_control_names_the_option() -> None:
    result = CliRunner().invoke(app, ["up", "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 2
    assert "--insecure-public" in result.output


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"tls_certificate": "missing.pem", "tls_key": "missing.key"}, "missing.pem"),
        ({"tls_certificate": "missing.pem"}, "--tls-cert"),
        ({"users_file": "missing"}, "missing"),
        ({"users_file": Path("missing")}, "missing"),
        ({"users_file": 5}, "users_file"),
        ({"token_lifetime_s": "5"}, "token_lifetime_s"),
        ({"bearer_keys": "missing"}, "issuer"),
    ],
)
def test_invalid_settings_are_rejected(tmp_path: Path, settings: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        nadi.embedded(tmp_path, security=ServerSecurity(**settings))


def test_signing_key_survives_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            guarded(tmp_path) as server,
            nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager,
        ):
            manager.create_scope("home")
            key = (tmp_path / "data" / KEY_FILE).read_bytes()
    assert stat.S_IMODE((tmp_path / "data" / KEY_FILE).stat().st_mode) == 0o600
    assert (tmp_path / "data" / KEY_FILE).read_bytes() == key


# --- users ------------------------------------------------------------------------------------------


def test_each_user_can_do_only_what_is_granted(plain: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(plain, "root") as root:
        root.create_stream("home", "meters", 2)
    with connected(plain, "writer") as writer:
        with writer.create_writer("home", "meters") as output:
            output.write_batch([b"a", b"b"], "k")
            output.write_event(b"L" * (9 << 20), "k")
        with writer.create_transaction_writer("home", "meters").begin_txn() as txn:
            txn.write_event(b"c", "k")
            txn.write_event(b"M" * (9 << 20), "k")
        txn_writer = writer.create_transaction_writer("home", "meters")
        assert txn_writer.get_txn(txn.txn_id).status() in ("COMMITTING", "COMMITTED")
        table = writer.table("home", "notes")
        assert table.create()
        table.put(b"k", b"v")
        until(lambda: txn.status() == "COMMITTED")
        tail = writer.stream_info("home", "meters").tail
        with pytest.raises(PermissionDeniedError):
            writer.create_scope("mine")
        bookmark = writer.bookmarks("home").create("noon", tail)
    monkeypatch.setenv("pravega_client_auth_method", "Basic")
    monkeypatch.setenv("pravega_client_auth_username", "reader")
    monkeypatch.setenv("pravega_client_auth_password", user("reader").password)
    with nadi.StreamManager(plain.controller_uri) as reader:
        events = [event.data[:1] for event in reader.read_events("home", "meters", end=tail)]
        assert events == [b"a", b"b", b"L", b"c", b"M"]
        assert reader.list_scopes() == ["home"]
        with pytest.raises(PermissionDeniedError):
            reader.create_writer("home", "meters").write_event(b"x", "k").result(60)
        with pytest.raises(PermissionDeniedError):
            reader.table("home", "notes").put(b"k", b"w")
        value = reader.table("home", "notes").get(b"k")
        assert value is not None
        assert value.value == b"v"
        assert reader.bookmarks("home").list() == [bookmark]
        assert reader.cuts("home", "meters").named("noon") == bookmark.cut
        with pytest.raises(PermissionDeniedError):
            reader.bookmarks("home").delete("noon")
    with connected(plain, "stranger") as stranger:
        for stream in ("meters", "absent"):
            with pytest.raises(PermissionDeniedError):
                stranger.stream_info("home", stream)
        with pytest.raises(PermissionDeniedError):
            stranger.bookmarks("home").list()
    wrong = nadi.StreamManager(plain.controller_uri, credentials=nadi.Basic("root", "no"))
    with wrong, pytest.raises(NotAuthenticatedError):
        wrong.list_scopes()
    monkeypatch.delenv("pravega_client_auth_method")
    with nadi.StreamManager(plain.controller_uri) as anonymous, pytest.raises(NotAuthenticatedError):
        anonymous.list_scopes()


def test_byte_streams_tables_and_shared_state_require_permissions(plain: EmbeddedServer) -> None:
    with connected(plain, "root") as manager:
        for stream in ("bytes", "state", "index"):
            manager.create_stream("home", stream, 1)
        manager.create_key_value_table("home", "table", nadi.client.KeyValueTableConfiguration(primary_key_bytes=4))
    with connected(plain, "writer") as manager:
        with manager.create_byte_writer("home", "bytes") as writer:
            writer.write(b"x" * 1000)
        assert manager.create_byte_reader("home", "bytes").read(1000) == b"x" * 1000
        manager.shared_counter("home", "state").add(3)
        assert manager.shared_counter("home", "state").value == 3
        manager.key_value_table("home", "table").put(b"key.", b"value")
        entry = manager.key_value_table("home", "table").get(b"key.")
        assert entry is not None
        assert entry.value == b"value"
        with manager.create_index_writer("home", "index", ["t"]) as index:
            for t in range(3):
                index.append({"t": t})
    with connected(plain, "reader") as manager:
        reader = manager.create_index_reader("home", "index")
        assert reader.search("t", 2) == 2 * 4096
        assert [record.value("t") for record in reader.read()] == [0, 1, 2]
        with pytest.raises(PermissionDeniedError), manager.create_index_writer("home", "index", ["t"]) as refused:
            refused.append({"t": 3})
    with connected(plain, "stranger") as manager:
        with pytest.raises(PermissionDeniedError):
            manager.create_byte_reader("home", "bytes").read(1)
        with pytest.raises(PermissionDeniedError):
            manager.key_value_table("home", "table").get(b"key.")
        with pytest.raises(PermissionDeniedError):
            manager.create_index_reader("home", "index").first()


def test_writers_note_times_and_readers_read_them(plain: EmbeddedServer) -> None:
    with connected(plain, "root") as manager:
        manager.create_stream("home", "timed")
    with connected(plain, "writer") as manager, manager.create_writer("home", "timed") as writer:
        writer.write_event(b"event")
        writer.note_time(10).result(60)
    with connected(plain, "reader") as manager:
        cuts = manager.cuts("home", "timed")
        until(lambda: cuts.after_event_time(10) is not None)
        with manager.create_reader("home", "timed", end=cuts.after_event_time(10)) as reader:
            assert reader.current_time_window() == nadi.client.TimeWindow(None, 10)
    with connected(plain, "stranger") as manager, pytest.raises(PermissionDeniedError):
        manager.cuts("home", "timed").after_event_time(10)


def test_retention_by_event_time_works_with_access_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=16777216,retention_period_s=0.5,retention_settle_s=1")
    with guarded(tmp_path) as server, connected(server, "root") as manager:
        manager.create_scope("home")
        policy = nadi.client.RetentionPolicy.by_time(1_000, by_event_time=True)
        manager.create_stream("home", "meters", retention=policy, event_time="at")
        with manager.create_writer("home", "meters") as writer:
            for second in range(20_000):
                writer.write_event(b'{"at": %d}' % second)
        until(lambda: manager.retained("home", "meters").size_bytes == 0)


def test_running_server_reloads_a_changed_users_file(plain: EmbeddedServer, folder: Path) -> None:
    with connected(plain, "new") as manager:
        with pytest.raises(NotAuthenticatedError):
            manager.list_scopes()
        users_file(folder / "settings", {**GRANTS, "new": "prn::*,READ_UPDATE"})
        assert manager.create_scope("of-new")


def test_server_accepts_bearer_tokens(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "issuer.pem").write_bytes(pem)
    security = ServerSecurity(bearer_keys=str(tmp_path / "issuer.pem"), bearer_issuer="id", bearer_audience="nadi")
    claims = {"sub": "ann", "iss": "id", "aud": "nadi", "nadi": "prn::*,READ_UPDATE"}
    calls = 0

    def fresh() -> str:
        nonlocal calls
        calls += 1
        return jwt.encode({**claims, "exp": time.time() + 60}, key, "RS256")

    with nadi.embedded(tmp_path / "data", security=security) as server:
        with nadi.StreamManager(server.controller_uri, credentials=nadi.Bearer(fresh)) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters")
            manager.create_writer("home", "meters").write_event(b"x").result(60)
        assert calls >= 3
        old = nadi.Bearer(jwt.encode({**claims, "exp": time.time() - 1}, key, "RS256"))
        with (
            nadi.StreamManager(server.controller_uri, credentials=old) as expired,
            pytest.raises(NotAuthenticatedError),
        ):
            expired.list_scopes()
        broken = nadi.StreamManager(server.controller_uri, credentials=nadi.Bearer("a\nb"))
        with broken, pytest.raises(InvalidArgumentError):
            broken.list_scopes()


# --- expiring tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False], ids=["renewed before expiry", "renewed after expiry"])
def test_writer_and_reader_continue_across_token_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Every event arrives once and in order, whether the client renews tokens in time or only after an error."""
    if not early:
        monkeypatch.setattr("nadi.client.segments.tokens._renew_after_s", lambda _: 3600.0)
    lifetime_s, events = 2, 400
    received: list[bytes] = []

    def read(uri: str) -> None:
        with (
            nadi.StreamManager(uri, credentials=user("reader")) as manager,
            manager.create_reader("home", "meters") as reader,
        ):
            while len(received) < events:
                try:
                    block = reader.next_block(60)
                except RequestTimeoutError:
                    return
                assert block is not None
                received.extend(block[1])

    with guarded(tmp_path, token_lifetime_s=lifetime_s) as server, connected(server, "root") as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", 1)
        fetched = 0
        delegation_token = stores_of(manager._core).controller.delegation_token

        async def counted(scope: str, stream: str, *, write: bool) -> str:
            nonlocal fetched
            fetched += 1
            return await delegation_token(scope, stream, write=write)

        monkeypatch.setattr(stores_of(manager._core).controller, "delegation_token", counted)
        reader = threading.Thread(target=read, args=(server.controller_uri,))
        reader.start()
        with manager.create_writer("home", "meters") as writer:
            for number in range(events):
                writer.write_event(b"%d" % number, "k")
                time.sleep(4 * lifetime_s / events)
        reader.join(90)
        assert fetched >= 4, "the client used several tokens"
    assert received == [b"%d" % number for number in range(events)]


@pytest.mark.slow  # waits for tokens to expire
def test_byte_stream_continues_across_token_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client renews tokens only after an error, during writes."""
    monkeypatch.setattr("nadi.client.segments.tokens._renew_after_s", lambda _: 3600.0)
    pieces = [random.Random(number).randbytes(300_000) for number in range(100)]
    errors: list[type[NadiError]] = []
    interrupt = SegmentAppender._interrupt

    def noted(self: SegmentAppender, error: NadiError) -> None:
        errors.append(type(error))
        interrupt(self, error)

    monkeypatch.setattr(SegmentAppender, "_interrupt", noted)
    with guarded(tmp_path, token_lifetime_s=1) as server, connected(server, "root") as manager:
        manager.create_scope("home")
        manager.create_stream("home", "film", 1)
        with manager.create_byte_writer("home", "film", timeout=60) as writer:
            for number, piece in enumerate(pieces):
                writer.write(piece)
                if number % 5 == 4:
                    time.sleep(0.2)
        with manager.create_byte_reader("home", "film") as reader:
            assert reader.read() == b"".join(pieces)
    assert TokenExpiredError in errors


def test_conditional_appends_renew_their_token_before_expiry(tmp_path: Path) -> None:
    """The server closes the connection if a token has expired, and event writers share the connection."""
    lost: list[NadiError] = []
    lose = SegmentStoreConnection.lose

    def noted(self: SegmentStoreConnection, error: NadiError) -> None:
        lost.append(error)
        lose(self, error)

    with guarded(tmp_path, token_lifetime_s=3) as server, connected(server, "root") as manager:
        manager.create_scope("home")
        for name in ("shared", "film", "meters"):
            manager.create_stream("home", name, 1)
        counter = manager.shared_counter("home", "shared")
        film, writer = manager.create_byte_writer("home", "film", timeout=60), manager.create_writer("home", "meters")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentStoreConnection, "lose", noted)
            for number in range(1, 3):
                time.sleep(0.0 if number == 1 else 3.1)  # the tokens expire
                assert counter.add(timeout=60) == number
                film.write(b"%d" % number)
                film.flush()
                writer.write_event(b"%d" % number, "k").result(60)
        assert not lost
        film.close()
        writer.close()


def test_table_and_large_events_continue_after_token_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.client.segments.tokens._renew_after_s", lambda _: 3600.0)
    with guarded(tmp_path, token_lifetime_s=1) as server, connected(server, "root") as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", 1)
        table = manager.table("home", "notes")
        table.create()
        with manager.create_writer("home", "meters") as writer:
            version = table.put(b"k", b"0")
            for number in range(1, 3):
                writer.write_event(bytes([number]) * (9 << 20), "k")
                writer.flush(60)
                time.sleep(1.2)  # the token expires
                version = table.put(b"k", b"%d" % number, version)
        tail = manager.stream_info("home", "meters").tail
        assert [event.data[0] for event in manager.read_events("home", "meters", end=tail)] == [1, 2]


# --- TLS --------------------------------------------------------------------------------------------


def test_tls_works_without_authentication(tmp_path: Path, tls: Certificate) -> None:
    security = ServerSecurity(tls_certificate=str(tls.certificate), tls_key=str(tls.key))
    with nadi.embedded(tmp_path, security=security) as server:
        assert server.controller_uri.startswith("tls://127.0.0.1:")
        with nadi.StreamManager(server.controller_uri, trust_store=tls.authority) as manager:
            assert manager.create_scope("home")
            assert manager.create_stream("home", "meters")
            manager.create_writer("home", "meters").write_event(b"x").result(60)
        plain = server.controller_uri.replace("tls://", "tcp://")
        with nadi.StreamManager(plain) as manager, pytest.raises(UnavailableError):
            asyncio.run_coroutine_threadsafe(
                stores_of(manager._core).controller._send("listScopes", wire_request(), 3.0), manager._thread._loop
            ).result(60)


def wire_request() -> object:
    from nadi.wire.rpc import controller_pb2 as pb

    return pb.ScopesRequest()


def test_client_checks_host_name_and_trust(tmp_path: Path) -> None:
    named = certificate(tmp_path / "named", "nadi.example")
    stranger = certificate(tmp_path / "stranger")
    security = ServerSecurity(tls_certificate=str(named.certificate), tls_key=str(named.key))

    async def listed(uri: str, limit_s: float = 60.0, **more: object) -> list[str]:
        async with aio.StreamManager(uri, **more) as manager:  # type: ignore[arg-type]
            async with asyncio.timeout(limit_s):
                await manager.create_scope("home")
                await manager.create_stream("home", "meters")
                await (await manager.create_writer("home", "meters")).write_event(b"x")
                return sorted(await manager.list_scopes())

    with nadi.embedded(tmp_path / "data", security=security) as server:
        uri = server.controller_uri
        assert asyncio.run(listed(uri, trust_store=named.authority, validate_host_name=False)) == ["_system", "home"]
        folder = named.authority.parent  # of PEM files, which the official clients accept, too
        assert asyncio.run(listed(uri, trust_store=folder, validate_host_name=False)) == ["_system", "home"]
        for trusted, checked in ((named.authority, True), (stranger.authority, True), (stranger.authority, False)):
            with pytest.raises((UnavailableError, TimeoutError)):
                asyncio.run(listed(uri, 2.5, trust_store=trusted, validate_host_name=checked))
    with pytest.raises(InvalidArgumentError, match=named.key.name):
        nadi.StreamManager(uri, trust_store=named.key).close()
    with pytest.raises(InvalidArgumentError, match="missing"):
        nadi.StreamManager(uri, trust_store=tmp_path / "missing").close()


def test_rest_requires_tls_and_credentials(secure: EmbeddedServer, tls: Certificate) -> None:
    trusted = ssl.create_default_context(cafile=tls.authority)
    with httpx.Client(verify=trusted, timeout=60) as rest:
        scopes = f"{secure.rest_uri}/v1/scopes"
        assert scopes.startswith("https://")
        assert rest.get(f"{secure.rest_uri}/ping").status_code == 200
        assert rest.get(scopes).status_code == 401
        assert rest.post(scopes, json={"scopeName": "more"}, auth=("reader", PASSWORD)).status_code == 403
        assert rest.post(scopes, json={"scopeName": "more"}, auth=("root", PASSWORD)).status_code == 201
        assert rest.get(scopes, auth=("reader", PASSWORD)).json() == {"scopes": [{"scopeName": "home"}]}
        with pytest.raises(httpx.TransportError):
            httpx.get(scopes.replace("https", "http"))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_old_tls_versions_are_rejected(secure: EmbeddedServer, tls: Certificate, version: ssl.TLSVersion) -> None:
    grpc_port = int(secure.controller_uri.rpartition(":")[2])
    for port in (secure.store_address[1], grpc_port):
        context = ssl.create_default_context(cafile=str(tls.authority))
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.set_alpn_protocols(["h2"])
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        with socket.create_connection(("127.0.0.1", port), 60) as plain:
            if version is ssl.TLSVersion.TLSv1_1:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    context.wrap_socket(plain, server_hostname="localhost")
            else:
                with context.wrap_socket(plain, server_hostname="localhost") as sealed:
                    assert sealed.version() == version.name.replace("_", ".")
                    assert sealed.selected_alpn_protocol() == ("h2" if port == grpc_port else None)


def test_connection_without_tls_does_not_disturb_others(secure: EmbeddedServer, tls: Certificate) -> None:
    with connected(secure, "root", tls) as manager:
        manager.create_stream("home", "meters")
        writer = manager.create_writer("home", "meters")
        writer.write_event(b"a").result(60)
        for junk in (encode(wire.Hello(17, 5)), os.urandom(5000), b""):
            with socket.create_connection(secure.store_address, 60) as peer:
                peer.sendall(junk)
                peer.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    while peer.recv(1 << 16):
                        pass
        writer.write_event(b"b").result(60)
        tail = manager.stream_info("home", "meters").tail
        assert [event.data for event in manager.read_events("home", "meters", end=tail)] == [b"a", b"b"]


@pytest.mark.uvloop
async def test_large_reads_over_tls_have_back_pressure(tmp_path: Path, tls: Certificate) -> None:
    """A peer requests far more than it reads: the server stops sending, and every byte arrives eventually."""
    size = 12 << 20
    requested = 64 << 20
    payload = random.Random(1).randbytes(1 << 20)
    security = ServerSecurity(tls_certificate=str(tls.certificate), tls_key=str(tls.key))

    async def paused_connection(server: Server) -> Connection:
        """Wait until the server stops writing to a connection whose peer doesn't read; return the connection."""
        async with asyncio.timeout(60):
            while True:
                for connection in server.store._connections:
                    if not connection.replies.writable.is_set():
                        return connection
                await asyncio.sleep(0.01)

    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, security=security))
    async with server:
        uri = server.controller_uri
        async with aio.StreamManager(uri, trust_store=tls.authority) as manager:
            await manager.create_scope("home")
            await manager.create_stream("home", "meters")
            writer = await manager.create_writer("home", "meters")
            for _ in range(size >> 20):
                await writer.write(payload, "k")
            await writer.flush(60)
            tail = (await manager.stream_info("home", "meters")).tail
            count = 0
            async for event in manager.read_events("home", "meters", end=tail):
                assert event.data == payload
                count += 1
            assert count == size >> 20
        context = ssl.create_default_context(cafile=str(tls.authority))
        host, port = server.store_address
        reader, peer = await asyncio.open_connection(host, port, ssl=context)
        peer.write(encode(wire.Hello(17, 5)))
        segment = "home/meters/0.#epoch.0"
        reads = requested // (1 << 20)
        offsets = [(number % (size >> 20)) << 20 for number in range(reads)]
        for number, offset in enumerate(offsets):
            peer.write(encode(wire.ReadSegment(segment, offset, 1 << 20, "", number)))
        await peer.drain()
        connection = await paused_connection(server)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < CONNECTION_UNSENT_BYTES
        decoder, got = Decoder(), dict.fromkeys(range(reads), 0)
        data = (b"\0\0\0\0" + len(payload).to_bytes(4, "big") + payload) * (size >> 20)
        answered = 0
        while answered < reads:
            for command in decoder.receive(await asyncio.wait_for(reader.read(1 << 18), 60)):
                if isinstance(command, wire.SegmentRead):
                    answered += 1
                    got[command.request_id] = len(command.data)
                    start = command.offset
                    assert bytes(command.data) == data[start : start + len(command.data)]
        assert all(got.values())
        peer.close()
