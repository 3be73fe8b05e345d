"""Where a data folder keeps its chunks, if not in the folder: `DIR/tier2.json`, a line with a checksum.

    {"url": "s3://bucket/prefix", "options": {…}, "folder": "<id>", "opening": "…", "next": "", "claimed": true, …}

It is written before the store is asked for anything, and again once the store has been claimed (`claim`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from nadi.engines.failures import public
from nadi.engines.files import OURS
from nadi.engines.urls import folder_of
from nadi.errors import DataFolderError, InvalidArgumentError
from nadi.segmentstore import reserve
from nadi.segmentstore.datafolder import ELSEWHERE, TIER2, container_folders
from nadi.segmentstore.tier1 import disk


class Tier2(msgspec.Struct, frozen=True):
    """What a server is told of its tier 2. url: as `engines.urls` takes it. options: of that store, such as `endpoint`;
    secrets are better in the environment."""

    url: str
    options: dict[str, str] = {}


class Whereabouts(msgspec.Struct, frozen=True):
    """folder: the data folder's id. opening: of the last server that has claimed the store, and next: of one that is
    about to; both of chance. claimed: whether any has. left: where else chunks may lie that were moved from there, ""
    is nowhere. options: without secrets."""

    url: str
    options: dict[str, str]
    folder: str
    opening: str = ""
    next: str = ""
    claimed: bool = False
    left: str = ""

    def write(self, folder: Path) -> None:
        """Durable when this returns, on a full disk in room that a container keeps aside; blocking."""
        line = json.dumps(msgspec.to_builtins(self))
        try:
            disk.replace_line(folder / ELSEWHERE, line)
        except OSError as error:
            released = (path for path in container_folders(folder).values() if reserve.release(path))
            container = next(released, None) if disk.is_no_room(error) else None
            if container is None:
                raise
            disk.replace_line(folder / ELSEWHERE, line)
            reserve.take(container)

    def told(self, options: dict[str, str]) -> Whereabouts:
        """The same, as it is reached by these options."""
        return msgspec.structs.replace(self, options=public(options))


def find(folder: Path) -> Whereabouts | None:
    """What the folder says; None: its chunks are in the folder.

    Raises:
        DataFolderError: that can't be read.
    """
    path = folder / ELSEWHERE
    try:
        return msgspec.json.decode(disk.read_line(path), type=Whereabouts)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise DataFolderError(
            f"{path} is damaged, which says where the chunks of this folder are: restore it from a copy; or move it "
            f"elsewhere, and let `nadi tier2 claim {folder} --tier2 URL` write it anew"
        ) from None


def chosen(folder: Path, given: Tier2 | None, unique: str) -> Whereabouts | None:
    """Where the chunks of a folder are to be, for a server that was told `given`; None: in the folder. Blocking.

    unique: the folder's id, if it has none.

    Raises:
        DataFolderError: they are in another place.
        DataFolderError: the folder doesn't say so.
        InvalidArgumentError: it isn't such a URL.
    """
    found = find(folder)
    if found is not None and found.claimed:
        if given is None:
            raise DataFolderError(
                f"the data folder {folder} keeps its chunks in {found.url}: start it with --tier2 {found.url}; "
                f"`nadi tier2 move {folder} --back` moves them into the folder"
            )
        if normal(given.url) != found.url:
            raise DataFolderError(
                f"the data folder {folder} keeps its chunks in {found.url}, not in {normal(given.url)}: start it with "
                f"--tier2 {found.url}, or move them back first, by `nadi tier2 move {folder} --back`"
            )
        return found.told(given.options)
    if given is None:
        return None
    url = normal(given.url)
    check_outside(folder, url)
    if has_chunks(folder):
        raise DataFolderError(
            f"the data folder {folder} has its chunks in {folder / TIER2}: start it without --tier2, or move them "
            f"first by `nadi tier2 move {folder} --to {url}`"
        )
    known = found if found is not None and found.url == url else Whereabouts(url, {}, unique)
    return known.told(given.options)


def check_within(folder: Path, what: str) -> None:
    """DataFolderError if the chunks of a folder are elsewhere, for what can't be done then."""
    found = find(folder)
    if found is not None and found.claimed:
        raise DataFolderError(
            f"{folder} keeps its chunks in {found.url}, and is {what} only with its chunks in it: stop its server, and "
            f"`nadi tier2 move {folder} --back` first"
        )


def normal(url: str) -> str:
    """The URL as it is written down and compared.

    >>> normal("s3://bucket/prefix/")
    's3://bucket/prefix'
    """
    folder = folder_of(url)
    return url.rstrip("/") if folder is None else folder.resolve().as_uri()


def check_outside(folder: Path, url: str) -> None:
    """InvalidArgumentError if that is in the data folder, or around it."""
    other = folder_of(url)
    own = folder.resolve()
    if other is not None and (other.is_relative_to(own) or own.is_relative_to(other)):
        raise InvalidArgumentError(
            f"{url} and the data folder {folder} lie in each other: without --tier2 chunks are kept in the folder, and "
            "elsewhere they need one of their own"
        )


def has_chunks(folder: Path) -> bool:
    """Whether anything is in the folder's own tier 2."""
    return any(files for path, _, files in os.walk(folder / TIER2) if OURS not in Path(path).parts)
