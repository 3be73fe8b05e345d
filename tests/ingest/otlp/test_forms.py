"""A log record in both OTLP formats gives the same event, byte for byte; invalid records don't affect others."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from nadi.controller.rest.intake import DataRequest
from nadi.errors import InvalidArgumentError
from nadi.ingest.batch import IngestBatch
from nadi.ingest.otlp import records_of
from nadi.wire.rpc import logs_pb2

V = logs_pb2.Value
TRACE = bytes(range(16))


def _sent(body: bytes, media: str) -> DataRequest:
    return DataRequest(media, {}, {}, body, None)


def by_json(*records: Any, service: Any = None) -> IngestBatch:
    resource = {"attributes": [{"key": "service.name", "value": service}]} if service is not None else None
    request = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": records}]}]}
    return records_of(_sent(json.dumps(request).encode(), "application/json"))


def by_protobuf(record: logs_pb2.Record) -> bytes:
    logs = logs_pb2.ResourceLogs(scope_logs=[logs_pb2.ScopeLogs(log_records=[record])])
    body = logs_pb2.Request(resource_logs=[logs]).SerializeToString()
    ((event,),) = [records_of(_sent(body, "application/x-protobuf")).events]
    return bytes(event)


BODIES: list[tuple[Any, logs_pb2.Value]] = [
    ({}, V()),
    ({"stringValue": ""}, V(string_value="")),
    ({"stringValue": "Zoe \ud83d"}, V(string_value="Zoe \ufffd")),
    ({"stringValue": "😀"}, V(string_value="😀")),
    ({"boolValue": False}, V(bool_value=False)),
    ({"intValue": "9223372036854775807"}, V(int_value=(1 << 63) - 1)),
    ({"intValue": -9223372036854775808}, V(int_value=-(1 << 63))),
    ({"intValue": 7.0}, V(int_value=7)),
    ({"intValue": 0}, V(int_value=0)),
    ({"doubleValue": 1}, V(double_value=1)),
    ({"doubleValue": "1.50"}, V(double_value=1.5)),
    ({"doubleValue": 1e300}, V(double_value=1e300)),
    ({"doubleValue": -0.0}, V(double_value=-0.0)),
    ({"doubleValue": "NaN"}, V(double_value=math.nan)),
    ({"doubleValue": "Infinity"}, V(double_value=math.inf)),
    ({"doubleValue": "-Infinity"}, V(double_value=-math.inf)),
    ({"bytesValue": "+/8="}, V(bytes_value=b"\xfb\xff")),
    ({"bytesValue": "-_8"}, V(bytes_value=b"\xfb\xff")),
    ({"bytesValue": ""}, V(bytes_value=b"")),
    ({"arrayValue": {}}, V(array_value=logs_pb2.Values())),
    ({"arrayValue": {"values": [{}, {"intValue": 1}]}}, V(array_value=logs_pb2.Values(values=[V(), V(int_value=1)]))),
    ({"kvlistValue": {}}, V(kvlist_value=logs_pb2.Pairs())),
    (
        {"kvlistValue": {"values": [{"key": "a", "value": {"kvlistValue": {"values": [{"key": "b"}]}}}]}},
        V(
            kvlist_value=logs_pb2.Pairs(
                values=[logs_pb2.Pair(key="a", value=V(kvlist_value=logs_pb2.Pairs(values=[logs_pb2.Pair(key="b")])))]
            )
        ),
    ),
    ({"newerValue": 1}, V()),
    ({"stringValue": None, "intValue": 1}, V(int_value=1)),
]


@pytest.mark.parametrize(("value", "message"), BODIES, ids=[str(value) for value, _ in BODIES])
def test_otlp_value_in_both_forms_is_the_same_event(value: Any, message: logs_pb2.Value) -> None:
    as_attribute = {"attributes": [{"key": "k", "value": value}]}
    assert by_json({"body": value}).events == [by_protobuf(logs_pb2.Record(body=message))]
    pair = logs_pb2.Pair(key="k", value=message)
    assert by_json(as_attribute).events == [by_protobuf(logs_pb2.Record(attributes=[pair]))]


def test_otlp_values_lose_their_wrapping() -> None:
    values: dict[str, Any] = {
        "n": {"intValue": "7"},
        "of": {"arrayValue": {"values": [{"doubleValue": 1.5}, {}]}},
        "map": {"kvlistValue": {"values": [{"key": "a", "value": {"boolValue": True}}]}},
        "raw": {"bytesValue": "/w=="},
    }
    record = {"timeUnixNano": "1800000000000000001", "traceId": TRACE.hex(), "body": {"stringValue": "sold"}}
    attributes = [{"key": key, "value": value} for key, value in values.items()]
    (event,) = by_json(record | {"attributes": attributes}).events
    expected = {"n": 7, "of": [1.5, None], "map": {"a": True}, "raw": "/w=="}
    assert json.loads(bytes(event)) == record | {"body": "sold", "attributes": expected}


RECORDS: list[tuple[dict[str, Any], logs_pb2.Record]] = [
    ({"body": None, "severityText": None}, logs_pb2.Record()),
    ({"severityNumber": "SEVERITY_NUMBER_WARN2"}, logs_pb2.Record(severity_number=14)),
    ({"severityNumber": "9"}, logs_pb2.Record(severity_number=9)),
    ({"timeUnixNano": 1800000000000000001}, logs_pb2.Record(time_unix_nano=1800000000000000001)),
    ({"observedTimeUnixNano": "18446744073709551615"}, logs_pb2.Record(observed_time_unix_nano=(1 << 64) - 1)),
    ({"traceId": TRACE.hex().upper(), "spanId": ""}, logs_pb2.Record(trace_id=TRACE)),
    ({"flags": 257, "eventName": "sold", "unknown": [1]}, logs_pb2.Record(flags=257, event_name="sold")),
    (
        {"attributes": [{"key": "a"}, {"key": "a", "value": {"intValue": 1}}, {}]},
        logs_pb2.Record(
            attributes=[logs_pb2.Pair(key="a"), logs_pb2.Pair(key="a", value=V(int_value=1)), logs_pb2.Pair()]
        ),
    ),
]


@pytest.mark.parametrize(("record", "message"), RECORDS, ids=[str(record) for record, _ in RECORDS])
def test_otlp_record_in_both_forms_is_the_same_event(record: dict[str, Any], message: logs_pb2.Record) -> None:
    assert by_json(record).events == [by_protobuf(message)]


BAD: list[tuple[Any, str]] = [
    (7, "object"),
    ({"body": "sold"}, "is not an AnyValue"),
    ({"body": {"intValue": "9223372036854775808"}}, "intValue is '9223372036854775808'"),
    ({"body": {"intValue": True}}, "intValue is 'True'"),
    ({"body": {"intValue": 1.5}}, "intValue is '1.5'"),
    ({"body": {"boolValue": "true"}}, "boolValue is 'true'"),
    ({"body": {"stringValue": 7}}, "stringValue is '7'"),
    ({"body": {"doubleValue": 10**400}}, "doubleValue is '1000"),
    ({"body": {"bytesValue": "?"}}, "bytesValue is '?'"),
    ({"body": {"stringValue": "a", "intValue": 1}}, "both stringValue and intValue"),
    ({"traceId": base64.b64encode(TRACE).decode()}, "traceId is 'AAECAwQ"),
    ({"severityText": 7}, "severityText is '7'"),
    ({"severityNumber": "LOUD"}, "severityNumber is 'LOUD'"),
    ({"timeUnixNano": -1}, "timeUnixNano is '-1'"),
    ({"attributes": {}}, "attributes is not a list"),
    ({"attributes": [{"key": 7}]}, "key is '7'"),
]


@pytest.mark.parametrize(("record", "problem"), BAD, ids=[str(record)[:60] for record, _ in BAD])
def test_otlp_invalid_record_does_not_affect_others(record: Any, problem: str) -> None:
    batch = by_json({"body": {"stringValue": "a"}}, record, {"body": {"stringValue": "c"}})
    assert batch.events == [b'{"body":"a"}', b'{"body":"c"}']
    assert batch.rejected is not None
    assert (batch.rejected.records, batch.rejected.problem[:10]) == (1, "record 2: ")
    assert problem in batch.rejected.problem
    with pytest.raises(InvalidArgumentError, match="record 1"):
        by_json(record)


def test_otlp_number_beyond_a_double_does_not_affect_others() -> None:
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"doubleValue":1e400}},{"body":{"intValue":1}}]}]}]}'
    batch = records_of(_sent(body, "application/json"))
    assert batch.events == [b'{"body":1}']
    with pytest.raises(InvalidArgumentError, match="NaN"):
        records_of(_sent(body.replace(b"1e400", b"NaN"), "application/json"))


KEYS = [
    ({"stringValue": ""}, ""),
    ({"stringValue": "shop"}, "shop"),
    ({"intValue": "12345678901234567"}, "12345678901234567"),
    ({"doubleValue": 1.5}, "1.5"),
    ({}, None),
    (None, None),
]


@pytest.mark.parametrize(("service", "key"), KEYS)
def test_otlp_service_name_is_the_key_by_the_rule_of_keys(service: Any, key: str | None) -> None:
    assert by_json({}, service=service).keys == [key]


def test_otlp_service_name_that_cannot_be_a_key_rejects_the_records_of_its_resource() -> None:
    def logs(service: Any, count: int) -> dict[str, Any]:
        resource = {"attributes": [{"key": "service.name", "value": service}]}
        return {"resource": resource, "scopeLogs": [{"logRecords": [{"severityNumber": 1}] * count}]}

    request = {"resourceLogs": [logs({"boolValue": True}, 2), logs({"stringValue": "shop"}, 1)]}
    batch = records_of(_sent(json.dumps(request).encode(), "application/json"))
    assert batch.keys == ["shop"]
    assert batch.rejected is not None
    assert batch.rejected.records == 2
    assert "'service.name'" in batch.rejected.problem


def test_otlp_record_includes_resource_and_scope_in_both_formats() -> None:
    scope = {"name": "lib", "version": "2", "attributes": [{"key": "a", "value": {"boolValue": True}}]}
    record = {
        "severityNumber": 9,
        "severityText": "INFO",
        "spanId": TRACE[:8].hex(),
        "body": {"stringValue": "sold"},
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    logs = {"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": [record, {}]}]}
    message = logs_pb2.ResourceLogs(
        resource=logs_pb2.Attributes(attributes=[logs_pb2.Pair(key="service.name", value=V(string_value="shop"))]),
        scope_logs=[
            logs_pb2.ScopeLogs(
                scope=logs_pb2.LogScope(
                    name="lib", version="2", attributes=[logs_pb2.Pair(key="a", value=V(bool_value=True))]
                ),
                log_records=[
                    logs_pb2.Record(
                        severity_number=9,
                        severity_text="INFO",
                        span_id=TRACE[:8],
                        body=V(string_value="sold"),
                    ),
                    logs_pb2.Record(),
                ],
            )
        ],
    )
    by_name = records_of(_sent(json.dumps({"resourceLogs": [logs]}).encode(), "application/json"))
    body = logs_pb2.Request(resource_logs=[message]).SerializeToString()
    by_field = records_of(_sent(body, "application/x-protobuf"))
    assert (by_name.events, by_name.keys) == (by_field.events, by_field.keys)
    assert by_name.keys == ["shop", "shop"]
    expected = {
        "resource": {"service.name": "shop"},
        "scope": {"name": "lib", "version": "2", "attributes": {"a": True}},
    }
    first, second = (json.loads(bytes(event)) for event in by_name.events)
    assert second == expected
    assert first == {**record, "body": "sold", **expected}


def test_otlp_records_over_the_size_limit_are_rejected() -> None:
    """Each repeats its resource's attributes."""
    resource = {"attributes": [{"key": "k", "value": {"stringValue": "x" * 50_000}}]}
    logs = {"resource": resource, "scopeLogs": [{"logRecords": [{}] * 1000}]}
    with pytest.raises(InvalidArgumentError, match="33,554,432"):
        records_of(_sent(json.dumps({"resourceLogs": [logs]}).encode(), "application/json"))


def _nested(depth: int) -> bytes:
    value: dict[str, object] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": value}]}]}]}).encode()


@pytest.mark.parametrize(
    ("body", "media", "subject"),
    [
        (b"[]", "application/json", "JSON"),
        (b"\xff", "application/x-protobuf", "ExportLogsServiceRequest"),
        (b'{"resourceLogs": {}}', "application/json", "resourceLogs"),
        (b'{"resourceLogs": [1]}', "application/json", "resourceLogs"),
        (_nested(100), "application/json", "record 1"),
    ],
)
def test_otlp_invalid_request_is_rejected(body: bytes, media: str, subject: str) -> None:
    with pytest.raises(InvalidArgumentError, match=subject):
        records_of(_sent(body, media))
