"""Calls that are answered again and again until the client goes: how many there may be, and that each stays permitted.

One takes a place of all calls like any other for as long as it lasts. Besides, there are `SCALER_WATCHES_MAX` on all
connections and `SCALER_WATCHES_OF_CONNECTION` on one, so that a client's other calls aren't kept waiting by its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from nadi.controller.access import ControllerAccess
from nadi.errors import UnavailableError
from nadi.limits import SCALER_PERMIT_S, SCALER_WATCHES_MAX, SCALER_WATCHES_OF_CONNECTION

Replies = Callable[[Any], AsyncGenerator[Any, None]]


class Watches:
    """Those of one server."""

    def __init__(self) -> None:
        self._of_peer: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are under way."""
        return self._of_peer.total()

    async def answer(
        self, rpc: str, method: Replies, request: Any, context: Any, access: ControllerAccess | None
    ) -> None:
        """Send what `method` yields, as long as `access` permits it; UnavailableError where there are too many."""
        if access is not None:
            await access.permit(rpc, request, context)
        peer = context.peer()
        if self._of_peer[peer] >= SCALER_WATCHES_OF_CONNECTION or self.count >= SCALER_WATCHES_MAX:
            raise UnavailableError(
                f"there are too many calls of {rpc}: {SCALER_WATCHES_OF_CONNECTION} on a connection and "
                f"{SCALER_WATCHES_MAX} in all are taken; ask now and then instead, as KEDA does for triggers of the "
                "type external"
            )
        self._of_peer[peer] += 1
        sending = asyncio.create_task(_send(method(request), context))
        try:
            while not (await asyncio.wait([sending], timeout=SCALER_PERMIT_S))[0]:
                if access is not None:
                    await access.permit(rpc, request, context)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]


async def _send(replies: AsyncGenerator[Any, None], context: Any) -> None:
    async with aclosing(replies):
        async for reply in replies:
            await context.write(reply)
