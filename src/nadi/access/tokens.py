"""Delegation tokens: what the controller gives a client to show to the segment store.

A token is a JSON Web Token signed with HS512, in Pravega's form: one claim for each resource, named
by it, with the permission as its value; what that opens is told in `nadi.access.names`. The master token
has the claim `*`, and no end: it is for the controller's own commands.

    {"sub": "segmentstoreresource", "aud": "segmentstore", "iat": ..., "exp": ...,
     "prn::/scope:home/stream:meters": "READ_UPDATE"}

The Rust client, and the Python one over it, decode the payload with the plain base64 alphabet, and
panic without an `exp`. In the payload's encoding `-` and `_` come only of the characters `>`, `?`, `~`
and those past ASCII; resources hold none of them, for names are percent-quoted, so none comes.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from nadi.access.names import Act, segment_permission
from nadi.access.permissions import Permission, stream_resource
from nadi.defaults import DEFAULT_TOKEN_LIFETIME_S
from nadi.errors import DataFolderError, InvalidArgumentError, PermissionDeniedError, TokenExpiredError

LEAST_KEY_BYTES = 64  # as many as HS512's hash has (RFC 7518, 3.2)
KEY_FILE = "token-key"
_ALGORITHM = "HS512"
_SUBJECT, _AUDIENCE = "segmentstoreresource", "segmentstore"
_EVERYTHING = "*"
_STREAM = re.compile(r"prn::/scope:([^/]+)/stream:([^/]+)")


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature was good. `streams` is by `scope/stream`; `ends_at` is on the monotonic clock."""

    streams: Mapping[str, Permission]
    everything: Permission
    ends_at: float

    def permits(self, segment: str, act: Act) -> bool:
        """Whether that may be done to a segment of that name."""
        needed = segment_permission(segment, act)
        if needed is None:
            return self.everything is Permission.READ_UPDATE
        scope, stream, _ = segment.split("/", 2)
        return max(self.everything, self.streams.get(f"{scope}/{stream}", Permission.NONE)) >= needed


class TokenKey:
    """Signs tokens, and checks them. `now_s` is the wall clock, in seconds since 1970."""

    def __init__(
        self,
        key: bytes,
        lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(key) < LEAST_KEY_BYTES:
            raise InvalidArgumentError(
                f"the signing key has {len(key)} bytes and needs {LEAST_KEY_BYTES} or more: make one with "
                "`openssl rand -hex 64`"
            )
        if lifetime_s < 1:
            raise InvalidArgumentError(f"a token's lifetime is at least a second, not {lifetime_s}")
        self._key, self.lifetime_s = key, lifetime_s
        self.now_s, self.monotonic_s = now_s, monotonic_s

    @classmethod
    def in_file(cls, path: Path, lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S) -> TokenKey:
        """The key in a file: its bytes, without line ends after them."""
        try:
            key = path.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise InvalidArgumentError(f"the signing key {path} can't be read: {error.strerror}") from error
        return cls(key, lifetime_s)

    @classmethod
    def in_folder(cls, folder: Path, lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S) -> TokenKey:
        """The key that is kept in a data folder; made at the first call, and nobody else may read it."""
        path = folder / KEY_FILE
        if not path.exists():
            temporary = folder / f"{KEY_FILE}.new"
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_hex(LEAST_KEY_BYTES).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        elif path.stat().st_mode & 0o077:
            raise DataFolderError(f"others may read the signing key {path}: delete it, and a new one is made")
        return cls.in_file(path, lifetime_s)

    def issue(self, scope: str, stream: str, permission: Permission, *more: str) -> str:
        """A token for one stream, and for `more` of its scope."""
        now = int(self.now_s())
        claims: dict[str, Any] = {
            "sub": _SUBJECT,
            "aud": _AUDIENCE,
            "iat": now,
            "exp": now + self.lifetime_s,
            **{stream_resource(scope, stream): permission.name for stream in (stream, *more)},
        }
        token = jwt.encode(claims, self._key, _ALGORITHM)
        payload = token.split(".")[1]
        assert not {"-", "_"} & set(payload), "the Rust client can't decode this payload"
        return token

    def master(self) -> str:
        """The token for everything, for ever."""
        claims = {"sub": _SUBJECT, "aud": _AUDIENCE, _EVERYTHING: Permission.READ_UPDATE.name}
        return jwt.encode(claims, self._key, _ALGORITHM)

    def check(self, text: str) -> Token:
        """The token that the text holds; PermissionDeniedError if it is none, TokenExpiredError if it ran out."""
        try:
            claims = jwt.decode(
                text,
                self._key,
                [_ALGORITHM],
                audience=_AUDIENCE,
                # a store's clock may be behind a controller's; the end is looked at below
                options={"verify_iat": False, "verify_exp": False},
            )
            left_s = self._left_s(claims)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise PermissionDeniedError("that is no delegation token of this server") from None
        if left_s <= 0:
            raise TokenExpiredError("the delegation token has expired")
        streams, everything = {}, Permission.NONE
        for name, value in claims.items():
            permission = Permission.__members__.get(value) if isinstance(value, str) else None
            match = _STREAM.fullmatch(name)
            if permission is not None and name == _EVERYTHING:
                everything = permission
            elif permission is not None and match is not None:
                streams[f"{match[1]}/{match[2]}"] = permission
        return Token(streams, everything, self.monotonic_s() + left_s)

    def _left_s(self, claims: Mapping[str, Any]) -> float:
        """How long a token holds from now on: its end is by the wall clock, which may have been set since it was
        issued. So it never holds for longer than it did at first, and not at all if that seems to be still to come.
        """
        ends = float(claims.get("exp", math.inf))
        left_s = ends - self.now_s()
        if "iat" not in claims or ends == math.inf:
            return left_s
        lifetime_s = ends - float(claims["iat"])
        return min(left_s, lifetime_s) if left_s <= 2 * lifetime_s else 0.0  # clocks of two servers may differ a little
