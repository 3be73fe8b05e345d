"""Read and write the users file, which lists users, password hashes and grants.

One user per line, as in Pravega's password file; empty lines and lines starting with `#` are skipped:

    ann:scrypt$15$8$3$<salt>$<hash>:prn::/scope:home/*,READ_UPDATE;prn::/scope:home,READ

Passwords are hashed by scrypt with a separate salt each. The numbers are log2 of the cost, the block size and the
parallelism (OWASP's Password Storage Cheat Sheet, 2024: 32 MiB and 0.1 to 0.4 s of a core each).

The file is checked before each use, and read again if it has changed. If it is then invalid, an error is logged and the
previous users stay in effect, so that an unfinished edit doesn't change anyone's access.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from nadi.access.permissions import Permissions
from nadi.errors import InvalidArgumentError

log = logging.getLogger(__name__)

_LOG_COST, _BLOCK, _PARALLEL = 15, 8, 3
_SALT_BYTES, _HASH_BYTES = 16, 32
_MAX_BYTES = 256 << 20
_MAX_PARALLEL = 16


@dataclass(frozen=True, slots=True)
class User:
    """A user, with its password's hash and its grants."""

    name: str
    password_hash: str
    permissions: Permissions

    def __repr__(self) -> str:
        return f"User({self.name!r}, permissions={str(self.permissions)!r})"


def check_user_name(name: str) -> str:
    """Return the name if it is a valid user name; otherwise raise InvalidArgumentError."""
    if not name or ":" in name or name.startswith("#") or not name.isprintable() or name != name.strip():
        raise InvalidArgumentError(
            f"{name!r} is not a valid user name: remove ':', a leading '#', and surrounding spaces"
        )
    return name


def read_users(path: Path) -> dict[str, User]:
    """Return all users of a file by name; raise InvalidArgumentError naming an invalid line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the users file {path} can't be read: {error}") from error
    users: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hash_and_grants = line.partition(":")
        password_hash, _, grants = hash_and_grants.partition(":")
        try:
            check_user_name(name)
            _parse_hash(password_hash)
            user = User(name, password_hash, Permissions.parse(grants))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"line {number} of the users file {path}: {error}") from None
        if name in users:
            raise InvalidArgumentError(f"line {number} of the users file {path}: duplicate user {name!r}: remove it")
        users[name] = user
    return users


def write_users(path: Path, users: dict[str, User]) -> None:
    """Replace the file, readable only by its owner. Comments are lost."""
    text = "".join(f"{user.name}:{user.password_hash}:{user.permissions}\n" for user in users.values())
    replace_private_file(path, text.encode())


class UsersFile:
    """The current users of a file that may change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._users = read_users(path)

    def find(self, name: str) -> User | None:
        return self._users.get(name)

    def refresh(self) -> None:
        """Read the file again if it was changed."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._users = read_users(self._path)
                log.info("reloaded the users file %s: %d users", self._path, len(self._users))
            except InvalidArgumentError as error:
                log.error("the users file could not be reloaded, the previous users stay in effect: %s", error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def hash_password(password: str) -> str:
    """Return the hash to store for a password; it has a random salt."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return _stored(salt, _scrypt(password, salt, _LOG_COST, _BLOCK, _PARALLEL))


def hash_of_no_password() -> str:
    """Return a hash to compare passwords with that no password has; it is made at once."""
    return _stored(secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_HASH_BYTES))


def _stored(salt: bytes, digest: bytes) -> str:
    numbers = f"{_LOG_COST}${_BLOCK}${_PARALLEL}"
    return f"scrypt${numbers}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def is_password(password: str, stored_hash: str) -> bool:
    """Return whether the hash was made from this password; takes the same time either way."""
    cost, block, parallel, salt, expected = _parse_hash(stored_hash)
    return hmac.compare_digest(_scrypt(password, salt, cost, block, parallel), expected)


def _parse_hash(stored_hash: str) -> tuple[int, int, int, bytes, bytes]:
    """Return cost, block size, parallelism, salt and hash; raise InvalidArgumentError if the text is invalid."""
    try:
        kind, cost, block, parallel, salt, digest = stored_hash.split("$")
        numbers = int(cost), int(block), int(parallel)
        parsed = *numbers, base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
        if kind != "scrypt" or not 1 <= numbers[0] <= 24 or not 1 <= numbers[2] <= _MAX_PARALLEL or not parsed[4]:
            raise ValueError
        if numbers[1] < 1 or (128 * numbers[1]) << numbers[0] > _MAX_BYTES:
            raise ValueError
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("the password hash is invalid: create it with `nadi passwd`") from None
    return parsed


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


def replace_private_file(path: Path, data: bytes) -> None:
    """Create or atomically replace a file readable only by its owner; its bytes are synced first."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
