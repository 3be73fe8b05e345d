"""Cache a client's delegation tokens by stream and permission, and renew each before it expires.

A token's lifetime is the difference of its two times, so client and server clocks need not agree. Without credentials
all tokens are empty, and the controller is not asked.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from cachetools import LRUCache

from nadi.access.commands import token_permission
from nadi.access.permissions import Permission
from nadi.client.control.controller import ControllerClient
from nadi.client.control.time_limit import is_cancelled
from nadi.errors import ClosedError, ProtocolError
from nadi.wire import commands as wire

_CACHED = 10_000
_EARLY_S = 30.0  # a token is renewed this long before it expires, or at 3/4 of its lifetime if that is later


@dataclass(frozen=True, slots=True)
class TimedToken:
    """A token and the time to renew it, on the monotonic clock."""

    text: str
    renew_at: float


NO_TOKEN = TimedToken("", math.inf)


class DelegationTokens:
    """Token cache of one client."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        self._cached: LRUCache[tuple[str, Permission], TimedToken] = LRUCache(_CACHED)
        self._fetching: dict[tuple[str, Permission], asyncio.Task[TimedToken]] = {}

    async def token(self, segment: str, kind: type[wire.Command]) -> str:
        """Return the token for a command of that kind on the segment."""
        return (await self.timed_token(segment, kind)).text

    async def timed_token(self, segment: str, kind: type[wire.Command]) -> TimedToken:
        if self._controller.security.credentials is None:
            return NO_TOKEN
        key = (_stream_of(segment), token_permission(kind))
        cached = self._cached.get(key)
        if cached is not None and time.monotonic() < cached.renew_at:
            return cached
        task = self._fetching.get(key)
        if task is None:
            task = self._fetching[key] = asyncio.create_task(self._fetch(key))
            task.add_done_callback(lambda done: self._fetched(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise ClosedError("this client was closed") from None

    def forget(self, segment: str) -> None:
        """Discard the cached tokens of the segment's stream."""
        for permission in Permission:
            self._cached.pop((_stream_of(segment), permission), None)

    def close(self) -> None:
        for task in self._fetching.values():
            task.cancel()

    async def _fetch(self, key: tuple[str, Permission]) -> TimedToken:
        scope, _, stream = key[0].partition("/")
        text = await self._controller.delegation_token(scope, stream, write=key[1] is Permission.READ_UPDATE)
        token = TimedToken(text, time.monotonic() + _renew_after_s(text))
        self._cached[key] = token
        return token

    def _fetched(self, key: tuple[str, Permission], task: asyncio.Task[TimedToken]) -> None:
        self._fetching.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio doesn't complain if all waiters were cancelled


def _stream_of(segment: str) -> str:
    return "/".join(segment.split("/", 2)[:2])


def _renew_after_s(text: str) -> float:
    """Return the seconds until a new token must be renewed."""
    if text.count(".") != 2:  # not a JSON Web Token: a server's own, or none
        return math.inf
    import jwt  # imports a cryptography library, which takes as long as importing gRPC

    try:
        claims = jwt.decode(text, options={"verify_signature": False})
        if "exp" not in claims:
            return math.inf
        lifetime = float(claims["exp"]) - float(claims.get("iat", time.time()))
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ProtocolError(f"the controller returned an invalid delegation token: {error}") from error
    return lifetime - min(_EARLY_S, lifetime / 4)
