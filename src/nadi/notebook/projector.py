"""Answers to the requests of one widget's browsers, in the client's event loop.

At most NOTEBOOK_AHEAD batches of events are in flight to a browser; the next is sent when it acknowledges one, and
nothing is read meanwhile. Time continues, though: playback skips events that are due, a tail resumes at the tail, and
both report it. A browser that acknowledges nothing for NOTEBOOK_SILENCE_S is considered closed.

Each request has an id chosen by the browser; its responses have the same id and a kind:

    known → answer          information about the stream
    first → answer          a batch with the first events of a range
    play, tail → batch …    until `end`; `more` acknowledges a batch, `stop` cancels
    any → refused           {status, error}: 400 if it can't succeed, 503 if it may be retried

The JSON of a response is the only buffer of its message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from nadi.client.aio import StreamManager
from nadi.controller.rest.bodies import ResponseBody
from nadi.errors import AccessDeniedError, ClosedError, NadiError, UnavailableError
from nadi.limits import (
    NOTEBOOK_AHEAD,
    NOTEBOOK_READERS,
    NOTEBOOK_SEGMENTS,
    NOTEBOOK_SILENCE_S,
    NOTEBOOK_STREAM_CUTS,
)
from nadi.model.reports import LoadReport, SegmentReport
from nadi.web.bodies import BookmarkBody, EventsMessage, FirstEvents, PlaybackRange, SliceBody, StreamSpan
from nadi.web.reading.playing import first_events, play, replay_of
from nadi.web.reading.span import stream_span
from nadi.web.reading.tail import tail
from nadi.web.reading.times import CutTimes
from nadi.web.stream_cuts import seen_bookmark, seen_slice


class KnownStreams(msgspec.Struct, frozen=True):
    """Request for information. places: include bookmarks and slices. by: as in the page's endpoints."""

    places: bool = False
    by: Literal["arrival", "event-time"] | None = None


class BareMessage(msgspec.Struct, frozen=True):
    """A message without fields."""


Question = KnownStreams | FirstEvents | PlaybackRange | BareMessage
_KINDS: dict[str, type[Question]] = {
    "known": KnownStreams,
    "first": FirstEvents,
    "play": PlaybackRange,
    "tail": BareMessage,
    "more": BareMessage,
    "stop": BareMessage,
}


class RefusalMessage(ResponseBody, frozen=True):
    status: int
    error: str


class StreamKnown(ResponseBody, frozen=True):
    """Information about a stream. bookmarks, slices: None if they weren't requested or permission is missing."""

    segments: list[SegmentReport]
    loads: list[LoadReport]
    span: StreamSpan
    bookmarks: list[BookmarkBody] | None
    slices: list[SliceBody] | None


def parsed(message: object) -> tuple[str, str, Question]:
    """Parse a message to its id, kind and request; msgspec.ValidationError. Numbers may be text, as in a query."""
    head = msgspec.convert(message, Head)
    assert isinstance(message, dict)
    fields, kind = {key: value for key, value in message.items() if key not in ("id", "kind")}, _KINDS.get(head.kind)
    if kind is None:
        raise msgspec.ValidationError(f"unknown kind {head.kind!r}")
    if unknown := fields.keys() - set(kind.__struct_encode_fields__):
        raise msgspec.ValidationError(f"unknown field {min(unknown)}")
    question: Question = msgspec.convert(fields, kind, strict=False)
    return head.id, head.kind, question


class Head(msgspec.Struct, frozen=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    kind: str


def id_of(message: object) -> str | None:
    """Return the id of an invalid message, if it has one, so that its sender gets a response."""
    name = message.get("id") if isinstance(message, dict) else None
    return name if isinstance(name, str) and len(name) <= 64 else None


async def known(
    manager: StreamManager, scope: str, stream: str, *, has_places: bool, by: str | None = None
) -> StreamKnown:
    """Collect information about a stream, with the newest segments, bookmarks and slices if there are too many."""
    span, segments, loads = await asyncio.gather(
        stream_span(manager, scope, stream, by),
        manager.segment_history(scope, stream),
        manager.segment_loads(scope, stream),
    )
    times = CutTimes(manager, by)
    bookmarks, slices = await _places(manager, times, scope, stream) if has_places else (None, None)
    return StreamKnown(segments[-NOTEBOOK_SEGMENTS:], loads, span, bookmarks, slices)


async def _places(
    manager: StreamManager, times: CutTimes, scope: str, stream: str
) -> tuple[list[BookmarkBody] | None, list[SliceBody] | None]:
    try:
        marks = await manager.bookmarks(scope).list(stream=stream)
        slices = await manager.slices(scope).list(stream=stream)
    except AccessDeniedError:
        return None, None
    return (
        [await seen_bookmark(times, mark) for mark in sorted(marks, key=_created_at)[-NOTEBOOK_STREAM_CUTS:]],
        [await seen_slice(times, named) for named in sorted(slices, key=_created_at)[-NOTEBOOK_STREAM_CUTS:]],
    )


_created_at = attrgetter("created_at")
log = logging.getLogger(__name__)

Send = Callable[[dict[str, str], bytes], None]


@dataclass(slots=True, eq=False)
class _PendingQuestion:
    """A request in progress: its task, and the number of unacknowledged batches."""

    task: asyncio.Task[None] | None = None
    ahead: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def acknowledge(self) -> None:
        if self.ahead:
            self.ahead -= 1
            self.changed.set()

    async def reserve(self) -> None:
        """Wait until another batch may be sent; UnavailableError if none is acknowledged."""
        while self.ahead >= NOTEBOOK_AHEAD:
            self.changed.clear()
            try:
                async with asyncio.timeout(NOTEBOOK_SILENCE_S):
                    await self.changed.wait()
            except TimeoutError:
                raise UnavailableError(
                    f"the browser acknowledged nothing for {NOTEBOOK_SILENCE_S:g} s: it may retry"
                ) from None
        self.ahead += 1


class Projector:
    """A handler of browsers' messages about one stream, until `close`. send(head, body): sends to all browsers."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, send: Send) -> None:
        self._manager, self._scope, self._stream, self._send = manager, scope, stream, send
        self._open: dict[str, _PendingQuestion] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def receive(self, message: object) -> None:
        """Handle a browser's message; untrusted input, rejected if it is invalid."""
        try:
            name, kind, question = parsed(message)
        except msgspec.ValidationError as error:
            if (unknown := id_of(message)) is not None:
                self._reply(unknown, "refused", RefusalMessage(400, f"invalid request: {error}"))
            return
        pending = self._open.get(name)
        if kind == "more":
            if pending is not None:
                pending.acknowledge()
        elif kind == "stop":
            if pending is not None and pending.task is not None:
                pending.task.cancel()
        elif pending is not None:
            self._reply(name, "refused", RefusalMessage(400, "the id belongs to a request in progress: choose another"))
        elif self._is_closed:
            self._reply(name, "refused", RefusalMessage(400, "this player was closed: create another"))
        elif len(self._open) >= NOTEBOOK_READERS:
            refusal = RefusalMessage(503, f"the limit of {NOTEBOOK_READERS} concurrent requests is reached: try again")
            self._reply(name, "refused", refusal)
        else:
            pending = self._open[name] = _PendingQuestion()
            task = f"player of {self._scope}/{self._stream}"
            pending.task = asyncio.create_task(self._answer(name, question, pending), name=task)
            pending.task.add_done_callback(lambda _: self._open.pop(name, None))

    def close(self) -> None:
        """Reject further requests, and cancel those in progress."""
        self._is_closed = True
        for pending in self._open.values():
            if pending.task is not None:
                pending.task.cancel()

    async def _answer(self, name: str, question: Question, pending: _PendingQuestion) -> None:
        stream = self._manager, self._scope, self._stream
        try:
            match question:
                case KnownStreams():
                    self._reply(name, "answer", await known(*stream, has_places=question.places, by=question.by))
                case FirstEvents():
                    stretch = await replay_of(*stream, question)
                    batch = await first_events(self._manager, stretch, question.most, last=question.which == "last")
                    self._reply(name, "answer", batch)
                case PlaybackRange():
                    await self._batches(name, play(self._manager, await replay_of(*stream, question)), pending)
                case _:
                    await self._batches(name, tail(*stream), pending)
        except NadiError as error:
            may_retry = isinstance(error, UnavailableError) and not isinstance(error, ClosedError)
            self._reply(name, "refused", RefusalMessage(503 if may_retry else 400, str(error)))
        except Exception:
            log.exception("a player's request failed")
            self._reply(name, "refused", RefusalMessage(400, "the request failed in the kernel: see its log"))

    async def _batches(
        self, name: str, batches: AsyncGenerator[EventsMessage, None], pending: _PendingQuestion
    ) -> None:
        async with aclosing(batches):
            while True:
                await pending.reserve()
                if (batch := await anext(batches, None)) is None:
                    break
                self._reply(name, "batch", batch)
        self._reply(name, "end", {})

    def _reply(self, name: str, kind: str, body: object) -> None:
        self._send({"id": name, "kind": kind}, msgspec.json.encode(body))
