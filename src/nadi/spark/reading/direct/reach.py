"""Whether this process can read a store of chunks: looked at once, and kept.

A store counts as reached if the mark that the server told is found in it, so that a folder of the same name on another
machine is never taken for it. One that wasn't reached is looked at again after a while.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nadi.engines.urls import ELSEWHERE
from nadi.errors import NadiError, NotFoundError
from nadi.model.chunks import Located
from nadi.segmentstore.tier2.chunks import MARK, MARK_BYTES, ChunkStore

_LOOK_S = 10.0  # an object store that doesn't answer by then is none to read from
_AGAIN_S = 60.0
_MOST = 100  # stores remembered


async def marked(url: str, mark: str) -> ChunkStore:
    """The store of that URL and mark, to read from; NotFoundError if there is none here, or another.

    UnavailableError or InvalidArgumentError if it can't be looked at.
    """
    if not _may_be_here(url):
        raise NotFoundError(f"there is no {url} here")
    store = ChunkStore.from_url(url)
    try:
        found = bytes(await store.read(MARK, 0, MARK_BYTES)).decode(errors="replace")
    except NotFoundError:
        raise NotFoundError(f"{url} is not the server's store of chunks: it has no mark") from None
    if found != mark:
        raise NotFoundError(f"{url} is another server's store of chunks")
    return store


def _may_be_here(url: str) -> bool:
    """Whether a store may be found there by this process: a folder that it has, or one that is elsewhere."""
    parts = urlsplit(url)
    return parts.scheme in ELSEWHERE or (parts.scheme == "file" and Path(url2pathname(parts.path)).is_dir())


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
