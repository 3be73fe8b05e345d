"""What a server builds from its ServerSecurity: its TLS, the gate for callers, the key of its tokens.

Separate from the settings, because a parent that only hands those to its child doesn't need gRPC and cryptography.
"""

from __future__ import annotations

from pathlib import Path

from nadi.access.gate import Gate
from nadi.access.tls import ServerTls
from nadi.access.tokens import TokenKey
from nadi.config import ServerSecurity
from nadi.errors import InvalidArgumentError
from nadi.naming import check_path


def tls_of(security: ServerSecurity) -> ServerTls | None:
    if security.tls_certificate is None and security.tls_key is None:
        return None
    if security.tls_certificate is None or security.tls_key is None:
        raise InvalidArgumentError("TLS needs both a certificate and its private key: --tls-cert and --tls-key")
    return ServerTls(
        check_path("the TLS certificate", security.tls_certificate), check_path("the TLS key", security.tls_key)
    )


def gate_of(security: ServerSecurity) -> Gate | None:
    """The gate for callers; None if callers needn't identify themselves."""
    if not security.asks:
        return None
    bearer = None
    if security.bearer_keys is not None:
        from nadi.access.bearer import BearerSettings

        bearer = BearerSettings(
            str(security.bearer_keys), security.bearer_issuer, security.bearer_audience, security.bearer_claim
        )
    users = None if security.users_file is None else check_path("the users file", security.users_file)
    return Gate(users, bearer)


def token_key_of(security: ServerSecurity, folder: Path) -> TokenKey | None:
    """The key for delegation tokens; None if callers needn't identify themselves."""
    if not security.asks:
        return None
    if security.signing_key_file is not None:
        file = check_path("the signing key's file", security.signing_key_file)
        return TokenKey.in_file(file, security.token_lifetime_s)
    folder.mkdir(parents=True, exist_ok=True)
    return TokenKey.in_folder(folder, security.token_lifetime_s)
