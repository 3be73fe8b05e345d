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
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from nadi.backoff import Backoff
from nadi.client.aio import KeyValueTable, KeyValueTableConfiguration, Put, Remove, StreamManager, TableKey, Version
from nadi.errors import ClosedError, ConditionFailedError, ConflictError, UnavailableError
from nadi.ingest.files.disk import FileId, Head, OpenFile, folder_of

_BEGUN, _OWNER = bytes(16), b"\xff" * 16  # in place of ids: whether a name has been at work before, and who is now
_AT_ONCE = 1_000  # entries in one update, of some 300 bytes each
T = TypeVar("T")


class Place(msgspec.Struct):
    """Of one file. id: of its writer. key: the routing key of lines that have no other, its first path. offset: all
    before it is stored; last_…: what is just before it. forced: where an event after it was forced to end. epoch: of
    the stream, when it was found. folder: where the file really is, if `path` goes through links."""

    id: bytes
    device: int
    inode: int
    path: str
    key: str
    head_bytes: int
    head_digest: str
    epoch: int
    offset: int = 0
    last_bytes: int = 0
    last_digest: str = ""
    forced: int = 0
    seen_s: float = 0.0
    folder: str = ""

    def __post_init__(self) -> None:
        if not self.folder:  # kept by an older version, or new
            self.path = os.path.abspath(self.path)
            self.folder = folder_of(self.path)

    @property
    def file(self) -> FileId:
        return FileId(self.device, self.inode)

    @property
    def head(self) -> Head:
        return Head(self.head_bytes, self.head_digest)

    def is_in(self, file: OpenFile) -> bool:
        """Whether it may be one in this file, by how that begins, and by what it has just before it."""
        if file.size < self.offset or not file.begins_so(self.head):
            return False
        return not self.last_bytes or file.has_before(self.offset, Head(self.last_bytes, self.last_digest))

    def goes_on_in(self, file: OpenFile) -> None:
        """The file has another's content now, of which it is the copy."""
        self.device, self.inode, self.folder = *file.id, file.folder

    def is_at(self, offset: int, last: Head) -> None:
        """All before it is stored."""
        self.offset, self.last_bytes, self.last_digest = offset, last.size, last.digest


class Places:
    """Those that one name has in one stream. Calls wait until the server is there.

    Whoever opens them last has them: each change is conditional on that, in one update with it. ConflictError from any
    call says that somebody else has them now, who may know of files that this one doesn't.
    """

    def __init__(self, table: KeyValueTable, name: str) -> None:
        self._table, self._said, self._name = table, name, hashlib.sha256(name.encode()).digest()[:16]
        self._me, self._version = uuid.uuid4().bytes, Version(0, 0)
        self._turn = asyncio.Lock()
        self.were_begun = False

    @classmethod
    async def open(cls, manager: StreamManager, scope: str, stream: str, name: str) -> Places:
        table = f"ingest-{stream}"
        config = KeyValueTableConfiguration(partitions=1, primary_key_bytes=16, secondary_key_bytes=16)
        await patiently(lambda: manager.create_key_value_table(scope, table, config))
        places = cls(await patiently(lambda: manager.key_value_table(scope, table)), name)
        owner = TableKey(places._name, _OWNER)
        places._version = await patiently(lambda: places._table.put(owner, places._me))
        return places

    async def load(self) -> list[Place]:
        async def load() -> list[Place]:
            found = []
            async for entry in self._table.entries(primary=self._name):
                if entry.key.secondary == _BEGUN:
                    self.were_begun = True
                elif entry.key.secondary != _OWNER:
                    found.append(msgspec.msgpack.decode(entry.value, type=Place))
            return found

        return await patiently(load)

    async def begin(self) -> None:
        """From now on a file that isn't known is a new one."""
        await self._change([Put(TableKey(self._name, _BEGUN), b"")])
        self.were_begun = True

    async def keep(self, places: Sequence[Place]) -> None:
        for at in range(0, len(places), _AT_ONCE):
            few = places[at : at + _AT_ONCE]
            for place in few:
                place.seen_s = time.time()
            await self._change([Put(TableKey(self._name, one.id), msgspec.msgpack.encode(one)) for one in few])

    async def forget(self, places: Sequence[Place]) -> None:
        keys = [TableKey(self._name, place.id) for place in places]
        for at in range(0, len(keys), _AT_ONCE):
            await self._change([])
            removals = list(map(Remove, keys[at : at + _AT_ONCE]))
            await patiently(partial(self._table.update, removals))

    async def _change(self, puts: list[Put]) -> None:
        async with self._turn:  # an older state that is sent again mustn't come after a newer one
            await patiently(lambda: self._try(puts))

    async def _try(self, puts: list[Put]) -> None:
        owner = TableKey(self._name, _OWNER)
        try:
            version, *_ = await self._table.update([Put(owner, self._me, self._version), *puts])
            assert version is not None, "what was put has a version"
            self._version = version
        except ConditionFailedError:
            found = await self._table.get(owner)
            if found is None or found.value != self._me:
                raise ConflictError(
                    f"another nadi ingest was started by the name {self._said!r}, on this machine or another, and goes "
                    "on from here: give one of them another --name"
                ) from None
            self._version = found.version
            raise UnavailableError("the answer to a change of positions was lost") from None


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
