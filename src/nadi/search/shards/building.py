"""Builds a shard from events, or merges several; a shard is one object.

b"nadi search 2\\n" | length of the list, its checksum, 4 bytes each | the list, as JSON | tantivy's files, concatenated

Each event has an *order*, by which hits are listed newest first: its arrival time in microseconds, with its segment's
number in the low bits; it ascends within a segment. In a backfilled history orders don't
decrease, and the few events that share one are listed by position. So a page of hits can end after any event.

Tantivy merges segments by its own rule, so `to_merge` groups shards by the same rule; segments that tantivy doesn't
merge stay separate within the shard and are searched all the same.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c
import msgspec
import numpy as np

from nadi.encryption.sealing import scratch
from nadi.errors import StoreError
from nadi.limits import SEARCH_REASON_CHARS, SEARCH_WRITER_BYTES
from nadi.model.event import EventBlock
from nadi.naming import segment_number
from nadi.search.fields import (
    OFFSET,
    ORDER,
    ORDER_BITS,
    SEGMENT,
    SIZE,
    TIMES,
    Field,
    Format,
    InvalidEventError,
    facet_of,
    name_of,
    prepared,
    reader_of,
    schema_of,
)
from nadi.search.shards.manifest import FILE, IndexedRange, Numbers, Shard, Span

_MAGIC = b"nadi search 2\n"
_LENGTHS = struct.Struct(">II")
_LEAST = 4 << 20  # larger files are mapped instead of read
META = "meta.json"


class _ShardFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size_bytes: int
    checksum: int


class _List(msgspec.Struct, frozen=True):
    files: list[_ShardFile]
    segments: list[msgspec.Raw]


class _Meta(msgspec.Struct):
    """The part of tantivy's list that is needed here."""

    segments: list[msgspec.Raw]


def packed(folder: Path) -> list[memoryview]:
    segments = msgspec.json.decode((folder / META).read_bytes(), type=_Meta).segments
    ids = {msgspec.json.decode(segment)["segment_id"].replace("-", "") for segment in segments}
    bodies = {path.name: _body(path) for path in sorted(folder.iterdir()) if path.name.partition(".")[0] in ids}
    files = [_ShardFile(name, len(body), crc32c.crc32c(body)) for name, body in bodies.items()]
    listed = msgspec.json.encode(_List(files, segments))
    head = _MAGIC + _LENGTHS.pack(len(listed), crc32c.crc32c(listed)) + listed
    return [memoryview(head), *(body for body in bodies.values() if len(body))]


def unpack(data: memoryview, folder: Path, shard: str) -> list[msgspec.Raw]:
    """Write an object's files into a folder; return their entries in tantivy's list. StoreError if it is damaged."""
    for file, body in bodies_of(data, shard):
        (folder / file.name).write_bytes(body)
    return _listed(data, shard)[0].segments


def head_of(data: memoryview, shard: str) -> memoryview:
    """Return the part of an object that `check_files` needs."""
    return data[: _listed(data, shard)[1]]


def check_files(folder: Path, head: bytes, shard: str) -> list[msgspec.Raw]:
    """Return the entries in tantivy's list of an object's files in a folder. StoreError if they differ."""
    listed, _ = _listed(memoryview(head), shard)
    for file in listed.files:
        body = _body(folder / file.name)
        if len(body) != file.size_bytes or crc32c.crc32c(body) != file.checksum:
            raise _damaged(shard)
    if {path.name for path in files_in(folder)} != {file.name for file in listed.files}:
        raise _damaged(shard)
    return listed.segments


def _listed(data: memoryview, shard: str) -> tuple[_List, int]:
    """Return an object's list, and where its files begin."""
    at = len(_MAGIC) + _LENGTHS.size
    if data[: len(_MAGIC)] != _MAGIC:
        raise StoreError(f"object {shard} is not a shard that this version of nadi reads: check what wrote it")
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


def bodies_of(data: memoryview, shard: str) -> Iterator[tuple[_ShardFile, memoryview]]:
    """Yield an object's files. StoreError if it is damaged."""
    listed, at = _listed(data, shard)
    for file in listed.files:
        body = data[at : at + file.size_bytes]
        if len(body) < file.size_bytes or crc32c.crc32c(body) != file.checksum:
            raise _damaged(shard)
        yield file, body
        at += file.size_bytes


def write_meta(folder: Path, like: bytes, segments: list[msgspec.Raw]) -> None:
    """Combine the segments in a folder into one tantivy index. like: the list of any index with the same schema."""
    meta = msgspec.json.decode(like)
    meta["segments"] = segments
    meta["opstamp"] = 0
    written = folder / f".{META}"
    written.write_bytes(msgspec.json.encode(meta))
    written.rename(folder / META)


def files_in(folder: Path) -> Iterator[Path]:
    """Return the files of the segments."""
    return (path for path in folder.iterdir() if not path.name.startswith(".") and path.name != META)


def _body(path: Path) -> memoryview:
    if path.stat().st_size < _LEAST:
        return memoryview(path.read_bytes())
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _damaged(shard: str) -> StoreError:
    return StoreError(f"object {shard} of an index is damaged: delete the index and create it again")


def merge(objects: Sequence[tuple[str, memoryview]], fields: tuple[Field, ...]) -> list[memoryview]:
    """Merge shards into one object, and return its parts. Blocks; call it in a thread."""
    from tantivy import Index

    with work_folder() as folder:
        make_empty(folder, fields)
        segments = [segment for shard, data in objects for segment in unpack(data, folder, shard)]
        write_meta(folder, (folder / META).read_bytes(), segments)
        index = prepared(Index.open(str(folder)))
        writer = index.writer(_LEAST_WRITER_BYTES, 1)
        writer.commit()  # makes tantivy look for segments to merge
        writer.wait_merging_threads()
        return packed(folder)


def make_empty(folder: Path, fields: tuple[Field, ...]) -> None:
    from tantivy import Index

    Index(schema_of(fields), path=str(folder))


_NUMBER_MASK = (1 << ORDER_BITS) - 1
_LEAST_WRITER_BYTES = 15_000_000  # tantivy's minimum
_WORK = "nadi-search-"
_NEW_S = 60.0  # a new folder may not be locked yet
_PER_BYTE = 16  # bytes of memory per byte of events, so that a shard is written as one segment


@dataclass(frozen=True, slots=True)
class EventRun:
    """Consecutive events of one segment. micros: their orders, without the segment's number."""

    segment_id: int
    blocks: Sequence[EventBlock]
    micros: Numbers

    @property
    def start(self) -> int:
        return self.blocks[0].offset

    @property
    def end(self) -> int:
        return self.blocks[-1].offset + self.blocks[-1].size_bytes


@dataclass(frozen=True, slots=True)
class InvalidEvent:
    """An invalid event and the reason."""

    segment_id: int
    offset: int
    data: bytes
    reason: str


@dataclass(slots=True)
class BuildResult:
    """The result of building. field_counts: number of events with each field; parts: of the shard's object, None if
    empty."""

    steps: list[IndexedRange] = field(default_factory=list)
    invalid: list[InvalidEvent] = field(default_factory=list)
    docs: int = 0
    field_counts: list[int] = field(default_factory=list)
    parts: list[memoryview] | None = None

    def shard(self, shard_id: str) -> Shard | None:
        if self.parts is None:
            return None
        spans: list[Span] = [(step.segment_id, step.start, step.end) for step in self.steps]
        return Shard(shard_id, self.docs, sum(map(len, self.parts)), spans)


def orders(arrival_ms: Numbers, before: int) -> Numbers:
    """Return the microseconds of events' orders: their arrival times, but strictly ascending.

    >>> orders(np.array([5, 5, -1, 3, 9]), 5000).tolist()
    [5001, 5002, 5003, 5004, 9000]
    """
    steps = np.arange(len(arrival_ms))
    return np.maximum(np.maximum.accumulate(arrival_ms * 1000 - steps), before + 1) + steps


def build(runs: Sequence[EventRun], form: Format, fields: tuple[Field, ...]) -> BuildResult:
    """Build a shard of events; the runs are of different segments. Blocks; call it in a thread."""
    with work_folder() as folder:
        built = _write(folder, runs, form, fields)
        if built.docs:
            built.parts = packed(folder)
        return built


@contextmanager
def work_folder() -> Iterator[Path]:
    """Create a folder for tantivy, in memory if the system's temporary folder is, or if the process has a master key.
    It is locked while in use; the lock ends with the process, see `clean_work_folders`."""
    folder = Path(tempfile.mkdtemp(prefix=_WORK, dir=scratch()))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clean_work_folders() -> None:
    """Delete the work folders of dead processes. Blocks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_WORK}*"):
        with suppress(OSError):  # another user's, deleted, or in use
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(lock)
                if status.st_uid == os.getuid() and status.st_mtime < time.time() - _NEW_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _write(folder: Path, runs: Sequence[EventRun], form: Format, fields: tuple[Field, ...]) -> BuildResult:
    from tantivy import Document, Index

    size = sum(run.end - run.start for run in runs)
    index = prepared(Index(schema_of(fields), path=str(folder)))
    writer = index.writer(max(_LEAST_WRITER_BYTES, min(size * _PER_BYTE, SEARCH_WRITER_BYTES)), 1)
    kinds: dict[str, Any] = {
        "text": Document.add_text,
        "keyword": Document.add_text,
        "long": Document.add_integer,
        **dict.fromkeys(TIMES, Document.add_integer),
        "double": Document.add_float,
        "bool": Document.add_boolean,
        "facet": lambda document, name, value: document.add_facet(name, facet_of(value)),
    }
    adders = [(kinds[field.kind], name_of(number)) for number, field in enumerate(fields)]
    values_of, built = reader_of(form, fields), BuildResult(field_counts=[0] * len(fields))
    for run in runs:
        segment = run.segment_id
        numbers = iter(((run.micros << ORDER_BITS) | (segment_number(segment) & _NUMBER_MASK)).tolist())
        for block in run.blocks:
            offsets = block.offsets().tolist()
            ends = [*offsets[1:], block.offset + block.size_bytes]
            for data, offset, end, order in zip(block.events(), offsets, ends, numbers, strict=False):
                try:
                    values = values_of(data)
                except InvalidEventError as error:
                    built.invalid.append(InvalidEvent(segment, offset, data, str(error)[:SEARCH_REASON_CHARS]))
                    continue
                document = Document()
                add = document.add_unsigned
                add(ORDER, order)
                add(SEGMENT, segment)
                add(OFFSET, offset)
                add(SIZE, end - offset)
                last = -1
                for number, value in values:
                    adder, name = adders[number]
                    adder(document, name, value)
                    if number != last:  # values of one field are adjacent
                        built.field_counts[number] += 1
                        last = number
                writer.add_document(document)
                built.docs += 1
        built.steps.append(IndexedRange(segment, run.start, run.end, int(run.micros[-1])))
    if built.docs:
        writer.commit()
    writer.wait_merging_threads()
    return built
