"""Snapshots of a container's state in tier 2: the state can be rebuilt from one of them and the log after it.

    snapshots/container-N/base-<id>-<part>     a compact copy of the state's file, 8 MiB of it in each part, compressed
    snapshots/container-N/delta-<id>           what checkpoints changed since, key by key, the last value of each
    snapshots/container-N/manifest-<number>    which base, which deltas, and the frame that they reach to; and the base
                                               before, with its deltas, which takes a damaged one's place
    snapshots/container-N/manifest-<number>-copy   the same, so that no damage to one object costs the snapshot

Objects are written under unique names; the manifest, written last, makes them a snapshot, and the one with the
highest number that is intact, in either place, counts. Its checksums are those of the objects as stored.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from crc32c import crc32c

from nadi.errors import NadiError, NotFoundError
from nadi.limits import SNAPSHOT_PART_BYTES
from nadi.segmentstore.state.checked import TABLES
from nadi.segmentstore.state.commit import Changes
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError

log = logging.getLogger(__name__)

_CRC = struct.Struct("<I")
_BLOCK = struct.Struct("<I")
_BLOCK_CHANGES = 2_000  # encoded together: that blocks everybody else for less than a millisecond
_LEVEL = 1  # of zlib: 200 MB/s, to an eighth of the size


class SnapshotError(NadiError):
    """A snapshot can't be used; `name` is the damaged object's, if there is one."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name


class Part(msgspec.Struct, array_like=True, frozen=True):
    """One stored object. crc: of its bytes."""

    name: str
    size_bytes: int
    crc: int


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot. The state restored from it reflects the log up to `sequence`.

    former_base, former_deltas: the base before, and what was changed since up to this one. With `deltas`, they restore
    the same state if `base` is damaged.
    """

    version: int
    container: int
    number: int
    sequence: int
    base: tuple[Part, ...]
    deltas: tuple[Part, ...]
    former_base: tuple[Part, ...] = ()
    former_deltas: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.base + self.deltas + self.former_base + self.former_deltas


VERSION = 1
_MANIFEST = re.compile(r".*/manifest-(\d+)(-copy)?")
_Block = list[tuple[int, bytes, bytes | None]]  # (number of the table, key, value)
_encode = msgspec.msgpack.Encoder().encode
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode
_decode_block = msgspec.msgpack.Decoder(_Block).decode
_NUMBERS = {table: number for number, table in enumerate(TABLES)}


def folder_of(container: int) -> str:
    return f"snapshots/container-{container}"


def manifest_name(container: int, number: int) -> str:
    return f"{folder_of(container)}/manifest-{number:016d}"


def manifest_names(container: int, number: int) -> tuple[str, str]:
    """Return the two names under which a manifest is stored."""
    name = manifest_name(container, number)
    return name, f"{name}-copy"


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


async def put_manifest(chunks: ChunkStore, manifest: Manifest) -> None:
    """Make the snapshot count, as it does once the first of the two manifests is durable.

    Raises:
        UnavailableError, StorageFullError: neither is.
    """
    first, second = manifest_names(manifest.container, manifest.number)
    await chunks.put(first, [_stored_form(manifest)])
    try:
        await chunks.put(second, [_stored_form(manifest)])
    except NadiError as error:  # `renew_manifest` tries again, or the next one has two
        log.warning("%s could not be stored, so its snapshot hangs by one object: %s", second, error)


async def renew_manifest(chunks: ChunkStore, manifest: Manifest) -> list[str]:
    """Make sure that a manifest is stored in both its places, storing it again if it isn't; return what was wrong.

    Raises:
        SnapshotError: it is in neither, and can't be stored.
        UnavailableError: tier 2 can't be read.
    """
    wrong = await wrong_manifests(chunks, manifest)
    for name, what in wrong.items():
        try:
            await chunks.replace(name, [_stored_form(manifest)])
        except NadiError as error:
            if len(wrong) == len(manifest_names(manifest.container, manifest.number)):
                raise SnapshotError(f"{what}, and it can't be stored again: {error}", name) from error
            log.warning("%s, and can't be stored again: %s", what, error)
    return list(wrong.values())


async def wrong_manifests(chunks: ChunkStore, manifest: Manifest) -> dict[str, str]:
    """Return what is wrong with a manifest as stored, by the name of the object.

    Raises:
        UnavailableError: tier 2 can't be read.
    """
    wrong = {}
    expected = _stored_form(manifest)
    listed = await chunks.listed(folder_of(manifest.container))
    for name in manifest_names(manifest.container, manifest.number):
        try:
            size_bytes = max(listed.get(name, 0), len(expected))  # a longer one isn't what was stored
            if await _read(chunks, name, size_bytes) != expected:
                wrong[name] = f"{name} is damaged"
        except SnapshotError as error:
            wrong[name] = str(error)
    return wrong


def _stored_form(manifest: Manifest) -> bytes:
    raw = _encode(manifest)
    return raw + _CRC.pack(crc32c(raw))


# --- reading ---------------------------------------------------------------------------------------


async def newest(chunks: ChunkStore, container: int) -> tuple[Manifest | None, list[str]]:
    """Return the snapshot that counts, and what is wrong with later ones.

    Raises:
        UnavailableError: tier 2 can't be read.
    """
    damaged: list[str] = []
    listed = await chunks.listed(folder_of(container))
    for _, names in sorted(_manifests(listed).items(), reverse=True):
        wrong = []
        for name in sorted(names):
            try:
                raw = await _read(chunks, name, listed[name]) if listed[name] else b""
            except SnapshotError as error:
                wrong.append(str(error))
                continue
            manifest = _whole_manifest(raw, container)
            if manifest is not None:
                return manifest, damaged
            wrong.append(f"{name} is damaged")
        damaged += wrong
    return None, damaged


def _manifests(names: Iterable[str]) -> dict[int, list[str]]:
    """The names of manifests among these, by number."""
    found: dict[int, list[str]] = {}
    for name in names:
        match = _MANIFEST.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(name)
    return found


async def last_number(chunks: ChunkStore, container: int) -> int:
    """Return the highest number of any manifest, intact or not; 0 if there is none."""
    return max(_manifests(await chunks.listed(folder_of(container))), default=0)


def _whole_manifest(raw: bytes, container: int) -> Manifest | None:
    body = raw[: -_CRC.size]
    if not body or _CRC.pack(crc32c(body)) != raw[-_CRC.size :]:
        return None
    try:
        manifest = _decode_manifest(body)
    except msgspec.DecodeError:
        return None
    return manifest if manifest.version == VERSION and manifest.container == container else None


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
