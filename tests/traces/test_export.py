"""A server process that exports its spans by OTLP to a collector, and a client in the same traces."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.errors import InvalidArgumentError
from nadi.observe import traces
from tests.support.waiting import until

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="traces need nadi[traces]")
service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs nadi[traces]")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402


class Collector:
    """Receives OTLP over HTTP. spans: by name; services: the senders."""

    def __init__(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    collector.take(service.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.spans: dict[str, list[Any]] = {}
        self.services: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, request: Any) -> None:
        for resource in request.resource_spans:
            names = [one.value.string_value for one in resource.resource.attributes if one.key == "service.name"]
            self.services.update(names)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.setdefault(span.name, []).append(span)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_a_clients_spans_and_its_servers_are_in_the_same_traces(tmp_path: Path, collector: Collector) -> None:
    environment = {
        "NADI_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    nadi.turn_on_traces(provider)
    try:
        with (
            nadi.embedded(tmp_path, environment=environment) as server,
            nadi.StreamManager(server.controller_uri) as manager,
        ):
            manager.create_scope("home")
            manager.create_stream("home", "meters")
            with manager.create_writer("home", "meters") as writer:
                for _ in range(50):  # after some of them the caller's thread sends directly
                    writer.write_event(b"a").result()
            events = manager.read_events("home", "meters", timeout=30)
            assert [next(events).data for _ in range(50)] == [b"a"] * 50
            ours = {span.context.trace_id for span in exporter.get_finished_spans() if span.name == "nadi.write"}
            assert len(ours) == 50

            def theirs(name: str) -> set[int]:
                return {int.from_bytes(span.trace_id, "big") for span in collector.spans.get(name, ())}

            until(lambda: ours <= theirs("nadi.append") & theirs("nadi.frame") & theirs("nadi.log"))
            reads = {span.context.trace_id for span in exporter.get_finished_spans() if span.name == "nadi.read"}
            assert reads
            until(lambda: reads <= theirs("nadi.read"))
    finally:
        traces.turn_off_traces()
    assert collector.services == {"nadi"}


def test_remaining_spans_are_sent_at_exit(tmp_path: Path, collector: Collector) -> None:
    environment = {
        "NADI_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
        "OTEL_SERVICE_NAME": "streams of the house",
    }
    with (
        nadi.embedded(tmp_path, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        with manager.create_writer("home", "meters") as writer:
            writer.write_event(b"a").result()
        assert "nadi.append" not in collector.spans
    assert "nadi.append" in collector.spans
    assert collector.services == {"streams of the house"}


def test_unreachable_collector_does_not_delay_the_stop(tmp_path: Path) -> None:
    environment = {
        "NADI_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with (
        nadi.embedded(tmp_path, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        with manager.create_writer("home", "meters") as writer:
            for _ in range(20):
                writer.write_event(b"a").result()
        began = time.monotonic()
    assert time.monotonic() - began < traces.END_S + 15  # without a time limit it takes half a minute


def test_unknown_kind_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"NADI_TRACES .*'zipkin'"):
        nadi.embedded(tmp_path / "data", environment={"NADI_TRACES": "zipkin"})
    assert not (tmp_path / "data").exists()
