"""Passwords as they are stored: scrypt, each with its own salt.

    scrypt$15$8$3$<salt>$<hash>

The numbers are log2 of the cost, the block size and the parallelism (OWASP's Password Storage Cheat
Sheet, 2024: 32 MiB and 0.1 to 0.4 s of a core each). The text has no colon, so it fits a users file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from nadi.errors import InvalidArgumentError

_LOG_COST, _BLOCK, _PARALLEL = 15, 8, 3
_SALT_BYTES, _HASH_BYTES = 16, 32
_MAX_BYTES = 256 << 20
_MAX_PARALLEL = 16


def hash_password(password: str) -> str:
    """Return the text to store for a password; it differs each time."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = _scrypt(password, salt, _LOG_COST, _BLOCK, _PARALLEL)
    numbers = f"{_LOG_COST}${_BLOCK}${_PARALLEL}"
    return f"scrypt${numbers}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def check_hash(kept: str) -> None:
    """Raise InvalidArgumentError unless `kept` is such a text."""
    _parse(kept)


def is_password(password: str, kept: str) -> bool:
    """Whether `kept` was made of this password; takes about as long either way."""
    cost, block, parallel, salt, expected = _parse(kept)
    return hmac.compare_digest(_scrypt(password, salt, cost, block, parallel), expected)


def _parse(kept: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        kind, cost, block, parallel, salt, digest = kept.split("$")
        numbers = int(cost), int(block), int(parallel)
        found = *numbers, base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
        if kind != "scrypt" or not 1 <= numbers[0] <= 24 or not 1 <= numbers[2] <= _MAX_PARALLEL or not found[4]:
            raise ValueError
        if numbers[1] < 1 or (128 * numbers[1]) << numbers[0] > _MAX_BYTES:
            raise ValueError
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("a password's hash can't be read: make it with `nadi passwd`") from None
    return found


def _scrypt(password: str, salt: bytes, log_cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=1 << log_cost,
        r=block,
        p=parallel,
        maxmem=2 * _MAX_BYTES,
        dklen=_HASH_BYTES,
    )
