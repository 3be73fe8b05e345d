"""Load the server's TLS files, shared by gRPC, the wire protocol, REST and Kafka; each handshake uses the present ones.

With `client_ca`, clients need a certificate signed by one of its authorities, and not listed in `crl`. REST only asks
for one, so that health can be queried without, and refuses other requests itself. gRPC knows no revocation lists:
`ClientCertificates` refuses the calls instead.
"""

from __future__ import annotations

import functools
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import grpc

from nadi.access.reloading import Reloaded
from nadi.defaults import DEFAULT_CERTIFICATE_FIELD
from nadi.errors import InvalidArgumentError, NotAuthenticatedError

_CACHED = 1_024
_FIELDS = {"cn": "common name", "dns": "DNS name", "email": "e-mail address"}
_CRL = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """requiring, asking: contexts that require a client certificate, or ask for one, if there is a `client_ca`."""

    requiring: ssl.SSLContext
    asking: ssl.SSLContext
    rpc: grpc.ServerCertificateConfiguration


class ServerTls:
    """PEM files: the certificate with its intermediates, and its private key; the authorities of clients, and their
    revocation lists. connects: whether the server presents its certificate to itself and to the other servers of its
    cluster, as it does where clients need one. Raises InvalidArgumentError if a file is invalid."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None = None,
        crl: Path | None = None,
        *,
        connects: bool = False,
    ) -> None:
        self.certificate, self.key, self.client_ca, self._crl = certificate, key, client_ca, crl
        self._connects = connects
        paths = [path for path in (certificate, key, client_ca, crl) if path is not None]
        self._files = Reloaded("the TLS files", paths, self._load)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake of an asyncio server."""
        return self._files.current().requiring

    def asking_context(self) -> ssl.SSLContext:
        """Return the same, for a server that itself refuses clients without a certificate."""
        return self._files.current().asking

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for gRPC, which accepts only TLS 1.2 and later."""
        used = self._files.current().rpc

        def changed() -> grpc.ServerCertificateConfiguration | None:  # called by gRPC's threads at each handshake
            nonlocal used
            before, used = used, self._files.current().rpc
            return used if used is not before else None

        return grpc.dynamic_ssl_server_credentials(used, changed, self.client_ca is not None)

    def _check_own(self, server: ssl.SSLContext) -> None:
        """Raise InvalidArgumentError unless `server` accepts the certificate from a client."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.load_cert_chain(self.certificate, self.key)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(to_client, to_server),
            server.wrap_bio(to_server, to_client, server_side=True),
        )
        for end in ends * 3:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                raise InvalidArgumentError(
                    f"the server's certificate {self.certificate} isn't valid as a client's ({error.reason}), but "
                    f"servers connect with it to each other and to themselves: have it signed by an authority in "
                    f"{self.client_ca}, for both serverAuth and clientAuth"
                ) from error

    def _load(self) -> _Loaded:
        requiring, asking = self._context(ssl.CERT_REQUIRED), self._context(ssl.CERT_OPTIONAL)
        if self._connects and self.client_ca is not None:
            self._check_own(requiring)
        try:
            pairs = [(self.key.read_bytes(), self.certificate.read_bytes())]
            authorities = None if self.client_ca is None else self.client_ca.read_bytes()
        except OSError as error:  # removed meanwhile
            raise InvalidArgumentError(f"a TLS file can't be read: {error}") from error
        return _Loaded(requiring, asking, grpc.ssl_server_certificate_configuration(pairs, authorities))

    def _context(self, client_certificates: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(
                f"TLS can't use {self.certificate} and {self.key}: {error}; "
                "pass a PEM certificate and its private key without a password"
            ) from error
        if self.client_ca is None:
            return context
        context.verify_mode = client_certificates
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in gRPC: any trusted certificate ends the chain
        context.options |= ssl.OP_NO_TICKET  # a resumed session wouldn't be checked again
        context.num_tickets = 0
        for path in filter(None, (self.client_ca, self._crl)):
            try:
                context.load_verify_locations(path)
            except (OSError, ssl.SSLError) as error:
                raise InvalidArgumentError(f"client certificates can't be checked with {path}: {error}") from error
        if self._crl is not None:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context


class _Certificate(NamedTuple):
    names: tuple[str, ...]
    identity: tuple[bytes, int]  # issuer and serial number
    starts: datetime
    ends: datetime


class ClientCertificates:
    """The users that verified certificates name by one field: the only common name, as in Kubernetes, DNS name or
    e-mail address. A certificate with several is refused, since checks could disagree on the right one.

    field: `cn`, `dns` or `email`. crl: PEM file of revocation lists.
    """

    def __init__(self, field: str = DEFAULT_CERTIFICATE_FIELD, crl: Path | None = None) -> None:
        try:  # fail now, not at each login
            import cryptography  # noqa: F401
        except ImportError:
            raise InvalidArgumentError('client certificates can\'t be checked: pip install "nadi[bearer]"') from None
        self._field = field
        self._revoked: Reloaded[frozenset[tuple[bytes, int]]] | None = None
        if crl is not None:
            self._revoked = Reloaded("the revocation lists", [crl], functools.partial(_revoked_in, crl))

    def user_of(self, certificate: bytes) -> str:
        """Return the user that a certificate (DER) names; NotAuthenticatedError if it names none, has expired since the
        handshake, or is revoked."""
        parsed = _parsed(certificate, self._field)
        if not parsed.starts <= datetime.now(UTC) <= parsed.ends:
            raise NotAuthenticatedError(f"the client certificate was valid until {parsed.ends:%Y-%m-%d %H:%M} UTC")
        if self._revoked is not None and parsed.identity in self._revoked.current():
            raise NotAuthenticatedError("the client certificate is revoked: get a new one")
        if len(parsed.names) != 1:
            raise NotAuthenticatedError(
                f"the client certificate must name its user by one {_FIELDS[self._field]}, but has {len(parsed.names)}"
            )
        return parsed.names[0]


@functools.lru_cache(_CACHED)
def _parsed(data: bytes, field: str) -> _Certificate:
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(data)
        if field == "cn":
            attributes = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
            names = [str(attribute.value) for attribute in attributes]
        else:
            kind = x509.DNSName if field == "dns" else x509.RFC822Name
            others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = others.get_values_for_type(kind)
    except x509.ExtensionNotFound:
        names = []
    except ValueError as error:
        raise NotAuthenticatedError(f"the client certificate can't be parsed: {error}") from error
    identity = certificate.issuer.public_bytes(), certificate.serial_number
    return _Certificate(tuple(names), identity, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _revoked_in(path: Path) -> frozenset[tuple[bytes, int]]:
    from cryptography import x509

    try:
        lists = [x509.load_pem_x509_crl(block) for block in _CRL.findall(path.read_bytes())]
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"the revocation lists in {path} can't be loaded: {error}") from error
    if not lists:
        raise InvalidArgumentError(f"{path} does not contain a PEM revocation list")
    return frozenset((each.issuer.public_bytes(), entry.serial_number) for each in lists for entry in each)
