"""Events over HTTP, to a server: stored before the response, and once with an Idempotency-Key."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

import nadi
from nadi.config import ServerSecurity
from nadi.limits import INGEST_BODY_MAX_BYTES, INGEST_LARGE_AT_ONCE, INGEST_LITTLE_BYTES
from nadi.standalone.embedded import EmbeddedServer
from nadi.wire.rpc import logs_pb2
from tests.access.support import PASSWORD, certificate, guarded, user
from tests.support.ports import free_port
from tests.support.waiting import until

NDJSON = {"content-type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def rest(server: EmbeddedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.rest_uri, timeout=60) as client:
        yield client


_numbers = itertools.count()


@pytest.fixture
def stream(manager: nadi.StreamManager) -> str:
    name = f"stream-{next(_numbers)}"
    manager.create_stream("in", name, 3)
    return name


def path(stream: str) -> str:
    return f"/v1/scopes/in/streams/{stream}/events"


def stored(manager: nadi.StreamManager, stream: str, scope: str = "in") -> list[bytes]:
    tail = manager.stream_info(scope, stream).tail
    return [event.data for event in manager.read_events(scope, stream, end=tail)]


def lines(count: int, first: int = 0) -> bytes:
    return b"".join(b'{"meter": "m%d", "number": %d}\n' % (n % 7, n) for n in range(first, first + count))


def test_answered_events_are_stored(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    assert rest.post(path(stream), content=b"one", params={"key": "k"}).json() == {"written": 1}
    assert rest.post(path(stream), content=lines(1000), params={"key-field": "meter"}, headers=NDJSON).json() == {
        "written": 1000
    }
    assert rest.post(path(stream), content=b"", headers=NDJSON).json() == {"written": 0}
    packed = gzip.compress(lines(10, 5000))
    assert rest.post(path(stream), content=packed, headers={**NDJSON, "content-encoding": "gzip"}).status_code == 200
    found = stored(manager, stream)
    assert sorted(found) == sorted([b"one", *lines(1000).splitlines(), *lines(10, 5000).splitlines()])
    for meter in range(7):
        of_meter = [json.loads(one)["number"] for one in found if b'"m%d"' % meter in one and len(one) < 100]
        assert [n for n in of_meter if n < 5000] == sorted(n for n in of_meter if n < 5000)


@pytest.mark.parametrize(
    ("pack", "count"),
    [
        (lambda: gzip.compress(lines(3)) + gzip.compress(lines(2, 3)), 5),
        (lambda: gzip.compress(b"") + gzip.compress(lines(5)) + gzip.compress(b""), 5),
        (lambda: b"".join(gzip.compress(lines(1, n)) for n in range(5)), 5),
        (lambda: gzip.compress(lines(5)) + bytes(512), 5),  # as tapes and block devices pad it: gzip takes it, too
        (lambda: gzip.compress(lines(5)[:50]) + gzip.compress(lines(5)[50:]), 5),
        (lambda: gzip.compress(b""), 0),
    ],
    ids=["two", "empty-ones", "one-for-each-line", "padded", "within-a-line", "nothing"],
)
def test_gzip_of_any_number_of_members_is_taken(
    rest: httpx.Client, manager: nadi.StreamManager, stream: str, pack: Callable[[], bytes], count: int
) -> None:
    response = rest.post(path(stream), content=pack(), headers={**NDJSON, "content-encoding": "gzip"})
    assert response.json() == {"written": count}
    assert sorted(stored(manager, stream)) == sorted(lines(count).splitlines())


def test_gzip_that_is_damaged_or_too_large_in_a_later_member_is_refused(
    rest: httpx.Client, manager: nadi.StreamManager, stream: str
) -> None:
    first, second = gzip.compress(lines(1)), gzip.compress(lines(1, 1))
    half = gzip.compress(b" " * (INGEST_BODY_MAX_BYTES // 2 + 1))
    for body, status in (
        (first + second[:-5], 400),
        (first + b"more", 400),
        (first + second[:-8] + bytes(8), 400),
        (b"", 400),
        (half + half, 413),
    ):
        assert rest.post(path(stream), content=body, headers={"content-encoding": "gzip"}).status_code == status
    assert stored(manager, stream) == []


def test_otlp_says_which_records_were_rejected(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    records = [{"body": {"stringValue": "a"}}, {"body": {"intValue": "x"}}, {"body": 7}, {"body": {"intValue": 1}}]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    to = {"nadi-stream": f"in/{stream}", "content-type": "application/json", "content-encoding": "gzip"}
    response = rest.post("/v1/logs", content=gzip.compress(body[:20]) + gzip.compress(body[20:]), headers=to)
    assert response.status_code == 200
    partial = response.json()["partialSuccess"]
    assert partial["rejectedLogRecords"] == "2"
    assert partial["errorMessage"].startswith("record 2: intValue is 'x'")
    assert sorted(stored(manager, stream)) == [b'{"body":"a"}', b'{"body":1}']
    assert rest.post("/v1/logs", json={}, headers={"nadi-stream": f"in/{stream}"}).json() == {}
    name = logs_pb2.Pair(key="service.name", value=logs_pb2.Value(bool_value=True))
    logs = [
        logs_pb2.ResourceLogs(resource=resource, scope_logs=[logs_pb2.ScopeLogs(log_records=[logs_pb2.Record()])])
        for resource in (logs_pb2.Attributes(attributes=[name]), logs_pb2.Attributes())
    ]
    to = {"nadi-stream": f"in/{stream}", "content-type": "application/x-protobuf"}
    answer = rest.post("/v1/logs", content=logs_pb2.Request(resource_logs=logs).SerializeToString(), headers=to)
    success = logs_pb2.Response.FromString(answer.content).partial_success
    assert (answer.status_code, success.rejected_log_records) == (200, 1)
    assert "'service.name'" in success.error_message


def test_large_bodies_and_large_events(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    event = b"x" * INGEST_BODY_MAX_BYTES
    assert rest.post(path(stream), content=event).status_code == 200
    assert rest.post(path(stream), content=iter([event[:1000]] * 5000)).status_code == 200  # chunks, without a length
    assert sorted(map(len, stored(manager, stream))) == [5_000_000, INGEST_BODY_MAX_BYTES]
    assert rest.post(path(stream), content=event + b"x").status_code == 413
    bomb = gzip.compress(b"\0" * (INGEST_BODY_MAX_BYTES + 1))
    assert rest.post(path(stream), content=bomb, headers={"content-encoding": "gzip"}).status_code == 413
    assert len(stored(manager, stream)) == 2


def test_invalid_requests_are_refused(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    def refused(status: int, words: str, **given: Any) -> None:
        response = rest.post(given.pop("path", path(stream)), **{"content": b"x", **given})
        assert response.status_code == status, response.text
        assert words in response.json()["error"]

    refused(404, "in/none", path=path("none"))
    refused(400, "_MARKx", path=path("_MARKx"))
    refused(400, "line 2", content=b"{}\n{", headers=NDJSON)
    refused(400, "printable", headers={"idempotency-key": ""})
    refused(415, "gzip", headers={"content-encoding": "br"})
    refused(400, "gzip", content=gzip.compress(b"abc")[:-3], headers={"content-encoding": "gzip"})
    refused(400, "UTF-8", path=path(stream) + "?key=%ff")
    refused(400, "repeated", path=path(stream) + "?key=a&key=b")
    refused(403, "site", headers={"origin": "https://elsewhere.example"})
    assert rest.post(path(stream), content=b"x", headers={"origin": str(rest.base_url).rstrip("/")}).status_code == 200
    assert stored(manager, stream) == [b"x"]
    manager.seal_stream("in", stream)
    refused(409, "sealed")
    refused(409, "sealed", headers={"idempotency-key": "k"})


def test_with_a_key_events_are_one_append(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    resource = {"attributes": [{"key": "k", "value": {"stringValue": "x" * 100_000}}]}
    body = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [{}] * 100}]}]}
    to = {"nadi-stream": f"in/{stream}"}
    response = rest.post("/v1/logs", json=body, headers={**to, "idempotency-key": "k"})
    assert response.status_code == 400, response.text
    assert "8,388,608" in response.json()["error"]
    assert stored(manager, stream) == []
    assert rest.post("/v1/logs", json=body, headers=to).status_code == 200
    assert len(stored(manager, stream)) == 100


def test_arrow_is_stored(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    for kind in (pa.string(), pa.string_view()):
        table, sink = pa.table({"event": pa.array(["a", "b"], kind), "key": pa.array(["k", None], kind)}), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        for key in ({}, {"idempotency-key": str(kind)}):
            headers = {"content-type": "application/vnd.apache.arrow.stream", **key}
            assert rest.post(path(stream), content=sink.getvalue(), headers=headers).json() == {"written": 2}
    assert sorted(stored(manager, stream)) == [b"a"] * 4 + [b"b"] * 4


# --- places ----------------------------------------------------------------------------------------


@contextmanager
def all_places_taken(folder: Path, limits: str) -> Iterator[httpx.Client]:
    """Occupy all slots of a server with these limits by large uploads that stall, to the stream `in/places`."""
    with ExitStack() as held:
        server = held.enter_context(nadi.embedded(folder, rest_port=0, environment={"NADI_LIMITS": limits}))
        rest = held.enter_context(httpx.Client(base_url=server.rest_uri, timeout=60))
        manager = held.enter_context(nadi.StreamManager(server.controller_uri))
        manager.create_scope("in")
        manager.create_stream("in", "places")
        for _ in range(INGEST_LARGE_AT_ONCE):
            peer = held.enter_context(socket.create_connection((rest.base_url.host, rest.base_url.port)))
            head = f"POST {path('places')} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
            peer.sendall(head.encode() + bytes(70_000))
        while rest.post(path("places"), content=bytes(100_000)).status_code != 503:
            pass
        yield rest


def test_small_compressed_body_that_grows_needs_a_slot(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(INGEST_BODY_MAX_BYTES))
    assert len(packed) < INGEST_LITTLE_BYTES
    with all_places_taken(tmp_path, "ingest_slot_timeout_s=0.2,rest_body_timeout_s=60") as rest:
        assert rest.post(path("places"), content=b"x").status_code == 200
        assert rest.post(path("places"), content=packed, headers={"content-encoding": "gzip"}).status_code == 503
        assert rest.post("/v1/logs", json={}, headers={"nadi-stream": "in/places"}).status_code == 503


def test_silent_upload_loses_its_slot(tmp_path: Path) -> None:
    """Not only after the time that the largest body might take, which is over a minute."""
    with all_places_taken(tmp_path, "ingest_slot_timeout_s=0.5,rest_body_timeout_s=8") as rest:
        until(lambda: rest.post(path("places"), content=bytes(100_000)).status_code == 200, 40)


def test_recreated_stream_is_written_to(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    for _ in range(2):
        assert rest.post(path(stream), content=b"x").status_code == 200
        assert stored(manager, stream) == [b"x"]
        manager.seal_stream("in", stream)
        manager.delete_stream("in", stream)
        assert rest.post(path(stream), content=b"x").status_code in (404, 409)
        assert rest.post(path(stream), content=b"x").status_code == 404
        manager.create_stream("in", stream)


def test_logs(rest: httpx.Client, manager: nadi.StreamManager, stream: str) -> None:
    record = {"body": {"stringValue": "hello"}}
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    to = {"nadi-stream": f"in/{stream}"}
    assert rest.post("/v1/logs", json=body, headers=to).json() == {}
    assert rest.post("/v1/logs", json=body, params={"stream": f"in/{stream}"}).status_code == 200
    empty = rest.post("/v1/logs", content=b"", headers={**to, "content-type": "application/x-protobuf"})
    assert (empty.status_code, empty.content) == (200, b"")
    assert stored(manager, stream) == [b'{"body":"hello"}'] * 2
    assert "Nadi-Stream" in rest.post("/v1/logs", json=body).json()["error"]
    assert rest.post("/v1/logs", content=b"x", headers={**to, "content-type": "text/plain"}).status_code == 415


# --- once ------------------------------------------------------------------------------------------


def test_the_same_key_writes_once_and_answers_the_same(
    rest: httpx.Client, manager: nadi.StreamManager, stream: str
) -> None:
    name, body = {"idempotency-key": str(uuid4())}, lines(500)
    for again in range(4):
        response = rest.post(path(stream), content=body, params={"key-field": "meter"}, headers=NDJSON | name)
        assert (response.status_code, response.json()) == (200, {"written": 500})
        if again == 1:  # the segments that have it are replaced
            current = [segment.segment_id for segment in manager.current_segments("in", stream)]
            manager.scale_stream("in", stream, current, [(0, 0.2), (0.2, 0.9), (0.9, 1)])
    assert sorted(stored(manager, stream)) == sorted(body.splitlines())
    other = rest.post(path(stream), content=lines(500, 1), params={"key-field": "meter"}, headers=NDJSON | name)
    assert other.status_code == 409
    assert "used for other data" in other.json()["error"]


def test_many_at_a_time_with_one_key(server: EmbeddedServer, manager: nadi.StreamManager, stream: str) -> None:
    async def post_all() -> list[int]:
        async with httpx.AsyncClient(base_url=server.rest_uri, timeout=60) as client:
            headers = {"idempotency-key": "one"}
            all_ = await asyncio.gather(*(client.post(path(stream), content=b"x", headers=headers) for _ in range(30)))
            return [response.status_code for response in all_]

    assert asyncio.run(post_all()) == [200] * 30
    assert stored(manager, stream) == [b"x"]


def test_kills_between_tries(tmp_path: Path) -> None:
    """A client that retries until it gets a response, and a server that is killed meanwhile: each event once."""
    port = free_port()
    events = 0
    server = nadi.embedded(tmp_path, rest_port=port)
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("in")
        manager.create_stream("in", "kills", 2)
    stopped = threading.Event()

    def write() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            while not stopped.is_set():
                write_some(client)

    def write_some(client: httpx.Client) -> None:
        nonlocal events
        name = str(uuid4())
        while True:
            try:
                response = client.post(
                    path("kills"),
                    content=lines(20, events),
                    params={"key-field": "meter"},
                    headers=NDJSON | {"idempotency-key": name},
                )
            except httpx.HTTPError:
                time.sleep(0.01)
                continue
            if response.status_code == 200:
                events += 20
                return
            assert response.status_code == 503, response.text

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3):
            seen, give_up = events, time.monotonic() + 50
            while events < seen + 100 and time.monotonic() < give_up:
                time.sleep(0.001)  # the writer is watched, at another moment of its work each time
            server.kill()
            server = nadi.embedded(tmp_path, rest_port=port)
    finally:
        stopped.set()
        thread.join(60)
    with server, nadi.StreamManager(server.controller_uri) as manager:
        numbers = [json.loads(event)["number"] for event in stored(manager, "kills")]
    assert events >= 300
    assert sorted(numbers) == list(range(events))


# --- permissions ------------------------------------------------------------------------------------


def test_permissions_are_those_of_a_writing_client(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with (
        guarded(tmp_path, tls=tls, rest_port=0) as server,
        nadi.StreamManager(server.controller_uri, credentials=user("root"), trust_store=tls.authority) as manager,
        httpx.Client(
            base_url=server.rest_uri, timeout=60, verify=ssl.create_default_context(cafile=tls.authority)
        ) as rest,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        at = "/v1/scopes/home/streams/meters/events"
        assert rest.post(at, content=b"x").status_code == 401
        assert rest.post(at, content=b"x", auth=("writer", "guessed")).status_code == 401
        assert rest.post(at, content=b"x", auth=("reader", PASSWORD)).status_code == 403
        for headers in ({}, {"idempotency-key": "k"}):
            assert rest.post(at, content=b"x", auth=("writer", PASSWORD), headers=headers).status_code == 200
        assert stored(manager, "meters", "home") == [b"x", b"x"]


def test_tls_with_another_host_name(tmp_path: Path) -> None:
    tls = certificate(tmp_path, "nadi.example")
    security = ServerSecurity(tls_certificate=str(tls.certificate), tls_key=str(tls.key))
    with (
        nadi.embedded(tmp_path / "data", security=security, rest_port=0) as server,
        httpx.Client(base_url=server.rest_uri, timeout=60, verify=False) as rest,
    ):
        body = {"streamName": "meters", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}}
        assert rest.post("/v1/scopes", json={"scopeName": "home"}).status_code == 201
        assert rest.post("/v1/scopes/home/streams", json=body).status_code == 201
        assert rest.post("/v1/scopes/home/streams/meters/events", content=b"x").json() == {"written": 1}
