"""A shard's object: what kind of thing it is, the names, sizes and checksums of tantivy's files, and then these.

b"nadi search 2\\n" | length of the list, its checksum, 4 bytes each | the list, as JSON | the files, end to end
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c
import msgspec

from nadi.errors import StoreError
from nadi.search.shards.manifest import FILE

_MAGIC = b"nadi search 2\n"
_LENGTHS = struct.Struct(">II")
_LEAST = 4 << 20  # a file that is larger isn't read, but mapped
META = "meta.json"


class _File(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size_bytes: int
    checksum: int


class _List(msgspec.Struct, frozen=True):
    """segments: tantivy's of them, as its own list of files has them."""

    files: list[_File]
    segments: list[msgspec.Raw]


class _Meta(msgspec.Struct):
    """What we need of tantivy's list."""

    segments: list[msgspec.Raw]


def packed(folder: Path) -> list[memoryview]:
    """The parts of the object of tantivy's folder."""
    segments = msgspec.json.decode((folder / META).read_bytes(), type=_Meta).segments
    ids = {msgspec.json.decode(segment)["segment_id"].replace("-", "") for segment in segments}
    bodies = {path.name: _body(path) for path in sorted(folder.iterdir()) if path.name.partition(".")[0] in ids}
    files = [_File(name, len(body), crc32c.crc32c(body)) for name, body in bodies.items()]
    listed = msgspec.json.encode(_List(files, segments))
    head = _MAGIC + _LENGTHS.pack(len(listed), crc32c.crc32c(listed)) + listed
    return [memoryview(head), *(body for body in bodies.values() if len(body))]


def unpack(data: memoryview, folder: Path, shard: str) -> list[msgspec.Raw]:
    """Write the files of an object into a folder; what tantivy's list has of them. StoreError if it is damaged."""
    listed, _ = _listed(data, shard)
    for file, body in _bodies(data, shard):
        (folder / file.name).write_bytes(body)
    return listed.segments


def check(data: memoryview, shard: str) -> None:
    """StoreError if an object is damaged."""
    for _ in _bodies(data, shard):
        pass


def head_of(data: memoryview, shard: str) -> memoryview:
    """The part of an object that `check_files` takes."""
    return data[: _listed(data, shard)[1]]


def check_files(folder: Path, head: bytes, shard: str) -> list[msgspec.Raw]:
    """What tantivy's list has of the files of an object that are in a folder. StoreError if they are not those."""
    listed, _ = _listed(memoryview(head), shard)
    for file in listed.files:
        body = _body(folder / file.name)
        if len(body) != file.size_bytes or crc32c.crc32c(body) != file.checksum:
            raise _damaged(shard)
    if {path.name for path in files_in(folder)} != {file.name for file in listed.files}:
        raise _damaged(shard)
    return listed.segments


def _listed(data: memoryview, shard: str) -> tuple[_List, int]:
    """An object's list, and where its files begin."""
    at = len(_MAGIC) + _LENGTHS.size
    if data[: len(_MAGIC)] != _MAGIC:
        raise StoreError(f"the object {shard} is not a shard of an index that this nadi reads: see who wrote it")
    if len(data) < at:
        raise _damaged(shard)
    length, checksum = _LENGTHS.unpack(data[len(_MAGIC) : at])
    raw = data[at : at + length]
    if len(raw) < length or crc32c.crc32c(raw) != checksum:
        raise _damaged(shard)
    try:
        listed = msgspec.json.decode(raw, type=_List)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(shard) from error
    if not all(FILE.match(file.name) and file.size_bytes >= 0 for file in listed.files):
        raise _damaged(shard)
    return listed, at + length


def _bodies(data: memoryview, shard: str) -> Iterator[tuple[_File, memoryview]]:
    listed, at = _listed(data, shard)
    for file in listed.files:
        body = data[at : at + file.size_bytes]
        if len(body) < file.size_bytes or crc32c.crc32c(body) != file.checksum:
            raise _damaged(shard)
        yield file, body
        at += file.size_bytes


def write_meta(folder: Path, like: bytes, segments: list[msgspec.Raw]) -> None:
    """Make the segments whose files are in a folder one index of tantivy's. like: the list of any index of its kind."""
    meta = msgspec.json.decode(like)
    meta["segments"] = segments
    meta["opstamp"] = 0
    written = folder / f".{META}"
    written.write_bytes(msgspec.json.encode(meta))
    written.rename(folder / META)


def files_in(folder: Path) -> Iterator[Path]:
    """Those of the segments."""
    return (path for path in folder.iterdir() if not path.name.startswith(".") and path.name != META)


def _body(path: Path) -> memoryview:
    if path.stat().st_size < _LEAST:
        return memoryview(path.read_bytes())
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _damaged(shard: str) -> StoreError:
    return StoreError(f"the object {shard} of an index is damaged: drop the index and create it anew from its stream")
