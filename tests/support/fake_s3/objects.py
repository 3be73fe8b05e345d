"""The objects of a fake S3: an index in memory, and optionally a file each in a folder, written durably."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

_KEPT_S = 60.0


class Object(NamedTuple):
    etag: str
    generation: int
    body: bytes


class Change(NamedTuple):
    at: float
    key: str
    before: Object | None


class Objects:
    def __init__(self, folder: Path | None = None) -> None:
        self.now: dict[str, Object] = {}
        self._folder = folder
        self._generation = 0
        self._changes: list[Change] = []  # for delayed listings
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for file in folder.iterdir():
                if file.suffix == ".tmp":
                    file.unlink()
                else:
                    self._next(unquote(file.name), file.read_bytes())

    async def put(
        self, key: str, body: bytes, *, absent: bool, etag: str | None, generation: int | None
    ) -> Object | int:
        """Store an object; return it, or the status of the failure."""
        async with self._locks[key]:
            current = self.now.get(key)
            if absent and current is not None:
                return 412
            if etag is not None and (current is None or current.etag != etag):
                return 404 if current is None else 412
            if generation is not None and generation != (current.generation if current else 0):
                return 412
            if self._folder is not None:
                await asyncio.to_thread(_write, self._folder, quote(key, safe=""), body)
            return self._next(key, body)

    async def delete(self, key: str) -> None:
        async with self._locks[key]:
            removed = self.now.pop(key, None)
            if removed is not None:
                self._note(key, removed)
                if self._folder is not None:
                    await asyncio.to_thread(os.unlink, self._folder / quote(key, safe=""))

    def as_of(self, seconds_ago: float) -> dict[str, Object]:
        """Return the objects at that time."""
        then = dict(self.now)
        since = asyncio.get_running_loop().time() - seconds_ago
        for change in reversed(self._changes):
            if change.at <= since:
                break
            if change.before is None:
                then.pop(change.key, None)
            else:
                then[change.key] = change.before
        return then

    def _next(self, key: str, body: bytes) -> Object:
        self._note(key, self.now.get(key))
        self._generation += 1
        self.now[key] = Object(f'"{hashlib.md5(body).hexdigest()}"', self._generation, body)
        return self.now[key]

    def _note(self, key: str, before: Object | None) -> None:
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:  # while it is being opened
            return
        self._changes.append(Change(now, key, before))
        while self._changes[0].at < now - _KEPT_S:
            del self._changes[0]


def _write(folder: Path, name: str, body: bytes) -> None:
    temporary = folder / f"{name}.tmp"  # the key's lock is held
    with open(temporary, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / name)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
