"""Stores chunks through `obstore` (S3, GCS, Azure, a folder, or memory for tests), or in HDFS.

`obstore` renames a local object into place but never fsyncs it. So in a folder an object counts as stored only once its
file and the folders above it have been synced here. Elsewhere an object is put in one request: parts of an unfinished
multipart upload would cost money without being visible.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

from nadi.errors import StorageFullError, UnavailableError
from nadi.object_log.failures import is_no_bucket, public_error, secrets_of, was_unanswered, without_secrets
from nadi.object_log.hdfs.engine import value_of
from nadi.object_log.hdfs.files import HdfsFile, HdfsFiles
from nadi.object_log.hdfs.location import where
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.tier1.disk import is_disk_full, sync_folder
from nadi.wire.fields import Buffer

_PAGE = 1_000


def adopt(root: Path, file: Path, name: str, complete: Callable[[], None]) -> None:
    """`complete` the file, and make it the chunk of that name in the folder `root`, durably; blocking."""
    complete()
    path = root / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.link(file, path)
    sync(root, path)


def sync(root: Path, file: Path) -> None:
    """Make a file of the folder `root` durable, with the folders above it; blocking. Raises OSError."""
    for path in (file, *file.parents):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            mode = 0o600 if path is file else 0o700  # `obstore` uses the umask
            if os.fstat(descriptor).st_mode & 0o777 != mode:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == root:
            return


class DiskReadError(UnavailableError):
    """A part of a chunk's disk can't be read."""


class ListedObject(NamedTuple):
    """An object in a listing. modified_ms: when it was stored, since 1970, by the store's own clock."""

    name: str
    size_bytes: int
    modified_ms: int


class ChunkPlace(Protocol):
    """Objects by name. All calls raise UnavailableError, or a subclass, if the place doesn't answer, without its
    message or cause, which may contain credentials."""

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Store an object, as `LogEngine.create`."""

    async def replace_object(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store the concatenated `parts`, durably, replacing any object of that name. Raises as `create`."""

    async def read(self, name: str, position: int, length: int | None) -> memoryview:
        """Return the object's bytes from `position` on, fewer if it is shorter; length None: up to its end.
        FileNotFoundError: the object is missing, though the place exists. DiskReadError: the disk can't read them."""

    def has(self, name: str) -> bool:
        """Return whether an object has the name; blocking."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects in a folder and its subfolders; blocking."""

    def pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        """Yield all objects in a folder and its subfolders, in pages, unordered; the folder "" is the entire place."""

    async def rename(self, name: str, new: str) -> None:
        """Rename an object, durably. UnavailableError: also if no object has the old name."""

    async def delete(self, name: str) -> None:
        """Delete an object if it exists."""


class ObjectPlace:
    """A `ChunkPlace` in `obstore`. local: the folder, if it is one, for fsync. secrets: removed from messages. patient:
    the same store with a longer timeout, for puts."""

    def __init__(
        self,
        store: ObjectStore,
        local: Path | None = None,
        runtime: Runtime = REAL,
        *,
        secrets: tuple[str, ...] = (),
        patient: ObjectStore | None = None,
    ) -> None:
        self._store, self._patient = store, patient if patient is not None else store
        self._local, self._secrets = local, secrets
        self._runtime = runtime

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        return await self._put(name, parts, "create")

    async def _put(self, name: str, parts: Sequence[Buffer], mode: Literal["create", "overwrite"]) -> bool:
        try:
            # an iterator: obstore joins the parts in its own thread, while the loop continues
            await obstore.put_async(self._patient, name, iter(parts), mode=mode, use_multipart=False)
            await self._settle(name)
        except Exception as error:  # obstore's errors are mapped once, here
            if mode == "create" and isinstance(error, (AlreadyExistsError, PreconditionError)):
                return False
            problem = public_error(f"store {name}", error, self._secrets) if self._local is None else unwritten(error)
        else:
            return True
        raise problem  # raised here, without a context, which may contain credentials

    async def replace_object(self, name: str, parts: Sequence[Buffer]) -> None:
        await self._put(name, parts, "overwrite")

    async def _settle(self, name: str) -> None:
        if self._local is not None:
            await self._runtime.in_thread(sync, self._local, self._local / name)

    async def read(self, name: str, position: int, length: int | None) -> memoryview:
        try:
            if length is not None:
                return memoryview(await obstore.get_range_async(self._store, name, start=position, length=length))
            tail = await obstore.get_async(self._store, name, options={"range": {"offset": position}})
            return memoryview(await tail.bytes_async())
        except Exception as error:
            if self._is_missing(error):
                raise FileNotFoundError(name) from None
            if self._local is not None and "(os error 5)" in str(error):
                raise DiskReadError(f"the disk can't read chunk {name}: input/output error") from error
            if await self._size_after(name, error) <= position:
                return memoryview(b"")
            raise self._failed(f"read {name}", error) from None

    async def _size_after(self, name: str, error: Exception) -> int:
        """Return the size of an object whose read failed: a range that starts at its end is an error, which differs by
        store."""
        if was_unanswered(error):
            raise self._failed(f"read {name}", error) from None
        try:
            return int((await obstore.head_async(self._store, name))["size"])
        except Exception as unread:
            if self._is_missing(unread):
                raise FileNotFoundError(name) from None
            raise self._failed(f"read {name}", unread) from None

    def has(self, name: str) -> bool:
        try:
            obstore.head(self._store, name)
        except Exception as error:
            if self._is_missing(error):
                return False
            raise self._failed(f"read {name}", error) from None
        return True

    def sizes(self, prefix: str) -> dict[str, int]:
        try:
            return {each["path"]: each["size"] for batch in obstore.list(self._store, prefix) for each in batch}
        except Exception as error:
            raise self._failed(f"list {prefix}", error) from None

    async def pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        try:
            async for page in obstore.list(self._store, folder or None, chunk_size=_PAGE):
                yield [
                    ListedObject(each["path"], each["size"], round(each["last_modified"].timestamp() * 1000))
                    for each in page
                ]
        except Exception as error:
            raise self._failed(f"list {folder or 'the store'}", error) from None

    async def rename(self, name: str, new: str) -> None:
        try:
            await obstore.rename_async(self._store, name, new)
            await self._settle(new)
            if self._local is not None:
                await self._runtime.in_thread(sync_folder, (self._local / name).parent)
        except Exception as error:
            raise self._failed(f"rename {name}", error) from None

    async def delete(self, name: str) -> None:
        try:
            await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._failed(f"delete {name}", error) from None

    def _is_missing(self, error: Exception) -> bool:
        """Return whether the error means a missing object, not a missing bucket."""
        return isinstance(error, FileNotFoundError) and (self._local is not None or not is_no_bucket(error))

    def _failed(self, operation: str, error: Exception) -> UnavailableError:
        """Return the error of a failed operation. operation: as in "read a chunk"."""
        if self._local is None:
            return public_error(operation, error, self._secrets)
        return failed(operation, error)


def unwritten(error: Exception) -> UnavailableError:
    """Return the error of a folder that can't be written."""
    if is_disk_full(error) or "No space left" in str(error):
        return StorageFullError(f"tier 2 is full ({_in_a_line(error)}): free space there")
    return UnavailableError(f"tier 2 can't be written: {_in_a_line(error)}")


def failed(operation: str, error: Exception) -> UnavailableError:
    """Return the error of a folder. operation: as in "read a chunk"."""
    return UnavailableError(f"tier 2 can't {operation}: {_in_a_line(error)}")


def _in_a_line(error: Exception) -> str:
    return without_secrets(str(error), secrets_of({}))


class HdfsPlace:
    def __init__(self, url: str, runtime: Runtime, options: dict[str, str]) -> None:
        self._files = HdfsFiles(where(url, **options), runtime)

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        return await self._files.put(name, parts)

    async def replace_object(self, name: str, parts: Sequence[Buffer]) -> None:
        if not await self._files.put(name, parts, over=True):
            raise UnavailableError(f"HDFS can't replace {name}: it is retried")

    async def read(self, name: str, position: int, length: int | None) -> memoryview:
        return memoryview(await self._files.read(name, position, length))

    def has(self, name: str) -> bool:
        return self._files.is_there(name)

    def sizes(self, prefix: str) -> dict[str, int]:
        return {each.name: each.size_bytes for each in map(_listed, self._files.listed(prefix))}

    async def pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        async for page in self._files.pages(folder):
            yield [_listed(file) for file in page]

    async def rename(self, name: str, new: str) -> None:
        await self._files.rename(name, new)

    async def delete(self, name: str) -> None:
        await self._files.delete(name)


def _listed(file: HdfsFile) -> ListedObject:
    """Convert a listing entry; a value has its own name, not that of a version."""
    return ListedObject(value_of(file.name) or file.name, file.size_bytes, file.modified_ms)
