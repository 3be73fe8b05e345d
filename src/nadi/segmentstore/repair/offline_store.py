"""Opens a container of a stopped folder read-only, recovering it as a server does.

The state is restored in another folder. The log is only read, up to damage with which a start would fail.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from nadi.encryption.sealing import Sealing
from nadi.errors import CorruptLogError, DamagedDataError, NadiError, NotFoundError
from nadi.naming import parse_segment_name
from nadi.runtime import REAL
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container, KnownDamage, note_missing
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.recovery.storage import LocalStorage, recovered_of
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.tier1.blob_files import BlobReader
from nadi.segmentstore.tier1.fence import read_epoch
from nadi.segmentstore.tier1.layout import FRAME_HEADER_BYTES, FrameCheck, FrameHeader, log_file_number
from nadi.segmentstore.tier1.log import Frame, LogAddress, LogRange, PartRead, read_each
from nadi.segmentstore.tier1.reading import read_checked
from nadi.segmentstore.tier1.recovery import (
    UNKNOWN,
    Headers,
    LogFile,
    LogReplay,
    headers_of,
    read_headers,
)
from nadi.segmentstore.tier2.chunks import ChunkStore


class ReadableFrame(NamedTuple):
    """A frame with an intact head."""

    path: Path
    header: FrameHeader
    check: FrameCheck

    def head(self) -> bytes:
        with self.path.open("rb", buffering=0) as stream:
            return os.pread(stream.fileno(), self.header.head_bytes, self.header.offset + FRAME_HEADER_BYTES)


@dataclass(slots=True)
class DiscardedContent:
    """The contents of readable frames that are discarded. frames: their number."""

    frames: int = 0
    last_sequence: int = 0
    bytes_of: dict[int, tuple[int, int]] = field(default_factory=dict)  # by segment: range of offsets
    entries_of: dict[int, int] = field(default_factory=dict)  # by segment: number of changed table entries
    created: dict[int, str] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)

    def take(self, frame: ReadableFrame, sealing: Sealing) -> None:
        self.frames += 1
        self.last_sequence = frame.header.sequence
        for operation in op.decode_frame(frame.head(), sealing, self.last_sequence)[0]:
            match operation:
                case op.Append() if operation.length:
                    begin, end = operation.offset, operation.offset + operation.length
                    low, high = self.bytes_of.get(operation.segment, (begin, end))
                    self.bytes_of[operation.segment] = min(low, begin), max(high, end)
                case op.TableUpdate():
                    count = self.entries_of.get(operation.segment, 0)
                    self.entries_of[operation.segment] = count + len(operation.entries)
                case op.Create():
                    self.created[operation.segment] = operation.name
                case op.Delete():
                    self.deleted.append(operation.segment)


class StoppedLog:
    """Implements a DurableLog's reads, blocking. is_passed: the state is up to date: nothing is replayed."""

    def __init__(self, folder: Path, *, is_passed: bool = False) -> None:
        known = read_epoch(folder)
        self.damage: CorruptLogError | None = None
        self.size_bytes = 0
        self.runs = BlobReader(folder)
        self._folder, self._is_passed = folder, is_passed
        self._files: dict[int, LogFile] = {}
        headers = Headers(folder, None, [], [], 1)
        try:
            if folder.exists():
                headers = read_headers(folder, known[0] if known else None, refuses=not is_passed)
        except CorruptLogError as error:
            self.damage = error
            headers = read_headers(folder, known[0] if known else None, refuses=False)
        self._log_id = headers.log_id or b""
        self._replay = LogReplay(headers, self._log_id)
        self._use(headers)

    def _use(self, headers: Headers) -> None:
        self._files = {file.number: file for file in headers.used}
        self.size_bytes = sum(file.size_bytes for file in headers.used)

    def replay(self, after_sequence: int) -> Iterator[Frame]:
        """Yield the frames that a start would replay, up to damage with which it would fail."""
        if self.damage is not None or self._is_passed:
            return
        try:
            yield from self._replay.frames(after_sequence)
        except CorruptLogError as error:
            self.damage = error
            if self._folder.exists():  # a file classified as prepared may have needed frames
                self._use(read_headers(self._folder, self._log_id or None, refuses=False))

    @property
    def dropped(self) -> str:
        """The torn tail that the replay found, or ""."""
        return self._replay.dropped

    def readable(self, after_sequence: int) -> list[ReadableFrame]:
        """Return all later frames with readable heads, in any file, in order, except torn writes."""
        newest: dict[int, ReadableFrame] = {}
        log_crc, numbered = crc32c(self._log_id), sorted(self._folder.glob("log-*.nadi"))
        for path in [path for path in numbered if log_file_number(path.name) is not None]:
            with path.open("rb", buffering=0) as stream:
                for header in headers_of(stream.fileno(), log_crc, log_file_number(path.name) or 0):
                    content = memoryview(os.pread(stream.fileno(), header.content_bytes, header.offset))
                    check, former = header.check(content, log_crc), newest.get(header.sequence)
                    is_newest = former is None or former.header.epoch < header.epoch
                    if check.head_is_whole and is_newest and header.sequence > after_sequence:
                        newest[header.sequence] = ReadableFrame(path, header, check)
        frames: list[ReadableFrame] = []
        epoch = 0
        for _, frame in sorted(newest.items()):
            if frame.header.epoch >= epoch:  # else a late write of a fenced owner
                epoch = frame.header.epoch
                frames.append(frame)
        if frames and frames[-1].check.damaged_parts:
            frames.pop()
        return frames

    def has_lost_its_end(self, frames: Sequence[ReadableFrame], after_sequence: int) -> bool:
        """Return whether more frames may be missing after `frames`, which are all that exist; call after the replay."""
        if self.damage is None:
            return False
        if not frames or frames[-1].header.sequence < after_sequence:
            return True
        last = log_file_number(frames[-1].path.name) or 0
        damaged = log_file_number(Path(self.damage.file).name) or 0
        file = self._files.get(last)
        return damaged > last or (file is not None and file.size_bytes < file.least_bytes)

    @property
    def first_sequence(self) -> int:
        """The number of the first frame in any file; UNKNOWN if none is recognizable."""
        return min((file.first_sequence for file in self._files.values()), default=UNKNOWN)

    def has(self, address: LogAddress, length: int) -> bool:
        file = self._files.get(address.file)
        return file is not None and address.offset + length <= file.size_bytes

    async def read_at(self, address: LogAddress, offset: int, length: int, checksum: bytes = b"") -> bytes:
        file = self._files.get(address.file)
        if file is None:
            raise NotFoundError(f"file {address.file:,} of the log is missing")
        file.open_reading()
        return await asyncio.to_thread(read_checked, file, crc32c(self._log_id), address, offset, length, checksum)

    async def read_parts(self, parts: Sequence[LogRange]) -> list[PartRead]:
        return await read_each(self.read_at, parts)

    async def close(self) -> None:
        for file in self._files.values():
            file.close_reading()


class StoppedContainer(Container):
    """A read-only container: `open` it with its state, inspect it, and `shut` it; it accepts no requests."""

    log: Any
    runs: Any

    def __init__(self, number: int, folder: Path, chunks: ChunkStore) -> None:
        super().__init__(LocalStorage(number, folder, chunks), BlockCache())
        self.folder, self.chunks = folder, chunks
        self.damage = KnownDamage(number, logs=False)
        self._reader = SegmentReader(chunks, self.cache, FairScheduler())
        self.undescribed = 0
        self.first_undescribed = ""  # the chunk's name

    async def open(self, metadata: ContainerMetadata, *, is_passed: bool = False) -> None:
        """Recover from that state, which is updated as by a start, and the container's log. Damage with which a start
        would fail is in `log.damage` afterwards. is_passed: see `StoppedLog`. DamagedStateError: the state is
        damaged."""
        self.metadata = metadata
        self.log = StoppedLog(self.folder / "log", is_passed=is_passed)
        self.runs = self.log.runs
        try:
            self.state = await asyncio.to_thread(recovered_of, self.metadata, self.log.replay, REAL.monotonic())
            await note_missing(self, self.chunks)
        except BaseException:
            await self.shut()
            raise

    async def read_all(self) -> int:
        """Read every byte of every segment; return the number of bytes read. Sets `damage`, and `undescribed`, the
        number of chunks with intact data but a missing or damaged description."""
        count = 0
        for segment in await asyncio.to_thread(self.segments):
            record = self.state.by_id(segment)
            for extent in list(record.extents) if record is not None else []:
                assert record is not None
                try:
                    if not await self._reader.verify(self, record, extent):
                        self.undescribed += 1
                        self.first_undescribed = self.first_undescribed or extent.chunk
                    count += extent.length
                except DamagedDataError as error:
                    self.damage.note(error)
                except NadiError as error:
                    self.damage.note(DamagedDataError(record.name, extent.offset, extent.end, str(error)))
            self.state.evict_idle()
        return count

    def segments(self) -> list[int]:
        segments = dict.fromkeys(self.metadata.segments())
        segments |= dict.fromkeys(record.id for record in self.state.record_cache.all())
        return [segment for segment in segments if segment not in self.state.record_cache.deleted]

    def name_of(self, segment: int) -> str:
        record = self.state.by_id(segment)
        return record.name if record is not None else f"number {segment}"

    async def shut(self) -> None:
        await self.log.close()
        self.metadata.close()


def describe_segment(segment: str) -> str:
    try:
        scope, stream, _ = parse_segment_name(segment.partition("#tr")[0])
    except NadiError:
        return f"segment {segment}"
    return f"stream {scope}/{stream}, segment {segment.rpartition('/')[2]}"
