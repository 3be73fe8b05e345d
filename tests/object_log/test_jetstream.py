"""A log in NATS: which streams and servers it takes, how it gets in, and what it does when they fail."""

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
    """A machine that stops for seconds is no server that doesn't answer."""
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
    found = await engine.get(name, position, length)
    assert found is not None
    return bytes(found)


async def refused(server: NatsServer, url: str = "", **options: str) -> str:
    with pytest.raises(StoreError) as caught:
        await (await open_log(url or url_of([server]), REAL, make=True, **options)).close()
    return str(caught.value)


# --- URLs and options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("nats://host", {}, "a log is nats://host:4222/STREAM"),
        ("nats://host/a.b", {}, "a stream's name is of letters"),
        ("nats:///LOG", {}, "a log is"),
        ("nats://one,,two/LOG", {}, "a log is"),
        ("nats://one:port/LOG", {}, "a log is"),
        ("http://host/LOG", {}, "a log is"),
        ("nats://host/LOG", {"replicas": "6"}, "1 to 5"),
        ("nats://host/LOG", {"replicas": "many"}, "1 to 5"),
        ("nats://host/LOG", {"password": "x"}, "Secrets are set in NATS_PASSWORD"),
        ("nats://host/LOG", {"credentials": "/none.creds"}, "there is no such file"),
    ],
)
def test_what_is_no_log(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        where(url, {}, **options)


def test_secrets_are_in_no_text() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        where("nats://me:hunter22@host/LOG", {})
    assert "hunter22" not in str(caught.value)
    found = where("nats://host/LOG", {"NATS_PASSWORD": "hunter22", "NATS_TOKEN": "sesame22", "NATS_USER": "me"})
    assert found.password == "hunter22"
    assert not any(secret in repr(found) for secret in ("hunter22", "sesame22"))


async def test_the_permissions_of_the_guide_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- servers that it takes -------------------------------------------------------------------------------


async def test_it_passes_the_proof_and_is_left_as_it_was(engine: OwnEngine) -> None:
    await asyncio.gather(*(prove(engine, None, REAL) for _ in range(3)))
    assert [page async for page in engine.listed("")] == []


async def test_a_single_server_has_one_copy_and_says_so(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await (await open_log(url_of([server]), REAL, make=True)).close()
    assert "has one copy" in caplog.text
    assert "1 replicas, and 3 are wanted" in await refused(server, replicas="3")


async def test_one_that_takes_small_messages_only_is_told(tmp_path: Path) -> None:
    with nats_servers(tmp_path, more="max_payload: 1MB") as servers:
        assert "write `max_payload: 32MB` into the configuration" in await refused(servers[0])


async def test_the_largest_object_fits(engine: OwnEngine) -> None:
    body = bytes(range(256)) * (22 << 12)
    assert await created(engine, "log/0/1/1", body)
    assert await got(engine, "log/0/1/1") == body
    assert await got(engine, "log/0/1/1", len(body) - 3, 10) == body[-3:]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"discard": "old"}, "discard new messages"),
        ({"max_age": 3_600_000_000_000}, "no maximum age"),
        ({"storage": "memory"}, "storage must be file"),
        ({"retention": "workqueue"}, "retention must be limits"),
        ({"subjects": ["LOG.>", "more"]}, "its subjects must be LOG.>"),
        ({"max_msgs_per_subject": 1}, "no maximum of messages of a subject"),
        ({"max_msg_size": 1_000_000}, "no maximum message size"),
        ({"deny_purge": True}, "allow to purge"),
        ({"no_ack": True}, "must acknowledge"),
    ],
)
async def test_a_stream_that_may_lose_something_is_refused(
    server: NatsServer, setting: dict[str, object], said: str
) -> None:
    config = {"name": "LOG", "subjects": ["LOG.>"], "storage": "file", "discard": "new", "num_replicas": 1} | setting
    assert not isinstance(await call(server, "STREAM.CREATE.LOG", config), Problem)
    assert said in await refused(server)


async def test_a_server_without_jetstream_is_told(tmp_path: Path) -> None:
    with nats_servers(
        tmp_path, more='max_payload: 32MB\naccounts { A: { users: [{user: "a", password: "b"}] } }\nno_auth_user: "a"'
    ) as servers:
        assert "turn JetStream on" in await refused(servers[0])


async def test_nobody_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "PATIENCE_S", 0.2)
    with pytest.raises(UnavailableError, match="no NATS server can be reached"):
        await open_log("nats://127.0.0.1:1,127.0.0.1:2/LOG", REAL, make=True)


# --- getting in ------------------------------------------------------------------------------------------


async def test_passwords_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = 'max_payload: 32MB\nauthorization { user: "me", password: "hunter22" }'
    with nats_servers(tmp_path, more=guard) as servers:
        text = await refused(servers[0])
        assert "doesn't let this server in" in text
        monkeypatch.setenv("NATS_PASSWORD", "hunter23")
        text = await refused(servers[0], user="me")
        assert "hunter23" not in text
        monkeypatch.setenv("NATS_PASSWORD", "hunter22")
        engine = await open_log(url_of(servers), REAL, make=True, user="me")
        assert await engine.create("a", [b"x"])
        await engine.close()


async def test_what_is_forbidden_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.object_log.jetstream.connection.TIMEOUT_S", 0.5)
    guard = (
        'max_payload: 32MB\nauthorization { users: [{ user: "me", password: "p", '
        'permissions: { publish: { deny: "$JS.API.STREAM.CREATE.>" } } }] }'
    )
    monkeypatch.setenv("NATS_PASSWORD", "p")
    with nats_servers(tmp_path, more=guard) as servers:
        text = await refused(servers[0], user="me")
        assert "it forbids that" in text
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


async def test_a_server_without_tls_learns_nothing(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would send it the password in clear."""
    monkeypatch.setenv("NATS_TOKEN", "sesame22")
    text = await refused(server, url_of([server]).replace("nats://", "tls://"))
    assert "can't agree on TLS" in text


# --- when they fail --------------------------------------------------------------------------------------


async def test_it_goes_on_when_its_server_is_back(engine: OwnEngine, server: NatsServer) -> None:
    assert await engine.create("log/0/1/1", [b"x"])
    server.kill()
    with pytest.raises(UnavailableError, match="NATS can't store log/0/1/2"):
        await engine.create("log/0/1/2", [b"y"])
    server.start()
    assert await created(engine, "log/0/1/2", b"y")
    assert await got(engine, "log/0/1/1") == b"x"


@pytest.mark.parametrize(
    "bodies",
    [[b"small"], [bytes(20 << 20)] * 5, [bytes(20 << 20), b"the connection has no room for this"]],
    ids=["sent", "being sent", "to be sent"],
)
async def test_what_is_under_way_ends_with_the_connection(
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
    assert "no answer in" not in str(results), "they were told only when their time was over"


@asynccontextmanager
async def stalling(server: NatsServer, stalls: asyncio.Event) -> AsyncIterator[str]:
    """The address of a way to a server. Once it stalls it takes in no more, and has no more to say."""

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, server.port)
        ways = [asyncio.create_task(passed_on(reader, requests)), asyncio.create_task(passed_on(answers, writer))]
        await stalls.wait()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if not writer.is_closing():
            writer.write_eof()
        await over.wait()
        for one in (writer, requests):
            one.transport.abort()
        await asyncio.gather(writer.wait_closed(), requests.wait_closed(), return_exceptions=True)

    over, visits = asyncio.Event(), list[asyncio.Task[None]]()
    way = await asyncio.start_server(lambda *streams: visits.append(asyncio.create_task(came(*streams))), HOST)
    try:
        yield f"nats://{HOST}:{way.sockets[0].getsockname()[1]}/LOG"
    finally:
        way.close()
        stalls.set()
        over.set()
        await asyncio.gather(*visits)


@pytest.mark.parametrize("ends", ["the other side", "this side"])
async def test_nothing_waits_for_a_side_that_takes_nothing_in(server: NatsServer, ends: str) -> None:
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
        assert "no answer in" not in str(results), "they were told only when their time was over"
        await engine.close()


async def test_a_stream_that_was_lost_is_never_taken_for_an_empty_one(engine: OwnEngine, server: NatsServer) -> None:
    assert await engine.create("log/0/1/1", [b"x"])
    assert not isinstance(await call(server, "STREAM.DELETE.LOG", {}), Problem)
    with pytest.raises(UnavailableError, match="the log's stream isn't there any more"):
        await engine.get("log/0/1/1")
    with pytest.raises(StoreError, match="restore the stream"):
        await open_log(url_of([server]), REAL, make=False)
    await (await open_log(url_of([server]), REAL, make=True)).close()
    with pytest.raises(UnavailableError, match="has forgotten messages that it acknowledged"):
        await engine.create("log/0/1/2", [b"y"])
    with pytest.raises(UnavailableError, match="Nothing more is stored"):
        await engine.create("log/0/1/3", [b"y"])


def test_what_errors_mean() -> None:
    assert type(error_for("a", Problem(10164, 400, "wrong last sequence"))) is UnavailableError
    assert type(error_for("a", Problem(10047, 500, "insufficient storage"))) is StorageFullError


async def test_one_that_is_full(engine: OwnEngine, server: NatsServer) -> None:
    config = {"name": "LOG", "subjects": ["LOG.>"], "discard": "new", "num_replicas": 1, "max_bytes": 10_000}
    assert not isinstance(await call(server, "STREAM.UPDATE.LOG", config), Problem)
    with pytest.raises(StorageFullError, match="give JetStream more"):
        await engine.create("a", [bytes(20_000)])
    assert await engine.get("a") is None
    assert await engine.create("b", [b"x"])


async def test_names_never_share_a_subject(engine: OwnEngine) -> None:
    assert isinstance(engine, JetStreamEngine)
    for name in ("a.b/c", "a/b.c", "a.b.c", "a/b/c"):
        assert await engine.create(name, [name.encode()])
    found = {name: size async for page in engine.listed("") for name, size in page.items()}
    assert found == dict.fromkeys(("a.b/c", "a/b.c", "a.b.c", "a/b/c"), 5)


class Answering:
    """A connection whose server gives answers of a size, and may break."""

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
        """How many are under way at once."""
        self.most, self.size_bytes = 0, size_bytes
        reads = (self.connection.read("read", "subject", b"") for _ in range(count))
        await asyncio.gather(*reads, return_exceptions=True)
        return self.most


async def test_as_many_are_read_at_once_as_their_answers_have_room() -> None:
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


async def test_a_read_that_waits_for_room_ends_in_its_time(
    engine: OwnEngine, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await created(engine, "a", b"x")
    assert await got(engine, "a") == b"x"
    server.pause()
    monkeypatch.setattr("nadi.object_log.jetstream.connection.TIMEOUT_S", 1.0)
    reads = [engine.get(f"log/0/1/{number}") for number in range(400)]
    async with asyncio.timeout(30):
        found = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(one) for one in found} == {UnavailableError}
    assert {str(one).partition(": ")[2] for one in found} == {"no answer in 1 s; it is tried again"}


async def test_many_large_ones_are_read_at_once(engine: OwnEngine) -> None:
    """Together they are far over what a server keeps for a client that doesn't take it in."""
    bodies = {f"log/0/1/{number}": bytes([number]) * (8 << 20) for number in range(24)}
    for name, body in bodies.items():
        assert await created(engine, name, body)
    found = await asyncio.gather(*(engine.get(name) for name in bodies), return_exceptions=True)
    assert [one for one in found if isinstance(one, BaseException)] == []
    assert [bytes(one) for one in found if isinstance(one, memoryview)] == [*bodies.values()]


async def test_large_ones_after_many_small_ones_are_read_in_the_end(engine: OwnEngine) -> None:
    body = bytes(16 << 20)
    for number in range(8):
        assert await created(engine, f"large/{number}", body)
    assert await created(engine, "small", b"x")
    for _ in range(30):
        assert await got(engine, "small") == b"x"
    found = await asyncio.gather(*(known(lambda n=number: engine.get(f"large/{n}")) for number in range(8)))  # type: ignore[misc]
    assert [bytes(one) for one in found if one is not None] == [body] * 8


# --- whose it is -----------------------------------------------------------------------------------------


async def test_a_cluster_keeps_its_log(engine: OwnEngine, server: NatsServer) -> None:
    store, _ = await open_engines("memory:///", REAL)
    log = OwnLog(LOG, engine)
    made = await asyncio.gather(*(open_cluster(store, 3, REAL, log) for _ in range(5)))
    assert len(set(made)) == 1
    assert made[0].log is not None
    assert made[0].log.name == LOG
    with pytest.raises(InvalidArgumentError, match="start it with --log nats://…/LOG"):
        await open_cluster(store, None, REAL)
    with pytest.raises(InvalidArgumentError, match=r"has its log in nats:LOG.*started with one in nats:OTHER"):
        await known_cluster(store, "nats:OTHER", REAL)
    await call(server, "STREAM.PURGE.LOG", {})
    with pytest.raises(StoreError, match="isn't the one that this cluster has"):
        await open_cluster(store, None, REAL, log)


async def test_two_clusters_never_have_one_log(engine: OwnEngine) -> None:
    one, _ = await open_engines("memory:///", REAL)
    two, _ = await open_engines("memory:///", REAL)
    log = OwnLog(LOG, engine)
    await open_cluster(one, 3, REAL, log)
    with pytest.raises(StoreError, match="is that of another cluster"):
        await open_cluster(two, 3, REAL, log)


async def test_a_cluster_without_such_a_log_keeps_that(engine: OwnEngine) -> None:
    store, _ = await open_engines("memory:///", REAL)
    await open_cluster(store, 3, REAL)
    written = await store.get("cluster.json")
    assert written is not None
    assert "log" not in msgspec.json.decode(value_of(bytes(written)) or b"")  # so that versions before this one read it
    with pytest.raises(InvalidArgumentError, match="leave out --log"):
        await open_cluster(store, None, REAL, OwnLog(LOG, engine))


async def test_a_stream_with_something_else_in_it(engine: OwnEngine) -> None:
    store, _ = await open_engines("memory:///", REAL)
    await engine.create("orders/1", [b"x"])
    with pytest.raises(StoreError, match="holds orders/1, and isn't a cluster's"):
        await open_cluster(store, 3, REAL, OwnLog(LOG, engine))
