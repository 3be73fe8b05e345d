"""Object stores as engine and registry, through `obstore`: S3, GCS, Azure, and memory for tests.

Requests are never retried here: a second attempt would find the first one's object and fail. A
registry's versions are ETags, which all stores list. GCS compares generations instead, which its listings lack: there,
compare-and-set first looks up the generation that has the ETag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from nadi.object_log.engine import VersionedValue, check_name
from nadi.object_log.failures import FOREIGN, RefusedError, is_no_bucket, map_errors, public_error
from nadi.object_log.urls import RemoteStore
from nadi.wire.fields import Buffer

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult

T = TypeVar("T")
TIMEOUT_S = 10  # per request: 400 KiB/s for a frame of 4 MiB
_DELETES_AT_ONCE = 10  # where each takes a separate request
_BULK = 1_000  # names per S3 request
_PAGE = 1_000


class _Objects:
    def __init__(self, remote: RemoteStore) -> None:
        self._store, self._scheme, self._secrets = remote

    async def _put(self, name: str, body: Buffer | Iterator[Buffer], mode: PutMode) -> PutResult | None:
        """Store an object; return None if the condition fails."""
        check_name(name)
        try:
            return await obstore.put_async(self._store, name, body, mode=mode, use_multipart=False)
        except FOREIGN as error:
            if mode != "overwrite" and isinstance(error, (AlreadyExistsError, PreconditionError)):
                return None
            problem = public_error(f"store {name}", error, self._secrets)
        raise problem

    async def _or_none(self, name: str, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except FOREIGN as error:
            if isinstance(error, FileNotFoundError) and not is_no_bucket(error):
                return None
            problem = public_error(f"read {name}", error, self._secrets)
        raise problem

    async def _get(self, name: str) -> tuple[memoryview, ObjectMeta] | None:
        check_name(name)
        response = await self._or_none(name, obstore.get_async(self._store, name))
        if response is None:
            return None
        return memoryview(await map_errors(f"read {name}", response.bytes_async(), self._secrets)), response.meta

    async def _meta(self, name: str) -> ObjectMeta | None:
        return await self._or_none(name, obstore.head_async(self._store, name))

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[ObjectMeta]]:
        folder = prefix.rstrip("/")
        try:
            async for page in obstore.list(self._store, folder or None, chunk_size=_PAGE):
                # consoles mark a folder by an empty object `folder/`, which is listed as `folder`
                yield [meta for meta in page if meta["path"] not in ("", folder)]
            return
        except FOREIGN as error:
            problem = public_error(f"list {prefix}", error, self._secrets)
        raise problem

    async def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        if self._scheme == "s3":
            for first in range(0, len(names), _BULK):
                batch = list(names[first : first + _BULK])
                await map_errors(f"delete {batch[0]}", obstore.delete_async(self._store, batch), self._secrets)
            return
        for first in range(0, len(names), _DELETES_AT_ONCE):
            group = names[first : first + _DELETES_AT_ONCE]
            deletions = (self._or_none(name, obstore.delete_async(self._store, name)) for name in group)
            for failed in await asyncio.gather(*deletions, return_exceptions=True):
                if isinstance(failed, BaseException):
                    raise failed


class ObjectEngine(_Objects):
    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        # an iterator: obstore joins them in another thread, without blocking the loop
        return await self._put(name, iter(parts), "create") is not None

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        if position == 0 and length is None:
            entry = await self._get(name)
            return entry[0] if entry is not None else None
        check_name(name)
        try:
            if length is None:
                response = await obstore.get_async(self._store, name, options={"range": {"offset": position}})
                return memoryview(await response.bytes_async())
            data = await obstore.get_range_async(self._store, name, start=position, length=max(length, 1))
            return memoryview(data)[:length]
        except FOREIGN as error:
            is_absent = isinstance(error, FileNotFoundError)
            if is_absent and not is_no_bucket(error):
                return None
            problem = public_error(f"read {name}", error, self._secrets)
        # every store raises its own error for a range that begins past the end
        meta = None if is_absent else await self._meta(name)
        if meta is not None and meta["size"] <= position:
            return memoryview(b"")
        raise problem

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        async for page in self._pages(prefix):
            yield {meta["path"]: meta["size"] for meta in page}

    delete = _Objects._delete

    async def keeps_versions(self, name: str) -> bool:
        """Return whether the bucket keeps replaced and deleted objects, as far as an object's headers show.
        UnavailableError: the store can't answer."""
        meta = await self._meta(name)
        return self._scheme in ("s3", "az") and meta is not None and meta["version"] not in (None, "null")

    async def close(self) -> None:
        """Do nothing: `obstore` closes its connections itself."""


class ObjectRegistry(_Objects):
    async def get(self, name: str) -> VersionedValue | None:
        entry = await self._get(name)
        return VersionedValue(bytes(entry[0]), _version(name, entry[1]["e_tag"])) if entry is not None else None

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

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        stored = await self._put(name, value, "overwrite")
        assert stored is not None  # unconditional
        return _version(name, stored["e_tag"])

    async def list(self, folder: str) -> dict[str, str]:
        return {meta["path"]: _version(folder, meta["e_tag"]) async for page in self._pages(folder) for meta in page}

    async def delete(self, name: str) -> None:
        await self._delete([name])


def _version(name: str, e_tag: str | None) -> str:
    """Return the ETag without quotes, which Azure's listings omit."""
    if not e_tag:
        raise RefusedError(f"the object store sent no ETag for {name}, which conditions need: use another store")
    return e_tag.strip('"')
