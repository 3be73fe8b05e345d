"""The state of one container on disk: an LMDB file, written behind the log.

What a checkpoint wrote reflects the log up to `sequence`, exactly, because everything of it goes
into one transaction together with that number. Recovery reads it and replays the log from there.
Each value has a checksum, which is looked at whenever it is read (`checked`). What a checkpoint wrote is also
noted, record by record, for the snapshots (`changes`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import lmdb
import msgspec
from crc32c import crc32c

from nadi.errors import DamagedStateError, StorageFullError, UnavailableError
from nadi.limits import STATE_CHANGES_MAX_BYTES, STATE_MAP_BYTES, TIME_INDEX_TRIM_ENTRIES
from nadi.segmentstore import reserve
from nadi.segmentstore.state.checked import (
    CRC_BYTES,
    STATE_KEY,
    TABLES,
    TOTALS_KEY,
    WHOLE,
    Totals,
    decode_totals,
    seed_of,
)
from nadi.segmentstore.state.commit import Changes, Commit, is_checked, merge
from nadi.segmentstore.state.records import Extent, FrameRef, Kind, SegmentRecord
from nadi.segmentstore.state.upgrade import upgrade
from nadi.segmentstore.tier1.log import LogAddress

log = logging.getLogger(__name__)

_MAX_READERS = 64
_LOCK_BYTES = 8192  # holds LMDB's list of `_MAX_READERS` readers
_KEY_MAX = 500  # LMDB takes 511
_HEAD_BYTES = _KEY_MAX - 32  # what is kept of a longer key, before its digest
_ID = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_I64 = struct.Struct(">q")
_EXTENT = struct.Struct(">QQQQQ")  # length, sequence, file, offset, position and whether it continues an event
_CONTINUES = 1 << 63  # in the position; earlier versions never set it

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


decode_segment = msgspec.msgpack.Decoder(_Stored).decode
_decode_state = msgspec.msgpack.Decoder(ContainerState).decode
_encode = msgspec.msgpack.Encoder().encode


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
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError) as error:
        raise DamagedStateError(str(folder), str(error)) from error
    except lmdb.Error as error:  # EIO too, which is what LMDB makes of a write that only half fitted the disk
        raise UnavailableError(
            f"the container's state in {folder} can't be opened ({error}): see that its disk works and has room, "
            "and that the files there are this user's; then start again"
        ) from error


def _reserve_lock_file(path: Path) -> None:
    """Let LMDB's lock file have its blocks: it is written through a mapping, where a full disk means SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    finally:
        os.close(descriptor)


class Metadata:
    """Point reads on the event loop (microseconds), checkpoints from a thread.

    A value that is not what was stored raises DamagedStateError, and `on_damage` is told: then nothing that is read
    here can be relied on any more.
    """

    def __init__(self, folder: Path, container: int = 0) -> None:
        """Open the state of that container, or make it, in a folder of its own; one of an earlier version is upgraded.

        Raises StorageFullError, DamagedStateError or UnavailableError where LMDB can't, OSError where the folder
        can't be used.
        """
        self._folder = folder
        self._container = container
        self.on_damage: Callable[[DamagedStateError], None] = lambda error: None
        self.changes: Changes = {}  # since `take_changes`
        self.changed_bytes = 0
        self.seeds: dict[str, int] | None = self._all_seeds()  # None: an old state on a full disk, without checksums
        self._totals: Totals = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        self._open_file(folder, map_bytes)
        try:
            if self._is_of_before():
                self._env.close()
                self._upgrade(folder)
                self._open_file(folder, max(map_bytes, 2 * (folder / "data.mdb").stat().st_size))
            if self.seeds is not None and self._read("state", STATE_KEY) is not None:
                self._totals = decode_totals(self._get("state", TOTALS_KEY) or b"")
        except BaseException:
            self._env.close()
            raise

    def _upgrade(self, folder: Path) -> None:
        try:
            upgrade(folder, self._container)
        except (lmdb.Error, OSError) as error:
            if not isinstance(error, lmdb.DiskError) and not reserve.disk_is_full(folder):
                raise
            self.seeds = None
            log.warning("no room for checksums in the state in %s (%s): they wait for a later start", folder, error)

    def _open_file(self, folder: Path, map_bytes: int) -> None:
        self._env = lmdb.open(
            str(folder), map_size=map_bytes, max_dbs=len(TABLES), max_readers=_MAX_READERS, mode=0o600
        )
        try:
            self._tables = {name: self._env.open_db(name.encode()) for name in TABLES}
        except BaseException:
            self._env.close()
            raise

    def _is_of_before(self) -> bool:
        """Whether the state is one without checksums; a new one has neither."""
        raw = self._read("state", STATE_KEY)
        if raw is None or is_checked(raw, self._container):
            return False
        try:
            _decode_state(raw)
        except msgspec.DecodeError:
            raise DamagedStateError(str(self._folder), "its own record is damaged") from None
        return True

    def _all_seeds(self) -> dict[str, int]:
        return {table: seed_of(self._container, table) for table in TABLES}

    def close(self) -> None:
        self._env.close()

    @property
    def where(self) -> str:
        """Its folder, for messages."""
        return str(self._folder)

    @property
    def checked(self) -> bool:
        """Whether its values have checksums; only an old state on a full disk has none."""
        return self.seeds is not None

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
        with self._env.begin(write=True) as txn:
            commit = Commit(txn, self._tables, self.seeds, self._totals)
            for segment, name in deleted.items():
                self._delete(txn, commit, _ID.pack(segment), bounded_key(name.encode()))
            for table, key, value in changes:
                if value is None:
                    commit.delete(table, key)
                else:
                    commit.put(table, key, value)
            for segment, changed in extents:
                self._put_extents(commit, segment, changed)
            for segment, overlay in entries:
                self._put_entries(txn, commit, _ID.pack(segment), overlay)
            for segment, added, start_offset in moments:
                for moment_ms, offset in added.items():
                    commit.put("moments", _PAIR.pack(segment, moment_ms), _ID.pack(offset))
                if start_offset:
                    self._trim_moments(commit, _ID.pack(segment), start_offset)
            noted = commit.finish()
        self._totals = noted.totals
        merge(self.changes, noted.changes)
        self.changed_bytes += noted.size_bytes
        if self.changed_bytes > STATE_CHANGES_MAX_BYTES:
            self.changes = {}  # whoever takes them sees by `changed_bytes` that they are not there

    def take_changes(self) -> tuple[Changes | None, int]:
        """What was changed since the last call, and about how large it is; only while no commit runs.

        None: too much to be kept.
        """
        taken = None if self.changed_bytes > STATE_CHANGES_MAX_BYTES else self.changes, self.changed_bytes
        self.changes, self.changed_bytes = {}, 0
        return taken

    def copy(self, file: int) -> None:
        """Write all of the state, as of the last commit, to an open file, compactly; blocking, while no commit runs."""
        with _explained(self._folder):
            self._env.copyfd(file, compact=True)

    def grow(self) -> None:
        """Double the room for the state; only while no transaction is open, so not while `commit` runs."""
        self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _delete(self, txn: lmdb.Transaction, commit: Commit, prefix: bytes, name: bytes) -> None:
        owner = txn.get(name, db=self._tables["names"])
        if owner is not None and self._whole("names", name, owner) == prefix:  # else another's by now
            commit.delete("names", name)
        for table in ("segments", "logged", "attributes", "extents", "entries", "positions", "moments"):
            commit.delete_range(table, prefix)

    def _put_extents(self, commit: Commit, segment: int, changed: ChangedExtents) -> None:
        for offset, extent in changed.items():
            if extent is None:
                commit.delete("extents", _PAIR.pack(segment, offset))
            else:
                commit.put("extents", _PAIR.pack(segment, offset), _pack_extent(extent))

    def _put_entries(self, txn: lmdb.Transaction, commit: Commit, prefix: bytes, overlay: Overlay) -> None:
        for key, (version, value) in overlay.items():
            place = bounded_key(prefix + key)
            old = txn.get(place, db=self._tables["entries"])
            if old is not None:
                commit.delete("positions", prefix + self._whole("entries", place, old)[:8])
            if value is None:
                commit.delete("entries", place)
            else:
                commit.put("entries", place, _I64.pack(version) + _ID.pack(len(key)) + key + value)
                commit.put("positions", prefix + _I64.pack(version), key)

    def _trim_moments(self, commit: Commit, prefix: bytes, start_offset: int) -> None:
        """Delete entries up to the start offset, not too many at once: what is left has its turn later."""
        commit.delete_range(
            "moments", prefix, TIME_INDEX_TRIM_ENTRIES, lambda raw: _ID.unpack_from(raw)[0] > start_offset
        )

    # --- reading ---------------------------------------------------------------------------------------

    def _whole(self, table: str, key: bytes, raw: bytes | memoryview) -> bytes:
        """The value that is stored as `raw`, once its checksum was looked at."""
        if self.seeds is None:
            return bytes(raw)
        if crc32c(raw, crc32c(key, self.seeds[table])) == WHOLE and len(raw) >= CRC_BYTES:
            return bytes(raw[:-CRC_BYTES])
        error = DamagedStateError(str(self._folder), f"a record of table {table} is damaged")
        self.on_damage(error)
        raise error

    def state(self) -> ContainerState:
        raw = self._get("state", STATE_KEY)
        return _decode_state(raw) if raw is not None else ContainerState()

    def _read(self, table: str, key: bytes) -> bytes | None:
        with self._env.begin(db=self._tables[table]) as txn:
            raw = txn.get(key)
            return None if raw is None else bytes(raw)

    def _get(self, table: str, key: bytes) -> bytes | None:
        with self._env.begin(db=self._tables[table]) as txn:
            raw = txn.get(key)
        return None if raw is None else self._whole(table, key, raw)

    def _scan(self, table: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin(db=self._tables[table]) as txn:
            cursor = txn.cursor()
            if cursor.set_range(max(prefix, start)):
                for key, raw in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, self._whole(table, key, raw)

    def page(self, table: str, after: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first `count` (key, value) of a table behind a key; from its first on behind an empty one."""
        return list(islice(self._scan(table, b"", after + b"\0" if after else b""), count))

    def segment_id(self, name: str) -> int | None:
        if not name:
            return None  # LMDB takes no empty key
        raw = self._get("names", bounded_key(name.encode()))
        return None if raw is None else int(_ID.unpack(raw)[0])

    def segments(self) -> Iterator[int]:
        """The ids of all segments, in order."""
        for key, _ in self._scan("segments", b""):
            yield _ID.unpack(key)[0]

    def attribute(self, segment: int, attribute: bytes) -> int | None:
        raw = self._get("attributes", _ID.pack(segment) + attribute)
        return None if raw is None else int(_I64.unpack(raw)[0])

    def load(self, segment: int, frames: dict[int, FrameRef]) -> SegmentRecord | None:
        """The record of a segment; frames in the log are shared through `frames`, by sequence."""
        raw = self._get("segments", _ID.pack(segment))
        if raw is None:
            return None
        stored = decode_segment(raw)
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
            chunk, checksums = _unpack_chunk(value)
            at, continues = position & ~_CONTINUES, bool(position & _CONTINUES)
            extent = Extent(_PAIR.unpack(key)[1], length, frame, at, chunk, checksums, continues=continues)
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

    def chunks(self) -> Iterator[tuple[int, int, int, str]]:
        """Segment, offset, length and chunk of all extents that are in chunks, as of the last checkpoint."""
        for key, value in self._scan("extents", b""):
            if not _EXTENT.unpack_from(value)[1]:
                yield *_PAIR.unpack(key), _EXTENT.unpack_from(value)[0], _unpack_chunk(value)[0]

    def moment(self, segment: int, at_ms: int) -> int | None:
        """The offset of the segment's last entry in its time index at or before that moment."""
        prefix = _ID.pack(segment)
        with self._env.begin(db=self._tables["moments"]) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(_PAIR.pack(segment, at_ms + 1))
            if (cursor.prev() if found else cursor.last()) and (key := bytes(cursor.key())).startswith(prefix):
                return int(_ID.unpack(self._whole("moments", key, bytes(cursor.value())))[0])
            return None

    def moments(self, segment: int) -> Iterator[tuple[int, int]]:
        """The entries of a segment's time index, in order."""
        for key, raw in self._scan("moments", _ID.pack(segment)):
            yield _PAIR.unpack(key)[1], _ID.unpack(raw)[0]

    def entry(self, segment: int, key: bytes) -> tuple[int, bytes] | None:
        """(version, value) of a table's key."""
        raw = self._get("entries", bounded_key(_ID.pack(segment) + key))
        return None if raw is None else _unpack_entry(raw)[1:]

    def versions(self, segment: int, keys: Iterable[bytes]) -> dict[bytes, int]:
        """The versions of those of a table's keys that are there."""
        prefix, found = _ID.pack(segment), dict[bytes, int]()
        with self._env.begin(db=self._tables["entries"]) as txn:
            for key in keys:
                stored = bounded_key(prefix + key)
                raw = txn.get(stored)
                if raw is not None:
                    found[key] = _unpack_entry(self._whole("entries", stored, raw))[1]
        return found

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
        return "state", STATE_KEY, _encode(state)

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
    checksums = b"\0" + extent.checksums if extent.checksums else b""  # earlier versions had none
    position = extent.position | _CONTINUES if extent.continues else extent.position
    return _EXTENT.pack(extent.length, *address, position) + extent.chunk.encode() + checksums


def _unpack_chunk(value: bytes) -> tuple[str, bytes]:
    """What follows the fixed part of an extent: the chunk's name, and the checksums."""
    chunk, _, checksums = bytes(value[_EXTENT.size :]).partition(b"\0")
    return chunk.decode(), checksums


def extent_length(value: bytes) -> int:
    """How many bytes of its segment an extent has, by its value in the table."""
    return int(_EXTENT.unpack_from(value)[0])


def _unpack_entry(raw: bytes) -> tuple[bytes, int, bytes]:
    size = _ID.unpack_from(raw, 8)[0]
    return raw[16 : 16 + size], int(_I64.unpack_from(raw)[0]), raw[16 + size :]


def decode_sequence(state: bytes) -> int:
    """The last frame that a state reflects, of its own record."""
    return _decode_state(state).sequence


def encode_state(sequence: int, next_segment: int) -> bytes:
    """A state's own record, where no more is known."""
    return _encode(ContainerState(sequence, next_segment))


def freed(state: bytes, next_segment: int, in_use: set[str]) -> bytes:
    """A state's own record, with these chunks neither planned nor garbage, and new segments from that number on."""
    own = _decode_state(state)
    own.next_segment = max(own.next_segment, next_segment)
    own.planned = [chunk for chunk in own.planned if chunk not in in_use]
    own.garbage = [chunk for chunk in own.garbage if chunk not in in_use]
    return _encode(own)


def derived(records: Mapping[str, Mapping[bytes, bytes]]) -> dict[str, dict[bytes, bytes]]:
    """The tables of a state that follow from the others: names, positions, and which segments are in the log."""
    names = {bounded_key(decode_segment(raw).name.encode()): key for key, raw in records["segments"].items()}
    positions = {}
    for place, raw in records["entries"].items():
        key, version, _ = _unpack_entry(raw)
        positions[place[: _ID.size] + _I64.pack(version)] = key
    in_log = {key[: _ID.size]: b"" for key, raw in records["extents"].items() if _EXTENT.unpack_from(raw)[1]}
    return {"names": names, "positions": positions, "logged": in_log}


__all__ = ["Change", "ChangedExtents", "ContainerState", "Kind", "Metadata", "Overlay", "bounded_key", "extent_length"]
