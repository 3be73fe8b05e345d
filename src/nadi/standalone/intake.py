"""What a server does with data that comes to its REST port: it is a client of its own doors.

The client is imported with the first request: most servers get none, and start sooner without it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from nadi.config import ServerSecurity

if TYPE_CHECKING:
    from nadi.controller.rest.intake import Rejected, Sent
    from nadi.controller.state.metadata import StreamName
    from nadi.ingest.http.taking import HttpIntake


class OwnIntake:
    """The `Intake` of a server. uri: of its controller. alone: there are no other servers, so the one certificate to
    trust is its own; those of a cluster are trusted as the servers do among each other."""

    def __init__(self, uri: Callable[[], str], security: ServerSecurity, *, alone: bool) -> None:
        self._uri, self._security, self._alone = uri, security, alone
        self._opening = asyncio.Lock()
        self._intake: HttpIntake | None = None

    async def events(self, stream: StreamName, sent: Sent) -> int:
        return await (await self._opened()).events(stream, sent)

    async def logs(self, stream: StreamName, sent: Sent) -> Rejected | None:
        return await (await self._opened()).logs(stream, sent)

    async def close(self) -> None:
        if self._intake is not None:
            await self._intake.close()

    async def _opened(self) -> HttpIntake:
        async with self._opening:
            if self._intake is None:
                await asyncio.to_thread(importlib.import_module, "nadi.ingest.http.taking")
                self._intake = self._made()
            return self._intake

    def _made(self) -> HttpIntake:
        from nadi.client.control.security import Security
        from nadi.ingest.http.taking import HttpIntake

        given = self._security
        trusted = given.tls_certificate if self._alone else given.tls_authority
        security = Security(
            tls=given.tls_certificate is not None,
            trust_store=None if trusted is None else str(trusted),
            validate_host_name=not self._alone,
        )
        return HttpIntake(self._uri, security, asks=given.asks)
