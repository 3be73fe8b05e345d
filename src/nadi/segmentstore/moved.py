"""Marks in a data folder that was migrated, or that a migration is filling: no server opens it.

    DIR/moved       its data is elsewhere now, where servers write it; what is here stays as it was
    DIR/incoming    a migration that fills the folder hasn't ended

Each is one small file, written durably and at once. `nadi.migration` writes and removes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from nadi.errors import DataFolderError
from nadi.segmentstore.tier1 import disk

T = TypeVar("T")
_MOVED, _INCOMING = "moved", "incoming"


class Moved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """to: URL of a cluster's store. migration: the id of what moved the data there. at_ms: since 1970."""

    to: str
    migration: str
    at_ms: int


class Incoming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """source: what the data comes from, by an id of its own. url: where that is. containers: how many the folder is to
    have."""

    source: str
    url: str
    migration: str
    containers: int


def check(folder: Path) -> None:
    """Raise DataFolderError if no server may open the folder."""
    away = moved(folder)
    if away is not None:
        raise DataFolderError(
            f"the data of {folder} was moved to {away.to}: start its servers with `nadi up --store {away.to}`. "
            f"If it is to be served from here again, see `nadi migrate --undo --data {folder}`"
        )
    coming = incoming(folder)
    if coming is not None:
        raise DataFolderError(
            f"a migration from {coming.url} to {folder} hasn't ended: start it again, with "
            f"`nadi migrate --from {coming.url} --to-data {folder}`, or remove the folder"
        )


def moved(folder: Path) -> Moved | None:
    return _read(folder / _MOVED, Moved)


def incoming(folder: Path) -> Incoming | None:
    return _read(folder / _INCOMING, Incoming)


def note_moved(folder: Path, moved: Moved) -> None:
    """From here on no server opens the folder, whatever crashes; blocking."""
    disk.replace_file(folder / _MOVED, msgspec.json.encode(moved))


def may_be_moved(folder: Path) -> bool:
    """Whether the mark is there, or might be: after `note_moved` has failed."""
    return (folder / _MOVED).exists()


def settled(folder: Path) -> Moved | None:
    """`moved`, and whatever crashes now, it stays: who wrote it may have been killed before that. Blocking."""
    found = moved(folder)
    if found is not None:
        disk.sync_folder(folder)
    return found


def note_incoming(folder: Path, incoming: Incoming) -> None:
    """Likewise."""
    disk.replace_file(folder / _INCOMING, msgspec.json.encode(incoming))


def clear_moved(folder: Path) -> None:
    _clear(folder / _MOVED)


def clear_incoming(folder: Path) -> None:
    _clear(folder / _INCOMING)


def _clear(file: Path) -> None:
    file.unlink(missing_ok=True)
    disk.sync_folder(file.parent)


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataFolderError(
            f"{file} can't be read ({error}): it says where the folder's data is, so restore it from a copy, or remove "
            "it if you know that no other server has this data"
        ) from error
