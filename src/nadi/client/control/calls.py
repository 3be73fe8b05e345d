"""How RPCs reach the controller: one channel, opened when first needed, and a deadline for each call.

Only UNAVAILABLE is retried within the deadline, since then nothing was done. Only `_send` sends requests,
so that tests can answer them without a socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from nadi.backoff import Backoff
from nadi.client.control.channel import open_channel
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
_NOTICE_S = 0.5  # for which the controller was not reached when the log says so, once: a restart takes less
_Reply = TypeVar("_Reply")


class ControllerCalls:
    """One controller, at `address` (host:port). timeout_s: for every call, instead of each call's own timeout."""

    def __init__(self, address: str, security: Security | None = None, timeout_s: float | None = None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidArgumentError(f"a client waits for its server more than 0 s, not {timeout_s}")
        self.address, self.timeout_s = address, timeout_s
        self.security = security or Security()
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()
        self._calls: dict[str, Callable[..., Any]] = {}
        self._closed = False
        self.trouble: NadiError | None = None  # the last try's error, until a call is answered
        self._notice: asyncio.TimerHandle | None = None  # that it isn't reached, until it is

    async def close(self) -> None:
        was_closed, self._closed = self._closed, True
        self._reached()
        if self._channel is not None and not was_closed:
            await self._channel.close()
            grpc_use.end()

    async def stream_call(self, rpc: str, scope: str, stream: str, request: Any, kind: type[_Reply]) -> _Reply:
        """Make an RPC about a stream, for which a bare NOT_FOUND means that there is no such stream."""
        try:
            return await self.call(rpc, request, kind)
        except NotFoundError as error:
            if type(error) is NotFoundError:
                raise StreamNotFoundError(scope, stream) from None
            raise

    async def call(self, rpc: str, request: Any, kind: type[_Reply], timeout_s: float | None = None) -> _Reply:
        """Make an RPC by name, retrying while the controller is unreachable, but no longer than the usual timeout: the
        longer timeout of some calls is for work, not for an absent server. RequestTimeoutError when that is over.
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
                    raise RequestTimeoutError(f"{rpc} had no answer within {now - began:.1f} s: {error}") from None
                await backoff.pause()
                continue
            self.trouble = None
            assert isinstance(reply, kind)
            return reply

    def _not_reached(self, error: NadiError) -> None:
        if self._notice is None:
            text = f"{error}; calls wait for it for up to {self.timeout_s or DEFAULT_TIMEOUT_S:g} s"
            self._notice = asyncio.get_running_loop().call_later(_NOTICE_S, log.warning, "%s", text)

    def _reached(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

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
                            self._channel = await open_channel(self.address, self.security, timeout_s)
                        except BaseException:
                            grpc_use.end()
                            raise
            except TimeoutError:  # other calls were opening it all that time
                raise UnavailableError(f"the controller at {self.address} can't be reached") from None
            timeout_s = max(timeout_s - (time.monotonic() - began), 0.001)
        credentials = self.security.credentials
        metadata = (("authorization", credentials.header()),) if credentials is not None else None
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
            known = _error_of(rpc, self.address, error)
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                self._not_reached(known)
            raise known from None
        except grpc.aio.UsageError:  # the channel was closed meanwhile
            raise ClosedError("this client was closed") from None
        self._reached()
        return reply


def _error_of(rpc: str, address: str, error: grpc.aio.AioRpcError) -> NadiError:
    code, details = error.code(), error.details()
    text = f"{rpc}: {details}"
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _exhausted(rpc, address, text)
    refused = f"the controller at {address} refused {rpc}: {details}"
    texts: dict[type[NadiError], str] = {
        UnavailableError: _unreachable(address, details or ""),
        RequestTimeoutError: f"the controller at {address} did not answer {rpc} in time",
        NotAuthenticatedError: refused,
        PermissionDeniedError: refused,
    }
    kind = kind_of(code.name)
    if kind is not None:
        return kind(texts.get(kind, text))
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return AlreadyExistsError("object", text)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return NadiError(f"the controller at {address} has no {rpc}: it is of an earlier version, or not nadi's")
    if code == grpc.StatusCode.CANCELLED:
        return UnavailableError(f"the controller at {address} broke {rpc} off: it is being stopped")
    return NadiError(f"{text} ({code.name})")


def _unreachable(address: str, details: str) -> str:
    if "Connection refused" in details:
        return f"nobody listens at {address}: start a server there (`nadi up`), or check the address"
    if details.startswith(("DNS resolution failed", "errors resolving")):
        return f"the host of {address} has no known address: check its spelling"
    return f"the controller at {address} can't be reached: {details}"


def _exhausted(rpc: str, address: str, text: str) -> NadiError:
    """gRPC uses the same code for its own limits as the controller does for a full disk."""
    if "RPC limit exceeded" in text:
        return UnavailableError(f"the controller at {address} has as many calls under way as it takes, {rpc} beside")
    if "larger than max" in text:
        return InvalidArgumentError(f"{text}: ask for less at once, or name less")
    return StorageFullError(text)
