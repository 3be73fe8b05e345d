"""Which controller is the cluster's active one, as far as this server knows: its own, another server's, or none.

What is being answered by one that no longer is, ends: a deposed controller's answers aren't to be trusted, and one
whose server is dead would never answer. Nor is the own one's answer given once others may have taken its server for
dead, and be active: it answers from memory, and knows nothing of what they have done.
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
    """Where a server answers, each as "host:port". rest: "" if it has no REST port."""

    rpc: str
    rest: str = ""


class Active:
    """The current knowledge: `here` counts, otherwise `there`. may_answer: whether `here` still is."""

    def __init__(self, may_answer: Callable[[], bool] = lambda: True) -> None:
        self._may_answer = may_answer
        self.here: Controller | None = None
        self.there: ActiveAddresses | None = None
        self._calls: dict[asyncio.Timeout, None] = {}

    def set(self, here: Controller | None, there: ActiveAddresses | None) -> bool:
        """Return whether that is something else than before, for those who call; calls under way end then."""
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
        """Before an answer of `here` is given, after it was made; UnavailableError if it may be an old one."""
        if not self._may_answer():
            raise UnavailableError("another server may have the active controller by now: try again")

    async def checked(self, answer: Awaitable[T]) -> T:
        """An answer that `here` makes, or its error, if that is to be trusted: see `check`."""
        try:
            made = await answer
        except Exception:
            self.check()
            raise
        self.check()
        return made

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wrap what the active one answers: UnavailableError once another is it, or none is."""
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
            raise UnavailableError("another server has the active controller now, or will: try again") from error


FORWARDED = "nadi-forwarded"  # the header of calls and requests that were passed on; its value is a proof
_HASH = "sha512"


class ClusterKey:
    """What the servers of a cluster sign: delegation tokens, which any store must accept whichever server issued them,
    and proofs that a call was passed on by one of them. secret: see `identity.signing_key`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._forwarding = self._derived(b"nadi calls passed on")

    def token_key(self, lifetime_s: int) -> TokenKey:
        """The key for delegation tokens that are valid for so many seconds; for every server's store and controller."""
        return TokenKey(self._derived(b"nadi delegation tokens"), lifetime_s)

    def proof(self, peer: str) -> str:
        """What a server shows that passes on a call of `peer`. Whoever intercepts it can say that calls of its own are
        that peer's, whose share of the limits they then use; it permits nothing else."""
        return f"{peer} {self._signature(peer)}"

    def proven(self, text: str) -> str | None:
        """The peer that a proof names; None if it isn't one of this cluster.

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
