"""What answers one widget's browsers, in the client's own loop.

A browser asks, and is sent what it asked for and no more: of events at most NOTEBOOK_AHEAD batches are on their way to
it, and it gets the next one when it has taken one. Meanwhile nothing is read. Time goes on, though: playing passes over
what it should have shown, a tail goes on at the tail, and each says so. Whoever takes nothing for NOTEBOOK_SILENCE_S is
gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from nadi.client.aio import Bookmark, NamedSlice, StreamManager
from nadi.errors import AccessDeniedError, ClosedError, InvalidArgumentError, NadiError, UnavailableError
from nadi.limits import NOTEBOOK_AHEAD, NOTEBOOK_PLACES, NOTEBOOK_READERS, NOTEBOOK_SEGMENTS, NOTEBOOK_SILENCE_S
from nadi.model.streamcut import StreamCut
from nadi.notebook.messages import (
    First,
    Known,
    More,
    Play,
    Question,
    Refusal,
    Stop,
    StreamKnown,
    Stretch,
    Tail,
    id_of,
    parsed,
)
from nadi.web.bodies import Batch, BookmarkSeen, CutSeen, SliceSeen
from nadi.web.reading.playing import Playing, first_events, play
from nadi.web.reading.span import stream_span
from nadi.web.reading.tail import tail
from nadi.web.reading.times import CutTimes, event_time_of


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
        [await _bookmark(times, one) for one in sorted(marks, key=_made)[-NOTEBOOK_PLACES:]],
        [await _slice(times, one) for one in sorted(slices, key=_made)[-NOTEBOOK_PLACES:]],
    )


def _made(one: Bookmark | NamedSlice) -> int:
    return round(one.made_at.timestamp() * 1000)


async def _cut(times: CutTimes, cut: StreamCut) -> CutSeen:
    return CutSeen(cut.as_text(), await times.of(cut))


async def _bookmark(times: CutTimes, one: Bookmark) -> BookmarkSeen:
    at = await _cut(times, one.cut)
    return BookmarkSeen(one.name, one.stream, at.cut, at.time, _made(one), one.note, list(one.tags))


async def _slice(times: CutTimes, one: NamedSlice) -> SliceSeen:
    start, end = await _cut(times, one.start), await _cut(times, one.end)
    return SliceSeen(one.name, one.stream, start, end, _made(one), one.note, list(one.tags))


log = logging.getLogger(__name__)

Send = Callable[[dict[str, str], bytes], None]


@dataclass(slots=True, eq=False)
class _Asked:
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
        self._open: dict[str, _Asked] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def receive(self, message: object) -> None:
        """Take a browser's message. Nothing that it may be does any harm; what is no question is refused."""
        try:
            said = parsed(message)
        except msgspec.ValidationError as error:
            if (name := id_of(message)) is not None:
                self._tell(name, "refused", Refusal(400, f"the kernel doesn't understand: {error}"))
            return
        held = self._open.get(said.id)
        if isinstance(said, More):
            if held is not None:
                held.taken()
        elif isinstance(said, Stop):
            if held is not None and held.task is not None:
                held.task.cancel()
        elif held is not None:
            self._tell(said.id, "refused", Refusal(400, "that id is one of a question under way: choose another"))
        elif self._is_closed:
            self._tell(said.id, "refused", Refusal(400, "this player was closed: make another"))
        elif len(self._open) >= NOTEBOOK_READERS:
            self._tell(said.id, "refused", Refusal(503, f"{NOTEBOOK_READERS} questions are under way: try again"))
        else:
            asked = self._open[said.id] = _Asked()
            asked.task = asyncio.create_task(self._answer(said, asked), name=f"player of {self._scope}/{self._stream}")
            asked.task.add_done_callback(lambda _: self._open.pop(said.id, None))

    def close(self) -> None:
        """Stop answering; what is under way is cancelled."""
        self._is_closed = True
        for asked in self._open.values():
            if asked.task is not None:
                asked.task.cancel()

    async def _answer(self, said: Question, asked: _Asked) -> None:
        try:
            match said:
                case Known():
                    found = await known(self._manager, self._scope, self._stream, has_places=said.places, by=said.by)
                    self._tell(said.id, "answer", found)
                case First():
                    stretch = await self._stretch(said, speed=1.0, skips_pauses=False)
                    batch = await first_events(self._manager, stretch, said.most, last=said.which == "last")
                    self._tell(said.id, "answer", batch)
                case Play() | Tail():
                    await self._batches(said, asked)
                    self._tell(said.id, "end", {})
        except NadiError as error:
            may_be_tried = isinstance(error, UnavailableError) and not isinstance(error, ClosedError)
            self._tell(said.id, "refused", Refusal(503 if may_be_tried else 400, str(error)))
        except Exception:
            log.exception("answering a player failed")
            self._tell(said.id, "refused", Refusal(400, "the kernel failed to answer: see its log"))

    async def _batches(self, said: Play | Tail, asked: _Asked) -> None:
        batches: AsyncGenerator[Batch, None]
        if isinstance(said, Tail):
            batches = tail(self._manager, self._scope, self._stream)
        else:
            stretch = await self._stretch(said, speed=said.speed, skips_pauses=said.pauses == "skip")
            batches = play(self._manager, stretch)
        async with aclosing(batches):
            while True:
                await asked.room()
                batch = await anext(batches, None)
                if batch is None:
                    return
                self._tell(said.id, "batch", batch)

    async def _stretch(self, said: Stretch, *, speed: float, skips_pauses: bool) -> Playing:
        start, end = await self._ends(said)
        event_time = await event_time_of(self._manager, self._scope, self._stream, said.by)
        return Playing(start, end, said.from_ms, speed, skips_pauses, said.to_ms, event_time)

    async def _ends(self, said: Stretch) -> tuple[StreamCut, StreamCut]:
        if said.slice:
            if said.start or said.end:
                raise InvalidArgumentError("a slice has its own start and end: leave them out, or leave out slice")
            found = await self._manager.slices(self._scope).get(said.slice)
            if found.stream != self._stream:
                raise InvalidArgumentError(
                    f"slice {said.slice} is one of the stream {found.stream}: make a player of it"
                )
            return found.start, found.end
        cuts = self._manager.cuts(self._scope, self._stream)
        start, end = await asyncio.gather(cuts.named(said.start or "head"), cuts.named(said.end or "tail", end=True))
        return start, end

    def _tell(self, name: str, kind: str, body: object) -> None:
        self._send({"id": name, "kind": kind}, msgspec.json.encode(body))
