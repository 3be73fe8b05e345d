"""Chunk objects in an object store: put once, read by range, deleted.

`obstore` renames a local object into place but never fsyncs it, so for a local store a chunk counts
as stored only after its file and the folders that lead to it were synced here.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import obstore
from obstore.store import LocalStore, ObjectStore

from nadi.errors import NotFoundError, StorageFullError, UnavailableError
from nadi.segmentstore.reserve import FULL_BELOW_BYTES, free_bytes
from nadi.wire.fields import Buffer

_PLENTY_BYTES = 1 << 62


class ChunkStore:
    """Chunks by name. `local` is the folder when the store is one, for fsync."""

    def __init__(self, store: ObjectStore, local: Path | None) -> None:
        self._store = store
        self._local = local

    @classmethod
    def in_folder(cls, folder: Path) -> ChunkStore:
        folder.mkdir(parents=True, exist_ok=True)
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
                raise StorageFullError(f"tier 2 is full ({error}): free space there") from error
            raise UnavailableError(f"tier 2 can't be written: {error}") from error
        except Exception as error:  # obstore raises its own family, mapped here once
            if "No space left" in str(error):
                raise StorageFullError(f"tier 2 is full ({error}): free space there") from error
            raise UnavailableError(f"tier 2 can't be written: {error}") from error

    async def read(self, name: str, position: int, length: int) -> memoryview:
        """Bytes of a chunk, as they came, not copied; NotFoundError if it is gone."""
        try:
            return memoryview(await obstore.get_range_async(self._store, name, start=position, length=length))
        except FileNotFoundError as error:
            raise NotFoundError(f"chunk {name} is not in tier 2") from error
        except Exception as error:
            raise UnavailableError(f"chunk {name} can't be read: {error}") from error

    async def delete(self, name: str) -> None:
        """Delete a chunk if it is there."""
        try:
            await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise UnavailableError(f"chunk {name} can't be deleted: {error}") from error


def _sync(root: Path, file: Path) -> None:
    for path in (file, *file.parents):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == root:
            return
