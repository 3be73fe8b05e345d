"""A shard's object: what kind of thing it is, the names, sizes and checksums of tantivy's files, and then these.

b"nadi search 1\\n" | length of the list, 4 bytes | the list, as JSON | the files, end to end
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import crc32c
import msgspec

from nadi.errors import StoreError

_MAGIC = b"nadi search 1\n"
_LENGTH_BYTES = 4
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
    ids = {_id_of(segment) for segment in segments}
    bodies = {path.name: _body(path) for path in sorted(folder.iterdir()) if path.name.partition(".")[0] in ids}
    files = [_File(name, len(body), crc32c.crc32c(body)) for name, body in bodies.items()]
    listed = msgspec.json.encode(_List(files, segments))
    head = _MAGIC + len(listed).to_bytes(_LENGTH_BYTES, "big") + listed
    return [memoryview(head), *(body for body in bodies.values() if len(body))]


def unpack(data: memoryview, folder: Path, shard: str) -> list[msgspec.Raw]:
    """Write the files of an object into a folder; what tantivy's list has of them. StoreError if it is damaged."""
    at = len(_MAGIC) + _LENGTH_BYTES
    if data[: len(_MAGIC)] != _MAGIC:
        raise StoreError(f"the object {shard} is not a shard of an index that this nadi reads: see who wrote it")
    end = at + int.from_bytes(data[len(_MAGIC) : at], "big")
    try:
        listed = msgspec.json.decode(data[at:end], type=_List)
    except msgspec.MsgspecError as error:
        raise _damaged(shard) from error
    for file in listed.files:
        body = data[end : end + file.size_bytes]
        if (
            len(body) < file.size_bytes
            or crc32c.crc32c(body) != file.checksum
            or os.path.basename(file.name) != file.name
        ):
            raise _damaged(shard)
        (folder / file.name).write_bytes(body)
        end += file.size_bytes
    return listed.segments


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


def _id_of(segment: msgspec.Raw) -> str:
    found: str = msgspec.json.decode(segment)["segment_id"]
    return found.replace("-", "")


def _body(path: Path) -> memoryview:
    if path.stat().st_size < _LEAST:
        return memoryview(path.read_bytes())
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _damaged(shard: str) -> StoreError:
    return StoreError(f"the object {shard} of an index is damaged: drop the index and create it anew from its stream")
