"""Snapshots of a container's state in tier 2: a state is restored from one of them and the log after it.

    snapshots/container-N/base-<id>-<part>     a compact copy of the state's file, 8 MiB of it in each part, compressed
    snapshots/container-N/delta-<id>           what checkpoints changed since, key by key, the last value of each

Each object is stored twice, the second time with `-copy` at the end of its name, under names that nothing else gets.
The container's record has the manifest, set last: which base, which deltas, and the frame that they reach to. Its
checksums are those of the objects as stored.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from crc32c import crc32c

from nadi.errors import NadiError, NotFoundError
from nadi.limits import SNAPSHOT_PART_BYTES
from nadi.segmentstore.state.commit import Changes
from nadi.segmentstore.state.stored import TABLES
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.records import Part

_BLOCK = struct.Struct("<I")
_BLOCK_CHANGES = 2_000  # encoded together: that blocks everybody else for less than a millisecond
_LEVEL = 1  # of zlib: 200 MB/s, to an eighth of the size


class SnapshotError(NadiError):
    """A snapshot can't be used; `name` is the damaged object's, if there is one."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name


_Block = list[tuple[int, bytes, bytes | None]]  # (number of the table, key, value)
_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_Block).decode
_NUMBERS = {table: number for number, table in enumerate(TABLES)}


def folder_of(container: int) -> str:
    return f"snapshots/container-{container}"


def base_name(container: int, sequence: int, unique: str) -> str:
    """Return the prefix of the names of a new base's parts."""
    return f"{folder_of(container)}/base-{sequence:016x}-{unique}"


def delta_name(container: int, sequence: int, unique: str) -> str:
    return f"{folder_of(container)}/delta-{sequence:016x}-{unique}"


# --- writing: blocking functions are for a thread --------------------------------------------------


def packed(raw: bytes) -> bytes:
    """Return a part of a base in its stored form."""
    return zlib.compress(raw, _LEVEL)


def pack_changes(changes: Changes) -> bytes:
    """Return a delta in its stored form."""
    packer = zlib.compressobj(_LEVEL)
    stored = []
    block: _Block = []

    def add() -> None:
        raw = _encode(block)
        stored.append(packer.compress(_BLOCK.pack(len(raw)) + raw))
        block.clear()

    for table, rows in changes.items():
        for key, value in rows.items():
            block.append((_NUMBERS[table], key, value))
            if len(block) == _BLOCK_CHANGES:
                add()
    if block:
        add()
    return b"".join(stored) + packer.flush()


def unpack_changes(stored: bytes) -> Iterator[Changes]:
    """Yield the changes of a delta, some at a time."""
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


async def put(chunks: ChunkStore, name: str, data: bytes) -> Part:
    """Store a piece of a snapshot, twice, under a new name. If that fails, both are deleted, as far as possible.

    Raises:
        UnavailableError, StorageFullError: it isn't stored.
    """
    part = Part(name, len(data), crc32c(data))
    try:
        for each in part.names:
            await chunks.put(each, [data])
    except NadiError:
        await delete_all(chunks, part.names)  # the next try makes its own
        raise
    return part


async def put_base(chunks: ChunkStore, container: int, sequence: int, file: Path) -> tuple[Part, ...]:
    """Store a state's file as a base under new names, and return its parts. If that fails, none of them is left, as far
    as they can be deleted.

    Raises:
        UnavailableError, StorageFullError: it isn't stored.
    """
    in_thread = chunks.runtime.in_thread
    name = base_name(container, sequence, chunks.runtime.unique())
    parts: list[Part] = []
    pieces = parts_of(file)
    try:
        while (raw := await in_thread(next, pieces, None)) is not None:
            stored = await in_thread(packed, raw)
            chunks.check_room(2 * len(stored))
            parts.append(await put(chunks, f"{name}-{len(parts):06d}", stored))
    except NadiError:
        await delete_all(chunks, [name for part in parts for name in part.names])
        raise
    return tuple(parts)


async def delete_all(chunks: ChunkStore, names: Iterable[str]) -> None:
    """Delete objects that nothing names; one that stays is garbage for whoever finds it next."""
    for name in names:
        with contextlib.suppress(NadiError):
            await chunks.delete(name)


# --- reading ---------------------------------------------------------------------------------------


async def read_part(chunks: ChunkStore, part: Part, damaged: list[str]) -> bytes:
    """Return a piece as stored, from its copy if it is damaged, which is noted.

    Raises:
        SnapshotError: it is missing, or not what was stored, and so is its copy.
        UnavailableError: tier 2 can't be read.
    """
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


async def read_object(chunks: ChunkStore, name: str, part: Part) -> bytes:
    """Return one of the two objects of a piece. Raises: as `read_part`."""
    try:
        data = bytes(await chunks.read(name, 0, part.size_bytes))
    except NotFoundError as error:
        raise SnapshotError(f"{name} is missing", name) from error
    except DiskReadError as error:
        raise SnapshotError(str(error), name) from error
    if len(data) != part.size_bytes or await chunks.runtime.in_thread(crc32c, data) != part.crc:
        raise SnapshotError(f"{name} is damaged", name)
    return data


def parts_of(file: Path) -> Iterator[bytes]:
    """Yield a base's parts before they are packed; blocking."""
    with file.open("rb", buffering=0) as stream:
        while raw := stream.read(SNAPSHOT_PART_BYTES):
            yield raw
