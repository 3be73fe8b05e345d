"""Where the shards of an index are: objects of a store, in a folder of that index alone; and what indexes that are gone
have left there.

A *label* beside all folders says whose each is, for a definition goes with its scope, and a folder doesn't. An index
has its definition before its label, and its label before shards; and a definition that is gone never comes back, for
another of the stream has another id, and so another folder. So a folder is left behind if its label names this server,
and the index isn't defined there. Others' folders, and those without a label, are told and left alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from nadi import errors
from nadi.backoff import Backoff
from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.display import Displayed
from nadi.limits import SEARCH_LOOK_S
from nadi.model.reports import IDENTITY, IdentityReport
from nadi.object_log.engine import LogEngine
from nadi.object_log.files import OURS
from nadi.object_log.opening import open_engines
from nadi.object_log.urls import folder_of
from nadi.runtime import REAL
from nadi.search.definition import Definitions, IndexDefinition, IndexLocation, IndexNotFoundError
from nadi.search.shards.building import Built
from nadi.search.shards.manifest import SHARD, IndexId, Shard, folder_of_index

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
            raise errors.StoreError(f"the store has a shard {shard} already, but its name is new: who writes there?")

    async def put_built(self, name: str, built: Built) -> Shard | None:
        """The shard of that name, stored; None if there is nothing to be found in it."""
        shard = built.shard(name)
        if shard is not None and built.parts is not None:
            await self.put(name, built.parts)
        return shard

    async def _create(self, name: str, parts: Sequence[bytes | memoryview]) -> bool:
        """Whether this call may have stored it; else it was there."""
        backoff = Backoff()
        unsure = False
        while True:
            try:
                return await self._engine.create(name, parts) or unsure
            except errors.UnavailableError as error:
                unsure = True
                log.warning("a shard of an index can't be stored yet: %s", error)
                await backoff.pause()

    async def get(self, shard: str) -> memoryview | None:
        """None: it was deleted, and the manifest that named it is no longer the newest; or the store has lost it."""
        return await self._engine.get(self._prefix + shard)

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
        raise errors.ProtocolError(
            f"the label {name} can't be read ({error}): it is damaged, or of a newer nadi"
        ) from error
    if f"{LABELS}/{label.folder}" != name:
        raise errors.ProtocolError(f"the label {name} is that of another folder: who put it there?")
    return label


@asynccontextmanager
async def shards_of(scope: str, place: IndexDefinition | IndexLocation) -> AsyncIterator[Shards]:
    """`open_shards`, closed behind."""
    shards = await open_shards(scope, place)
    try:
        yield shards
    finally:
        await shards.close()


async def open_shards(scope: str, place: IndexDefinition | IndexLocation) -> Shards:
    engine, _ = await open_engines(place.url, REAL)
    folder = folder_of_index(scope, place.stream, place.id)
    return Shards(engine, folder, is_folder=folder_of(place.url) is not None)


def url_of(where: str) -> str:
    """The URL of a folder's path, or that URL; InvalidArgumentError if it is none of a store.

    >>> url_of("/data/search")
    'file:///data/search'
    """
    if not where.strip():
        raise errors.InvalidArgumentError("say where the shards are to be: a folder, or s3://, gs://, az://")
    if "://" not in where:
        return Path(where).expanduser().resolve().as_uri()
    folder_of(where)
    if urlsplit(where).scheme == "memory":
        raise errors.InvalidArgumentError(
            "what is in memory is gone when its process ends: give a folder or another store"
        )
    return where


_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class OrphanedShards(Displayed):
    """A folder of a store whose index isn't one of this server's. scope, stream: of the index, "" if they aren't known;
    shards, size_bytes: in it; kept: why it isn't to be deleted, "" if it is."""

    folder: str
    scope: str
    stream: str
    shards: int
    size_bytes: int
    kept: str = ""


async def find(manager: StreamManager, where: str, *, delete: bool = False) -> list[OrphanedShards]:
    """What indexes have left in a store, a folder or a URL, and what of others is there; or, with `delete`, what of it
    is deleted now. NotFoundError: the folder has never been one for shards."""
    url = url_of(where)
    at = folder_of(url)
    if at is not None and not any((at / name).is_dir() for name in (OURS, FOLDER)):  # opening would make it
        raise errors.NotFoundError(f"no index has its shards in {at}: check its spelling")
    found = []
    engine, _ = await open_engines(url, REAL)
    try:
        folders = {name.split("/")[1] async for page in engine.listed(f"{FOLDER}/") for name in page}
        labels = await _labels(engine)
        server = await identity(manager)
        for folder in sorted({*labels, *filter(_NAME.fullmatch, folders)}):
            label = labels.get(folder)
            kept = await _kept(manager, server, label) if folder in labels else why_kept(None, server)
            if kept is None or (delete and kept):
                continue
            shards = Shards(engine, folder, is_folder=False)
            sizes = await (shards.delete_all() if delete else shards.sizes())
            if sizes or folder in labels:
                scope, stream = ("", "") if label is None else (label.scope, label.stream)
                found.append(OrphanedShards(folder, scope, stream, len(sizes), sum(sizes.values()), kept))
    finally:
        await engine.close()
    return found


async def _kept(manager: StreamManager, server: str, label: Label | None) -> str | None:
    """Why a folder with that label is kept, "" if it is left behind; None if its index is there."""
    if label is None:
        return "its label can't be read: it is damaged, or of a newer nadi"
    if why := why_kept(label, server):
        return why
    try:
        return "" if await is_gone(manager, label) else None
    except errors.PermissionDeniedError:
        return "whether its index is there this user may not see"


async def _labels(engine: LogEngine) -> dict[str, Label | None]:
    """By folder; None for one that can't be read, or is another folder's."""
    found: dict[str, Label | None] = {}
    async for page in engine.listed(f"{LABELS}/"):
        for name in page:
            folder = name.removeprefix(f"{LABELS}/")
            if not _NAME.fullmatch(folder):
                continue
            try:
                if (label := await label_of(engine, name)) is not None:
                    found[folder] = label
            except errors.ProtocolError:
                found[folder] = None
    return found


def why_kept(label: Label | None, server: str) -> str:
    """Why no shard of a folder with that label, which no definition or manifest names, may be deleted by who asks that
    server; "" if it may be. What the server knows of shards says nothing of another server's."""
    if label is None:
        return "it has no label: an indexer that starts will label it if it is in use"
    return "" if label.server == server else "it is another server's"


async def identity(manager: StreamManager) -> str:
    (found,) = await stores_of(manager).controller.report("", "", IDENTITY, IdentityReport)
    return found.id


@asynccontextmanager
async def labelled_shards(manager: StreamManager, scope: str, definition: IndexDefinition) -> AsyncIterator[Shards]:
    """As `shards_of`, for who stores some: they have a label."""
    async with shards_of(scope, definition) as shards:
        await shards.label(Label(await identity(manager), scope, definition.stream, definition.id))
        yield shards


async def delete_if_gone(manager: StreamManager, shards: Shards, within_s: float) -> bool:
    """Delete all shards of an index that went with its scope, or goes within some time, for its stream went before; and
    return whether it did. One that somebody drops is left to that."""
    until = time.monotonic() + within_s
    label = await shards.labelled() or shards.own  # another indexer of it may have deleted all before
    if label is None or why_kept(label, await identity(manager)):
        return False
    while True:
        if await is_gone(manager, label):
            await shards.delete_all()
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(SEARCH_LOOK_S)


async def is_gone(manager: StreamManager, label: Label) -> bool:
    """Whether the index isn't defined any more, at the label's server. Of one whose definition can't be read, that
    isn't known. UnavailableError: another server answers by now, which knows nothing of it."""
    definitions = Definitions(manager, label.scope)
    try:
        is_defined = (await definitions.catalog.get(label.stream)).id == label.id
    except (IndexNotFoundError, errors.ScopeNotFoundError):
        is_defined = False
    except errors.ProtocolError:
        try:
            place, _ = await definitions.place(label.stream)
            is_defined = place is None or place.id == label.id
        except IndexNotFoundError:  # dropped meanwhile
            is_defined = False
    if not is_defined and await identity(manager) != label.server:
        raise errors.UnavailableError(
            "another server has begun to answer at this address: which indexes are gone isn't known"
        )
    return not is_defined
