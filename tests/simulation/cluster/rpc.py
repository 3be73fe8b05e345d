"""A replacement for gRPC between simulated processes: doors that servers add their handlers to, and channels over the
network. Handlers work unchanged: limits, turns, and how errors become statuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Never

import grpc
from grpc.aio import AioRpcError, Metadata

from nadi.client.control.security import Security
from nadi.errors import UnavailableError

from ..machine.network import LostError, Network
from ..machine.process import Process, current

Sent = Sequence[tuple[str, str]]
Found = Callable[[str], "tuple[RpcDoor, Process] | None"]
"""Returns the door at "host:port" with its process; None if nothing listens there."""


def rpc_error(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details)


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: Sent


class RpcDoor:
    """The replacement for `grpc.aio.Server`."""

    def __init__(self) -> None:
        self._generic: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic += handlers

    async def answer(self, method: str, request: bytes, metadata: Sent, peer: str, timeout_s: float | None) -> bytes:
        """Return the reply; AioRpcError with the status of a failed call."""
        details = _Details(method, metadata)
        handler = next(filter(None, (generic.service(details) for generic in self._generic)))
        assert handler.stream_unary is not None, "watches aren't simulated"
        reply = await handler.stream_unary(_only(request), _Context(metadata, peer, timeout_s))
        answer: bytes = handler.response_serializer(reply)
        return answer


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request


class _Context:
    """The context of a call for its handler."""

    def __init__(self, metadata: Sent, peer: str, timeout_s: float | None) -> None:
        self._metadata, self._peer = metadata, peer
        self._until = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    def invocation_metadata(self) -> Sent:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        raise rpc_error(code, details)


class Channel:
    """A channel to the door at one address, from the calling process."""

    def __init__(self, network: Network, found: Found, address: str) -> None:
        self._network, self._found, self._address = network, found, address
        self._is_closed = False

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(request: bytes, *, timeout: float | None = None, metadata: Sent | None = None) -> bytes:
            process = current.get()
            assert process is not None
            assert not self._is_closed
            peer = f"{process.name}:1"

            async def answered() -> bytes:
                at = self._found(self._address)
                if at is None:
                    raise UnavailableError(f"{self._address} no longer answers")
                return await at[0].answer(method, request, metadata or (), peer, timeout)

            try:
                async with asyncio.timeout(timeout):
                    return await self._network.call(self._listening, self._address.partition(":")[0], answered)
            except TimeoutError:
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, f"{method} took too long") from None
            except (LostError, UnavailableError) as error:
                text = str(error) or "the connection was lost"
                raise rpc_error(grpc.StatusCode.UNAVAILABLE, text) from None

        return call

    def _listening(self) -> Process | None:
        at = self._found(self._address)
        return None if at is None else at[1]

    async def close(self) -> None:
        self._is_closed = True


class Channels:
    """`open_channel` of a server or client in a simulation."""

    def __init__(self, network: Network, found: Found) -> None:
        self._network, self._found = network, found

    def to(self, address: str) -> Channel:
        return Channel(self._network, self._found, address)

    async def open(self, address: str, security: Security, timeout_s: float, options: Any) -> Any:
        return self.to(address)
