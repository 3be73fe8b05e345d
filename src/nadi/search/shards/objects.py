"""Where the shards of an index are: objects of a store, in a folder of that index alone.

A *label* beside all folders says whose each is, for a definition goes with its scope, and a folder doesn't. Who stores
shards stores the label before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from nadi.backoff import Backoff
from nadi.engines.engine import LogEngine
from nadi.engines.opening import open_engines
from nadi.engines.urls import folder_of
from nadi.errors import InvalidArgumentError, ProtocolError, StoreError, UnavailableError
from nadi.runtime import REAL
from nadi.search.shards.manifest import SHARD, IndexId, folder_of_index

log = logging.getLogger("nadi.search")

FOLDER, LABELS = "search", "search-labels"
_LABEL_BYTES = 4 << 10  # at most: names are short


class Label(msgspec.Struct, frozen=True):
    """Whose a folder is. server: the identity of the server, or the cluster, that has the scope."""

    server: str
    scope: str
    stream: str
    id: IndexId

    @property
    def folder(self) -> str:
        return folder_of_index(self.scope, self.stream, self.id)


class Shards:
    """The objects of one index. is_folder: the store is one of files, and holds a lock and threads until it is closed;
    others hold nothing."""

    def __init__(self, engine: LogEngine, folder: str, *, is_folder: bool) -> None:
        self._engine, self._prefix, self._label = engine, f"{FOLDER}/{folder}/", f"{LABELS}/{folder}"
        self.is_folder = is_folder
        self.own: Label | None = None  # that was stored, or would have been

    async def label(self, label: Label) -> None:
        """Say whose they are, unless that is said; wait while the store is away, or full."""
        self.own = label
        await self._create(self._label, [msgspec.json.encode(label)])

    async def put(self, shard: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store a shard whose name nobody else has; wait while the store is away, or full."""
        if not await self._create(self._prefix + shard, parts):
            raise StoreError(f"the store has a shard {shard} already, but its name is new: who writes there?")

    async def _create(self, name: str, parts: Sequence[bytes | memoryview]) -> bool:
        """Whether this call may have stored it; else it was there."""
        backoff = Backoff()
        unsure = False
        while True:
            try:
                return await self._engine.create(name, parts) or unsure
            except UnavailableError as error:
                unsure = True
                log.warning("a shard of an index can't be stored yet: %s", error)
                await backoff.pause()

    async def get(self, shard: str) -> memoryview | None:
        """None: it was deleted, and the manifest that named it is no longer the newest; or the store has lost it."""
        return await self._engine.get(self._prefix + shard)

    async def names(self) -> list[str]:
        return [*await self.sizes()]

    async def sizes(self) -> dict[str, int]:
        """In bytes, by shard; without what isn't a shard by its name, which somebody else has put there."""
        found: dict[str, int] = {}
        async for page in self._engine.listed(self._prefix):
            for name, size in page.items():
                shard = name.removeprefix(self._prefix)
                if SHARD.match(shard):
                    found[shard] = size
        return found

    async def delete(self, shards: Sequence[str]) -> None:
        await self._engine.delete([self._prefix + shard for shard in shards])

    async def labelled(self) -> Label | None:
        """The label; None if there is none. ProtocolError: it can't be read."""
        return await label_of(self._engine, self._label)

    async def delete_all(self) -> dict[str, int]:
        """The shards there are, and then the label; return the sizes of what was there."""
        found = await self.sizes()
        await self.delete([*found])
        await self._engine.delete([self._label])
        return found

    async def close(self) -> None:
        await self._engine.close()


async def label_of(engine: LogEngine, name: str) -> Label | None:
    """The label of that name; None if there is none. ProtocolError if it can't be read, or is another folder's."""
    data = await engine.get(name, 0, _LABEL_BYTES)
    if data is None:
        return None
    try:
        label = msgspec.json.decode(data, type=Label)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the label {name} can't be read ({error}): it is damaged, or of a newer nadi") from error
    if f"{LABELS}/{label.folder}" != name:
        raise ProtocolError(f"the label {name} is that of another folder: who put it there?")
    return label


async def open_shards(url: str, scope: str, stream: str, index_id: str) -> Shards:
    """Those of the index with that id, of that stream. Errors: see `open_engines`."""
    engine, _ = await open_engines(url, REAL)
    return Shards(engine, folder_of_index(scope, stream, index_id), is_folder=folder_of(url) is not None)


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
