"""How RPCs reach the controller: one channel, opened when first needed, a deadline for each call.

UNAVAILABLE alone is tried again within the deadline, for then nothing was done. The one place where a
request leaves is `_send`, so that tests can answer without a socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from nadi.client.control.channel import open_channel
from nadi.client.control.messages import stream_message
from nadi.client.control.patience import is_cancelled
from nadi.client.control.security import Security
from nadi.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    InvalidArgumentError,
    NadiError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    RequestTimeoutError,
    StorageFullError,
    StreamNotFoundError,
    UnavailableError,
)
from nadi.wire.rpc.service import METHODS, path

DEFAULT_TIMEOUT_S = 30.0
_Reply = TypeVar("_Reply")


class ControllerCalls:
    """One controller, at `address` (host:port). timeout_s: of every call, instead of what each kind of call takes."""

    def __init__(self, address: str, security: Security | None = None, timeout_s: float | None = None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidArgumentError(f"a client waits for its server more than 0 s, not {timeout_s}")
        self.address, self.timeout_s = address, timeout_s
        self.security = security or Security()
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()
        self._calls: dict[str, Callable[..., Any]] = {}
        self._closed = False
        self.trouble: NadiError | None = None  # what the last try of a call met, until one is answered

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def stream_call(self, rpc: str, scope: str, stream: str, kind: type[_Reply]) -> _Reply:
        """An RPC that asks for a stream and nothing else."""
        with naming_stream(scope, stream):
            return await self.call(rpc, stream_message(scope, stream), kind)

    async def call(self, rpc: str, request: Any, kind: type[_Reply], timeout_s: float | None = None) -> _Reply:
        """An RPC by its name; tried again while the controller is away, but no longer than what is usual for a call:
        the longer time of some is for work, not for a server that is not there. RequestTimeoutError when that is over.
        """
        began = time.monotonic()
        deadline = began + (self.timeout_s or timeout_s or DEFAULT_TIMEOUT_S)
        away_since: float | None = None
        pause_s = 0.01
        while True:
            self._check_open()
            try:
                reply = await self._send(rpc, request, max(deadline - time.monotonic(), 0.001))
            except asyncio.CancelledError:
                if is_cancelled() or not self._closed:
                    raise
                raise ClosedError("this client was closed") from None  # gRPC cancels the calls of a closed channel
            except UnavailableError as error:
                if isinstance(error, RequestTimeoutError | ClosedError | StorageFullError):
                    raise
                self._check_open()
                self.trouble = error
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                give_up = min(deadline, away_since + (self.timeout_s or DEFAULT_TIMEOUT_S))
                if now + pause_s >= give_up:
                    raise RequestTimeoutError(f"{rpc} had no answer within {now - began:.1f} s: {error}") from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
                continue
            self.trouble = None
            assert isinstance(reply, kind)
            return reply

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client was closed")

    async def _send(self, rpc: str, request: Any, timeout_s: float) -> Any:
        if self._channel is None:
            began = time.monotonic()
            try:
                async with asyncio.timeout(timeout_s), self._opening:
                    if self._channel is None:
                        self._channel = await open_channel(self.address, self.security, timeout_s)
            except TimeoutError:  # others were opening it all the time
                raise UnavailableError(f"the controller at {self.address} can't be reached") from None
            timeout_s = max(timeout_s - (time.monotonic() - began), 0.001)
        credentials = self.security.credentials
        metadata = (("authorization", credentials.header()),) if credentials is not None else None
        call = self._calls.get(rpc)
        if call is None:
            request_kind, reply_kind = METHODS[rpc]
            call = self._channel.unary_unary(
                path(rpc),
                request_serializer=request_kind.SerializeToString,
                response_deserializer=reply_kind.FromString,
            )
            self._calls[rpc] = call
        try:
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _error_of(rpc, self.address, error) from None
        except grpc.aio.UsageError:  # the channel was closed meanwhile
            raise ClosedError("this client was closed") from None


def _error_of(rpc: str, address: str, error: grpc.aio.AioRpcError) -> NadiError:
    code, details = error.code(), error.details()
    text = f"{rpc}: {details}"
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _exhausted(rpc, address, text)
    if code == grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"the controller at {address} can't be reached: {details}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimeoutError(f"the controller at {address} did not answer {rpc} in time")
    if code == grpc.StatusCode.NOT_FOUND:
        return NotFoundError(text)
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidArgumentError(text)
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED):
        return ConflictError(text)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return NotAuthenticatedError(f"the controller at {address} refused {rpc}: {details}")
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return PermissionDeniedError(f"the controller at {address} refused {rpc}: {details}")
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return AlreadyExistsError("object", text)
    if code == grpc.StatusCode.CANCELLED:
        return ClosedError(f"{rpc} was cancelled")
    return NadiError(f"{text} ({code.name})")


def _exhausted(rpc: str, address: str, text: str) -> NadiError:
    """gRPC has the same code for limits of its own as the controller for a full disk."""
    if "RPC limit exceeded" in text:
        return UnavailableError(f"the controller at {address} has as many calls under way as it takes, {rpc} beside")
    if "larger than max" in text:
        return InvalidArgumentError(f"{text}: ask for less at once, or name less")
    return StorageFullError(text)


class naming_stream:
    """A bare NOT_FOUND within means: no such stream."""

    def __init__(self, scope: str, stream: str) -> None:
        self._scope, self._stream = scope, stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if type(error) is NotFoundError:
            raise StreamNotFoundError(self._scope, self._stream) from None
