"""Common parts of the access control tests: users, certificates, servers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import trustme

import nadi
from nadi.access import users
from nadi.access.permissions import Permissions
from nadi.access.users import User, write_users
from nadi.standalone import EmbeddedServer, ServerSecurity

PASSWORD = "correct horse"
GRANTS = {
    "root": "prn::*,READ_UPDATE",
    "reader": "prn::/,READ;prn::/scope:home,READ;prn::/scope:home/*,READ",
    "writer": "prn::/scope:home,READ;prn::/scope:home/*,READ_UPDATE",
    "stranger": "prn::/scope:other,READ_UPDATE;prn::/scope:other/*,READ_UPDATE",
}


@functools.cache
def password_hash() -> str:
    """Return a hash that is quick to check; the usual one takes a third of a second."""
    with mock.patch.object(users, "_ITERATIONS", {"sha256": 4096, "sha512": 4096}):
        return users.hash_password(PASSWORD)


def users_file(folder: Path, grants: dict[str, str] | None = None) -> Path:
    """Write a users file in which all passwords are PASSWORD; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "users"
    text_of = grants or GRANTS
    write_users(path, {name: User(name, password_hash(), Permissions.parse(text_of[name])) for name in text_of})
    return path


@dataclass(frozen=True)
class Certificate:
    """PEM files of a server's certificate and of the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


def certificate(folder: Path, *names: str) -> Certificate:
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
    files = Certificate(folder / "server.pem", folder / "server.key", folder / "authority.pem")
    issued.private_key_pem.write_to_path(files.key)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(files.certificate, append=True)
    authority.cert_pem.write_to_path(files.authority)
    return files


@contextmanager
def guarded(
    folder: Path, *, tls: Certificate | None = None, rest_port: int | None = None, **more: Any
) -> Iterator[EmbeddedServer]:
    """Start a server with access control and the users of GRANTS."""
    security = ServerSecurity(
        users_file=str(users_file(folder / "settings")),
        tls_certificate=str(tls.certificate) if tls else None,
        tls_key=str(tls.key) if tls else None,
        **more,
    )
    with nadi.embedded(folder / "data", security=security, rest_port=rest_port) as server:
        yield server


def user(name: str) -> nadi.Basic:
    return nadi.Basic(name, PASSWORD)
