"""Chunk objects in an object store: put once, read by range, deleted.

`obstore` renames a local object into place but never fsyncs it, so for a local store a chunk counts
as stored only after its file and the folders that lead to it were synced here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import obstore
from obstore.store import LocalStore, ObjectStore

from nadi.errors import NotFoundError, StorageFullError, UnavailableError
from nadi.segmentstore.reserve import FULL_BELOW_BYTES, free_bytes
from nadi.segmentstore.tier1.disk import sync_folder
from nadi.segmentstore.tier2.description import ChunkDescription
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)
_PLENTY_BYTES = 1 << 62


class DiskReadError(UnavailableError):
    """A place on the disk that holds a chunk can't be read."""


class ChunkStore:
    """Chunks by name. `local` is the folder when the store is one, for fsync."""

    def __init__(self, store: ObjectStore, local: Path | None) -> None:
        self._store = store
        self._local = local

    @classmethod
    def in_folder(cls, folder: Path) -> ChunkStore:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(LocalStore(str(folder), mkdir=True), folder)

    def room_bytes(self) -> int:
        """What may still be stored, as far as is known; the last of a disk is left to others."""
        try:
            return _PLENTY_BYTES if self._local is None else free_bytes(self._local) - FULL_BELOW_BYTES
        except OSError:  # `put` says what is wrong
            return _PLENTY_BYTES

    def check_room(self, size_bytes: int) -> None:
        """StorageFullError where a chunk of that size has no room for certain: asked before anything is written."""
        if self.room_bytes() < size_bytes:
            raise StorageFullError(f"tier 2 has no room for {size_bytes:,} bytes: free space in {self._local}")

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store a chunk that is `parts` end to end; it is durable when this returns."""
        try:
            # an iterator: obstore puts them together in a thread of its own, while the loop goes on
            await obstore.put_async(self._store, name, iter(parts), use_multipart=False)
            if self._local is not None:
                await asyncio.get_running_loop().run_in_executor(None, _sync, self._local, self._local / name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
                raise StorageFullError(f"tier 2 is full ({_in_a_line(error)}): free space there") from error
            raise UnavailableError(f"tier 2 can't be written: {_in_a_line(error)}") from error
        except Exception as error:  # obstore raises its own family, mapped here once
            if "No space left" in str(error):
                raise StorageFullError(f"tier 2 is full ({_in_a_line(error)}): free space there") from error
            raise UnavailableError(f"tier 2 can't be written: {_in_a_line(error)}") from error

    async def read(self, name: str, position: int, length: int) -> memoryview:
        """Bytes of a chunk, as they came, not copied and not checked; fewer where it is shorter.

        NotFoundError if it is gone; DiskReadError if its disk can't read it.
        """
        try:
            return memoryview(await obstore.get_range_async(self._store, name, start=position, length=length))
        except FileNotFoundError as error:
            raise NotFoundError(f"chunk {name} is not in tier 2") from error
        except Exception as error:
            if "(os error 5)" in str(error):
                raise DiskReadError(f"the disk can't read chunk {name}: input/output error") from error
            if await self._size(name) <= position:
                return memoryview(b"")
            raise UnavailableError(f"chunk {name} can't be read: {_in_a_line(error)}") from error

    async def describe(self, name: str, length: int) -> ChunkDescription | None:
        """What a chunk with so many bytes of data says of itself; None if it doesn't, or can't be read."""
        try:
            return await self.description(name, length)
        except (NotFoundError, UnavailableError) as error:  # it is told by who reads the data
            log.debug("chunk %s has no description: %s", name, error)
            return None

    async def description(self, name: str, length: int) -> ChunkDescription | None:
        """What stands behind so many bytes of data in a chunk; None if that is damaged, or nothing.

        NotFoundError if the chunk is gone; UnavailableError if tier 2 can't tell.
        """
        try:
            tail = await obstore.get_async(self._store, name, options={"range": {"offset": length}})
            return ChunkDescription.decode(name, memoryview(await tail.bytes_async()))
        except FileNotFoundError as error:
            raise NotFoundError(f"chunk {name} is not in tier 2") from error
        except Exception as error:
            if "(os error 5)" in str(error) or await self._size(name) <= length:
                return None
            raise UnavailableError(f"chunk {name} can't be read: {error}") from error

    def sizes(self, prefix: str) -> dict[str, int]:
        """The sizes of all objects whose names begin with a folder; blocking."""
        try:
            return {found["path"]: found["size"] for batch in obstore.list(self._store, prefix) for found in batch}
        except Exception as error:
            raise UnavailableError(f"tier 2 can't be listed: {_in_a_line(error)}") from error

    async def _size(self, name: str) -> int:
        try:
            return int((await obstore.head_async(self._store, name))["size"])
        except FileNotFoundError as error:
            raise NotFoundError(f"chunk {name} is not in tier 2") from error
        except Exception as error:
            raise UnavailableError(f"chunk {name} can't be read: {_in_a_line(error)}") from error

    async def listed(self, folder: str) -> dict[str, int]:
        """The sizes in bytes of all objects in a folder, and below it, by name."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self._listed, folder)
        except Exception as error:
            raise UnavailableError(f"tier 2 can't be listed: {_in_a_line(error)}") from error

    def _listed(self, folder: str) -> dict[str, int]:
        return {found["path"]: found["size"] for some in obstore.list(self._store, folder) for found in some}

    async def rename(self, name: str, new: str) -> None:
        """Give an object another name; that is durable when this returns."""
        try:
            await obstore.rename_async(self._store, name, new)
            if self._local is not None:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, _sync, self._local, self._local / new)
                await loop.run_in_executor(None, sync_folder, (self._local / name).parent)
        except Exception as error:
            raise UnavailableError(f"chunk {name} can't be renamed: {_in_a_line(error)}") from error

    async def delete(self, name: str) -> None:
        """Delete a chunk if it is there."""
        try:
            await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise UnavailableError(f"chunk {name} can't be deleted: {_in_a_line(error)}") from error


def _in_a_line(error: Exception) -> str:
    """Without the listing of its own parts that `obstore` puts behind what it says."""
    return " ".join(str(error).partition("Debug source")[0].split())


def _sync(root: Path, file: Path) -> None:
    for path in (file, *file.parents):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            mode = 0o600 if path is file else 0o700  # `obstore` leaves it to the umask
            if os.fstat(descriptor).st_mode & 0o777 != mode:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == root:
            return
