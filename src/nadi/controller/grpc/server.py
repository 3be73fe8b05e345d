"""The gRPC server around the controller's services: its limits, and what every call goes through.

A call takes a place among those of its address, its request room while it comes and while it is worked on, and a turn;
then it is parsed, and its method asked, for callers whom access permits. No exception leaves a handler, for UNKNOWN
makes the Python client stall for a minute: an error that has no status in the reply becomes a gRPC code on which the
clients agree. Absent things are NOT_FOUND, bad input INVALID_ARGUMENT (neither is retried), temporary trouble
UNAVAILABLE, a full disk RESOURCE_EXHAUSTED (both are).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from nadi.access.loop_turns import LoopTurns
from nadi.access.shares import Shares
from nadi.controller.access import ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.calls import (
    CommitService,
    EventTimeService,
    KeyValueTableService,
    ReaderGroupService,
    ReportService,
    ScalerService,
    TransactionService,
)
from nadi.controller.grpc.requests import Place, Room, Watches, parsed
from nadi.controller.grpc.service import Service
from nadi.errors import InvalidArgumentError, NadiError, UnavailableError
from nadi.limits import (
    RPC_AT_ONCE,
    RPC_CONNECTIONS_MAX,
    RPC_IDLE_S,
    RPC_KEEPALIVE_S,
    RPC_KEEPALIVE_TIMEOUT_S,
    RPC_MESSAGE_HURRIED_S,
    RPC_MESSAGE_MAX_BYTES,
    RPC_MESSAGE_TIMEOUT_S,
    RPC_METADATA_MAX_BYTES,
    RPC_RECEIVING_BYTES,
    RPC_REFUSED_AT_ONCE,
    RPC_SENT_AHEAD_BYTES,
    RPC_SMALL_BYTES,
    RPC_STARTS_A_TURN,
    RPC_STREAMS_MAX,
    RPC_WORK_BYTES,
    RPC_WORK_TIMES,
    TLS_HANDSHAKE_S,
)
from nadi.wire.rpc.codes import code_of
from nadi.wire.rpc.service import SERVICES, WATCHES, Methods

log = logging.getLogger(__name__)

# Java pings an idle channel every 6 minutes; too strict a server would close it. gRPC has no overall memory limit
# that Python could set, so each part has one: connections, calls on each, and bytes of each call.
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", round(RPC_KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(RPC_KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.max_connection_idle_ms", round(RPC_IDLE_S * 1000)),
    ("grpc.server_handshake_timeout_ms", round(TLS_HANDSHAKE_S * 1000)),
    ("grpc.max_allowed_incoming_connections", RPC_CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", RPC_STREAMS_MAX),
    ("grpc.http.overload_protection", 0),  # else calls that have ended count until Python lets go of them
    ("grpc.max_receive_message_length", RPC_MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", RPC_METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", RPC_METADATA_MAX_BYTES),
    ("grpc.http2.bdp_probe", 0),  # else it lets each call send megabytes ahead, before anybody reads them
    ("grpc.http2.lookahead_bytes", RPC_SENT_AHEAD_BYTES),
    ("grpc.so_reuseport", 0),
]


KINDS: Methods = {rpc: kinds for methods in SERVICES.values() for rpc, kinds in methods.items()}
_GRPC_LOGGER, _NOT_SENT = "grpc._cython.cygrpc", "ExecuteBatchError"  # gRPC's, neither of which has a public name
_CROWDED = "this address has as many calls under way as the controller takes of one: try again when some have ended"


def rpc_server(*, shares_port: bool = False, **arguments: Any) -> grpc.aio.Server:
    """A gRPC server with our limits, for `add_controller`; `arguments` are those of grpc.aio.server. shares_port: other
    processes may listen at its port, too."""
    logging.getLogger(_GRPC_LOGGER).addFilter(_is_fault)  # once, however often
    options = dict(SERVER_OPTIONS) | {"grpc.so_reuseport": int(shares_port)}
    return grpc.aio.server(
        options=list(options.items()), maximum_concurrent_rpcs=RPC_AT_ONCE + RPC_REFUSED_AT_ONCE, **arguments
    )


def _is_fault(record: logging.LogRecord) -> bool:
    """Not of a caller that left just as it was answered: gRPC logs an error and a traceback for each."""
    return record.exc_info is None or record.exc_info[0] is None or record.exc_info[0].__name__ != _NOT_SENT


class Call:
    """An RPC whose request is here, with what an answer needs to know. `raw`: the request's bytes, until `parsed`."""

    __slots__ = ("_context", "_peer", "_turns", "_working", "raw", "rpc")

    def __init__(self, rpc: str, raw: bytes, context: Any, peer: str, turns: LoopTurns, working: Place) -> None:
        self.rpc, self.raw = rpc, raw
        self._context, self._peer = context, peer
        self._turns, self._working = turns, working

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Any:
        return self._context.invocation_metadata()

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None: it has none."""
        left = self._context.time_remaining()
        return None if left is None else float(left)

    async def parsed(self) -> Message:
        """The request, parsed once; InvalidArgumentError if it isn't one."""
        request = await parsed(KINDS[self.rpc][0], self.raw, lambda: self._turns.mine(self._peer))
        self.raw = b""
        return request

    def lasts(self) -> None:
        """It will last, while its request takes no more memory: that is others' from here on."""
        self._working.leave()

    async def write(self, reply: Message | bytes) -> None:
        """Send one reply of several, a message or its bytes."""
        await self._context.write(reply)


Answer = Callable[[Call], Awaitable[Any]]
"""Answers a call: the reply, a message or its bytes; None if replies were written."""


class Refusal(Exception):
    """The status that another server gave a call: it is passed on."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Answers:
    """The answers of some services' methods; with access, only to permitted callers."""

    def __init__(self, services: Sequence[object], access: ControllerAccess | None = None) -> None:
        self._access = access
        self._methods = {rpc: _method(rpc, services) for rpc in KINDS}
        self._watches = Watches()

    def has(self, rpc: str) -> bool:
        return self._methods[rpc] is not None

    async def answer(self, call: Call) -> Any:
        request = await call.parsed()
        method = self._methods[call.rpc]
        if call.rpc in WATCHES:
            call.lasts()
            return await self._watches.answer(call.rpc, method, request, call, self._access)
        if self._access is not None:
            return await self._access.answer(call.rpc, method, request, call)
        return await method(request)


def answers_of(controller: Controller, access: ControllerAccess | None = None) -> Answers:
    """Those of a controller, to every RPC."""
    kinds = (Service, TransactionService, ReaderGroupService, KeyValueTableService, EventTimeService, ReportService)
    return Answers([kind(controller) for kind in (*kinds, CommitService, ScalerService)], access)


def add_controller(server: grpc.aio.Server, controller: Controller, access: ControllerAccess | None = None) -> Shares:
    """Let `server` answer every RPC of the services for `controller`; with `access`, only for permitted callers. Return
    what counts its calls."""
    return add_answers(server, answers_of(controller, access).answer)


def add_answers(
    server: grpc.aio.Server, answer: Answer, peer_of: Callable[[Any], str] = lambda context: str(context.peer())
) -> Shares:
    """Let `server` answer every RPC of the services by `answer`; return what counts its calls. peer_of: returns who
    made a call, of its context."""
    turns, rooms = LoopTurns(RPC_STARTS_A_TURN), _Rooms()
    for name, methods in SERVICES.items():
        handlers = {  # requests are streams, for us to say how long the one may take to come
            rpc: (grpc.stream_stream_rpc_method_handler if rpc in WATCHES else grpc.stream_unary_rpc_method_handler)(
                _guarded(rpc, answer, peer_of, turns, rooms), response_serializer=_serialized
            )
            for rpc in methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    return rooms.calls


def _serialized(reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())


def _snake(rpc: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower()


def _method(rpc: str, services: Sequence[object]) -> Any:
    """The method that answers an RPC, from the one service that has it: an `Answer`, or `Replies` of `watches`; None if
    none has."""
    found = [getattr(service, _snake(rpc)) for service in services if hasattr(service, _snake(rpc))]
    assert len(found) <= 1, f"{rpc} has one service"
    return found[0] if found else None


class _Rooms:
    """For the calls of one server, and their requests: while they come, and while they are worked on."""

    def __init__(self) -> None:
        self.calls = Shares(RPC_AT_ONCE)
        self.receiving, self.work = Room(RPC_RECEIVING_BYTES), Room(RPC_WORK_BYTES)


def _guarded(
    rpc: str, answer: Answer, peer_of: Callable[[Any], str], turns: LoopTurns, rooms: _Rooms
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[Any]]:
    """A handler that lets no exception out.

    The request is parsed here rather than by gRPC, which answers UNKNOWN to bad ones.
    """

    async def handle(requests: AsyncIterator[bytes], context: Any) -> Any:
        peer = peer_of(context)
        address = peer.rpartition(":")[0]
        if not rooms.calls.enter(address):
            return await context.abort(grpc.StatusCode.UNAVAILABLE, _CROWDED)
        coming, worked_on = rooms.receiving.place(address), rooms.work.place(address)
        try:
            await coming.take(RPC_MESSAGE_MAX_BYTES)
            call = Call(rpc, await _received(requests, rooms.receiving), context, peer, turns, worked_on)
            if len(call.raw) > RPC_SMALL_BYTES:
                await worked_on.take(RPC_WORK_TIMES * len(call.raw))
            coming.leave()
            await turns.mine(peer)
            return await answer(call)
        except Refusal as refusal:
            code, text = refusal.code, refusal.text
        except Exception as error:
            code = grpc.StatusCode[code_of(error)]
            if code is grpc.StatusCode.INTERNAL:
                log.exception("%s failed", rpc)
            text = str(error) if isinstance(error, NadiError) else f"{rpc} failed inside the controller"
        finally:
            coming.leave()
            worked_on.leave()
            rooms.calls.leave(address)
        return await context.abort(code, text)

    return handle


async def _received(requests: AsyncIterator[bytes], room: Room) -> bytes:
    """The one request of a call; UnavailableError where it does not come in time, less where others wait for `room`."""
    loop = asyncio.get_running_loop()
    look: asyncio.TimerHandle

    def hurry() -> None:
        nonlocal look
        if room.is_waited_for:
            limit.reschedule(loop.time())
        else:
            look = loop.call_later(RPC_MESSAGE_HURRIED_S, hurry)

    look = loop.call_later(RPC_MESSAGE_HURRIED_S, hurry)
    try:
        async with asyncio.timeout(RPC_MESSAGE_TIMEOUT_S) as limit:
            raw = await anext(requests, None)
    except TimeoutError as error:
        raise UnavailableError("the request did not come in time: try again") from error
    finally:
        look.cancel()
    if raw is None:
        raise InvalidArgumentError("there is no request")
    return raw
