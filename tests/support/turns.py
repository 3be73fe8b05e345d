"""Counts of work between two turns of the loop."""

from __future__ import annotations

import asyncio


class MostInATurn:
    """Records the maximum count between two turns of the loop, while it is entered."""

    def __init__(self) -> None:
        self._now = self.most = self.all = 0

    def count(self, many: int = 1) -> None:
        self._now += many
        self.all += many
        self.most = max(self.most, self._now)

    async def _watch(self) -> None:
        while True:
            self._now = 0
            await asyncio.sleep(0)

    async def __aenter__(self) -> MostInATurn:
        self._now = self.most = self.all = 0
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
