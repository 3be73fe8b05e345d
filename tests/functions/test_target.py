"""An HTTP service as target: CloudEvents in all three forms, and every kind of response."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from cloudevents.core.base import BaseCloudEvent

from nadi.client.aio import StreamManager
from nadi.errors import InvalidArgumentError
from nadi.functions import Function, FunctionError, FunctionStoppedError, HandlerEvent, TargetAddress
from nadi.functions.handlers.event import Output
from nadi.functions.handlers.target import (
    BadReplyError,
    HttpTarget,
    batched,
    binary,
    cloud_event,
    outputs_of_reply,
    seconds_of,
    structured,
)
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.field_path import parse_path
from nadi.model.json_events import known_key_in
from nadi.naming import parse_segment_name
from nadi.process import DeadLetter

from .service import Answer, Service, as_bytes, serving
from .support import in_order, read, read_all, running, streams, until_handled, write

QUICK: dict[str, Any] = {"retry_first_s": 0.01, "retry_longest_s": 0.05, "idle_s": 0.5, "max_workers": 2}


def to(service: Service, scope: str, target: dict[str, Any] | None = None, **options: Any) -> Function:
    return Function(
        scope=scope, stream="in", target=TargetAddress(service.url, **(target or {})), **{**QUICK, **options}
    )


@pytest.mark.parametrize("mode", ["binary", "structured", "batched"])
async def test_events_arrive_in_order_with_their_places_and_each_is_dispatched_once(
    manager: StreamManager, nadi_scope: str, mode: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 100)
    target = {"mode": mode, "headers": {"Authorization": "Bearer secret"}, "event_type": "meter.read"}
    with serving(Service()) as service:
        function = to(service, nadi_scope, target)
        async with running(function, manager):
            await until_handled(manager, function, 100)
    assert sorted(service.data()) == sorted(f"k{i % 16} {i}".encode() for i in range(100))
    assert in_order(service.data())
    for event in service.events:
        scope, stream, _ = parse_segment_name(event.get_id().rpartition("@")[0])
        assert (scope, stream, event.get_source()) == (nadi_scope, "in", f"/nadi/{nadi_scope}/in")
        assert (event.get_type(), event.get_datacontenttype()) == ("meter.read", "application/octet-stream")
        assert event.get_extension("partitionkey") == event.get_id().rpartition("@")[0]
        assert event.get_subject() is None
    assert len({event.get_id() for event in service.events}) == 100
    assert all(headers["authorization"] == "Bearer secret" for headers in service.headers)
    assert len(service.connections) <= 2  # one per worker
    assert len(service.requests) == 100 if mode != "batched" else len(service.requests) < 20


async def test_json_stays_json_and_its_key_is_subject_and_partition_key(
    manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope, 1)
    writer = await manager.create_writer(nadi_scope, "in")
    await writer.write_many([b'{"meter": "hall 1", "wh": 3}', b"no JSON"], "k")
    await writer.close()
    with serving(Service()) as service:
        target = {"mode": "structured", "content_type": "application/json"}
        function = to(service, nadi_scope, target, key_field="meter")
        async with running(function, manager):
            await until_handled(manager, function, 2)
    first, second = service.events
    assert first.get_data() == {"meter": "hall 1", "wh": 3}
    assert (first.get_subject(), first.get_extension("partitionkey")) == ("hall 1", "hall 1")
    assert second.get_data() == b"no JSON"
    assert second.get_subject() is None


async def test_answers_that_are_cloud_events_go_to_the_output_stream_exactly_once(
    manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 40)
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}

    def answer(events: list[BaseCloudEvent], count: int) -> Answer:
        data = as_bytes(events[0])
        key = data.split()[0].decode()
        if count % 3 == 0:
            return Answer(200, {**event, "ce-partitionkey": key, "content-type": "text/plain"}, data)
        document = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": key}
        document |= {"datacontenttype": "text/plain", "data": data.decode()}
        if count % 3 == 1:
            return Answer(200, {"content-type": "application/cloudevents+json"}, json.dumps(document).encode())
        body = json.dumps([document]).encode()
        return Answer(200, {"content-type": "application/cloudevents-batch+json; charset=utf-8"}, body)

    with serving(Service(answer)) as service:
        function = to(service, nadi_scope, output="out", delivery="exactly-once")
        async with running(function, manager):
            out = await read(manager, nadi_scope, "out", 40)
    assert sorted(out) == sorted(f"k{i % 16} {i}".encode() for i in range(40))
    assert in_order(out)


async def test_rejected_event_becomes_a_dead_letter_and_failed_is_retried(
    manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 12, poison=(3,))
    failures = {5: Answer(500), 6: Answer(302), 7: Answer(503, {"Retry-After": "1"}), 9: Answer(200, after_s=12.0)}

    def answer(events: list[BaseCloudEvent], count: int) -> Answer:
        if b"poison" in as_bytes(events[0]):
            return Answer(422, body=b"no such meter")
        return failures.pop(count, Answer())

    with serving(Service(answer)) as service:
        function = to(service, nadi_scope, dead_letters="dead", timeout_s=6.0, retries=3)
        async with running(function, manager):
            record = await until_handled(manager, function, 12)
    letters = [DeadLetter.decode(data) for data in await read_all(manager, nadi_scope, "dead")]
    assert [(letter.data, letter.error, letter.attempts) for letter in letters] == [
        (b"k3 3 poison", "HTTP 422", 1),
        (b"k5 5", "HTTP 302", 2),
    ]
    assert letters[0].reason == "no such meter"
    assert [int(data.split()[1]) for data in service.data()] == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 9, 10, 11]
    assert service.times[8] - service.times[7] >= 0.9  # Retry-After
    assert record.counts.retries == 3


async def test_a_refused_batch_is_narrowed_to_the_event(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 64, poison=(40,))

    def answer(events: list[BaseCloudEvent], count: int) -> Answer:
        return Answer(400 if any(b"poison" in as_bytes(event) for event in events) else 202)

    with serving(Service(answer)) as service:
        function = to(service, nadi_scope, {"mode": "batched"}, dead_letters="dead")
        async with running(function, manager):
            await until_handled(manager, function, 64)
    [letter] = [DeadLetter.decode(data) for data in await read_all(manager, nadi_scope, "dead")]
    assert letter.data == b"k8 40 poison"
    assert len(service.requests) <= 14


async def test_tls_with_the_certificates_that_are_trusted(
    manager: StreamManager, nadi_scope: str, tmp_path: Path
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 3)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with serving(Service(), tls) as service:
        with pytest.raises(FunctionStoppedError, match="ConnectError"):
            async with running(to(service, nadi_scope, retries=0), manager) as task:
                await asyncio.wait([task], timeout=60)
        function = to(service, nadi_scope, {"trust_store": str(tmp_path / "ca.pem")})
        async with running(function, manager):
            await until_handled(manager, function, 3)
    assert len(service.data()) == 3


def test_target_address_invalid_arguments_fail() -> None:
    for wrong in (
        {"url": "ftp://x"},
        {"url": "http://"},
        {"url": "http://x:80a/"},
        {"url": "http://x:99999/"},
        {"url": "http://[::1"},
        {"url": "http://x y/"},
        {"url": "http://x\n/"},
        {"url": "http://joe:secret@x/"},
        {"url": "http://x", "event_type": ""},
        {"url": "http://x", "content_type": "a\nb"},
        {"url": "http://x", "mode": "loud"},
        {"url": "http://x", "trust_store": "ca.pem"},
        {"url": "http://x", "headers": {"A b": "c"}},
        {"url": "http://x", "headers": {"A": "c\r\nd"}},
        {"url": "http://x", "headers": {"ce-id": "1"}},
        {"url": None},
        {"url": "http://x", "headers": "A: b"},
        {"url": "http://x", "headers": {"A": 7}},
        {"url": "http://x", "event_type": 7},
    ):
        name = [*wrong][-1].rstrip("s").replace("_", ".")
        with pytest.raises(InvalidArgumentError, match=rf"(?i)\b{name}"):
            TargetAddress(**wrong)


async def test_target_invalid_url_fails_at_start() -> None:
    with pytest.raises(FunctionError):
        await HttpTarget(TargetAddress("http://ex\u00e4mple..com/"), 1.0, wants_outputs=False).start()


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("data", [b"NaN", b"[-Infinity]", DEEP, b'"\xff"', b"{", b"", b'"\\ud800"', b"\xef\xbb\xbf1"])
def test_invalid_json_is_sent_as_bytes(data: bytes) -> None:
    for documents in documents_of(data):
        assert base64.b64decode(documents["data_base64"]) == data
        assert "data" not in documents


@pytest.mark.parametrize("data", [b"null", b"1.50", b"1e999", b'{"a": 1, "a": 2}', b" [1] "])
def test_json_is_sent_byte_by_byte(data: bytes) -> None:
    event = cloud_event(HandlerEvent(data, "s/t/0.#epoch.0", 0), "t", "application/json", datetime.now(UTC))
    assert b'"data": ' + data + b"}" in structured(event).body
    for document in documents_of(data):
        assert "data_base64" not in document
        assert {"id", "source", "type", "time", "partitionkey", "specversion"} <= document.keys()


def documents_of(data: bytes) -> list[dict[str, Any]]:
    event = cloud_event(HandlerEvent(data, "s/t/0.#epoch.0", 0), "t", "application/json", datetime.now(UTC))
    return [json.loads(structured(event).body), *json.loads(batched([event, event]).body)]


def test_an_event_without_a_key_is_partitioned_by_its_segment() -> None:
    for key in (None, ""):
        event = cloud_event(HandlerEvent(b"", "s/t/0.#epoch.0", 0, key), "t", "text/plain", datetime.now(UTC))
        assert binary(event).headers["ce-partitionkey"] == "s/t/0.#epoch.0"


async def test_target_that_compresses_its_answer_fails_the_event_and_was_asked_not_to() -> None:
    """Its second gzip member would be lost."""
    headers = {**IN_HEADERS, "content-encoding": "gzip"}
    answers = [Answer(200, headers, gzip.compress(b"one") + gzip.compress(b"two")), Answer(200, IN_HEADERS, b"one")]
    with serving(Service(lambda events, count: answers[count])) as service:
        target = HttpTarget(TargetAddress(service.url), 30, wants_outputs=True)
        await target.start()
        packed, plain = [await target.call([HandlerEvent(b"x", "s/t/0.#epoch.0", 0)], 1) for _ in answers]
        await target.close()
    assert packed.failure is not None
    assert (packed.done, packed.failure.error) == (0, "AnswerCompressed")
    assert plain.outputs == [(None, b"one")]
    assert {given["accept-encoding"] for given in service.headers} == {"identity"}


NEEDED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
IN_HEADERS = {f"ce-{name}": value for name, value in NEEDED.items()}
DATA = [
    (b'{"price": 1.50}', "application/json"),
    (b'{"price": 123456789012345.67891}', "application/json; charset=utf-8"),
    (b"12345678901234567890", "text/json"),
    (b'{"price": 1e400}', "application/vnd.shop+JSON"),
    (b'"sold"', "application/json"),
    (b'"sold"', None),
    (rb'"Zo\u00eb \ud83d\ude00"', None),
    (b"null", None),
    (b'{ "a" : [ 1 ] }', None),
    (b"false", "application/json"),
]


def replies(data: bytes, content_type: str | None, member: bytes, **more: str) -> list[list[Output]]:
    """Return the outputs of the event in each form of a response. member: the JSON member with its data."""
    given = {} if content_type is None else {"content-type": content_type}
    binary = outputs_of_reply({**IN_HEADERS, **given, **{f"ce-{k}": v for k, v in more.items()}}, data)
    attributes = {**NEEDED, **more} | ({} if content_type is None else {"datacontenttype": content_type})
    document = json.dumps(attributes).encode()[:-1] + b", " + member + b"}"
    structured = outputs_of_reply({"content-type": "application/cloudevents+json"}, document)
    batch = b" [" + document + b" , " + document + b"]"
    batched = outputs_of_reply({"content-type": "application/cloudevents-batch+json"}, batch)
    assert batched == structured * 2
    return [binary, structured]


@pytest.mark.parametrize(("data", "content_type"), DATA)
def test_reply_in_each_form_keeps_its_json_to_the_byte(data: bytes, content_type: str | None) -> None:
    assert replies(data, content_type, b'"data":  ' + data) == [[(None, data)]] * 2


@pytest.mark.parametrize(
    ("data", "content_type", "member"),
    [
        (b"sold", "text/plain", b'"data": "sold"'),
        ("Zoë\n".encode(), "text/plain", rb'"data": "Zo\u00eb\n"'),
        ("Zoe \ufffd".encode(), "text/plain", rb'"data": "Zoe \ud83d"'),
        (b"", "text/plain", b'"data": null'),
        (b"1.50", "text/plain", b'"data": 1.50'),
        (b"\xff\x00", "image/png", b'"data_base64": "/wA="'),
        (b'{"a": 1}', "application/json", b'"data_base64": "eyJhIjogMX0="'),
        (b"", None, b'"data_base64": null'),
    ],
)
def test_reply_data_equals_the_body_in_each_form(data: bytes, content_type: str, member: bytes) -> None:
    assert replies(data, content_type, member) == [[(None, data)]] * 2


def test_reply_key_is_partition_key_or_subject_in_each_form() -> None:
    assert replies(b"1", None, b'"data": 1', partitionkey="", subject="s") == [[("", b"1")]] * 2
    assert replies(b"1", None, b'"data": 1', subject="s") == [[("s", b"1")]] * 2
    quoted = {**IN_HEADERS, "ce-partitionkey": r'"a \"b\" %C3%A4"'}
    assert outputs_of_reply(quoted, b"") == [('a "b" ä', b"")]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({**IN_HEADERS, "ce-subject": "a%E2%82"}, b""),
        ({"ce-specversion": "1.0"}, b""),
        (None, b"{"),
        (None, b"[]"),
        (None, {"data": 1, "data_base64": "AA=="}),
        (None, {"data_base64": "?"}),
        (None, {"partitionkey": True}),
        (None, {"subject": ["a"]}),
        (None, {"data": "x" * MAX_EVENT_BYTES}),
        (IN_HEADERS, b"x" * (MAX_EVENT_BYTES + 1)),
    ],
)
def test_reply_invalid_cloud_event_fails(headers: dict[str, str] | None, body: Any) -> None:
    if isinstance(body, dict):
        body = json.dumps({**NEEDED, **body}).encode()
    with pytest.raises(BadReplyError):
        outputs_of_reply(headers or {"content-type": "application/cloudevents+json"}, body)


def test_keys_are_looked_for_in_anything() -> None:
    assert known_key_in(b'{"a": {"b": 1}}', parse_path("a.b")) == "1"
    for data in (DEEP, b'{"a": ' + DEEP + b"}", b"\xff", b"[1]", b'{"a": null}', b'{"a": {"b": 1}}', b'{"a": true}'):
        assert known_key_in(data, parse_path("a")) is None


@pytest.mark.parametrize("text", ["\u00b2", "-1", "1.5", "", "Thu, 99 Jan 1970 00:00:00 GMT", "1, 2"])
def test_seconds_of_invalid_retry_after_is_none(text: str) -> None:
    assert seconds_of(text, 0.0) is None


def test_seconds_of_huge_retry_after_is_infinite() -> None:
    assert seconds_of("9" * 400, 0.0) == float("inf")
