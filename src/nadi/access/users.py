"""The users file: who may log in with a password, and what they may do.

One user per line, as in Pravega's password file; empty lines and those starting with `#` are skipped:

    ann:scrypt$15$8$3$<salt>$<hash>:prn::/scope:home/*,READ_UPDATE;prn::/scope:home,READ

Passwords are stored by scrypt, each with its own salt. The numbers are log2 of the cost, the block size and the
parallelism (OWASP's Password Storage Cheat Sheet, 2024: 32 MiB and 0.1 to 0.4 s of a core each).

The file is checked before each use, and read again if it has changed. If it can't be read then, that
is logged and the users stay as they were: a half-finished edit locks nobody out and lets nobody in.
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
    name: str
    password_hash: str
    permissions: Permissions

    def __repr__(self) -> str:
        return f"User({self.name!r}, permissions={str(self.permissions)!r})"


def check_user_name(name: str) -> str:
    """Return the name if it is a valid user name; InvalidArgumentError otherwise."""
    if not name or ":" in name or name.startswith("#") or not name.isprintable() or name != name.strip():
        raise InvalidArgumentError(
            f"{name!r} is not a valid user name: it may not contain ':', start with '#', or have spaces around it"
        )
    return name


def read_users(path: Path) -> dict[str, User]:
    """Return all users of a file by name; InvalidArgumentError says which line is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the users file {path} can't be read: {error}") from error
    users: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        kept, _, grants = rest.partition(":")
        try:
            check_user_name(name)
            _parse_hash(kept)
            user = User(name, kept, Permissions.parse(grants))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"line {number} of the users file {path}: {error}") from None
        if name in users:
            raise InvalidArgumentError(f"line {number} of the users file {path}: {name!r} is there twice")
        users[name] = user
    return users


def write_users(path: Path, users: dict[str, User]) -> None:
    """Replace the whole file, readable only by its owner. Comments are not kept."""
    text = "".join(f"{user.name}:{user.password_hash}:{user.permissions}\n" for user in users.values())
    replace_private_file(path, text.encode())


class UsersFile:
    """The users as they are now."""

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
                log.info("the users file %s was read again: %d users", self._path, len(self._users))
            except InvalidArgumentError as error:
                log.error("the users stay as they were: %s", error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def hash_password(password: str) -> str:
    """Return the text to store for a password; it differs each time."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = _scrypt(password, salt, _LOG_COST, _BLOCK, _PARALLEL)
    numbers = f"{_LOG_COST}${_BLOCK}${_PARALLEL}"
    return f"scrypt${numbers}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def is_password(password: str, kept: str) -> bool:
    """Whether `kept` was made of this password; takes about as long either way."""
    cost, block, parallel, salt, expected = _parse_hash(kept)
    return hmac.compare_digest(_scrypt(password, salt, cost, block, parallel), expected)


def _parse_hash(kept: str) -> tuple[int, int, int, bytes, bytes]:
    """Return cost, block size, parallelism, salt and hash; InvalidArgumentError if it isn't the text of a password."""
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


def replace_private_file(path: Path, data: bytes) -> None:
    """Make a file that its owner alone may read, or replace it as a whole: its bytes are on the disk before it takes
    its place."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
