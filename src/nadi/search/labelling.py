"""Folders of shards that are to be stored, with whose they are; and whether an index is gone for good.

An index has its definition before its label, and its label before shards; and a definition that is gone never comes
back, for another of the stream has another id, and so another folder. So what a labelled folder has is nobody's once
its definition is seen to be missing.

What indexes have left in a store: shards whose index is gone, as after a program has deleted its scope.

Each folder there has a label. A folder is left behind if its label names this server, and the index isn't defined
there. Others' folders, and those without a label, are told and left alone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.display import Displayed
from nadi.engines.engine import LogEngine
from nadi.engines.files import OURS
from nadi.engines.opening import open_engines
from nadi.engines.urls import folder_of
from nadi.errors import (
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ScopeNotFoundError,
    UnavailableError,
)
from nadi.limits import SEARCH_LOOK_S
from nadi.model.reports import IDENTITY, IdentityReport
from nadi.runtime import REAL
from nadi.search.definition import Definition, Definitions, IndexNotFoundError
from nadi.search.shards.objects import FOLDER, LABELS, Label, Shards, label_of, open_shards, url_of

_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Leftover(Displayed):
    """A folder of a store whose index isn't one of this server's. scope, stream: of the index, "" if they aren't known;
    shards, size_bytes: in it; kept: why it isn't to be deleted, "" if it is."""

    folder: str
    scope: str
    stream: str
    shards: int
    size_bytes: int
    kept: str = ""


async def find(manager: StreamManager, where: str, *, delete: bool = False) -> list[Leftover]:
    """What indexes have left in a store, a folder or a URL, and what of others is there; or, with `delete`, what of it
    is deleted now. NotFoundError: the folder has never been one for shards."""
    found = []
    async with _opened(where) as engine:
        folders: set[str] = set()
        async for page in engine.listed(f"{FOLDER}/"):
            folders.update(name.split("/")[1] for name in page)
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
                found.append(Leftover(folder, scope, stream, len(sizes), sum(sizes.values()), kept))
    return found


async def _kept(manager: StreamManager, server: str, label: Label | None) -> str | None:
    """Why a folder with that label is kept, "" if it is left behind; None if its index is there."""
    if label is None:
        return "its label can't be read: it is damaged, or of a newer nadi"
    if why := why_kept(label, server):
        return why
    try:
        return "" if await is_gone(manager, label) else None
    except PermissionDeniedError:
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
                label = await label_of(engine, name)
            except ProtocolError:
                found[folder] = None
            else:
                if label is not None:
                    found[folder] = label
    return found


@asynccontextmanager
async def _opened(where: str) -> AsyncIterator[LogEngine]:
    url = url_of(where)
    folder = folder_of(url)
    if folder is not None and not any((folder / name).is_dir() for name in (OURS, FOLDER)):  # opening would make it
        raise NotFoundError(f"no index has its shards in {folder}: check its spelling")
    engine, _ = await open_engines(url, REAL)
    try:
        yield engine
    finally:
        await engine.close()


def why_kept(label: Label | None, server: str) -> str:
    """Why no shard of a folder with that label, which no definition or manifest names, may be deleted by who asks that
    server; "" if it may be. What the server knows of shards says nothing of another server's."""
    if label is None:
        return "it has no label: an indexer that starts will label it if it is in use"
    return "" if label.server == server else "it is another server's"


async def identity(manager: StreamManager) -> str:
    """The server's, or the cluster's."""
    (found,) = await stores_of(manager).controller.report("", "", IDENTITY, IdentityReport)
    return found.id


async def open_labelled(manager: StreamManager, scope: str, definition: Definition) -> Shards:
    """The index's shards, for who stores some. Errors: see `open_shards`."""
    shards = await open_shards(definition.url, scope, definition.stream, definition.id)
    try:
        await shards.label(Label(await identity(manager), scope, definition.stream, definition.id))
    except BaseException:
        await shards.close()
        raise
    return shards


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
    if await _is_defined(Definitions(manager, label.scope), label):
        return False
    if await identity(manager) != label.server:
        raise UnavailableError("another server has begun to answer at this address: which indexes are gone isn't known")
    return True


async def _is_defined(definitions: Definitions, label: Label) -> bool:
    try:
        return (await definitions.catalog.get(label.stream)).id == label.id
    except (IndexNotFoundError, ScopeNotFoundError):
        return False
    except ProtocolError:
        pass
    try:
        place, _ = await definitions.place(label.stream)
    except IndexNotFoundError:  # dropped meanwhile
        return False
    return place is None or place.id == label.id
