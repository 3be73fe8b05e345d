"""What a segment store counts while it works, for its metrics: one object for all containers of a store, so that
nothing counts backwards when one leaves. Nothing is counted for an event: only for a frame, a block that came in one
go, a read, or a piece of work in the background. All in the loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nadi.observe.metrics import Histogram
from nadi.observe.traces import LINKS_MOST, Tracing, Value

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

QUICK_S = (*(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025), *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Arrival(NamedTuple):
    """A block of appends that came in one go: when, how many of them were stored, and the request."""

    at: float
    appends: int
    block: Any


class Stages:
    """When a frame reached each stage, by the monotonic clock: taken, built, durable, answered. What it waited for the
    disk before it was built, for files beside the log, counts as its sync."""

    __slots__ = ("answered", "beside_s", "built", "clock", "durable", "taken")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.taken = self.built = self.durable = self.answered = clock()
        self.beside_s = 0.0

    async def beside(self, writing: Awaitable[object]) -> None:
        began = self.clock()
        await writing
        self.beside_s = self.clock() - began

    @property
    def building_s(self) -> float:
        return self.built - self.taken - self.beside_s

    @property
    def sync_s(self) -> float:
        return self.durable - self.built + self.beside_s


class Counts:
    """`on_frame` is called with each frame that was answered, `on_read` with each read, if there is one to call: see
    `tracing`."""

    def __init__(self) -> None:
        self.queue, self.frame, self.sync, self.whole = (Histogram(QUICK_S) for _ in range(4))
        self.appends = self.refused_appends = self.events = self.append_bytes = 0
        self.frames = self.frame_bytes = 0
        self.throttles = 0
        self.log_waits, self.log_wait_s = 0, 0.0
        self.recoveries = 0
        self.reads = self.read_bytes = 0  # from memory
        self.fetched_reads = self.fetched_bytes = 0
        self.moved_chunks = self.moved_bytes = 0
        self.compacted_chunks = self.compacted_bytes = 0
        self.deleted_chunks = self.tier2_errors = 0
        self.checkpoints, self.snapshots = Histogram(SLOW_S), Histogram(SLOW_S)
        self.checkpoint_errors = self.snapshot_errors = 0
        self.on_frame: Callable[[int, int, Stages, Sequence[Arrival]], None] | None = None
        self.on_read: Callable[[int, str, int, int, float, float | None], None] | None = None

    def wrote(self, container: int, sequence: int, stages: Stages, arrivals: Sequence[Arrival]) -> None:
        taken, answered, appends = stages.taken, stages.clock(), 0
        stages.answered = answered
        for at, count, _ in arrivals:
            if count:
                self.queue.add(taken - at, count)
                self.whole.add(answered - at, count)
                appends += count
        if appends:
            self.frame.add(stages.building_s, appends)
            self.sync.add(stages.sync_s, appends)
            self.appends += appends
        if self.on_frame is not None:
            self.on_frame(container, sequence, stages, arrivals)

    def framed(self, events: int, append_bytes: int, parts: Sequence[bytes]) -> None:
        self.frames += 1
        self.frame_bytes += sum(map(len, parts))
        self.events += events
        self.append_bytes += append_bytes

    async def waiting_for_log(self, settling: Awaitable[None], clock: Callable[[], float]) -> None:
        began = clock()
        await settling
        self.log_waits += 1
        self.log_wait_s += clock() - began

    def moved(self, size_bytes: int, *, was_in_log: bool) -> None:
        if was_in_log:
            self.moved_chunks += 1
            self.moved_bytes += size_bytes
        else:
            self.compacted_chunks += 1
            self.compacted_bytes += size_bytes


BLOCKS_MOST = 64  # of one frame that get a span each; a flood of small ones isn't worth more


class StoreTracing:
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
        appends = arrival.block.appends
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
