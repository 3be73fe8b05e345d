"""Stores the shards of an index as objects in its folder, and finds folders that deleted indexes have left.

A *label* outside the folders says which index each folder belongs to: a definition is deleted with its scope, a folder
isn't. An index has its definition before its label, and its label before shards. A deleted definition never comes back,
because a new index of the stream has another id, and so another folder. So a folder is orphaned if its label names this
server and the index isn't defined there. Folders of other servers or without a label are listed and kept.
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
from nadi.encryption.key_ring import KeyRing, unlocked
from nadi.encryption.master_keys import master_key
from nadi.encryption.sealing import PLAIN, Buffer, SealBrokenError, Sealing
from nadi.limits import SEARCH_POLL_S
from nadi.model.reports import IDENTITY, IdentityReport
from nadi.object_log.engine import LogEngine
from nadi.object_log.files import OURS
from nadi.object_log.opening import open_engines
from nadi.object_log.urls import folder_of
from nadi.runtime import REAL
from nadi.search.definition import Definitions, IndexDefinition, IndexLocation, IndexNotFoundError
from nadi.search.shards.building import BuildResult
from nadi.search.shards.manifest import SHARD, IndexId, Shard, folder_of_index

log = logging.getLogger("nadi.search")

FOLDER, LABELS = "search", "search-labels"
_LABEL_BYTES = 4 << 10  # limit: names are short


class Label(msgspec.Struct, frozen=True):
    """The owner of a folder. server: the identity of the server, or cluster, that has the scope."""

    server: str
    scope: str
    stream: str
    id: IndexId

    @property
    def folder(self) -> str:
        return folder_of_index(self.scope, self.stream, self.id)


class Shards:
    """The objects of one index. is_folder: the store is a folder, which has a lock and threads until it is closed;
    other stores hold no resources."""

    def __init__(self, engine: LogEngine, folder: str, sealing: Sealing = PLAIN, *, is_folder: bool) -> None:
        self._sealing = sealing
        self._engine, self._prefix, self._label = engine, f"{FOLDER}/{folder}/", f"{LABELS}/{folder}"
        self.is_folder = is_folder
        self.own: Label | None = None  # the label given to `label`

    async def label(self, label: Label) -> None:
        """Store the label unless there is one; wait while the store is unavailable or full."""
        self.own = label
        await self._create(self._label, [self._sealing.seal(msgspec.json.encode(label), self._label.encode())])

    async def put(self, shard: str, parts: Sequence[Buffer]) -> None:
        """Store a shard under a unique name; wait while the store is unavailable or full."""
        if self._sealing.overhead:
            parts = await REAL.in_thread(self._sealing.seal_parts, parts, shard.encode())
        if not await self._create(self._prefix + shard, parts):
            raise errors.StoreError(
                f"the store already has a shard {shard}, though names are unique: see what else writes there"
            )

    async def put_built(self, name: str, built: BuildResult) -> Shard | None:
        """Store a shard under that name; return None if it would be empty."""
        shard = built.shard(name)
        if shard is not None and built.parts is not None:
            await self.put(name, built.parts)
        return shard

    async def _create(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Return whether this call may have stored it, or False if the name is taken."""
        backoff = Backoff()
        unsure = False
        while True:
            try:
                return await self._engine.create(name, parts) or unsure
            except errors.UnavailableError as error:
                unsure = True
                log.warning("can't store a shard of an index; retrying: %s", error)
                await backoff.pause()

    async def get(self, shard: str) -> memoryview | None:
        """Return the shard, or None if it was deleted (the manifest has changed) or the store has lost it."""
        data = await self._engine.get(self._prefix + shard)
        if data is None or not self._sealing.overhead:
            return data
        try:
            return memoryview(await REAL.in_thread(self._sealing.open_parts, data, shard.encode()))
        except SealBrokenError as error:
            raise errors.StoreError(f"shard {shard} can't be decrypted: {error}; create the index again") from None

    async def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes by shard, without objects that aren't named like shards."""
        sizes: dict[str, int] = {}
        async for page in self._engine.listed(self._prefix):
            for name, size in page.items():
                shard = name.removeprefix(self._prefix)
                if SHARD.match(shard):
                    sizes[shard] = size
        return sizes

    async def delete(self, shards: Sequence[str]) -> None:
        await self._engine.delete([self._prefix + shard for shard in shards])

    async def labelled(self) -> Label | None:
        return await label_of(self._engine, self._label, self._sealing)

    async def delete_all(self) -> dict[str, int]:
        """Delete all shards, then the label; return the sizes of the shards."""
        sizes = await self.sizes()
        await self.delete([*sizes])
        await self._engine.delete([self._label])
        return sizes

    async def close(self) -> None:
        await self._engine.close()


async def label_of(engine: LogEngine, name: str, sealing: Sealing) -> Label | None:
    """Return the label of that name, or None; ProtocolError if it can't be read or is of another folder."""
    data = await engine.get(name, 0, _LABEL_BYTES)
    if data is None:
        return None
    try:
        label = msgspec.json.decode(sealing.open(data, name.encode()), type=Label)
    except (SealBrokenError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise errors.ProtocolError(
            f"can't read the label {name} ({error}): it is damaged or of a newer nadi"
        ) from error
    if f"{LABELS}/{label.folder}" != name:
        raise errors.ProtocolError(f"the label {name} is of another folder: see what else writes there")
    return label


@asynccontextmanager
async def shards_of(scope: str, location: IndexDefinition | IndexLocation) -> AsyncIterator[Shards]:
    """Open the shards of an index, and close them at the end."""
    shards = await open_shards(scope, location)
    try:
        yield shards
    finally:
        await shards.close()


async def open_shards(scope: str, location: IndexDefinition | IndexLocation) -> Shards:
    engine, registry = await open_engines(location.url, REAL)
    try:
        sealing = await unlocked(registry, REAL, location.url)
    except BaseException:
        await engine.close()
        raise
    folder = folder_of_index(scope, location.stream, location.id)
    return Shards(engine, folder, sealing, is_folder=folder_of(location.url) is not None)


async def encrypt_store(url: str) -> None:
    """Make a store encrypted, whose shards can then be stored and read with the master key only. InvalidArgumentError:
    it has plain shards. Raises EncryptionKeyError as `master_key`."""
    master = await REAL.in_thread(master_key, None, url)
    engine, registry = await open_engines(url, REAL)
    try:
        ring = KeyRing(registry, REAL)
        if await ring.listed():
            return
        async for page in engine.listed(""):
            if any(name.startswith((f"{FOLDER}/", f"{LABELS}/")) for name in page):
                raise errors.InvalidArgumentError(f"{url} has shards that aren't encrypted: choose another location")
        await ring.rotate(master)
    finally:
        await engine.close()


def url_of(where: str) -> str:
    """Return the URL of a folder's path, or a store's URL itself; InvalidArgumentError for other URLs.

    >>> url_of("/data/search")
    'file:///data/search'
    """
    if not where.strip():
        raise errors.InvalidArgumentError(
            "the location of the shards is empty: give a folder or a URL with s3://, gs:// or az://"
        )
    if "://" not in where:
        return Path(where).expanduser().resolve().as_uri()
    folder_of(where)
    if urlsplit(where).scheme == "memory":
        raise errors.InvalidArgumentError(
            "a store in memory is lost when its process ends: give a folder or another store"
        )
    return where


_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class OrphanedShards(Displayed):
    """A folder in a store whose index isn't defined on this server. scope, stream: of the index, "" if unknown; shards,
    size_bytes: of its content; why_retained: why `clean` keeps it, "" if it deletes it."""

    folder: str
    scope: str
    stream: str
    shards: int
    size_bytes: int
    why_retained: str = ""


async def find(manager: StreamManager, where: str, *, delete: bool = False) -> list[OrphanedShards]:
    """Return the folders in a store (a folder or a URL) whose indexes aren't defined on this server; with `delete`,
    delete those that are orphaned and return them. NotFoundError if the folder doesn't have shards."""
    url = url_of(where)
    at = folder_of(url)
    if at is not None and not any((at / name).is_dir() for name in (OURS, FOLDER)):  # opening would create it
        raise errors.NotFoundError(f"folder {at} doesn't contain shards of an index: check its spelling")
    orphans = []
    engine, registry = await open_engines(url, REAL)
    try:
        sealing = await unlocked(registry, REAL, url)
        folders = {name.split("/")[1] async for page in engine.listed(f"{FOLDER}/") for name in page}
        labels = await _labels(engine, sealing)
        server = await identity(manager)
        for folder in sorted({*labels, *filter(_NAME.fullmatch, folders)}):
            label = labels.get(folder)
            reason = await _why_retained(manager, server, label) if folder in labels else why_retained(None, server)
            if reason is None or (delete and reason):
                continue
            shards = Shards(engine, folder, is_folder=False)
            sizes = await (shards.delete_all() if delete else shards.sizes())
            if sizes or folder in labels:
                scope, stream = ("", "") if label is None else (label.scope, label.stream)
                orphans.append(OrphanedShards(folder, scope, stream, len(sizes), sum(sizes.values()), reason))
    finally:
        await engine.close()
    return orphans


async def _why_retained(manager: StreamManager, server: str, label: Label | None) -> str | None:
    """Return why a folder with that label is kept, "" if it is orphaned, or None if its index exists."""
    if label is None:
        return "its label can't be read: it is damaged or of a newer nadi"
    if why := why_retained(label, server):
        return why
    try:
        return "" if await is_gone(manager, label) else None
    except errors.PermissionDeniedError:
        return "this user may not see whether its index exists"


async def _labels(engine: LogEngine, sealing: Sealing) -> dict[str, Label | None]:
    """Return the labels by folder; None for one that can't be read or is of another folder."""
    labels: dict[str, Label | None] = {}
    async for page in engine.listed(f"{LABELS}/"):
        for name in page:
            folder = name.removeprefix(f"{LABELS}/")
            if not _NAME.fullmatch(folder):
                continue
            try:
                if (label := await label_of(engine, name, sealing)) is not None:
                    labels[folder] = label
            except errors.ProtocolError:
                labels[folder] = None
    return labels


def why_retained(label: Label | None, server: str) -> str:
    """Return why unreferenced shards under that label must be kept, "" if a caller of that server may delete them: it
    doesn't know the shards of other servers."""
    if label is None:
        return "its label is missing: start its indexer to label it if it is in use"
    return "" if label.server == server else "it belongs to another server"


async def identity(manager: StreamManager) -> str:
    (report,) = await stores_of(manager).controller.report("", "", IDENTITY, IdentityReport)
    return report.id


@asynccontextmanager
async def labelled_shards(manager: StreamManager, scope: str, definition: IndexDefinition) -> AsyncIterator[Shards]:
    """Open the shards of an index and label them, for callers that store some."""
    async with shards_of(scope, definition) as shards:
        await shards.label(Label(await identity(manager), scope, definition.stream, definition.id))
        yield shards


async def delete_if_orphaned(manager: StreamManager, shards: Shards, within_s: float) -> bool:
    """Delete all shards if the index is deleted with its scope within that time; return whether it was. The scope's
    deletion deletes the stream first. An index deleted by a command is left to that command."""
    until = time.monotonic() + within_s
    label = await shards.labelled() or shards.own  # another indexer may have deleted the label
    if label is None or why_retained(label, await identity(manager)):
        return False
    while True:
        if await is_gone(manager, label):
            await shards.delete_all()
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(SEARCH_POLL_S)


async def is_gone(manager: StreamManager, label: Label) -> bool:
    """Return whether the index isn't defined on the label's server; False if its definition can't be read.
    UnavailableError: another server, which doesn't know the index, answers at the address now."""
    definitions = Definitions(manager, label.scope)
    try:
        is_defined = (await definitions.catalog.get(label.stream)).id == label.id
    except (IndexNotFoundError, errors.ScopeNotFoundError):
        is_defined = False
    except errors.ProtocolError:
        try:
            location, _ = await definitions.location(label.stream)
            is_defined = location is None or location.id == label.id
        except IndexNotFoundError:  # deleted meanwhile
            is_defined = False
    if not is_defined and await identity(manager) != label.server:
        raise errors.UnavailableError(
            "another server answers at this address now: can't determine which indexes were deleted"
        )
    return not is_defined
