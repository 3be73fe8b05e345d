"""Record the client's spans: a block of events from sending until it is stored, and a read until its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nadi.observe.traces import Tracing, Value

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


class BlockTrace:
    """The time when a block was sent and the application's span that caused it. before: the block's earlier trace."""

    __slots__ = ("at", "of")

    def __init__(self, tracing: Tracing, before: BlockTrace | None) -> None:
        self.at = tracing.time_s()
        self.of: SpanContext | None = tracing.current() if before is None else before.of


class TracedBlock(Protocol):
    """A block of events with the data that its span needs."""

    trace: BlockTrace | None
    number: int
    size: int

    def __len__(self) -> int: ...


def stored(tracing: Tracing, segment: str, writer_id: bytes, blocks: Sequence[TracedBlock]) -> None:
    """Record a span for each stored block, linked to the application's span."""
    now = tracing.time_s()
    for block in blocks:
        if block.trace is not None:
            attributes: dict[str, Value] = {
                "nadi.segment": segment,
                "nadi.writer_id": writer_id.hex(),
                "nadi.event_number": block.number,
                "nadi.events": len(block),
                "nadi.bytes": block.size,
            }
            root, of = tracing.of_block(writer_id, block.number), block.trace.of
            links = () if of is None else (of,)
            tracing.span("nadi.write", root, block.trace.at, now, attributes, kind="client", links=links)


def read_span(tracing: Tracing, request_id: int, segment: str, offset: int) -> Callable[[asyncio.Future[Any]], None]:
    """Return a done-callback that records the span of a read sent now."""
    began, parent = tracing.time_s(), tracing.current()

    def ended(reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            return
        failure = reply.exception()
        attributes: dict[str, Value] = {"nadi.segment": segment, "nadi.offset": offset}
        if failure is None:
            attributes["nadi.bytes"] = len(reply.result().data)
        tracing.span(
            "nadi.read",
            tracing.of_read(request_id, segment, offset),
            began,
            tracing.time_s(),
            attributes,
            kind="client",
            links=() if parent is None else (parent,),
            error=failure if isinstance(failure, Exception) else None,
        )

    return ended
