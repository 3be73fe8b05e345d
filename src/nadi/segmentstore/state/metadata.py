"""The state of one open container: an LMDB file, written after the log, and never synced, as it doesn't outlive the
process.

A checkpoint writes the changes up to frame `sequence` and that number in one transaction; the changes are also recorded
for the snapshots (`changes`). Each value has a checksum, which is verified on every read (`stored`): the disk may
damage values evicted from memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import lmdb

from nadi.encryption.sealing import PLAIN
from nadi.errors import DamagedStateError, StorageFullError, UnavailableError
from nadi.limits import STATE_CHANGES_MAX_BYTES, STATE_MAP_BYTES, TIME_INDEX_TRIM_ENTRIES, VERIFIED_ROWS
from nadi.segmentstore.state.commit import TABLE, ChangedExtents, Changes, StateCommit, merge, put_extents, singles
from nadi.segmentstore.state.records import FrameRef, SegmentRecord, StoredTimes
from nadi.segmentstore.state.stored import (
    CRC_BYTES,
    EXTENT,
    HEAD_BYTES,
    I64,
    ID,
    PAIR,
    STATE_KEY,
    TABLES,
    Change,
    ContainerState,
    bounded_key,
    decode_record,
    decode_state,
    is_whole,
    seeds_of,
    time_key,
    time_of,
    unpack_chunk,
    unpack_entry,
)

STATE_FILE = "data.mdb"
_MAX_READERS = 64
_LOCK_BYTES = 8192  # LMDB's list of `_MAX_READERS` readers

Overlay = dict[bytes, tuple[int, bytes | None]]  # a table's newest entries: key -> (version, value or None)


@contextlib.contextmanager
def _mapped_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.DiskError as error:
        raise StorageFullError(
            f"no space for the container's state in {folder} ({error}): free space on its disk, then start again"
        ) from error
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError) as error:
        raise DamagedStateError(str(folder), str(error)) from error
    except lmdb.Error as error:  # includes EIO, which LMDB reports if only half of a write fits the disk
        raise UnavailableError(
            f"the container's state in {folder} can't be opened ({error}): check that its disk works and has space, "
            "and that its files belong to this user, then start again"
        ) from error


def verify(file: Path, container: int, rest: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Read all records of an unchanging state file; return the number of records by table; blocking. rest: called
    regularly to yield the interpreter. DamagedStateError: a record's checksum is wrong."""
    counts: dict[str, int] = {}
    path = os.fsencode(file)
    with (
        _mapped_errors(file),
        lmdb.open(path, subdir=False, readonly=True, lock=False, max_dbs=len(TABLES)) as env,
    ):
        for table, seed in seeds_of(container).items():
            count = 0
            with env.begin(db=env.open_db(table.encode(), create=False), buffers=True) as txn:
                for key, raw in txn.cursor():
                    if not is_whole(seed, key, raw):
                        raise DamagedStateError(str(file), f"a record of table {table} is damaged")
                    count += 1
                    if count % VERIFIED_ROWS == 0:
                        rest()
            counts[table] = count
    return counts


class ContainerMetadata:
    """The state's tables: point reads on the event loop (microseconds), checkpoints from a thread. A damaged value
    raises DamagedStateError, and `on_damage` is called: from then on nothing read here is reliable."""

    def __init__(self, folder: Path, container: int = 0) -> None:
        """Open or create the container's state in a separate folder. Raises StorageFullError, DamagedStateError or
        UnavailableError if LMDB fails, OSError if the folder can't be used."""
        self.folder = folder
        self.sealing = PLAIN  # of the log that this state reflects
        self.on_damage: Callable[[DamagedStateError], None] = lambda error: None
        self.changes: Changes = {}  # since `take_changes`
        self.changed_bytes = 0
        self.seeds = seeds_of(container)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / STATE_FILE
        size_bytes = file.stat().st_size if file.exists() else 0
        map_bytes = max(STATE_MAP_BYTES, 2 * size_bytes)
        # LMDB writes its lock file through a mapping, where a full disk means SIGBUS: allocate its blocks
        descriptor = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
        finally:
            os.close(descriptor)
        with _mapped_errors(folder):
            self._env = lmdb.open(
                os.fsencode(folder),
                map_size=map_bytes,
                max_dbs=len(TABLES),
                max_readers=_MAX_READERS,
                mode=0o600,
                sync=False,
                metasync=False,
            )
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
        extents: Iterable[tuple[int, ChangedExtents, int]] = (),
        entries: Iterable[tuple[int, Overlay]] = (),
        times: Iterable[tuple[int, StoredTimes]] = (),
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """Write everything in one transaction; blocking. deleted: names, by id, of segments to remove completely.
        extents, entries, times: by segment; extents with the offset from which none are stored. rest: see
        `StateCommit`. MapFullError: nothing was written; `grow`, then try again."""
        with self._env.begin(write=True) as txn:
            commit = StateCommit(txn, self._tables, self.seeds, rest)
            for segment, segment_name in deleted.items():
                prefix, name = ID.pack(segment), bounded_key(segment_name.encode())
                owner = txn.get(name, db=self._tables["names"])
                if (
                    owner is not None and self._verified("names", name, owner) == prefix
                ):  # else the name belongs to a newer segment
                    commit.delete("names", name)
                for table in ("segments", "logged", "attributes", "extents", "entries", "positions", "times"):
                    commit.delete_range(table, prefix)
            for table, key, value in changes:
                if value is None:
                    commit.delete(table, key)
                else:
                    commit.put(table, key, value)
            for segment, changed, stored in extents:
                put_extents(commit, self._verified, segment, changed, stored)
            for segment, overlay in entries:
                self._put_entries(txn, commit, ID.pack(segment), overlay)
            for segment, added in times:
                self._put_times(txn, commit, segment, added)
        merge(self.changes, commit.changes)
        self.changed_bytes += commit.size_bytes
        if self.changed_bytes > STATE_CHANGES_MAX_BYTES:
            self.changes = {}  # `take_changes` detects this by `changed_bytes`

    def apply(self, changes: Iterable[Changes]) -> None:
        """Apply changes recorded in another copy of this state; blocking."""
        for part in changes:
            while True:
                try:
                    with self._env.begin(write=True) as txn:
                        for table, rows in part.items():
                            for key, raw in rows.items():
                                if raw is None:
                                    txn.delete(key, db=self._tables[table])
                                else:
                                    txn.put(key, raw, db=self._tables[table])
                except lmdb.MapFullError:
                    self.grow()
                else:
                    break

    def take_changes(self) -> tuple[Changes | None, int]:
        """Return the changes since the last call, None if they were too many to keep, and their approximate size; only
        while no commit runs."""
        result = None if self.changed_bytes > STATE_CHANGES_MAX_BYTES else self.changes, self.changed_bytes
        self.changes, self.changed_bytes = {}, 0
        return result

    def copy(self, file: Path) -> None:
        """Write a compact copy of the state after the last commit; blocking, while no commit runs."""
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with _mapped_errors(self.folder):
                self._env.copyfd(descriptor, compact=True)
        finally:
            os.close(descriptor)

    def grow(self) -> None:
        """Double the map size of the state; only while no transaction is open, so not while `commit` runs."""
        self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _put_entries(self, txn: lmdb.Transaction, commit: StateCommit, prefix: bytes, overlay: Overlay) -> None:
        for key, (version, value) in overlay.items():
            place = bounded_key(prefix + key)
            old = txn.get(place, db=self._tables["entries"])
            if old is not None:
                commit.delete("positions", prefix + self._verified("entries", place, old)[:8])
            if value is None:
                commit.delete("entries", place)
            else:
                commit.put("entries", place, I64.pack(version) + ID.pack(len(key)) + key + value)
                commit.put("positions", prefix + I64.pack(version), key)

    def _put_times(self, txn: lmdb.Transaction, commit: StateCommit, segment: int, times: StoredTimes) -> None:
        for clock, time in times.cut.items():
            commit.delete_range("times", time_key(segment, clock), start=time_key(segment, clock, time))
        for clock, entries in times.entries.items():
            for time, offset in entries.items():
                commit.put("times", time_key(segment, clock, time), ID.pack(offset))
        if not times.start_offset:
            return
        cursor, clock = txn.cursor(self._tables["times"]), 0
        while cursor.set_range(time_key(segment, clock)) and (key := bytes(cursor.key())).startswith(ID.pack(segment)):
            clock, _ = time_of(key)
            commit.delete_range(  # limited per commit: later ones delete more
                "times",
                time_key(segment, clock),
                TIME_INDEX_TRIM_ENTRIES,
                lambda raw: ID.unpack_from(raw)[0] > times.start_offset,
            )
            clock += 1

    def _verified(self, table: str, key: bytes, raw: bytes | memoryview) -> bytes:
        if is_whole(self.seeds[table], key, raw):
            return bytes(raw[:-CRC_BYTES])
        error = DamagedStateError(str(self.folder), f"a record of table {table} is damaged")
        self.on_damage(error)
        raise error

    def state(self) -> ContainerState:
        raw = self._get("state", STATE_KEY)
        return decode_state(raw) if raw is not None else ContainerState()

    def _get(self, table: str, key: bytes) -> bytes | None:
        with self._env.begin(db=self._tables[table]) as txn:
            raw = txn.get(key)
        return None if raw is None else self._verified(table, key, raw)

    def _scan(self, table: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin(db=self._tables[table]) as txn:
            cursor = txn.cursor()
            if cursor.set_range(max(prefix, start)):
                for key, raw in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, self._verified(table, key, raw)

    def _extents(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return singles(self._scan(TABLE, prefix))

    def page(self, table: str, after: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first `count` (key, value) pairs of a table after a key; from the start if the key is empty."""
        return list(islice(self._scan(table, b"", after + b"\0" if after else b""), count))

    def segment_id(self, name: str) -> int | None:
        if not name:
            return None  # LMDB refuses an empty key
        raw = self._get("names", bounded_key(name.encode()))
        return None if raw is None else int(ID.unpack(raw)[0])

    def segments(self) -> Iterator[int]:
        for key, _ in self._scan("segments", b""):
            yield ID.unpack(key)[0]

    def attribute(self, segment: int, attribute: bytes) -> int | None:
        raw = self._get("attributes", ID.pack(segment) + attribute)
        return None if raw is None else int(I64.unpack(raw)[0])

    def load(self, segment: int, frames: dict[int, FrameRef]) -> SegmentRecord | None:
        """Return the record of a segment; frames in the log are shared through `frames`, by sequence."""
        prefix = ID.pack(segment)
        raw = self._get("segments", prefix)
        return None if raw is None else decode_record(segment, raw, self._extents(prefix), frames)

    def logged(self) -> list[int]:
        """Return the segments with bytes stored only in the log."""
        return [ID.unpack(key)[0] for key, _ in self._scan("logged", b"")]

    def chunks(self) -> Iterator[tuple[int, int, int, str]]:
        """Yield segment, offset, length and chunk of all extents in chunks, at the last checkpoint."""
        for key, value in self._extents(b""):
            if not EXTENT.unpack_from(value)[1]:
                yield *PAIR.unpack(key), EXTENT.unpack_from(value)[0], unpack_chunk(value)[0]

    def last_time(self, segment: int, clock: int, time: int) -> tuple[int, int] | None:
        """Return the last entry (time, offset) of a clock in the segment's time index at or before `time`."""
        with self._env.begin(db=self._tables["times"]) as txn:
            cursor = txn.cursor()
            is_positioned = cursor.set_range(time_key(segment, clock, time))
            if is_positioned and cursor.key() != time_key(segment, clock, time):
                is_positioned = cursor.prev()
            elif not is_positioned:
                is_positioned = cursor.last()
            if is_positioned and (key := bytes(cursor.key())).startswith(time_key(segment, clock)):
                return time_of(key)[1], ID.unpack(self._verified("times", key, bytes(cursor.value())))[0]
            return None

    def times(self, segment: int, clock: int, since: int) -> Iterator[tuple[int, int]]:
        """Yield the entries of a clock in the segment's time index from `since` on, in order."""
        for key, raw in self._scan("times", time_key(segment, clock), time_key(segment, clock, since)):
            yield time_of(key)[1], ID.unpack(raw)[0]

    def entry(self, segment: int, key: bytes) -> tuple[int, bytes] | None:
        """Return (version, value) of a table's key."""
        raw = self._get("entries", bounded_key(ID.pack(segment) + key))
        return None if raw is None else unpack_entry(raw)[1:]

    def versions(self, segment: int, keys: Iterable[bytes]) -> dict[bytes, int]:
        prefix, versions = ID.pack(segment), dict[bytes, int]()
        with self._env.begin(db=self._tables["entries"]) as txn:
            for key in keys:
                stored = bounded_key(prefix + key)
                raw = txn.get(stored)
                if raw is not None:
                    versions[key] = unpack_entry(self._verified("entries", stored, raw))[1]
        return versions

    def entries_from(self, segment: int, key: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield (key, version, value) in order of keys from `key` on, or from slightly before, if keys are long."""
        prefix = ID.pack(segment)
        head = b""
        pending: list[tuple[bytes, int, bytes]] = []  # entries whose stored keys share this head, unordered
        for stored, raw in self._scan("entries", prefix, (prefix + key)[:HEAD_BYTES]):
            if pending and not stored.startswith(head):
                yield from sorted(pending)
                pending = []
            if len(stored) < HEAD_BYTES:
                yield unpack_entry(raw)
            else:
                head = stored[:HEAD_BYTES]
                pending.append(unpack_entry(raw))
        yield from sorted(pending)

    def positions_from(self, segment: int, position: int) -> Iterator[tuple[int, bytes]]:
        for key, raw in self._scan("positions", ID.pack(segment), PAIR.pack(segment, max(0, position))):
            yield PAIR.unpack(key)[1], raw
