"""The segment store's check of delegation tokens: each command's, by the tables of `nadi.access`.

A signature is checked once for each token and then remembered, with its end on the monotonic clock, so a wall clock
that is set ends none and prolongs none; what remains for a command is a look into a dictionary or two. Append
sessions are checked at their setup and keep the time of their end.
"""

from __future__ import annotations

import math
from typing import Any

from nadi.access.commands import ACTS, acts_of
from nadi.access.tokens import Token, TokenKey
from nadi.errors import PermissionDeniedError, TokenExpiredError
from nadi.limits import TOKENS_KEPT


class TokenCheck:
    """Lets commands pass, or not; without a key all pass."""

    def __init__(self, key: TokenKey | None = None) -> None:
        self._key = key
        self._good: dict[str, Token] = {}

    @property
    def asks(self) -> bool:
        """Whether there must be tokens."""
        return self._key is not None

    def check(self, command: Any) -> float:
        """When the command's token ends, on the monotonic clock (infinity: never).

        PermissionDeniedError if the token is wrong or is not for this, TokenExpiredError if it has ended.
        """
        if self._key is None:
            return math.inf
        token = self._good.get(command.token)
        if token is None:
            token = self._key.check(command.token)
            if len(self._good) >= TOKENS_KEPT:
                self._good.clear()
            self._good[command.token] = token
        elif token.ends_at <= self._key.monotonic_s():
            raise TokenExpiredError("the delegation token has expired")
        if type(command) not in ACTS or not all(token.permits(segment, act) for segment, act in acts_of(command)):
            raise PermissionDeniedError("the delegation token is not for this segment, or not for this command")
        return token.ends_at

    def has_ended(self, ends_at: float) -> bool:
        """Whether that time has come."""
        return self._key is not None and ends_at <= self._key.monotonic_s()
