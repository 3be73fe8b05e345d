"""Spans of both ends of writes and reads: one trace, in order, bounded, and nothing at all while traces are off."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client import aio
from nadi.config import ServerConfig
from nadi.errors import InvalidArgumentError
from nadi.model.framing import frame_events
from nadi.observe import traces
from nadi.segmentstore import storage_writer
from nadi.segmentstore.counters import BLOCKS_MOST
from nadi.standalone.server import Server
from nadi.wire import commands as wire
from tests.segmentstore.harness import WRITER, open_store
from tests.support.waiting import until_async

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="traces need nadi[traces]")

from opentelemetry import trace as api  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

pytestmark = pytest.mark.uvloop
S = "scope/stream/0.#epoch.0"


class Spans:
    """Exported spans by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def of(self, name: str, kind: api.SpanKind | None = None) -> list[Any]:
        return [span for span in self.all() if span.name == name and kind in (None, span.kind)]

    def one(self, name: str, kind: api.SpanKind | None = None) -> Any:
        (span,) = self.of(name, kind)
        return span

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture
def spans() -> Iterator[Spans]:
    exported = Spans()
    traces.turn_on_traces(exported.provider)
    yield exported
    traces.turn_off_traces()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[aio.StreamManager]:
    async with Server(ServerConfig(data=folder, store_port=0, port=0)) as server:
        manager = aio.StreamManager(server.controller_uri)
        try:
            await manager.create_scope("home")
            await manager.create_stream("home", "meters")
            yield manager
        finally:
            await manager.close()


@asynccontextmanager
async def writing(manager: aio.StreamManager) -> AsyncIterator[aio.EventWriter]:
    writer = await manager.create_writer("home", "meters")
    yield writer
    await writer.close()


def trace_of(span: Any) -> int:
    return int(span.context.trace_id)


async def test_a_write_from_the_client_to_the_log(tmp_path: Path, spans: Spans) -> None:
    async with served(tmp_path) as manager, writing(manager) as writer:
        spans.clear()
        await writer.write_event(b"a" * 92, routing_key="k")
        write, append = spans.one("nadi.write"), spans.one("nadi.append")
        frame, log = spans.one("nadi.frame"), spans.one("nadi.log")
        assert len({trace_of(span) for span in (write, append, frame, log)}) == 1
        assert write.parent.span_id == append.parent.span_id, "the root, which is never recorded"
        assert frame.parent.span_id == append.context.span_id
        assert log.parent.span_id == frame.context.span_id
        assert (write.kind, append.kind) == (api.SpanKind.CLIENT, api.SpanKind.SERVER)
        assert write.start_time <= append.start_time <= frame.start_time <= log.start_time
        assert log.end_time <= frame.end_time <= append.end_time <= write.end_time
        for name in ("nadi.writer_id", "nadi.event_number", "nadi.segment", "nadi.events", "nadi.bytes"):
            assert write.attributes[name] == append.attributes[name]
        assert (write.attributes["nadi.events"], write.attributes["nadi.bytes"]) == (1, 100)
        assert log.attributes == {"nadi.container": 0, "nadi.frame": frame.attributes["nadi.frame"]}


async def test_the_applications_span_is_linked(tmp_path: Path, spans: Spans) -> None:
    tracer = spans.provider.get_tracer("application")
    async with served(tmp_path) as manager, writing(manager) as writer:
        with tracer.start_as_current_span("order") as order:
            await writer.write_event(b"a")
        (link,) = spans.one("nadi.write").links
        assert link.context == order.get_span_context()
        await writer.write_event(b"b")
        assert spans.of("nadi.write")[1].links == ()


async def test_spans_are_of_blocks_and_not_of_events(tmp_path: Path, spans: Spans) -> None:
    async with served(tmp_path) as manager, writing(manager) as writer:
        spans.clear()
        for _ in range(5_000):
            writer.write_event(b"a" * 92)
        await writer.flush()
        writes = spans.of("nadi.write")
        assert sum(span.attributes["nadi.events"] for span in writes) == 5_000
        assert len(spans.all()) < 200
        assert {trace_of(span) for span in writes} >= {trace_of(span) for span in spans.of("nadi.append")}


async def test_a_read_from_memory_and_one_from_tier_2(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, containers=1) as (store, peer):
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"a" * 92], 1)
        spans.clear()
        await peer.ask(wire.ReadSegment(S, 0, 1000, "", 77))
        read = spans.one("nadi.read")
        assert trace_of(read) == traces.active.of_read(77, S, 0).trace_id  # type: ignore[union-attr]
        assert read.attributes == {
            "nadi.segment": S,
            "nadi.offset": 0,
            "nadi.bytes": 100,
            "nadi.source": "memory",
        }
        (container,) = store.containers
        monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 0.01)
        await until_async(lambda: container.counts.tiered_chunks > 0)
        spans.clear()
        await peer.ask(wire.ReadSegment(S, 0, 1000, "", 78))
        read, fetch = spans.one("nadi.read"), spans.one("nadi.fetch")
        assert read.attributes["nadi.source"] == "storage"
        assert fetch.parent.span_id == read.context.span_id
        assert read.start_time <= fetch.start_time <= fetch.end_time <= read.end_time


async def test_both_ends_of_a_read_are_in_one_trace(tmp_path: Path, spans: Spans) -> None:
    async with served(tmp_path) as manager:
        async with writing(manager) as writer:
            await writer.write_event(b"a" * 92)
        spans.clear()
        async for _ in manager.read_events("home", "meters", timeout=30):
            break
        ours, theirs = spans.one("nadi.read", api.SpanKind.CLIENT), spans.one("nadi.read", api.SpanKind.SERVER)
        assert trace_of(ours) == trace_of(theirs)
        assert ours.attributes["nadi.bytes"] == theirs.attributes["nadi.bytes"] == 100
        assert ours.start_time <= theirs.start_time <= theirs.end_time <= ours.end_time


async def test_an_official_clients_append_has_a_trace_that_can_be_named(tmp_path: Path, spans: Spans) -> None:
    async with open_store(tmp_path, containers=1) as (_, peer):
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"a", b"b"], 2)
        root = traces.active.of_block(WRITER, 2)  # type: ignore[union-attr]
        append = spans.one("nadi.append")
        assert (trace_of(append), append.parent.span_id) == (root.trace_id, root.span_id)
        assert append.attributes["nadi.writer_id"] == WRITER.hex()


async def test_a_frame_of_many_blocks_has_a_bounded_number_of_spans(tmp_path: Path, spans: Spans) -> None:
    async with open_store(tmp_path, containers=1) as (store, peer):
        await peer.create(S)
        await peer.setup(S)
        (container,) = store.containers
        container.queue.is_held = True
        event = frame_events([b"a"])
        for number in range(1, 301):  # each in a separate block, because of the KeepAlive in between
            peer.send(wire.AppendBlockEnd(WRITER, len(event), event, 1, number, 9), wire.KeepAlive())
        await until_async(lambda: container.queue.count == 300)
        spans.clear()
        container.queue.is_held = False
        container._wake.set()
        replies = 0
        while replies < 600:
            replies += 1
            await peer.receive()
        assert len(spans.of("nadi.append")) <= BLOCKS_MOST * len(spans.of("nadi.frame"))
        frame = max(spans.of("nadi.frame"), key=lambda span: span.attributes["nadi.blocks"])
        assert frame.attributes["nadi.blocks"] > BLOCKS_MOST
        assert len(frame.links) == traces.LINKS_MOST - 1


async def test_failing_provider_fails_no_write(
    tmp_path: Path, spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(span: Any) -> None:
        raise RuntimeError("the disk of the collector is full")

    processor = SimpleSpanProcessor(InMemorySpanExporter())
    monkeypatch.setattr(processor, "on_end", fail)
    spans.provider.add_span_processor(processor)
    with caplog.at_level(logging.ERROR):
        async with served(tmp_path) as manager, writing(manager) as writer:
            for _ in range(10):
                await writer.write_event(b"a")
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is logged once"


async def test_no_spans_while_off(tmp_path: Path, spans: Spans) -> None:
    traces.turn_off_traces()
    async with open_store(tmp_path, containers=1) as (store, peer):
        assert (store.counts.on_frame, store.counts.on_read) == (None, None)
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"a"], 1)
        await peer.read_all(S)
    assert spans.all() == []


def test_off_nothing_is_imported() -> None:
    script = (
        "import sys, tempfile, nadi.standalone.server, nadi.client\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_missing_extra_raises_error_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidArgumentError, match=r"nadi\[traces\]"):
        nadi.turn_on_traces()
    with pytest.raises(InvalidArgumentError, match=r"^--traces"):
        traces.turn_on_export("otlp")
    with pytest.raises(InvalidArgumentError, match=r"--traces .*'jaeger'"):
        traces.turn_on_export("jaeger")
    assert traces.active is None
