"""Steps of a migration, from any source to any target.

    1  mark the target as being filled
    2  while servers write to the source, copy tier 2 and then the additions, until little is left
    3  hold the writers, move the remaining data to tier 2 and copy it; store the target's states
    4  mark the source as left: no server opens it any more
    5  open the target

Before step 4, an aborted migration leaves the source in service, and the target can't be opened. After step 4, only
step 5 remains, and any later run does it. So both are never writable at once.

Each chunk is read, verified against its checksums, and stored under its new name with its new description. Chunks from
an earlier run are verified instead, and copied again if damaged. Each record of the states goes to its segment's
container, under the segment's new number.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import lmdb
import msgspec
from msgspec.structs import replace

from nadi import limits
from nadi.errors import ConflictError, DamagedDataError, DamagedStateError, NotFoundError, StoreError, UnavailableError
from nadi.migration.sources import MigrationSource
from nadi.migration.states import ChunkCopy, Division, States
from nadi.migration.targets import MigrationTarget
from nadi.runtime import REAL
from nadi.segmentstore.container_registry import container_of
from nadi.segmentstore.recovery.snapshots import SnapshotError
from nadi.segmentstore.state import stored
from nadi.segmentstore.state.metadata import STATE_FILE, ContainerMetadata, verify
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, ChunkDescription, boundaries_of, renamed
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord


class MigrationProgress(Protocol):
    def begin(self, what: str, total_bytes: int) -> None: ...

    def done(self, size_bytes: int) -> None: ...


class Copier:
    """Copies chunks between stores. verifies: read back each stored chunk. copied: checksums of the chunks in the
    target, by container and name in the source."""

    def __init__(
        self,
        source: ChunkStore,
        target: ChunkStore,
        division: Division,
        progress: MigrationProgress,
        *,
        verifies: bool = False,
    ) -> None:
        self.copied: dict[tuple[int, str], bytes] = {}
        self.bytes = self.stored_bytes = 0
        self._source, self._target, self._division, self._progress = source, target, division, progress
        self._verifies = verifies
        self._former: set[str] = set()  # stored by an earlier run, not verified yet
        self._names: set[str] = set()  # stored by this run or an earlier one

    async def find_former(self) -> None:
        for number in range(self._division.targets):
            self._former.update(await self._target.listed(f"container-{number}"))
        self._names = set(self._former)

    async def copy(self, pieces: Iterable[ChunkCopy], what: str, *, complete: bool) -> int:
        """Copy chunks that aren't copied yet; return their bytes. complete: none may be missing.

        DamagedDataError: bytes of the source are damaged or missing. StoreError: a chunk read back differs.
        UnavailableError, StorageFullError: source or target fail, or the target is full.
        """
        todo = await self._target.runtime.in_thread(  # there may be millions
            lambda: [piece for piece in pieces if (piece.source, piece.name) not in self.copied]
        )
        total = sum(piece.length for piece in todo)
        self._target.check_free_space(sum(piece.length for piece in todo if piece.new not in self._former))
        self._progress.begin(what, total)
        before, waiting = self.bytes, iter(todo)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(limits.MIGRATION_COPIES_AT_ONCE):
                    group.create_task(self._copy_some(waiting, complete=complete))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return self.bytes - before

    async def _copy_some(self, waiting: Iterator[ChunkCopy], *, complete: bool) -> None:
        for piece in waiting:
            try:
                checksums = await self._copy(piece)
            except NotFoundError as error:  # replaced by a server meanwhile
                if complete:
                    raise DamagedDataError(piece.segment, 0, piece.length, str(error)) from error
                continue
            self.copied[piece.source, piece.name] = checksums
            self.bytes += piece.length
            self._progress.done(piece.length)

    async def _copy(self, piece: ChunkCopy) -> bytes:
        checksums = renamed(piece.name, piece.new, piece.checksums, piece.length)
        if piece.new in self._former:
            self._former.discard(piece.new)
            if await self._is_intact(piece, checksums):
                await self._target.settle(piece.new)
                return checksums
        data, damaged = await self._source.read_checked(piece.name, 0, piece.length, piece.checksums)
        if damaged:
            offset = damaged[0] * BLOCK_BYTES
            problem = f"chunk {piece.name} is damaged from byte {offset:,} on: run `nadi check`"
            raise DamagedDataError(piece.segment, offset, min(offset + BLOCK_BYTES, piece.length), problem)
        described = await self._source.description(piece.name, piece.length)
        if described is None:  # damaged
            boundaries = boundaries_of([] if piece.continues else [0], piece.length)
            contents = piece.number, piece.segment, piece.offset, piece.length
            described = ChunkDescription(piece.target, *contents, checksums, boundaries)
        else:
            number = self._division.number(piece.source, described.segment_id)
            described = replace(described, container=piece.target, segment_id=number, checksums=checksums)
        self._target.check_free_space(piece.length)
        sealing = self._target.sealing
        blocks = await self._target.runtime.in_thread(sealing.seal_parts, [data], piece.new.encode())
        await self._target.replace(piece.new, [*blocks, described.encode(piece.new, sealing)])
        self._names.add(piece.new)
        self.stored_bytes += piece.length
        if self._verifies and not await self._is_intact(piece, checksums):
            raise StoreError(f"{piece.new} differs from the stored data when read back: use another store")
        return checksums

    async def _is_intact(self, piece: ChunkCopy, checksums: bytes) -> bool:
        try:
            _, damaged = await self._target.read_checked(piece.new, 0, piece.length, checksums)
            description = await self._target.description(piece.new, piece.length)
        except NotFoundError:
            return False
        return not damaged and description is not None and description.checksums == checksums

    async def clean_up(self, kept: Iterable[str]) -> None:
        """Delete copies that became unnecessary because a server replaced their chunks: all except `kept`, by their
        names in the target."""
        for name in self._names.difference(kept):
            await self._target.delete(name)


class MigrationReport(msgspec.Struct):
    """Result of a migration. passes: before writers were held. paused_s: for how long they were held; 0 without
    servers. stored_bytes: of chunks, in this run; bytes: including earlier runs. is_moved: the target has the data now.
    """

    passes: int = 0
    segments: int = 0
    chunks: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    paused_s: float = 0.0
    took_s: float = 0.0
    is_moved: bool = False


class Migration:
    """Migration between an open source and an open target. verifies: read back everything that is stored."""

    def __init__(
        self, source: MigrationSource, target: MigrationTarget, progress: MigrationProgress, *, verifies: bool = False
    ) -> None:
        self._source, self._target, self._progress, self._verifies = source, target, progress, verifies
        self._report = MigrationReport()

    async def run(self, *, only_ahead: bool = False) -> MigrationReport:
        """Run the migration, or resume it. only_ahead: copy the current data, and leave the source in service.

        ConflictError: servers are running that must not, or writers resumed too early. DamagedDataError,
        DamagedStateError: the source is damaged; it is unchanged. StoreError, DataFolderError: source or target can't
        be used; the message says why. StorageFullError, UnavailableError: source or target fail, or the target is full:
        run it again.
        """
        began, source, target = REAL.monotonic(), self._source, self._target
        migration = await target.begin(source)
        migrated_by = await source.migrated_by()
        if migrated_by not in ("", migration):
            raise StoreError(f"the data of {source.url} was already moved elsewhere: see `nadi migrate --undo`")
        if not migrated_by:
            division = Division(source.containers, target.containers)
            copier = Copier(source.chunks, target.chunks, division, self._progress, verifies=self._verifies)
            await copier.find_former()
            if source.is_served or only_ahead:
                await self._copy_ahead(copier, division)
            self._count(copier, began)
            if only_ahead:
                return self._report
            kept = await self._move(copier, division, migration)
            await self._finish(migration)
            self._count(copier, began)
            await copier.clean_up(kept)
        else:
            await self._finish(migration)
        self._report.is_moved = True
        return self._report

    @property
    def _scratch(self) -> Path | None:
        source, target = self._source.chunks.sealing, self._target.chunks.sealing
        return source.scratch or target.scratch

    async def _finish(self, migration: str) -> None:
        if await self._source.migrated_by() != migration:
            raise ConflictError(f"moving {self._source.url} was undone meanwhile; nothing was moved: run this again")
        await self._source.leave(self._target.url, migration)  # completely: an earlier run may have been killed
        await self._target.finish()

    def _count(self, copier: Copier, began: float) -> None:
        report = self._report
        report.chunks, report.bytes, report.stored_bytes = len(copier.copied), copier.bytes, copier.stored_bytes
        report.took_s = REAL.monotonic() - began

    async def _copy_ahead(self, copier: Copier, division: Division) -> None:
        """Copy chunks of the newest snapshots, repeatedly, until a pass has found little."""
        for _ in range(limits.MIGRATION_PASSES):
            self._report.passes += 1
            await self._source.refresh()
            async with self._newest() as states:
                what = "copying" if self._report.passes == 1 else f"copying additions (pass {self._report.passes})"
                copied = await copier.copy(states.pieces(division, complete=False), what, complete=False)
            if copied <= limits.MIGRATION_REMAINDER_BYTES:
                return

    @asynccontextmanager
    async def _newest(self) -> AsyncIterator[States]:
        """Yield the newest states that can be fetched; a server may replace a snapshot while it is read."""
        with tempfile.TemporaryDirectory(prefix="nadi-migrate-", dir=self._scratch) as scratch:
            for tries_left in reversed(range(limits.MIGRATION_TRIES)):
                folder = Path(tempfile.mkdtemp(dir=scratch))
                try:
                    states = await States.fetch(self._source.chunks, await self._source.records(), folder)
                    break
                except SnapshotError:
                    if not tries_left:
                        raise
            with states:
                yield states

    async def _move(self, copier: Copier, division: Division, migration: str) -> set[str]:
        """Do steps 3 and 4; return the names of the target's chunks."""
        source = self._source
        began = REAL.monotonic()
        self._progress.begin("holding the writers" if source.is_served else "reading the source", 0)
        settled = await source.settle()
        with tempfile.TemporaryDirectory(prefix="nadi-migrate-", dir=self._scratch) as scratch:
            (Path(scratch) / "from").mkdir()
            try:
                fetched = await States.fetch(source.chunks, settled, Path(scratch) / "from")
            except SnapshotError as error:  # no server can replace it now
                raise UnavailableError(f"a snapshot of the source is unreadable: {error}") from error
            with fetched as states:
                await copier.copy(states.pieces(division, complete=True), "copying the remainder", complete=True)
                self._progress.begin("writing the states", 0)
                kept = await self._put_states(states, copier, division, settled, Path(scratch))
        await source.leave(self._target.url, migration)
        self._report.paused_s = REAL.monotonic() - began if source.is_served else 0.0
        return kept

    async def _put_states(
        self, states: States, copier: Copier, division: Division, settled: Sequence[ContainerRecord], scratch: Path
    ) -> set[str]:
        target = self._target
        sequence, epoch = max(1, *states.frames), max(1, *(record.epoch for record in settled))
        folders = [scratch / f"new-{number}" for number in range(target.containers)]
        for folder in folders:
            folder.mkdir(mode=0o700)
        divider = Divider(states, division, copier)
        await REAL.in_thread(divider.write, folders, sequence)
        self._report.segments = divider.segments
        for number, folder in enumerate(folders):
            await target.put(number, folder, sequence, epoch)
        return divider.chunks


_UNCHANGED = ("attributes", "positions", "times")  # except for the segment number at the start of their keys
_TABLES = ("names", "segments", "extents", "entries", *_UNCHANGED)


class Divider:
    """Writes the target's states. states: of the source; `copier` has copied all chunks that they name. segments,
    chunks: counts and names of those written."""

    def __init__(self, states: States, division: Division, copier: Copier) -> None:
        self._states, self._division, self._copied = states, division, copier.copied
        self._containers: dict[tuple[int, int], int] = {}  # in the target, by container and number in the source
        self.segments, self.chunks = 0, set[str]()

    def write(self, folders: list[Path], sequence: int) -> None:
        """Write one state per folder, and verify them; blocking. sequence: the last frame that they reflect.

        DamagedStateError: a state of the source is damaged. StorageFullError, UnavailableError, OSError: a state can't
        be written.
        """
        targets = [ContainerMetadata(folder, number) for number, folder in enumerate(folders)]
        try:
            counts = self._written(targets, sequence)
        finally:
            for target in targets:
                target.close()
        self._check(folders, counts)
        self.segments = counts["segments"]

    def _written(self, targets: list[ContainerMetadata], sequence: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        waiting: list[list[stored.Change]] = [[] for _ in targets]
        for container, change in self._target_rows():
            counts[change[0]] += 1
            waiting[container].append(change)
            if len(waiting[container]) >= limits.MIGRATION_ROWS:
                _commit(targets[container], waiting[container])
                waiting[container] = []
        next_segment = self._states.next_segment(self._division)
        transients: list[list[int]] = [[] for _ in targets]
        for source, segment in self._states.transients():
            number = self._division.number(source, segment)
            transients[self._containers[source, segment]].append(number)
        for target, rows, removed in zip(targets, waiting, transients, strict=True):
            own = stored.ContainerState(sequence, next_segment, [], [], removed)
            _commit(target, [*rows, stored.state_change(own)])
        return counts

    def _target_rows(self) -> Iterator[tuple[int, stored.Change]]:
        for source, key, value in self._states.rows("segments"):
            segment, name = stored.ID.unpack(key)[0], stored.decode_segment(value).name
            container = container_of(name, self._division.targets)
            self._containers[source, segment] = container
            number = stored.ID.pack(self._division.number(source, segment))
            yield container, ("segments", number, value)
            yield container, ("names", stored.bounded_key(name.encode()), number)
        for source, key, value in self._states.rows("extents"):
            container, number = self._target_of(source, key)
            name, _ = stored.unpack_chunk(value)
            new = self._division.chunk(container, source, name)
            self.chunks.add(new)
            placed = value[: stored.EXTENT.size] + new.encode() + b"\0" + self._copied[source, name]
            yield container, ("extents", number + key[stored.ID.size :], placed)

        for source, key, value in self._states.rows("entries"):
            container, number = self._target_of(source, key)
            yield container, ("entries", stored.bounded_key(number + stored.unpack_entry(value)[0]), value)
        for table in _UNCHANGED:
            for source, key, value in self._states.rows(table):
                container, number = self._target_of(source, key)
                yield container, (table, number + key[stored.ID.size :], value)

    def _target_of(self, source: int, key: bytes) -> tuple[int, bytes]:
        segment = stored.ID.unpack_from(key)[0]
        return self._containers[source, segment], stored.ID.pack(self._division.number(source, segment))

    def _check(self, folders: list[Path], counts: Counter[str]) -> None:
        """Verify that the states are sound, and have together the records of the source and those written."""
        stored_counts: Counter[str] = Counter()
        for number, folder in enumerate(folders):
            stored_counts.update(verify(folder / STATE_FILE, number))
        for table in _TABLES:
            source_count = sum(1 for _ in self._states.rows(table))
            if not source_count == counts[table] == stored_counts[table]:
                problem = f"{table} has {stored_counts[table]:,} of {source_count:,} records of the source"
                raise DamagedStateError(str(folders[0]), problem)


def _commit(target: ContainerMetadata, changes: list[stored.Change]) -> None:
    while True:
        try:
            target.commit(changes)
            break
        except lmdb.MapFullError:
            target.grow()
    target.take_changes()  # a full snapshot follows
