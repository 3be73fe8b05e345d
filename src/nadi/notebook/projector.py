"""What answers one widget's browsers, in the client's own loop.

A browser asks, and is sent what it asked for and no more: of events at most NOTEBOOK_AHEAD batches are on their way to
it, and it gets the next one when it has taken one. Meanwhile nothing is read. Time goes on, though: playing passes over
what it should have shown, a tail goes on at the tail, and each says so. Whoever takes nothing for NOTEBOOK_SILENCE_S is
gone.

What a browser says to the kernel, and what it is answered.

Each message has an id that the browser chose for a question; answers to it have the same one, and a kind:

    known → answer          what is to be known of the stream
    first → answer          a batch with the first events of a stretch
    play, tail → batch …    until `end`; `more` says that a batch was taken, `stop` that no more are wanted
    any → refused           {status, error}: 400 for what can't succeed, 503 for what may be tried again

An answer's JSON is in the one buffer of its message.
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
    NOTEBOOK_PLACES,
    NOTEBOOK_READERS,
    NOTEBOOK_SEGMENTS,
    NOTEBOOK_SILENCE_S,
)
from nadi.model.reports import LoadReport, SegmentReport
from nadi.web.bodies import BookmarkSeen, EventsMessage, FirstEvents, Played, SliceSeen, StreamSpan
from nadi.web.reading.playing import first_events, play, stretch_of
from nadi.web.reading.span import stream_span
from nadi.web.reading.tail import tail
from nadi.web.reading.times import CutTimes
from nadi.web.stream_cuts import seen_bookmark, seen_slice


class KnownStreams(msgspec.Struct, frozen=True):
    """places: with bookmarks and slices, too. by: as in the page's endpoints."""

    places: bool = False
    by: Literal["arrival", "event-time"] | None = None


class BareMessage(msgspec.Struct, frozen=True):
    """What has no more to it than its kind."""


Question = KnownStreams | FirstEvents | Played | BareMessage
_KINDS: dict[str, type[Question]] = {
    "known": KnownStreams,
    "first": FirstEvents,
    "play": Played,
    "tail": BareMessage,
    "more": BareMessage,
    "stop": BareMessage,
}


class RefusalMessage(ResponseBody, frozen=True):
    status: int
    error: str


class StreamKnown(ResponseBody, frozen=True):
    """bookmarks, slices: None if they weren't asked for, or are not permitted to be seen."""

    segments: list[SegmentReport]
    loads: list[LoadReport]
    span: StreamSpan
    bookmarks: list[BookmarkSeen] | None
    slices: list[SliceSeen] | None


def parsed(message: object) -> tuple[str, str, Question]:
    """The message's id and kind, and what it asks; msgspec.ValidationError says what is wrong with it. Numbers may be
    texts, as in a query."""
    head = msgspec.convert(message, Head)
    assert isinstance(message, dict)
    asked, kind = {key: value for key, value in message.items() if key not in ("id", "kind")}, _KINDS.get(head.kind)
    if kind is None:
        raise msgspec.ValidationError(f"there is no kind {head.kind!r}")
    if unknown := asked.keys() - set(kind.__struct_encode_fields__):
        raise msgspec.ValidationError(f"there is no {min(unknown)}")
    question: Question = msgspec.convert(asked, kind, strict=False)
    return head.id, head.kind, question


class Head(msgspec.Struct, frozen=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    kind: str


def id_of(message: object) -> str | None:
    """Of a message that is something else, the id if it has one, so that whoever waits is answered."""
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, str) and len(found) <= 64 else None


async def known(
    manager: StreamManager, scope: str, stream: str, *, has_places: bool, by: str | None = None
) -> StreamKnown:
    """All that is asked for; of segments, bookmarks and slices the newest if there are too many."""
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
) -> tuple[list[BookmarkSeen] | None, list[SliceSeen] | None]:
    try:
        marks = await manager.bookmarks(scope).list(stream=stream)
        slices = await manager.slices(scope).list(stream=stream)
    except AccessDeniedError:
        return None, None
    return (
        [await seen_bookmark(times, one) for one in sorted(marks, key=_made_at)[-NOTEBOOK_PLACES:]],
        [await seen_slice(times, one) for one in sorted(slices, key=_made_at)[-NOTEBOOK_PLACES:]],
    )


_made_at = attrgetter("made_at")
log = logging.getLogger(__name__)

Send = Callable[[dict[str, str], bytes], None]


@dataclass(slots=True, eq=False)
class _PendingQuestion:
    """One question under way: its task, and how many batches are on their way."""

    task: asyncio.Task[None] | None = None
    ahead: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def taken(self) -> None:
        if self.ahead:
            self.ahead -= 1
            self.changed.set()

    async def room(self) -> None:
        """Wait until another batch may be sent; UnavailableError if nobody takes those that were."""
        while self.ahead >= NOTEBOOK_AHEAD:
            self.changed.clear()
            try:
                async with asyncio.timeout(NOTEBOOK_SILENCE_S):
                    await self.changed.wait()
            except TimeoutError:
                raise UnavailableError("the browser took nothing for a while: it may ask again") from None
        self.ahead += 1


class Projector:
    """`receive` what browsers say about one stream, until `close`. send(head, body): a message to all of them."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, send: Send) -> None:
        self._manager, self._scope, self._stream, self._send = manager, scope, stream, send
        self._open: dict[str, _PendingQuestion] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def receive(self, message: object) -> None:
        """Take a browser's message. Nothing that it may be does any harm; what is no question is refused."""
        try:
            name, kind, said = parsed(message)
        except msgspec.ValidationError as error:
            if (unknown := id_of(message)) is not None:
                self._tell(unknown, "refused", RefusalMessage(400, f"the kernel doesn't understand: {error}"))
            return
        held = self._open.get(name)
        if kind == "more":
            if held is not None:
                held.taken()
        elif kind == "stop":
            if held is not None and held.task is not None:
                held.task.cancel()
        elif held is not None:
            self._tell(name, "refused", RefusalMessage(400, "that id is one of a question under way: choose another"))
        elif self._is_closed:
            self._tell(name, "refused", RefusalMessage(400, "this player was closed: make another"))
        elif len(self._open) >= NOTEBOOK_READERS:
            self._tell(name, "refused", RefusalMessage(503, f"{NOTEBOOK_READERS} questions are under way: try again"))
        else:
            asked = self._open[name] = _PendingQuestion()
            task = f"player of {self._scope}/{self._stream}"
            asked.task = asyncio.create_task(self._answer(name, said, asked), name=task)
            asked.task.add_done_callback(lambda _: self._open.pop(name, None))

    def close(self) -> None:
        """Stop answering; what is under way is cancelled."""
        self._is_closed = True
        for asked in self._open.values():
            if asked.task is not None:
                asked.task.cancel()

    async def _answer(self, name: str, said: Question, asked: _PendingQuestion) -> None:
        stream = self._manager, self._scope, self._stream
        try:
            match said:
                case KnownStreams():
                    self._tell(name, "answer", await known(*stream, has_places=said.places, by=said.by))
                case FirstEvents():
                    stretch = await stretch_of(*stream, said)
                    batch = await first_events(self._manager, stretch, said.most, last=said.which == "last")
                    self._tell(name, "answer", batch)
                case Played():
                    await self._batches(name, play(self._manager, await stretch_of(*stream, said)), asked)
                case _:
                    await self._batches(name, tail(*stream), asked)
        except NadiError as error:
            may_be_tried = isinstance(error, UnavailableError) and not isinstance(error, ClosedError)
            self._tell(name, "refused", RefusalMessage(503 if may_be_tried else 400, str(error)))
        except Exception:
            log.exception("answering a player failed")
            self._tell(name, "refused", RefusalMessage(400, "the kernel failed to answer: see its log"))

    async def _batches(self, name: str, batches: AsyncGenerator[EventsMessage, None], asked: _PendingQuestion) -> None:
        async with aclosing(batches):
            while True:
                await asked.room()
                if (batch := await anext(batches, None)) is None:
                    break
                self._tell(name, "batch", batch)
        self._tell(name, "end", {})

    def _tell(self, name: str, kind: str, body: object) -> None:
        self._send({"id": name, "kind": kind}, msgspec.json.encode(body))
