"""The state of one container on disk: an LMDB file, written behind the log.

What a checkpoint wrote reflects the log up to `sequence`, exactly, because everything of it goes
into one transaction together with that number. Recovery reads it and replays the log from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import lmdb
import msgspec

from nadi.errors import DataFolderError, StorageFullError, UnavailableError
from nadi.limits import STATE_MAP_BYTES, TIME_INDEX_TRIM_ENTRIES
from nadi.segmentstore.records import Extent, FrameRef, Kind, SegmentRecord
from nadi.segmentstore.tier1.log import LogAddress

_MAX_READERS = 64
_LOCK_BYTES = 8192  # holds LMDB's list of `_MAX_READERS` readers
_KEY_MAX = 500  # LMDB takes 511
_HEAD_BYTES = _KEY_MAX - 32  # what is kept of a longer key, before its digest
_ID = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_I64 = struct.Struct(">q")
_EXTENT = struct.Struct(">QQQQQ")  # length, sequence, file, offset, position

Change = tuple[str, bytes, bytes | None]  # (table, key, value or None to delete)
ChangedExtents = dict[int, Extent | None]  # by offset; None: no extent begins there any more
Overlay = dict[bytes, tuple[int, bytes | None]]  # a table's newest entries: key -> (version, value or None)


class ContainerState(msgspec.Struct, array_like=True):
    """What a container knows beside its segments."""

    sequence: int = 0
    next_segment: int = 1
    planned: list[str] = []
    garbage: list[str] = []
    transients: list[int] = []
    logged: bool = False  # whether `logged` lists all segments it should; earlier versions had no such table


class _Stored(msgspec.Struct, array_like=True, gc=False):
    name: str
    kind: int
    created_ms: int
    modified_ms: int
    start_offset: int
    length: int
    sealed: bool
    scale_type: int
    target_rate: int
    rollover_bytes: int
    key_length: int
    event_count: int
    entry_count: int
    table_length: int
    appended_ms: int = 0  # from here on 0 in records of earlier versions, which had no time index
    entered_ms: int = 0
    entered_offset: int = 0


_decode_segment = msgspec.msgpack.Decoder(_Stored).decode
_decode_state = msgspec.msgpack.Decoder(ContainerState).decode
_encode = msgspec.msgpack.Encoder().encode

TABLES = ("state", "names", "segments", "attributes", "extents", "logged", "entries", "positions", "moments")


def bounded_key(raw: bytes) -> bytes:
    """A key that LMDB takes: long ones keep their head, so that order holds but for those that share it."""
    if len(raw) <= _KEY_MAX:
        return raw
    return raw[:_HEAD_BYTES] + hashlib.sha256(raw).digest()


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """What LMDB says about a folder, in words that tell what to do."""
    try:
        yield
    except lmdb.DiskError as error:
        raise StorageFullError(
            f"no room for the container's state in {folder} ({error}): free space on its disk, then start again"
        ) from error
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise DataFolderError(
            f"the container's state in {folder} can't be read ({error}): put that folder back from a copy"
        ) from error
    except lmdb.Error as error:  # EIO too, which is what LMDB makes of a write that only half fitted the disk
        raise UnavailableError(
            f"the container's state in {folder} can't be opened ({error}): see that its disk works and has room, "
            "and that the files there are this user's; then start again"
        ) from error


def _reserve_lock_file(path: Path) -> None:
    """Let LMDB's lock file have its blocks: it is written through a mapping, where a full disk means SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    finally:
        os.close(descriptor)


class Metadata:
    """Point reads on the event loop (microseconds), checkpoints from a thread."""

    def __init__(self, folder: Path) -> None:
        """Open it, or make it, in a folder of its own.

        Raises StorageFullError, DataFolderError or UnavailableError where LMDB can't, OSError where the folder
        can't be used.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "data.mdb"
        size_bytes = file.stat().st_size if file.exists() else 0
        map_bytes = max(STATE_MAP_BYTES, 2 * size_bytes)
        _reserve_lock_file(folder / "lock.mdb")
        with _explained(folder):
            try:
                self._open(folder, map_bytes)
            except lmdb.Error:
                if not size_bytes:
                    file.unlink(missing_ok=True)  # half of a new one: the next start would find it damaged
                raise

    def _open(self, folder: Path, map_bytes: int) -> None:
        self._env = lmdb.open(str(folder), map_size=map_bytes, max_dbs=len(TABLES), max_readers=_MAX_READERS)
        try:
            self._tables = {name: self._env.open_db(name.encode()) for name in TABLES}
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        self._env.close()

    def commit(
        self,
        changes: Sequence[Change],
        deleted: Mapping[int, str] = MappingProxyType({}),
        extents: Iterable[tuple[int, ChangedExtents]] = (),
        entries: Iterable[tuple[int, Overlay]] = (),
        moments: Iterable[tuple[int, Mapping[int, int], int]] = (),
    ) -> None:
        """Write everything in one durable transaction; blocking.

        deleted: names of segments by id, of which nothing stays. extents, entries: by segment.
        moments: by segment, with its start offset.
        MapFullError: nothing was written; `grow`, then try again.
        """
        tables = self._tables
        with self._env.begin(write=True) as txn:
            for segment, name in deleted.items():
                self._delete(txn, _ID.pack(segment), bounded_key(name.encode()))
            for table, key, value in changes:
                if value is None:
                    txn.delete(key, db=tables[table])
                else:
                    txn.put(key, value, db=tables[table])
            for segment, changed in extents:
                self._put_extents(txn, segment, changed)
            for segment, overlay in entries:
                self._put_entries(txn, _ID.pack(segment), overlay)
            for segment, added, start_offset in moments:
                for moment_ms, offset in added.items():
                    txn.put(_PAIR.pack(segment, moment_ms), _ID.pack(offset), db=tables["moments"])
                if start_offset:
                    self._trim_moments(txn, _ID.pack(segment), start_offset)

    def grow(self) -> None:
        """Double the room for the state; only while no transaction is open, so not while `commit` runs."""
        self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _delete(self, txn: lmdb.Transaction, prefix: bytes, name: bytes) -> None:
        tables = self._tables
        if txn.get(name, db=tables["names"]) == prefix:  # else it is another segment's by now
            txn.delete(name, db=tables["names"])
        for table in ("segments", "logged", "attributes", "extents", "entries", "positions", "moments"):
            cursor = txn.cursor(tables[table])
            cursor.set_range(prefix)
            while bytes(cursor.key()).startswith(prefix):
                cursor.delete()  # and goes on to the next

    def _put_extents(self, txn: lmdb.Transaction, segment: int, changed: ChangedExtents) -> None:
        table = self._tables["extents"]
        for offset, extent in changed.items():
            if extent is None:
                txn.delete(_PAIR.pack(segment, offset), db=table)
            else:
                txn.put(_PAIR.pack(segment, offset), _pack_extent(extent), db=table)

    def _put_entries(self, txn: lmdb.Transaction, prefix: bytes, overlay: Overlay) -> None:
        entries, positions = self._tables["entries"], self._tables["positions"]
        for key, (version, value) in overlay.items():
            place = bounded_key(prefix + key)
            old = txn.get(place, db=entries)
            if old is not None:
                txn.delete(prefix + old[:8], db=positions)
            if value is None:
                txn.delete(place, db=entries)
            else:
                txn.put(place, _I64.pack(version) + _ID.pack(len(key)) + key + value, db=entries)
                txn.put(prefix + _I64.pack(version), key, db=positions)

    def _trim_moments(self, txn: lmdb.Transaction, prefix: bytes, start_offset: int) -> None:
        """Delete entries up to the start offset, not too many at once: what is left has its turn later."""
        cursor = txn.cursor(self._tables["moments"])
        cursor.set_range(prefix)
        for _ in range(TIME_INDEX_TRIM_ENTRIES):
            if not bytes(cursor.key()).startswith(prefix) or _ID.unpack(cursor.value())[0] > start_offset:
                return
            cursor.delete()  # and goes on to the next

    def state(self) -> ContainerState:
        with self._env.begin(db=self._tables["state"]) as txn:
            raw = txn.get(b"state")
        return _decode_state(raw) if raw is not None else ContainerState()

    def _get(self, table: str, key: bytes) -> bytes | None:
        with self._env.begin(db=self._tables[table]) as txn:
            value: bytes | None = txn.get(key)
            return value

    def _scan(self, table: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin(db=self._tables[table]) as txn:
            cursor = txn.cursor()
            if cursor.set_range(max(prefix, start)):
                for key, value in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, value

    def page(self, table: str, after: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first `count` (key, value) of a table behind a key; from its first on behind an empty one."""
        return list(islice(self._scan(table, b"", after + b"\0" if after else b""), count))

    def segment_id(self, name: str) -> int | None:
        if not name:
            return None  # LMDB takes no empty key
        raw = self._get("names", bounded_key(name.encode()))
        return None if raw is None else int(_ID.unpack(raw)[0])

    def attribute(self, segment: int, attribute: bytes) -> int | None:
        raw = self._get("attributes", _ID.pack(segment) + attribute)
        return None if raw is None else int(_I64.unpack(raw)[0])

    def load(self, segment: int, frames: dict[int, FrameRef]) -> SegmentRecord | None:
        """The record of a segment; frames in the log are shared through `frames`, by sequence."""
        raw = self._get("segments", _ID.pack(segment))
        if raw is None:
            return None
        stored = _decode_segment(raw)
        record = SegmentRecord(segment, stored.name, stored.kind, stored.created_ms)
        for field in _Stored.__struct_fields__[3:]:
            setattr(record, field, getattr(stored, field))
        record.appended_ms = stored.appended_ms or stored.modified_ms
        record.durable_length, record.durable_sealed, record.exists = stored.length, stored.sealed, True
        record.attributes_loaded = False
        for key, value in self._scan("extents", _ID.pack(segment)):
            length, sequence, file, offset, position = _EXTENT.unpack_from(value)
            frame = None
            if sequence:
                frame = frames.get(sequence)
                if frame is None:
                    frame = frames[sequence] = FrameRef(sequence, LogAddress(sequence, file, offset), 0.0)
            extent = Extent(_PAIR.unpack(key)[1], length, frame, position, value[_EXTENT.size :].decode())
            record.extents.append(extent)
            if frame is not None:
                record.log_bytes += length
        return record

    def logged(self, *, complete: bool) -> list[int]:
        """The segments that have bytes in the log only; not `complete`: found among all extents."""
        if complete:
            return [_ID.unpack(key)[0] for key, _ in self._scan("logged", b"")]
        found: dict[int, None] = {}
        for key, value in self._scan("extents", b""):
            if _EXTENT.unpack_from(value)[1]:
                found[_PAIR.unpack(key)[0]] = None
        return list(found)

    def moment(self, segment: int, at_ms: int) -> int | None:
        """The offset of the segment's last entry in its time index at or before that moment."""
        prefix = _ID.pack(segment)
        with self._env.begin(db=self._tables["moments"]) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(_PAIR.pack(segment, at_ms + 1))
            if (cursor.prev() if found else cursor.last()) and bytes(cursor.key()).startswith(prefix):
                return int(_ID.unpack(cursor.value())[0])
            return None

    def moments(self, segment: int) -> Iterator[tuple[int, int]]:
        """The entries of a segment's time index, in order."""
        for key, raw in self._scan("moments", _ID.pack(segment)):
            yield _PAIR.unpack(key)[1], _ID.unpack(raw)[0]

    def entry(self, segment: int, key: bytes) -> tuple[int, bytes] | None:
        """(version, value) of a table's key."""
        raw = self._get("entries", bounded_key(_ID.pack(segment) + key))
        return None if raw is None else _unpack_entry(raw)[1:]

    def entries_from(self, segment: int, key: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """(key, version, value) in order of keys, from `key` on, or from a little before where keys are long."""
        prefix = _ID.pack(segment)
        head = b""
        alike: list[tuple[bytes, int, bytes]] = []  # entries whose stored keys share this head; not in order
        for stored, raw in self._scan("entries", prefix, (prefix + key)[:_HEAD_BYTES]):
            if alike and not stored.startswith(head):
                yield from sorted(alike)
                alike = []
            if len(stored) < _HEAD_BYTES:
                yield _unpack_entry(raw)
            else:
                head = stored[:_HEAD_BYTES]
                alike.append(_unpack_entry(raw))
        yield from sorted(alike)

    def positions_from(self, segment: int, position: int) -> Iterator[tuple[int, bytes]]:
        """(position, key) in order of positions."""
        for key, raw in self._scan("positions", _ID.pack(segment), _PAIR.pack(segment, max(0, position))):
            yield _PAIR.unpack(key)[1], raw

    # --- what a checkpoint writes ------------------------------------------------------------------

    def state_change(self, state: ContainerState) -> Change:
        return "state", b"state", _encode(state)

    def record_changes(self, record: SegmentRecord) -> list[Change]:
        """What changed of the record itself and its attributes; the caller clears its marks."""
        prefix = _ID.pack(record.id)
        fields = [getattr(record, field) for field in _Stored.__struct_fields__]
        changes: list[Change] = [
            ("names", bounded_key(record.name.encode()), prefix),
            ("segments", prefix, _encode(_Stored(*fields))),
            ("logged", prefix, b"" if record.log_bytes else None),
        ]
        for attribute in record.changed_attributes:
            changes.append(("attributes", prefix + attribute, _I64.pack(record.attributes[attribute])))
        return changes


def _pack_extent(extent: Extent) -> bytes:
    address = extent.frame.address if extent.frame is not None else LogAddress(0, 0, 0)
    assert address is not None, "a checkpoint holds durable frames only"
    return _EXTENT.pack(extent.length, *address, extent.position) + extent.chunk.encode()


def extent_length(value: bytes) -> int:
    """How many bytes of its segment an extent has, by its value in the table."""
    return int(_EXTENT.unpack_from(value)[0])


def _unpack_entry(raw: bytes) -> tuple[bytes, int, bytes]:
    size = _ID.unpack_from(raw, 8)[0]
    return raw[16 : 16 + size], int(_I64.unpack_from(raw)[0]), raw[16 + size :]


__all__ = ["Change", "ChangedExtents", "ContainerState", "Kind", "Metadata", "Overlay", "bounded_key", "extent_length"]
