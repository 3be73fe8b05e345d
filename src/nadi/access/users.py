"""Read and write the users file, which lists users, password hashes and grants.

One user per line, as in Pravega's password file; empty lines and lines starting with `#` are skipped:

    ann:scram$<salt>$600000$<key>$<key>$210000$<key>$<key>:prn::/scope:home/*,READ_UPDATE;prn::/scope:home,READ

A password's hash is its SCRAM verifiers, with a separate salt: iterations, StoredKey and ServerKey for SHA-256, then
for SHA-512. Logins that send the password are checked against the first. The hash `*` is for a user without a password,
which logs in by a client certificate.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nadi.access.permissions import Permissions
from nadi.access.reloading import Reloaded
from nadi.errors import InvalidArgumentError

NO_PASSWORD = "*"
WRONG_LOGIN = "the user name or the password is wrong"
MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS = {"sha256": 600_000, "sha512": 210_000}  # OWASP's Password Storage Cheat Sheet (2023), for PBKDF2
_SALT_BYTES = 16
_FEWEST, _MOST = 4096, 10_000_000  # iterations in a file; the fewest are RFC 7677's


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
            if password_hash != NO_PASSWORD:
                verifiers_of(password_hash)
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
        self._file = Reloaded("the users file", [path], partial(read_users, path))
        self._users = self._file.current()
        self.on_changed: Callable[[str], None] = lambda _: None  # called with the names of changed users

    def find(self, name: str) -> User | None:
        return self._users.get(name)

    def find_with_password(self, name: str) -> User | None:
        """Return the user if it has a password."""
        user = self.find(name)
        return user if user is not None and user.password_hash != NO_PASSWORD else None

    def refresh(self) -> None:
        """Read the file again if it was changed."""
        before, self._users = self._users, self._file.current()
        if self._users is not before:
            self.on_changed(", ".join(sorted({name for name, _ in before.items() ^ self._users.items()})))


class Verifier(NamedTuple):
    """What a SCRAM mechanism checks a password with (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def hash_password(password: str) -> str:
    """Return the hash to store for a password; it has a random salt."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return _stored(salt, [_derived(kind, password, salt, _ITERATIONS[kind]) for kind in MECHANISMS.values()])


def hash_of_no_password() -> str:
    """Return a hash to compare passwords with that no password has; it is made at once."""
    name, key = secrets.token_hex(), secrets.token_bytes(_SALT_BYTES)
    verifiers = [verifier_of_nobody(mechanism, name, key) for mechanism in MECHANISMS]
    return _stored(verifiers[0].salt, verifiers)


def verifier_of_nobody(mechanism: str, name: str, key: bytes) -> Verifier:
    """Return a verifier without a password, for a name that isn't a user's. It has the same salt each time."""
    kind = MECHANISMS[mechanism]
    size = hashlib.new(kind).digest_size
    salt = hmac.digest(key, name.encode("utf-8", "surrogatepass"), "sha256")[:_SALT_BYTES]
    return Verifier(salt, secrets.token_bytes(size), secrets.token_bytes(size), _ITERATIONS[kind])


def is_password(password: str, stored_hash: str) -> bool:
    """Return whether the hash was made from this password; takes the same time either way."""
    mechanism, kind = next(iter(MECHANISMS.items()))
    expected = verifiers_of(stored_hash)[mechanism]
    derived = _derived(kind, password, expected.salt, expected.iterations)
    return hmac.compare_digest(derived.stored_key, expected.stored_key)


def verifiers_of(stored_hash: str) -> dict[str, Verifier]:
    """Return the verifier of each mechanism; raise InvalidArgumentError if the hash is invalid."""
    try:
        kind, encoded_salt, *fields = stored_hash.split("$")
        salt = base64.b64decode(encoded_salt, validate=True)
        if kind != "scram" or len(salt) != _SALT_BYTES or len(fields) != 3 * len(MECHANISMS):
            raise ValueError
        verifiers = {}
        for at, (name, digest) in enumerate(MECHANISMS.items()):
            count, *keys = fields[3 * at : 3 * at + 3]
            stored_key, server_key = (base64.b64decode(key, validate=True) for key in keys)
            verifiers[name] = Verifier(salt, stored_key, server_key, int(count))
            size = hashlib.new(digest).digest_size
            if (len(stored_key), len(server_key)) != (size, size) or not _FEWEST <= int(count) <= _MOST:
                raise ValueError
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("the password hash is invalid: create it with `nadi passwd`") from None
    return verifiers


def _stored(salt: bytes, verifiers: Sequence[Verifier]) -> str:
    fields = [
        f"{each.iterations}${base64.b64encode(each.stored_key).decode()}${base64.b64encode(each.server_key).decode()}"
        for each in verifiers
    ]
    return "$".join(("scram", base64.b64encode(salt).decode(), *fields))


def _derived(kind: str, password: str, salt: bytes, iterations: int) -> Verifier:
    salted = hashlib.pbkdf2_hmac(kind, password.encode("utf-8", "surrogatepass"), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", kind)
    server_key = hmac.digest(salted, b"Server Key", kind)
    return Verifier(salt, hashlib.new(kind, client_key).digest(), server_key, iterations)


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
