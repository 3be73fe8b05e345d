"""The spans of a segment store: of what came in one go on a connection, of frames, of the log's writes, and of reads.

Called when all is over, with the times that were taken for the metrics. All it needs of a block is in the request that
the container has answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from nadi.observe.traces import LINKS_MOST, Tracing, Value
from nadi.segmentstore.counts import Arrival, Stages

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

BLOCKS_MOST = 64  # of one frame that get a span each; a flood of small ones isn't worth more


class TracedSession(Protocol):
    """A writer's on a segment."""

    @property
    def segment(self) -> str: ...


class TracedAppend(Protocol):
    """One append of a block."""

    @property
    def session(self) -> TracedSession: ...

    @property
    def writer(self) -> bytes: ...

    @property
    def last(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class StoreTracing:
    """Of one store; see `Counts.on_frame` and `Counts.on_read`."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def frame(self, container: int, sequence: int, stages: Stages, arrivals: Sequence[Arrival]) -> None:
        """A frame was answered: a span for each of its blocks, and in the first of them the frame's and the log's."""
        stored = [one for one in arrivals if one.appends][:BLOCKS_MOST]
        if not stored:
            return
        blocks = [self._block(container, one, stages.answered) for one in stored]
        about: dict[str, Value] = {"nadi.container": container, "nadi.frame": sequence}
        frame = self._tracing.span(
            "nadi.frame",
            blocks[0],
            stages.taken,
            stages.durable,
            {**about, "nadi.blocks": len(arrivals)},
            links=blocks[1:LINKS_MOST],
        )
        self._tracing.span("nadi.log", frame, stages.durable - stages.sync_s, stages.durable, about)

    def _block(self, container: int, arrival: Arrival, ended_s: float) -> SpanContext:
        appends: Sequence[TracedAppend] = arrival.block.appends
        first, roots = appends[0], [self._tracing.of_block(one.writer, one.last) for one in appends[:LINKS_MOST]]
        about: dict[str, Value] = {
            "nadi.segment": first.session.segment,
            "nadi.writer_id": first.writer.hex(),
            "nadi.event_number": first.last,
            "nadi.container": container,
            "nadi.appends": len(appends),
            "nadi.events": sum(one.events for one in appends),
            "nadi.bytes": sum(one.size_bytes for one in appends),
        }
        return self._tracing.span("nadi.append", roots[0], arrival.at, ended_s, about, kind="server", links=roots[1:])

    def read(
        self, request_id: int, segment: str, offset: int, size_bytes: int, began_s: float, fetched_s: float | None
    ) -> None:
        """A read was answered; fetched_s: when its bytes were there, if they weren't in memory."""
        ended_s, root = self._tracing.time_s(), self._tracing.of_read(request_id, segment, offset)
        about: dict[str, Value] = {"nadi.segment": segment, "nadi.offset": offset, "nadi.bytes": size_bytes}
        source = "memory" if fetched_s is None else "storage"
        span = self._tracing.span("nadi.read", root, began_s, ended_s, {**about, "nadi.source": source}, kind="server")
        if fetched_s is not None:
            self._tracing.span("nadi.fetch", span, began_s, fetched_s, about)
