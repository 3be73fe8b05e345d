"""What remains of a container whose state can't be used: for `salvage`, which builds a state from it.

From a state's file, or a base of the snapshot, each intact record: records have their own checksums, and LMDB leaks
no pages, so whatever is intact on a leaf page that the free list doesn't name was in the state. Without that list,
it is what the tables lead to; if they are damaged too, everything found, which may then be outdated. From deltas, what
they changed. From chunks, their descriptions. What the log tells is in `logtold`.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from nadi.errors import NotFoundError
from nadi.limits import MIB, SNAPSHOT_PART_BYTES
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.snapshots import NO_CRC, Manifest, Part, SnapshotError
from nadi.segmentstore.repair import lostheads, usedpages
from nadi.segmentstore.state.checked import (
    CRC_BYTES,
    STATE_KEY,
    TABLES,
    TOTALS_KEY,
    WHOLE,
    Totals,
    decode_totals,
    seeds_of,
)
from nadi.segmentstore.state.extent_rows import singles
from nadi.segmentstore.state.file.check import STATE_FILE
from nadi.segmentstore.state.file.pages import PAGE_BYTES, DamagedPagesError, records_on
from nadi.segmentstore.state.stored import decode_segment, decode_sequence, encode_state
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.description import ChunkDescription

Described = dict[int, list[tuple[str, ChunkDescription]]]  # by segment, with the chunks' names
Record = tuple[str, bytes, bytes]  # table, key and value, without checksum
Records = dict[str, dict[bytes, bytes]]  # by table and key, without checksums; in `Remains`, extents are single rows
LOST_CHUNK = "given-up-by-a-repair"  # the name of a chunk that doesn't exist: readers of its bytes get an error


@dataclass(frozen=True, slots=True)
class Remains:
    """What is intact of a state. source: where it is from, in words. totals: what there should be, as far as known.

    told: what can't be used of the source, line by line. may_be_stale: some records may be outdated.
    """

    source: str
    records: Records
    totals: Totals = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    may_be_stale: bool = False

    @property
    def sequence(self) -> int:
        """The number of the last frame that it reflects."""
        return decode_sequence(self.records["state"][STATE_KEY])


def no_records() -> Records:
    return {table: {} for table in TABLES}


# --- of a state's file -------------------------------------------------------------------------------


def of_state(folder: Path, container: int) -> Remains:
    """Return what can be relied on of the state in a folder; blocking. Its own record may be missing.

    Raises:
        OSError: the file can't be read.
    """
    told = []
    with (folder / STATE_FILE).open("rb") as stream:
        try:
            used = usedpages.used_pages(stream.fileno())
        except DamagedPagesError as error:
            used = lostheads.used_pages(stream.fileno(), container, error)
        records = _latest(_single(_whole_on(stream.fileno(), container, used.rest)))
        records["state"].clear()  # an outdated one would name another end
        for table, rows in _latest(_single(_whole_on(stream.fileno(), container, used.sure))).items():
            records[table] |= rows
    if used.damage:
        told.append(
            f"{folder.name} has lost its list of free pages ({used.damage}): "
            + ("some records may be outdated, or deleted ones" if used.rest else "all pages in use were found")
        )
    totals = _taken_totals(records)
    return Remains(f"the intact part of {folder.name}", records, totals, told, bool(used.rest))


def _whole_on(file: int, container: int, numbers: Iterable[int]) -> Iterator[Record]:
    """The intact records on these pages of an open file."""
    seeds = seeds_of(container)
    for number in sorted(numbers):
        for key, value in records_on(file, number):
            for table, seed in seeds.items():
                if len(value) >= CRC_BYTES and crc32c(value, crc32c(key, seed)) == WHOLE:
                    yield table, key, value[:-CRC_BYTES]
                    break


def _single(records: Iterable[Record]) -> Iterator[Record]:
    """The same with a row for each extent: of an older shared row, a newer one with its key replaces one only."""
    for table, key, raw in records:
        rows = singles([(key, raw)]) if table == "extents" else [(key, raw)]
        yield from ((table, *row) for row in rows)


def _latest(records: Iterable[Record]) -> Records:
    """The later of each two with one key."""
    found = no_records()
    for table, key, raw in records:
        other = found[table].get(key)
        if other is None or _age(table, raw) >= _age(table, other):
            found[table][key] = raw
    return found


def _age(table: str, raw: bytes) -> tuple[int, ...]:
    """Larger for the later of two records with one key, as far as they show: only pages that may be free have two."""
    match table:
        case "segments":
            stored = decode_segment(raw)
            return stored.length, stored.table_length, stored.start_offset, stored.sealed, stored.modified_ms
        case "extents":  # from the log into a chunk, and there into a larger one
            return int.from_bytes(raw[8:16], "big") == 0, int.from_bytes(raw[:8], "big")
        case "entries" | "attributes":  # versions, and writers' numbers, grow
            return (int.from_bytes(raw[:8], "big", signed=True),)
    return ()


def _taken_totals(records: Records) -> Totals:
    totals = records["state"].pop(TOTALS_KEY, None)
    return decode_totals(totals) if totals is not None else {}


# --- of a snapshot -----------------------------------------------------------------------------------


async def of_snapshot(chunks: ChunkStore, container: int, scratch: Path) -> Remains | None:
    """Return what is intact of the newest snapshot, or None if there is none; `scratch` is a file for the work.

    Raises:
        UnavailableError: tier 2 can't be read.
        OSError: `scratch` can't be written.
    """
    manifest, told = await snapshots.newest(chunks, container)
    if manifest is None:
        by_names = await snapshots.told_by_names(chunks, container)
        if not by_names:
            return None
        manifest = by_names[0]
        told.append("the snapshot has no manifest: names show what belongs to it, so more may be missing")
    told += await _lay_out(chunks, manifest, scratch)
    with scratch.open("rb") as stream:  # a base has no free pages
        count = os.fstat(stream.fileno()).st_size // PAGE_BYTES
        records = _latest(_whole_on(stream.fileno(), container, range(2, count)))
    totals = _taken_totals(records)
    if totals:
        records["state"][TOTALS_KEY] = b""  # from here on a record like any other
    seeds = seeds_of(container)
    is_stale = False
    before = ""
    for part in manifest.deltas:
        try:
            for changes in snapshots.unpack_changes(await snapshots.read_part(chunks, part)):
                for table, rows in changes.items():
                    for key, raw in rows.items():
                        if raw is None:
                            records[table].pop(key, None)
                        elif crc32c(raw, crc32c(key, seeds[table])) == WHOLE:
                            records[table][key] = raw[:-CRC_BYTES]
        except SnapshotError as error:
            is_stale = True
            told.append(f"{error}: what it changed{before} is as it was before, except for what changed again later")
        else:
            before = f" after {part.name.rpartition('/')[2]}"
    if records["state"].get(TOTALS_KEY):
        totals = _taken_totals(records)
    records["state"].pop(TOTALS_KEY, None)
    if STATE_KEY not in records["state"]:
        told.append("its own record is gone: it said which chunks are garbage; they stay")
        records["state"][STATE_KEY] = encode_state(snapshots.base_sequence(manifest), 1)
    source = f"the snapshot of frame {manifest.sequence:,} in tier 2"
    stored = ((table, key, raw) for table, rows in records.items() for key, raw in rows.items())
    return Remains(source, _latest(_single(stored)), totals, told, is_stale)


async def _lay_out(chunks: ChunkStore, manifest: Manifest, file: Path) -> list[str]:
    """Put what can be read of a base where it was in the state's file; return which parts are incomplete, in words."""
    told = []
    parts: dict[int, bytes] = {}
    whole_bytes = SNAPSHOT_PART_BYTES
    last = max(map(snapshots.number_of, manifest.base), default=0)
    for part in manifest.base:
        raw, is_whole = _unpacked(await _read_anyhow(chunks, part))
        number = snapshots.number_of(part)
        parts[number] = raw
        if is_whole and number != last:
            whole_bytes = len(raw)
        if not is_whole:
            told.append(f"{part.name} is damaged or missing: {len(raw):,} bytes of it can be read")
    told += [
        f"part {number:,} of the base is missing" for number in range(last + 1) if number not in parts and manifest.base
    ]
    with file.open("wb") as stream:
        for number, raw in parts.items():
            stream.seek(number * whole_bytes)
            stream.write(raw)
    return told


async def _read_anyhow(chunks: ChunkStore, part: Part, position: int = 0) -> bytes:
    """The part's bytes, unchecked; empty if it is gone or can't be read from its disk."""
    try:
        return bytes(await chunks.read(part.name, position, part.size_bytes)) if part.size_bytes else b""
    except (NotFoundError, DiskReadError):
        return b""


_STEP_BYTES = 64  # of packed data: what precedes damage is recovered, to within that


def _unpacked(stored: bytes) -> tuple[bytes, bool]:
    """As much of a base's part as can be unpacked, and whether that is all."""
    unpacker, raw = zlib.decompressobj(), []
    size_bytes = 0
    try:
        for at in range(0, len(stored), _STEP_BYTES):
            raw.append(unpacker.decompress(stored[at : at + _STEP_BYTES], _MOST_BYTES - size_bytes))
            size_bytes += len(raw[-1])
            if size_bytes >= _MOST_BYTES:
                break
    except zlib.error:
        return b"".join(raw), False
    return b"".join(raw), unpacker.eof


_MOST_BYTES = 64 * MIB  # of a part, whatever its damaged bytes unpack to


# --- of chunks ---------------------------------------------------------------------------------------


async def described_chunks(chunks: ChunkStore, container: int) -> Described:
    """Return the descriptions of the chunks in tier 2, by segment, sorted by offset, the longest first at each."""
    found: Described = defaultdict(list)
    for name, size in (await chunks.listed(f"container-{container}")).items():
        tail = await _read_anyhow(chunks, Part(name, min(size, _TAIL_BYTES), NO_CRC), max(0, size - _TAIL_BYTES))
        described = ChunkDescription.decode(name, tail)
        if described is not None and described.container == container:
            found[described.segment_id].append((name, described))
    for some in found.values():
        some.sort(key=lambda pair: (pair[1].offset, -pair[1].length))
    return found


_TAIL_BYTES = 64 * 1024  # holds any description: a few bytes for each MiB of its chunk


# --- in any of them ----------------------------------------------------------------------------------


def segments_of(records: Records) -> set[int]:
    """Return the segments of which a state has anything; chunks of others may still exist."""
    keys = {key[:8] for table in ("segments", "extents", "entries") for key in records[table]}
    return {int.from_bytes(key, "big") for key in keys | set(records["names"].values()) if len(key) == 8}


def with_any(records: Records, *tables: str) -> set[int]:
    """Return the segments that have anything in these tables."""
    return {int.from_bytes(key[:8], "big") for table in tables for key in records[table]}
