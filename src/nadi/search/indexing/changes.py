"""Changes of an index's manifest, by whoever has it open: one at a time here, and by compare-and-set among all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nadi.backoff import Backoff, Tries
from nadi.errors import ConditionFailedError, UnavailableError
from nadi.search.definition import Definition, Definitions
from nadi.search.shards.manifest import Manifest


class Changes:
    """`manifest` is the newest that is known here."""

    def __init__(self, definitions: Definitions, definition: Definition) -> None:
        self._definitions, self._definition = definitions, definition
        self._lock = asyncio.Lock()
        self._version = 0
        self.manifest = Manifest()

    async def look(self) -> Manifest:
        """The newest manifest; IndexNotFoundError if the index was dropped."""
        async with self._lock:
            return await self._look()

    async def _look(self) -> Manifest:
        self.manifest, self._version = await self._definitions.manifest(self._definition)
        return self.manifest

    async def change(
        self, make: Callable[[Manifest], Manifest | None], is_done: Callable[[Manifest], bool]
    ) -> Manifest:
        """Store what `make` makes of the newest manifest, unless that is None; what it raises passes.

        is_done: whether a manifest has the change, for a change that was sent and not answered.
        """
        tries, backoff = Tries(f"the index of {self._definitions.scope}/{self._definition.stream}"), Backoff()
        async with self._lock:
            unsure = False
            while True:
                try:
                    if not self._version or unsure:
                        await self._look()
                        if unsure and is_done(self.manifest):
                            return self.manifest
                    made = make(self.manifest)
                    if made is None:
                        return self.manifest
                    self._version = await self._definitions.set_manifest(self._definition, made, self._version)
                    self.manifest = made
                    return made
                except ConditionFailedError:
                    unsure = True
                    await tries.lost()
                except UnavailableError:
                    unsure = True
                    await backoff.pause()
