"""What indexes have left in a store: shards whose index is gone, as after a program has deleted its scope.

Each folder there has a label. A folder is left behind if its label names this server, and the index isn't defined
there. Others' folders, and those without a label, are told and left alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.display import Displayed
from nadi.engines.engine import LogEngine
from nadi.engines.files import OURS
from nadi.engines.opening import open_engines
from nadi.engines.urls import folder_of
from nadi.errors import NotFoundError, PermissionDeniedError, ProtocolError
from nadi.runtime import REAL
from nadi.search.labelling import identity, is_gone, why_kept
from nadi.search.shards.objects import FOLDER, LABELS, Label, Shards, label_of, url_of

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


async def find(manager: StreamManager, where: str) -> list[Leftover]:
    """What indexes have left in a store, a folder or a URL, and what of others is there. NotFoundError: the
    folder has never been one for shards."""
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
            sizes = {} if kept is None else await Shards(engine, folder, is_folder=False).sizes()
            if kept is not None and (sizes or folder in labels):
                scope, stream = ("", "") if label is None else (label.scope, label.stream)
                found.append(Leftover(folder, scope, stream, len(sizes), sum(sizes.values()), kept))
    return found


async def remove(manager: StreamManager, where: str) -> list[Leftover]:
    """Delete what indexes of this server have left in a store, and return that."""
    done = []
    async with _opened(where) as engine:
        server = await identity(manager)
        for folder, label in (await _labels(engine)).items():
            if label is None or await _kept(manager, server, label) != "":
                continue
            sizes = await Shards(engine, folder, is_folder=False).delete_all()
            done.append(Leftover(folder, label.scope, label.stream, len(sizes), sum(sizes.values())))
    return done


async def _kept(manager: StreamManager, server: str | None, label: Label | None) -> str | None:
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
