"""A container's parts in a cluster: its log is a chain in the store.

To open them is to take the container over: claim its record, fetch the snapshot and walk the log at the same time,
seal the log, and ask whether the record is still this server's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from nadi.errors import DamagedStateError, FencedError
from nadi.object_log.engine import LogEngine
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import folder_of
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.segmentstore.recovery.storage import ContainerParts, OpenStorage, is_stored
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords, VersionedRecord, name_of

log = logging.getLogger(__name__)


class ClusterParts(ContainerParts):
    """The parts of one container, for the server of that id. folder: of this machine. seen: the record that is claimed,
    if it still is the same. interval_s: see `ChainLog`. may_answer: see `Membership.lease_is_valid`."""

    sweeps = False  # an owner that was overtaken without knowing it would delete its successor's: see `admin.janitor`
    looks_for_chunks = False  # that takes long over a network, and whoever reads one learns whether it is there

    def __init__(
        self,
        number: int,
        folder: Path,
        server: str,
        seen: VersionedRecord,
        engine: LogEngine,
        records: ContainerRecords,
        chunks: ChunkStore,
        runtime: Runtime,
        interval_s: float = 0.0,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(number, folder, chunks, runtime, may_answer)
        self.epoch = 0  # of its newest claim, 0 if there was none
        self.claimed = seen
        self._server = server
        self._engine, self._records, self._interval_s = engine, records, interval_s
        self._lost: FencedError | None = None
        self._log: ChainLog | None = None
        self._prepared: OpenStorage | None = None

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

    async def open(self) -> OpenStorage:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            return prepared
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        try:
            opened = await super().open()
        except FencedError as error:
            self._lost = error
            raise
        took = "container %d: claimed in epoch %d, its log sealed after frame %d"
        log.info(took, self.number, self.epoch, opened.log.last_sequence)
        return opened

    async def _claimed(self) -> ContainerRecord:
        if self.epoch:  # again, after a failure
            self.claimed = await self._records.read(self.number)
            if self.claimed.record.epoch != self.epoch:
                raise FencedError(self.number, self.claimed.record.epoch)
        elif (
            self.claimed.version is None
            and await self._is_stored()
            and (await self._records.read(self.number)).version is None  # else another has just claimed it
        ):
            raise DamagedStateError(name_of(self.number), "it is missing, and the store has data of the container")
        self.claimed = await self._records.claim(self.number, self._server, self.claimed)
        self.epoch = self.claimed.record.epoch
        return self.claimed.record

    async def _is_stored(self) -> bool:
        async for found in self._engine.listed(folder_of(self.number)):
            if found:
                return True
        return await is_stored(self._chunks, self.number)

    async def _open_log(self, record: ContainerRecord) -> ChainLog:
        which = self._engine, self.number, record.epoch, record.start
        self._log = ChainLog(*which, self._still_claimed, self._runtime, self._interval_s)
        self._log.read_ahead()
        return self._log

    async def _still_claimed(self) -> None:
        await self._records.still_claimed(self.number, self.epoch)

    async def claim_record(self) -> tuple[ContainerRecords, int]:
        return self._records, self.chain.epoch

    def start_after(self, sequence: int) -> ChainStart:
        return self.chain.start_after(sequence)

    def released(self, start: ChainStart) -> None:
        self.chain.released(start)
