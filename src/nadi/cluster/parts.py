"""A container's parts in a cluster: its log is a chain in the store, its state a snapshot there; on this machine is
only a copy of the state, which nobody needs.

To open them is to take the container over: claim its record, fetch the snapshot and walk the log at the same time,
seal the log, and ask whether the record is still this server's.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from nadi.engines.engine import LogEngine
from nadi.errors import DamagedStateError, FencedError
from nadi.runtime import Runtime
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.segmentstore.recovery.parts import Opened
from nadi.segmentstore.recovery.replay import recovered
from nadi.segmentstore.recovery.restoring import restore
from nadi.segmentstore.recovery.snapshots import SnapshotError
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.tier1.disk import is_no_room
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, Manifest, Records, Stored

log = logging.getLogger(__name__)


class ClusterParts:
    """The parts of one container, for the server of that id.

    folder: of this machine, for the copy of the state. seen: the record that is claimed, if it still is the same.
    interval_s: see `ChainLog`. may_answer: whether reads may be answered, see `Membership.lease_is_valid`.
    """

    may_be_sealed = False
    sweeps = False  # an owner that was overtaken without knowing it would delete its successor's: see `admin.janitor`
    looks_for_chunks = False  # that takes long over a network, and whoever reads one learns whether it is there

    def __init__(
        self,
        number: int,
        folder: Path,
        server: str,
        seen: Stored,
        engine: LogEngine,
        records: Records,
        chunks: ChunkStore,
        runtime: Runtime,
        interval_s: float = 0.0,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        self.number = number
        self.rebuilt = ""
        self.epoch = 0  # of its newest claim, 0 if there was none
        self.claimed = seen
        self._folder, self._server, self._seen = folder, server, seen
        self._engine, self._records, self._chunks, self._runtime = engine, records, chunks, runtime
        self._interval_s, self.may_answer = interval_s, may_answer
        self._lost: FencedError | None = None
        self._log: ChainLog | None = None
        self._prepared: Opened | None = None
        self.snapshots = Snapshotter(number, folder, chunks, self, runtime)

    @property
    def chain(self) -> ChainLog:
        """The log of the newest opening."""
        assert self._log is not None, "it is open"
        return self._log

    def is_owned(self) -> bool:
        return self._lost is None and (self._log is None or self._log.fenced is None)

    async def prepare(self) -> None:
        """Do what the next `open` does, which then returns what was opened here; raises as that. `discard` what may
        not be used after all."""
        self._prepared = await self.open()

    async def discard(self) -> None:
        """Close what was prepared and not used, if anything was."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.close()

    async def open(self) -> Opened:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            return prepared
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        try:
            if self.epoch:  # again, after a failure
                self._seen = await self._records.read(self.number)
                if self._seen.record.epoch != self.epoch:
                    raise FencedError(self.number, self._seen.record.epoch)
            self.claimed = await self._records.claim(self.number, self._server, self._seen)
            self.epoch = self.claimed.record.epoch
            return await self._open(self.claimed.record)
        except FencedError as error:
            self._lost = error
            raise
        except SnapshotError as error:
            raise DamagedStateError(f"snapshots/container-{self.number} in the store", str(error)) from error

    async def _open(self, record: ContainerRecord) -> Opened:
        self._log = ChainLog(
            self._engine,
            self.number,
            record.epoch,
            record.start.chain,
            self._still_claimed,
            self._runtime,
            self._interval_s,
        )
        chain = self._log
        chain.read_ahead()
        metadata: Metadata | None = None
        try:
            metadata = await self._state(record)
            state = await recovered(metadata, chain, self._runtime)
        except BaseException:
            await chain.close()
            if metadata is not None:
                metadata.close()
            raise
        took = "container %d: claimed in epoch %d, its log sealed after frame %d"
        log.info(took, self.number, self.epoch, chain.last_sequence)
        return Opened(metadata, chain, state)

    async def _still_claimed(self) -> None:
        await self._records.still_claimed(self.number, self.epoch)

    async def _state(self, record: ContainerRecord) -> Metadata:
        """The state of the record's snapshot, in a folder of this claim's own."""
        in_thread = self._runtime.in_thread
        folder = self._folder / "state"
        await in_thread(_emptied, self._folder, folder)
        if record.snapshot is not None:
            await restore(self._chunks, record.snapshot, folder, durable=False)
        return await in_thread(Metadata, folder, self.number, durable=False)

    # --- its record --------------------------------------------------------------------------------------

    async def newest_snapshot(self) -> tuple[Manifest | None, list[str]]:
        return self.claimed.record.snapshot, []

    async def claim_record(self) -> tuple[Records, int]:
        return self._records, self.chain.epoch

    def start_after(self, sequence: int) -> ChainStart:
        return self.chain.start_after(sequence)

    def released(self, start: ChainStart) -> None:
        self.chain.released(start)

    # --- what a folder's parts do, and these need not ----------------------------------------------------

    def distrust_state(self) -> None:
        """Each opening fetches it anew."""

    async def unseal(self) -> None:
        raise AssertionError("it is never sealed")

    async def seal(self, log_epoch: int, *, has_all: bool) -> None:
        """The next one fetches state and log in any case; this machine keeps nothing."""
        await self._runtime.in_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def inspect_state(self) -> tuple[str, int]:
        file = self._folder / "state" / statecheck.STATE_FILE
        inspected = await self._runtime.in_thread(statecheck.inspect_file, file, self.number)
        return inspected.damage, file.stat().st_size

    def is_no_room(self, error: Exception) -> bool:
        return is_no_room(error)

    def take_room(self) -> None:
        """Room on this machine is kept for nothing: a full disk gives the container up."""

    def release_room(self) -> bool:
        return False


def _emptied(folder: Path, state: Path) -> None:
    """Only the state of this claim is to be there."""
    shutil.rmtree(folder, ignore_errors=True)
    state.mkdir(mode=0o700, parents=True)
