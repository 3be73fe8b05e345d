"""One REST connection: uvicorn's, but closed if the peer sends half a request or reads nothing of an answer.

h11 works through everything it is given, one event for each chunk of a body, and a head's lines all at once. So input
is read and parsed in portions of few bytes and few lines, each in a turn shared by all connections; nothing more is
read until all of it is handled. A connection's account holds the input, as bytes or as a request, until it is answered;
if there is no room, the rest stays in the peer's network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import h11
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from nadi import limits
from nadi.access.budget import Pool
from nadi.access.listener import Guest
from nadi.access.loop_turns import LoopTurns
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.endpoint import JSON, encode
from nadi.controller.rest.intake import takes_data
from nadi.throttled_log import SeldomWarning
from nadi.wire.unsent import Unsent

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


def cut_portion(received: bytearray) -> bytes:
    """Take off its front what the parser may have next: so many bytes, or so many lines if these are fewer.

    >>> received = bytearray(b"a\\n" * 100)
    >>> cut_portion(received).count(b"\\n"), len(received)
    (64, 72)
    """
    end = 0
    for _ in range(limits.REST_PORTION_LINES):
        end = received.find(b"\n", end, limits.REST_PORTION_BYTES) + 1
        if not end:
            end = limits.REST_PORTION_BYTES
            break
    portion = bytes(memoryview(received)[:end])
    del received[:end]
    return portion


class Parser(h11.Connection):
    """Of one connection. `refusal` is the status and text to answer with, once `next_event` has raised."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, limits.REST_HEAD_MAX_BYTES)
        self.refusal = (400, "this is not HTTP")
        self._came_bytes = 0  # of a request after its head, with the framing of its chunks
        self._payload_bytes = 0
        self.head_bytes = 0  # parsed, of the latest request
        self.has_data = False  # whether its body is data, which is taken as it comes
        self._body_max_bytes = limits.REST_BODY_MAX_BYTES

    @property
    def request_bytes(self) -> int:
        """Parsed bytes of the latest request: its head and body, without framing."""
        return self.head_bytes + self._payload_bytes

    @property
    def unparsed_bytes(self) -> int:
        """Bytes received but in no event yet."""
        return len(self.trailing_data[0])

    @property
    def takes_more(self) -> bool:
        """Whether it can use bytes now: it can't between a request's last byte and the end of the answer."""
        return self.their_state in (h11.IDLE, h11.SEND_BODY)

    def receive_data(self, data: bytes) -> None:
        self._came_bytes += len(data)
        super().receive_data(data)

    def next_event(self) -> Event:
        """h11's; RemoteProtocolError also for what is too large."""
        event = super().next_event()
        if event is h11.NEED_DATA:
            self._check_incomplete()
        elif isinstance(event, h11.Request):
            self._came_bytes, self._payload_bytes = self.unparsed_bytes, 0
            self.head_bytes = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
            self.has_data = takes_data(event.target.partition(b"?")[0].decode("latin-1"))
            self._body_max_bytes = limits.INGEST_BODY_MAX_BYTES if self.has_data else limits.REST_BODY_MAX_BYTES
            told = next((value for name, value in event.headers if name == b"content-length"), b"0")
            if int(told) > self._body_max_bytes:
                self._refuse_body()
        elif isinstance(event, h11.Data):
            self._payload_bytes += len(event.data)
            if self._payload_bytes > self._body_max_bytes:
                self._refuse_body()
        return event

    def _check_incomplete(self) -> None:
        if self.trailing_data[0].count(b"\n") > limits.REST_HEAD_MAX_LINES:
            self._refuse(431, f"a head has at most {limits.REST_HEAD_MAX_LINES} lines")
        of_data = self._payload_bytes // limits.INGEST_FRAMING_PART if self.has_data else 0
        allowed = limits.REST_BODY_FRAMING_MAX_BYTES + of_data
        if self.their_state is h11.SEND_BODY and self._came_bytes - self._payload_bytes > allowed:
            self._refuse(413, "the body's chunks are too small: send it in larger ones, or with a Content-Length")

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body has more than {self._body_max_bytes:,} bytes")

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = status, message
        raise h11.RemoteProtocolError(message, error_status_hint=status)


log = logging.getLogger(__name__)
_of_uvicorn = logging.getLogger(f"{__name__}.uvicorn")
_of_uvicorn.setLevel(logging.ERROR)  # it warns of each bad request, so that anybody could fill the log; see _report
_report = SeldomWarning(log, "REST: %d connections were ended, the last from %s: %s")


class _Flow(FlowControl):
    """uvicorn's wish to read or not: the protocol has a say in it too, and looks again at each of them."""

    def __init__(self, transport: asyncio.Transport, changed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._changed = changed

    def pause_reading(self) -> None:
        self.read_paused = True
        self._changed()

    def resume_reading(self) -> None:
        self.read_paused = False
        self._changed()


class RestProtocol(H11Protocol):
    """A guest is loose unless a whole request of its is being answered. short: what guests above the limit are served.
    pool: of what is received."""

    conn: Parser

    def __init__(
        self, config: Config, server_state: ServerState, *, guest: Guest, short: ASGIApp, turns: LoopTurns, pool: Pool
    ) -> None:
        super().__init__(config, server_state, {})
        self.guest, self.short, self.turns, self.pool = guest, short, turns, pool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        if transport.get_extra_info("sslcontext") is not None:  # else TLS reads 256 KiB ahead of us
            cast("Any", transport).set_read_buffer_limits(high=limits.REST_SOCKET_BYTES)
        self.logger = _of_uvicorn
        self.conn = Parser()
        self.flow = _Flow(self.transport, self._steer)
        self._received = bytearray()  # and not given to the parser yet
        self._held = self.pool.account()
        self._is_continued = False  # the parser may have a next request already
        self._is_queued = False
        self._unsent = Unsent(self.transport)
        self._waits_since = self.loop.time()
        self._watch = self.loop.call_later(limits.PATROL_S, self._look)
        if self.guest.is_extra:
            self.app = self.short

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        self._received.clear()
        self._held.hold(0)
        self.pool.forget(self._steer)
        self.guest.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes | memoryview) -> None:
        self._unset_keepalive_if_required()
        self._received += data
        self._steer()

    def handle_events(self) -> None:
        """Also of uvicorn's own accord, after an answer: in a turn as all else."""
        self._is_continued = True
        self._steer()

    def _steer(self) -> None:
        """Ask for a turn if there is something to do; otherwise continue reading."""
        if self.transport.is_closing():
            return
        if self._has_work and not self._is_queued:
            self._is_queued = True
            self.turns.ask(self.guest.address, self._take_turn)
        if self.transport.is_closing():  # by what it did in its turn
            return
        self._held.hold(len(self._received) + self.conn.unparsed_bytes + self._answering_bytes)
        if self._received or self.flow.read_paused:
            self.transport.pause_reading()
        elif not self._held.room_bytes:
            self.transport.pause_reading()
            self.pool.wait(self._steer)
        else:
            self.transport.resume_reading()

    @property
    def _answering_bytes(self) -> int:
        if not self._is_answering:
            return 0
        if self.conn.has_data:  # what was taken has a place, see `intake`
            return self.conn.head_bytes + len(self.cycle.body)
        return self.conn.request_bytes

    @property
    def _has_work(self) -> bool:
        return self._is_continued or bool(self._received and not self.flow.read_paused and self.conn.takes_more)

    def _take_turn(self) -> bool:
        is_of_use = self._has_work and not self.transport.is_closing()
        if is_of_use:
            if not self._is_continued:
                self.conn.receive_data(cut_portion(self._received))
            self._is_continued = False
            super().handle_events()
            if self._is_answering and not self.cycle.more_body:
                self.guest.settle()
        self._is_queued = False
        self._steer()
        return is_of_use

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, if an answer can still be sent, and close the connection."""
        _report(self.client, self.conn.refusal[1])
        self._received.clear()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # it is answered here
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, message = self.conn.refusal
            headers = [("content-type", JSON), ("connection", "close")]
            body = encode(Error(message))
            headers.append(("content-length", str(len(body))))
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        self.guest.loosen()
        self.cycle.body = bytearray()  # what nobody asked for
        super().on_response_complete()
        self._steer()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        now = self.loop.time()
        self._watch = self.loop.call_later(limits.PATROL_S, self._look)
        if self._unsent.stalled_s(now) > limits.SEND_TIMEOUT_S:
            self._end(f"it took nothing of an answer for {limits.SEND_TIMEOUT_S:.0f} s")
        elif not self._is_answering and now - self._waits_since > limits.REST_HEAD_TIMEOUT_S:
            self._end(f"no whole request came in {limits.REST_HEAD_TIMEOUT_S:.0f} s")

    def _end(self, reason: str) -> None:
        _report(self.client, reason)
        self.transport.abort()


class RestConnection(asyncio.BufferedProtocol):
    """What the transport sees: it reads a portion at a time, where a plain protocol is given 250 KiB at once."""

    def __init__(self, protocol: RestProtocol) -> None:
        self._protocol = protocol
        self._buffer = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = memoryview(bytearray(limits.REST_PORTION_BYTES))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data, self._buffer = self._buffer[:nbytes], memoryview(b"")
        self._protocol.data_received(data)

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def abort(self) -> None:
        self._protocol.abort()
