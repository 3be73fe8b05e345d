"""Check bearer credentials: JSON Web Tokens from an external issuer, with a claim that lists the bearer's grants.

The issuer's public keys come from a PEM file, a JSON Web Key Set file, or an https address. The signature, `iss`, `aud`
and `exp` are checked. The claim contains grants in the users file's syntax:

    {"sub": "ann", "iss": "https://id.example", "aud": "nadi", "exp": ...,
     "nadi": ["prn::/scope:home/*,READ_UPDATE"]}
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt

from nadi.access.permissions import Caller, Permissions
from nadi.defaults import DEFAULT_CLAIM
from nadi.errors import InvalidArgumentError, NotAuthenticatedError, UnavailableError
from nadi.limits import BEARER_KEYS_AGE_S, BEARER_KEYS_REFRESH_S

_FETCH_TIMEOUT_S = 5.0
# never HS*: a public key isn't secret, so anyone could sign with it
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class BearerSettings:
    """Location of the keys (a path, or an https address) and the required contents of a token."""

    keys: str
    issuer: str
    audience: str
    claim: str = DEFAULT_CLAIM


class BearerKeys:
    """Checker of tokens according to `settings`. Raises InvalidArgumentError if the keys are invalid."""

    def __init__(self, settings: BearerSettings) -> None:
        if not settings.issuer or not settings.audience:
            raise InvalidArgumentError("bearer tokens can't be checked: set `bearer_issuer` and `bearer_audience`")
        try:  # fail now, not at each login, because keys can't be parsed without it
            import cryptography  # noqa: F401
        except ImportError:
            raise InvalidArgumentError('bearer tokens can\'t be checked: pip install "nadi[bearer]"') from None
        self._settings = settings
        self._pem: Any = None
        self._set: dict[str | None, jwt.PyJWK] = {}
        self._address = ""
        self._read_at = -1e9
        self._reading = asyncio.Lock()
        address = urlsplit(settings.keys)
        if address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOOPBACK):
            self._address = settings.keys
        elif address.scheme == "http":
            raise InvalidArgumentError(f"the keys at {settings.keys} can't be trusted over http: use https")
        else:
            self._load_file(Path(settings.keys))

    def _load_file(self, path: Path) -> None:
        try:
            data = path.read_bytes()
            if b"-----BEGIN" in data:
                from cryptography.hazmat.primitives.serialization import load_pem_public_key

                self._pem = load_pem_public_key(data)
            else:
                self._set = _by_id(jwt.PyJWKSet.from_json(data.decode()))
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise InvalidArgumentError(f"the bearer keys in {path} can't be loaded: {error}") from error

    async def caller(self, text: str) -> Caller:
        """Return the token's bearer; raise NotAuthenticatedError if the token is invalid."""
        invalid = NotAuthenticatedError("the bearer token is invalid or has expired: get a new one")
        try:
            key, algorithms = await self._key(text)
            claims = jwt.decode(
                text,
                key,
                algorithms,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options={"require": ["exp", "iss", "aud"]},
            )
            grants = claims.get(self._settings.claim, [])
            if not isinstance(grants, str) and not (
                isinstance(grants, list) and all(isinstance(grant, str) for grant in grants)
            ):
                raise invalid
            return Caller(str(claims.get("sub", "")), Permissions.parse(grants))
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise invalid from None

    async def _key(self, text: str) -> tuple[Any, list[str]]:
        if self._pem is not None:
            return self._pem, _ALGORITHMS
        key_id = jwt.get_unverified_header(text).get("kid")
        if self._address:
            await self._fetch(key_id)
        key = self._set.get(key_id)
        if key is None and key_id is None and len(self._set) == 1:
            (key,) = self._set.values()
        if key is None:
            raise NotAuthenticatedError("the bearer token was signed with an unknown key: check its issuer")
        return key.key, [key.algorithm_name]

    async def _fetch(self, key_id: str | None) -> None:
        """Fetch the key set if it is old, or if it lacks the key and was not fetched recently."""
        async with self._reading:
            age = time.monotonic() - self._read_at
            if age < (BEARER_KEYS_AGE_S if key_id in self._set else BEARER_KEYS_REFRESH_S):
                return
            self._read_at = time.monotonic()
            client = jwt.PyJWKClient(self._address, cache_jwk_set=False, timeout=_FETCH_TIMEOUT_S)
            try:
                self._set = _by_id(await asyncio.to_thread(client.get_jwk_set))
            except jwt.PyJWTError as error:
                if key_id not in self._set:
                    raise UnavailableError(f"the bearer keys at {self._address} are unavailable: {error}") from error


def _by_id(keys: jwt.PyJWKSet) -> dict[str | None, jwt.PyJWK]:
    return {key.key_id: key for key in keys.keys if key.algorithm_name in _ALGORITHMS}
