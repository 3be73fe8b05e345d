"""Manages a data folder as a whole: its lock, its identity, and its permissions.

`DIR/store.json` identifies the folder's store and the number of containers; the store's `cluster.json` says the same.
If the store is in the folder, each file is restored from the other. Nothing is recreated while container data exists.
Files are readable by the server's user alone, whatever its umask.
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
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nadi import errors
from nadi.defaults import MOST_CONTAINERS
from nadi.naming import plural
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.failures import public
from nadi.object_log.files import OURS
from nadi.object_log.identity import ENCRYPTED_FORMAT as STORE_FORMAT_ENCRYPTED
from nadi.object_log.identity import FOLDER_LOG, Cluster, LogId, decoded, encoded
from nadi.object_log.identity import FORMAT as STORE_FORMAT
from nadi.object_log.identity import NAME as IDENTITY
from nadi.object_log.urls import folder_of
from nadi.segmentstore.tier1 import disk

log = logging.getLogger(__name__)

FORMAT, ENCRYPTED_FORMAT = 6, 7  # of a folder whose store is encrypted (`nadi.encryption`)
_FORMATS = (FORMAT, ENCRYPTED_FORMAT)
DEFAULT_CONTAINERS = 1
TIER2 = "tier2"
STORE = "store.json"
INCOMING = "incoming"  # exists while a migration fills the folder, even if its store is elsewhere
LOG = LogId(FOLDER_LOG, "around")  # the log of a store in a data folder: in the folder around it
LOG_ELSEWHERE = LogId(FOLDER_LOG, "elsewhere")
_CONTAINER = re.compile(r"container-(\d+)")
_OURS = frozenset({"lock", "scrub", "token-key", STORE, TIER2, INCOMING, IDENTITY})  # any of them, or a container


@contextlib.contextmanager
def mapped_errors(folder: Path) -> Iterator[None]:
    """Turn system errors while opening a data folder into errors that say what to do."""
    try:
        yield
    except errors.NadiError:  # some are OSErrors too
        raise
    except OSError as error:
        if os.path.exists(folder) and not os.path.isdir(folder):  # unlike Path's, these raise nothing
            raise errors.InvalidArgumentError(
                f"{folder} is a file, not a folder: choose another data folder"
            ) from error
        if disk.is_disk_full(error):
            raise errors.StorageFullError(
                f"no space for the data folder {folder} ({error}): free space on its disk, then start again"
            ) from error
        raise errors.DataFolderError(
            f"the data folder {folder} can't be used ({error}): check that its disk works and that this user may "
            "write to it, or choose another folder"
        ) from error


class FolderLock:
    """The exclusive lock of a data folder. changes: if False, nothing is written; without a lock file, no server ever
    used the folder. Raises DataFolderError if the path is a part of a data folder."""

    def __init__(self, folder: Path, *, changes: bool = True) -> None:
        check_is_whole(folder)
        self._folder = folder
        if changes:
            _check_is_ours(folder)
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
            raise errors.DataFolderLockedError(str(folder), owner or "unknown process") from None
        if changes:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()}".encode(), 0)

    def is_held(self) -> bool:
        """Return False once the lock file has been removed: another server may then hold a new one."""
        try:
            current, own = os.stat(self._folder / "lock"), os.fstat(self._file)
        except FileNotFoundError:
            return False
        return (current.st_dev, current.st_ino) == (own.st_dev, own.st_ino)

    def release(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class Tier2(msgspec.Struct, frozen=True):
    """Tier 2 as configured for a server. url: as in `object_log.urls`. options: of that store, such as `endpoint`;
    secrets belong in the environment."""

    url: str
    options: dict[str, str] = {}


class StoreFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of `store.json`. cluster: the store's id. url: "" for a store in the folder. options: of an external
    store, without secrets. epochs: in which the folder last claimed each container there. next: the nonce of claims in
    progress. moved_to: the URL to which a migration moved the data, or "". moved_by: the migration's id."""

    format: int
    cluster: str
    containers: int
    url: str = ""
    options: dict[str, str] = {}
    epochs: tuple[int, ...] = ()
    next: str = ""
    moved_to: str = ""
    moved_by: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the folder has claimed a store outside it."""
        return bool(self.url) and any(self.epochs)

    @property
    def is_encrypted(self) -> bool:
        return self.format == ENCRYPTED_FORMAT

    def write(self, folder: Path) -> None:
        """Write the file durably; blocking."""
        disk.replace_file(folder / STORE, line_of(msgspec.json.encode(self)))


class _FolderVersion(msgspec.Struct):
    format: int


class StoreLocation(NamedTuple):
    """The store of a folder. store: None if unknown. wrong: the problem with `store.json`. heals: the file that a start
    rewrites."""

    store: StoreFile | None
    wrong: str = ""
    heals: str = ""
    disagree: bool = False


def find_store(folder: Path) -> StoreLocation:
    """Find the folder's store from `store.json` and the store's identity; changes nothing."""
    own = _read_own(folder)
    stored: Cluster | str
    try:
        stored = decoded((folder / TIER2 / IDENTITY).read_bytes())
    except FileNotFoundError:
        stored = "missing"
    except (OSError, errors.StoreError):
        stored = "damaged"
    if isinstance(own, StoreFile):
        if own.url or own.format not in _FORMATS:
            return StoreLocation(own)
        if isinstance(stored, Cluster):
            return StoreLocation(own, disagree=replace(stored, created_ms=0) != _identity(own))
        return StoreLocation(own, heals=f"`{TIER2}/{IDENTITY}` is {stored}: it is rewritten")
    if isinstance(stored, Cluster) and stored.log == LOG:
        heals = f"`{STORE}` is {own}: it is rewritten from `{TIER2}/{IDENTITY}`"
        form = ENCRYPTED_FORMAT if stored.is_encrypted else FORMAT
        return StoreLocation(StoreFile(form, stored.cluster, stored.containers), own, heals)
    return StoreLocation(None, own)


def _read_own(folder: Path) -> StoreFile | str:
    try:
        value = value_of((folder / STORE).read_bytes())
        if value is None:
            return "damaged"
        version = msgspec.json.decode(value, type=_FolderVersion).format
        return msgspec.json.decode(value, type=StoreFile) if version in _FORMATS else StoreFile(version, "", 0)
    except FileNotFoundError:
        return "missing"
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return "damaged"


def open_folder(
    folder: Path, containers: int | None, configured: Tier2 | None, unique: str, *, encrypted: bool = False
) -> StoreFile:
    """Return the store that a server with this configuration uses. A new folder gets its files, durably; damaged files
    are healed. Blocking. unique: the store's id if the folder is new. encrypted: a new folder's store is encrypted, and
    an existing one must be. DataFolderVersionError: another version wrote it.
    DataFolderError: the store is unknown, is another one, lacks a container, or was moved. InvalidArgumentError: it was
    created with another number of containers, the number is out of range, or the URL isn't a store's."""
    if (folder / TIER2).is_symlink():  # two folders, each with its own lock, could share it
        raise errors.DataFolderError(
            f"{folder / TIER2} is a link, and the folder's lock doesn't protect its target: create a new folder with "
            f"--tier2 {(folder / TIER2).resolve().as_uri()}, or mount the other disk there"
        )
    check_version(folder)
    location = find_store(folder)
    if location.store is None:
        _check_is_new(folder, location.wrong)
        store = _chosen(
            folder,
            StoreFile(
                ENCRYPTED_FORMAT if encrypted else FORMAT,
                unique,
                DEFAULT_CONTAINERS if containers is None else containers,
            ),
            configured,
        )
        begin(folder, store)
        return store
    check_not_moved(folder, location.store)
    if location.disagree:
        raise errors.DataFolderError(
            f"{STORE} and {TIER2}/{IDENTITY} in {folder} contradict each other: remove the wrong one"
        )
    if encrypted and not location.store.is_encrypted:
        raise errors.InvalidArgumentError(
            f"the data folder {folder} was created without encryption: leave out --encryption-key, or move its data "
            f"to a new folder with `nadi migrate {folder} NEW --encrypt`"
        )
    if containers is not None and containers != location.store.containers:
        raise errors.InvalidArgumentError(
            f"the data folder {folder} was created with {plural(location.store.containers, 'container')}, "
            f"not {containers:,}, and their number can't be changed: leave out --containers"
        )
    for problem in unexpected_containers(folder, location.store.containers):
        raise errors.DataFolderError(f"the data folder {folder} can't be used: {problem}")
    if missing := sorted(set(range(location.store.containers)) - set(container_folders(folder))):
        raise errors.DamagedStateError(str(folder / f"container-{missing[0]}"), "the container's folder is missing")
    store = _chosen(folder, location.store, configured)
    try:
        if store.url != location.store.url:
            store.write(folder)
        if not store.url:
            heal(folder)
    except OSError as error:
        if not disk.is_disk_full(error):
            raise
        log.warning("no space in %s (%s): a later start rewrites the damaged file", folder, error)
    return store


def check_version(folder: Path) -> None:
    """Refuse a folder of another version: its states, misread, would look damaged and be "repaired".
    DataFolderVersionError: another version wrote it. InvalidArgumentError: it is the store of a cluster."""
    if (folder / IDENTITY).exists():
        raise errors.InvalidArgumentError(
            f"{folder} is the store of a cluster: serve it with `nadi up --workers N --data {folder}`; other commands "
            f"take its URL, {folder.absolute().as_uri()}"
        )
    store = find_store(folder).store
    if store is not None and store.format not in _FORMATS:
        raise errors.DataFolderVersionError(str(folder), store.format, FORMAT)


def check_not_moved(folder: Path, store: StoreFile) -> None:
    """Raise DataFolderError if the folder's data was moved elsewhere."""
    if store.moved_to:
        raise errors.DataFolderError(
            f"the data of {folder} was moved to {store.moved_to}: start its server there. To serve it from here again, "
            f"see `nadi migrate --undo {folder}`"
        )


def _check_is_new(folder: Path, wrong: str) -> None:
    if (folder / INCOMING).exists():
        raise errors.DataFolderError(f"a migration to {folder} hasn't ended: start it again, or remove the folder")
    if wrong == "missing" and all(map(is_pristine, container_folders(folder).values())):
        stored = stored_containers(folder)
        if not stored:
            return
        problem = f"{STORE} and the containers are missing, but {TIER2} has data of {container_names(stored)}"
        raise errors.DamagedStateError(str(folder), problem, "data only in the log is lost")
    raise errors.DataFolderError(
        f"`{STORE}` of the data folder {folder} is {wrong}, and there is no `{TIER2}/{IDENTITY}` to restore it from: "
        f"restore one of them; or, if its chunks are in an external store, run `nadi tier2 claim {folder} --tier2 URL`"
    )


def _chosen(folder: Path, store: StoreFile, configured: Tier2 | None) -> StoreFile:
    """Return the store with the configured settings; raise InvalidArgumentError if they contradict the folder."""
    if store.is_elsewhere:
        if configured is None or normalized_url(configured.url) != store.url:
            raise errors.InvalidArgumentError(
                f"the data folder {folder} keeps its chunks in {store.url}"
                f"{f', not in {configured.url}' if configured else ''}: start it with --tier2 {store.url}, "
                "or move it to another folder with `nadi migrate`"
            )
    elif configured is None:
        if store.url:
            raise errors.InvalidArgumentError(
                f"the data folder {folder} was created for chunks in {store.url}: start it with --tier2 {store.url}, "
                "or remove the folder, which is still empty"
            )
        return store
    url = normalized_url(configured.url)
    check_outside(folder, url)
    if not store.is_elsewhere and has_chunks(folder):
        raise errors.InvalidArgumentError(
            f"the data folder {folder} has its chunks in {folder / TIER2}: start it without --tier2, or move it to a "
            f"new folder with `nadi migrate {folder} NEW --tier2 {url}`"
        )
    return replace(store, url=url, options=public(configured.options))


def begin(folder: Path, store: StoreFile) -> None:
    """Create the store's files in an empty folder, or after an interrupted `begin`; blocking."""
    if not 1 <= store.containers <= MOST_CONTAINERS:
        raise errors.InvalidArgumentError(f"a folder has 1 to {MOST_CONTAINERS:,} containers, not {store.containers:,}")
    make_containers(folder, store.containers)
    if not store.url:
        _write_identity(folder, store)
    store.write(folder)  # last: from here on the folder is in use


def make_containers(folder: Path, count: int) -> None:
    """Create the containers' folders, replacing empty ones left by an interrupted call; blocking."""
    for path in container_folders(folder).values():
        path.rmdir()
    for number in range(count):
        (folder / f"container-{number}").mkdir(mode=0o700)


def heal(folder: Path) -> None:
    """Rewrite a missing or damaged identity file; blocking."""
    location = find_store(folder)
    if location.heals and location.store is not None:
        if location.wrong:
            location.store.write(folder)
        else:
            _write_identity(folder, location.store)
        log.warning("%s: %s", folder, location.heals)


def _write_identity(folder: Path, store: StoreFile) -> None:
    (folder / TIER2).mkdir(mode=0o700, exist_ok=True)
    disk.replace_file(folder / TIER2 / IDENTITY, encoded(_identity(store)))


def _identity(store: StoreFile) -> Cluster:
    form = STORE_FORMAT_ENCRYPTED if store.is_encrypted else STORE_FORMAT
    return Cluster(store.cluster, store.containers, form, 0, LOG)


def normalized_url(url: str) -> str:
    """Return the URL in the form that is stored and compared.

    >>> normalized_url("s3://bucket/prefix/")
    's3://bucket/prefix'
    """
    folder = folder_of(url)
    return url.rstrip("/") if folder is None else folder.resolve().as_uri()


def check_outside(folder: Path, url: str) -> None:
    """Raise InvalidArgumentError if the URL is inside the data folder, or contains it."""
    other = folder_of(url)
    own = folder.resolve()
    if other is not None and (other.is_relative_to(own) or own.is_relative_to(other)):
        raise errors.InvalidArgumentError(
            f"{url} and the data folder {folder} overlap: omit --tier2 to keep chunks in the folder, or choose "
            "a separate folder"
        )


def has_chunks(folder: Path) -> bool:
    """Return whether the folder's own tier 2 has any file but its identity."""
    walk = ((Path(path), files) for path, _, files in os.walk(folder / TIER2))
    return any(set(files) - {IDENTITY} for path, files in walk if OURS not in path.parts)


def is_data_folder(folder: Path) -> bool:
    return find_store(folder).store is not None or bool(known_containers(folder))


def container_folders(folder: Path) -> dict[int, Path]:
    matches = ((match, path) for path in folder.glob("container-*") if (match := _CONTAINER.fullmatch(path.name)))
    return dict(sorted((int(match[1]), path) for match, path in matches if path.is_dir()))


def stored_containers(folder: Path) -> set[int]:
    """Return the numbers of the containers with any chunk or snapshot in the folder's own tier 2."""
    places = (folder / TIER2, folder / TIER2 / "snapshots")
    folders = [item for place in places for item in container_folders(place).items()]
    return {number for number, path in folders if any(files for _, _, files in os.walk(path))}


def known_containers(folder: Path) -> dict[int, Path]:
    """Return the folders of all containers that left any data, by number; a folder itself may be missing."""
    numbers = sorted({*container_folders(folder), *stored_containers(folder)})
    return {number: folder / f"container-{number}" for number in numbers}


def container_names(numbers: Iterable[int]) -> str:
    return ", ".join(f"container-{number}" for number in sorted(numbers))


def unexpected_containers(folder: Path, count: int) -> list[str]:
    """Describe each folder or file named as a container beyond `count`, and what to do about it."""
    matches = [match for path in folder.glob("container-*") if (match := _CONTAINER.fullmatch(path.name))]
    others = sorted((int(match[1]), match[0]) for match in matches if int(match[1]) >= count)
    said = plural(count, "container")
    return [f"{name} is unexpected: `{STORE}` says {said}; move it elsewhere" for _, name in others]


def check_is_whole(folder: Path) -> None:
    """Raise DataFolderError if the path is a container or the tier 2 of a data folder, or inside one."""
    if (folder / STORE).exists() and container_folders(folder):
        return
    path = folder.resolve()
    for above in reversed(path.parents):
        inside = path.relative_to(above).parts[0]
        is_container = _CONTAINER.fullmatch(inside) and any((above / name).exists() for name in (STORE, "lock"))
        if is_container or (inside == TIER2 and stored_containers(above)):
            raise errors.DataFolderError(f"{folder} is only a part of the data folder {above}: pass that folder")


def _check_is_ours(folder: Path) -> None:
    """Raise DataFolderError if the folder isn't a data folder, and has other files."""
    names = {path.name for path in folder.iterdir()} - {"lost+found"} if folder.is_dir() else set()
    if names and not any(name in _OURS or _CONTAINER.fullmatch(name) for name in names):
        raise errors.DataFolderError(
            f"{folder} is not a data folder and has other files, such as {min(names)}: pass a new or empty folder"
        )


def is_pristine(container: Path) -> bool:
    """Return whether no server has ever opened the container's folder, as `begin` was interrupted."""
    return not any(container.iterdir())


def make_private(folder: Path) -> None:
    """Revoke all access of other users to the folder."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            folder.chmod(mode & ~0o077)
    except PermissionError as error:  # the folder belongs to another user, which gives this user access
        log.warning("%s stays readable by others: %s; change its owner or mode", folder, error)
