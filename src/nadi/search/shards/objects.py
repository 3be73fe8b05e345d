"""Where the shards of an index are: objects of a store, under the index's id."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from nadi.backoff import Backoff
from nadi.engines.engine import LogEngine
from nadi.engines.opening import open_engines
from nadi.engines.urls import folder_of
from nadi.errors import InvalidArgumentError, StoreError, UnavailableError
from nadi.runtime import REAL
from nadi.wire.fields import Buffer

log = logging.getLogger("nadi.search")

_FOLDER = "search"


class Shards:
    """The objects of the index with that id, in the store at a URL."""

    def __init__(self, engine: LogEngine, index_id: str) -> None:
        self._engine, self._prefix = engine, f"{_FOLDER}/{index_id}/"

    async def put(self, shard: str, parts: Sequence[Buffer]) -> None:
        """Store a shard whose name nobody else has; wait while the store is away, or full."""
        backoff = Backoff()
        unsure = False
        while True:
            try:
                is_new = await self._engine.create(self._prefix + shard, parts)
                if not is_new and not unsure:
                    raise StoreError(f"the store has a shard {shard} already, but its name is new: who writes there?")
                return
            except UnavailableError as error:
                unsure = True
                log.warning("a shard of an index can't be stored yet: %s", error)
                await backoff.pause()

    async def get(self, shard: str) -> memoryview | None:
        """None: it was deleted, and the manifest that named it is no longer the newest."""
        return await self._engine.get(self._prefix + shard)

    async def names(self) -> list[str]:
        found = []
        async for page in self._engine.listed(self._prefix):
            found += [name.removeprefix(self._prefix) for name in page]
        return found

    async def delete(self, shards: Sequence[str]) -> None:
        await self._engine.delete([self._prefix + shard for shard in shards])

    async def close(self) -> None:
        await self._engine.close()


async def open_shards(url: str, index_id: str) -> Shards:
    """Errors: see `open_engines`."""
    engine, _ = await open_engines(url, REAL)
    return Shards(engine, index_id)


def url_of(where: str) -> str:
    """The URL of a folder's path, or that URL; InvalidArgumentError if it is none of a store.

    >>> url_of("/data/search")
    'file:///data/search'
    """
    if not where.strip():
        raise InvalidArgumentError("say where the shards are to be: a folder, or s3://, gs://, az://")
    if "://" not in where:
        return Path(where).expanduser().resolve().as_uri()
    folder_of(where)
    if urlsplit(where).scheme == "memory":
        raise InvalidArgumentError("what is in memory is gone when its process ends: give a folder or another store")
    return where


def new_name() -> str:
    """Of a shard, which nobody else has. It begins with when it was made."""
    return f"{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex}"


def made_ms(shard: str) -> int | None:
    """When a shard's name was made, in ms since 1970; None for a name that isn't a shard's."""
    digits, _, rest = shard.partition("-")
    return int(digits) if digits.isdecimal() and len(rest) == 32 else None
