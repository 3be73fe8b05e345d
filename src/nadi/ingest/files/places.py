"""How far each file has come, kept in a key-value table beside the stream.

A place is kept before anything of its file is written: it has the id under which the file's lines are written, and what
the file is known by. The offset follows behind: what was written since is known to the segments (`client/numbered`).
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from nadi.backoff import Backoff
from nadi.client.aio import KeyValueTable, KeyValueTableConfiguration, StreamManager, TableKey
from nadi.errors import ClosedError, ConflictError, UnavailableError
from nadi.ingest.files.disk import FileId, Head
from nadi.limits import INGEST_PLACES_KEPT_S

_BEGUN = bytes(16)  # the id of what says that a name has been at work before
T = TypeVar("T")


class Place(msgspec.Struct):
    """Of one file. id: of its writer. key: the routing key of lines that have no other, its first path. offset: all
    before it is stored. forced: where an event after it was forced to end. epoch: of the stream, when it was found."""

    id: bytes
    device: int
    inode: int
    path: str
    key: str
    head_bytes: int
    head_digest: str
    epoch: int
    offset: int = 0
    forced: int = 0
    seen_s: float = 0.0

    @property
    def file(self) -> FileId:
        return FileId(self.device, self.inode)

    @property
    def head(self) -> Head:
        return Head(self.head_bytes, self.head_digest)

    def is_of(self, file: FileId, path: str, head: Head) -> None:
        """The file is there now, and begins so."""
        self.device, self.inode, self.path = file.device, file.inode, path
        self.head_bytes, self.head_digest = head.size, head.digest


class Places:
    """Those that one name has in one stream. Calls wait until the server is there."""

    def __init__(self, table: KeyValueTable, name: str) -> None:
        self._table, self._name = table, hashlib.sha256(name.encode()).digest()[:16]
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self.were_begun = False

    @classmethod
    async def open(cls, manager: StreamManager, scope: str, stream: str, name: str) -> Places:
        table = f"ingest-{stream}"
        config = KeyValueTableConfiguration(partitions=1, primary_key_bytes=16, secondary_key_bytes=16)
        await patiently(lambda: manager.create_key_value_table(scope, table, config))
        return cls(await patiently(lambda: manager.key_value_table(scope, table)), name)

    async def load(self) -> list[Place]:
        """All of them, without those of files that nobody has seen for long."""

        async def load() -> list[Place]:
            found = []
            async for entry in self._table.entries(primary=self._name):
                if entry.key.secondary == _BEGUN:
                    self.were_begun = True
                else:
                    found.append(msgspec.msgpack.decode(entry.value, type=Place))
            return found

        places = await patiently(load)
        oldest = time.time() - INGEST_PLACES_KEPT_S
        for place in places:
            if place.seen_s < oldest:
                await self.forget(place)
        return [place for place in places if place.seen_s >= oldest]

    async def begin(self) -> None:
        """From now on a file that isn't known is a new one."""
        await patiently(lambda: self._table.put(TableKey(self._name, _BEGUN), b""))
        self.were_begun = True

    async def keep(self, place: Place) -> None:
        turn = self._turns.get(place.id)
        if turn is None:
            turn = self._turns[place.id] = asyncio.Lock()
        async with turn:  # an older state that is sent again mustn't come after a newer one
            place.seen_s = time.time()
            await patiently(lambda: self._table.put(TableKey(self._name, place.id), msgspec.msgpack.encode(place)))

    async def forget(self, place: Place) -> None:
        await patiently(lambda: self._table.remove(TableKey(self._name, place.id)))


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The call's answer, however long the server is away."""
    backoff = Backoff()
    while True:
        try:
            return await call()
        except ClosedError:
            raise
        except UnavailableError:
            await backoff.pause()


@contextmanager
def alone(*whose: str) -> Iterator[None]:
    """Nobody else on this machine works under the same name: ConflictError if somebody does. The kernel ends it with
    the process, however that ends."""
    digest = hashlib.sha256("\n".join(whose).encode()).hexdigest()[:32]
    path = Path(tempfile.gettempdir()) / f"nadi-ingest-{digest}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another nadi ingest is at work for {'/'.join(whose[1:3])} by the name {whose[-1]!r}: stop it, "
                "give it these files too, or give this one another --name"
            ) from None
        yield
    finally:
        os.close(fd)
