"""Parsing of request bodies, and rejection of invalid ones."""

from __future__ import annotations

import json
import random
import struct

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from starlette.datastructures import Headers

from nadi.controller.rest.intake import DataRequest
from nadi.errors import InvalidArgumentError
from nadi.ingest.batch import IngestBatch, batch_of
from nadi.limits import INGEST_EVENTS_MAX
from nadi.model.cloud_events import BATCH, STRUCTURED

EVENT = {"specversion": "1.0", "id": "1", "source": "/meters", "type": "reading", "data": {"wh": 3}}

CE = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "t"}


def sent(
    body: bytes, media: str = "application/x-ndjson", headers: dict[str, str] | None = None, **query: str
) -> DataRequest:
    given = Headers({"content-type": media, **(headers or {})})
    return DataRequest(media, given, {name.replace("_", "-"): value for name, value in query.items()}, body, None)


def pairs(batch: IngestBatch) -> list[tuple[bytes, str | None]]:
    events = batch.events if isinstance(batch.events, list) else batch.events.to_pylist()
    if batch.keys is None or isinstance(batch.keys, str):
        return [(event, batch.keys) for event in events]
    keys = batch.keys if isinstance(batch.keys, list) else batch.keys.to_pylist()
    return list(zip(events, keys, strict=True))


def arrow(options: pa.ipc.IpcWriteOptions | None = None, **columns: pa.Array) -> bytes:
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_one_event_of_any_type() -> None:
    assert pairs(batch_of(sent(b"\xff\x00", "image/png"))) == [(b"\xff\x00", None)]
    assert pairs(batch_of(sent(b"", "text/plain", key="k"))) == [(b"", "k")]
    assert pairs(batch_of(sent(b"[1]", "application/json", {"nadi-routing-key": "k"}))) == [(b"[1]", "k")]


def test_lines() -> None:
    body = b'{"a":1}\r\n{"a": {"b": "x"}}\n[2]\n"\xc3\xa4"'
    assert pairs(batch_of(sent(body))) == [(line.rstrip(b"\r"), None) for line in body.split(b"\n")]
    assert pairs(batch_of(sent(b'{"a":{"b":"x","c":1}}\n{"a":{"b":17}}\n', key_field="a.b"))) == [
        (b'{"a":{"b":"x","c":1}}', "x"),
        (b'{"a":{"b":17}}', "17"),
    ]
    assert len(batch_of(sent(b""))) == 0


def test_arrow() -> None:
    both = arrow(event=pa.array([b"x", b"y"]), key=pa.array(["k", None]))
    assert pairs(batch_of(sent(both, "application/vnd.apache.arrow.stream"))) == [(b"x", "k"), (b"y", None)]
    alone = arrow(event=pa.array(["ä"]))
    assert pairs(batch_of(sent(alone, "application/vnd.apache.arrow.stream", key="k"))) == [("ä".encode(), "k")]


ARROW = "application/vnd.apache.arrow.stream"
BINARIES = [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrow_of_all_types_that_are_taken(compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for kind in BINARIES:
        body = arrow(options, event=pa.array([b"xy", b"zz"], kind))
        assert pairs(batch_of(sent(body, ARROW))) == [(b"xy", None), (b"zz", None)]
    for kind in TEXTS:
        body = arrow(options, event=pa.array(["ä", ""], kind), key=pa.array([None, "k" * 30], kind))
        assert pairs(batch_of(sent(body, ARROW))) == [("ä".encode(), None), (b"", "k" * 30)]
    body = arrow(options, event=pa.array([b"x"]), key=pa.nulls(1))
    assert pairs(batch_of(sent(body, ARROW))) == [(b"x", None)]
    body = arrow(options, event=pa.array(["{}", "[]"], pa.json_()), key=pa.array(["k", None], pa.string_view()))
    assert pairs(batch_of(sent(body, ARROW))) == [(b"{}", "k"), (b"[]", None)]


def _views_of_the_same_bytes() -> pa.Array:
    text = b"x" * 1_000_000
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    return pa.Array.from_buffers(pa.string_view(), 100, [None, pa.py_buffer(view * 100), pa.py_buffer(text)])


def test_arrow_over_the_size_limit_is_rejected() -> None:
    zeros = arrow(pa.ipc.IpcWriteOptions(compression="zstd"), event=pa.array([bytes(1 << 20)] * 64))
    assert len(zeros) < 1 << 20
    views = _views_of_the_same_bytes()
    opaque = pa.ExtensionArray.from_storage(pa.opaque(pa.string_view(), "text", "none"), views)
    for body in (zeros, arrow(event=views), arrow(event=opaque)):
        with pytest.raises(InvalidArgumentError, match="8,388,608"):
            batch_of(sent(body, ARROW))
    rows = pa.Array.from_buffers(pa.binary(0), 1 << 30, [None, pa.py_buffer(b"")])
    with pytest.raises(InvalidArgumentError):
        batch_of(sent(arrow(event=rows), ARROW))


def test_arrow_that_is_damaged() -> None:
    """Any damaged body is rejected, or read."""
    key = pa.array(["k" * 30, None, "b"])
    views = {"event": pa.array(["a" * 40, "b", "c"], pa.string_view()), "key": key.cast(pa.string_view())}
    bodies = [arrow(event=pa.array([b"x", b"", b"z" * 20]), key=key), arrow(**views)]
    bodies.append(arrow(pa.ipc.IpcWriteOptions(compression="lz4"), event=pa.array([b"x" * 90]), key=key[:1]))
    chance, read = random.Random(3), 0
    for _ in range(1500):
        body = bytearray(chance.choice(bodies))
        at, size = chance.randrange(len(body)), chance.choice([1, 1, 4])
        body[at : at + size] = chance.choice([b"\xff" * size, bytes(size), chance.randbytes(size), b""])
        try:
            read += bool(pairs(batch_of(sent(bytes(body), ARROW))))
        except InvalidArgumentError:
            pass
    assert read


def test_arrow_whose_null_keys_have_views_of_nothing() -> None:
    """These aren't validated, and a cast that follows them crashes the process."""
    views = b"".join([struct.pack("<i12s", 1, b"k"), struct.pack("<i4sii", 1 << 30, b"xxxx", 77, 1 << 30)])
    key = pa.Array.from_buffers(pa.string_view(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(views)])
    body = arrow(event=pa.array([b"x", b"y"]), key=key)
    with pytest.raises(InvalidArgumentError, match="8,388,608"):
        batch_of(sent(body, ARROW))
    views = b"".join([struct.pack("<i12s", 1, b"k"), struct.pack("<i4sii", 100, b"xxxx", 77, 1 << 30)])
    key = pa.Array.from_buffers(pa.string_view(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(views)])
    body = arrow(event=pa.array([b"x", b"y"]), key=key)
    assert pairs(batch_of(sent(body, ARROW))) == [(b"x", "k"), (b"y", None)]


def test_cloud_events() -> None:
    one, two = json.dumps(EVENT), json.dumps({**EVENT, "partitionkey": "kitchen"})
    assert pairs(batch_of(sent(two.encode(), "application/cloudevents+json"))) == [(two.encode(), "kitchen")]
    batch = sent(f"[{one}, {two}]".encode(), "application/cloudevents-batch+json")
    assert pairs(batch_of(batch)) == [(one.encode(), None), (two.encode(), "kitchen")]
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/m%20x", "ce-type": "t", "ce-partitionkey": "k"}
    ((event, key),) = pairs(batch_of(sent(b'{"wh":3}', "application/json", headers)))
    assert key == "k"
    assert json.loads(event) == {
        "specversion": "1.0",
        "id": "1",
        "source": "/m x",
        "type": "t",
        "partitionkey": "k",
        "datacontenttype": "application/json",
        "data": {"wh": 3},
    }
    ((event, _),) = pairs(batch_of(sent(b"\xff", "image/png", headers)))
    assert json.loads(event)["data_base64"] == "/w=="


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (r'"a \"b\" \\c"', 'a "b" \\c'),
        ('"kitchen"', "kitchen"),
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ('"100%25"', "100%"),
        ("100%", "100%"),
        ('half "quoted"', 'half "quoted"'),
        ("ü".encode().decode("latin-1"), "ü"),
        ("", ""),
    ],
)
def test_cloud_event_header_is_unquoted_and_then_decoded(value: str, text: str) -> None:
    ((event, key),) = pairs(batch_of(sent(b"", "text/plain", CE | {"ce-subject": value, "ce-partitionkey": value})))
    assert (json.loads(event)["subject"], key) == (text, text)


@pytest.mark.parametrize("value", ["a%E2%82", "%ff", '"%C3"', "\xe4", "%ED%A0%80"])
def test_cloud_event_header_that_is_not_utf_8_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ce-subject"):
        batch_of(sent(b"", "text/plain", CE | {"ce-subject": value}))


DATA = [b"1.50", b"12345678901234567890", b"1e400", b'"sold"', b"null", b'{ "a" : [1.0] }', rb'"\u00e4"', b"false"]


@pytest.mark.parametrize("data", DATA)
def test_cloud_event_in_each_mode_keeps_its_data_to_the_byte(data: bytes) -> None:
    document = json.dumps({**EVENT, "data": 0}).encode().replace(b'"data": 0', b'"data": ' + data)
    (binary,) = pairs(batch_of(sent(data, "application/json", CE)))
    (structured,) = pairs(batch_of(sent(document, "application/cloudevents+json")))
    (batched,) = pairs(batch_of(sent(b"[ " + document + b" ]", "application/cloudevents-batch+json")))
    assert structured == batched == (document, None)
    assert binary[0].endswith(b'"data":' + data + b"}")


def test_halves_of_surrogate_pairs_are_the_replacement_character_in_all_json() -> None:
    event = json.dumps({**EVENT, "data": "Zoe \ud83d"}).encode()
    whole = event.replace(rb"\ud83d", rb"\ufffd")
    assert pairs(batch_of(sent(b'{"m":"ok"}\n' + event))) == [(b'{"m":"ok"}', None), (whole, None)]
    assert pairs(batch_of(sent(event, "application/cloudevents+json"))) == [(whole, None)]
    assert pairs(batch_of(sent(b"[%b]" % event, "application/cloudevents-batch+json"))) == [(whole, None)]
    ((binary, _),) = pairs(batch_of(sent(rb'"\udE00"', "application/json", CE)))
    assert json.loads(binary)["data"] == "\ufffd"


def test_lines_with_numbers_that_no_double_holds_are_as_they_came() -> None:
    body = b'{"n":1e400}\n12345678901234567890123\n{"n":1.50}'
    assert [event for event, _ in pairs(batch_of(sent(body)))] == body.split(b"\n")


@pytest.mark.parametrize(("value", "key"), [(b'""', ""), (b"7", "7"), (b"1.0", "1.0"), (b"null", None), (b'"a"', "a")])
def test_key_by_its_type_is_the_same_of_lines_and_of_cloud_events(value: bytes, key: str | None) -> None:
    event = json.dumps({**EVENT, "partitionkey": 0}).encode().replace(b'"partitionkey": 0', b'"partitionkey": ' + value)
    assert pairs(batch_of(sent(event, "application/cloudevents+json"))) == [(event, key)]
    assert pairs(batch_of(sent(event, key_field="partitionkey"))) == [(event, key)]


@pytest.mark.parametrize("value", [b"true", b"[]", b"{}"])
def test_invalid_key_is_rejected_in_lines_and_cloud_events(value: bytes) -> None:
    event = json.dumps({**EVENT, "partitionkey": 0}).encode().replace(b'"partitionkey": 0', b'"partitionkey": ' + value)
    for request in (sent(event, "application/cloudevents+json"), sent(event, key_field="partitionkey")):
        with pytest.raises(InvalidArgumentError, match="'partitionkey'"):
            batch_of(request)


def test_routing_key_header_is_utf_8() -> None:
    header = {"nadi-routing-key": "kü".encode().decode("latin-1")}
    assert pairs(batch_of(sent(b"x", "text/plain", header))) == [(b"x", "kü")]
    with pytest.raises(InvalidArgumentError, match="Nadi-Routing-Key"):
        batch_of(sent(b"x", "text/plain", {"nadi-routing-key": "k\xfc"}))


@pytest.mark.parametrize(
    ("request_", "subject"),
    [
        (sent(b"{}\n{", key="k"), "^line 2 "),
        (sent(b"{}\n\n{}"), "^line 2 "),
        (sent(b'{"a":1}\n{"a":1', key_field="a"), "^line 2 "),
        (sent(b'{"a":[]}', key_field="a"), "^line 1.*'a'"),
        (sent(b"{}", key_field="a", key="b"), "^key and key-field "),
        (sent(b"{}", "application/json", key_field="a"), "^key-field "),
        (sent(b"{}", keys="a"), "'keys'"),
        (sent(b"1\n" * (INGEST_EVENTS_MAX + 1)), f"{INGEST_EVENTS_MAX + 1:,}"),
        (sent(b"x", "application/vnd.apache.arrow.stream"), "Arrow"),
        (sent(arrow(x=pa.array([b"x"])), "application/vnd.apache.arrow.stream"), "'x'"),
        (sent(arrow(key=pa.array(["x"])), "application/vnd.apache.arrow.stream"), "`event`"),
        (sent(arrow(event=pa.array([1])), ARROW), "`event`.*int64"),
        (sent(arrow(event=pa.array([b"x", None])), ARROW), "^1 "),
        (sent(arrow(event=pa.array([b"x"]), key=pa.array([1])), ARROW), "`key`.*int64"),
        (sent(arrow(event=pa.array([b"x"]).dictionary_encode()), ARROW), "dictionary"),
        (
            sent(arrow(event=pc.run_end_encode(pa.array([b"x"]))), ARROW),
            "`event`.*run_end",
        ),
        (sent(arrow(event=pa.array([[b"x"]], pa.list_view(pa.binary()))), ARROW), "list_view<item: binary>"),
        (sent(b"{}", key_field=""), "key field ''"),
        (sent(b"{}", key_field="a..b"), "a[.][.]b"),
        (sent(b"{}", key_field="a" + ".a" * 5000), "5,001 .*32"),
        (sent(b"{}", "application/json", {**CE, "ce-data": "x"}), "'ce-data'"),
        (sent(b"{}", "application/json", {**CE, "ce-a-b": "x"}), "'ce-a-b'"),
        (sent(b"{}", "application/cloudevents+json"), "specversion"),
        (sent(b'[{"id": "1"}]', "application/cloudevents-batch+json"), "^event 1 "),
        (sent(json.dumps({**EVENT, "specversion": "0.3"}).encode(), "application/cloudevents+json"), "'0.3'"),
        (sent(json.dumps({**EVENT, "id": 7}).encode(), "application/cloudevents+json"), " id "),
        (sent(b"{", "application/json", {"ce-specversion": "1.0"}), "^the data "),
        (
            sent(json.dumps({**EVENT, "data": None, "data_base64": "!"}).encode(), STRUCTURED),
            "data_base64",
        ),
        (sent(json.dumps({**EVENT, "data_base64": 7}).encode(), STRUCTURED), "data_base64"),
        (sent(json.dumps([{**EVENT, "data": 1, "data_base64": "AA=="}]).encode(), BATCH), "data.*data_base64"),
        (
            sent(json.dumps({**EVENT, "partitionkey": "p"}).encode(), "application/cloudevents+json", key="k"),
            "partition keys",
        ),
    ],
)
def test_invalid_request_is_rejected(request_: DataRequest, subject: str) -> None:
    with pytest.raises(InvalidArgumentError, match=subject):
        batch_of(request_)
