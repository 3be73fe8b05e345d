"""The last resort for a state that is damaged and can't be made anew: what is whole of it, and what chunks say.

Each record has a checksum, and LMDB leaks no pages: so whatever lies whole on a leaf page that the free list doesn't
name was in the state. What is missing is made up for where something else tells it: a chunk's own description says
whose bytes it has, a table's entries how long the table is. What nothing tells is named, and reads of it fail.
Attributes that are gone, writers' numbers, mean that a writer which repeats itself may store an event twice.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb
from crc32c import crc32c

from nadi.errors import DamagedStateError
from nadi.limits import STATE_MAP_BYTES
from nadi.segmentstore import operations as op
from nadi.segmentstore import pages, rebuild
from nadi.segmentstore.checked import (
    COUNTED,
    CRC_BYTES,
    STATE_KEY,
    TABLES,
    TOTALS_KEY,
    WHOLE,
    Totals,
    decode_totals,
    seed_of,
)
from nadi.segmentstore.commit import Commit
from nadi.segmentstore.metadata import Metadata, decode_sequence, derived
from nadi.segmentstore.pages import PAGE_BYTES, DamagedPagesError
from nadi.segmentstore.records import Extent, Kind, SegmentRecord
from nadi.segmentstore.statecheck import STATE_FILE
from nadi.segmentstore.stopped import StoppedContainer, StoppedLog, in_words
from nadi.segmentstore.tables import ENTRY_OVERHEAD_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.description import ChunkDescription

Described = dict[int, list[tuple[str, ChunkDescription]]]  # by segment, with the chunks' names
Records = dict[str, dict[bytes, bytes]]  # by table and key, without checksums
LOST_CHUNK = "given-up-by-a-repair"  # the name of a chunk that there is none of: readers of its bytes are told


async def salvage(folder: Path, container: int, chunks: ChunkStore, new: Path) -> list[str]:
    """Make a state in a new folder of what can be had of a container's damaged one; tells what is lost, line by line.

    Raises:
        DamagedStateError: next to nothing can be: even its own record is gone, or what there is doesn't fit the log.
        UnavailableError: tier 2 can't be read.
        OSError: the folder can't be used.
    """
    state = folder / rebuild.STATE
    if not (state / STATE_FILE).exists():  # a repair was interrupted: what it had set aside is as good
        state = rebuild.set_aside(folder) or state
    try:
        records, totals = await asyncio.to_thread(whole_records, state / STATE_FILE, container)
    except (FileNotFoundError, DamagedPagesError) as error:
        raise DamagedStateError(str(state), "it is missing, or damaged all over", str(error)) from error
    if STATE_KEY not in records["state"]:
        raise DamagedStateError(str(state), "its own record is damaged", "it alone tells where the log goes on")
    found = _Found(records, totals, await described_chunks(chunks, container), {})
    await asyncio.to_thread(_note_lengths, found, folder)
    lost = await asyncio.to_thread(_make, new, container, found)
    if state.name != rebuild.STATE:
        lost.insert(0, f"there is no state: what follows is of {state.name}, which was set aside before")
    stopped = StoppedContainer(container, folder, chunks)
    try:
        await stopped.open(new)
    except AssertionError as error:
        raise DamagedStateError(str(state), "what is whole of it doesn't fit the log", str(error)) from error
    await stopped.shut()
    return lost


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is to make a state of. lengths: of segments, where the log tells how long they were."""

    records: Records
    totals: Totals
    described: Described
    lengths: dict[int, int]

    def segments(self) -> set[int]:
        """Those that were not deleted; chunks of others may still be there."""
        return {int.from_bytes(key, "big") for key in self._alive()}

    def _alive(self) -> set[bytes]:
        ids = {key[:8] for table in ("segments", "extents", "entries") for key in self.records[table]}
        return {key for key in ids | set(self.records["names"].values()) if len(key) == 8}

    def with_any(self, *tables: str) -> set[int]:
        """The segments that have anything in these tables."""
        return {int.from_bytes(key[:8], "big") for table in tables for key in self.records[table]}


def _note_lengths(found: _Found, folder: Path) -> None:
    """The log's first append to a segment behind the state says how long it was."""
    sequence = decode_sequence(found.records["state"][STATE_KEY])
    for frame in StoppedLog(folder / "log").replay(sequence):
        for operation in op.decode_frame(frame.payload)[0]:
            if isinstance(operation, op.Append):
                found.lengths.setdefault(operation.segment, operation.offset)


# --- what is whole -----------------------------------------------------------------------------------


def whole_records(file: Path, container: int) -> tuple[Records, Totals]:
    """The records that can be relied on, and what the totals say there should be; blocking."""
    seeds = {table: seed_of(container, table) for table in TABLES}
    found: Records = {table: {} for table in TABLES}
    with file.open("rb") as stream:
        free = pages.free_pages(stream.fileno())
        for number in range(2, os.fstat(stream.fileno()).st_size // PAGE_BYTES):
            if number in free:
                continue
            for key, value in pages.records_on(stream.fileno(), number):
                for table, seed in seeds.items():
                    if len(value) >= CRC_BYTES and crc32c(value, crc32c(key, seed)) == WHOLE:
                        found[table][key] = value[:-CRC_BYTES]
                        break
    totals = found["state"].pop(TOTALS_KEY, None)
    return found, decode_totals(totals) if totals is not None else {}


async def described_chunks(chunks: ChunkStore, container: int) -> Described:
    """What the chunks in tier 2 say of themselves, by segment, those that hold most first."""
    found: Described = defaultdict(list)
    for name, size in (await chunks.listed(f"container-{container}")).items():
        tail = bytes(await chunks.read(name, max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))) if size else b""
        described = ChunkDescription.decode(name, tail)
        if described is not None:
            found[described.segment_id].append((name, described))
    for some in found.values():
        some.sort(key=lambda pair: (pair[1].offset, -pair[1].length))
    return found


_TAIL_BYTES = 64 * 1024  # holds any description: a few bytes for each MiB of its chunk


# --- putting it together -----------------------------------------------------------------------------


def _make(new: Path, container: int, found: _Found) -> list[str]:
    records, lost = found.records, []
    for table, meaning in _MEANING.items():
        missing = found.totals.get(table, (0, 0))[0] - len(records[table])
        if missing > 0:
            lost.append(f"{missing:,} records of {meaning} are gone; which ones can't be told")
    known = {key: name for name, key in records["names"].items()}
    for table, rows in derived(records).items():
        records[table] |= rows
    _write(new, container, records)
    tables, with_data = found.with_any("entries"), found.with_any("entries", "extents")
    metadata = Metadata(new, container)
    try:
        for segment in sorted(found.segments()):
            record = metadata.load(segment, {})
            described = found.described.get(segment, [])
            if record is None:
                name = described[0][1].segment if described else known.get(segment.to_bytes(8, "big"), b"").decode()
                if not name or not (described or segment in with_data):
                    told = in_words(name) if name else f"segment number {segment}"
                    lost.append(f"{told}: all of it; its record is gone, and nothing else tells of it")
                    continue
                record = _record_anew(metadata, segment, name, is_table=segment in tables)
                ends = [record.length, *(part.offset + part.length for _, part in described)]
                record.length = found.lengths.get(segment, max(ends))
                lost.append(f"{in_words(name)}: its record was made anew; whether it was sealed or truncated is lost")
            lost += _complete(metadata, record, described)
    finally:
        metadata.close()
    return lost


_MEANING = {
    "attributes": "segments' attributes, writers' numbers among them,",
    "entries": "tables' entries",
    "moments": "the time index",
}


def _write(new: Path, container: int, records: Records) -> None:
    """A state with these records, and the totals that they make."""
    new.mkdir(mode=0o700)
    size = sum(len(key) + len(value) + 64 for rows in records.values() for key, value in rows.items())
    with lmdb.open(str(new), max_dbs=len(TABLES), map_size=max(STATE_MAP_BYTES, 8 * size), mode=0o600) as env:
        tables = {table: env.open_db(table.encode()) for table in TABLES}
        with env.begin(write=True) as txn:
            commit = Commit(txn, tables, {table: seed_of(container, table) for table in TABLES}, {})
            for table in ("state", *COUNTED):
                for key, value in records[table].items():
                    commit.put(table, key, value)
            commit.finish()


def _record_anew(metadata: Metadata, segment: int, name: str, *, is_table: bool) -> SegmentRecord:
    record = SegmentRecord(segment, name, Kind.TABLE if is_table else Kind.STREAM, 0)
    metadata.commit(metadata.record_changes(record))
    made = metadata.load(segment, {})
    assert made is not None
    if made.extents:
        made.start_offset, made.length = made.extents[0].offset, made.extents[-1].end
    return made


def _complete(metadata: Metadata, record: SegmentRecord, described: list[tuple[str, ChunkDescription]]) -> list[str]:
    """Let the segment's extents cover it: by what chunks say they have of it, and by what says that it is lost."""
    lost = []
    if record.kind == Kind.TABLE:
        entries = list(metadata.entries_from(record.id, b""))
        record.entry_count = len(entries)
        ends = [version + ENTRY_OVERHEAD_BYTES + len(key) + len(value) for key, version, value in entries]
        record.table_length = max([record.table_length, *ends])
    else:
        for begin, end in list(_gaps(record)):
            for offset, length, name, checksums in _filling(begin, end, described):
                extent = Extent(offset, length, None, 0, name, checksums)
                record.extents.append(extent)
                record.changed_extents[offset] = extent
                if name == LOST_CHUNK:
                    lost.append(f"{in_words(record.name)}: bytes {offset:,} to {offset + length:,}")
    changes = metadata.record_changes(record)
    metadata.commit(changes, extents=[(record.id, record.changed_extents)])
    return lost


def _gaps(record: SegmentRecord) -> Iterator[tuple[int, int]]:
    """What no extent covers of the segment."""
    position = record.start_offset
    for extent in record.extents:
        if extent.offset > position:
            yield position, extent.offset
        position = max(position, extent.end)
    if position < record.length:
        yield position, record.length


def _filling(
    begin: int, end: int, described: list[tuple[str, ChunkDescription]]
) -> Iterator[tuple[int, int, str, bytes]]:
    """Chunks that lie in a gap one behind the other, and what is lost between: offset, length, name, checksums."""
    position = begin
    for name, part in described:
        if part.offset >= position and part.offset + part.length <= end:
            if part.offset > position:
                yield position, part.offset - position, LOST_CHUNK, b""
            yield part.offset, part.length, name, part.checksums
            position = part.offset + part.length
    if position < end:
        yield position, end - position, LOST_CHUNK, b""
