"""Define a client's credentials and TLS settings.

Settings that aren't passed are read from the environment, under the names that Pravega's clients use:

    pravega_client_auth_method      Basic or Bearer
    pravega_client_auth_token       the credentials as sent (for Basic: base64 of user:password)
    pravega_client_auth_username    or, for Basic, these two
    pravega_client_auth_password
    pravega_client_tls_cert_path    PEM file of the certificates to trust, or a folder of such files
    nadi_client_certificate         PEM file of this client's certificate, if the server requires one
    nadi_client_key                 and of its private key
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nadi.access.reloading import FileStamp, Reloaded, stamp_of
from nadi.client.control.arguments import checked
from nadi.errors import InvalidArgumentError
from nadi.naming import check_path

_TLS_SCHEMES = ("tls", "ssl", "tcps", "pravegas")
_PLAIN_SCHEMES = ("tcp", "pravega", "nadi")
_ENVIRONMENT = "pravega_client_auth_"
_TRUST_VARIABLE = "pravega_client_tls_cert_path"
_CERTIFICATE_VARIABLE, _KEY_VARIABLE = "nadi_client_certificate", "nadi_client_key"


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
    """A token from an issuer that the server trusts, or a function that returns one and is called for each request."""

    token: str | Callable[[], str] = field(repr=False)

    def header(self) -> str:
        """Return the value for each request's `authorization`."""
        return _sendable("Bearer " + (self.token if isinstance(self.token, str) else self.token()))


@dataclass(frozen=True, slots=True)
class EncodedCredentials:
    """A complete `authorization` value, as passed in the environment."""

    value: str = field(repr=False)

    def header(self) -> str:
        return _sendable(self.value)


def _sendable(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise InvalidArgumentError("the credentials contain a character that can't be sent: remove any line break")
    return value


@checked()
@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate that the server requires, as PEM files: with its intermediates, and its private key without a
    password. It names the user unless `login` is given, which is then checked, too."""

    certificate: str
    key: str
    login: Basic | Bearer | EncodedCredentials | None = None

    def header(self) -> str | None:
        """Return the value for each request's `authorization`; None if the certificate suffices."""
        return None if self.login is None else self.login.header()


Credentials = Basic | Bearer | EncodedCredentials | ClientCertificate


@dataclass(frozen=True, slots=True)
class Security:
    """Security settings of a client. trust_store: PEM file or folder, None for the system's certificates;
    validate_host_name: whether the certificate must contain the server's name."""

    credentials: Credentials | None = None
    tls: bool = False
    trust_store: str | None = None
    validate_host_name: bool = True

    def files_stamp(self) -> FileStamp:
        """Return a value that differs once a file was changed."""
        return stamp_of(self._files)

    @property
    def _files(self) -> list[Path]:
        texts = [] if self.trust_store is None else [self.trust_store]
        if isinstance(self.credentials, ClientCertificate):
            texts += [self.credentials.certificate, self.credentials.key]
        return [Path(text) for text in texts]

    def own_certificate(self) -> tuple[bytes, bytes] | None:
        """Return the client's private key and certificate, in PEM; None if it has none."""
        if not isinstance(self.credentials, ClientCertificate):
            return None
        try:
            return Path(self.credentials.key).read_bytes(), Path(self.credentials.certificate).read_bytes()
        except OSError as error:
            raise InvalidArgumentError(f"the client certificate can't be read: {error}") from error

    def contexts(self) -> Callable[[], ssl.SSLContext | None]:
        """Return a function that returns the context for the next connection, of the present files."""
        return Reloaded("the client's TLS files", self._files, self.ssl_context).current

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
            raise InvalidArgumentError(f"the trust store {path} does not contain a PEM certificate")
        return text

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context for connections to segment stores; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cadata=self.certificates())
        except ssl.SSLError as error:
            raise InvalidArgumentError(f"the trust store {self.trust_store} can't be used: {error}") from error
        if isinstance(self.credentials, ClientCertificate):
            try:
                context.load_cert_chain(self.credentials.certificate, self.credentials.key)
            except (OSError, ssl.SSLError) as error:
                raise InvalidArgumentError(
                    f"the client certificate {self.credentials.certificate} can't be used with the key "
                    f"{self.credentials.key}: {error}"
                ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.validate_host_name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in gRPC: any trusted certificate ends the chain
        return context


def split_uri(uri: str) -> tuple[str, bool]:
    """Return (host:port, whether with TLS) of a controller's address.

    >>> split_uri("tls://controller.example:9090")
    ('controller.example:9090', True)
    """
    scheme, separator, address = uri.partition("://")
    if not separator:
        scheme, address = "tcp", uri
    host, _, port = address.rstrip("/").rpartition(":")
    if "," in address:
        raise InvalidArgumentError(f"{uri!r} names several servers: pass one of them, in a cluster any server")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    if host and port.isascii() and port.isdecimal() and not is_port:
        raise InvalidArgumentError(f"port {port} of {uri!r} is out of range: use 1 to 65535")
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
    if isinstance(credentials, ClientCertificate) and not tls:
        raise InvalidArgumentError(f"a client certificate isn't sent to {uri}: write tls:// for a server with TLS")
    certificate, key = (environment.get(variable) for variable in (_CERTIFICATE_VARIABLE, _KEY_VARIABLE))
    if tls and certificate and not isinstance(credentials, ClientCertificate):
        if not key:
            raise InvalidArgumentError(f"{_CERTIFICATE_VARIABLE} is set: also set {_KEY_VARIABLE}")
        credentials = ClientCertificate(certificate, key, credentials)
    return Security(credentials, tls, trusted if tls else None, validate_host_name)


def _credentials_in(environment: Mapping[str, str]) -> Basic | EncodedCredentials | None:
    settings: dict[str, Any] = {
        name: environment.get(_ENVIRONMENT + name) for name in ("method", "token", "username", "password")
    }
    method = settings["method"]
    if not method:
        return None
    if method not in ("Basic", "Bearer"):
        raise InvalidArgumentError(f"{_ENVIRONMENT}method is {method!r}: it must be Basic or Bearer")
    if settings["token"]:
        return EncodedCredentials(f"{method} {settings['token']}")
    if method == "Basic" and settings["username"] and settings["password"] is not None:
        return Basic(settings["username"], settings["password"])
    missing = f"{_ENVIRONMENT}token" + (f", or {_ENVIRONMENT}username and _password" if method == "Basic" else "")
    raise InvalidArgumentError(f"{_ENVIRONMENT}method is {method}: also set {missing}")
