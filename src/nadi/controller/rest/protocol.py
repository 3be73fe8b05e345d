"""One REST connection: uvicorn's, with an end for whoever sends half a request or takes nothing of an answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from nadi.access.listener import Guest
from nadi.limits import PATROL_S, REST_HEAD_TIMEOUT_S, SEND_TIMEOUT_S
from nadi.seldom import SeldomWarning
from nadi.wire.unsent import Unsent

log = logging.getLogger(__name__)
_report = SeldomWarning(log, "REST: %d connections were ended, the last from %s: %s")


class RestProtocol(H11Protocol):
    """A guest is loose unless a whole request of its is being answered."""

    guest: Guest
    short: ASGIApp  # what guests above the limit are served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._unsent = Unsent(self.transport)
        self._waits_since = self.loop.time()
        self._watch = self.loop.call_later(PATROL_S, self._look)
        if self.guest.is_extra:
            self.app = self.short

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        self.guest.leave()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering and not self.cycle.more_body:
            self.guest.settle()

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        self.guest.loosen()
        super().on_response_complete()

    def abort(self) -> None:
        """End it now."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        now = self.loop.time()
        self._watch = self.loop.call_later(PATROL_S, self._look)
        if self._unsent.stalled_s(now) > SEND_TIMEOUT_S:
            self._end(f"it took nothing of an answer for {SEND_TIMEOUT_S:.0f} s")
        elif not self._is_answering and now - self._waits_since > REST_HEAD_TIMEOUT_S:
            self._end(f"no whole request came in {REST_HEAD_TIMEOUT_S:.0f} s")

    def _end(self, reason: str) -> None:
        _report(self.client, reason)
        self.transport.abort()


def protocol_for(guest: Guest, short: ASGIApp, **arguments: Any) -> RestProtocol:
    """The protocol of a guest's connection; `arguments` are uvicorn's."""
    protocol = RestProtocol(**arguments)
    protocol.guest, protocol.short = guest, short
    return protocol
