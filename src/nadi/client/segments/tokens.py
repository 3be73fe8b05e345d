"""Delegation tokens of one client: one for each stream and kind of use, replaced before it expires.

How long a token is valid is taken from its own two times, so the clocks of client and server need
not agree. Without credentials there are no tokens, and the controller is not asked.
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
_EARLY_S = 30.0  # before its end a token is replaced, or a quarter of its time before if that is less


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token and when to fetch the next one, on the monotonic clock."""

    text: str
    renew_at: float


NO_TOKEN = HeldToken("", math.inf)


class DelegationTokens:
    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        self._held: LRUCache[tuple[str, Permission], HeldToken] = LRUCache(_CACHED)
        self._fetching: dict[tuple[str, Permission], asyncio.Task[HeldToken]] = {}

    async def token(self, segment: str, kind: type[wire.Command]) -> str:
        """The token for a command of that kind on the segment."""
        return (await self.held(segment, kind)).text

    async def held(self, segment: str, kind: type[wire.Command]) -> HeldToken:
        if self._controller.security.credentials is None:
            return NO_TOKEN
        key = (_stream_of(segment), token_permission(kind))
        held = self._held.get(key)
        if held is not None and time.monotonic() < held.renew_at:
            return held
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
        """Fetch new tokens for the segment's stream next time."""
        for permission in Permission:
            self._held.pop((_stream_of(segment), permission), None)

    def close(self) -> None:
        for task in self._fetching.values():
            task.cancel()

    async def _fetch(self, key: tuple[str, Permission]) -> HeldToken:
        scope, _, stream = key[0].partition("/")
        text = await self._controller.delegation_token(scope, stream, write=key[1] is Permission.READ_UPDATE)
        held = HeldToken(text, time.monotonic() + _holds_s(text))
        self._held[key] = held
        return held

    def _fetched(self, key: tuple[str, Permission], task: asyncio.Task[HeldToken]) -> None:
        self._fetching.pop(key, None)
        if not task.cancelled():
            task.exception()  # who waited has it; nobody may be waiting any more


def _stream_of(segment: str) -> str:
    return "/".join(segment.split("/", 2)[:2])


def _holds_s(text: str) -> float:
    """How long to use a token, in seconds."""
    if not text:
        return math.inf
    import jwt  # brings a library for cryptography, which takes as long to import as all of gRPC

    try:
        claims = jwt.decode(text, options={"verify_signature": False})
        if "exp" not in claims:
            return math.inf
        lifetime = float(claims["exp"]) - float(claims.get("iat", time.time()))
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ProtocolError(f"the controller gave a delegation token that is none: {error}") from error
    return lifetime - min(_EARLY_S, lifetime / 4)
