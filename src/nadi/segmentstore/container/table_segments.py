"""Executes table segment requests: keys with versions, conditional updates, ordered iteration, deltas; all in the
container's turn.

A key's version is the position of its entry in the table's log; an entry takes `17 + key + value` bytes, as in
Pravega's hash tables. A delta read also resumes at a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from nadi import limits
from nadi.errors import ConditionFailedError, InvalidArgumentError, StreamSealedError
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.operations import TableUpdate
from nadi.segmentstore.state.records import SegmentRecord
from nadi.segmentstore.tier1.log import ALL, HALF, NOTHING
from nadi.wire.errors import KeyNotFoundError, TableLengthError
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey

ENTRY_OVERHEAD_BYTES = 17
_SMALL_BYTES = 64 * limits.KIB  # larger updates may not use the reserve


def check_key(record: SegmentRecord, key: bytes) -> None:
    if not 0 < len(key) <= limits.TABLE_KEY_MAX_BYTES:
        raise InvalidArgumentError(f"a table key has 1 to {limits.TABLE_KEY_MAX_BYTES} bytes, not {len(key)}")
    if record.key_length and len(key) != record.key_length:
        raise InvalidArgumentError(f"keys of {record.name} have {record.key_length} bytes, not {len(key)}")


def _check_condition(version: int | None, expected: int) -> None:
    """Check a condition. version: the key's current version, None if it is absent."""
    if expected == NO_VERSION:
        return
    if expected == NOT_EXISTS:
        if version is not None:
            raise ConditionFailedError(
                f"the key exists already, at version {version}: read it, then update that version"
            )
    elif version is None:
        raise KeyNotFoundError(f"the key doesn't exist, but version {expected} was expected: read it again")
    elif version != expected:
        raise ConditionFailedError(f"the key is at version {version}, but {expected} was expected: read it again")


def _check_open(record: SegmentRecord, length: int) -> None:
    if record.sealed:
        raise StreamSealedError(record.name)
    if length not in (-1, record.table_length):
        raise TableLengthError(record.table_length)


def update(
    frame: FrameBuilder,
    record: SegmentRecord,
    entries: Sequence[WireTableEntry],
    length: int,
    of_reserve: float = NOTHING,
) -> list[int]:
    """Put all entries or none; conditions are checked against the previous state. Return the versions. of_reserve:
    fraction of the reserve that may be used on a full disk. Small values that replace named versions, such as a reader
    group's state, may always use half of it."""
    _check_open(record, length)
    size = sum(len(entry.key) + len(entry.value) for entry in entries)
    if size > limits.TABLE_BATCH_MAX_BYTES:
        raise InvalidArgumentError(f"a batch of {size:,} bytes exceeds {limits.TABLE_BATCH_MAX_BYTES:,}")
    for entry in entries:
        check_key(record, entry.key)
        if len(entry.value) > limits.TABLE_VALUE_MAX_BYTES:
            raise InvalidArgumentError(f"a table value has at most {limits.TABLE_VALUE_MAX_BYTES:,} bytes")
    conditional = [entry for entry in entries if entry.version != NO_VERSION]
    current = frame.state.table_versions(record, [entry.key for entry in conditional])
    for entry in conditional:
        _check_condition(current.get(entry.key), entry.version)
    position = record.table_length
    versions: list[int] = []
    rows: list[tuple[bytes, int, bytes | None]] = []
    for entry in entries:
        versions.append(position)
        rows.append((entry.key, position, entry.value))
        position += ENTRY_OVERHEAD_BYTES + len(entry.key) + len(entry.value)
    if rows:
        if not of_reserve and size <= _SMALL_BYTES and all(entry.version >= 0 for entry in entries):
            of_reserve = HALF
        frame.emit(TableUpdate(record.id, rows, frame.now_ms), record, of_reserve=of_reserve)
    return versions


def remove(frame: FrameBuilder, record: SegmentRecord, keys: Sequence[WireTableKey], length: int) -> None:
    """Remove all keys or none; removing an absent key without a condition succeeds."""
    _check_open(record, length)
    for key in keys:
        check_key(record, key.key)
    current = frame.state.table_versions(record, [key.key for key in keys])
    for key in keys:
        _check_condition(current.get(key.key), key.version)
    position = record.table_length
    rows: list[tuple[bytes, int, bytes | None]] = []
    for key in keys:
        if key.key in current:
            rows.append((key.key, position, None))
            position += ENTRY_OVERHEAD_BYTES + len(key.key)
    if rows:
        frame.emit(TableUpdate(record.id, rows, frame.now_ms), record, of_reserve=ALL)


def read(
    keys: Sequence[WireTableKey], size: int, state: StateMachine, record: SegmentRecord
) -> tuple[list[WireTableEntry], int]:
    """Return an entry for each requested key, in order, and the size of the reply with them, in bytes; absent keys have
    version NOT_EXISTS and no value. size: of the reply without them."""
    entries = []
    for key in keys:
        if not key.key:
            raise InvalidArgumentError("a table key has at least one byte")  # a reply couldn't name it either
        entry = state.table_entry(record, key.key)
        entries.append(
            WireTableEntry(key.key, entry[0], entry[1]) if entry else WireTableEntry(key.key, NOT_EXISTS, b"")
        )
        size += ENTRY_OVERHEAD_BYTES + len(key.key) + len(entries[-1].value)
        if size > limits.MAX_FRAME_SENT_BYTES:
            raise InvalidArgumentError(
                f"the entries have more than {limits.MAX_FRAME_SENT_BYTES:,} bytes: ask for fewer keys"
            )
    return entries, size


def _ordered(state: StateMachine, record: SegmentRecord, start: bytes) -> Iterator[WireTableEntry]:
    """Yield all entries from key `start` on in key order; those in memory override those on disk."""
    overlay = record.overlay
    fresh = iter(sorted(key for key, (_, value) in overlay.items() if key >= start and value is not None))
    pending = next(fresh, None)
    for key, version, value in state.metadata.entries_from(record.id, start):
        if key < start:
            continue  # only if long keys share their head with `start`
        while pending is not None and pending < key:
            entry = overlay[pending]
            yield WireTableEntry(pending, entry[0], entry[1] or b"")
            pending = next(fresh, None)
        if key not in overlay:
            yield WireTableEntry(key, version, value)
    while pending is not None:
        entry = overlay[pending]
        yield WireTableEntry(pending, entry[0], entry[1] or b"")
        pending = next(fresh, None)


def page(
    state: StateMachine, record: SegmentRecord, count: int, token: bytes, low: bytes, high: bytes
) -> tuple[list[WireTableEntry], bytes]:
    """Return at most `count` entries in key order, after `token` and within [low, high], and the next token."""
    start = max(low, token + b"\0") if token else low
    entries: list[WireTableEntry] = []
    size = 0
    for entry in islice(_ordered(state, record, start), min(max(1, count), limits.TABLE_PAGE_MAX_ENTRIES)):
        if high and entry.key > high:
            break
        entries.append(entry)
        size += len(entry.key) + len(entry.value)
        if size > limits.TABLE_PAGE_MAX_BYTES:
            break
    return entries, entries[-1].key if entries else token


def delta(
    state: StateMachine, record: SegmentRecord, position: int, count: int
) -> tuple[list[WireTableEntry], bool, int]:
    """Return entries at or after `position` in log order, whether these are all, and the position to resume at."""
    limit = min(max(1, count), limits.TABLE_PAGE_MAX_ENTRIES)
    entries: list[WireTableEntry] = []
    size = 0

    def rows() -> Iterator[WireTableEntry]:
        for at, key in state.metadata.positions_from(record.id, position):
            if key not in record.overlay:
                stored_entry = state.metadata.entry(record.id, key)
                if stored_entry is not None and stored_entry[0] == at:
                    yield WireTableEntry(key, at, stored_entry[1])
        for key, (at, value) in record.overlay.items():
            if at >= position and value is not None:
                yield WireTableEntry(key, at, value)

    for entry in rows():
        if len(entries) == limit or size > limits.TABLE_PAGE_MAX_BYTES:
            last = entries[-1]
            return entries, False, last.version + ENTRY_OVERHEAD_BYTES + len(last.key) + len(last.value)
        entries.append(entry)
        size += len(entry.key) + len(entry.value)
    return entries, True, record.table_length if entries else position
