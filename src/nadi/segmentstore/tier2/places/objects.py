"""Chunks in a store of `obstore`: in S3, GCS or Azure, in a folder, or in memory for tests.

`obstore` renames a local object into place but never fsyncs it. So in a folder an object counts as stored only once its
file and the folders that lead to it have been synced here. Elsewhere an object is put in one request: parts of one that
was begun and never ended would be paid for, and seen by nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import LocalStore, ObjectStore

from nadi.engines.failures import is_no_bucket, secrets_of, told, was_unanswered, without_secrets
from nadi.errors import StorageFullError, UnavailableError
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.tier1.disk import is_no_room, sync_folder
from nadi.segmentstore.tier2.places import localfiles
from nadi.segmentstore.tier2.places.place import DiskReadError, Listed
from nadi.wire.fields import Buffer

_PAGE = 1_000


class ObjectPlace:
    """A `Place` of `obstore`. local: the folder if it is one, for fsync. secrets: what no text may have. patient: the
    same store, for puts, which may take longer."""

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

    @classmethod
    def in_folder(cls, folder: Path, runtime: Runtime) -> ObjectPlace:
        return cls(LocalStore(str(folder), mkdir=True), folder, runtime)

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        try:
            # an iterator: obstore puts them together in a thread of its own, while the loop continues
            await obstore.put_async(self._patient, name, iter(parts), mode="create", use_multipart=False)
            await self._settle(name)
        except (AlreadyExistsError, PreconditionError):
            return False
        except Exception as error:
            problem = self._unwritten(name, error)
        else:
            return True
        raise problem  # here, so that it has no context: its text may have credentials

    async def put_over(self, name: str, parts: Sequence[Buffer]) -> None:
        try:
            await obstore.put_async(self._patient, name, iter(parts), mode="overwrite", use_multipart=False)
            await self._settle(name)
        except Exception as error:  # obstore raises its own family, mapped here once
            problem = self._unwritten(name, error)
        else:
            return
        raise problem

    async def _settle(self, name: str) -> None:
        if self._local is not None:
            await self._runtime.in_thread(localfiles.sync, self._local, self._local / name)

    def _unwritten(self, name: str, error: Exception) -> UnavailableError:
        return told(f"store {name}", error, self._secrets) if self._local is None else unwritten(error)

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
        """The size of an object of which a part can't be read: where it ends, a range that begins there is an error, to
        each store another one."""
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
            return {found["path"]: found["size"] for batch in obstore.list(self._store, prefix) for found in batch}
        except Exception as error:
            raise self._failed(f"list {prefix}", error) from None

    async def pages(self, folder: str) -> AsyncIterator[list[Listed]]:
        listing = obstore.list(self._store, folder or None, chunk_size=_PAGE).__aiter__()
        while True:
            try:
                page = await anext(listing)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise self._failed(f"list {folder or 'what is there'}", error) from None
            yield [Listed(one["path"], one["size"], round(one["last_modified"].timestamp() * 1000)) for one in page]

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
        """What isn't found is gone, unless its bucket is."""
        return isinstance(error, FileNotFoundError) and (self._local is not None or not is_no_bucket(error))

    def _failed(self, what: str, error: Exception) -> UnavailableError:
        """what: that can't be done, as in "read a chunk"."""
        if self._local is None:
            return told(what, error, self._secrets)
        return failed(what, error)


def unwritten(error: Exception) -> UnavailableError:
    """What to say of a folder that takes nothing."""
    if is_no_room(error) or "No space left" in str(error):
        return StorageFullError(f"tier 2 is full ({_in_a_line(error)}): free space there")
    return UnavailableError(f"tier 2 can't be written: {_in_a_line(error)}")


def failed(what: str, error: Exception) -> UnavailableError:
    """What to say of a folder. what: as in "read a chunk"."""
    return UnavailableError(f"tier 2 can't {what}: {_in_a_line(error)}")


def _in_a_line(error: Exception) -> str:
    return without_secrets(str(error), secrets_of({}))
