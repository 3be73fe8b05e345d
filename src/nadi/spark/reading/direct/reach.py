"""Whether this process can read a store of chunks: looked at once, and kept.

A store counts as reached if the mark that the server told is found in it, so that a folder of the same name on another
machine is never taken for it. One that wasn't reached is looked at again after a while.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from nadi.errors import NadiError
from nadi.model.chunks import Located
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.marked import marked

_LOOK_S = 10.0  # an object store that doesn't answer by then is none to read from
_AGAIN_S = 60.0
_MOST = 100  # stores remembered


@dataclass(frozen=True, slots=True)
class Reach:
    """The store, or why it can't be read."""

    store: ChunkStore | None
    why: str
    until: float


_known: dict[tuple[int, str, str], Reach] = {}


async def reach(located: Located) -> Reach:
    """The store that the server told, if this process can read it."""
    key = (os.getpid(), located.url, located.mark)  # what a fork inherits is another process's
    found = _known.get(key)
    if found is None or time.monotonic() > found.until:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[key] = await _look(located)
    return found


async def _look(located: Located) -> Reach:
    try:
        async with asyncio.timeout(_LOOK_S):
            return Reach(await marked(located.url, located.mark), "", float("inf"))
    except TimeoutError:
        why = f"{located.url} did not answer within {_LOOK_S:g} s"
    except NadiError as error:
        why = str(error)
    return Reach(None, why, time.monotonic() + _AGAIN_S)
