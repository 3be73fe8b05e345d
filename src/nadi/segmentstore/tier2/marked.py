"""The chunk store of a server, as somebody else finds it who has its URL and its mark."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nadi.engines.urls import ELSEWHERE
from nadi.errors import NotFoundError
from nadi.segmentstore.tier2.chunks import MARK, MARK_BYTES, ChunkStore


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
