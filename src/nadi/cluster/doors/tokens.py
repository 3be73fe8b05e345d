"""What the servers of a cluster sign, with keys that all derive from one secret: delegation tokens, which any store
must accept whichever server issued them, and proofs that a call was passed on by one of them.

The secret is made once, with the cluster, and kept in its store; it never leaves the servers.
"""

from __future__ import annotations

import hmac

from nadi.access.tokens import TokenKey
from nadi.errors import InvalidArgumentError

LEAST_SECRET_BYTES = 32
FORWARDED = "nadi-forwarded"  # the header of calls and requests that were passed on; its value is a proof
_HASH = "sha512"


class ClusterKey:
    """secret: at least 32 random bytes, the same for all servers."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < LEAST_SECRET_BYTES:
            raise InvalidArgumentError(
                f"the cluster's signing key has {len(secret)} bytes and needs {LEAST_SECRET_BYTES} or more: it isn't "
                "what was stored when the cluster was made"
            )
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
