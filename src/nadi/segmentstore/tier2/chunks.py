"""Stores chunk objects in an object store: put once, read by range, deleted. Tests in
`tests/conformance/test_chunk_store.py` define every store's behaviour.

They are stored in a `ChunkPlace`: a folder, an object store, or HDFS. Outside a local folder an object is put only if
its name is free. A store that a data folder has claimed (`claim`) is written only while that claim holds.
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

from crc32c import crc32c
from obstore.store import LocalStore

from nadi.encryption.key_ring import KeyRing
from nadi.encryption.master_keys import master_key
from nadi.encryption.sealing import PLAIN, DataKeys, SealBrokenError, Sealing, block_context
from nadi.errors import ConflictError, EncryptionKeyError, NotFoundError, StorageFullError, UnavailableError
from nadi.limits import KIB
from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.files import open_files
from nadi.object_log.hdfs.location import SCHEME as HDFS
from nadi.object_log.opening import open_chunk_engines
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
_PUT_TIMEOUT_S = 120  # allows a chunk of 16 MiB at 140 KiB/s
_PIECE_BYTES = 256 * KIB
_KEYS_INTERVAL_S = 5.0  # between two looks for a new data key


async def put_new(place: ChunkPlace, name: str, parts: Sequence[Buffer]) -> None:
    """Store the concatenated `parts` if the name is free, durably. StorageFullError, UnavailableError: it is unknown
    whether they are stored, or the name is taken."""
    if await place.create(name, parts):
        return
    try:
        existing = await place.read(name, 0, None)
    except FileNotFoundError:
        raise ContradictionError(
            f"{name} could not be stored in tier 2, though the name is free: it is retried"
        ) from None
    if existing != b"".join(parts):
        raise UnavailableError(
            f"tier 2 has another {name}: another server writes there; give each server a separate prefix"
        )


def read_checked(path: Path, name: str, position: int, length: int, checksums: bytes) -> tuple[memoryview, list[int]]:
    """`ChunkStore.read_checked` for a file; blocking. Raises OSError."""
    import numpy as np

    data = np.empty(length, np.uint8).data  # uninitialized memory
    damaged: list[int] = []
    read = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe in its place would block
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "it isn't a file")
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


def _opened(
    sealing: Sealing, stored: memoryview, name: str, position: int, length: int, checksums: bytes
) -> tuple[memoryview, list[int]]:
    """`ChunkStore.read_checked` for sealed blocks; blocking."""
    import numpy as np

    data, damaged, at = np.empty(length, np.uint8).data, list[int](), 0
    for begin in range(0, length, BLOCK_BYTES):
        number, size = (position + begin) // BLOCK_BYTES, min(BLOCK_BYTES, length - begin)
        block = data[begin : begin + size]
        try:
            context = block_context(name.encode(), number)
            sealing.open_into(stored[at : at + size + sealing.overhead], context, block)
        except SealBrokenError:
            block[:] = bytes(size)
            damaged.append(number)
        else:
            if not is_right(checksums, number, crc32c(block, seed_of(name, number))):
                damaged.append(number)
        at += size + sealing.overhead
    return data, damaged


def _read_sealed(
    sealing: Sealing, path: Path, name: str, position: int, length: int, checksums: bytes
) -> tuple[memoryview, list[int]]:
    """`ChunkStore.read_checked` for a file of sealed blocks; blocking. Raises OSError."""
    import numpy as np

    begin, size, read = sealing.stored_bytes(position), sealing.stored_bytes(length), 0
    stored = np.empty(size, np.uint8).data  # uninitialized memory
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe in its place would block
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "it isn't a file")
        while read < size and (count := os.preadv(file, [stored[read:]], begin + read)):
            read += count
    finally:
        os.close(file)
    return _opened(sealing, stored[:read], name, position, length, checksums)


class ChunkStore:
    """Chunks by name. local: the folder, if the place is one. runtime: its threads wait for the disk, and verify data.
    claim: of the data folder that owns these chunks, if they are external. sealing: of everything stored here, once
    `unlock`ed. Errors have no cause: a store's messages may contain credentials."""

    sealing: Sealing = PLAIN

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
        self.url = url  # without credentials, which come from the environment
        self._mark = ""
        self._is_alone = False  # inside a data folder
        self._chunk_place, self._local, self._config = place, local, config or {}
        self._opening = asyncio.Lock()
        self._opened: tuple[LogEngine, Registry] | None = None
        self._master: str | None = None  # source of the master key, if `unlock` got it
        self._keys_at = 0.0  # time of the last look for a new data key

    @classmethod
    def in_folder(cls, folder: Path, runtime: Runtime = REAL) -> ChunkStore:
        """Return the chunk store inside a data folder."""
        store = cls.at(folder.absolute().as_uri(), runtime, {})
        store._is_alone = True
        return store

    @classmethod
    def from_url(cls, url: str, **config: str) -> ChunkStore:
        """Return the store at `file:///folder`, `hdfs://host:port/folder`, or a URL of `remote_store`, which documents
        `config` and the errors.

        >>> ChunkStore.from_url("memory:///").free_bytes() > 0
        True
        """
        return cls.at(url, REAL, config)

    @classmethod
    def at(cls, url: str, runtime: Runtime, config: dict[str, str], claim: StoreClaim | None = None) -> ChunkStore:
        """Implement `from_url`. claim: of the data folder that uses the store."""
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
        """Check the claim before deleting objects that a state doesn't need: raise StoreError if a copy of the data
        folder, which may need them, has opened the store since, UnavailableError if the store doesn't answer."""
        if self.claim is not None:
            self._check_mounted()
            await self.claim.check()

    async def _before_write(self) -> None:
        if self.claim is not None:
            await self.claim.confirm()
            self._check_mounted()

    def _check_mounted(self) -> None:
        """Raise UnavailableError if an external folder is missing now, so that its objects don't count as missing."""
        if self.claim is not None and self._local is not None and not self.claim.is_at(self._local):
            raise UnavailableError(f"tier 2 is missing in {self._local}: check that it is mounted")

    async def records(self) -> ContainerRecords:
        """Return the records of the store's containers. Raises as `StoreClaim.confirm`."""
        return ContainerRecords(await self._registry(), self.runtime, is_alone=self._is_alone)

    async def _registry(self) -> Registry:
        if self.claim is not None:
            await self.claim.confirm()
            self._check_mounted()
            return await self.claim.registry()
        async with self._opening:
            if self._opened is None:
                engine: LogEngine
                registry: Registry
                if self._local is not None:
                    engine, registry = await open_files(self._local, self.runtime, is_late=True)
                else:
                    engine, registry = await open_chunk_engines(self.url, self.runtime, **self._config)
                self._opened = engine, registry
            return self._opened[1]

    async def unlock(self, source: str | None = None, *, serves: bool = False, creates: bool = False) -> None:
        """Open the data of an encrypted store. source: of the master key; None: an environment variable names it.
        serves: repair the stored keys if one of their two copies is damaged. creates: create the first data key if
        there is none. EncryptionKeyError: the keys are missing or wrong. UnavailableError: the store, or the key's
        service, doesn't answer."""
        self._master = source
        master = await self.runtime.in_thread(master_key, source, self.url)
        ring = KeyRing(await self._registry(), self.runtime)
        if creates and not await ring.listed() and not await self.listed("snapshots"):
            with contextlib.suppress(ConflictError):  # another server has just created it
                await ring.rotate(master)
        keys = await ring.unwrapped(master, heals=serves)
        if not keys:
            raise EncryptionKeyError(f"{self.url} has lost its data keys, `keys/data`: restore that object")
        self.sealing = DataKeys(keys)

    async def refresh_keys(self, *, at_once: bool = False) -> None:
        """Seal with the newest data key from now on, if another process has added one. at_once: even if the last look
        was just now. Raises as `unlock`."""
        now = self.runtime.monotonic()
        if not isinstance(self.sealing, DataKeys) or (now < self._keys_at + _KEYS_INTERVAL_S and not at_once):
            return
        ring = KeyRing(await self._registry(), self.runtime)
        if len(await ring.listed()) > self.sealing.count:
            master = await self.runtime.in_thread(master_key, self._master, self.url)
            self.sealing.use(await ring.unwrapped(master, heals=True))
        self._keys_at = now

    async def close(self) -> None:
        """Close the access to records; it is reopened when needed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened[0].close()

    async def mark(self) -> str:
        """Return the store's unique id; created at the first call."""
        if not self._mark:
            await self._before_write()
            await self._chunk_place.create(MARK, [self.runtime.unique().encode()])
            self._mark = bytes(await self.read(MARK, 0, MARK_BYTES)).decode()
        return self._mark

    def free_bytes(self) -> int:
        """Return the bytes that may still be stored, as far as known; the last of a disk is reserved for others."""
        try:
            return _PLENTY_BYTES if self._local is None else free_bytes(self._local) - FULL_BELOW_BYTES
        except OSError:  # `put` reports the error
            return _PLENTY_BYTES

    def check_free_space(self, size_bytes: int) -> None:
        """Raise StorageFullError if there is certainly no space for a chunk of that size; call before writing it."""
        if self.free_bytes() < size_bytes:
            raise StorageFullError(f"tier 2 has no space for {size_bytes:,} bytes: free space in {self._local}")

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store a chunk of concatenated `parts`, durably, under an unused name. StorageFullError, UnavailableError: it
        may be stored nevertheless, even later."""
        await self._before_write()
        if self._local is None:
            await put_new(self._chunk_place, name, parts)
        else:
            await self._chunk_place.replace_object(name, parts)

    async def replace(self, name: str, parts: Sequence[Buffer]) -> None:
        """`put` that replaces an object of that name. Raises as `put` and `check_ours`, as that object is lost."""
        await self.check_ours()
        await self._before_write()
        await self._chunk_place.replace_object(name, parts)

    async def settle(self, name: str) -> None:
        """Make an object durable that a process may have stored without syncing before it was killed."""
        if self._local is not None:
            try:
                await self.runtime.in_thread(object_store.sync, self._local, self._local / name)
            except OSError as error:
                raise unwritten(error) from error

    def _missing(self, name: str) -> NotFoundError:
        """Return the error of a missing chunk; raise UnavailableError if the entire store is missing."""
        self._check_mounted()
        return NotFoundError(f"chunk {name} is not in tier 2")

    async def adopt(self, name: str, file: Path, complete: Callable[[], None]) -> bool:
        """Store a file as a chunk, durably, by linking it; return False if that isn't possible here. complete: writes
        the end of the file, in a thread; afterwards the file is immutable. Raises NotFoundError if the file is missing,
        else as `put`."""
        if self._local is None:
            return False
        await self._before_write()
        try:
            await self.runtime.in_thread(object_store.adopt, self._local, file, name, complete)
        except FileNotFoundError as error:
            raise NotFoundError(f"{file} is missing") from error
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise unwritten(error) from error
        return True

    async def read(self, name: str, position: int, length: int) -> memoryview:
        """Return bytes of a chunk as stored, neither copied nor verified; fewer if it is shorter. NotFoundError: it is
        missing. DiskReadError: its disk can't read it."""
        self._check_is_file(name)
        try:
            return await self._chunk_place.read(name, position, length)
        except FileNotFoundError:
            raise self._missing(name) from None

    async def read_checked(
        self, name: str, position: int, length: int, checksums: bytes
    ) -> tuple[memoryview, list[int]]:
        """`read` from the start of a block; also return the numbers of damaged blocks. checksums: of the entire
        chunk. The data of an encrypted store is decrypted, with zeros in place of damaged blocks."""
        sealing, arguments = self.sealing, (name, position, length, checksums)
        if self._local is not None:
            read = partial(_read_sealed, sealing) if sealing.overhead else read_checked
            try:
                return await self.runtime.in_thread(read, self._local / name, *arguments)
            except FileNotFoundError:
                raise self._missing(name) from None
            except OSError as error:
                if error.errno in (errno.EIO, errno.ELOOP):
                    raise DiskReadError(f"the disk can't read chunk {name}: {error.strerror}") from error
                raise failed(f"read {name}", error) from None
        if sealing.overhead:
            stored = await self.read(name, sealing.stored_bytes(position), sealing.stored_bytes(length))
            return await self.runtime.in_thread(_opened, sealing, stored, *arguments)
        data = await self.read(name, position, length)
        check = partial(damaged_blocks, name, checksums, position // BLOCK_BYTES, data, length)
        if length <= BLOCK_BYTES:
            return data, check()
        return data, await self.runtime.in_thread(check)  # long enough to block the loop

    async def describe(self, name: str, length: int) -> ChunkDescription | None:
        """Return `description`; None also if it can't be read."""
        try:
            return await self.description(name, length)
        except (NotFoundError, UnavailableError) as error:  # reads of the data report it
            log.debug("the description of chunk %s can't be read: %s", name, error)
            return None

    async def description(self, name: str, length: int) -> ChunkDescription | None:
        """Return the description after `length` bytes of data in a chunk; None if it is damaged or missing.
        NotFoundError: the chunk is missing. UnavailableError: tier 2 doesn't answer."""
        self._check_is_file(name)
        try:
            tail = await self._chunk_place.read(name, self.sealing.stored_bytes(length), None)
            return ChunkDescription.decode(name, tail, self.sealing)
        except FileNotFoundError:
            raise self._missing(name) from None
        except DiskReadError:
            return None

    def _check_is_file(self, name: str) -> None:
        """Raise DiskReadError for a pipe, as opening it would block forever."""
        if self._local is None:
            return
        with contextlib.suppress(OSError):  # the read reports it
            if stat.S_ISREG(os.stat(self._local / name).st_mode):
                return
            raise DiskReadError(f"the disk can't read chunk {name}: it isn't a file")

    async def listed(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes, by name, of all objects in a folder and its subfolders."""
        return await self.runtime.in_thread(self.sizes, folder)

    def has(self, name: str) -> bool:
        """Return whether an object of that name exists; blocking."""
        return self._chunk_place.has(name)

    def sizes(self, prefix: str) -> dict[str, int]:
        """`listed`; blocking."""
        return self._chunk_place.sizes(prefix)

    def pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        """Yield all objects in a folder and its subfolders, in pages, unordered; the folder "" is the entire store."""
        return self._chunk_place.pages(folder)

    async def rename(self, name: str, new: str) -> None:
        """Rename an object; the new name is durable when this returns."""
        await self._before_write()
        await self._chunk_place.rename(name, new)

    async def delete(self, name: str) -> None:
        await self._before_write()
        await self._chunk_place.delete(name)
