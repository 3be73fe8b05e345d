"""Opens a container's log and state for a server: in a data folder (`LocalStorage`), or in a cluster.

The state is a cache: each opening restores it from the record's snapshot, and applies the log's operations since; it
doesn't use the state of an earlier opening. So all acknowledged changes are in the log until a snapshot has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb

from nadi.errors import DamagedStateError, UnavailableError
from nadi.limits import MIB
from nadi.runtime import REAL, Runtime
from nadi.segmentstore import reserve
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.snapshots import SnapshotError, StateCopy, folder_of
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.operations import AnyOperation, Append, decode_frame, encode_head
from nadi.segmentstore.state.records import FrameRef
from nadi.segmentstore.tier1.blob_files import BlobFiles
from nadi.segmentstore.tier1.disk import is_disk_full
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES, FrameCheck
from nadi.segmentstore.tier1.log import DurableLog, Frame
from nadi.segmentstore.tier1.recovery import first_in_use, has_frames
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords, DamagedRecordError, check_stays, name_of

STATE = "state"
_BATCH_BYTES, _BATCH_FRAMES = MIB, 1_000
Goes = Callable[[AnyOperation], bool]


class OpenStorage(NamedTuple):
    """A container's open storage. state: the state after replaying the log. runs: the separate files for large runs;
    None: they go to the log too."""

    metadata: ContainerMetadata
    log: DurableLog
    state: StateMachine
    runs: BlobFiles | None = None

    async def close(self) -> None:
        """Close everything without writing; delete the state."""
        if self.runs is not None:
            await self.runs.close()
        await self.log.close()
        self.metadata.close()
        shutil.rmtree(self.metadata.folder, ignore_errors=True)


class ContainerStorage:
    """The storage of one container. All calls come from one event loop. Subclasses define how the record is claimed,
    and which log it names. folder: for the state. looks_for_chunks: whether an opening looks up the chunks that the
    state names. sweeps: see `RecordOwner`. may_answer: whether the state here is certainly current: no other server can
    own the container."""

    looks_for_chunks = sweeps = True

    def __init__(
        self,
        number: int,
        folder: Path,
        chunks: ChunkStore,
        runtime: Runtime,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        self.number, self.may_answer = number, may_answer
        self._damaged_record = ""  # damage of one of two records: the log is retained until both are rewritten
        self.snapshots = Snapshotter(number, folder, chunks, self, runtime)
        self._folder, self._chunks, self._runtime = folder, chunks, runtime
        self._copy = StateCopy(chunks, number, folder / STATE)  # for the next opening

    def is_owned(self) -> bool:
        """Return whether this server still owns it; if not, it must not be reopened."""
        return True

    async def open(self) -> OpenStorage:
        """Become the only owner, and recover. DamagedStateError: the snapshot and its copy are damaged.
        CorruptLogError: the log doesn't match it. StorageFullError: the disk is full, even with the reserve.
        FencedError: another server owns it; don't reopen it. UnavailableError, OSError, lmdb.Error: a disk or a store
        fails; it may be repaired."""
        await self._chunks.refresh_keys(at_once=True)  # another owner may have used a newer one
        record = await self._claimed()
        log = await self._open_log(record)
        metadata: ContainerMetadata | None = None
        try:
            metadata = await self._copy.take(record.snapshot)
            state = await recovered(metadata, log, self._runtime)
            await self.snapshots.open(record.snapshot, [*self._copy.damaged, *filter(None, [self._damaged_record])])
            return await self._opened(OpenStorage(metadata, log, state))
        except BaseException as error:
            await log.close()
            if metadata is not None:
                metadata.close()
            if isinstance(error, SnapshotError):
                where = f"{folder_of(self.number)} in tier 2"
                raise DamagedStateError(where, "the snapshot is damaged", str(error)) from error
            raise

    async def _claimed(self) -> ContainerRecord:
        """Return the container's record, which no other server changes from now on."""
        raise NotImplementedError

    async def _open_log(self, record: ContainerRecord) -> DurableLog:
        raise NotImplementedError

    async def _opened(self, opened: OpenStorage) -> OpenStorage:
        return opened

    async def claim_record(self) -> tuple[ContainerRecords, int]:
        """Return the records, and the epoch of the container's claim. UnavailableError: unknown."""
        raise NotImplementedError

    def start_after(self, sequence: int) -> ChainStart:
        """Return the log's start for an owner with a snapshot of that frame. A folder's log knows its own."""
        return ChainStart()

    def released(self, start: ChainStart) -> None:
        """Handle a record that durably names the log's start."""

    def is_disk_full(self, error: Exception) -> bool:
        return is_disk_full(error)

    def reserve_space(self) -> None:
        """Reserve space, if there is some and it isn't reserved yet."""

    def release_space(self) -> bool:
        return False


async def is_stored(chunks: ChunkStore, container: int) -> bool:
    """Return whether tier 2 has any data of the container."""
    return any([await chunks.listed(folder) for folder in (f"container-{container}", folder_of(container))])


async def recovered(metadata: ContainerMetadata, log: DurableLog, runtime: Runtime) -> StateMachine:
    """Replay the log over the state. Damaged data in the log is set aside. Data in the log counts as new now. Frames
    are applied in a thread, in batches. CorruptLogError: the log doesn't match the state. DamagedStateError: the state
    is damaged. FencedError, UnavailableError, OSError: as `DurableLog.replay`."""
    now = runtime.monotonic()
    state = await runtime.in_thread(StateMachine, metadata, now)
    batch: list[Frame] = []
    size_bytes = 0
    async for frame in log.replay(state.sequence):
        batch.append(frame)
        size_bytes += len(frame.payload)
        if size_bytes >= _BATCH_BYTES or len(batch) == _BATCH_FRAMES:
            await runtime.in_thread(_apply, state, batch, now)
            batch, size_bytes = [], 0
    await runtime.in_thread(_apply, state, batch, now)
    state.durable(state.record_cache.all())
    return state


def recovered_of(metadata: ContainerMetadata, replay: Callable[[int], Iterator[Frame]], now: float) -> StateMachine:
    """`recovered` for a stopped folder, whose log isn't a `DurableLog`; blocking."""
    state = StateMachine(metadata, now)
    _apply(state, replay(state.sequence), now)
    state.durable(state.record_cache.all())
    return state


def _apply(state: StateMachine, frames: Iterable[Frame], now: float) -> None:
    for frame in frames:
        apply_frame(state, FrameRef(frame.address.sequence, frame.address, now), frame.payload, frame)


def apply_frame(
    state: StateMachine, frame: FrameRef, payload: bytes, check: Frame | FrameCheck, goes: Goes = lambda operation: True
) -> None:
    """Apply a frame's operations that `goes` accepts; set damaged data aside."""
    operations, data_at = decode_frame(payload, state.sealing, frame.sequence)
    part = 0
    for operation in operations:
        data = operation if isinstance(operation, Append) and operation.logged_bytes else None
        checksum = check.checksums[part * CHECKSUM_BYTES :][:CHECKSUM_BYTES] if data is not None else b""
        if goes(operation):
            state.apply(operation, frame, data_at, checksum)
            if data is not None and part in check.damaged_parts:
                state.set_aside(state.must(data.segment).extents[-1])
        part += data is not None
    if frame.live_bytes:
        state.frames[frame.sequence] = frame
    state.sequence = frame.sequence


class LocalStorage(ContainerStorage):
    """The storage of one container in its folder, which is created if it's missing. chunks: tier 2, for snapshots of
    the state. is_owned: returns whether this server still has the data folder."""

    def __init__(
        self,
        number: int,
        folder: Path,
        chunks: ChunkStore,
        is_owned: Callable[[], bool] = lambda: True,
        runtime: Runtime = REAL,
    ) -> None:
        super().__init__(number, folder, chunks, runtime)
        self._is_owned = is_owned
        self._epoch = 0  # of its record's claim
        self._has_snapshot = False

    def is_owned(self) -> bool:
        return self._is_owned()

    async def open(self) -> OpenStorage:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            opened = await super().open()
        except (OSError, lmdb.Error, UnavailableError) as error:
            if not self.is_disk_full(error) or not self.release_space():
                raise
            try:
                opened = await super().open()
            except BaseException:
                self.reserve_space()  # for the next attempt: nothing else was left over
                raise
        self.reserve_space()
        return opened

    async def _claimed(self) -> ContainerRecord:
        """Read the record: the folder's lock determines the owner; an external store was claimed at the server's
        start."""
        try:
            records = await self._chunks.records()
            record = (await records.read(self.number)).record
        except DamagedRecordError as error:
            raise DamagedStateError(error.name, str(error), "so its snapshot is unknown") from error
        check_stays(record)
        self._damaged_record = await records.unequal(self.number)
        self._epoch, self._has_snapshot = record.epoch, record.snapshot is not None
        return record

    async def _open_log(self, record: ContainerRecord) -> FileLog:
        folder, name = self._folder / "log", self._folder.name
        in_thread = self._runtime.in_thread
        if problem := await in_thread(is_lost, record, folder):
            raise DamagedStateError(name_of(self.number), problem, "so its snapshot is unknown")
        if record.start.epoch and record.snapshot is not None and not await in_thread(has_frames, folder):
            # a migration has filled the container: start the log after the snapshot, durably, before it is used
            records, sequence = await self._chunks.records(), record.snapshot.sequence
            head = encode_head([], self._chunks.sealing, sequence + 1)
            await FileLog.begin(folder, head, sequence, record.start.epoch, name=name)
            await records.set_snapshot(self.number, self._epoch, record.snapshot, ChainStart())
        return await in_thread(FileLog.open, folder, name=name)

    async def _opened(self, opened: OpenStorage) -> OpenStorage:
        log, state = opened.log, opened.state
        if not self._has_snapshot and not log.last_sequence and await is_stored(self._chunks, self.number):
            problem = "its record and its log are missing, but tier 2 has data of it"
            raise DamagedStateError(str(self._folder), problem)
        if self._chunks.sealing.overhead:
            return opened  # a separate file couldn't become a chunk as it is
        runs = BlobFiles(self._folder / "log", log.epoch, self._folder.name, self._runtime)
        unused = [number for number in await self._runtime.in_thread(runs.numbers) if number not in state.runs.bytes_of]
        state.runs.unused |= dict.fromkeys(unused, state.sequence)
        return opened._replace(runs=runs)

    async def claim_record(self) -> tuple[ContainerRecords, int]:
        return await self._chunks.records(), self._epoch

    def is_disk_full(self, error: Exception) -> bool:
        return reserve.is_disk_full(error, self._folder)

    def reserve_space(self) -> None:
        reserve.take(self._folder)

    def release_space(self) -> bool:
        return reserve.release(self._folder)


def is_lost(record: ContainerRecord, log: Path) -> str:
    """Describe why the record in tier 2 doesn't match the log in that folder; return "" if it does. Blocking."""
    first = first_in_use(log) if record.snapshot is None else 0
    return f"it is missing, though the log starts with frame {first:,}" if first > 1 else ""
