"""A log in NATS: accepted streams and servers, login, and failures."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from nats import errors

from nadi.errors import InvalidArgumentError, StorageFullError, StoreError, UnavailableError
from nadi.object_log import outcomes
from nadi.object_log.checksummed_lines import value_of
from nadi.object_log.engine import OwnEngine
from nadi.object_log.identity import OwnLog, known_cluster, open_cluster
from nadi.object_log.jetstream.connection import JetStreamConnection, Problem, error_for
from nadi.object_log.jetstream.engine import JetStreamEngine
from nadi.object_log.jetstream.location import where
from nadi.object_log.opening import open_engines, open_log
from nadi.object_log.store_probe import prove
from nadi.runtime import REAL
from tests.access.support import certificate
from tests.support.engines import created, known
from tests.support.nats import HOST, NatsServer, nats_servers, url_of

LOG = "nats:LOG"
GUIDE = (Path(__file__).parents[2] / "docs" / "jetstream.md").read_text()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits, because the test machine may pause for seconds."""
    monkeypatch.setattr("nadi.object_log.jetstream.connection.TIMEOUT_S", 60.0)
    monkeypatch.setattr("nadi.object_log.jetstream.connection._CONNECT_S", 30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_servers(tmp_path / "nats") as servers:
        yield servers[0]


@pytest.fixture
async def engine(server: NatsServer) -> AsyncIterator[OwnEngine]:
    engine = await open_log(url_of([server]), REAL, make=True)
    yield engine
    await engine.close()


async def call(server: NatsServer, subject: str, request: object) -> object:
    connection = JetStreamConnection(where(url_of([server]), {}), 0)
    try:
        return await connection.call("test", subject, request, dict)
    finally:
        await connection.close()


async def got(engine: OwnEngine, name: str, position: int = 0, length: int | None = None) -> bytes:
    data = await engine.get(name, position, length)
    assert data is not None
    return bytes(data)


async def refused(server: NatsServer, url: str = "", **options: str) -> str:
    with pytest.raises(StoreError) as caught:
        await (await open_log(url or url_of([server]), REAL, make=True, **options)).close()
    return str(caught.value)


# --- URLs and options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "data"),
    [
        ("nats://host", {}, "nats://host"),
        ("nats://host/a.b", {}, "nats://host/a.b"),
        ("nats:///LOG", {}, "nats:///LOG"),
        ("nats://one,,two/LOG", {}, "nats://one,,two/LOG"),
        ("nats://one:port/LOG", {}, "nats://one:port/LOG"),
        ("http://host/LOG", {}, "http://host/LOG"),
        ("nats://host/LOG", {"replicas": "6"}, "1 to 5"),
        ("nats://host/LOG", {"replicas": "many"}, "1 to 5"),
        ("nats://host/LOG", {"password": "x"}, "NATS_PASSWORD"),
        ("nats://host/LOG", {"credentials": "/none.creds"}, "/none.creds"),
    ],
)
def test_invalid_url_or_option_is_rejected(url: str, options: dict[str, str], data: str) -> None:
    with pytest.raises(InvalidArgumentError, match=data):
        where(url, {}, **options)


def test_secrets_are_not_in_messages_or_repr() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        where("nats://me:hunter22@host/LOG", {})
    assert "hunter22" not in str(caught.value)
    location = where("nats://host/LOG", {"NATS_PASSWORD": "hunter22", "NATS_TOKEN": "sesame22", "NATS_USER": "me"})
    assert location.password == "hunter22"
    assert not any(secret in repr(location) for secret in ("hunter22", "sesame22"))


async def test_permissions_in_the_guide_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = re.findall(r"`([^`]+)`", GUIDE.partition("Permissions: publish to")[2].partition("|")[0])
    publish = ", ".join(f'"{subject.replace("NADI", "LOG")}"' for subject in named[:-1])
    allowed = f'publish: [{publish}], subscribe: ["{named[-1]}"]'
    guard = (
        f'max_payload: 32MB\nauthorization {{ users: [{{ user: "me", password: "p", permissions: {{ {allowed} }} }}] }}'
    )
    monkeypatch.setenv("NATS_PASSWORD", "p")
    with nats_servers(tmp_path, more=guard) as servers:
        engine = await open_log(url_of(servers), REAL, make=True, user="me")
        await prove(engine, None, REAL)
        await engine.close()


# --- accepted servers ------------------------------------------------------------------------------------


async def test_proof_passes_and_leaves_the_log_unchanged(engine: OwnEngine) -> None:
    await asyncio.gather(*(prove(engine, None, REAL) for _ in range(3)))
    assert [page async for page in engine.listed("")] == []


async def test_single_server_logs_a_warning(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await (await open_log(url_of([server]), REAL, make=True)).close()
    assert "a single copy" in caplog.text
    assert "1 replicas instead of 3" in await refused(server, replicas="3")


async def test_server_with_small_max_payload_is_rejected(tmp_path: Path) -> None:
    with nats_servers(tmp_path, more="max_payload: 1MB") as servers:
        assert "`max_payload: 32MB`" in await refused(servers[0])


async def test_the_largest_object_fits(engine: OwnEngine) -> None:
    body = bytes(range(256)) * (22 << 12)
    assert await created(engine, "log/0/1/1", body)
    assert await got(engine, "log/0/1/1") == body
    assert await got(engine, "log/0/1/1", len(body) - 3, 10) == body[-3:]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"discard": "old"}, "discard new messages"),
        ({"max_age": 3_600_000_000_000}, "age of messages"),
        ({"storage": "memory"}, "storage must be file"),
        ({"retention": "workqueue"}, "retention must be limits"),
        ({"subjects": ["LOG.>", "more"]}, "its subjects must be LOG.>"),
        ({"max_msgs_per_subject": 1}, "messages per subject"),
        ({"max_msg_size": 1_000_000}, "message size"),
        ({"deny_purge": True}, "purging"),
        ({"no_ack": True}, "acknowledge"),
    ],
)
async def test_unsuitable_stream_is_rejected(server: NatsServer, setting: dict[str, object], message: str) -> None:
    config = {"name": "LOG", "subjects": ["LOG.>"], "storage": "file", "discard": "new", "num_replicas": 1} | setting
    assert not isinstance(await call(server, "STREAM.CREATE.LOG", config), Problem)
    assert message in await refused(server)


async def test_server_without_jetstream_is_rejected(tmp_path: Path) -> None:
    with nats_servers(
        tmp_path, more='max_payload: 32MB\naccounts { A: { users: [{user: "a", password: "b"}] } }\nno_auth_user: "a"'
    ) as servers:
        assert "enable JetStream" in await refused(servers[0])


async def test_unreachable_server_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "PATIENCE_S", 0.2)
    with pytest.raises(UnavailableError):
        await open_log("nats://127.0.0.1:1,127.0.0.1:2/LOG", REAL, make=True)


# --- login -----------------------------------------------------------------------------------------------


async def test_passwords_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = 'max_payload: 32MB\nauthorization { user: "me", password: "hunter22" }'
    with nats_servers(tmp_path, more=guard) as servers:
        text = await refused(servers[0])
        assert "login" in text
        monkeypatch.setenv("NATS_PASSWORD", "hunter23")
        text = await refused(servers[0], user="me")
        assert "hunter23" not in text
        monkeypatch.setenv("NATS_PASSWORD", "hunter22")
        engine = await open_log(url_of(servers), REAL, make=True, user="me")
        assert await engine.create("a", [b"x"])
        await engine.close()


async def test_missing_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.object_log.jetstream.connection.TIMEOUT_S", 0.5)
    guard = (
        'max_payload: 32MB\nauthorization { users: [{ user: "me", password: "p", '
        'permissions: { publish: { deny: "$JS.API.STREAM.CREATE.>" } } }] }'
    )
    monkeypatch.setenv("NATS_PASSWORD", "p")
    with nats_servers(tmp_path, more=guard) as servers:
        text = await refused(servers[0], user="me")
        assert "permission denied" in text
        assert "stream.create" in text


@pytest.mark.uvloop
async def test_tls_in_a_servers_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await test_tls(tmp_path, monkeypatch)


async def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificate(tmp_path, "127.0.0.1")
    guard = f'max_payload: 32MB\ntls {{ cert_file: "{made.certificate}", key_file: "{made.key}" }}'
    with nats_servers(tmp_path / "nats", more=guard) as servers:
        url = url_of(servers).replace("nats://", "tls://")
        engine = await open_log(url, REAL, make=True, ca=str(made.authority))
        assert await engine.create("a", [b"x"])
        await engine.close()
        monkeypatch.setattr(outcomes, "PATIENCE_S", 0.2)
        with pytest.raises((StoreError, UnavailableError), match=r"(?i)tls|certificate"):
            await open_log(url, REAL, make=True)  # another authority


async def test_server_without_tls_gets_no_credentials(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would send the password unencrypted."""
    monkeypatch.setenv("NATS_TOKEN", "sesame22")
    text = await refused(server, url_of([server]).replace("nats://", "tls://"))
    assert "TLS" in text


# --- failures --------------------------------------------------------------------------------------------


async def test_engine_recovers_with_its_server(engine: OwnEngine, server: NatsServer) -> None:
    assert await engine.create("log/0/1/1", [b"x"])
    server.kill()
    with pytest.raises(UnavailableError, match="log/0/1/2"):
        await engine.create("log/0/1/2", [b"y"])
    server.start()
    assert await created(engine, "log/0/1/2", b"y")
    assert await got(engine, "log/0/1/1") == b"x"


@pytest.mark.parametrize(
    "bodies",
    [[b"small"], [bytes(20 << 20)] * 5, [bytes(20 << 20), b"exceeds the connection's buffer"]],
    ids=["sent", "being sent", "to be sent"],
)
async def test_pending_puts_fail_when_the_connection_ends(
    engine: OwnEngine, server: NatsServer, bodies: list[bytes]
) -> None:
    server.pause()
    under_way = []
    for number, body in enumerate(bodies):
        under_way.append(asyncio.create_task(engine.create(f"log/0/1/{number}", [body])))
        await REAL.sleep(0.02)
    server.kill()
    results = await asyncio.gather(*under_way, return_exceptions=True)
    assert all(isinstance(result, UnavailableError) for result in results), results
    assert "no answer in" not in str(results), "failed only after the timeout"


@asynccontextmanager
async def stalling(server: NatsServer, stalls: asyncio.Event) -> AsyncIterator[str]:
    """Yield the URL of a proxy to the server that, once stalled, neither reads nor writes."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, server.port)
        ways = [asyncio.create_task(forward(reader, requests)), asyncio.create_task(forward(answers, writer))]
        await stalls.wait()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if not writer.is_closing():
            writer.write_eof()
        await over.wait()
        for stream in (writer, requests):
            stream.transport.abort()
        await asyncio.gather(writer.wait_closed(), requests.wait_closed(), return_exceptions=True)

    over, visits = asyncio.Event(), list[asyncio.Task[None]]()
    way = await asyncio.start_server(lambda *streams: visits.append(asyncio.create_task(serve(*streams))), HOST)
    try:
        yield f"nats://{HOST}:{way.sockets[0].getsockname()[1]}/LOG"
    finally:
        way.close()
        stalls.set()
        over.set()
        await asyncio.gather(*visits)


@pytest.mark.parametrize("ends", ["the other side", "this side"])
async def test_puts_end_though_a_peer_does_not_read(server: NatsServer, ends: str) -> None:
    stalls = asyncio.Event()
    async with stalling(server, stalls) as url:
        engine = await open_log(url, REAL, make=True)
        if ends == "this side":
            server.pause()
        else:
            stalls.set()
        under_way = [asyncio.create_task(engine.create(f"log/0/1/{number}", [bytes(20 << 20)])) for number in range(2)]
        await REAL.sleep(0.2)
        if ends == "this side":
            await engine.close()
        results = await asyncio.gather(*under_way, return_exceptions=True)
        assert all(isinstance(result, UnavailableError) for result in results), results
        assert "no answer in" not in str(results), "failed only after the timeout"
        await engine.close()


async def test_lost_stream_is_never_mistaken_for_an_empty_one(engine: OwnEngine, server: NatsServer) -> None:
    assert await engine.create("log/0/1/1", [b"x"])
    assert not isinstance(await call(server, "STREAM.DELETE.LOG", {}), Problem)
    with pytest.raises(UnavailableError, match="no longer exists"):
        await engine.get("log/0/1/1")
    with pytest.raises(StoreError):
        await open_log(url_of([server]), REAL, make=False)
    await (await open_log(url_of([server]), REAL, make=True)).close()
    with pytest.raises(UnavailableError, match="lost acknowledged messages"):
        await engine.create("log/0/1/2", [b"y"])
    with pytest.raises(UnavailableError, match="lost acknowledged messages"):
        await engine.create("log/0/1/3", [b"y"])


def test_errors_are_mapped() -> None:
    assert type(error_for("a", Problem(10164, 400, "wrong last sequence"))) is UnavailableError
    assert type(error_for("a", Problem(10047, 500, "insufficient storage"))) is StorageFullError


async def test_full_stream_raises_storage_full(engine: OwnEngine, server: NatsServer) -> None:
    config = {"name": "LOG", "subjects": ["LOG.>"], "discard": "new", "num_replicas": 1, "max_bytes": 10_000}
    assert not isinstance(await call(server, "STREAM.UPDATE.LOG", config), Problem)
    with pytest.raises(StorageFullError):
        await engine.create("a", [bytes(20_000)])
    assert await engine.get("a") is None
    assert await engine.create("b", [b"x"])


async def test_names_never_share_a_subject(engine: OwnEngine) -> None:
    assert isinstance(engine, JetStreamEngine)
    for name in ("a.b/c", "a/b.c", "a.b.c", "a/b/c"):
        assert await engine.create(name, [name.encode()])
    sizes = {name: size async for page in engine.listed("") for name, size in page.items()}
    assert sizes == dict.fromkeys(("a.b/c", "a/b.c", "a.b.c", "a/b/c"), 5)


class Answering:
    """Connection to a fake server with answers of a given size, which may break."""

    def __init__(self) -> None:
        self.connection = JetStreamConnection(where("nats://host/LOG", {}), 0)
        self.connection._connected = self._connected  # type: ignore[method-assign]
        self.is_connected, self.forbidden, self.last = True, "", "broke"
        self.size_bytes = self.under_way = self.most = 0

    async def _connected(self) -> Any:
        return self

    async def ask(self, subject: str, payload: bytes) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if not self.is_connected:
            raise errors.ConnectionClosedError
        return SimpleNamespace(data=bytes(self.size_bytes))

    async def reads(self, count: int, size_bytes: int) -> int:
        """Return the largest number of concurrent reads."""
        self.most, self.size_bytes = 0, size_bytes
        reads = (self.connection.read("read", "subject", b"") for _ in range(count))
        await asyncio.gather(*reads, return_exceptions=True)
        return self.most


async def test_concurrent_reads_are_limited_by_estimated_size() -> None:
    server = Answering()
    assert await server.reads(5, 1_000) == 5
    for _ in range(15):
        await server.reads(1, 1_000)
    assert await server.reads(64, 1_000) == 64
    await server.reads(1, 8 << 20)
    assert await server.reads(3, 8 << 20) == 3
    server.is_connected = False
    await server.reads(1, 0)
    server.is_connected = True
    assert await server.reads(2, 8 << 20) == 1
    assert await server.reads(2, 8 << 20) == 2


async def test_queued_reads_time_out(engine: OwnEngine, server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await created(engine, "a", b"x")
    assert await got(engine, "a") == b"x"
    server.pause()
    monkeypatch.setattr("nadi.object_log.jetstream.connection.TIMEOUT_S", 1.0)
    reads = [engine.get(f"log/0/1/{number}") for number in range(400)]
    async with asyncio.timeout(30):
        results = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(result) for result in results} == {UnavailableError}
    assert all("no answer in 1 s" in str(result) for result in results)


async def test_many_large_objects_are_read_concurrently(engine: OwnEngine) -> None:
    """Together they far exceed what a server buffers for a slow client."""
    bodies = {f"log/0/1/{number}": bytes([number]) * (8 << 20) for number in range(24)}
    for name, body in bodies.items():
        assert await created(engine, name, body)
    results = await asyncio.gather(*(engine.get(name) for name in bodies), return_exceptions=True)
    assert [result for result in results if isinstance(result, BaseException)] == []
    assert [bytes(result) for result in results if isinstance(result, memoryview)] == [*bodies.values()]


async def test_large_objects_after_many_small_ones_are_read(engine: OwnEngine) -> None:
    body = bytes(16 << 20)
    for number in range(8):
        assert await created(engine, f"large/{number}", body)
    assert await created(engine, "small", b"x")
    for _ in range(30):
        assert await got(engine, "small") == b"x"
    results = await asyncio.gather(*(known(lambda n=number: engine.get(f"large/{n}")) for number in range(8)))  # type: ignore[misc]
    assert [bytes(result) for result in results if result is not None] == [body] * 8


# --- ownership of a log ----------------------------------------------------------------------------------


async def test_cluster_is_bound_to_its_log(engine: OwnEngine, server: NatsServer) -> None:
    store, _ = await open_engines("memory:///", REAL)
    log = OwnLog(LOG, engine)
    made = await asyncio.gather(*(open_cluster(store, 3, REAL, log) for _ in range(5)))
    assert len(set(made)) == 1
    assert made[0].log is not None
    assert made[0].log.name == LOG
    with pytest.raises(InvalidArgumentError, match="nats://…/LOG"):
        await open_cluster(store, None, REAL)
    with pytest.raises(InvalidArgumentError, match=r"nats:LOG.*nats:OTHER"):
        await known_cluster(store, "nats:OTHER", REAL)
    await call(server, "STREAM.PURGE.LOG", {})
    with pytest.raises(StoreError, match="nats:LOG"):
        await open_cluster(store, None, REAL, log)


async def test_log_is_bound_to_one_cluster(engine: OwnEngine) -> None:
    first, _ = await open_engines("memory:///", REAL)
    second, _ = await open_engines("memory:///", REAL)
    log = OwnLog(LOG, engine)
    await open_cluster(first, 3, REAL, log)
    with pytest.raises(StoreError, match="another cluster"):
        await open_cluster(second, 3, REAL, log)


async def test_cluster_without_separate_log_rejects_one(engine: OwnEngine) -> None:
    store, _ = await open_engines("memory:///", REAL)
    await open_cluster(store, 3, REAL)
    written = await store.get("cluster.json")
    assert written is not None
    assert "log" not in msgspec.json.decode(value_of(bytes(written)) or b"")  # so that earlier versions can read it
    with pytest.raises(InvalidArgumentError, match="--log"):
        await open_cluster(store, None, REAL, OwnLog(LOG, engine))


async def test_stream_with_other_messages_is_rejected(engine: OwnEngine) -> None:
    store, _ = await open_engines("memory:///", REAL)
    await engine.create("orders/1", [b"x"])
    with pytest.raises(StoreError, match="orders/1"):
        await open_cluster(store, 3, REAL, OwnLog(LOG, engine))
