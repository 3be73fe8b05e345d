"""What a server does with data that comes to its REST port: it is a client of its own doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nadi.client.control.security import Security
from nadi.standalone.security import ServerSecurity

if TYPE_CHECKING:
    from nadi.ingest.http.taking import HttpIntake


def intake_of(uri: Callable[[], str], security: ServerSecurity, *, alone: bool) -> HttpIntake:
    """uri: of its controller. alone: there are no other servers, so the one certificate to trust is its own; those of a
    cluster are trusted as the servers do among each other."""
    from nadi.ingest.http.taking import HttpIntake

    trusted = security.tls_certificate if alone else security.tls_authority
    return HttpIntake(
        uri,
        Security(
            tls=security.tls_certificate is not None,
            trust_store=None if trusted is None else str(trusted),
            validate_host_name=not alone,
        ),
        asks=security.asks,
    )
