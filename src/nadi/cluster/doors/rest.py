"""REST in front of whichever server has the active controller: health, metrics, descriptions, the page with the events
that it shows, the cluster as it is seen from here, and data, are this server's own. Everything else is the
controller's, and passed on if that is another server's.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nadi.client.control.security import Security
from nadi.cluster.doors.active import Active
from nadi.cluster.doors.http import BodyRefused, Passage
from nadi.cluster.doors.tokens import FORWARDED, ClusterKey
from nadi.controller.rest.endpoint import DATA, PAGE_FILES, Api
from nadi.controller.rest.intake import takes_data
from nadi.controller.rest.own import CLUSTER_PATH
from nadi.controller.rest.replies import refusal
from nadi.errors import UnavailableError

_HEADER = FORWARDED.encode()
_METRICS = "/metrics"
_OWN_PATHS = ("/", "/ping", _METRICS, "/v1/openapi.json", "/v1/health", CLUSTER_PATH)
_OWN_FOLDERS = ("/v1/health/", f"{CLUSTER_PATH}/", f"{PAGE_FILES}/", f"{DATA}/")


class RestFront:
    """Of one server. Put `around` its application; call `changed` when `active` has."""

    def __init__(self, api: Api, active: Active, key: ClusterKey, security: Security) -> None:
        self._api, self._active, self._key = api, active, key
        self._passage = Passage(security.ssl_context(), key)

    def changed(self) -> None:
        self._api.controller = self._active.here
        self._api.stands_by = self._active.here is None and self._active.there is not None

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application that answers or passes on; `app` answers here."""
        return self._around(app, _is_own)

    def around_shared(self, app: ASGIApp) -> ASGIApp:
        """The same at a port that servers share, where whoever asks again may meet another one: metrics of each in turn
        would make no sense, so they are always those of the server that has the active controller."""
        return self._around(app, lambda path: path != _METRICS and _is_own(path))

    def _around(self, app: ASGIApp, is_own: Callable[[str], bool]) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            told = next((value for name, value in scope["headers"] if name == _HEADER), None)
            if told is not None:
                scope = self._of_its_peer(scope, told.decode("latin-1"))
            if is_own(scope["path"]):
                await app(scope, receive, send)
            else:
                await self._by_the_active(app, scope, receive, send, was_forwarded=told is not None)

        return serve

    def _of_its_peer(self, scope: Scope, proof: str) -> Scope:
        """The request as if it came from whom it was passed on for."""
        headers = [(name, value) for name, value in scope["headers"] if name != _HEADER]
        host, _, port = (self._key.proven(proof) or "").rpartition(":")
        if not port.isdecimal():
            return {**scope, "headers": headers}
        return {**scope, "headers": headers, "client": (host, int(port))}

    async def _by_the_active(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, was_forwarded: bool
    ) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if not begun and self._active.here is not None:
                self._active.check()
            begun = True
            await send(message)

        try:
            async with self._active.call():
                if self._active.here is not None:
                    await app(scope, receive, sending)
                elif was_forwarded:
                    raise UnavailableError("the active controller was here and is elsewhere now: try again")
                elif self._active.there is None:
                    raise UnavailableError("no server is known to have the active controller now: try again")
                else:
                    await self._passage.request(self._active.there.rest, scope, receive, sending)
        except BodyRefused as error:
            status, text = error.status, str(error)
        except UnavailableError as error:
            status, text = 503, str(error)
        else:
            return
        if not begun:  # otherwise the connection ends with half of an answer, which is no whole one to anybody
            await refusal(status, text, {"Retry-After": "1"} if status == 503 else None)(scope, receive, send)


def _is_own(path: str) -> bool:
    return path in _OWN_PATHS or path.startswith(_OWN_FOLDERS) or takes_data(path)
