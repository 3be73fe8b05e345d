"""OpenTelemetry spans of writes and reads: off, and then without cost, unless a process turns them on.

No trace context crosses the wire, since the bytes are Pravega's. Instead both ends derive the trace id from what both
know of a block or a read: the writer's id and the number of the block's last event, or the request's id, the segment
and the offset. So spans of client and servers are in one trace, under a root that is never recorded; blocks of official
clients get such a trace, too. A span is made for a block, a frame or a read, never for an event, and only afterwards,
with the recorded times.

`active` is None while traces are off; that is the only check on the hot path. OpenTelemetry is imported when traces are
turned on.
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
LINKS_MOST = 32  # per span
END_S = 5.0  # time to send a process's last spans
_DRIFT_NS = 1_000_000
_MISSING = "traces need OpenTelemetry: pip install 'nadi[traces]'"
Value = str | int | float | bool
Kind = Literal["internal", "client", "server"]


class Tracing:
    """Makes spans with a provider. Times are in seconds by the monotonic clock, as `time_s` returns them."""

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
        """Record a finished span; return the parent context for its children. A provider's failure is logged once and
        never fails a write."""
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
                log.exception("failed to make a span; others may be missing, too")
            self._has_failed = True
            return parent

    def _zero_ns(self) -> int:
        """Return the wall clock's time when the monotonic clock was 0: the same for all spans until the wall clock is
        set or drifts."""
        zero_ns = time.time_ns() - time.monotonic_ns()
        if abs(zero_ns - self._known_zero_ns) > _DRIFT_NS:
            self._known_zero_ns = zero_ns
        return self._known_zero_ns

    def current(self) -> SpanContext | None:
        """Return the context of the application's current span, if any."""
        context = self._trace.get_current_span().get_span_context()
        return context if context.is_valid else None

    def of_block(self, writer_id: bytes, last_event_number: int) -> SpanContext:
        """Return the root of the trace of a block of events, identified by the number of its append."""
        return self._root(b"append", writer_id, last_event_number.to_bytes(8, "big", signed=True))

    def of_read(self, request_id: int, segment: str, offset: int) -> SpanContext:
        """Return the root of the trace of a read."""
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
    """Make spans of this process's writes and reads from now on, with the given provider or else with
    `opentelemetry.trace.get_tracer_provider()`. Connections that are already open are traced only in part.

    InvalidArgumentError: OpenTelemetry isn't installed.
    """
    global active
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise InvalidArgumentError(_MISSING) from error
    active = Tracing(provider if provider is not None else trace.get_tracer_provider())


def turn_off_traces() -> None:
    """Stop making spans."""
    global active
    active = None


def turn_on_export(kind: str, option: str = "--traces") -> None:
    """Turn traces on for a server and send them by OTLP over HTTP, configured by OpenTelemetry's environment variables:
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on. kind: "none" leaves traces off.

    InvalidArgumentError: the kind is unknown, or a package is missing.
    """
    if kind not in TRACE_KINDS:
        raise InvalidArgumentError(f"{option} must be one of {', '.join(TRACE_KINDS)}, not {kind!r}")
    if kind == "none":
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidArgumentError(f"{option}: {_MISSING}") from error
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if is_named else {"service.name": "nadi"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # its queue is bounded
    _end_at_exit(provider.shutdown)
    turn_on_traces(provider)


def _end_at_exit(flush: Callable[[], None]) -> None:
    """Flush at exit in a thread started now, since none can be started then, and with a time limit, since a collector
    that is down would delay the exit by half a minute."""
    is_over = threading.Event()

    def end() -> None:
        is_over.wait()
        flush()

    ending = threading.Thread(target=end, name="last spans", daemon=True)
    ending.start()

    def exit_() -> None:
        is_over.set()
        ending.join(END_S)

    atexit.register(exit_)
