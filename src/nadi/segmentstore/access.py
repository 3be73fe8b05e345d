"""The segment store's check of delegation tokens: each command's, by the table of `nadi.access.commands`.

A signature is checked once for each token and then remembered; what remains for a command is a look
into a dictionary or two. Append sessions are checked at their setup and keep the time of their end.
"""

from __future__ import annotations

import math
from typing import Any

from nadi.access.commands import PERMISSIONS, segments_of
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
        """When the command's token ends, in seconds since 1970 (infinity: never).

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
        elif token.expires_at <= self._key.now_s():
            raise TokenExpiredError("the delegation token has expired")
        permission = PERMISSIONS.get(type(command))
        if permission is None or not all(token.permits(segment, permission) for segment in segments_of(command)):
            raise PermissionDeniedError("the delegation token is not for this segment, or not for this command")
        return token.expires_at

    def has_ended(self, end_s: float) -> bool:
        """Whether that time has come."""
        return self._key is not None and end_s <= self._key.now_s()
