"""gRPC calls that are passed on to the server whose controller is the active one, as they came: bytes in, bytes out.

A connection carries a limited number of calls, so there is another for every hundred of them. Of a caller's metadata
only the authorization is passed on, which is all that a controller reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from nadi.client.control.channel import open_channel
from nadi.client.control.security import Security
from nadi.cluster.doors.tokens import FORWARDED, ClusterKey
from nadi.controller.grpc.server import Call, Refusal
from nadi.errors import UnavailableError
from nadi.limits import FORWARD_CHANNELS, FORWARD_KEEPALIVE_S, PEER_CONNECT_S, RPC_STREAMS_MAX
from nadi.wire.rpc.service import WATCHES, path

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share a connection
    ("grpc.enable_http_proxy", 0),  # servers of a cluster reach each other directly
    ("grpc.keepalive_time_ms", round(FORWARD_KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(FORWARD_KEEPALIVE_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
]
# what gRPC says of a connection that broke, and a controller never does: clients don't try again after these
_BROKEN = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)

OpenChannel = Callable[[str, Security, float, list[tuple[str, Any]]], Awaitable[grpc.aio.Channel]]
"""Opens a channel as `open_channel` does, which is the real one."""


@dataclass(slots=True, eq=False)
class _Channel:
    """calls: how many are under way."""

    channel: grpc.aio.Channel
    calls: int = 0


class Forward:
    """To one server. address: "host:port" of its gRPC door. security: how that is reached. channels: opens what calls
    go over."""

    def __init__(self, address: str, security: Security, key: ClusterKey, channels: OpenChannel = open_channel) -> None:
        self._address, self._security, self._key, self._open = address, security, key, channels
        self._channels: list[_Channel] = []
        self._opening = asyncio.Lock()
        self._under_way, self._idle = 0, asyncio.Event()
        self._idle.set()

    async def answer(self, call: Call) -> bytes | None:
        """The reply's bytes; None if replies were written.

        Raises:
            Refusal: the other server's status, or that it can't be reached.
            UnavailableError: too many calls are on their way there.
        """
        channel = await self._free()
        channel.calls += 1
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._passed_on(call, channel.channel)
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), error.details() or f"the active controller at {self._address} gave no reason"
            raise Refusal(grpc.StatusCode.UNAVAILABLE if code in _BROKEN else code, text) from error
        finally:
            channel.calls -= 1
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _passed_on(self, call: Call, channel: grpc.aio.Channel) -> bytes | None:
        told = {key: value for key, value in call.invocation_metadata() or () if key == "authorization"}
        metadata = (*told.items(), (FORWARDED, self._key.proof(call.peer())))
        request, call.raw = call.raw, b""
        if call.rpc not in WATCHES:
            asked = channel.unary_unary(path(call.rpc))(request, timeout=call.time_remaining(), metadata=metadata)
            return bytes(await asked)
        call.lasts()
        replies = channel.unary_stream(path(call.rpc))(request, timeout=call.time_remaining(), metadata=metadata)
        try:
            async for reply in replies:
                await call.write(reply)
        finally:
            replies.cancel()
        return None

    async def _free(self) -> _Channel:
        async with self._opening:
            for one in self._channels:
                if one.calls < RPC_STREAMS_MAX:
                    return one
            if len(self._channels) == FORWARD_CHANNELS:
                raise UnavailableError("as many calls as may be are on their way to the active controller: try again")
            channel = await self._open(self._address, self._security, PEER_CONNECT_S, _OPTIONS)
            self._channels.append(_Channel(channel))
            return self._channels[-1]

    async def close(self) -> None:
        """End its connections, once the calls under way have ended; there may be no more calls."""
        await self._idle.wait()
        async with self._opening:
            for one in self._channels:
                await one.channel.close()
            self._channels.clear()
