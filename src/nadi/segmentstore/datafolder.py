"""A data folder as a whole: who owns it, what format it has, and keeping others from reading it.

`DIR/format` holds the format and the number of containers, under a checksum. Each container's folder has a copy,
written first, from which it is healed. Tier 2 shows which containers there were: nothing is recreated beside what it
has of them. Files are for the server's user alone, whatever its umask.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from crc32c import crc32c

from nadi.defaults import MOST_CONTAINERS
from nadi.errors import (
    DamagedStateError,
    DataFolderError,
    DataFolderLockedError,
    DataFolderVersionError,
    InvalidArgumentError,
    NadiError,
    StorageFullError,
)
from nadi.segmentstore.tier1 import disk

log = logging.getLogger(__name__)

FORMAT = 6
DEFAULT_CONTAINERS = 1
TIER2 = "tier2"
ELSEWHERE = "tier2.json"  # says where tier 2 is, if it isn't in the folder: `tier2.whereabouts`
_FILE = "format"
_CLUSTER = "cluster.json"  # as `nadi.engines.identity` calls it
_CONTAINER = re.compile(r"container-(\d+)")


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn system errors while a data folder is opened into ones that say what to do."""
    try:
        yield
    except NadiError:  # some are an OSError too
        raise
    except OSError as error:
        if disk.is_no_room(error):
            raise StorageFullError(
                f"no room for the data folder {folder} ({error}): free space on its disk, then start again"
            ) from error
        raise DataFolderError(
            f"the data folder {folder} can't be used ({error}): see that its disk works and that this user may "
            "write there, or choose another folder with --data"
        ) from error


class FolderLock:
    """The data folder is this process's while it is held.

    changes: if False, nothing is written there; if there is no lock file, no server ever used the folder.
    DataFolderError: it is part of a data folder; nothing is written there.
    """

    def __init__(self, folder: Path, *, changes: bool = True) -> None:
        check_is_whole(folder)
        self._folder = folder
        if changes:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not (folder / "lock").exists():
            self._file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            return
        flags = os.O_RDWR | os.O_CREAT if changes else os.O_RDONLY
        self._file = os.open(folder / "lock", flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 200).decode(errors="replace").strip()
            os.close(self._file)
            raise DataFolderLockedError(str(folder), owner or "unknown process") from None
        if changes:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()}".encode(), 0)

    def is_held(self) -> bool:
        """False once the file has been removed: then another server may hold one of that name."""
        try:
            there, own = os.stat(self._folder / "lock"), os.fstat(self._file)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


# --- the format --------------------------------------------------------------------------------------


class Format(msgspec.Struct, frozen=True):
    """What the file says."""

    format: int
    containers: int
    crc32c: str = ""

    def checksum(self) -> str:
        return f"{crc32c(f'nadi-format {self.format} {self.containers}'.encode()):08x}"


class FoundFormat(msgspec.Struct, frozen=True):
    """What was found of a folder's format. own: "" if the file is intact, else what is wrong with it.

    format: the one that counts, if any can. stale: folders whose copies must be written.
    """

    own: str
    format: Format | None
    stale: list[Path] = []
    disagree: bool = False


def read_format(folder: Path, containers: int | None) -> int:
    """Return the folder's number of containers; a new folder gets its files, durably; damaged ones are healed.

    Raises:
        DataFolderVersionError: another version wrote it, or nothing says what it is.
        DataFolderError: it was created with another number of containers, or one of them is missing.
        InvalidArgumentError: a new folder can't have so many.
    """
    if (folder / _CLUSTER).exists():
        raise DataFolderError(
            f"{folder} is the store of a cluster: serve it by `nadi up --workers N --data {folder}` or "
            f"`nadi up --store {folder.absolute().as_uri()}`"
        )
    for path in _no_folders(folder):
        raise DataFolderError(f"{path} is a file, and a container's folder has such a name: move it elsewhere")
    found = find_format(folder)
    if found.format is None:
        if found.own == "missing" and all(map(is_pristine, container_folders(folder).values())):
            stored = stored_containers(folder)
            if not stored and not (folder / ELSEWHERE).exists():
                count = DEFAULT_CONTAINERS if containers is None else containers
                if not 1 <= count <= MOST_CONTAINERS:
                    raise InvalidArgumentError(f"a folder has 1 to {MOST_CONTAINERS:,} containers, not {count:,}")
                return begin(folder, count)
            has = f"{TIER2} has data of {named(stored)}" if stored else f"{ELSEWHERE} says that there is data elsewhere"
            what = f"{_FILE} and the containers are gone, and {has}"
            raise DamagedStateError(str(folder), what, "what the log had of it is gone too")
        raise DataFolderVersionError(str(folder), found.own, FORMAT)
    counted = found.format
    if counted.format != FORMAT:
        raise DataFolderVersionError(str(folder), counted.format, FORMAT)
    if found.disagree:
        raise DataFolderError(
            f"the files {_FILE} of {folder} and of its containers don't say the same: one of them is of another folder"
        )
    if containers is not None and containers != counted.containers:
        raise DataFolderError(
            f"the data folder {folder} was made with {counted.containers} containers, which can't be changed: "
            "leave --containers out"
        )
    _check_containers(folder, counted)
    _heal(folder, found, counted)
    return counted.containers


def find_format(folder: Path) -> FoundFormat:
    """Look at the file and its copies; changes nothing."""
    own = _read(folder / _FILE)
    folders = container_folders(folder)
    copies = {path: _read(path / _FILE) for path in folders.values()}
    whole = {copy.containers for copy in copies.values() if isinstance(copy, Format)}
    if isinstance(own, Format):
        stale = [path for path, copy in copies.items() if not isinstance(copy, Format)]
        return FoundFormat("", own, stale, bool(whole - {own.containers}))
    if whole == {len(folders)}:
        stale = [path for path, copy in copies.items() if not isinstance(copy, Format)]
        newest = max(copy.format for copy in copies.values() if isinstance(copy, Format))
        return FoundFormat(own, Format(newest, len(folders)), stale)
    return FoundFormat(own, None)


def check_version(folder: Path) -> None:
    """Refuse the folder of another version, whose states, misread, would look damaged, and be "repaired".

    Raises:
        DataFolderVersionError: it is one.
    """
    found = find_format(folder).format
    if found is not None and found.format != FORMAT:
        raise DataFolderVersionError(str(folder), found.format, FORMAT)


def renew_format(folder: Path) -> None:
    """Write what is missing or damaged of the folder's `format` and its copies; blocking. Nothing is done if nothing
    tells how many containers there are."""
    found = find_format(folder)
    if found.format is not None:
        _heal(folder, found, found.format)


def write_format(folder: Path, count: int) -> None:
    """Recreate the folder's `format` and its copies if nothing is left of them; blocking."""
    for number in range(count):
        path = folder / f"container-{number}"
        path.mkdir(mode=0o700, exist_ok=True)
        _write(path, count)
    _write(folder, count)  # last: from here on the folder is in use


def is_data_folder(folder: Path) -> bool:
    """Whether anything in the folder shows that it is a data folder."""
    return (folder / _FILE).exists() or bool(known_containers(folder))


def container_folders(folder: Path) -> dict[int, Path]:
    """The existing container folders, by number."""
    found = ((match, path) for path in folder.glob("container-*") if (match := _CONTAINER.fullmatch(path.name)))
    return dict(sorted((int(match[1]), path) for match, path in found if path.is_dir()))


def stored_containers(folder: Path) -> set[int]:
    """The numbers of the containers of which tier 2, if it is in the folder, has any chunk or snapshot."""
    places = (folder / TIER2, folder / TIER2 / "snapshots")
    folders = [found for place in places for found in container_folders(place).items()]
    return {number for number, path in folders if any(files for _, _, files in os.walk(path))}


def known_containers(folder: Path) -> dict[int, Path]:
    """The folders of all containers that have left anything, by number; the folder itself may be gone."""
    numbers = sorted({*container_folders(folder), *stored_containers(folder)})
    return {number: folder / f"container-{number}" for number in numbers}


def named(numbers: Iterable[int]) -> str:
    return ", ".join(f"container-{number}" for number in sorted(numbers))


def misplaced(folder: Path, count: int) -> list[str]:
    """What is there that doesn't belong in a folder of `count` containers; for each, what it is and what to do."""
    told = [f"{path.name} is a file, and a container's folder has such a name" for path in _no_folders(folder)]
    for number, path in container_folders(folder).items():
        if number >= count:
            told.append(
                f"{path.name} is one too many: `{_FILE}` says {count} containers, the last container-{count - 1}"
            )
    return [f"{what}; move it elsewhere" for what in told]


def _no_folders(folder: Path) -> list[Path]:
    """What has the name of a container's folder, but isn't a folder."""
    found = sorted(path for path in folder.glob("container-*") if _CONTAINER.fullmatch(path.name))
    return [path for path in found if not path.is_dir()]


def check_is_whole(folder: Path) -> None:
    """Raise DataFolderError if it is a container or the tier 2 of a data folder, or lies deeper in one."""
    if (folder / _FILE).exists() and container_folders(folder):
        return
    path = folder.resolve()
    for above in reversed(path.parents):
        inside = path.relative_to(above).parts[0]
        is_container = _CONTAINER.fullmatch(inside) and any((above / name).exists() for name in (_FILE, "lock"))
        if is_container or (inside == TIER2 and stored_containers(above)):
            raise DataFolderError(f"{folder} is only a part of the data folder {above}: give that one")


def _read(path: Path) -> Format | str:
    """What the file says, or in a word why it can't be trusted."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Format)
    except FileNotFoundError:
        return "missing"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "unreadable"
    if found.crc32c != found.checksum():
        return "unreadable"
    return found


def is_pristine(container: Path) -> bool:
    """Whether no server has had that folder open, for `begin` was interrupted."""
    return {path.name for path in container.iterdir()} <= {_FILE, f"{_FILE}.tmp"}


def _check_containers(folder: Path, found: Format) -> None:
    for what in misplaced(folder, found.containers):
        raise DataFolderError(f"the data folder {folder} can't be used: {what}")
    there = set(container_folders(folder))
    if missing := sorted(set(range(found.containers)) - there):
        raise DamagedStateError(str(folder / f"container-{missing[0]}"), "the container's whole folder is missing")


def begin(folder: Path, count: int) -> int:
    """Make a folder in which nothing is, or what an interrupted `begin` left, one of `count` containers; blocking."""
    for path in container_folders(folder).values():  # left by an interrupted creation
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    write_format(folder, count)
    return count


def _heal(folder: Path, found: FoundFormat, counted: Format) -> None:
    try:
        for path in found.stale:
            _write(path, counted.containers)
        if found.own:
            _write(folder, counted.containers)
    except OSError as error:
        if not disk.is_no_room(error):
            raise
        log.warning("no room to recreate %s in %s (%s): that waits for a later start", _FILE, folder, error)
        return
    if found.own:
        log.warning("%s was %s: it was recreated from its copies", folder / _FILE, found.own)


def _write(folder: Path, count: int) -> None:
    disk.replace_file(folder / _FILE, _encoded(count))


def _encoded(count: int) -> bytes:
    said = Format(FORMAT, count)
    return msgspec.json.encode(msgspec.structs.replace(said, crc32c=said.checksum())) + b"\n"


def make_private(folder: Path) -> None:
    """Let only the server's user into the folder."""
    try:
        if stat.S_IMODE(folder.stat().st_mode) != 0o700:
            folder.chmod(0o700)
    except PermissionError as error:  # a folder of somebody else, who lets this user in
        log.warning("%s stays open to others: %s", folder, error)
