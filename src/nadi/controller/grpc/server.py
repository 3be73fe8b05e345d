"""The gRPC server of the controller's service: admission of calls, parsing, access checks and error codes.

A call takes one of its address's slots, memory for its request while it is received and processed, and a turn of the
loop; then it is parsed, checked for access and passed to its method. No exception leaves a handler, since UNKNOWN makes
the Python client stall for a minute: an error without a status in the reply becomes a gRPC code that all clients
interpret alike. NOT_FOUND and INVALID_ARGUMENT are not retried; UNAVAILABLE and RESOURCE_EXHAUSTED (disk full) are.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from nadi import limits
from nadi.access.authentication import Gate
from nadi.access.fair_shares import FairQueue, LoopTurns, Shares
from nadi.controller.access import ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.service import Service
from nadi.errors import ClosedError, InvalidArgumentError, NadiError, UnavailableError
from nadi.wire.rpc.codes import code_of
from nadi.wire.rpc.service import LONG_POLLS, SERVICES, WATCHES, Methods

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_VARINT_MAX_BYTES = 10


async def parsed(kind: type[Message], raw: bytes, turn: Callable[[], Awaitable[None]]) -> Message:
    """Return the parsed message; InvalidArgumentError if it is malformed or has too many parts. Awaits `turn` between
    portions. 2 MiB may contain a million empty parts, which take 0.1 s to parse and seconds to process, or 150,000
    map keys with the same hash, which take many seconds. No request needs more parts of one kind than two epochs of a
    stream have segments, so parts are counted before parsing."""
    try:
        if len(raw) <= limits.RPC_PORTION_BYTES:
            message = kind.FromString(raw)
        else:
            message = kind()
            for begin, end in _portions(raw, 0, len(raw), kind.DESCRIPTOR):
                message.MergeFromString(raw[begin:end])
                await turn()
    except DecodeError as error:
        raise InvalidArgumentError(f"the request is not a {kind.DESCRIPTOR.name}: it can't be parsed") from error
    for field, value in message.ListFields():
        if field.is_repeated and len(value) > limits.RPC_PARTS_MAX:
            raise _too_many(field.name)
    return message


def _portions(raw: bytes, at: int, end: int, kind: Any) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of fields to parse at once: few fields or few bytes. (0, 0) is a pause."""
    start, parts = at, 0
    counts = Counter[int]()
    while at < end:
        number, content, following = _field(raw, at, end)
        counts[number] += 1
        if counts[number] > limits.RPC_PARTS_MAX:
            raise _too_many(kind.fields_by_number[number].name if number in kind.fields_by_number else str(number))
        parts += 1
        if following - at > limits.RPC_PORTION_BYTES:
            field = kind.fields_by_number.get(number)
            if field is not None and field.message_type is not None and raw[at] & 7 == _BYTES:
                for _ in _portions(raw, content, following, field.message_type):
                    yield 0, 0
        at = following
        if at - start >= limits.RPC_PORTION_BYTES or parts >= limits.RPC_PORTION_PARTS:
            yield start, at
            start, parts = at, 0
    if start < end:
        yield start, end


def _field(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the field's number, the start of its content, and its end."""
    tag, at = _varint(raw, at, end)
    form = tag & 7
    content = at
    if form == _BYTES:
        length, content = _varint(raw, at, end)
        at = content + length
    elif form == _VARINT:
        _, at = _varint(raw, at, end)
    elif form in (_FIXED_32, _FIXED_64):
        at += 4 if form == _FIXED_32 else 8
    else:
        raise DecodeError(f"unknown wire type {form}")
    if at > end:
        raise DecodeError("the message is truncated within a field")
    return tag >> 3, content, at


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and raw[at] < 0x80:  # nearly always
        return raw[at], at + 1
    value = 0
    for shift, position in enumerate(range(at, min(end, at + _VARINT_MAX_BYTES))):
        value |= (raw[position] & 0x7F) << 7 * shift
        if raw[position] < 0x80:
            return value, position + 1
    raise DecodeError("the message is truncated within a number")


def _too_many(field: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the request has more than {limits.RPC_PARTS_MAX:,} parts in {field}, more than any stream has: send fewer"
    )


log = logging.getLogger(__name__)

# Java pings an idle channel every 6 minutes; too strict a server would close it. gRPC has no overall memory limit
# accessible from Python, so each part is limited: connections, calls per connection, and bytes per call.
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
    ("grpc.http.overload_protection", 0),  # else ended calls count until Python releases them
    ("grpc.max_receive_message_length", limits.RPC_MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", limits.RPC_METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", limits.RPC_METADATA_MAX_BYTES),
    ("grpc.http2.bdp_probe", 0),  # else each call may send megabytes before they are read
    ("grpc.http2.lookahead_bytes", limits.RPC_SENT_AHEAD_BYTES),
    ("grpc.so_reuseport", 0),
]


KINDS: Methods = {rpc: kinds for methods in SERVICES.values() for rpc, kinds in methods.items()}
_GRPC_LOGGER, _NOT_SENT = "grpc._cython.cygrpc", "ExecuteBatchError"  # internal to gRPC, without public names
_CROWDED = "this address already has the maximum number of calls in progress: wait for some to end, then try again"


def rpc_server(*, shares_port: bool = False, **arguments: Any) -> grpc.aio.Server:
    """Return a gRPC server with our limits, for `add_controller`; `arguments` are those of grpc.aio.server.
    shares_port: other processes may listen on the same port."""
    logging.getLogger(_GRPC_LOGGER).addFilter(_is_fault)  # idempotent
    options = dict(SERVER_OPTIONS) | {"grpc.so_reuseport": int(shares_port)}
    at_once = limits.RPC_AT_ONCE + limits.RPC_REFUSED_AT_ONCE
    return grpc.aio.server(options=list(options.items()), maximum_concurrent_rpcs=at_once, **arguments)


def _is_fault(record: logging.LogRecord) -> bool:
    """Filter out calls whose client left just before the reply: gRPC logs an error and a traceback for each."""
    return record.exc_info is None or record.exc_info[0] is None or record.exc_info[0].__name__ != _NOT_SENT


class RpcCall:
    """A call whose request was received, with its context. `raw`: the request's bytes, until `parsed`."""

    __slots__ = ("_context", "_gate", "_peer", "_turns", "_working", "raw", "rpc")

    def __init__(
        self,
        rpc: str,
        raw: bytes,
        context: Any,
        peer: str,
        turns: LoopTurns,
        working: AsyncExitStack,
        gate: Gate | None,
    ) -> None:
        self.rpc, self.raw = rpc, raw
        self._context, self._peer, self._gate = context, peer, gate
        self._turns, self._working = turns, working

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Any:
        return self._context.invocation_metadata()

    def authorization(self) -> str | None:
        """Return the call's credentials: those sent with it, or else what stands for the client's certificate.
        NotAuthenticatedError: the certificate isn't a user's."""
        sent = next((str(value) for key, value in self.invocation_metadata() or () if key == "authorization"), None)
        if sent is not None or self._gate is None or not self._gate.needs_certificate:
            return sent
        (certificate,) = self._context.auth_context()["x509_pem_cert"]
        return self._gate.authorization_of(ssl.PEM_cert_to_DER_cert(certificate.decode()), self._peer)

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None if there is none."""
        remaining = self._context.time_remaining()
        return None if remaining is None else float(remaining)

    async def parsed(self) -> Message:
        """Return the request, parsed once; InvalidArgumentError if it is malformed."""
        request = await parsed(KINDS[self.rpc][0], self.raw, lambda: self._turns.wait_for_turn(self._peer))
        self.raw = b""
        return request

    async def release_request(self) -> None:
        """Release the memory reserved for the request, since the call is long-lived."""
        await self._working.aclose()

    async def write(self, reply: Message | bytes) -> None:
        await self._context.write(reply)


Answer = Callable[[RpcCall], Awaitable[Any]]
"""Answers a call. Returns the reply, a message or its bytes; None if replies were written."""


class ForwardedStatus(Exception):
    """The status that another server gave a call, to be passed on to the caller."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Answers:
    """The methods of a service by RPC; with access, only for permitted callers."""

    def __init__(self, service: object, access: ControllerAccess | None = None) -> None:
        self._access = access
        names = {rpc: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower() for rpc in KINDS}
        self._methods = {rpc: getattr(service, name) for rpc, name in names.items() if hasattr(service, name)}
        self._watches: Counter[str] = Counter()  # in progress, by connection

    def has(self, rpc: str) -> bool:
        return rpc in self._methods

    async def answer(self, call: RpcCall) -> Any:
        request = await call.parsed()
        method = self._methods[call.rpc]
        if call.rpc in WATCHES:
            await call.release_request()
            return await self._watch(method, request, call)
        if call.rpc in LONG_POLLS:
            await call.release_request()
        if self._access is not None:
            return await self._access.answer(call.rpc, method, request, call)
        return await method(request)

    async def _watch(self, method: Callable[[Any], AsyncGenerator[Any, None]], request: Any, call: RpcCall) -> None:
        """Send what `method` yields, while access permits it; UnavailableError if there are too many watches, since
        each occupies a slot for its whole life."""
        if self._access is not None:
            await self._access.permit(call.rpc, request, call)
        peer, of_one, of_all = call.peer(), limits.SCALER_WATCHES_OF_CONNECTION, limits.SCALER_WATCHES_MAX
        if self._watches[peer] >= of_one or self._watches.total() >= of_all:
            raise UnavailableError(
                f"too many calls of {call.rpc}: {of_one} per connection and {of_all} in all are allowed; poll instead, "
                "as KEDA does for triggers of the type external"
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
            self._watches += Counter()  # drops zero counts


def add_controller(server: grpc.aio.Server, controller: Controller, access: ControllerAccess | None = None) -> Shares:
    """Let `server` answer the RPCs of all services with `controller`; with `access`, only for permitted callers. Return
    the shares that count its calls."""
    gate = None if access is None else access.gate
    return add_answers(server, Answers(Service(controller), access).answer, gate=gate)


def add_answers(
    server: grpc.aio.Server,
    answer: Answer,
    peer_of: Callable[[Any], str] = lambda context: str(context.peer()),
    gate: Gate | None = None,
) -> Shares:
    """Let `server` answer the RPCs of all services with `answer`; return the shares that count its calls. peer_of:
    returns the caller's address from a call's context. gate: knows the users of client certificates."""
    calls = _RpcCalls(answer, peer_of, gate)

    def serialized(reply: Any) -> bytes:
        return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())

    for name, methods in SERVICES.items():
        handlers = {  # requests are streams, so that we can limit how long the single message may take
            rpc: (grpc.stream_stream_rpc_method_handler if rpc in WATCHES else grpc.stream_unary_rpc_method_handler)(
                partial(calls.handle, rpc), response_serializer=serialized
            )
            for rpc in methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    return calls.shares


class _RpcCalls:
    """The calls of one server, and the memory for their requests while received and processed. gRPC delivers nothing of
    a request until asked, and doesn't report its size: until then it stays in the network."""

    def __init__(self, answer: Answer, peer_of: Callable[[Any], str], gate: Gate | None) -> None:
        self._answer, self._peer_of, self._gate = answer, peer_of, gate
        self.shares, self._turns = Shares(limits.RPC_AT_ONCE), LoopTurns(limits.RPC_STARTS_A_TURN)
        self._receiving = FairQueue(limits.RPC_RECEIVING_BYTES // limits.RPC_MESSAGE_MAX_BYTES)
        self._work_bytes = FairQueue(limits.RPC_WORK_BYTES)

    async def handle(self, rpc: str, requests: AsyncIterator[bytes], context: Any) -> Any:
        """Handle a call without letting exceptions out. The request is parsed here since gRPC answers UNKNOWN to
        malformed ones."""
        peer, limit_s = self._peer_of(context), limits.RPC_MEMORY_TIMEOUT_S
        address = peer.rpartition(":")[0]
        if not self.shares.enter(address):
            return await context.abort(grpc.StatusCode.UNAVAILABLE, _CROWDED)
        try:
            async with AsyncExitStack() as receiving, AsyncExitStack() as processing:
                await receiving.enter_async_context(self._receiving.of(address, limit_s=limit_s))
                call = RpcCall(rpc, await _received(requests), context, peer, self._turns, processing, self._gate)
                if len(call.raw) > limits.RPC_SMALL_BYTES:
                    size_bytes = limits.RPC_WORK_TIMES * len(call.raw)
                    await processing.enter_async_context(self._work_bytes.of(address, size_bytes, limit_s=limit_s))
                await receiving.aclose()
                await self._turns.wait_for_turn(peer)
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
        raise UnavailableError(
            f"the request took over {limits.RPC_MESSAGE_TIMEOUT_S:g} s to arrive: try again"
        ) from error
    except grpc.aio.BaseError as error:
        raise ClosedError("the server is stopping: connect again when it is back") from error
    if raw is None:
        raise InvalidArgumentError("the call has no request message: send one")
    return raw
