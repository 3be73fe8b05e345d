"""Events of a stream for a browser: the first ones of a stretch; and by server-sent events its tail, or a stretch
played.

Each of the latter goes on until its reader leaves, the stretch or the sealed stream ends, or the server stops. What one
may hold is a batch, and what its connection hasn't taken yet: it isn't read on meanwhile, and nobody else waits for it.
There are a limited number, and an address has no more than half of what is left.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nadi.access.names import Act
from nadi.access.shares import Shares
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.endpoint import JSON, Call, Endpoint, Handler, Parameter, encode, on_stream, reply
from nadi.errors import InvalidArgumentError, NadiError, UnavailableError
from nadi.limits import PAGE_BATCH_EVENTS, PAGE_READERS
from nadi.own_clients import OwnClients
from nadi.web.bodies import Batch
from nadi.web.clients import authorization_of
from nadi.web.places import BY, STREAM

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager
    from nadi.web.reading.playing import Playing

log = logging.getLogger(__name__)

SSE = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}
SPEED_LEAST, SPEED_MOST = 0.01, 604_800.0  # a week in a second
_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", re.ASCII)
_MILLISECONDS = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_PLACE = {"type": "string", "minLength": 1}
_TAIL = (Parameter("start", "Where to begin, a place as in `cut`: the tail if it is left out.", _PLACE),)
_STRETCH = (
    Parameter("slice", "The named slice to be played, instead of start and end.", _PLACE),
    Parameter("start", "Where the stretch begins, a place as in `cut`: the head if it is left out.", _PLACE),
    Parameter("end", "Where it ends: the current tail if it is left out.", _PLACE),
    Parameter("from", "Milliseconds since 1970: nothing that came, or happened, earlier.", {"type": "integer"}),
    Parameter("to", "Milliseconds since 1970: nothing that came, or happened, then or later.", {"type": "integer"}),
    BY,
)
_PLAYING = (
    Parameter(
        "speed",
        "How many seconds pass in one; 1 if it is left out.",
        {"type": "number", "minimum": SPEED_LEAST, "maximum": SPEED_MOST},
    ),
    Parameter("pauses", "skip jumps over times without events.", {"type": "string", "enum": ["keep", "skip"]}),
)
_MOST = Parameter(
    "most",
    "How many events; 1 if it is left out.",
    {"type": "integer", "minimum": 1, "maximum": PAGE_BATCH_EVENTS},
)
_WHICH = Parameter(
    "which", "first, or last for the events at the stretch's end.", {"type": "string", "enum": ["first", "last"]}
)
_CODES = {400: "There is no such place.", 503: "As many are reading as may, or the server still recovers: try again."}


class _EventStream(StreamingResponse):
    """Ends what it reads as soon as its reader leaves."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type=SSE, headers=_HEADERS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


class Readers:
    """The three endpoints. at_once: how many may read."""

    def __init__(self, clients: OwnClients, at_once: int = PAGE_READERS) -> None:
        self._clients, self._shares = clients, Shares(at_once)

    def endpoints(self) -> tuple[Endpoint, ...]:
        needs = on_stream(Act.READ)

        def of(path: str, handler: Handler, query: tuple[Parameter, ...], media: str) -> Endpoint:
            summary = handler.__doc__ or ""
            return Endpoint("GET", path, summary, handler, needs, Batch, query=query, media=(media,), codes=_CODES)

        return (
            of(STREAM + "/events", self.events, (*_STRETCH, _MOST, _WHICH), JSON),
            of(STREAM + "/tail", self.tail, _TAIL, SSE),
            of(STREAM + "/play", self.play, (*_STRETCH, *_PLAYING), SSE),
        )

    async def events(self, call: Call) -> Response:
        """List the first events of a stretch of a stream, or its last, by the times at which they came or happened."""
        most = _most(call.asked("most"))
        which = call.asked("which") or "first"
        if which not in ("first", "last"):
            raise InvalidArgumentError(f"which is first or last, not {which[:40]!r}")
        async with self._clients.of(authorization_of(call)) as manager:
            from nadi.web.reading.playing import first_events

            what = await _stretch(call, manager)
            return reply(await first_events(manager, what, most, last=which == "last"))

    async def tail(self, call: Call) -> Response:
        """Send a stream's events as they come, by server-sent events: batches, until the reader leaves."""

        async def batches(manager: StreamManager) -> AsyncGenerator[Batch, None]:
            from nadi.web.reading.tail import tail

            at = call.asked("start")
            return tail(manager, *call.stream, await manager.cuts(*call.stream).named(at) if at is not None else None)

        return await self._sent(call, batches)

    async def play(self, call: Call) -> Response:
        """Play a stretch of a stream by server-sent events: batches, at the times at which they came or happened or
        faster, then an event of the kind `end`."""
        speed = _speed(call.asked("speed"))
        pauses = call.asked("pauses") or "keep"
        if pauses not in ("keep", "skip"):
            raise InvalidArgumentError(f"pauses is keep or skip, not {pauses[:40]!r}")

        async def batches(manager: StreamManager) -> AsyncGenerator[Batch, None]:
            from nadi.web.reading.playing import play

            return play(manager, await _stretch(call, manager, speed, skips_pauses=pauses == "skip"))

        return await self._sent(call, batches)

    async def _sent(
        self, call: Call, batches: Callable[[StreamManager], Awaitable[AsyncGenerator[Batch, None]]]
    ) -> Response:
        """The response, once there is a first batch: until then an error has its own status."""
        address = call.request.client.host if call.request.client is not None else ""
        if not self._shares.enter(address):
            raise UnavailableError(
                "as many are reading events by REST as may from this address: close a page, or try again"
            )
        events = _events(self._read(call, batches), lambda: self._shares.leave(address))
        try:
            await anext(events)
        except BaseException:
            await events.aclose()
            raise
        return _EventStream(events)

    async def _read(
        self, call: Call, batches: Callable[[StreamManager], Awaitable[AsyncGenerator[Batch, None]]]
    ) -> AsyncGenerator[Batch, None]:
        async with self._clients.of(authorization_of(call)) as manager, aclosing(await batches(manager)) as found:
            async for batch in found:
                yield batch


async def _events(batches: AsyncGenerator[Batch, None], leave: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """Messages, after an empty one once there is a first batch; an error is a message, too, from then on."""
    is_begun = False
    try:
        async with aclosing(batches):
            first = await anext(batches, None)
            is_begun = True
            yield b""
            if first is not None:
                yield _message("batch", first)
                async for batch in batches:
                    yield _message("batch", batch)
            yield _message("end", {})
    except NadiError as error:
        if not is_begun:
            raise
        yield _message("trouble", Error(str(error)))
    except Exception:
        if not is_begun:
            raise
        log.exception("reading events for a browser failed")
        yield _message("trouble", Error("the server failed to read on: see its log"))
    finally:
        leave()


def _message(kind: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(value))


async def _stretch(call: Call, manager: StreamManager, speed: float = 1.0, *, skips_pauses: bool = False) -> Playing:
    from nadi.web.reading.playing import stretch_of

    return await stretch_of(
        manager,
        *call.stream,
        name=_named(call, "slice"),
        start=_named(call, "start"),
        end=_named(call, "end"),
        from_ms=_milliseconds("from", call.asked("from")),
        to_ms=_milliseconds("to", call.asked("to")),
        by=call.asked("by"),
        speed=speed,
        skips_pauses=skips_pauses,
    )


def _named(call: Call, name: str) -> str | None:
    """A place, or a slice: an empty one is a mistake."""
    if (text := call.asked(name)) == "":
        raise InvalidArgumentError(f"{name} is empty: leave it out, or name a place")
    return text


def _speed(text: str | None) -> float:
    if text is None:
        return 1.0
    speed = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not SPEED_LEAST <= speed <= SPEED_MOST:
        raise InvalidArgumentError(f"speed is a number from {SPEED_LEAST} to {SPEED_MOST:,.0f}, not {text[:40]!r}")
    return speed


def _most(text: str | None) -> int:
    if text is None:
        return 1
    most = int(text) if _MILLISECONDS.fullmatch(text) else 0
    if not 1 <= most <= PAGE_BATCH_EVENTS:
        raise InvalidArgumentError(f"most is a number from 1 to {PAGE_BATCH_EVENTS}, not {text[:40]!r}")
    return most


def _milliseconds(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not _MILLISECONDS.fullmatch(text):
        raise InvalidArgumentError(f"{name} is {text[:40]!r}: give milliseconds since 1970")
    return int(text)
