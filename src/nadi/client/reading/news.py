"""Word that something may have changed, for the one who waits for it: in the loop, or in one other thread.

That thread is woken once for all that came while it looked elsewhere. It says that it waits, looks again, and only
then waits, so it misses nothing; if it had no need to wait, the next wait may end early.
"""

from __future__ import annotations

import asyncio
from queue import Empty, SimpleQueue


class News:
    """`clear`, look, `wait` is for the loop; `expect`, look, `wait_elsewhere` for the other thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._expected = False
        self._word: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Something may have changed."""
        self._event.set()
        if self._expected:
            self._expected = False
            self._word.put(None)

    def clear(self) -> None:
        self._event.clear()

    async def wait(self) -> None:
        """Until `set` is called, from `clear` on."""
        await self._event.wait()

    def expect(self) -> None:
        """Have the next `set` end `wait_elsewhere`."""
        self._expected = True

    def wait_elsewhere(self, timeout: float | None) -> bool:
        """Until `set` is called, from `expect` on, or it was before; False if it isn't within `timeout` seconds."""
        try:
            self._word.get(timeout=timeout)
        except Empty:
            return False
        return True
