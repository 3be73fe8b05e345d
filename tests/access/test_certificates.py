"""Client certificates as users on all ports: the wire protocol, gRPC, REST and Kafka, with real servers and clients."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, Producer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

import nadi
from nadi.access.permissions import Permissions
from nadi.access.tls import ClientCertificates, ServerTls
from nadi.access.users import NO_PASSWORD, User, read_users, write_users
from nadi.cli.app import app
from nadi.cli.cluster.rest_client import RestClient
from nadi.client.control.security import Basic, ClientCertificate, Security, security_of
from nadi.client.segments.connection import Endpoint, SegmentStoreConnection
from nadi.errors import (
    InvalidArgumentError,
    NotAuthenticatedError,
    PermissionDeniedError,
    UnavailableError,
)
from nadi.standalone import EmbeddedServer, ServerSecurity
from nadi.wire import commands as wire
from tests.kafka.raw import Connection, requests

from .support import PASSWORD, password_hash

GRANTS = {
    "root": "*,READ_UPDATE",
    "ann": "*,READ_UPDATE",
    "reader": "prn::/scope:home,READ;prn::/scope:home/*,READ;prn::/scope:kafka/*,READ",
    "jürgen müller": "prn::/,READ",
}
EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)
SEGMENT = "home/meters/0.#epoch.0"


@dataclass(frozen=True)
class Files:
    """PEM files of a certificate and its key."""

    certificate: str
    key: str

    def login(self, also: Basic | None = None) -> ClientCertificate:
        return ClientCertificate(self.certificate, self.key, also)

    def context(self, authority: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(self.certificate, self.key)
        return context


class Authority:
    """An authority that issues certificates into files of `folder`; `path` is its own certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._ca = folder, trustme.CA()
        self.path = folder / "authority.pem"
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str, *identities: str, file: str = "", not_after: datetime | None = None) -> Files:
        identities = identities or (f"{len(name)}@mail.example",)
        issued = self._ca.issue_cert(*identities, common_name=name, not_after=not_after)
        files = Files(*(str(self._folder / f"{file or name}.{kind}") for kind in ("pem", "key")))
        issued.private_key_pem.write_to_path(files.key)
        issued.cert_chain_pems[0].write_to_path(files.certificate)
        return files

    def revoke(self, path: Path, *revoked: Files) -> None:
        """Write a list of these certificates."""
        key: Any = load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        authority = x509.load_pem_x509_certificate(self.path.read_bytes())
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder(authority.subject, now, now + timedelta(days=1))
        for files in revoked:
            serial = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        path.with_suffix(".new").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
        path.with_suffix(".new").rename(path)


@dataclass
class Site:
    """A server that requires certificates of `authority`, and the certificates of several clients."""

    server: EmbeddedServer
    authority: Authority
    settings: Path
    files: dict[str, Files]

    def manager(self, name: str, also: Basic | None = None, timeout: float = 30) -> nadi.StreamManager:
        login = self.files[name].login(also) if name else also
        return nadi.StreamManager(
            self.server.controller_uri, credentials=login, trust_store=self.authority.path, timeout=timeout
        )

    def rest(self, name: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=self.authority.path)
        if name:
            context = self.files[name].context(self.authority.path)
        return httpx.Client(base_url=self.server.rest_uri, verify=context, timeout=30)

    def kafka(self, name: str, **more: object) -> dict[str, Any]:
        files = {"ssl.certificate.location": self.files[name].certificate, "ssl.key.location": self.files[name].key}
        return {
            "bootstrap.servers": self.server.kafka_address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.path),
            **files,
            **more,
        }

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        uris = {"grpc": self.server.controller_uri, "rest": self.server.rest_uri}
        ports = {name: int(uri.rpartition(":")[2]) for name, uri in uris.items()}
        ports |= {"wire": self.server.store_address[1], "kafka": int(self.server.kafka_address.rpartition(":")[2])}
        return {name: ("127.0.0.1", port) for name, port in ports.items()}

    def refuses(self, port: str, name: str) -> bool:
        """Return whether the port ends a connection with that certificate during or just after the handshake."""
        files, context = self.files.get(name), ssl.create_default_context(cafile=self.authority.path)
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        context.set_alpn_protocols(["h2"] if port == "grpc" else [])
        try:
            with (
                socket.create_connection(self.ports[port], 30) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as sealed,
            ):
                sealed.settimeout(0.3)
                return sealed.recv(1) == b""
        except TimeoutError:
            return False
        except (ssl.SSLError, ConnectionError):
            return True


@contextmanager
def site(folder: Path, **more: Any) -> Iterator[Site]:
    authority, stranger = Authority(folder / "ca"), Authority(folder / "stranger")
    users, settings = folder / "users", folder / "settings"
    settings.mkdir()
    write_users(users, {name: User(name, NO_PASSWORD, Permissions.parse(text)) for name, text in GRANTS.items()})
    write_users(users, read_users(users) | {"bob": User("bob", password_hash(), Permissions.parse("*,READ_UPDATE"))})
    files = {name: authority.issue(name) for name in (*GRANTS, "unlisted", "revoked", "bob")}
    files["expired"] = authority.issue("ann", file="expired", not_after=EXPIRED)
    files["stranger"] = stranger.issue("ann")
    own = authority.issue("server", "localhost", "127.0.0.1")
    authority.revoke(settings / "crl.pem", files["revoked"])
    security = ServerSecurity(
        users_file=users,
        tls_certificate=own.certificate,
        tls_key=own.key,
        tls_client_ca=authority.path,
        tls_client_crl=settings / "crl.pem",
    )
    with nadi.embedded(folder / "data", security=security, rest_port=0, kafka_port=0, **more) as server:
        yield Site(server, authority, settings, files)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with the stream home/meters."""
    with site(tmp_path_factory.mktemp("site")) as made, made.manager("ann") as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        yield made


def contents(manager: nadi.StreamManager, stream: str, scope: str = "home") -> list[bytes]:
    tail = manager.stream_info(scope, stream).tail
    return [bytes(event.data) for event in manager.read_events(scope, stream, end=tail)]


# --- handshakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["wire", "grpc", "kafka"])
def test_handshake_without_valid_certificate_fails(shared: Site, port: str) -> None:
    assert not shared.refuses(port, "ann")
    for name in ("", "expired", "stranger"):
        assert shared.refuses(port, name), name
    if port != "grpc":  # see test_revoked_certificate_is_refused_by_grpc_and_rest
        assert shared.refuses(port, "revoked")


def test_rest_handshake_refuses_invalid_certificates_and_admits_none(shared: Site) -> None:
    for name in ("expired", "stranger", "revoked"):
        assert shared.refuses("rest", name), name
    with shared.rest("") as rest:
        assert rest.get("/ping").status_code == 200
        assert rest.get("/v1/health", auth=("bob", PASSWORD)).status_code == 200
        assert rest.get("/v1/health").status_code == 401
        answer = rest.get("/v1/scopes")
        assert answer.status_code == 401
        assert "client certificate" in answer.text
        assert rest.get("/v1/scopes", auth=("bob", PASSWORD)).status_code == 401


# --- users ------------------------------------------------------------------------------------------


def test_certificate_names_user_of_nadi_client(shared: Site) -> None:
    with shared.manager("ann") as manager:
        manager.create_stream("home", "native")
        with manager.create_writer("home", "native") as writer:
            writer.write_event(b"x").result(60)
        assert contents(manager, "native") == [b"x"]
    with shared.manager("reader") as manager:
        assert contents(manager, "native") == [b"x"]
        with pytest.raises(PermissionDeniedError):
            manager.create_stream("home", "more")
    with shared.manager("jürgen müller") as manager:
        assert list(manager.list_scopes()) == []


@pytest.mark.parametrize(("name", "text"), [("unlisted", "lacks 'unlisted'"), ("revoked", "revoked")])
def test_certificate_of_no_user_is_refused_by_grpc_and_rest(shared: Site, name: str, text: str) -> None:
    with shared.manager(name) as manager, pytest.raises(NotAuthenticatedError, match=text):
        manager.create_scope("mine")
    if name == "unlisted":
        with shared.rest(name) as rest:
            answer = rest.get("/v1/scopes")
            assert (answer.status_code, text in answer.text) == (401, True)


def test_password_wins_over_certificate(shared: Site) -> None:
    with shared.manager("reader", Basic("bob", PASSWORD)) as manager:
        manager.create_stream("home", "by-bob")
    with shared.manager("unlisted", Basic("bob", PASSWORD)) as manager:
        manager.create_stream("home", "by-bob-too")
    with shared.manager("ann", Basic("bob", "guessed")) as manager, pytest.raises(NotAuthenticatedError):
        manager.create_stream("home", "by-unlisted")
    with shared.manager("ann", Basic("ann", "")) as manager, pytest.raises(NotAuthenticatedError):
        manager.create_stream("home", "by-unlisted")
    with shared.rest("reader") as rest:
        assert rest.post("/v1/scopes", json={"scopeName": "by-bob"}, auth=("bob", PASSWORD)).status_code == 201
        assert rest.get("/v1/scopes", auth=("bob", "guessed")).status_code == 401
        assert rest.get("/v1/scopes", auth=("reader", "")).status_code == 401


def test_wire_needs_certificate_and_token(shared: Site) -> None:
    """The segment store checks the delegation token, which the controller gives to the certificate's user."""

    async def answer(login: ClientCertificate | None, token: str) -> wire.Command:
        security = Security(login, tls=True, trust_store=str(shared.authority.path))
        endpoint = Endpoint("127.0.0.1", shared.server.store_address[1])
        connection = await SegmentStoreConnection.open(endpoint, 5, security.ssl_context())
        try:
            return await connection.ask(wire.GetStreamSegmentInfo(1, SEGMENT, token), wire.Command, timeout_s=5)
        finally:
            connection.close()

    for name in ("ann", "unlisted"):
        assert isinstance(asyncio.run(answer(shared.files[name].login(), "")), wire.AuthTokenCheckFailed)
    with pytest.raises(UnavailableError, match="certificate"):
        asyncio.run(answer(None, ""))


def test_rest_stores_events_as_the_certificate_s_user(shared: Site) -> None:
    at = "/v1/scopes/home/streams/sent/events"
    with shared.manager("ann") as manager:
        manager.create_stream("home", "sent")
        with shared.rest("ann") as rest:
            assert rest.post(at, content=b"x").status_code == 200
            assert rest.get("/v1/scopes/home/streams/sent").status_code == 200
        with shared.rest("reader") as rest:
            assert rest.post(at, content=b"y").status_code == 403
        assert contents(manager, "sent") == [b"x"]


def test_request_can_t_pretend_to_be_the_server(shared: Site) -> None:
    with shared.rest("unlisted") as rest:
        for value in ("nadi-own", "nadi-own  ann", "nadi-own x ann", "nadi-own ann"):
            assert rest.get("/v1/scopes", headers={"authorization": value}).status_code == 401


def test_web_page_answers_the_certificate_s_user(shared: Site) -> None:
    with shared.rest("ann") as rest:
        assert rest.get("/").status_code == 200
        names = rest.get("/v1/scopes").json()["scopes"]
        assert {"scopeName": "home"} in names


# --- Kafka ------------------------------------------------------------------------------------------


def produced(options: dict[str, Any], topic: str, value: bytes, limit_ms: int = 20_000) -> KafkaError | None:
    """Produce a record; return its error, of the time limit at the latest."""
    errors: list[KafkaError | None] = []
    producer = Producer({**options, "message.timeout.ms": limit_ms})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    (error,) = errors
    return error


def test_certificate_names_user_of_kafka_clients(shared: Site) -> None:
    assert produced(shared.kafka("ann"), "orders", b"x") is None
    consumer = Consumer(shared.kafka("reader", **{"group.id": "g", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"x"
    consumer.close()
    for name in ("reader", "unlisted"):
        error = produced(shared.kafka(name), "orders", b"y", 2_000)
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, name
    consumer = Consumer(shared.kafka("unlisted", **{"group.id": "g"}))
    assert consumer.list_topics(timeout=30).topics == {}
    consumer.close()


def test_kafka_login_wins_over_certificate(shared: Site) -> None:
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "bob"}
    assert produced(shared.kafka("unlisted", **sasl, **{"sasl.password": PASSWORD}), "by-bob", b"x") is None
    assert produced(shared.kafka("ann", **sasl, **{"sasl.password": "guessed"}), "by-ann", b"x", 2_000) is not None


def test_failed_kafka_login_leaves_no_user(shared: Site) -> None:
    """A client that goes on after a refused password doesn't continue as its certificate's user."""
    with Connection(shared.server.kafka_address) as peer:
        context = shared.files["ann"].context(shared.authority.path)
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
        assert peer.metadata("orders").topics[0].error_code == ErrorCode.none
        peer.ask(requests(17, 1).SaslHandshakeRequest(mechanism="PLAIN"))
        login = requests(36, 2).SaslAuthenticateRequest(auth_bytes=b"\0ann\0guessed")
        assert peer.ask(login).error_code == ErrorCode.sasl_authentication_failed
        peer.begin(requests(18, 0).ApiVersionsRequest())
        assert peer.receive()
        peer.begin(requests(16, 0).ListGroupsRequest())
        assert peer.receive() == b""


# --- reloading --------------------------------------------------------------------------------------


def test_changed_files_apply_without_a_restart(tmp_path: Path) -> None:
    """A revocation applies to new connections and to requests of open ones; a new authority and a new certificate of
    the server apply to all ports, and to the server's own clients."""
    with site(tmp_path) as made, made.manager("ann") as ann, made.manager("root") as root:
        ann.create_scope("home")
        ann.create_stream("home", "meters")
        at = "/v1/scopes/home/streams/meters/events"
        with made.rest("ann") as rest:
            assert rest.post(at, content=b"1").status_code == 200
            made.authority.revoke(made.settings / "crl.pem", made.files["ann"])
            assert rest.post(at, content=b"2").status_code == 401
        with pytest.raises(NotAuthenticatedError, match="revoked"):
            ann.create_stream("home", "more")
        assert made.refuses("wire", "ann")
        assert made.refuses("kafka", "ann")

        renewed = Authority(tmp_path / "renewed")
        os.replace(renewed.issue("server", "localhost", "127.0.0.1").certificate, tmp_path / "ca" / "server.pem")
        os.replace(tmp_path / "renewed" / "server.key", tmp_path / "ca" / "server.key")
        renewed.revoke(made.settings / "crl.pem")
        os.replace(renewed.path, made.authority.path)
        made.files["ann"] = Authority.issue(renewed, "ann", file="renewed")
        renewed.path.write_bytes(made.authority.path.read_bytes())
        for port in ("wire", "grpc", "kafka"):
            assert made.refuses(port, "root"), port
            assert not made.refuses(port, "ann"), port
        with made.manager("ann") as again, made.rest("ann") as rest:
            again.create_stream("home", "renewed")
            assert rest.post(at, content=b"3").status_code == 200
            assert contents(again, "meters") == [b"1", b"3"]
        assert produced(made.kafka("ann"), "orders", b"x") is None
        assert root is not None


def test_open_clients_follow_renewed_certificates(tmp_path: Path) -> None:
    """A client outlives a restart of the server in which all certificates and authorities change."""
    authority, users = Authority(tmp_path / "ca"), tmp_path / "users"
    write_users(users, {"ann": User("ann", NO_PASSWORD, Permissions.parse("*,READ_UPDATE"))})
    own, ann = authority.issue("server", "localhost", "127.0.0.1"), authority.issue("ann")
    security = ServerSecurity(
        users_file=users, tls_certificate=own.certificate, tls_key=own.key, tls_client_ca=authority.path
    )
    with nadi.embedded(tmp_path / "data", security=security) as server:
        port = int(server.controller_uri.rpartition(":")[2])
        manager = nadi.StreamManager(
            server.controller_uri, credentials=ann.login(), trust_store=authority.path, timeout=20
        )
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        writer = manager.create_writer("home", "meters")
        writer.write_event(b"1").result(60)
    renewed = Authority(tmp_path / "ca")  # in the same files
    renewed.issue("server", "localhost", "127.0.0.1")
    renewed.issue("ann")
    with nadi.embedded(tmp_path / "data", port=port, security=security), manager:
        assert not manager.create_scope("home")
        writer.write_event(b"2").result(60)
        assert contents(manager, "meters") == [b"1", b"2"]


def test_invalid_files_leave_the_previous_ones_in_effect(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("server", "localhost")
    tls = ServerTls(Path(own.certificate), Path(own.key), authority.path)
    before = tls.context()
    Path(own.key).write_text("not a key")
    assert tls.context() is before
    authority.issue("server", "localhost")
    assert tls.context() is not before


def test_open_client_uses_renewed_certificate(tmp_path: Path) -> None:
    """A long-lived client, whose channel broke, connects with the present certificate files."""
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    files = authority.issue("ann")
    contexts = Security(files.login(), tls=True, trust_store=str(authority.path)).contexts()
    before = contexts()
    assert contexts() is before
    os.replace(other.issue("ann").certificate, files.certificate)
    assert contexts() is before  # certificate and key don't match
    renewed = authority.issue("ann", file="new")
    os.replace(renewed.certificate, files.certificate)
    os.replace(renewed.key, files.key)
    assert contexts() is not before


# --- configuration ----------------------------------------------------------------------------------


def test_server_certificate_must_be_valid_for_clients(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    own = other.issue("server", "localhost")
    users = tmp_path / "users"
    write_users(users, {"ann": User("ann", NO_PASSWORD, Permissions())})
    security = ServerSecurity(
        users_file=users, tls_certificate=own.certificate, tls_key=own.key, tls_client_ca=authority.path
    )
    with pytest.raises(InvalidArgumentError, match="clientAuth"):
        nadi.embedded(tmp_path / "data", security=security)
    good = authority.issue("server", "localhost")
    tls = ServerTls(Path(good.certificate), Path(good.key), authority.path, connects=True)
    before = tls.context()
    os.replace(own.certificate, good.certificate)
    os.replace(own.key, good.key)
    assert tls.context() is before


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_client_ca": "ca.pem"}, "users"),
        ({"tls_client_ca": "ca.pem", "users_file": "users"}, "--tls-cert"),
        ({"tls_client_user": "dns"}, "tls_client_ca"),
        ({"tls_client_crl": "crl.pem"}, "tls_client_ca"),
    ],
)
def test_incomplete_settings_are_rejected(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        nadi.embedded(tmp_path, security=ServerSecurity(**settings))


def test_kafka_door_checks_its_settings() -> None:
    """It must not start without TLS, or without users, if certificates are to name them."""
    certificate, clients = ("--tls-cert", "c.pem"), ("--tls-client-ca", "ca.pem")
    for options, missing in (
        (certificate, "--tls-key"),
        ((*clients, "--users-file", "users"), "--tls-cert"),
        ((*clients, *certificate, "--tls-key", "c.key"), "--users-file"),
    ):
        result = CliRunner().invoke(app, ["kafka", *options], env={"COLUMNS": "200"})
        assert result.exit_code != 0
        assert missing in result.output, result.output


@pytest.mark.parametrize(
    ("field", "identities", "user"),
    [
        ("cn", ("a.example",), "ann"),
        ("dns", ("a.example", "x@mail.example"), "a.example"),
        ("email", ("a.example", "x@mail.example"), "x@mail.example"),
        ("dns", ("a.example", "b.example"), None),
        ("dns", ("x@mail.example",), None),
    ],
)
def test_user_is_the_only_value_of_the_field(
    tmp_path: Path, field: str, identities: tuple[str, ...], user: str | None
) -> None:
    pem = Path(Authority(tmp_path).issue("ann", *identities).certificate).read_text()
    users = ClientCertificates(field)
    if user is not None:
        assert users.user_of(ssl.PEM_cert_to_DER_cert(pem)) == user
        return
    with pytest.raises(NotAuthenticatedError, match="must name its user by one"):
        users.user_of(ssl.PEM_cert_to_DER_cert(pem))


def test_certificate_that_expired_after_the_handshake_is_refused(tmp_path: Path) -> None:
    pem = Path(Authority(tmp_path).issue("ann", not_after=EXPIRED).certificate).read_text()
    with pytest.raises(NotAuthenticatedError, match="2020-01-01"):
        ClientCertificates().user_of(ssl.PEM_cert_to_DER_cert(pem))


def test_passwd_adds_user_without_password(tmp_path: Path) -> None:
    grant = "prn::/scope:home,READ"
    result = CliRunner().invoke(app, ["passwd", str(tmp_path / "users"), "ann", "--no-password", "--grant", grant])
    assert result.exit_code == 0, result.output
    assert read_users(tmp_path / "users")["ann"] == User("ann", NO_PASSWORD, Permissions.parse(grant))


def test_environment_adds_certificate_to_any_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"nadi_client_certificate": "c.pem"}
    with pytest.raises(InvalidArgumentError, match="nadi_client_key"):
        security_of("tls://h:1", environment=environment)
    environment["nadi_client_key"] = "c.key"
    assert security_of("tls://h:1", environment=environment).credentials == ClientCertificate("c.pem", "c.key")
    basic = Basic("ann", "secret")
    both = security_of("tls://h:1", basic, environment=environment).credentials
    assert both == ClientCertificate("c.pem", "c.key", basic)
    assert security_of("tcp://h:1", basic, environment=environment).credentials == basic
    with pytest.raises(InvalidArgumentError, match="tls://"):
        security_of("tcp://h:1", both, environment={})


def test_command_line_uses_certificate_of_the_environment(shared: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    files = shared.files["ann"]
    monkeypatch.setenv("nadi_client_certificate", files.certificate)
    monkeypatch.setenv("nadi_client_key", files.key)
    server = ["--controller", shared.server.controller_uri, "--trust-store", str(shared.authority.path)]
    result = CliRunner().invoke(app, ["scope", "list", *server])
    assert result.exit_code == 0, result.output
    assert "home" in result.output
    rest = RestClient(shared.server.rest_uri, str(shared.authority.path))  # of `nadi cluster` and `nadi doctor`
    assert {"scopeName": "home"} in rest.request("GET", f"{shared.server.rest_uri}/v1/scopes", dict)["scopes"]


# --- clusters ---------------------------------------------------------------------------------------


def test_servers_of_a_cluster_forward_the_certificate_s_user(tmp_path: Path) -> None:
    """The server without the active controller answers as the other one, over gRPC and REST."""
    store = f"file://{tmp_path / 'store'}"
    authority = Authority(tmp_path / "ca")
    users = tmp_path / "users"
    write_users(users, {name: User(name, NO_PASSWORD, Permissions.parse(text)) for name, text in GRANTS.items()})
    own = authority.issue("server", "localhost", "127.0.0.1")
    files = {name: authority.issue(name) for name in ("ann", "reader", "unlisted")}
    security = ServerSecurity(
        users_file=users,
        tls_certificate=own.certificate,
        tls_key=own.key,
        tls_ca=authority.path,
        tls_client_ca=authority.path,
    )

    def started(name: str) -> EmbeddedServer:
        return nadi.embedded(tmp_path / name, store=store, containers=2, security=security, rest_port=0)

    def reached(name: str) -> nadi.StreamManager:
        return nadi.StreamManager(server.controller_uri, credentials=files[name].login(), trust_store=authority.path)

    with started("one") as one, started("two") as two:
        for number, server in enumerate((one, two)):
            with reached("ann") as manager:
                manager.create_scope(f"home{number}")
                manager.create_stream(f"home{number}", "meters")
                with manager.create_writer(f"home{number}", "meters") as writer:
                    writer.write_event(b"x").result(60)
                assert contents(manager, "meters", f"home{number}") == [b"x"]
            with reached("reader") as manager, pytest.raises(PermissionDeniedError):
                manager.create_scope("other")
            with reached("unlisted") as manager, pytest.raises(NotAuthenticatedError):
                manager.create_scope("other")
            with httpx.Client(verify=files["ann"].context(authority.path), timeout=60) as rest:
                assert rest.get(f"{server.rest_uri}/v1/scopes/home{number}/streams").status_code == 200
                events = f"{server.rest_uri}/v1/scopes/home{number}/streams/meters/events"
                assert rest.post(events, content=b"y").status_code == 200
