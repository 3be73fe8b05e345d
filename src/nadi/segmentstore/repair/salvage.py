"""The last resort for a state that is damaged or gone and can't be rebuilt: a new one made from whatever is left.

It takes the first of these that matches the log: what is intact of the state's file, of one that was set aside before,
of the snapshot; and last, what chunks and the log alone say. What is missing is filled in if something else has
it: a chunk's own description says whose bytes it has, a table's entries how long the table is, the log which segments
there were and how long. Bytes that nothing names are kept under a made-up name. What is lost is named, and reads of it
fail. If attributes are gone, and writers' numbers with them, a writer that repeats itself may store an event twice.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError
from nadi.limits import STATE_MAP_BYTES
from nadi.segmentstore.container.table_segments import ENTRY_OVERHEAD_BYTES
from nadi.segmentstore.recovery import rebuild
from nadi.segmentstore.repair import logtold, remains
from nadi.segmentstore.repair.leftout import leave_out
from nadi.segmentstore.repair.logged import have_back, overlap
from nadi.segmentstore.repair.logtold import LogTells
from nadi.segmentstore.repair.remains import LOST_CHUNK, Described, Records, Remains, segments_of, with_any
from nadi.segmentstore.repair.stopped import StoppedContainer, StoppedLog, in_words
from nadi.segmentstore.repair.unnamed import of_one_past
from nadi.segmentstore.state.checked import COUNTED, STATE_KEY, TABLES, seeds_of
from nadi.segmentstore.state.commit import Commit
from nadi.segmentstore.state.extent_rows import EVERYWHERE
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import Extent, Kind, SegmentRecord
from nadi.segmentstore.state.stored import derived, encode_state, freed, record_changes, time_of
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.description import ChunkDescription
from nadi.wire.moments import ARRIVAL, INDEXED


async def salvage(folder: Path, container: int, chunks: ChunkStore, new: Path) -> list[str]:
    """Build a state in a new folder from what remains of a container's lost one; return what is lost, line by line.

    Raises:
        DamagedStateError: none can be built: chunks and log say nothing at all, or contradict themselves.
        UnavailableError: tier 2 can't be read.
        OSError: the folder can't be used.
    """
    told: list[str] = []
    described = await remains.described_chunks(chunks, container)
    frames = await asyncio.to_thread(StoppedLog(folder / "log").readable, 0)
    described = of_one_past(described, [(frame.header.sequence, frame.header.epoch) for frame in frames])
    there = set(await chunks.listed(f"container-{container}"))
    first = await asyncio.to_thread(rebuild.first_logged, folder) or 0
    with tempfile.TemporaryDirectory(prefix="nadi-salvage-") as scratch:
        late: list[Remains] = []
        async for found in _states(folder, container, chunks, Path(scratch), told):
            if first > found.sequence + 1:
                late.append(found)
                told.append(f"{found.source} ends with frame {found.sequence:,}, and the log starts with {first:,}")
                continue
            lost = await _tried(found, folder, container, chunks, described, there, new, told)
            if lost is not None:
                return lost
    for found in [*sorted(late, key=lambda found: -found.sequence), await _alone(folder, described)]:
        lost = await _tried(found, folder, container, chunks, described, there, new, told)
        if lost is not None:
            return lost
    raise DamagedStateError(str(folder / rebuild.STATE), "it can't be recovered from anything", "; ".join(told))


async def _states(
    folder: Path, container: int, chunks: ChunkStore, scratch: Path, told: list[str]
) -> AsyncIterator[Remains]:
    """Yield what is intact of each state found; note in `told` what can't be used."""
    aside = rebuild.set_aside(folder)
    for state in (folder / rebuild.STATE, *([aside] if aside is not None else [])):
        try:
            found = await asyncio.to_thread(remains.of_state, state, container)
        except FileNotFoundError:
            told.append(f"{state.name} is missing")
        else:
            if STATE_KEY not in found.records["state"]:
                if not found.records["segments"]:
                    told.append(f"{state.name} has lost its own record, and those of all segments")
                    continue
                end = await asyncio.to_thread(logtold.end_told_by_log, folder, found.records)
                found.records["state"][STATE_KEY] = encode_state(end, 1)
                found.told.append(
                    f"its own record is gone: to judge by the log, it ends with frame {end:,}; garbage chunks stay"
                )
            yield found
    snapshot = await remains.of_snapshot(chunks, container, scratch / "base")
    if snapshot is None:
        told.append("there is no snapshot of it in tier 2")
    else:
        yield snapshot


async def _alone(folder: Path, described: Described) -> Remains:
    """What chunks and the log say without any state: the log is replayed from its first frame."""
    log = await asyncio.to_thread(logtold.of_log, folder, 0)
    records = remains.no_records()
    if described or log.first_sequence:
        # so that a frame is missing before the first: what is missing there is filled in, as after any gap
        records["state"][STATE_KEY] = encode_state(max(0, log.first_sequence - 2), 1)
    told = [
        "no state of any kind is left: which segments were sealed, truncated or deleted, all their attributes, the "
        "entries of tables that the log doesn't have, and what was merged, are lost"
    ]
    return Remains("what chunks and the log say", records, {}, told)


async def _tried(
    found: Remains,
    folder: Path,
    container: int,
    chunks: ChunkStore,
    described: Described,
    there: set[str],
    new: Path,
    told: list[str],
) -> list[str] | None:
    """Build a state from that, and check that it matches the log; return what is lost, or None, with why in `told`."""
    if STATE_KEY not in found.records["state"]:
        return None
    log = await asyncio.to_thread(logtold.of_log, folder, found.sequence)
    try:
        lost = await asyncio.to_thread(_make, new, container, found, described, there, log)
        await asyncio.to_thread(have_back, new, container, folder / "log", found.sequence)
        stopped = StoppedContainer(container, folder, chunks)
        await stopped.open(new)
        damaged = stopped.log.damage is not None
        await stopped.shut()
        if damaged:
            with tempfile.TemporaryDirectory(prefix="nadi-salvage-") as temporary:
                trial = Path(temporary) / "state"
                await asyncio.to_thread(shutil.copytree, new, trial)
                await leave_out(trial, folder, container, chunks)
    except (AssertionError, DamagedStateError) as error:
        told.append(f"{found.source} doesn't fit the log: {error}")
        await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
        return None
    return [f"what follows is from {found.source}" + (f" ({'; '.join(told)})" if told else ""), *found.told, *lost]


# --- putting it together -----------------------------------------------------------------------------


def _make(new: Path, container: int, found: Remains, described: Described, there: set[str], log: LogTells) -> list[str]:
    """Build the state and return what is lost. there: the names of all chunks."""
    records, lost = found.records, []
    for table, meaning in _MEANING.items():
        missing = found.totals.get(table, (0, 0))[0] - len(records[table])
        if missing > 0:
            lost.append(f"{missing:,} records of {meaning} are gone; nothing shows which ones")
    if not found.totals or found.may_be_stale or found.totals["entries"][0] > len(records["entries"]):
        lost.append(_ENTRIES_TELL)
    _forget_event_times(records)
    names = {key: name.decode(errors="replace") for name, key in records["names"].items()}
    for table, rows in derived(records).items():
        records[table] |= rows
    last_id = max([log.last_id, *described, *segments_of(records)], default=0)
    _write(new, container, records)
    tables = with_any(records, "entries") | {segment for segment, is_table in log.before.items() if is_table}
    metadata = Metadata(new, container)
    in_use: set[str] = set()
    try:
        taken = dict.fromkeys(log.created.values(), 0) | {
            record.name: segment for segment in metadata.segments() if (record := metadata.load(segment, {}))
        }
        for segment in sorted(segments_of(records) | set(log.before) | _revived(found, described, log), reverse=True):
            record = metadata.load(segment, {})
            all_parts = described.get(segment, [])  # any of which has the name
            parts = [part for part in all_parts if part[0] not in log.no_use]
            if record is None:
                name = all_parts[0][1].segment if all_parts else names.get(segment.to_bytes(8, "big"), "")
                if name and taken.setdefault(name, segment) != segment:
                    lost.append(f"{in_words(name)}, number {segment}: a later one has its name; its chunks stay unused")
                    name = ""
                has_any = bool(parts) or segment in log.before or segment in with_any(records, "entries", "extents")
                if not has_any:
                    told = in_words(name) if name else f"segment number {segment}"
                    lost.append(f"{told}: all of it; its record is gone, and nothing else mentions it")
                    continue
                record = _record_anew(metadata, segment, name or _made_up(container, segment), segment in tables)
                record.start_offset = reaches_back_to(record.start_offset, [part for _, part in parts])
                ends = [record.length, *(part.offset + part.length for _, part in parts)]
                record.length = 0 if segment in tables else log.lengths.get(segment, max(ends))
                if name:
                    lost.append(
                        f"{in_words(name)}: its record was recreated; whether it was sealed or truncated is lost"
                    )
                else:
                    lost.append(f"segment number {segment}: its name is lost; what remains is kept as {record.name}")
            elif record.kind != Kind.TABLE:
                ends = [part.offset + part.length for _, part in parts] if found.may_be_stale else []
                record.length = max(record.length, log.lengths.get(segment, max(ends, default=0)))
            # Some may be outdated without anything telling that: a delta is missing that nothing named, and it had what
            # became of extents that shared a row.
            if found.may_be_stale or overlap(record.extents):
                _forget_gone(record, there, log)
            in_use |= _complete(metadata, record, parts)
        own = freed(records["state"][STATE_KEY], last_id + 1, in_use)
        metadata.commit([("state", STATE_KEY, own)])
    finally:
        metadata.close()
    return lost


_ENTRIES_TELL = (
    "entries of tables are gone or outdated: the controller's own may be among them. The next server rebuilds the "
    "streams that those recorded, as far as their segments allow"
)


def _made_up(container: int, segment: int) -> str:
    return f"nameless-{container}-{segment}"


def _revived(found: Remains, described: Described, log: LogTells) -> set[int]:
    """The segments that only chunks know of, if the state has lost records of segments."""
    if found.totals and found.totals["segments"][0] <= len(found.records["segments"]) and not found.may_be_stale:
        return set()  # their chunks are garbage, or were merged into others
    return {
        segment
        for segment, parts in described.items()
        if segment not in log.created and any(name not in log.no_use for name, _ in parts)
    }


def _forget_gone(record: SegmentRecord, there: set[str], log: LogTells) -> None:
    """Of extents that may be outdated, remove those whose bytes are gone or are in others too."""

    def is_there(extent: Extent) -> bool:
        if extent.frame is None:
            return extent.chunk in there
        return extent.run in log.runs if extent.run else extent.frame.sequence >= log.first_sequence > 0

    kept: list[Extent] = []  # in order
    for extent in sorted(record.extents, key=lambda extent: -extent.length):
        place = bisect_right(kept, extent.offset, key=lambda other: other.offset)
        overlaps = (place > 0 and kept[place - 1].end > extent.offset) or (
            place < len(kept) and kept[place].offset < extent.end
        )
        if is_there(extent) and not overlaps:
            kept.insert(place, extent)
        else:
            record.changed_extents[extent.offset] = None
    record.extents[:] = kept
    record.log_bytes = sum(extent.length for extent in kept if extent.frame is not None)


_MEANING = {
    "attributes": "segments' attributes, writers' numbers among them,",
    "entries": "tables' entries",
    "times": "the time index",
}


def _forget_event_times(records: Records) -> None:
    """With an entry gone, a cut could miss events: clients make that part of the time index again from the events."""
    for key in [key for key in records["times"] if time_of(key)[0] != ARRIVAL]:
        del records["times"][key]
    for key in [key for key in records["attributes"] if key[8:].startswith(INDEXED)]:
        del records["attributes"][key]


def _write(new: Path, container: int, records: Records) -> None:
    """Write a state with these records and their totals."""
    new.mkdir(mode=0o700)
    size = sum(len(key) + len(value) + 64 for rows in records.values() for key, value in rows.items())
    with lmdb.open(os.fsencode(new), max_dbs=len(TABLES), map_size=max(STATE_MAP_BYTES, 8 * size), mode=0o600) as env:
        tables = {table: env.open_db(table.encode()) for table in TABLES}
        with env.begin(write=True) as txn:
            commit = Commit(txn, tables, seeds_of(container), {})
            for table in ("state", *COUNTED):
                for key, value in records[table].items():
                    commit.put(table, key, value)
            commit.finish()


def _record_anew(metadata: Metadata, segment: int, name: str, is_table: bool) -> SegmentRecord:
    record = SegmentRecord(segment, name, Kind.TABLE if is_table else Kind.STREAM, 0)
    metadata.commit(record_changes(record))
    made = metadata.load(segment, {})
    assert made is not None
    if made.extents:
        made.start_offset, made.length = made.extents[0].offset, made.extents[-1].end
    return made


def reaches_back_to(start: int, parts: list[ChunkDescription]) -> int:
    """Where a segment begins whose record is lost, and maybe some of its extents, of which the first is at `start`:
    chunks that lead up to there are part of it, for what was truncated is deleted soon.

    >>> def chunk(offset: int, length: int) -> ChunkDescription:
    ...     return ChunkDescription(1, 0, 7, "s/t/0.#epoch.0", offset, length, 1 << 20, b"", ())
    >>> reaches_back_to(30, [chunk(0, 10), chunk(10, 20), chunk(30, 5)]), reaches_back_to(30, [chunk(0, 29)])
    (0, 30)
    """
    begin_of = {part.offset + part.length: part.offset for part in sorted(parts, key=lambda part: -part.offset)}
    while start in begin_of and begin_of[start] < start:
        start = begin_of[start]
    return start


def _complete(metadata: Metadata, record: SegmentRecord, described: list[tuple[str, ChunkDescription]]) -> set[str]:
    """Make the segment's extents cover it, with chunks that say they have its bytes, and otherwise with extents that
    mark them as lost; return the chunks used."""
    taken = set()
    if record.kind == Kind.TABLE:
        entries = list(metadata.entries_from(record.id, b""))
        record.entry_count = len(entries)
        ends = [version + ENTRY_OVERHEAD_BYTES + len(key) + len(value) for key, version, value in entries]
        record.table_length = max([record.table_length, *ends])
    else:
        for begin, end in list(_gaps(record)):
            for extent in _filling(begin, end, described):
                record.extents.append(extent)
                record.changed_extents[extent.offset] = extent
                taken.add(extent.chunk)
    changes = record_changes(record)
    metadata.commit(changes, extents=[(record.id, record.changed_extents, EVERYWHERE)])
    return taken


def _gaps(record: SegmentRecord) -> Iterator[tuple[int, int]]:
    """The ranges of the segment that no extent covers."""
    position = record.start_offset
    for extent in record.extents:
        if extent.offset > position:
            yield position, extent.offset
        position = max(position, extent.end)
    if position < record.length:
        yield position, record.length


def _filling(begin: int, end: int, described: list[tuple[str, ChunkDescription]]) -> Iterator[Extent]:
    """Consecutive chunks in a gap, and what is lost between them."""
    edges = sorted({place for _, part in described for place in (part.offset, part.offset + part.length)})

    def lost(begin: int, end: int) -> Iterator[Extent]:
        """In pieces, as the log may later say of any of them that it is in a chunk."""
        places = [begin, *(place for place in edges if begin < place < end), end]
        for place, until in pairwise(places):
            yield Extent(place, until - place, None, 0, LOST_CHUNK)

    position = begin
    for name, part in described:
        if part.offset >= position and part.offset + part.length <= end:
            if part.offset > position:
                yield from lost(position, part.offset)
            yield Extent(part.offset, part.length, None, 0, name, part.checksums, continues=part.continues)
            position = part.offset + part.length
    if position < end:
        yield from lost(position, end)
