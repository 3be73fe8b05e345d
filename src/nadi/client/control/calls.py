"""Send RPCs to the controller: one channel, opened on first use, and a deadline for each call.

Only UNAVAILABLE is retried within the deadline, because the controller then did not execute the call. Only `_send`
sends requests, so that tests can answer them without a socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from nadi.access.reloading import FileStamp
from nadi.backoff import Backoff
from nadi.client.control.channel import open_channel, unreachable
from nadi.client.control.process import grpc_use
from nadi.client.control.security import Security
from nadi.client.control.time_limit import is_cancelled
from nadi.errors import (
    AlreadyExistsError,
    ClosedError,
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
from nadi.wire.rpc.codes import kind_of
from nadi.wire.rpc.service import METHODS, OWN_METHODS, path

log = logging.getLogger("nadi.client")

DEFAULT_TIMEOUT_S = 30.0
_WARN_AFTER_S = 0.5  # log a warning once the controller was unreachable for this long: a restart takes less
_Reply = TypeVar("_Reply")


class UnsupportedCallError(NadiError):
    """The controller doesn't have the RPC."""


class ControllerCalls:
    """One controller, at `address` (host:port). timeout_s: replaces the timeout of every call."""

    def __init__(self, address: str, security: Security | None = None, timeout_s: float | None = None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidArgumentError(f"the timeout of a client must be more than 0 s, not {timeout_s}")
        self.address, self.timeout_s = address, timeout_s
        self.security = security or Security()
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()
        self._calls: dict[str, Callable[..., Any]] = {}
        self._files_stamp: FileStamp = ()
        self._replaced: set[asyncio.Task[None]] = set()
        self._closed = False
        self.trouble: NadiError | None = None  # error of the last attempt, until a call succeeds
        self._warning: asyncio.TimerHandle | None = None  # scheduled while the controller is unreachable

    async def close(self) -> None:
        was_closed, self._closed = self._closed, True
        self._cancel_warning()
        if self._channel is not None and not was_closed:
            await self._channel.close()
            grpc_use.end()
        await asyncio.gather(*self._replaced)

    async def stream_call(self, rpc: str, scope: str, stream: str, request: Any, kind: type[_Reply]) -> _Reply:
        """Make an RPC about a stream, for which a bare NOT_FOUND means that the stream doesn't exist."""
        try:
            return await self.call(rpc, request, kind)
        except NotFoundError as error:
            if type(error) is NotFoundError:
                raise StreamNotFoundError(scope, stream) from None
            raise

    async def call(self, rpc: str, request: Any, kind: type[_Reply], timeout_s: float | None = None) -> _Reply:
        """Make an RPC by name, retrying while the controller is unreachable.

        Retries end after the default timeout even for calls with a longer one, which is for work, not for an absent
        server; then raise RequestTimeoutError.
        """
        began = time.monotonic()
        deadline = began + (self.timeout_s or timeout_s or DEFAULT_TIMEOUT_S)
        away_since: float | None = None
        backoff = Backoff(first_s=0.01)
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
                if now + backoff.next_s >= give_up:
                    limit_s = round(give_up - began, 1)
                    raise RequestTimeoutError(f"the controller did not answer within {limit_s:g} s: {error}") from None
                await backoff.pause()
                continue
            self.trouble = None
            assert isinstance(reply, kind)
            return reply

    def _warn_soon(self, error: NadiError) -> None:
        if self._warning is None:
            text = f"{error}; calls are retried for up to {self.timeout_s or DEFAULT_TIMEOUT_S:g} s"
            self._warning = asyncio.get_running_loop().call_later(_WARN_AFTER_S, log.warning, "%s", text)

    def _cancel_warning(self) -> None:
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client was closed")

    async def _send(self, rpc: str, request: Any, timeout_s: float) -> Any:
        if self._channel is None:
            began = time.monotonic()
            try:
                async with asyncio.timeout(timeout_s), self._opening:
                    if self._channel is None:
                        grpc_use.begin()
                        try:
                            self._files_stamp = self.security.files_stamp()
                            self._channel = await open_channel(self.address, self.security, timeout_s)
                        except BaseException:
                            grpc_use.end()
                            raise
            except TimeoutError:  # another call was opening the channel all that time
                raise UnavailableError(f"the controller at {self.address} can't be reached") from None
            timeout_s = max(timeout_s - (time.monotonic() - began), 0.001)
        credentials = self.security.credentials
        header = credentials.header() if credentials is not None else None
        metadata = (("authorization", header),) if header is not None else None
        call = self._calls.get(rpc)
        if call is None:
            request_kind, reply_kind = OWN_METHODS.get(rpc) or METHODS[rpc]
            call = self._channel.unary_unary(
                path(rpc),
                request_serializer=request_kind.SerializeToString,
                response_deserializer=reply_kind.FromString,
            )
            self._calls[rpc] = call
        try:
            reply = await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            log.debug("%s failed: %s", rpc, error.details())
            mapped = _error_of(self.address, error)
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                self._warn_soon(mapped)
                self._replace_outdated_channel()
            raise mapped from None
        except grpc.aio.UsageError:  # the channel was closed meanwhile
            raise ClosedError("this client was closed") from None
        self._cancel_warning()
        return reply

    def _replace_outdated_channel(self) -> None:
        """Let the next call open a channel if certificates have changed, since a channel keeps those of its start."""
        if self._channel is None or self._files_stamp == self.security.files_stamp():
            return
        ending = asyncio.create_task(self._channel.close(grace=DEFAULT_TIMEOUT_S), name="close an outdated channel")
        self._replaced.add(ending)
        ending.add_done_callback(self._replaced.discard)
        self._channel = None
        self._calls.clear()
        grpc_use.end()


def _error_of(address: str, error: grpc.aio.AioRpcError) -> NadiError:
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _exhausted(address, text)
    refused = f"the controller at {address} refused the request: {text}"
    texts: dict[type[NadiError], str] = {
        UnavailableError: unreachable(address, text),
        RequestTimeoutError: f"the controller at {address} did not answer in time",
        NotAuthenticatedError: refused,
        PermissionDeniedError: refused,
    }
    kind = kind_of(code.name, text)
    if kind is not None:
        return kind(texts.get(kind, text))
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return AlreadyExistsError("object", text)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedCallError(
            f"the controller at {address} lacks this request: it is an older version, or not nadi"
        )
    if code == grpc.StatusCode.CANCELLED:
        return UnavailableError(f"the controller at {address} cancelled the request: it is shutting down")
    return NadiError(f"{text} ({code.name})")


def _exhausted(address: str, text: str) -> NadiError:
    """gRPC uses the same code for its own limits as the controller does for a full disk."""
    if "RPC limit exceeded" in text:
        return UnavailableError(f"the controller at {address} rejected the request: it has reached its limit of calls")
    if "larger than max" in text:
        return InvalidArgumentError(f"{text}: request less at once, or pass fewer or shorter names")
    return StorageFullError(text)
