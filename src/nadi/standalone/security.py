"""What protects a server: TLS, who may log in, and the refusal to serve everybody by mistake.

Without any of it a server listens on loopback only: open to all on a public address it is started with
`insecure_public` alone. A struct of plain values, so that a parent hands it to its child as JSON; it
holds paths, never a secret. `nadi.standalone.guards` makes of it what the server works with.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from typing import TYPE_CHECKING

import msgspec

from nadi.defaults import DEFAULT_CLAIM, DEFAULT_TOKEN_LIFETIME_S
from nadi.errors import InvalidArgumentError

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    _PathText = str | os.PathLike[str]  # as it may be given
else:
    _PathText = str  # as it is kept


class ServerSecurity(msgspec.Struct, frozen=True):
    """All off unless given. Files are texts or path-like, and kept as texts.

    tls_certificate, tls_key: PEM files; with them all doors speak TLS. tls_authority: PEM file by which servers of a
    cluster check each other's certificates; None is the system's. users_file: see nadi.access.users.
    bearer_*: see nadi.access.bearer. signing_key_file: of delegation tokens; None is one of the data
    folder's own. insecure_public: serve everybody who can reach a public address, with all rights.
    """

    tls_certificate: _PathText | None = None
    tls_key: _PathText | None = None
    tls_authority: _PathText | None = None
    users_file: _PathText | None = None
    bearer_keys: _PathText | None = None
    bearer_issuer: str = ""
    bearer_audience: str = ""
    bearer_claim: str = DEFAULT_CLAIM
    signing_key_file: _PathText | None = None
    token_lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S
    insecure_public: bool = False

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            given = getattr(self, field.name)
            if isinstance(given, os.PathLike):
                given = os.fspath(given)
                msgspec.structs.force_setattr(self, field.name, given)
            if not isinstance(given, field.type):
                raise InvalidArgumentError(f"the security setting {field.name} can't be {given!r}: see ServerSecurity")

    @property
    def asks(self) -> bool:
        """Whether callers must say who they are."""
        return self.users_file is not None or self.bearer_keys is not None

    def check_address(self, host: str, advertised_host: str | None) -> None:
        """InvalidArgumentError if a server with these settings should not listen there, or if clients, who are told
        `advertised_host` or else `host`, could not connect to that."""
        if is_loopback(host):
            return
        if not self.asks and not self.insecure_public:
            raise InvalidArgumentError(
                f"{host or 'every address'} is not loopback, and without authentication whoever reaches it could read "
                "and delete everything: give --users-file (and --tls-cert, --tls-key), listen on 127.0.0.1, or say "
                "--insecure-public to serve everybody"
            )
        if self.asks and self.tls_certificate is None:
            log.warning("passwords and tokens cross the network to %s readable: give --tls-cert and --tls-key", host)
        if advertised_host is None and is_any_address(host):
            raise InvalidArgumentError("clients can't connect to every address: give one of them as --advertised-host")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, False, False)
    """
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


def is_any_address(host: str) -> bool:
    """Whether `host` stands for all addresses of the machine, and so is none that a client could use."""
    return host in ("", "0.0.0.0", "::", "[::]")
