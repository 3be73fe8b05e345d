"""Events of a stream for a browser: the first events of a range, and by server-sent events the tail or a replay.

A response with server-sent events ends when its reader disconnects, the range or the sealed stream ends, or the server
stops. Each holds one batch and what its connection hasn't sent yet; it stops reading meanwhile, without delaying
others. The number of readers is limited, and an address gets at most half of the remaining capacity.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nadi.access.fair_shares import Shares
from nadi.access.names import Act
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.endpoint import JSON, Handler, RestCall, RestEndpoint, encode, on_stream, reply
from nadi.errors import NadiError, UnavailableError
from nadi.limits import PAGE_READERS
from nadi.loopback_clients import OwnClients
from nadi.web import bodies
from nadi.web.bodies import EventsMessage
from nadi.web.clients import authorization_of, parameters_of, parse_query
from nadi.web.stream_cuts import STREAM

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager

log = logging.getLogger(__name__)

SSE = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}
_CODES = {400: "The position is invalid.", 503: "Too many readers, or the server is recovering: try again."}


class _EventStream(StreamingResponse):
    """Closes its source as soon as the reader disconnects."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type=SSE, headers=_HEADERS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


class Readers:
    """The three endpoints that read events. at_once: maximum number of concurrent readers."""

    def __init__(self, clients: OwnClients, at_once: int = PAGE_READERS) -> None:
        self._clients, self._shares = clients, Shares(at_once)

    def endpoints(self) -> tuple[RestEndpoint, ...]:
        def of(path: str, handler: Handler, query: type[Struct], media: str) -> RestEndpoint:
            more: Any = {"query": parameters_of(query), "media": (media,), "codes": _CODES}
            return RestEndpoint(
                "GET", STREAM + path, handler.__doc__ or "", handler, on_stream(Act.READ), EventsMessage, **more
            )

        return (
            of("/events", self.events, bodies.FirstEvents, JSON),
            of("/tail", self.tail, bodies.TailFrom, SSE),
            of("/play", self.play, bodies.PlaybackRange, SSE),
        )

    async def events(self, call: RestCall) -> Response:
        """List the first or last events of a range of a stream, by time of arrival or event time."""
        query = parse_query(call, bodies.FirstEvents)
        async with self._clients.of(authorization_of(call)) as manager:
            from nadi.web.reading.playing import first_events, replay_of

            replay = await replay_of(manager, *call.stream, query)
            return reply(await first_events(manager, replay, query.most, last=query.which == "last"))

    async def tail(self, call: RestCall) -> Response:
        """Send a stream's events as they arrive, in batches by server-sent events, until the reader disconnects."""
        start = parse_query(call, bodies.TailFrom).start

        async def batches(manager: StreamManager) -> AsyncGenerator[EventsMessage, None]:
            from nadi.web.reading.tail import tail

            return tail(manager, *call.stream, await manager.cuts(*call.stream).named(start) if start else None)

        return await self._sent(call, batches)

    async def play(self, call: RestCall) -> Response:
        """Replay a range of a stream in batches by server-sent events, at the original or another speed, and finish
        with an event of type `end`."""
        query = parse_query(call, bodies.PlaybackRange)

        async def batches(manager: StreamManager) -> AsyncGenerator[EventsMessage, None]:
            from nadi.web.reading.playing import play, replay_of

            return play(manager, await replay_of(manager, *call.stream, query))

        return await self._sent(call, batches)

    async def _sent(
        self, call: RestCall, batches: Callable[[StreamManager], Awaitable[AsyncGenerator[EventsMessage, None]]]
    ) -> Response:
        """Return the response once the first batch exists; errors before that get their own status."""
        address = call.request.client.host if call.request.client is not None else ""
        if not self._shares.enter(address):
            raise UnavailableError("too many event readers from this address: close a page, or try again")
        events = _events(self._read(call, batches), lambda: self._shares.leave(address))
        try:
            await anext(events)
        except BaseException:
            await events.aclose()
            raise
        return _EventStream(events)

    async def _read(
        self, call: RestCall, batches: Callable[[StreamManager], Awaitable[AsyncGenerator[EventsMessage, None]]]
    ) -> AsyncGenerator[EventsMessage, None]:
        async with self._clients.of(authorization_of(call)) as manager, aclosing(await batches(manager)) as source:
            async for batch in source:
                yield batch


async def _events(
    batches: AsyncGenerator[EventsMessage, None], leave: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """Yield an empty message once the first batch exists, then the messages; later errors become messages, too."""
    has_begun = False
    try:
        async with aclosing(batches):
            first = await anext(batches, None)
            has_begun = True
            yield b""
            if first is not None:
                yield _message("batch", first)
                async for batch in batches:
                    yield _message("batch", batch)
            yield _message("end", {})
    except NadiError as error:
        if not has_begun:
            raise
        yield _message("trouble", Error(str(error)))
    except Exception:
        if not has_begun:
            raise
        log.exception("reading events for a browser failed")
        yield _message("trouble", Error("reading failed: see the server's log"))
    finally:
        leave()


def _message(kind: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(value))
