"""Tracks the cluster's active controller, as far as this server knows: its own, another server's, or none.

A call ends when its controller stops being the active one: a deposed controller's answers can't be trusted, and a dead
server would never answer. The local controller's answer is also withheld once other servers may have declared this one
dead and activated theirs: it answers from memory, and doesn't know their changes.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from nadi.access.tokens import TokenKey
from nadi.controller.controller import Controller
from nadi.errors import UnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ActiveAddresses:
    """Addresses of a server, each "host:port". rest: "" if it has no REST port."""

    rpc: str
    rest: str = ""


class Active:
    """Last known active controller: `here` if set, otherwise `there`. may_answer: whether `here` is still active."""

    def __init__(self, may_answer: Callable[[], bool] = lambda: True) -> None:
        self._may_answer = may_answer
        self.here: Controller | None = None
        self.there: ActiveAddresses | None = None
        self._calls: dict[asyncio.Timeout, None] = {}

    def set(self, here: Controller | None, there: ActiveAddresses | None) -> bool:
        """Set the active controller; if it has changed, end calls under way and return True."""
        before = self.here or self.there
        self.here, self.there = here, there
        if (here or there) == before:
            return False
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            if not call.expired():
                call.reschedule(now)
        return True

    def check(self) -> None:
        """Check, after `here` made an answer and before it is sent, that it is still valid. UnavailableError: it may be
        stale."""
        if not self._may_answer():
            raise UnavailableError("another server may have the active controller by now: try again later")

    async def checked(self, answer: Awaitable[T]) -> T:
        """Return the answer made by `here`, or raise its error, if it is still valid: see `check`."""
        try:
            result = await answer
        except Exception:
            self.check()
            raise
        self.check()
        return result

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Context of a call to the active controller. UnavailableError: the active controller changed meanwhile."""
        try:
            async with asyncio.timeout(None) as limit:
                self._calls[limit] = None
                try:
                    yield
                finally:
                    del self._calls[limit]
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UnavailableError("the active controller is moving to another server: try again later") from error


FORWARDED = "nadi-forwarded"  # header of forwarded calls and requests; its value is a proof
_HASH = "sha512"


class ClusterKey:
    """Key shared by the servers of a cluster. It signs delegation tokens, which every store accepts from every server,
    and proofs that one of the servers forwarded a call. secret: see `identity.signing_key`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._forwarding = self._derived(b"nadi calls passed on")

    def token_key(self, lifetime_s: int) -> TokenKey:
        """Return the key for delegation tokens of that lifetime, for every server's store and controller."""
        return TokenKey(self._derived(b"nadi delegation tokens"), lifetime_s)

    def proof(self, peer: str) -> str:
        """Return the proof for forwarding a call of `peer`.

        An eavesdropper could use it to make its own calls count against that peer's share of the limits, but for
        nothing else.
        """
        return f"{peer} {self._signature(peer)}"

    def proven(self, text: str) -> str | None:
        """Return the peer that a proof names; None if the proof isn't from this cluster.

        >>> key = ClusterKey(bytes(32))
        >>> key.proven(key.proof("ipv4:10.0.0.7:4711")), key.proven("ipv4:10.0.0.7:4711 0123")
        ('ipv4:10.0.0.7:4711', None)
        """
        peer, _, signature = text.rpartition(" ")
        is_right = signature.isascii() and hmac.compare_digest(signature, self._signature(peer))
        return peer if is_right else None

    def _signature(self, peer: str) -> str:
        return hmac.digest(self._forwarding, peer.encode("utf-8", "surrogatepass"), _HASH).hex()

    def _derived(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, purpose, _HASH)
