"""The gRPC server around the controller's service: its limits, and what every call goes through.

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
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from nadi import limits
from nadi.access.fair_shares import LoopTurns, Places, Shares
from nadi.controller.access import ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.service import Service
from nadi.errors import InvalidArgumentError, NadiError, UnavailableError
from nadi.wire.rpc.codes import code_of
from nadi.wire.rpc.service import SERVICES, WATCHES, Methods

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_VARINT_MAX_BYTES = 10


async def parsed(kind: type[Message], raw: bytes, turn: Callable[[], Awaitable[None]]) -> Message:
    """Return the message; InvalidArgumentError if it isn't one or has too many parts. Await `turn` between portions. 2
    MiB may hold a million empty parts: a tenth of a second to parse, and seconds to work on; or 150,000 keys of one
    hash, for a map: many seconds. No request needs more of one kind than two epochs of a stream have segments, so parts
    are counted first."""
    try:
        if len(raw) <= limits.RPC_PORTION_BYTES:
            message = kind.FromString(raw)
        else:
            message = kind()
            for begin, end in _portions(raw, 0, len(raw), kind.DESCRIPTOR):
                message.MergeFromString(raw[begin:end])
                await turn()
    except DecodeError as error:
        raise InvalidArgumentError(f"the request is no {kind.DESCRIPTOR.name}") from error
    for field, value in message.ListFields():
        if field.is_repeated and len(value) > limits.RPC_PARTS_MAX:
            raise _too_many(field.name)
    return message


def _portions(raw: bytes, at: int, end: int, kind: Any) -> Iterator[tuple[int, int]]:
    """Start and end of each run of fields to parse together: few of them, or few bytes. (0, 0) is a pause."""
    begun, parts = at, 0
    counts = Counter[int]()
    while at < end:
        number, inside, following = _field(raw, at, end)
        counts[number] += 1
        if counts[number] > limits.RPC_PARTS_MAX:
            raise _too_many(kind.fields_by_number[number].name if number in kind.fields_by_number else str(number))
        parts += 1
        if following - at > limits.RPC_PORTION_BYTES:
            field = kind.fields_by_number.get(number)
            if field is not None and field.message_type is not None and raw[at] & 7 == _BYTES:
                for _ in _portions(raw, inside, following, field.message_type):
                    yield 0, 0
        at = following
        if at - begun >= limits.RPC_PORTION_BYTES or parts >= limits.RPC_PORTION_PARTS:
            yield begun, at
            begun, parts = at, 0
    if begun < end:
        yield begun, end


def _field(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Number of the field at this position, where its content starts, and where it ends."""
    tag, at = _varint(raw, at, end)
    form = tag & 7
    inside = at
    if form == _BYTES:
        length, inside = _varint(raw, at, end)
        at = inside + length
    elif form == _VARINT:
        _, at = _varint(raw, at, end)
    elif form in (_FIXED_32, _FIXED_64):
        at += 4 if form == _FIXED_32 else 8
    else:
        raise DecodeError(f"there are no fields of form {form}")
    if at > end:
        raise DecodeError("the message ends within a field")
    return tag >> 3, inside, at


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and raw[at] < 0x80:  # nearly always
        return raw[at], at + 1
    found = 0
    for shift, place in enumerate(range(at, min(end, at + _VARINT_MAX_BYTES))):
        found |= (raw[place] & 0x7F) << 7 * shift
        if raw[place] < 0x80:
            return found, place + 1
    raise DecodeError("the message ends within a number")


def _too_many(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the request has more than {limits.RPC_PARTS_MAX:,} parts in {what}: no stream has as many"
    )


log = logging.getLogger(__name__)

# Java pings an idle channel every 6 minutes; too strict a server would close it. gRPC has no overall memory limit
# that Python could set, so each part has one: connections, calls on each, and bytes of each call.
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", round(limits.RPC_KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(limits.RPC_KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.max_connection_idle_ms", round(limits.RPC_IDLE_S * 1000)),
    ("grpc.server_handshake_timeout_ms", round(limits.TLS_HANDSHAKE_S * 1000)),
    ("grpc.max_allowed_incoming_connections", limits.RPC_CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", limits.RPC_STREAMS_MAX),
    ("grpc.http.overload_protection", 0),  # else calls that have ended count until Python lets go of them
    ("grpc.max_receive_message_length", limits.RPC_MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", limits.RPC_METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", limits.RPC_METADATA_MAX_BYTES),
    ("grpc.http2.bdp_probe", 0),  # else it lets each call send megabytes ahead, before anybody reads them
    ("grpc.http2.lookahead_bytes", limits.RPC_SENT_AHEAD_BYTES),
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
    at_once = limits.RPC_AT_ONCE + limits.RPC_REFUSED_AT_ONCE
    return grpc.aio.server(options=list(options.items()), maximum_concurrent_rpcs=at_once, **arguments)


def _is_fault(record: logging.LogRecord) -> bool:
    """Not of a caller that left just as it was answered: gRPC logs an error and a traceback for each."""
    return record.exc_info is None or record.exc_info[0] is None or record.exc_info[0].__name__ != _NOT_SENT


class RpcCall:
    """An RPC whose request is here, with what an answer needs to know. `raw`: the request's bytes, until `parsed`."""

    __slots__ = ("_context", "_peer", "_turns", "_working", "raw", "rpc")

    def __init__(
        self, rpc: str, raw: bytes, context: Any, peer: str, turns: LoopTurns, working: AsyncExitStack
    ) -> None:
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

    async def lasts(self) -> None:
        """It will last, while its request takes no more memory: that is others' from here on."""
        await self._working.aclose()

    async def write(self, reply: Message | bytes) -> None:
        await self._context.write(reply)


Answer = Callable[[RpcCall], Awaitable[Any]]
"""Answers a call: the reply, a message or its bytes; None if replies were written."""


class ForwardedStatus(Exception):
    """The status that another server gave a call: it is passed on."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Answers:
    """The answers of a service's methods; with access, only to permitted callers."""

    def __init__(self, service: object, access: ControllerAccess | None = None) -> None:
        self._access = access
        names = {rpc: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower() for rpc in KINDS}
        self._methods = {rpc: getattr(service, name) for rpc, name in names.items() if hasattr(service, name)}
        self._watches: Counter[str] = Counter()  # under way, of each connection

    def has(self, rpc: str) -> bool:
        return rpc in self._methods

    async def answer(self, call: RpcCall) -> Any:
        request = await call.parsed()
        method = self._methods[call.rpc]
        if call.rpc in WATCHES:
            await call.lasts()
            return await self._watch(method, request, call)
        if self._access is not None:
            return await self._access.answer(call.rpc, method, request, call)
        return await method(request)

    async def _watch(self, method: Callable[[Any], AsyncGenerator[Any, None]], request: Any, call: RpcCall) -> None:
        """Send what `method` yields, as long as access permits it; UnavailableError where there are too many: for it
        takes a place of all calls for as long as it lasts."""
        if self._access is not None:
            await self._access.permit(call.rpc, request, call)
        peer, of_one, of_all = call.peer(), limits.SCALER_WATCHES_OF_CONNECTION, limits.SCALER_WATCHES_MAX
        if self._watches[peer] >= of_one or self._watches.total() >= of_all:
            raise UnavailableError(
                f"there are too many calls of {call.rpc}: {of_one} on a connection and {of_all} in all are taken; ask "
                "now and then instead, as KEDA does for triggers of the type external"
            )
        self._watches[peer] += 1

        async def send() -> None:
            async with aclosing(method(request)) as replies:
                async for reply in replies:
                    await call.write(reply)

        sending = asyncio.create_task(send())
        try:
            while not (await asyncio.wait([sending], timeout=limits.SCALER_PERMIT_S))[0]:
                if self._access is not None:
                    await self._access.permit(call.rpc, request, call)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._watches[peer] -= 1
            self._watches += Counter()  # without those that have none


def add_controller(server: grpc.aio.Server, controller: Controller, access: ControllerAccess | None = None) -> Shares:
    """Let `server` answer every RPC of the services for `controller`; with `access`, only for permitted callers. Return
    what counts its calls."""
    return add_answers(server, Answers(Service(controller), access).answer)


def add_answers(
    server: grpc.aio.Server, answer: Answer, peer_of: Callable[[Any], str] = lambda context: str(context.peer())
) -> Shares:
    """Let `server` answer every RPC of the services by `answer`; return what counts its calls. peer_of: returns who
    made a call, of its context."""
    calls = _RpcCalls(answer, peer_of)

    def serialized(reply: Any) -> bytes:
        return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())

    for name, methods in SERVICES.items():
        handlers = {  # requests are streams, for us to say how long the one may take to come
            rpc: (grpc.stream_stream_rpc_method_handler if rpc in WATCHES else grpc.stream_unary_rpc_method_handler)(
                partial(calls.handle, rpc), response_serializer=serialized
            )
            for rpc in methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    return calls.shares


class _RpcCalls:
    """Those of one server, and memory for their requests, while they come and while they are worked on. gRPC hands over
    nothing of a request until it is asked to, and doesn't say how large it is: until then it stays in the network."""

    def __init__(self, answer: Answer, peer_of: Callable[[Any], str]) -> None:
        self._answer, self._peer_of = answer, peer_of
        self.shares, self._turns = Shares(limits.RPC_AT_ONCE), LoopTurns(limits.RPC_STARTS_A_TURN)
        self._receiving = Places(limits.RPC_RECEIVING_BYTES // limits.RPC_MESSAGE_MAX_BYTES)
        self._work_bytes = Places(limits.RPC_WORK_BYTES)

    async def handle(self, rpc: str, requests: AsyncIterator[bytes], context: Any) -> Any:
        """A handler that lets no exception out. The request is parsed here rather than by gRPC, which answers UNKNOWN
        to bad ones."""
        peer, limit_s = self._peer_of(context), limits.RPC_ROOM_TIMEOUT_S
        address = peer.rpartition(":")[0]
        if not self.shares.enter(address):
            return await context.abort(grpc.StatusCode.UNAVAILABLE, _CROWDED)
        try:
            async with AsyncExitStack() as coming, AsyncExitStack() as working:
                await coming.enter_async_context(self._receiving.of(address, limit_s=limit_s))
                call = RpcCall(rpc, await _received(requests), context, peer, self._turns, working)
                if len(call.raw) > limits.RPC_SMALL_BYTES:
                    size_bytes = limits.RPC_WORK_TIMES * len(call.raw)
                    await working.enter_async_context(self._work_bytes.of(address, size_bytes, limit_s=limit_s))
                await coming.aclose()
                await self._turns.mine(peer)
                return await self._answer(call)
        except ForwardedStatus as refusal:
            code, text = refusal.code, refusal.text
        except Exception as error:
            code = grpc.StatusCode[code_of(error)]
            if code is grpc.StatusCode.INTERNAL:
                log.exception("%s failed", rpc)
            text = str(error) if isinstance(error, NadiError) else f"{rpc} failed inside the controller"
        finally:
            self.shares.leave(address)
        return await context.abort(code, text)


async def _received(requests: AsyncIterator[bytes]) -> bytes:
    try:
        async with asyncio.timeout(limits.RPC_MESSAGE_TIMEOUT_S):
            raw = await anext(requests, None)
    except TimeoutError as error:
        raise UnavailableError("the request did not come in time: try again") from error
    if raw is None:
        raise InvalidArgumentError("there is no request")
    return raw
