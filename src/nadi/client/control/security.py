"""How a client proves who it is, and how it recognizes the server: credentials and TLS.

Anything not passed is taken from the environment, under the names that Pravega's clients use:

    pravega_client_auth_method      Basic or Bearer
    pravega_client_auth_token       the credentials as sent (for Basic: base64 of user:password)
    pravega_client_auth_username    or, for Basic, these two
    pravega_client_auth_password
    pravega_client_tls_cert_path    PEM file of the certificates to trust, or a folder of such files
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nadi.client.control.arguments import checked
from nadi.errors import InvalidArgumentError
from nadi.naming import check_path

_TLS_SCHEMES = ("tls", "ssl", "tcps", "pravegas")
_PLAIN_SCHEMES = ("tcp", "pravega", "nadi")
_ENVIRONMENT = "pravega_client_auth_"
_TRUST_VARIABLE = "pravega_client_tls_cert_path"


@checked()
@dataclass(frozen=True, slots=True)
class Basic:
    """A user in the server's users file."""

    user: str
    password: str = field(repr=False)

    def header(self) -> str:
        """Return the value for each request's `authorization`."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@checked()
@dataclass(frozen=True, slots=True)
class Bearer:
    """A token from an issuer that the server trusts; if it is a function, that is called before each request."""

    token: str | Callable[[], str] = field(repr=False)

    def header(self) -> str:
        """Return the value for each request's `authorization`."""
        return _sendable("Bearer " + (self.token if isinstance(self.token, str) else self.token()))


@dataclass(frozen=True, slots=True)
class Encoded:
    """An authorization that somebody else assembled."""

    value: str = field(repr=False)

    def header(self) -> str:
        return _sendable(self.value)


def _sendable(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise InvalidArgumentError("the credentials hold a character that can't be sent: is there a line end in them?")
    return value


Credentials = Basic | Bearer | Encoded


@dataclass(frozen=True, slots=True)
class Security:
    """One client's security. trust_store: PEM file or folder, None for the system's; validate_host_name:
    whether the certificate must bear the server's name."""

    credentials: Credentials | None = None
    tls: bool = False
    trust_store: str | None = None
    validate_host_name: bool = True

    def certificates(self) -> str | None:
        """Return the PEM text of the trusted certificates; None for the system's."""
        if self.trust_store is None:
            return None
        path = check_path("the trust store", self.trust_store)
        try:
            files = [file for file in sorted(path.iterdir()) if file.is_file()] if path.is_dir() else [path]
            texts = [file.read_text(errors="replace") for file in files]
        except OSError as error:
            raise InvalidArgumentError(f"the trust store {path} can't be read: {error.strerror}") from error
        text = "\n".join(text for text in texts if "BEGIN CERTIFICATE" in text)
        if not text:
            raise InvalidArgumentError(f"the trust store {path} holds no PEM certificate")
        return text

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context for connections to segment stores; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cadata=self.certificates())
        except ssl.SSLError as error:
            raise InvalidArgumentError(f"the trust store {self.trust_store} can't be used: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.validate_host_name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in gRPC: whatever is trusted ends the chain
        return context


def split_uri(uri: str) -> tuple[str, bool]:
    """Return (host:port, whether with TLS) of a controller's address.

    >>> split_uri("tls://controller.example:9090")
    ('controller.example:9090', True)
    """
    scheme, found, rest = uri.partition("://")
    if not found:
        scheme, rest = "tcp", uri
    host, _, port = rest.rstrip("/").rpartition(":")
    if "," in rest:
        raise InvalidArgumentError(f"{uri!r} names several servers: give one of them; in a cluster any will do")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    if scheme not in _PLAIN_SCHEMES + _TLS_SCHEMES or not host or not is_port:
        raise InvalidArgumentError(
            f"{uri!r} is not a controller address: write it as tcp://host:9090, or tls://host:9090 with TLS"
        )
    return f"{host}:{port}", scheme in _TLS_SCHEMES


def security_of(
    uri: str,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
    validate_host_name: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> Security:
    """Return the given settings, completed from the environment."""
    _, tls = split_uri(uri)
    trusted = os.fspath(trust_store) if trust_store is not None else environment.get(_TRUST_VARIABLE) or None
    if credentials is None:
        credentials = _credentials_in(environment)
    return Security(credentials, tls, trusted if tls else None, validate_host_name)


def _credentials_in(environment: Mapping[str, str]) -> Credentials | None:
    given: dict[str, Any] = {
        name: environment.get(_ENVIRONMENT + name) for name in ("method", "token", "username", "password")
    }
    method = given["method"]
    if not method:
        return None
    if method not in ("Basic", "Bearer"):
        raise InvalidArgumentError(f"{_ENVIRONMENT}method is {method!r}: it must be Basic or Bearer")
    if given["token"]:
        return Encoded(f"{method} {given['token']}")
    if method == "Basic" and given["username"] and given["password"] is not None:
        return Basic(given["username"], given["password"])
    wanted = f"{_ENVIRONMENT}token" + (f", or {_ENVIRONMENT}username and _password" if method == "Basic" else "")
    raise InvalidArgumentError(f"{_ENVIRONMENT}method is {method}, so set {wanted}")
