"""Issue and check delegation tokens, which the controller gives to clients and the segment store accepts.

A token is a JSON Web Token signed with HS512, in Pravega's form: one claim per resource, named after it, with the
permission as its value; `nadi.access.names` defines what that allows. Another claim names the user, percent-quoted,
whose quota pays. The master token has the claim `*` and never expires: the controller uses it for internal commands.

    {"sub": "segmentstoreresource", "aud": "segmentstore", "iat": ..., "exp": ...,
     "prn::/scope:home/stream:meters": "READ_UPDATE", "nadi-user": "ann"}

Pravega's Rust and Python clients decode the payload with the standard base64 alphabet, and panic without an `exp`. In
the payload's encoding only `>`, `?`, `~` and non-ASCII characters produce `-` or `_`; resources don't contain these,
because names are percent-quoted.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from nadi.access.names import Act, segment_permission
from nadi.access.permissions import Permission, quoted, stream_resource
from nadi.access.users import replace_private_file
from nadi.defaults import DEFAULT_TOKEN_LIFETIME_S
from nadi.errors import DataFolderError, InvalidArgumentError, PermissionDeniedError, TokenExpiredError

LEAST_KEY_BYTES = 64  # the size of HS512's hash (RFC 7518, 3.2)
KEY_FILE = "token-key"
_ALGORITHM = "HS512"
_SUBJECT, _AUDIENCE = "segmentstoreresource", "segmentstore"
_EVERYTHING = "*"
_USER = "nadi-user"
_STREAM = re.compile(r"prn::/scope:([^/]+)/stream:([^/]+)")


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature is valid. `streams` is keyed by `scope/stream`; `ends_at` is on the monotonic clock.
    user: "" if unknown; None for the server's own token."""

    streams: Mapping[str, Permission]
    everything: Permission
    ends_at: float
    user: str | None = ""

    def permits(self, segment: str, act: Act) -> bool:
        """Return whether the token allows `act` on a segment."""
        needed = segment_permission(segment, act)
        if needed is None:
            return self.everything is Permission.READ_UPDATE
        scope, stream, _ = segment.split("/", 2)
        return max(self.everything, self.streams.get(f"{scope}/{stream}", Permission.NONE)) >= needed


class TokenKey:
    """Key that signs and checks tokens. `now_s`: the wall clock, in seconds since 1970."""

    def __init__(
        self,
        key: bytes,
        lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(key) < LEAST_KEY_BYTES:
            raise InvalidArgumentError(
                f"the signing key has only {len(key)} bytes, but {LEAST_KEY_BYTES} are required: create one with "
                "`openssl rand -hex 64`"
            )
        if lifetime_s < 1:
            raise InvalidArgumentError(f"the lifetime of a token must be at least 1 s, not {lifetime_s}")
        self._key, self.lifetime_s = key, lifetime_s
        self.now_s, self.monotonic_s = now_s, monotonic_s

    @classmethod
    def in_file(cls, path: Path, lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S) -> TokenKey:
        """Read the key from a file, without trailing line breaks."""
        try:
            key = path.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise InvalidArgumentError(f"the signing key {path} can't be read: {error.strerror}") from error
        return cls(key, lifetime_s)

    @classmethod
    def in_folder(cls, folder: Path, lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S) -> TokenKey:
        """Read the key from a data folder. The first call creates it, readable only by its owner."""
        path = folder / KEY_FILE
        if not path.exists():
            replace_private_file(path, secrets.token_hex(LEAST_KEY_BYTES).encode() + b"\n")
        elif path.stat().st_mode & 0o077:
            raise DataFolderError(
                f"the signing key {path} is readable by other users: delete it, so that a new one is created"
            )
        return cls.in_file(path, lifetime_s)

    def issue(self, scope: str, stream: str, permission: Permission, *more: str, user: str = "") -> str:
        """Return a token of a user for one stream, and for `more` streams of its scope."""
        import jwt  # slow to import, and most servers don't use access control

        now = int(self.now_s())
        claims: dict[str, Any] = {
            "sub": _SUBJECT,
            "aud": _AUDIENCE,
            "iat": now,
            "exp": now + self.lifetime_s,
            **{stream_resource(scope, stream): permission.name for stream in (stream, *more)},
        }
        if user:
            claims[_USER] = quoted(user)
        token = jwt.encode(claims, self._key, _ALGORITHM)
        payload = token.split(".")[1]
        assert not {"-", "_"} & set(payload), "the Rust client can't decode this payload"
        return token

    def master(self) -> str:
        """Return a token for all streams that never expires."""
        import jwt

        claims = {"sub": _SUBJECT, "aud": _AUDIENCE, _EVERYTHING: Permission.READ_UPDATE.name}
        return jwt.encode(claims, self._key, _ALGORITHM)

    def check(self, text: str) -> Token:
        """Parse and verify a token; raise PermissionDeniedError if it is invalid, TokenExpiredError if it has
        expired."""
        import jwt

        try:
            claims = jwt.decode(
                text,
                self._key,
                [_ALGORITHM],
                audience=_AUDIENCE,
                # a store's clock may be behind a controller's; the expiry is checked below
                options={"verify_iat": False, "verify_exp": False},
            )
            left_s = self._left_s(claims)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise PermissionDeniedError("the delegation token is invalid, or was issued by another cluster") from None
        if left_s <= 0:
            raise TokenExpiredError("the delegation token has expired: request a new one")
        streams, everything = {}, Permission.NONE
        for name, value in claims.items():
            permission = Permission.__members__.get(value) if isinstance(value, str) else None
            match = _STREAM.fullmatch(name)
            if permission is not None and name == _EVERYTHING:
                everything = permission
            elif permission is not None and match is not None:
                streams[f"{match[1]}/{match[2]}"] = permission
        user = claims.get(_USER, "")
        user = None if everything is Permission.READ_UPDATE else unquote(user) if isinstance(user, str) else ""
        return Token(streams, everything, self.monotonic_s() + left_s, user)

    def _left_s(self, claims: Mapping[str, Any]) -> float:
        """Return the remaining seconds of a token's validity. It expires by the wall clock, which may have been changed
        since the token was issued: so at most its full lifetime, and 0 if it seems to be issued in the future."""
        ends = float(claims.get("exp", math.inf))
        left_s = ends - self.now_s()
        if "iat" not in claims or ends == math.inf:
            return left_s
        lifetime_s = ends - float(claims["iat"])
        return (
            min(left_s, lifetime_s) if left_s <= 2 * lifetime_s else 0.0
        )  # the clocks of two servers may differ a little
