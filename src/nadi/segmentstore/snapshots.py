"""Snapshots of a container's state in tier 2: from one of them and the log behind it the state is made again.

    snapshots/container-N/base-<id>-<part>     a compact copy of the state's file, 8 MiB of it in each part, compressed
    snapshots/container-N/delta-<id>           what checkpoints changed since, key by key, the last value of each
    snapshots/container-N/manifest-<number>    which base, which deltas, and the frame that they reach to

Objects are written once, under names of their own; the manifest, written last, makes them a snapshot, and the one with
the highest number that is whole counts. Its checksums are those of the objects as they are stored.
"""

from __future__ import annotations

import asyncio
import os
import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

import lmdb
import msgspec
from crc32c import crc32c

from nadi.errors import NadiError, NotFoundError
from nadi.limits import SNAPSHOT_PART_BYTES, STATE_MAP_BYTES
from nadi.segmentstore import commit
from nadi.segmentstore.checked import TABLES
from nadi.segmentstore.commit import Changes
from nadi.segmentstore.statecheck import STATE_FILE, inspect_file
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError

_CRC = struct.Struct("<I")
_BLOCK = struct.Struct("<I")
_BLOCK_CHANGES = 2_000  # encoded together: that holds up everybody else for less than a millisecond
_LEVEL = 1  # of zlib: 200 MB a second, to an eighth


class SnapshotError(NadiError):
    """A snapshot that can't be used, and why; `name` is that of the damaged object, where it is one."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name


class Part(msgspec.Struct, array_like=True, frozen=True):
    """One stored object."""

    name: str
    size_bytes: int
    crc: int


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot. The state it gives reflects the log up to `sequence`."""

    version: int
    container: int
    number: int
    sequence: int
    base: tuple[Part, ...]
    deltas: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.base + self.deltas


VERSION = 1
_Block = list[tuple[int, bytes, bytes | None]]  # (number of the table, key, value)
_encode = msgspec.msgpack.Encoder().encode
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode
_decode_block = msgspec.msgpack.Decoder(_Block).decode
_NUMBERS = {table: number for number, table in enumerate(TABLES)}


def folder_of(container: int) -> str:
    return f"snapshots/container-{container}"


def manifest_name(container: int, number: int) -> str:
    return f"{folder_of(container)}/manifest-{number:016d}"


def base_name(container: int, sequence: int) -> str:
    """What the names of a new base's parts begin with."""
    return f"{folder_of(container)}/base-{sequence:016x}-{uuid.uuid4().hex}"


def delta_name(container: int, sequence: int) -> str:
    return f"{folder_of(container)}/delta-{sequence:016x}-{uuid.uuid4().hex}"


# --- writing: what blocks is for a thread ----------------------------------------------------------


def packed(raw: bytes) -> bytes:
    """A part of a base as it is stored."""
    return zlib.compress(raw, _LEVEL)


def pack_changes(changes: Changes) -> bytes:
    """A delta as it is stored."""
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
    """The changes of a delta, some at a time."""
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


async def put_manifest(chunks: ChunkStore, manifest: Manifest) -> str:
    """Make the snapshot count; gives the manifest's name."""
    name = manifest_name(manifest.container, manifest.number)
    await chunks.put(name, [_stored_form(manifest)])
    return name


def _stored_form(manifest: Manifest) -> bytes:
    raw = _encode(manifest)
    return raw + _CRC.pack(crc32c(raw))


# --- reading ---------------------------------------------------------------------------------------


async def newest(chunks: ChunkStore, container: int) -> tuple[Manifest | None, list[str]]:
    """The snapshot that counts, and what is wrong with later ones.

    Raises:
        UnavailableError: tier 2 can't be read.
    """
    damaged = []
    listed = await chunks.listed(folder_of(container))
    for name in sorted((name for name in listed if "/manifest-" in name), reverse=True):
        try:
            raw = bytes(await chunks.read(name, 0, listed[name])) if listed[name] > _CRC.size else b"\0" * _CRC.size
        except NotFoundError:
            damaged.append(f"{name} is gone")
            continue
        except DiskReadError as error:
            damaged.append(str(error))
            continue
        manifest = _whole_manifest(raw, container)
        if manifest is not None:
            return manifest, damaged
        damaged.append(f"{name} is damaged")
    return None, damaged


async def last_number(chunks: ChunkStore, container: int) -> int:
    """The highest number that a manifest has, whole or not; 0 where there is none."""
    names = [name for name in await chunks.listed(folder_of(container)) if "/manifest-" in name]
    return max((int(digits) for name in names if (digits := name.rpartition("-")[2]).isdigit()), default=0)


def _whole_manifest(raw: bytes, container: int) -> Manifest | None:
    body = raw[: -_CRC.size]
    if _CRC.pack(crc32c(body)) != raw[-_CRC.size :]:
        return None
    try:
        manifest = _decode_manifest(body)
    except msgspec.DecodeError:
        return None
    return manifest if manifest.version == VERSION and manifest.container == container else None


async def missing(chunks: ChunkStore, manifest: Manifest) -> list[str]:
    """What the snapshot names and tier 2 has not, or not as large as it should be."""
    listed = await chunks.listed(folder_of(manifest.container))
    return [part.name for part in manifest.parts if listed.get(part.name) != part.size_bytes]


async def read_part(chunks: ChunkStore, part: Part) -> bytes:
    """An object, whole, as it is stored.

    Raises:
        SnapshotError: it is not there, or not what was stored.
        UnavailableError: tier 2 can't be read.
    """
    data = await _read(chunks, part.name, part.size_bytes)
    if len(data) != part.size_bytes or await asyncio.to_thread(crc32c, data) != part.crc:
        raise SnapshotError(f"{part.name} is damaged", part.name)
    return data


async def check_manifest(chunks: ChunkStore, manifest: Manifest) -> None:
    """See that a manifest is stored as it is.

    Raises: as `read_part`.
    """
    name, expected = manifest_name(manifest.container, manifest.number), _stored_form(manifest)
    if await _read(chunks, name, len(expected)) != expected:
        raise SnapshotError(f"{name} is damaged", name)


async def _read(chunks: ChunkStore, name: str, size_bytes: int) -> bytes:
    try:
        return bytes(await chunks.read(name, 0, size_bytes))
    except NotFoundError as error:
        raise SnapshotError(f"{name} is missing", name) from error
    except DiskReadError as error:
        raise SnapshotError(str(error), name) from error


async def restore(chunks: ChunkStore, manifest: Manifest, folder: Path) -> None:
    """Make the state that a snapshot gives in an empty folder; everything is checked, and durable when this returns.

    Raises:
        SnapshotError: an object is missing or damaged.
        UnavailableError: tier 2 can't be read.
        OSError: the folder can't be written.
    """
    file = folder / STATE_FILE
    for part in manifest.base:
        await asyncio.to_thread(_append_part, file, part, await read_part(chunks, part))
    await asyncio.to_thread(_check, file, manifest)  # before LMDB maps it
    for part in manifest.deltas:
        await asyncio.to_thread(_apply, folder, await read_part(chunks, part))
    if manifest.deltas:
        await asyncio.to_thread(_check, file, manifest)
    disk.sync_folder(folder)


def _append_part(file: Path, part: Part, stored: bytes) -> None:
    try:
        raw = zlib.decompress(stored)
    except zlib.error as error:
        raise SnapshotError(f"{part.name} can't be unpacked: {error}") from error
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        disk.write_all(descriptor, memoryview(raw), os.fstat(descriptor).st_size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _apply(folder: Path, stored: bytes) -> None:
    file = folder / STATE_FILE
    map_bytes = max(STATE_MAP_BYTES, 2 * file.stat().st_size + 20 * len(stored))
    with lmdb.open(str(folder), map_size=map_bytes, max_dbs=len(TABLES), mode=0o600) as env:
        tables = {name: env.open_db(name.encode()) for name in TABLES}
        for changes in unpack_changes(stored):
            while True:
                try:
                    commit.apply(env, tables, changes)
                except lmdb.MapFullError:
                    env.set_mapsize(2 * env.info()["map_size"])
                else:
                    break


def _check(file: Path, manifest: Manifest) -> None:
    inspected = inspect_file(file, manifest.container)
    if inspected.damage:
        raise SnapshotError(f"snapshot {manifest.number} of container {manifest.container}: {inspected.damage}")


def parts_of(file: Path) -> Iterator[bytes]:
    """A base's parts before they are packed; blocking."""
    with file.open("rb", buffering=0) as stream:
        while raw := stream.read(SNAPSHOT_PART_BYTES):
            yield raw
