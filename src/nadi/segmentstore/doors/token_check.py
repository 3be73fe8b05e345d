"""The segment store's check of delegation tokens: each command's, by the tables of `nadi.access`.

A signature is checked once per token and then remembered, with its expiry on the monotonic clock, so setting the wall
clock neither ends nor prolongs a token; all that remains per command is a dictionary lookup or two. Append
sessions are checked at their setup and keep their expiry time.
"""

from __future__ import annotations

import math
from typing import Any

from cachetools import LRUCache

from nadi.access.commands import ACTS, acts_of
from nadi.access.tokens import Token, TokenKey
from nadi.errors import PermissionDeniedError, TokenExpiredError
from nadi.limits import TOKENS_KEPT


class TokenCheck:
    """Lets commands pass or refuses them; without a key, all pass."""

    def __init__(self, key: TokenKey | None = None) -> None:
        self._key = key
        self._good: LRUCache[str, Token] = LRUCache(TOKENS_KEPT)

    @property
    def asks(self) -> bool:
        """Whether tokens are required."""
        return self._key is not None

    def check(self, command: Any) -> float:
        """Return when the command's token expires, on the monotonic clock (infinity: never).

        PermissionDeniedError if the token is invalid or doesn't cover the command, TokenExpiredError if it has expired.
        """
        if self._key is None:
            return math.inf
        token = self._good.get(command.token)
        if token is None:
            token = self._key.check(command.token)
            self._good[command.token] = token
        elif token.ends_at <= self._key.monotonic_s():
            raise TokenExpiredError("the delegation token has expired")
        if type(command) not in ACTS or not all(token.permits(segment, act) for segment, act in acts_of(command)):
            raise PermissionDeniedError("the delegation token is not for this segment, or not for this command")
        return token.ends_at

    def has_ended(self, ends_at: float) -> bool:
        """Whether that expiry time has come."""
        return self._key is not None and ends_at <= self._key.monotonic_s()
