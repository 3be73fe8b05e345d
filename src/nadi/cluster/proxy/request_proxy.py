"""gRPC front of every server of a cluster: clients see one controller, whichever server has the active one.

A call, or a REST request, is answered by the controller in this process if that is active. Otherwise it is forwarded
unchanged, once, to the server that has the active controller, which answers or rejects it. Limits per caller apply on
both servers. Each server answers by itself where segments and servers are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
from google.protobuf.message import Message

from nadi.access.fair_shares import LoopTurns, Shares
from nadi.access.reloading import FileStamp
from nadi.client.control.channel import open_channel
from nadi.client.control.security import Security
from nadi.cluster.container_map import ContainerMap
from nadi.cluster.proxy.active import FORWARDED, Active, ActiveAddresses, ClusterKey
from nadi.cluster.proxy.rest import RestProxy
from nadi.controller.access import ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import KINDS, Answers, ForwardedStatus, RpcCall, add_answers
from nadi.controller.grpc.service import Service
from nadi.controller.rest.endpoint import Api
from nadi.errors import UnavailableError
from nadi.limits import CLUSTER_CALL_S, FORWARD_CHANNELS, FORWARD_KEEPALIVE_S, PEER_CONNECT_S, RPC_STREAMS_MAX
from nadi.wire.rpc.service import WATCHES, path


class RequestProxy:
    """Proxy of one server. `add_to` its gRPC server, put `rest` around its REST application, and report changes of the
    active controller.

    own: answers that every server gives by itself. key: the cluster's. security: for connections to other servers.
    access: as for a controller. channels: opens channels for forwarded calls. may_answer: whether a local active
    controller may answer.
    """

    def __init__(
        self,
        own: ContainerMap,
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
        """Make `server`, a new one, answer every RPC; return the counter of its calls."""
        gate = None if self._access is None else self._access.gate
        return add_answers(server, self._answer, self.peer_of, gate)

    def rest(self, api: Api) -> RestProxy:
        """Return the proxy that a RestServer of `api` puts around its application, by its `around`."""
        self._rest = RestProxy(api, self._active, self._key, self._security)
        self._rest.changed()
        return self._rest

    def active(self, controller: Controller | None) -> None:
        """Set the local active controller; None if it isn't on this server. Calls under way end."""
        self._changed(controller, self._active.there)

    def follow(self, addresses: ActiveAddresses | None) -> None:
        """Set the addresses of the server that has the active controller unless it is here; None if unknown."""
        self._changed(self._active.here, addresses)

    async def close(self) -> None:
        """Drop the active controller and close connections. Call it once the network servers are closed."""
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
                raise UnavailableError("the active controller has just left this server: try again later")
            if self._forward is None:
                raise UnavailableError("no server is known to have the active controller: try again later")
            return await self._forward.answer(call)

    async def ask(self, rpc: str, request: Message, authorization: str) -> Message:
        """Make a call of this server itself to the active controller, here or elsewhere; UnavailableError."""
        context = _OwnContext(authorization)
        call = RpcCall(rpc, request.SerializeToString(), context, _OWN_PEER, LoopTurns(1), AsyncExitStack(), None)
        try:
            reply = await self._answer(call)
        except ForwardedStatus as refusal:
            raise UnavailableError(refusal.text) from refusal
        return KINDS[rpc][1].FromString(reply) if isinstance(reply, bytes) else reply

    def peer_of(self, context: Any) -> str:
        """Return the peer that made a call: the original one if a server of this cluster forwarded it."""
        proof = _forwarded(context)
        return (self._key.proven(proof) if proof is not None else None) or str(context.peer())


_OWN_PEER = "ipv4:127.0.0.1:0"


class _OwnContext:
    """The context of a call that a server itself makes."""

    def __init__(self, authorization: str) -> None:
        self._authorization = authorization

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", self._authorization),) if self._authorization else ()

    def time_remaining(self) -> float:
        return CLUSTER_CALL_S


def _forwarded(call: Any) -> str | None:
    return next((str(value) for key, value in call.invocation_metadata() or () if key == FORWARDED), None)


_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),  # otherwise all channels to an address share one connection
    ("grpc.enable_http_proxy", 0),  # servers of a cluster reach each other directly
    ("grpc.keepalive_time_ms", round(FORWARD_KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(FORWARD_KEEPALIVE_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
]
# gRPC's codes for a broken connection, which a controller never sends: clients don't retry after them
_BROKEN = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)

OpenChannel = Callable[[str, Security, float, list[tuple[str, Any]]], Awaitable[grpc.aio.Channel]]
"""Opens a channel, as `open_channel` does."""


class Forward:
    """Calls forwarded to one server, over one connection per hundred calls.

    Of a caller's metadata, only the authorization is forwarded: controllers read nothing else. address: "host:port" of
    its gRPC server. security: for connections to it. channels: opens channels to it.
    """

    def __init__(self, address: str, security: Security, key: ClusterKey, channels: OpenChannel = open_channel) -> None:
        self._address, self._security, self._key, self._open = address, security, key, channels
        self._channels: dict[grpc.aio.Channel, int] = {}  # with the number of calls under way
        self._opened_with: dict[grpc.aio.Channel, FileStamp] = {}  # a channel keeps the certificates of its start
        self._outdated: set[grpc.aio.Channel] = set()  # to close once their calls have ended
        self._opening = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, call: RpcCall) -> bytes | None:
        """Return the reply's bytes; None if replies were streamed. ForwardedStatus: the other server's status, or
        UNAVAILABLE if it can't be reached. UnavailableError: too many calls are under way."""
        channel = await self._free_channel()
        self._channels[channel] += 1
        self._idle.clear()
        try:
            return await self._forward_call(call, channel)
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), error.details() or f"the active controller at {self._address} gave no reason"
            if self._opened_with[channel] != self._security.files_stamp():
                self._outdated.add(channel)
            raise ForwardedStatus(grpc.StatusCode.UNAVAILABLE if code in _BROKEN else code, text) from error
        finally:
            self._channels[channel] -= 1
            if not any(self._channels.values()):
                self._idle.set()
            if channel in self._outdated and not self._channels[channel]:
                self._outdated.discard(channel)
                del self._channels[channel], self._opened_with[channel]
                await channel.close()

    async def _forward_call(self, call: RpcCall, channel: grpc.aio.Channel) -> bytes | None:
        authorization = call.authorization()
        credentials = () if authorization is None else (("authorization", authorization),)
        metadata = (*credentials, (FORWARDED, self._key.proof(call.peer())))
        request, call.raw = call.raw, b""
        if call.rpc not in WATCHES:
            pending = channel.unary_unary(path(call.rpc))(request, timeout=call.time_remaining(), metadata=metadata)
            return bytes(await pending)
        await call.release_request()
        replies = channel.unary_stream(path(call.rpc))(request, timeout=call.time_remaining(), metadata=metadata)
        try:
            async for reply in replies:
                await call.write(reply)
        finally:
            replies.cancel()
        return None

    async def _free_channel(self) -> grpc.aio.Channel:
        async with self._opening:
            for channel, calls in self._channels.items():
                if calls < RPC_STREAMS_MAX and channel not in self._outdated:
                    return channel
            if len(self._channels) == FORWARD_CHANNELS:
                raise UnavailableError("too many calls are being forwarded to the active controller: try again later")
            stamp = self._security.files_stamp()
            channel = await self._open(self._address, self._security, PEER_CONNECT_S, _OPTIONS)
            self._channels[channel], self._opened_with[channel] = 0, stamp
            return channel

    async def close(self) -> None:
        """Close the connections once the calls under way have ended. No calls may follow."""
        await self._idle.wait()
        async with self._opening:
            for channel in self._channels:
                await channel.close()
            self._channels.clear()
