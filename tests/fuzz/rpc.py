"""Fuzzing of the controller's RPCs: each deserializer and handler in this process, and a live server's port.

A handler may only return a reply or an agreed code: not UNKNOWN, which makes the Python client stall, nor INTERNAL,
which means a fault of the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from nadi.controller.controller import Controller
from nadi.controller.grpc.server import add_controller
from nadi.wire.rpc.service import METHODS, OWN_METHODS, SCALER_METHODS, WATCHES, path
from tests.fuzz.report import EACH_S, Finding, Report, damaged, integer, memory_bytes, noise

TEXTS = (
    *("home", "meters", "gas", "_MARKmeters", "_RGreaders", "readers", "none", "", "a_b", "a/b", "_system", "x" * 300),
    *("\0", "é", "00", "ff" * 8, "7b0fe3a2-55f1-4b2c-8c80-0e6f6f3b9d11", "home/meters", "tag"),
    *("rate", "lag", "bytes", "5"),
)
KEYS = ("scope", "stream", "metric", "readerGroup", "target", "unit", "activationTarget", "username", "passwordFromEnv")
_REAL = (0.0, 0.25, 0.5, 1.0, -1.0, 1e300, float("nan"), float("inf"))
EVERY = METHODS | OWN_METHODS | SCALER_METHODS
RPCS = list(EVERY)


def _value(chance: random.Random, field: FieldDescriptor) -> Any:
    kinds = FieldDescriptor
    match field.cpp_type:
        case kinds.CPPTYPE_STRING if field.type == kinds.TYPE_BYTES:
            return chance.randbytes(16 if chance.random() < 0.8 else chance.randrange(40))  # mostly as long as ids are
        case kinds.CPPTYPE_STRING:
            return chance.choice(TEXTS[:2] if chance.random() < 0.5 else TEXTS)
        case kinds.CPPTYPE_INT32 | kinds.CPPTYPE_ENUM:
            return chance.randrange(4) if chance.random() < 0.7 else integer(chance, 32)
        case kinds.CPPTYPE_INT64:
            return chance.randrange(4) if chance.random() < 0.6 else integer(chance, 64)
        case kinds.CPPTYPE_UINT32:
            return chance.randrange(4) if chance.random() < 0.7 else chance.randrange(1 << 32)
        case kinds.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case kinds.CPPTYPE_DOUBLE | kinds.CPPTYPE_FLOAT:
            return chance.choice(_REAL)
    raise AssertionError(f"no values for {field.full_name}")


def _fill(chance: random.Random, message: Any, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if depth > 4 or chance.random() < 0.1:
            continue
        target = getattr(message, field.name)
        nested = field.message_type
        if field.name == "scalerMetadata" and chance.random() < 0.7:
            target.update(scope="home", stream="meters", metric=chance.choice(TEXTS[-4:-2]))
        if nested is not None and nested.GetOptions().map_entry:
            value_field = nested.fields_by_name["value"]
            for _ in range(chance.randrange(4)):
                key = _value(chance, nested.fields_by_name["key"])
                if field.name == "scalerMetadata":
                    key = chance.choice(KEYS)
                if value_field.message_type is None:
                    target[key] = _value(chance, value_field)
                else:
                    _fill(chance, target[key], depth + 1)
        elif field.is_repeated:
            for _ in range(chance.randrange(3)):
                if nested is None:
                    target.append(_value(chance, field))
                else:
                    _fill(chance, target.add(), depth + 1)
        elif nested is not None:
            target.SetInParent()
            _fill(chance, target, depth + 1)
        else:
            setattr(message, field.name, _value(chance, field))


def rpc_input(chance: random.Random) -> tuple[str, bytes]:
    """An RPC's name, and the bytes sent as its request."""
    rpc = chance.choice(RPCS)
    kind = chance.random()
    if kind < 0.05:
        return rpc, noise(chance)
    message: Message = EVERY[rpc][0]()
    _fill(chance, message)
    whole = message.SerializeToString()
    return rpc, whole if kind < 0.6 else damaged(chance, whole)


AGREED = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,  # to make anything in the scope `_system`
    }
)
_WAITING = 16  # inputs under way at a time


class _AbortError(Exception):
    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code


class _AnsweredError(BaseException):
    """Ends a call with a response stream; handlers don't treat it as an error."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply


class _Context:
    """The context that a handler gets with its request."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        raise _AbortError(code)

    async def write(self, reply: Any) -> None:
        raise _AnsweredError(reply)


class _Handlers:
    """A stand-in for the gRPC server that keeps registered handlers."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def of(self, rpc: str) -> Any:
        class Details:
            method = path(rpc)
            invocation_metadata = ()

        (found,) = filter(None, (handler.service(Details()) for handler in self._handlers))
        return found


Send = Callable[[str, bytes], Awaitable[str]]


async def _run(report: Report, chance: random.Random, inputs: int, send: Send, pid: int | None) -> Report:
    each, left = max(1, inputs // 20), inputs

    async def one_after_another() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % each == 0:
                report.memory.append(memory_bytes(pid))
            rpc, data = rpc_input(chance)
            shown = f"{rpc} {data.hex()}"
            began = time.monotonic()
            try:
                async with asyncio.timeout(EACH_S):
                    outcome = await send(rpc, data)
            except TimeoutError:
                raise Finding(f"{report.target}, seed {report.seed}: no answer within {EACH_S} s to {shown}") from None
            except Finding:
                raise
            except Exception as error:
                raise Finding(f"{report.target}, seed {report.seed}: {shown}") from error
            report.saw(outcome, time.monotonic() - began, shown)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WAITING):
            group.create_task(one_after_another())
    report.memory.append(memory_bytes(pid))
    return report


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def fuzz_handlers(controller: Controller, seed: int, inputs: int) -> Report:
    """Call deserialisers and handlers as the gRPC server would."""
    registered = _Handlers()
    add_controller(registered, controller)
    handlers = {rpc: registered.of(rpc) for rpc in EVERY}

    async def send(rpc: str, data: bytes) -> str:
        handler = handlers[rpc]
        assert handler.request_deserializer is None, "a handler gets raw bytes, and parses them itself"
        try:
            reply = await (handler.stream_unary or handler.stream_stream)(_one(data), _Context())
        except _AnsweredError as answered:
            reply = answered.reply
        except _AbortError as abort:
            if abort.code not in AGREED:
                raise Finding(f"{rpc} {data.hex()} is answered {abort.code.name}") from None
            return str(abort.code.name)
        handler.response_serializer(reply)
        return "reply"

    return await _run(Report("rpc handlers", seed), random.Random(seed), inputs, send, None)


async def fuzz_service(address: str, pid: int, seed: int, inputs: int) -> Report:
    """Send raw requests to a live server."""
    async with grpc.aio.insecure_channel(address) as channel:
        methods = {rpc: (channel.unary_stream if rpc in WATCHES else channel.unary_unary)(path(rpc)) for rpc in EVERY}

        async def send(rpc: str, data: bytes) -> str:
            call = methods[rpc](data)
            try:
                if rpc in WATCHES:
                    await call.read()
                    call.cancel()
                else:
                    await call
            except grpc.aio.AioRpcError as error:
                if error.code() not in AGREED:
                    raise Finding(f"{rpc} {data.hex()} is answered {error.code()}: {error.details()}") from None
                return str(error.code().name)
            return "reply"

        return await _run(Report("rpc port", seed), random.Random(seed), inputs, send, pid)
