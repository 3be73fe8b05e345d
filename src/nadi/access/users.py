"""The users file: who may log in with a password, and what they may do.

One user per line, as in Pravega's password file; empty lines and those starting with `#` are skipped:

    ann:scrypt$15$8$3$...:prn::/scope:home/*,READ_UPDATE;prn::/scope:home,READ

The file is checked before each use, and read again if it has changed. If it can't be read then, that
is logged and the users stay as they were: a half-finished edit locks nobody out and lets nobody in.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from nadi.access.passwords import check_hash
from nadi.access.permissions import Permissions
from nadi.access.private_file import replace_private_file
from nadi.errors import InvalidArgumentError

log = logging.getLogger(__name__)


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
            check_hash(kept)
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
