"""A container's log and state, as a server opens them: in a data folder (`localparts`), or in a cluster.

The state is a cache. It is restored from the record's snapshot at each opening, and what the log has said since is
applied to it; the next opening uses nothing of it. So whatever was acknowledged is in the log until a snapshot has it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nadi.errors import DamagedStateError
from nadi.runtime import Runtime
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.replay import recovered
from nadi.segmentstore.recovery.restoring import restored
from nadi.segmentstore.recovery.snapshots import SnapshotError, folder_of
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.tier1.disk import is_no_room
from nadi.segmentstore.tier1.log import DurableLog
from nadi.segmentstore.tier1.runs import RunFiles
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, Records

STATE = "state"


class Opened(NamedTuple):
    """A container's parts, open; `state` is what log and stored state say together. runs: where large runs of bytes go
    beside the log; None: they go there too."""

    metadata: Metadata
    log: DurableLog
    state: StateMachine
    runs: RunFiles | None = None

    async def close(self) -> None:
        """Close the parts; nothing is written, and the state is deleted."""
        if self.runs is not None:
            await self.runs.close()
        await self.log.close()
        self.metadata.close()
        shutil.rmtree(self.metadata.folder, ignore_errors=True)


class ContainerParts:
    """The parts of one container. Everything is called from one event loop. A kind of parts defines how the record is
    claimed, and which log it names.

    folder: for the state. looks_for_chunks: whether the chunks that the state names are looked up when it is opened.
    sweeps: see `RecordOwner`. may_answer: whether what is known here may be told: nobody else can have the container
    by now.
    """

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
        self._damaged_record = ""  # what is wrong with one of two records: the log is kept until both are renewed
        self.snapshots = Snapshotter(number, folder, chunks, self, runtime)
        self._folder, self._chunks, self._runtime = folder, chunks, runtime

    def is_owned(self) -> bool:
        """Whether they are still this server's; if not, they must not be opened again."""
        return True

    async def open(self) -> Opened:
        """Become the only owner, and recover.

        Raises:
            DamagedStateError: the snapshot is damaged, and so is its copy.
            CorruptLogError: the log doesn't match it.
            StorageFullError: there is no room, not even with what is kept aside.
            FencedError: they are another server's; they must not be opened again.
            UnavailableError, OSError, lmdb.Error: a disk or a store fails; it may be repaired.
        """
        record = await self._claimed()
        log = await self._open_log(record)
        metadata: Metadata | None = None
        try:
            metadata, damaged = await restored(self._chunks, self.number, record.snapshot, self._folder / STATE)
            state = await recovered(metadata, log, self._runtime)
            await self.snapshots.open(record.snapshot, [*damaged, *filter(None, [self._damaged_record])])
            return await self._opened(Opened(metadata, log, state))
        except BaseException as error:
            await log.close()
            if metadata is not None:
                metadata.close()
            if isinstance(error, SnapshotError):
                where = f"{folder_of(self.number)} in tier 2"
                raise DamagedStateError(where, "the snapshot is damaged", str(error)) from error
            raise

    async def _claimed(self) -> ContainerRecord:
        """The container's record, which nobody else changes from now on."""
        raise NotImplementedError

    async def _open_log(self, record: ContainerRecord) -> DurableLog:
        raise NotImplementedError

    async def _opened(self, opened: Opened) -> Opened:
        """What is used of what was opened."""
        return opened

    async def claim_record(self) -> tuple[Records, int]:
        """Return the records, and the epoch in which the container's is claimed. UnavailableError: it isn't known."""
        raise NotImplementedError

    def start_after(self, sequence: int) -> ChainStart:
        """Where the log begins for one who has a snapshot up to that frame. A folder's says so itself."""
        return ChainStart()

    def released(self, start: ChainStart) -> None:
        """The record says durably that the log begins there."""

    def is_no_room(self, error: Exception) -> bool:
        """Whether the error came from lack of room."""
        return is_no_room(error)

    def take_room(self) -> None:
        """Reserve the space kept aside, if there is room and it isn't reserved yet."""

    def release_room(self) -> bool:
        """Release the reserved space; return False if there is none."""
        return False


async def is_stored(chunks: ChunkStore, container: int) -> bool:
    """Whether anything of the container is in tier 2."""
    return any([await chunks.listed(folder) for folder in (f"container-{container}", folder_of(container))])
