"""Open the gRPC channel to a controller, plain or with TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import grpc

from nadi.client.control.security import Security
from nadi.errors import UnavailableError

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),  # the default of 1 s is longer than a restart takes
    ("grpc.min_reconnect_backoff_ms", 1000),  # the limit of one attempt
    ("grpc.max_reconnect_backoff_ms", 2000),
]


async def open_channel(
    address: str, security: Security, timeout_s: float, more: Sequence[tuple[str, Any]] = ()
) -> grpc.aio.Channel:
    """Open a channel. more: further gRPC options. Raises UnavailableError if the server's certificate is needed and
    can't be fetched."""
    options = [*_OPTIONS, *more]
    if not security.tls:
        return grpc.aio.insecure_channel(address, options)
    text = security.certificates()
    own = security.own_certificate() or ()
    credentials = grpc.ssl_channel_credentials(text.encode() if text is not None else None, *own)
    if not security.validate_host_name:
        name = await _certified_name(address, security, timeout_s)
        options.append(("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, credentials, options)


def unreachable(address: str, details: str) -> str:
    """Explain why the address can't be reached. details: the message of gRPC or OpenSSL."""
    if "Connection refused" in details:
        return f"no server listens at {address}: start one there (`nadi up`), or check the address"
    if details.startswith(("DNS resolution failed", "errors resolving")):
        return f"the host name of {address} can't be resolved: check its spelling"
    if "http1.x server" in details or "missing selected ALPN" in details:
        return f"{address} answers HTTP: pass the controller's port"
    if "WRONG_VERSION_NUMBER" in details:
        return f"the server at {address} doesn't use TLS: write tcp://"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        reason = details.rpartition("CERTIFICATE_VERIFY_FAILED")[2].strip("]: ")
        return f"the certificate of {address} can't be verified ({reason}): pass its authority as the trust store"
    if "Socket closed" in details:
        return (
            f"the server at {address} closed the connection: write tls:// if it uses TLS, check the port, and pass a "
            "valid client certificate if it requires one"
        )
    return f"the controller at {address} can't be reached: {details}"


async def _certified_name(address: str, security: Security, timeout_s: float) -> str:
    """Return a name from the server's trusted certificate: gRPC can't skip checking the name, but it can expect a
    given one."""
    host, _, port = address.rpartition(":")
    context = security.ssl_context()
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except (OSError, TimeoutError, ssl.SSLError) as error:
        raise UnavailableError(unreachable(address, str(error))) from None
    names: Any = (writer.get_extra_info("peercert") or {}).get("subjectAltName", ())
    writer.close()
    if not names:
        raise UnavailableError(f"the certificate of the controller at {address} lacks a subjectAltName")
    return str(names[0][1]).replace("*", "any")
