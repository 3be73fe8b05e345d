"""Room for answers that may be large. A NATS server drops a client to which it would have to send more than its
`max_pending`, 64 MiB by default, and how large a message is shows only when it comes. So it is guessed from the last
ones, and if the connection ends all the same, the next are asked for one by one.

What it sends at one time it counts until all of that is sent, also what has come here long since. So there may be twice
as much as is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_MOST_BYTES = 30 << 20  # under way at one time
_FIRST_BYTES = 6 << 20  # a full frame in base64


class Room:
    """`async with room.taken():` around a request; then `came` or `broke`."""

    def __init__(self) -> None:
        self._expected = _FIRST_BYTES
        self._held = self._count = 0
        self._is_over = False  # more may be under way than was expected: nothing more is, until all of it came
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            taken = self._expected
            self._held += taken
            self._count += 1
        try:
            yield
        finally:
            self._held -= taken
            self._count -= 1
            self._is_over = self._is_over and self._count > 0
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return not self._count or (not self._is_over and self._held + self._expected <= _MOST_BYTES)

    def came(self, size_bytes: int) -> None:
        """An answer came: the next ones are expected to be as large, or half of what was expected."""
        if size_bytes > self._expected:
            self._is_over = self._is_over or size_bytes * self._count > _MOST_BYTES
        self._expected = max(size_bytes, self._expected // 2, 1)

    def broke(self) -> None:
        self._expected = _MOST_BYTES
