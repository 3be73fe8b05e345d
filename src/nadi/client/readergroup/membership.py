"""A reader's part in its group: it keeps up with the others, and leaves them even if nobody says so."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nadi.client.readergroup.reader import EventReader


class Membership:
    """A reader's part in its group. It also ends if the reader is dropped without `close`, say after an error, or the
    reader would block its segments and every checkpoint forever. Its task references the reader only during a look."""

    def __init__(self, reader: EventReader, wake: asyncio.Event, let_go: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._wake, self._let_go = weakref.ref(reader), wake, let_go
        self._task = asyncio.create_task(self._keep_up())

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    async def end(self, timeout_s: float) -> None:
        """Leave the group; what the reader returned last does not count as done."""
        reader = self._reader()
        if reader is not None:
            await reader.close(is_done=False, timeout=timeout_s)
            return
        self._wake.set()
        await asyncio.wait([self._task], timeout=timeout_s)

    async def _keep_up(self) -> None:
        while (reader := self._reader()) is not None:
            self._wake.clear()
            pause_s = await reader._look()
            if pause_s is None:
                return
            del reader
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
        await self._let_go()
