"""TLS for the server's ports: one certificate and key, for gRPC, the wire protocol and REST."""

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
        """For asyncio servers; InvalidArgumentError if the files can't be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(
                f"TLS can't be served with {self.certificate} and {self.key}: {error}; "
                "they must be a PEM certificate and its own private key without a password"
            ) from error
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For gRPC, which takes TLS 1.2 and later only."""
        self.ssl_context()  # reports what is wrong with the files; gRPC wouldn't
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])
