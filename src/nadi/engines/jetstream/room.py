"""Room for answers that may be large. A NATS server drops a client to which it would have to send more than its
`max_pending`, 64 MB by default, and how large a message is shows only when it comes. So it is guessed from the last
ones, and if the connection ends all the same, the next are asked for one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_MOST_BYTES = 32 << 20  # under way at one time
_FIRST_BYTES = 6 << 20  # a full frame in base64


class Room:
    """`async with room.taken():` around a request; then `came` or `broke`."""

    def __init__(self) -> None:
        self._expected = _FIRST_BYTES
        self._held = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held or self._held + self._expected <= _MOST_BYTES)
            taken = self._expected
            self._held += taken
        try:
            yield
        finally:
            self._held -= taken
            async with self._changed:
                self._changed.notify_all()

    def came(self, size_bytes: int) -> None:
        """An answer came: the next ones are expected to be as large, or half of what was expected."""
        self._expected = max(size_bytes, self._expected // 2, 1)

    def broke(self) -> None:
        self._expected = _MOST_BYTES
