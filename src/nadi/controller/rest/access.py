"""Who may do what over REST: checked before an endpoint does anything, in the same terms as over gRPC; and what no
other site may have a browser do."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from nadi.access.gate import Gate
from nadi.access.permissions import Caller, Permission, Permissions
from nadi.controller.rest.replies import refusal

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


TOLD_BY_BROWSERS = (b"origin", b"sec-fetch-site")
_HARMLESS = ("GET", "HEAD", "OPTIONS")


def same_site(app: ASGIApp) -> ASGIApp:
    """`app`, without what a page of another site has a browser send to change something.

    A browser sends that unasked, with the password that it was once given, and to servers that only it reaches. A page
    of this server itself, and whatever isn't a browser, is let through.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _HARMLESS and _is_foreign(Headers(scope=scope)):
            answer = refusal(403, "a page of another site may not write here: send it from a program")
            await answer(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


def _is_foreign(headers: Headers) -> bool:
    """By what a browser says of where a request is from. Without TLS it says only the origin, which tells if a proxy
    before this server leaves it its name."""
    told = headers.get("sec-fetch-site")
    if told is not None:
        return told not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
