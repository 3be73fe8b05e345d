"""Storage of a container in a cluster: its log is a chain of objects in the store.

Opening the storage takes the container over: claim its record, fetch the snapshot and walk the log concurrently, seal
the log, and verify that this server still owns the record.
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
from nadi.segmentstore.recovery.storage import ContainerStorage, OpenStorage, is_stored
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords, VersionedRecord, name_of

log = logging.getLogger(__name__)


class ClusterStorage(ContainerStorage):
    """Storage of one container on the server of that id.

    folder: on this machine. seen: the record version to claim; the claim fails if it has changed. interval_s: see
    `ChainLog`. may_answer: see `Membership.lease_is_valid`.
    """

    sweeps = False  # a deposed owner that doesn't know it would delete its successor's objects: see `admin.janitor`
    looks_for_chunks = False  # slow over a network, and a read reports a missing chunk anyway

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
        self.epoch = 0  # of the newest claim, 0 before the first
        self.claimed = seen
        self._server = server
        self._engine, self._records, self._interval_s = engine, records, interval_s
        self._lost: FencedError | None = None
        self._log: ChainLog | None = None
        self._prepared: OpenStorage | None = None

    @property
    def chain(self) -> ChainLog:
        """Return the log of the newest opening."""
        assert self._log is not None, "it is open"
        return self._log

    def is_owned(self) -> bool:
        return self._lost is None and (self._log is None or self._log.fenced is None)

    async def fetch(self, seen: VersionedRecord) -> None:
        """Restore the state of that record's snapshot ahead of `open`. Raises as `restored`. Call `discard` if it goes
        unused."""
        self.claimed = seen
        await self._copy.follow(seen.record.snapshot)

    async def prepare(self) -> None:
        """Open the storage ahead of the next `open`, which returns it. Raises as `open`. Call `discard` if it goes
        unused."""
        self._prepared = await self.open()

    async def discard(self) -> None:
        """Close storage that was prepared but not used."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.close()
        self._copy.close()

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
        message = "container %d: claimed in epoch %d, its log sealed after frame %d"
        log.info(message, self.number, self.epoch, opened.log.last_sequence)
        return opened

    async def _claimed(self) -> ContainerRecord:
        if self.epoch:  # again, after a failure
            self.claimed = await self._records.read(self.number)
            if self.claimed.record.epoch != self.epoch:
                raise FencedError(self.number, self.claimed.record.epoch)
        elif (
            self.claimed.version is None
            and await self._is_stored()
            and (await self._records.read(self.number)).version is None  # else another server has just claimed it
        ):
            raise DamagedStateError(name_of(self.number), "it is missing, but the store has data of the container")
        self.claimed = await self._records.claim(self.number, self._server, self.claimed)
        self.epoch = self.claimed.record.epoch
        return self.claimed.record

    async def _is_stored(self) -> bool:
        async for page in self._engine.listed(folder_of(self.number)):
            if page:
                return True
        return await is_stored(self._chunks, self.number)

    async def _open_log(self, record: ContainerRecord) -> ChainLog:
        chain = self._engine, self.number, record.epoch, record.start
        self._log = ChainLog(*chain, self._still_claimed, self._runtime, self._interval_s)
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
