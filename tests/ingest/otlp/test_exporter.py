"""OpenTelemetry's SDK sends an application's logs to a server, as in the guide."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nadi
from tests.access.support import PASSWORD, certificate, guarded, user
from tests.support.ports import free_port
from tests.support.waiting import until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter comes with nadi[traces]")

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider


class _Results(OTLPLogExporter):
    """An exporter that records the result of each export."""

    results: list[LogRecordExportResult]

    def export(self, batch: Any) -> LogRecordExportResult:
        result = super().export(batch)
        self.results = [*getattr(self, "results", []), result]
        return result


@contextmanager
def logger(exporter: OTLPLogExporter) -> Iterator[Any]:
    """A logger of an application named shop; at the end all its logs are exported."""
    provider = LoggerProvider(Resource.create({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    try:
        yield provider.get_logger("shop.sales", "1.2")
        assert provider.force_flush(60_000)
    finally:
        provider.shutdown()


def stored(manager: nadi.StreamManager) -> list[dict[str, Any]]:
    tail = manager.stream_info("home", "logs").tail
    return [json.loads(event.data) for event in manager.read_events("home", "logs", end=tail)]


def make_stream(manager: nadi.StreamManager) -> None:
    manager.create_scope("home")
    manager.create_stream("home", "logs", 2)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_exporter_is_configured_by_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """The exporter posts to /v1/logs by default."""
    with nadi.embedded(tmp_path, rest_port=0) as server, nadi.StreamManager(server.controller_uri) as manager:
        make_stream(manager)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", str(server.rest_uri))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "Nadi-Stream=home/logs")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", compression)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "60")
        exporter = _Results()
        with logger(exporter) as log:
            with TracerProvider(shutdown_on_exit=False).get_tracer("shop").start_as_current_span("sale") as span:
                log.emit(
                    LogRecord(
                        timestamp=1_760_000_000_123_456_789,
                        severity_number=SeverityNumber.WARN,
                        severity_text="WARN",
                        body={"sold": [1, 2.5, "höi"], "raw": b"\xff"},
                        attributes={"till": 3, "paid": True},
                        event_name="sale",
                    )
                )
            for number in range(1_000):
                log.emit(LogRecord(body=f"sold {number}"))
        first, *others = stored(manager)
    assert set(exporter.results) == {LogRecordExportResult.SUCCESS}
    assert int(first.pop("observedTimeUnixNano")) > 1_760_000_000 * 10**9
    assert first.pop("resource")["service.name"] == "shop"
    context = span.get_span_context()
    assert (first.pop("traceId"), first.pop("spanId")) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert first.pop("flags") & 1
    assert first == {
        "timeUnixNano": "1760000000123456789",
        "severityNumber": 13,
        "severityText": "WARN",
        "eventName": "sale",
        "body": {"sold": [1, 2.5, "höi"], "raw": "/w=="},
        "attributes": {"till": 3, "paid": True},
        "scope": {"name": "shop.sales", "version": "1.2"},
    }
    assert [record["body"] for record in others] == [f"sold {number}" for number in range(1_000)]  # one service's


def test_the_stream_in_the_endpoint_with_users_and_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # the exporter's HTTP library would trust these instead
        monkeypatch.delenv(name, raising=False)
    tls = certificate(tmp_path)
    with (
        guarded(tmp_path, tls=tls, rest_port=0) as server,
        nadi.StreamManager(server.controller_uri, credentials=user("root"), trust_store=tls.authority) as manager,
    ):
        make_stream(manager)
        for name, result in (("reader", LogRecordExportResult.FAILURE), ("writer", LogRecordExportResult.SUCCESS)):
            secret = base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()
            exporter = _Results(
                f"{server.rest_uri}/v1/logs?stream=home/logs",
                certificate_file=str(tls.authority),
                headers={"authorization": f"Basic {secret}"},
                compression=Compression.NoCompression,
                timeout=60,
            )
            with logger(exporter) as log:
                log.emit(LogRecord(body=f"of {name}"))
            assert exporter.results == [result]
        assert caplog.text.count("code: 403") == 1
        assert [record["body"] for record in stored(manager)] == ["of writer"]


def test_an_exporter_tries_again_while_the_server_is_away(tmp_path: Path) -> None:
    """At least once: it retries unanswered requests."""
    port = free_port()
    server = nadi.embedded(tmp_path / "data", rest_port=port)
    with nadi.StreamManager(server.controller_uri) as manager:
        make_stream(manager)
    exporter = _Results(f"http://127.0.0.1:{port}/v1/logs", headers={"Nadi-Stream": "home/logs"}, timeout=60)
    with logger(exporter) as log:
        log.emit(LogRecord(body="before"))
        until(lambda: getattr(exporter, "results", []))
        server.kill()
        log.emit(LogRecord(body="meanwhile"))
        server = nadi.embedded(tmp_path / "data", rest_port=port)
    with server, nadi.StreamManager(server.controller_uri) as manager:
        assert {record["body"] for record in stored(manager)} == {"before", "meanwhile"}
    assert set(exporter.results) == {LogRecordExportResult.SUCCESS}
