"""Snapshots of a container's state in tier 2: the state can be rebuilt from one of them and the log after it.

    snapshots/container-N/base-<id>-<part>     a compact copy of the state's file, 8 MiB of it in each part, compressed
    snapshots/container-N/delta-<id>           what checkpoints changed since, key by key, the last value of each

Objects are written under unique names. The container's record has the manifest, set last: which base, which deltas, and
the frame that they reach to; and the base before, with its deltas, which takes a damaged one's place. Its checksums are
those of the objects as stored.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from crc32c import crc32c

from nadi.errors import NadiError, NotFoundError, UnavailableError
from nadi.limits import SNAPSHOT_PART_BYTES
from nadi.segmentstore.state.checked import TABLES
from nadi.segmentstore.state.commit import Changes
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.records import ContainerRecord, DamagedRecordError, Manifest, Part, check_stays

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
    await chunks.put(name, [data])
    return Part(name, len(data), crc32c(data))


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
            chunks.check_room(len(stored))
            parts.append(await put(chunks, f"{name}-{len(parts):06d}", stored))
    except NadiError:
        await delete_all(chunks, [part.name for part in parts])  # the next try makes its own
        raise
    return tuple(parts)


async def delete_all(chunks: ChunkStore, names: Iterable[str]) -> None:
    """Delete objects that nothing names; one that stays is garbage for whoever finds it next."""
    for name in names:
        with contextlib.suppress(NadiError):
            await chunks.delete(name)


# --- reading ---------------------------------------------------------------------------------------


async def newest(chunks: ChunkStore, container: int) -> tuple[Manifest | None, list[str]]:
    """Return the snapshot that counts, and what is wrong with the record that names it.

    Raises:
        UnavailableError: tier 2 can't be read.
    """
    try:
        return (await (await chunks.records()).read(container)).record.snapshot, []
    except DamagedRecordError as error:
        return None, [str(error)]


async def begins_log(chunks: ChunkStore, folder: Path, container: int) -> ContainerRecord | None:
    """Return the record of a container in a folder that a migration has filled: its log begins after the snapshot, and
    nobody has begun it. None: it isn't so, or the record can't be read. StoreError: its data was moved elsewhere."""
    try:
        record = (await (await chunks.records()).read(container)).record
    except (DamagedRecordError, UnavailableError):  # whoever needs it gets the error
        return None
    check_stays(record)
    has_log = await chunks.runtime.in_thread(lambda: any((folder / "log").glob("log-*.nadi")))
    return record if record.start.epoch and not has_log else None


async def missing(chunks: ChunkStore, manifest: Manifest) -> list[str]:
    """Return the objects that the snapshot names but tier 2 doesn't have, or not in the correct size."""
    listed = await chunks.listed(folder_of(manifest.container))
    return [part.name for part in manifest.parts if listed.get(part.name) != part.size_bytes]


async def read_part(chunks: ChunkStore, part: Part) -> bytes:
    """Return a complete object, as stored.

    Raises:
        SnapshotError: it is missing, or not what was stored.
        UnavailableError: tier 2 can't be read.
    """
    data = await _read(chunks, part.name, part.size_bytes)
    if len(data) != part.size_bytes or await chunks.runtime.in_thread(crc32c, data) != part.crc:
        raise SnapshotError(f"{part.name} is damaged", part.name)
    return data


async def _read(chunks: ChunkStore, name: str, size_bytes: int) -> bytes:
    try:
        return bytes(await chunks.read(name, 0, size_bytes))
    except NotFoundError as error:
        raise SnapshotError(f"{name} is missing", name) from error
    except DiskReadError as error:
        raise SnapshotError(str(error), name) from error


def parts_of(file: Path) -> Iterator[bytes]:
    """Yield a base's parts before they are packed; blocking."""
    with file.open("rb", buffering=0) as stream:
        while raw := stream.read(SNAPSHOT_PART_BYTES):
            yield raw
