"""One container's objects in an engine, by place: stored until it is certain whose is there, read until there is an
answer. Where the store can't be reached, both wait, and say so in the log now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nadi.backoff import Backoff
from nadi.engines import outcomes
from nadi.engines.engine import LogEngine
from nadi.errors import UnavailableError
from nadi.limits import CHAIN_LONGEST_PAUSE_S, CHAIN_TRY_BYTES_PER_S, CHAIN_TRY_S
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import Place, name_of
from nadi.throttled_log import SeldomWarning

log = logging.getLogger(__name__)
T = TypeVar("T")


class ChainObjects:
    """Those of one container."""

    def __init__(self, engine: LogEngine, container: int, runtime: Runtime) -> None:
        self.container = container
        self.trouble = ""  # what the engine last said, if its last answer was an error
        self._engine, self._runtime = engine, runtime
        self._warning = SeldomWarning(
            log, "the store of a log failed %d times, last of container %d: %s", runtime.monotonic
        )

    async def store(self, place: Place, parts: Sequence[bytes]) -> memoryview | None:
        """Store an object there. None: there it is, and durable; else what somebody else has stored there first.

        The outcome of a try may stay unknown: then the same bytes are stored again under the same name.
        """
        name, size_bytes = name_of(self.container, place), sum(map(len, parts))
        return await self._until_done(lambda: outcomes.stored(self._engine, name, parts), size_bytes)

    async def read(self, place: Place, position: int = 0, length: int | None = None) -> memoryview | None:
        """The object there, or a part of it; None if there is none."""
        name = name_of(self.container, place)
        return await self._until_done(lambda: self._engine.get(name, position, length), length or 0)

    async def delete(self, places: Sequence[Place]) -> None:
        """Delete what is there of these; raise UnavailableError if some may still be there."""
        await self._engine.delete([name_of(self.container, place) for place in places])

    async def _until_done(self, attempt: Callable[[], Awaitable[T]], size_bytes: int) -> T:
        limit_s = CHAIN_TRY_S + size_bytes / CHAIN_TRY_BYTES_PER_S
        backoff = Backoff(longest_s=CHAIN_LONGEST_PAUSE_S, sleep=self._runtime.sleep, chance=self._spread)
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    done = await attempt()
            except TimeoutError:
                self.trouble = f"no answer within {limit_s:.0f} s"
            except UnavailableError as error:
                self.trouble = str(error)
            else:
                self.trouble = ""
                return done
            self._warning(self.container, self.trouble)
            await backoff.pause()

    def _spread(self) -> float:
        return 0.5 + self._runtime.chance() / 2
