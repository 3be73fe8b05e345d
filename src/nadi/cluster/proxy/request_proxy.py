"""What every server of a cluster is to clients: the controller, whichever server has the active one.

A call, or a request over REST, is answered here by the controller of this process if that is the active one; otherwise
it is passed on as it came to the server that has it, once: there it is answered or refused. Limits hold at either end,
for whoever made the call. Where segments and servers are, each server says by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from nadi.access.fair_shares import Shares
from nadi.client.control.channel import open_channel
from nadi.client.control.security import Security
from nadi.cluster.container_map import Map
from nadi.cluster.proxy.active import FORWARDED, Active, ActiveAddresses, ClusterKey
from nadi.cluster.proxy.rest import RestProxy
from nadi.controller.access import ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import Answers, ForwardedStatus, RpcCall, add_answers
from nadi.controller.grpc.service import Service
from nadi.controller.rest.endpoint import Api
from nadi.errors import UnavailableError
from nadi.limits import FORWARD_CHANNELS, FORWARD_KEEPALIVE_S, PEER_CONNECT_S, RPC_STREAMS_MAX
from nadi.wire.rpc.service import WATCHES, path


class RequestProxy:
    """Of one server. `add_to` its gRPC server, put `rest` around its REST application, and say which controller is
    active whenever that changes. own: what each server answers by itself. key: the cluster's. security: how other
    servers' doors are reached. access: as for a controller. channels: opens what calls are passed on over. may_answer:
    whether an active controller that is here may answer."""

    def __init__(
        self,
        own: Map,
        key: ClusterKey,
        security: Security | None = None,
        access: ControllerAccess | None = None,
        channels: OpenChannel = open_channel,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        self._key, self._security, self._access = key, security or Security(), access
        self._channels = channels
        self._own = Answers(own, access)
        self._active = Active(may_answer)
        self._local: Answers | None = None
        self._forward: Forward | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._rest: RestProxy | None = None

    def add_to(self, server: grpc.aio.Server) -> Shares:
        """Let `server`, a new one, answer every RPC; return what counts its calls."""
        return add_answers(server, self._answer, self.peer_of)

    def rest(self, api: Api) -> RestProxy:
        """What a RestServer of `api` is to put around its application, by its `around`."""
        self._rest = RestProxy(api, self._active, self._key, self._security)
        self._rest.changed()
        return self._rest

    def active(self, controller: Controller | None) -> None:
        """The active controller is this one, in this process; or it isn't here (None). Calls under way end."""
        self._changed(controller, self._active.there)

    def follow(self, addresses: ActiveAddresses | None) -> None:
        """The server at these addresses, another one, has the active controller unless it is here; None: it isn't known
        who has."""
        self._changed(self._active.here, addresses)

    async def close(self) -> None:
        """There is no active controller any more; end connections. To be called once the doors are closed."""
        self._changed(None, None)
        await asyncio.gather(*self._closing)

    def _changed(self, here: Controller | None, there: ActiveAddresses | None) -> None:
        if not self._active.set(here, there):
            return
        if self._forward is not None:
            closing = asyncio.create_task(self._forward.close(), name="close forwarding")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._forward = None
        self._local = Answers(Service(here), self._access) if here is not None else None
        if here is None and there is not None:
            self._forward = Forward(there.rpc, self._security, self._key, self._channels)
        if self._rest is not None:
            self._rest.changed()

    async def _answer(self, call: RpcCall) -> Any:
        if self._own.has(call.rpc):
            return await self._own.answer(call)
        async with self._active.call():
            if self._local is not None:
                return await self._active.checked(self._local.answer(call))
            if _forwarded(call) is not None:
                raise UnavailableError("the active controller was here and is elsewhere now: try again")
            if self._forward is None:
                raise UnavailableError("no server is known to have the active controller now: try again")
            return await self._forward.answer(call)

    def peer_of(self, context: Any) -> str:
        """Who made a call: whom it was passed on for, if a server of this cluster says so."""
        told = _forwarded(context)
        return (self._key.proven(told) if told is not None else None) or str(context.peer())


def _forwarded(call: Any) -> str | None:
    return next((str(value) for key, value in call.invocation_metadata() or () if key == FORWARDED), None)


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


class Forward:
    """Calls passed on to one server, over a connection for every hundred of them. Of a caller's metadata only the
    authorization is passed on, which is all that a controller reads. address: "host:port" of its gRPC door. security:
    how that is reached. channels: opens what calls go over."""

    def __init__(self, address: str, security: Security, key: ClusterKey, channels: OpenChannel = open_channel) -> None:
        self._address, self._security, self._key, self._open = address, security, key, channels
        self._channels: dict[grpc.aio.Channel, int] = {}  # with how many calls are under way there
        self._opening = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, call: RpcCall) -> bytes | None:
        """The reply's bytes; None if replies were written. Refusal: the other server's status, or that it can't be
        reached. UnavailableError: too many calls are on their way there."""
        channel = await self._free()
        self._channels[channel] += 1
        self._idle.clear()
        try:
            return await self._passed_on(call, channel)
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), error.details() or f"the active controller at {self._address} gave no reason"
            raise ForwardedStatus(grpc.StatusCode.UNAVAILABLE if code in _BROKEN else code, text) from error
        finally:
            self._channels[channel] -= 1
            if not any(self._channels.values()):
                self._idle.set()

    async def _passed_on(self, call: RpcCall, channel: grpc.aio.Channel) -> bytes | None:
        told = {key: value for key, value in call.invocation_metadata() or () if key == "authorization"}
        metadata = (*told.items(), (FORWARDED, self._key.proof(call.peer())))
        request, call.raw = call.raw, b""
        if call.rpc not in WATCHES:
            asked = channel.unary_unary(path(call.rpc))(request, timeout=call.time_remaining(), metadata=metadata)
            return bytes(await asked)
        await call.lasts()
        replies = channel.unary_stream(path(call.rpc))(request, timeout=call.time_remaining(), metadata=metadata)
        try:
            async for reply in replies:
                await call.write(reply)
        finally:
            replies.cancel()
        return None

    async def _free(self) -> grpc.aio.Channel:
        async with self._opening:
            for channel, calls in self._channels.items():
                if calls < RPC_STREAMS_MAX:
                    return channel
            if len(self._channels) == FORWARD_CHANNELS:
                raise UnavailableError("as many calls as may be are on their way to the active controller: try again")
            channel = await self._open(self._address, self._security, PEER_CONNECT_S, _OPTIONS)
            self._channels[channel] = 0
            return channel

    async def close(self) -> None:
        """End its connections, once the calls under way have ended; there may be no more calls."""
        await self._idle.wait()
        async with self._opening:
            for channel in self._channels:
                await channel.close()
            self._channels.clear()
