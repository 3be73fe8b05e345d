"""Stores snapshots of a container's state in tier 2: a state is restored from one of them and the log after it.

    snapshots/container-N/base-<id>-<part>     a compact copy of the state's file, 8 MiB in each part, compressed
    snapshots/container-N/delta-<id>           changes of checkpoints since then, by key, with the last value

Each object is stored twice, the second time with the suffix `-copy`, under unique names. The container's record has the
manifest, set last: the base, the deltas, and the frame that they reflect. Its checksums are those of the objects as
stored; in an encrypted store, each object is one sealed block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from crc32c import crc32c

from nadi import limits
from nadi.encryption.sealing import SealBrokenError, Sealing
from nadi.errors import NadiError, NotFoundError
from nadi.segmentstore.state.commit import Changes
from nadi.segmentstore.state.metadata import STATE_FILE, ContainerMetadata
from nadi.segmentstore.state.stored import TABLES
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.records import SnapshotManifest, SnapshotPart

_BLOCK = struct.Struct("<I")
_BLOCK_CHANGES = 2_000  # encoded together: blocks the loop for less than a millisecond
_LEVEL = 1  # zlib's level: 200 MB/s, to an eighth of the size


class SnapshotError(NadiError):
    """A snapshot can't be used. name: the damaged object's, if known."""

    def __init__(self, problem: str, name: str = "") -> None:
        super().__init__(problem)
        self.name = name


_Block = list[tuple[int, bytes, bytes | None]]  # (number of the table, key, value)
_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_Block).decode
_NUMBERS = {table: number for number, table in enumerate(TABLES)}


def folder_of(container: int) -> str:
    return f"snapshots/container-{container}"


def base_name(container: int, sequence: int, unique: str) -> str:
    return f"{folder_of(container)}/base-{sequence:016x}-{unique}"


def delta_name(container: int, sequence: int, unique: str) -> str:
    return f"{folder_of(container)}/delta-{sequence:016x}-{unique}"


def pack_changes(changes: Changes) -> bytes:
    packer, stored = zlib.compressobj(_LEVEL), []
    changed = ((_NUMBERS[table], key, value) for table, rows in changes.items() for key, value in rows.items())
    while block := list(islice(changed, _BLOCK_CHANGES)):
        raw = _encode(block)
        stored.append(packer.compress(_BLOCK.pack(len(raw)) + raw))
    return b"".join(stored) + packer.flush()


def unpack_changes(stored: bytes) -> Iterator[Changes]:
    try:
        raw = zlib.decompress(stored)
        at = 0
        while at < len(raw):
            (size,) = _BLOCK.unpack_from(raw, at)
            block = _decode_block(raw[at + _BLOCK.size : at + _BLOCK.size + size])
            changes: Changes = {}
            for table, key, value in block:
                changes.setdefault(TABLES[table], {})[key] = value
            yield changes
            at += _BLOCK.size + size
    except (zlib.error, struct.error, msgspec.DecodeError, IndexError) as error:
        raise SnapshotError(f"a delta can't be unpacked: {error}") from error


async def put(chunks: ChunkStore, name: str, data: bytes) -> SnapshotPart:
    """Store a part of a snapshot, twice, under a new name. If that fails, both are deleted, as far as possible.
    UnavailableError, StorageFullError: it isn't stored."""
    data = bytes(chunks.sealing.seal(data, name.encode()))
    part = SnapshotPart(name, len(data), crc32c(data))
    try:
        for each in part.names:
            await chunks.put(each, [data])
    except NadiError:
        await delete_all(chunks, part.names)  # the next attempt creates new ones
        raise
    return part


async def put_base(chunks: ChunkStore, container: int, sequence: int, file: Path) -> tuple[SnapshotPart, ...]:
    """Store a state's file as a base under new names, and return its parts. If that fails, all are deleted, as far as
    possible. UnavailableError, StorageFullError: it isn't stored."""
    in_thread = chunks.runtime.in_thread
    name = base_name(container, sequence, chunks.runtime.unique())
    parts: list[SnapshotPart] = []

    def piece() -> bytes:
        with file.open("rb") as stream:
            stream.seek(len(parts) * limits.SNAPSHOT_PART_BYTES)
            return stream.read(limits.SNAPSHOT_PART_BYTES)

    try:
        while raw := await in_thread(piece):
            stored = await in_thread(zlib.compress, raw, _LEVEL)
            chunks.check_free_space(2 * len(stored))
            parts.append(await put(chunks, f"{name}-{len(parts):06d}", stored))
    except NadiError:
        await delete_all(chunks, [name for part in parts for name in part.names])
        raise
    return tuple(parts)


async def delete_all(chunks: ChunkStore, names: Iterable[str]) -> None:
    """Delete unreferenced objects; one that can't be deleted stays as garbage."""
    for name in names:
        with contextlib.suppress(NadiError):
            await chunks.delete(name)


async def read_part(chunks: ChunkStore, part: SnapshotPart, damaged: list[str]) -> bytes:
    """Return a part's contents, from its copy if it is damaged, which is added to `damaged`. SnapshotError: both are
    missing or damaged. UnavailableError: tier 2 can't be read."""
    wrong: list[str] = []
    for name in part.names:
        try:
            data = await read_object(chunks, name, part)
        except SnapshotError as error:
            wrong.append(str(error))
        else:
            damaged += wrong
            return data
    raise SnapshotError(", and ".join(wrong), part.name)


async def read_object(chunks: ChunkStore, name: str, part: SnapshotPart) -> bytes:
    """Return the contents of one of the two objects of a part. Raises as `read_part`."""
    try:
        data = bytes(await chunks.read(name, 0, part.size_bytes))
    except NotFoundError as error:
        raise SnapshotError(f"{name} is missing", name) from error
    except DiskReadError as error:
        raise SnapshotError(str(error), name) from error
    opened = await chunks.runtime.in_thread(_opened, data, part, chunks.sealing)
    if opened is None:
        raise SnapshotError(f"{name} is damaged", name)
    return opened


def _opened(stored: bytes, part: SnapshotPart, sealing: Sealing) -> bytes | None:
    """Return the contents of an object, or None if it is damaged; blocking."""
    if len(stored) != part.size_bytes or crc32c(stored) != part.crc:
        return None
    try:
        return bytes(sealing.open(stored, part.name.encode()))
    except SealBrokenError:
        return None


async def restored(
    chunks: ChunkStore, container: int, snapshot: SnapshotManifest | None, folder: Path
) -> tuple[ContainerMetadata, list[str]]:
    """Restore the state of a snapshot, or an empty state, in a folder whose old contents are deleted. Return it, and
    the problems of objects whose copies were used instead. SnapshotError: an object and its copy are missing or
    damaged. StorageFullError, UnavailableError, OSError: the folder can't be written, or tier 2 can't be read."""
    copy = StateCopy(chunks, container, folder)
    return await copy.take(snapshot), copy.damaged


class StateCopy:
    """A state that follows a container's snapshots, in a folder whose old contents are deleted. damaged: problems of
    objects whose copies were used instead."""

    def __init__(self, chunks: ChunkStore, container: int, folder: Path) -> None:
        self.damaged: list[str] = []
        self._chunks, self._container, self._folder = chunks, container, folder
        self._metadata: ContainerMetadata | None = None
        self._snapshot: SnapshotManifest | None = None

    async def take(self, snapshot: SnapshotManifest | None) -> ContainerMetadata:
        """Follow a snapshot, and leave the state to the caller. Raises as `restored`."""
        metadata = await self.follow(snapshot)
        self._metadata = self._snapshot = None
        return metadata

    async def follow(self, snapshot: SnapshotManifest | None) -> ContainerMetadata:
        """Restore the state of a snapshot: after an earlier one of the same base, read only the deltas since. Raises as
        `restored`; nothing stays open then."""
        in_thread, sealing = self._chunks.runtime.in_thread, self._chunks.sealing
        folder = sealing.hidden(self._folder)
        former = self._snapshot
        base, deltas = (snapshot.base, snapshot.deltas) if snapshot is not None else ((), ())
        try:
            if former is not None and (former.base, former.deltas) == (base, deltas[: len(former.deltas)]):
                deltas = deltas[len(former.deltas) :]
            else:
                self.close()
                self.damaged.clear()
                await in_thread(shutil.rmtree, folder, True)
                await in_thread(folder.mkdir, 0o700, True)
                async for stored in _read(self._chunks, base, self.damaged):
                    await in_thread(_append, folder / STATE_FILE, stored)
            if self._metadata is None:
                self._metadata = await in_thread(ContainerMetadata, folder, self._container)
                self._metadata.sealing = sealing
            async for stored in _read(self._chunks, deltas, self.damaged):
                await in_thread(self._metadata.apply, unpack_changes(stored))
            if snapshot is not None and self._metadata.state().sequence != snapshot.sequence:
                problem = f"the snapshot of container {self._container} doesn't reflect frame {snapshot.sequence:,}"
                raise SnapshotError(problem)
            self._snapshot = snapshot
        except BaseException:
            self.close()
            raise
        return self._metadata

    def close(self) -> None:
        metadata, self._metadata, self._snapshot = self._metadata, None, None
        if metadata is not None:
            metadata.close()


async def _read(chunks: ChunkStore, parts: Sequence[SnapshotPart], damaged: list[str]) -> AsyncIterator[bytes]:
    reading: deque[asyncio.Task[bytes]] = deque()
    try:
        for at in range(len(parts)):
            for further in parts[at + len(reading) : at + limits.SNAPSHOT_READ_AHEAD]:
                reading.append(asyncio.create_task(read_part(chunks, further, damaged)))
            yield await reading.popleft()
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


def _append(file: Path, stored: bytes) -> None:
    try:
        raw = zlib.decompress(stored)
    except zlib.error as error:
        raise SnapshotError(f"a part of a base can't be unpacked: {error}") from error
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        disk.write_all(descriptor, memoryview(raw), os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
