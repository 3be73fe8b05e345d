"""Marks in a data folder that was migrated, or that a migration is filling: no server opens it.

    DIR/moved       its data is elsewhere now, where servers write it; what is here stays as it was
    DIR/incoming    a migration that fills the folder hasn't ended

Each is one small file, a line with its checksum, written durably and at once. One that is damaged is never acted on: it
keeps servers and migrations from the folder. `nadi.migration` writes and removes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from nadi.engines.lines import line_of, value_of
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
    return _read(
        folder / _MOVED,
        Moved,
        "it says that the folder's data was moved to a store, where servers may have written since. Restore it from a "
        "copy; or, if you know that no server has opened that store, remove both",
    )


def incoming(folder: Path) -> Incoming | None:
    return _read(
        folder / _INCOMING,
        Incoming,
        f"it says which migration fills the folder. Restore it from a copy; or remove {folder}, of which the source "
        "has everything, let that be served again with `nadi migrate --undo --from URL` if it was left, and start the "
        "migration again",
    )


def note_moved(folder: Path, moved: Moved) -> None:
    """From here on no server opens the folder, whatever crashes; blocking."""
    disk.replace_file(folder / _MOVED, encode(moved))


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
    disk.replace_file(folder / _INCOMING, encode(incoming))


def clear_moved(folder: Path) -> None:
    _clear(folder / _MOVED)


def clear_incoming(folder: Path) -> None:
    _clear(folder / _INCOMING)


def _clear(file: Path) -> None:
    file.unlink(missing_ok=True)
    disk.sync_folder(file.parent)


def encode(mark: Moved | Incoming) -> bytes:
    return line_of(msgspec.json.encode(mark))


def decode(raw: bytes, kind: type[T]) -> T:
    """What `encode` was given; ValueError if it is damaged."""
    value = value_of(raw)
    if value is None:
        raise ValueError("its checksum doesn't fit, or it is of an earlier version")
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _read(file: Path, kind: type[T], advice: str) -> T | None:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return decode(raw, kind)
    except ValueError as error:
        raise DataFolderError(f"{file} is damaged ({error}): {advice}") from error
