"""An object store as engine and registry, through `obstore`: S3, GCS, Azure, and memory for tests.

Nothing is tried again here, for a second try would meet the first one's object and be told that it exists. A registry's
versions are etags, which all stores list. GCS compares generations instead, which its listings don't have: there a
compare-and-set first asks which generation has the etag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from nadi.object_log.engine import VersionedValue, check_name
from nadi.object_log.failures import FOREIGN, RefusedError, asked, is_no_bucket, told
from nadi.object_log.urls import RemoteStore
from nadi.wire.fields import Buffer

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult

T = TypeVar("T")
TIMEOUT_S = 10  # of a request: a frame of 4 MiB has 400 KiB/s
_DELETES_AT_ONCE = 10  # where each is a request of its own
_BULK = 1_000  # names in one of S3's requests
_PAGE = 1_000


class _Objects:
    def __init__(self, remote: RemoteStore) -> None:
        self._store, self._scheme, self._secrets = remote

    async def _put(self, name: str, body: Buffer | Iterator[Buffer], mode: PutMode) -> PutResult | None:
        """None: its condition refuses it."""
        check_name(name)
        try:
            return await obstore.put_async(self._store, name, body, mode=mode, use_multipart=False)
        except FOREIGN as error:
            if mode != "overwrite" and isinstance(error, (AlreadyExistsError, PreconditionError)):
                return None
            problem = told(f"store {name}", error, self._secrets)
        raise problem

    async def _found(self, name: str, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except FOREIGN as error:
            if isinstance(error, FileNotFoundError) and not is_no_bucket(error):
                return None
            problem = told(f"read {name}", error, self._secrets)
        raise problem

    async def _get(self, name: str) -> tuple[memoryview, ObjectMeta] | None:
        check_name(name)
        found = await self._found(name, obstore.get_async(self._store, name))
        if found is None:
            return None
        return memoryview(await asked(f"read {name}", found.bytes_async(), self._secrets)), found.meta

    async def _meta(self, name: str) -> ObjectMeta | None:
        return await self._found(name, obstore.head_async(self._store, name))

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[ObjectMeta]]:
        folder = prefix.rstrip("/")
        try:
            async for page in obstore.list(self._store, folder or None, chunk_size=_PAGE):
                # consoles mark a folder by an empty object `folder/`, which comes here as `folder`
                yield [meta for meta in page if meta["path"] not in ("", folder)]
            return
        except FOREIGN as error:
            problem = told(f"list {prefix}", error, self._secrets)
        raise problem

    async def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        if self._scheme == "s3":
            for first in range(0, len(names), _BULK):
                batch = list(names[first : first + _BULK])
                await asked(f"delete {batch[0]}", obstore.delete_async(self._store, batch), self._secrets)
            return
        for first in range(0, len(names), _DELETES_AT_ONCE):
            some = names[first : first + _DELETES_AT_ONCE]
            deletions = (self._found(name, obstore.delete_async(self._store, name)) for name in some)
            for failed in await asyncio.gather(*deletions, return_exceptions=True):
                if isinstance(failed, BaseException):
                    raise failed


class ObjectEngine(_Objects):
    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        # an iterator: obstore puts them together in a thread of its own, while the loop continues
        return await self._put(name, iter(parts), "create") is not None

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        if position == 0 and length is None:
            found = await self._get(name)
            return found[0] if found is not None else None
        check_name(name)
        try:
            if length is None:
                rest = await obstore.get_async(self._store, name, options={"range": {"offset": position}})
                return memoryview(await rest.bytes_async())
            some = await obstore.get_range_async(self._store, name, start=position, length=max(length, 1))
            return memoryview(some)[:length]
        except FOREIGN as error:
            is_absent = isinstance(error, FileNotFoundError)
            if is_absent and not is_no_bucket(error):
                return None
            problem = told(f"read {name}", error, self._secrets)
        # a range that begins past its end is an error to all stores, each with its own
        meta = None if is_absent else await self._meta(name)
        if meta is not None and meta["size"] <= position:
            return memoryview(b"")
        raise problem

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        async for page in self._pages(prefix):
            yield {meta["path"]: meta["size"] for meta in page}

    delete = _Objects._delete

    async def keeps_versions(self, name: str) -> bool:
        """Whether the bucket keeps what is replaced or deleted, as far as an object's headers tell. UnavailableError:
        the store can't answer."""
        meta = await self._meta(name)
        return self._scheme in ("s3", "az") and meta is not None and meta["version"] not in (None, "null")

    async def close(self) -> None:
        """`obstore` closes its connections by itself."""


class ObjectRegistry(_Objects):
    async def get(self, name: str) -> VersionedValue | None:
        found = await self._get(name)
        return VersionedValue(bytes(found[0]), _version(name, found[1]["e_tag"])) if found is not None else None

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        mode: PutMode = "create"
        if version is not None and self._scheme != "gs":
            mode = {"e_tag": f'"{version}"'}
        elif version is not None:
            check_name(name)
            meta = await self._meta(name)
            if meta is None or _version(name, meta["e_tag"]) != version:
                return None
            mode = {"e_tag": meta["e_tag"], "version": meta["version"]}
        stored = await self._put(name, value, mode)
        return None if stored is None else _version(name, stored["e_tag"])

    async def put(self, name: str, value: bytes) -> str:
        stored = await self._put(name, value, "overwrite")
        assert stored is not None  # there was no condition
        return _version(name, stored["e_tag"])

    async def list(self, folder: str) -> dict[str, str]:
        return {meta["path"]: _version(folder, meta["e_tag"]) async for page in self._pages(folder) for meta in page}

    async def delete(self, name: str) -> None:
        await self._delete([name])


def _version(name: str, e_tag: str | None) -> str:
    """The etag as all answers have it: Azure's listings leave out the quotes."""
    if not e_tag:
        raise RefusedError(f"the object store sent no ETag for {name}: conditions need them; use another store")
    return e_tag.strip('"')
