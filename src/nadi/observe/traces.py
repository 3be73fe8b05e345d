"""Spans of writes and reads by OpenTelemetry: off, and then free, unless a process turns them on.

Nothing of a trace crosses the wire, whose bytes are Pravega's. Instead both ends name a trace by what both know of a
block or a read: the writer's id and the number of the block's last event, or the request's id, the segment and the
offset. So a client's span and the servers' are in one trace, under a root that nobody records; a span of an official
client's block has such a trace, too. A span is made for a block, a frame or a read, never for an event, and
afterwards, with the times that were taken meanwhile.

`active` is None while traces are off: whoever might make a span asks that, and nothing else. OpenTelemetry is imported
when they are turned on.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from nadi.defaults import TRACE_KINDS
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

log = logging.getLogger(__name__)

ENVIRONMENT = "NADI_TRACES"
LINKS_MOST = 32  # of one span
END_S = 5.0  # for the last spans of a process
_DRIFT_NS = 1_000_000
_MISSING = "traces need OpenTelemetry: pip install 'nadi[traces]'"
Value = str | int | float | bool
Kind = Literal["internal", "client", "server"]


class Tracing:
    """Makes spans with a provider. Times are those of `now`: seconds by the monotonic clock."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = provider.get_tracer("nadi")
        self._has_failed = False
        self._known_zero_ns = 0
        self._kinds: Mapping[Kind, trace.SpanKind] = {
            "internal": trace.SpanKind.INTERNAL,
            "client": trace.SpanKind.CLIENT,
            "server": trace.SpanKind.SERVER,
        }

    def time_s(self) -> float:
        return time.monotonic()

    def span(
        self,
        name: str,
        parent: SpanContext,
        began_s: float,
        ended_s: float,
        attributes: Mapping[str, Value],
        *,
        kind: Kind = "internal",
        links: Iterable[SpanContext] = (),
        error: Exception | None = None,
    ) -> SpanContext:
        """Record a span that is over; return what its children have as their parent. What a provider does wrong is
        logged, once, and harms nobody's write."""
        trace = self._trace
        try:
            since_ns = self._zero_ns()
            span: Span = self._tracer.start_span(
                name,
                trace.set_span_in_context(trace.NonRecordingSpan(parent)),
                self._kinds[kind],
                attributes,
                [trace.Link(link) for link in links],
                since_ns + int(began_s * 1e9),
            )
            if error is not None:
                span.set_status(trace.StatusCode.ERROR, str(error))
                span.set_attribute("error.type", type(error).__name__)
            span.end(since_ns + int(ended_s * 1e9))
            return span.get_span_context()
        except Exception:
            if not self._has_failed:
                log.exception("a span could not be made; others may be missing, too")
            self._has_failed = True
            return parent

    def _zero_ns(self) -> int:
        """The wall clock's time at which the monotonic clock was 0: the same for all spans, until that is set, or they
        have drifted apart."""
        zero_ns = time.time_ns() - time.monotonic_ns()
        if abs(zero_ns - self._known_zero_ns) > _DRIFT_NS:
            self._known_zero_ns = zero_ns
        return self._known_zero_ns

    def current(self) -> SpanContext | None:
        """That of the application's span, if it is in one."""
        context = self._trace.get_current_span().get_span_context()
        return context if context.is_valid else None

    def of_block(self, writer_id: bytes, last_event_number: int) -> SpanContext:
        """The root of the trace of a block of events: of the append with that number."""
        return self._root(b"append", writer_id, last_event_number.to_bytes(8, "big", signed=True))

    def of_read(self, request_id: int, segment: str, offset: int) -> SpanContext:
        """The root of the trace of a read."""
        numbers = (number.to_bytes(8, "big", signed=True) for number in (request_id, offset))
        return self._root(b"read", segment.encode(), *numbers)

    def _root(self, *parts: bytes) -> SpanContext:
        digest = blake2b(b"\0".join(parts), digest_size=24).digest()
        return self._trace.SpanContext(
            int.from_bytes(digest[:16]) or 1,
            int.from_bytes(digest[16:]) or 1,
            is_remote=True,
            trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
        )


active: Tracing | None = None


def turn_on_traces(provider: TracerProvider | None = None) -> None:
    """Have this process make spans of its writes and reads from now on, with that provider, or else the process's own:
    that of `opentelemetry.trace.get_tracer_provider()`. Connections that are open already aren't traced whole.

    InvalidArgumentError: OpenTelemetry isn't installed.
    """
    global active
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise InvalidArgumentError(_MISSING) from error
    active = Tracing(provider if provider is not None else trace.get_tracer_provider())


def turn_off_traces() -> None:
    """Make no more spans."""
    global active
    active = None


def turn_on_export(kind: str, option: str = "--traces") -> None:
    """Turn them on for a server that sends them by OTLP over HTTP, where OpenTelemetry's own environment variables say:
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on. kind: "none" leaves them off.

    InvalidArgumentError: there is no such kind; or what it takes isn't installed.
    """
    if kind not in TRACE_KINDS:
        raise InvalidArgumentError(f"{option} can't be {kind!r}: it is one of {', '.join(TRACE_KINDS)}")
    if kind == "none":
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidArgumentError(f"{option}: {_MISSING}") from error
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "nadi"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # its queue is bounded
    _end_at_exit(provider.shutdown)
    turn_on_traces(provider)


def _end_at_exit(send_what_is_left: Callable[[], None]) -> None:
    """By a thread that is there already, as none can be started then; a collector that is away has it wait for half a
    minute."""
    is_over = threading.Event()

    def end() -> None:
        is_over.wait()
        send_what_is_left()

    ending = threading.Thread(target=end, name="last spans", daemon=True)
    ending.start()

    def exit_() -> None:
        is_over.set()
        ending.join(END_S)

    atexit.register(exit_)
