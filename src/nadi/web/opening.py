"""A client of this server itself."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.client.control.controller import ControllerClient
from nadi.client.control.security import Encoded, Security
from nadi.limits import PAGE_ANSWER_S
from nadi.web.door import Door


@dataclass(frozen=True, slots=True)
class _OwnSecurity(Security):
    """Trusts this server's certificate itself, whoever signed it."""

    def ssl_context(self) -> ssl.SSLContext | None:
        context = Security.ssl_context(self)
        if context is not None:
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


class _Own(ControllerClient):
    """Knows where the segments are if the door does, whatever address other clients are told, and their token."""

    def __init__(self, door: Door, security: Security) -> None:
        super().__init__(door.controller, security, PAGE_ANSWER_S)
        self._door = door

    async def segment_endpoint(self, segment: str) -> tuple[str, int]:
        known = self._door.endpoint_of
        return known(segment) if known is not None else await super().segment_endpoint(segment)

    async def delegation_token(self, scope: str, stream: str, *, write: bool) -> str:
        return self._door.token or await super().delegation_token(scope, stream, write=write)


def open_client(door: Door, authorization: str) -> StreamManager:
    """A client with these credentials, "" for none; never those of the server's environment."""
    kind = _OwnSecurity if door.is_own else Security
    credentials = Encoded(authorization) if authorization else None
    return StreamManager(controller=_Own(door, kind(credentials, door.tls, door.trusted, not door.is_own)))
