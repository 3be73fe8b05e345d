"""What every server of a cluster is to clients: the controller, whichever server has the active one.

A call, or a request over REST, is answered here by the controller of this process if that is the active one; otherwise
it is passed on to the server that has it, once: there it is answered or refused. Limits hold at either end, for whoever
made the call. Where segments and servers are, each server says by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from nadi.access.shares import Shares
from nadi.client.control.channel import open_channel
from nadi.client.control.security import Security
from nadi.cluster.doors.active import Active, Addresses
from nadi.cluster.doors.directory import Directory
from nadi.cluster.doors.forward import Forward, OpenChannel
from nadi.cluster.doors.rest import RestFront
from nadi.cluster.doors.tokens import FORWARDED, ClusterKey
from nadi.controller.access import ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import Answers, Call, add_answers, answers_of
from nadi.controller.rest.endpoint import Api
from nadi.errors import UnavailableError


class Front:
    """Of one server. `add_to` its gRPC server, put `rest` around its REST application, and say which controller is
    active whenever that changes.

    directory: what each server answers by itself. key: the cluster's. security: how other servers' doors are reached.
    access: as for a controller. channels: opens what calls are passed on over. may_answer: whether an active controller
    that is here may answer.
    """

    def __init__(
        self,
        directory: Directory,
        key: ClusterKey,
        security: Security | None = None,
        access: ControllerAccess | None = None,
        channels: OpenChannel = open_channel,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        self._key, self._security, self._access = key, security or Security(), access
        self._channels = channels
        self._own = Answers([directory], access)
        self._active = Active(may_answer)
        self._local: Answers | None = None
        self._forward: Forward | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._rest: RestFront | None = None

    def add_to(self, server: grpc.aio.Server) -> Shares:
        """Let `server`, a new one, answer every RPC; return what counts its calls."""
        return add_answers(server, self._answer, self.peer_of)

    def rest(self, api: Api) -> RestFront:
        """What a RestServer of `api` is to put around its application, by its `around` or `around_shared`."""
        self._rest = RestFront(api, self._active, self._key, self._security)
        self._rest.changed()
        return self._rest

    def active(self, controller: Controller | None) -> None:
        """The active controller is this one, in this process; or it isn't here (None). Calls under way end."""
        self._changed(controller, self._active.there)

    def follow(self, addresses: Addresses | None) -> None:
        """The server at these addresses, another one, has the active controller unless it is here; None: it isn't known
        who has."""
        self._changed(self._active.here, addresses)

    async def close(self) -> None:
        """There is no active controller any more; end connections. To be called once the doors are closed."""
        self._changed(None, None)
        await asyncio.gather(*self._closing)

    def _changed(self, here: Controller | None, there: Addresses | None) -> None:
        if not self._active.set(here, there):
            return
        if self._forward is not None:
            closing = asyncio.create_task(self._forward.close(), name="close forwarding")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._forward = None
        self._local = answers_of(here, self._access) if here is not None else None
        if here is None and there is not None:
            self._forward = Forward(there.rpc, self._security, self._key, self._channels)
        if self._rest is not None:
            self._rest.changed()

    async def _answer(self, call: Call) -> Any:
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
    """What a call says of having been passed on."""
    return next((str(value) for key, value in call.invocation_metadata() or () if key == FORWARDED), None)
