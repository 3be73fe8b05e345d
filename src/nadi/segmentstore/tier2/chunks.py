"""Chunk objects in an object store: put once, read by range, deleted. `tests/conformance/test_chunk_store.py` says what
every store does.

What keeps them is a `ChunkPlace`: a folder, an object store, or HDFS. Elsewhere than in a folder here an object is put
only if its name is free. A store that a data folder has claimed (`claim`) is written only while it is that folder's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from crc32c import crc32c
from obstore.store import LocalStore

from nadi.errors import NotFoundError, StorageFullError, UnavailableError
from nadi.limits import KIB
from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.files import open_files
from nadi.object_log.hdfs.location import SCHEME as HDFS
from nadi.object_log.opening import open_of_chunks
from nadi.object_log.outcomes import ContradictionError
from nadi.object_log.urls import folder_of, remote_store
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.reserve import FULL_BELOW_BYTES, free_bytes
from nadi.segmentstore.tier2 import object_store
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, ChunkDescription, damaged_blocks, is_right, seed_of
from nadi.segmentstore.tier2.claim import StoreClaim
from nadi.segmentstore.tier2.object_store import ChunkPlace, HdfsPlace, ObjectPlace, failed, unwritten
from nadi.segmentstore.tier2.object_store import DiskReadError as DiskReadError
from nadi.segmentstore.tier2.object_store import ListedObject as ListedObject
from nadi.segmentstore.tier2.records import ContainerRecords
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)
_PLENTY_BYTES = 1 << 62
MARK, MARK_BYTES = "mark", 64
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
_RETRIES, _TIMEOUT_S = 3, 30  # then the caller gets the error
_PUT_TIMEOUT_S = 120  # a chunk of 16 MiB has 140 KiB/s
_PIECE_BYTES = 256 * KIB


async def put_new(place: ChunkPlace, name: str, parts: Sequence[Buffer]) -> None:
    """Store `parts`, end to end, if nothing has the name; they are durable when this returns. StorageFullError,
    UnavailableError: it isn't known whether they are stored, or something else has the name."""
    if await place.create(name, parts):
        return
    try:
        there = await place.read(name, 0, None)
    except FileNotFoundError:
        raise ContradictionError(
            f"{name} could not be stored in tier 2, though nothing is there: tried again"
        ) from None
    if there != b"".join(parts):
        raise UnavailableError(
            f"tier 2 has another {name}: another server writes there, and each needs a prefix of its own"
        )


def read_checked(path: Path, name: str, position: int, length: int, checksums: bytes) -> tuple[memoryview, list[int]]:
    """`ChunkStore.read_checked` of a file; blocking. Raises: OSError."""
    data = np.empty(length, np.uint8).data  # doesn't clear the memory
    damaged: list[int] = []
    read = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place would make it wait
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "it is no file")
        for begin in range(0, length, BLOCK_BYTES):
            number, end = (position + begin) // BLOCK_BYTES, min(begin + BLOCK_BYTES, length)
            checksum = seed_of(name, number)
            while read < end:
                piece = data[read : min(read + _PIECE_BYTES, end)]
                count = os.preadv(file, [piece], position + read)
                if not count:
                    break
                checksum = crc32c(piece[:count], checksum)
                read += count
            if read < end or not is_right(checksums, number, checksum):
                damaged.append(number)
    finally:
        os.close(file)
    return data[:read], damaged


class ChunkStore:
    """Chunks by name. local: the folder if the place is one. runtime: its threads wait for the disk, and check what was
    read. claim: that of the data folder whose chunks these are, if they are kept elsewhere. Errors have no cause with
    them: what a store says may hold credentials."""

    def __init__(
        self,
        place: ChunkPlace,
        local: Path | None,
        url: str,
        runtime: Runtime = REAL,
        config: dict[str, str] | None = None,
        claim: StoreClaim | None = None,
    ) -> None:
        self.runtime, self.claim = runtime, claim
        self.url = url  # without credentials: those that it takes come from the environment
        self._mark = ""
        self._is_alone = False  # in a data folder
        self._place, self._local, self._config = place, local, config or {}
        self._opening = asyncio.Lock()
        self._opened: tuple[LogEngine, ContainerRecords] | None = None

    @classmethod
    def in_folder(cls, folder: Path, runtime: Runtime = REAL) -> ChunkStore:
        """That of a data folder, in the folder itself."""
        store = cls.at(folder.absolute().as_uri(), runtime, {})
        store._is_alone = True
        return store

    @classmethod
    def from_url(cls, url: str, **config: str) -> ChunkStore:
        """The store at `file:///folder`, `hdfs://host:port/folder`, or one of `remote_store`, which says what `config`
        is and what is wrong.

        >>> ChunkStore.from_url("memory:///").room_bytes() > 0
        True
        """
        return cls.at(url, REAL, config)

    @classmethod
    def at(cls, url: str, runtime: Runtime, config: dict[str, str], claim: StoreClaim | None = None) -> ChunkStore:
        """`from_url`. claim: that of the data folder that claims it."""
        place: ChunkPlace
        folder = folder_of(url, **config)
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            place = ObjectPlace(LocalStore(str(folder), mkdir=True), folder, runtime)
        elif urlsplit(url).scheme == HDFS:
            place = HdfsPlace(url, runtime, config)
        else:
            store, scheme, secrets = remote_store(url, retries=_RETRIES, timeout_s=_TIMEOUT_S, **config)
            patient = store
            if scheme != "memory":
                patient = remote_store(url, retries=_RETRIES, timeout_s=_PUT_TIMEOUT_S, **config).store
            place = ObjectPlace(store, secrets=secrets, patient=patient)
        return cls(place, folder, url, runtime, config, claim)

    @property
    def is_here(self) -> bool:
        return self._local is not None

    async def check_ours(self) -> None:
        """Before deleting what a state doesn't need: raise StoreError if a copy of the data folder has opened the store
        since, which may need it, UnavailableError if the store can't say."""
        if self.claim is not None:
            self._check_mounted()
            await self.claim.check()

    async def _before_write(self) -> None:
        if self.claim is not None:
            await self.claim.confirm()
            self._check_mounted()

    def _check_mounted(self) -> None:
        """Raise UnavailableError if a folder elsewhere isn't there now: nothing in it is missing for that."""
        if self.claim is not None and self._local is not None and not self.claim.is_at(self._local):
            raise UnavailableError(f"tier 2 isn't in {self._local} now: see whether it is mounted")

    async def records(self) -> ContainerRecords:
        """The records of the store's containers. Raises: as `StoreClaim.confirm`."""
        if self.claim is not None:
            await self.claim.confirm()
            self._check_mounted()
            return await self.claim.records()
        async with self._opening:
            if self._opened is None:
                engine: LogEngine
                registry: Registry
                if self._local is not None:
                    engine, registry = await open_files(self._local, self.runtime, is_late=True)
                else:
                    engine, registry = await open_of_chunks(self.url, self.runtime, **self._config)
                self._opened = engine, ContainerRecords(registry, self.runtime, is_alone=self._is_alone)
            return self._opened[1]

    async def close(self) -> None:
        """Close what reads and writes records; it is opened again when it is needed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened[0].close()

    async def mark(self) -> str:
        """What this store alone says of itself, so that no other is taken for it; made when it is first asked for."""
        if not self._mark:
            await self._before_write()
            await self._place.create(MARK, [self.runtime.unique().encode()])
            self._mark = bytes(await self.read(MARK, 0, MARK_BYTES)).decode()
        return self._mark

    def room_bytes(self) -> int:
        """How much may still be stored, as far as known; the last of a disk is left to others."""
        try:
            return _PLENTY_BYTES if self._local is None else free_bytes(self._local) - FULL_BELOW_BYTES
        except OSError:  # `put` says what is wrong
            return _PLENTY_BYTES

    def check_room(self, size_bytes: int) -> None:
        """Raise StorageFullError if there is certainly no room for a chunk of that size; call before writing it."""
        if self.room_bytes() < size_bytes:
            raise StorageFullError(f"tier 2 has no room for {size_bytes:,} bytes: free space in {self._local}")

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store a chunk that is `parts` end to end, whose name nobody has used; it is durable when this returns.
        StorageFullError, UnavailableError: it may be there all the same, or come to be there."""
        await self._before_write()
        if self._local is None:
            await put_new(self._place, name, parts)
        else:
            await self._place.put_over(name, parts)

    async def replace(self, name: str, parts: Sequence[Buffer]) -> None:
        """`put`, in place of what has the name now. Raises: as `put`, and as `check_ours`, for that is lost then."""
        await self.check_ours()
        await self._before_write()
        await self._place.put_over(name, parts)

    async def settle(self, name: str) -> None:
        """Make an object durable that a process has stored which may have been killed before that."""
        if self._local is not None:
            try:
                await self.runtime.in_thread(object_store.sync, self._local, self._local / name)
            except OSError as error:
                raise unwritten(error) from error

    def _missing(self, name: str) -> NotFoundError:
        """What isn't found is gone, unless nothing is found there now."""
        self._check_mounted()
        return NotFoundError(f"chunk {name} is not in tier 2")

    async def adopt(self, name: str, file: Path, complete: Callable[[], None]) -> bool:
        """Store a file as a chunk, durably, by giving it a second name; return False if that isn't possible here.
        complete: writes what is still missing at its end, in a thread; afterwards nobody writes to it any more. Raises:
        NotFoundError if the file is gone; as `put`."""
        if self._local is None:
            return False
        await self._before_write()
        try:
            await self.runtime.in_thread(object_store.adopt, self._local, file, name, complete)
        except FileNotFoundError as error:
            raise NotFoundError(f"{file} is gone") from error
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise unwritten(error) from error
        return True

    async def read(self, name: str, position: int, length: int) -> memoryview:
        """Return bytes of a chunk as stored, neither copied nor checked; fewer if it is shorter. NotFoundError if it is
        gone; DiskReadError if its disk can't read it."""
        self._check_is_file(name)
        try:
            return await self._place.read(name, position, length)
        except FileNotFoundError:
            raise self._missing(name) from None

    async def read_checked(
        self, name: str, position: int, length: int, checksums: bytes
    ) -> tuple[memoryview, list[int]]:
        """`read` from the start of a block; also return the numbers of the blocks that are not what was stored.
        checksums: of the whole chunk."""
        if self._local is not None:
            arguments = self._local / name, name, position, length, checksums
            try:
                return await self.runtime.in_thread(read_checked, *arguments)
            except FileNotFoundError:
                raise self._missing(name) from None
            except OSError as error:
                if error.errno in (errno.EIO, errno.ELOOP):
                    raise DiskReadError(f"the disk can't read chunk {name}: {error.strerror}") from error
                raise failed(f"read {name}", error) from None
        data = await self.read(name, position, length)
        check = partial(damaged_blocks, name, checksums, position // BLOCK_BYTES, data, length)
        if length <= BLOCK_BYTES:
            return data, check()
        return data, await self.runtime.in_thread(check)  # it takes long enough to hold up others

    async def describe(self, name: str, length: int) -> ChunkDescription | None:
        """`description`; None also if it can't be read."""
        try:
            return await self.description(name, length)
        except (NotFoundError, UnavailableError) as error:  # whoever reads the data reports it
            log.debug("chunk %s has no description: %s", name, error)
            return None

    async def description(self, name: str, length: int) -> ChunkDescription | None:
        """Return the description after `length` bytes of data in a chunk; None if it is damaged or missing.
        NotFoundError if the chunk is gone; UnavailableError if tier 2 can't answer."""
        self._check_is_file(name)
        try:
            return ChunkDescription.decode(name, await self._place.read(name, length, None))
        except FileNotFoundError:
            raise self._missing(name) from None
        except DiskReadError:
            return None

    def _check_is_file(self, name: str) -> None:
        """A pipe in its place would make whoever opens it wait forever."""
        if self._local is None:
            return
        with contextlib.suppress(OSError):  # reading it will report that
            if stat.S_ISREG(os.stat(self._local / name).st_mode):
                return
            raise DiskReadError(f"the disk can't read chunk {name}: it is no file")

    async def listed(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects in a folder, and below it, by name."""
        return await self.runtime.in_thread(self.sizes, folder)

    def has(self, name: str) -> bool:
        """Whether an object of that name is there; blocking."""
        return self._place.has(name)

    def sizes(self, prefix: str) -> dict[str, int]:
        """`listed`; blocking."""
        return self._place.sizes(prefix)

    def pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        """All objects in a folder, and below it, some at a time, in no order; a folder "" is the whole store."""
        return self._place.pages(folder)

    async def rename(self, name: str, new: str) -> None:
        """Rename an object; the new name is durable when this returns."""
        await self._before_write()
        await self._place.rename(name, new)

    async def delete(self, name: str) -> None:
        await self._before_write()
        await self._place.delete(name)
