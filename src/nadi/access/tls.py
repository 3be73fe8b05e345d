"""Load the server's TLS certificate and key, shared by gRPC, the wire protocol and REST."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from nadi.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files: the certificate with its intermediates, and its private key."""

    certificate: Path
    key: Path

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for asyncio servers; raise InvalidArgumentError if the files are invalid."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(
                f"TLS can't use {self.certificate} and {self.key}: {error}; "
                "pass a PEM certificate and its private key without a password"
            ) from error
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for gRPC, which accepts only TLS 1.2 and later."""
        self.ssl_context()  # raises a clear error for invalid files; gRPC wouldn't
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])
