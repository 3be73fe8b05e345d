"""Who may do what over REST: checked before an endpoint does anything, in the same terms as over gRPC."""

from __future__ import annotations

from starlette.requests import Request

from nadi.access.gate import Gate
from nadi.access.permissions import Caller, Permission, Permissions

EVERYBODY = Caller("everybody", Permissions.parse("*,READ_UPDATE"))


class RestAccess:
    """Without a gate, whoever reaches the port may do everything."""

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate = gate

    async def authorized(self, request: Request, resource: str, permission: Permission | None) -> Caller:
        """The request's sender, if permitted; NotAuthenticatedError or PermissionDeniedError otherwise."""
        if self._gate is None:
            return EVERYBODY
        peer = f"{request.client.host}:{request.client.port}" if request.client is not None else ""
        return await self._gate.authorized(request.headers.get("authorization"), resource, permission, peer)
