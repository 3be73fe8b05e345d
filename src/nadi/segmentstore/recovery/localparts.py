"""A container's parts in a data folder: its log in `log/`, with the files beside it, and room kept aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError, UnavailableError
from nadi.runtime import REAL, Runtime
from nadi.segmentstore import reserve
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.parts import ContainerParts, Opened, is_stored
from nadi.segmentstore.state.operations import encode_head
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.recovery import first_in_use, has_frames
from nadi.segmentstore.tier1.runs import RunFiles
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, DamagedRecordError, Records, check_stays, name_of


class LocalParts(ContainerParts):
    """The parts of one container in its folder, which is created if it's missing.

    chunks: tier 2, for snapshots of the state. is_owned: whether the data folder is still this server's.
    """

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
        self._epoch = 0  # of its record
        self._has_snapshot = False

    def is_owned(self) -> bool:
        return self._is_owned()

    async def open(self) -> Opened:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            opened = await super().open()
        except (OSError, lmdb.Error, UnavailableError) as error:
            if not self.is_no_room(error) or not self.release_room():
                raise
            try:
                opened = await super().open()
            except BaseException:
                self.take_room()  # for the next try: nothing else was left over
                raise
        self.take_room()
        return opened

    async def _claimed(self) -> ContainerRecord:
        """The lock of the folder says who the owner is; a store elsewhere was claimed when the server started."""
        try:
            records = await self._chunks.records()
            record = (await records.read(self.number)).record
        except DamagedRecordError as error:
            raise DamagedStateError(error.name, str(error), "so its snapshot can't be told") from error
        check_stays(record)
        self._damaged_record = await records.unequal(self.number)
        self._epoch, self._has_snapshot = record.epoch, record.snapshot is not None
        return record

    async def _open_log(self, record: ContainerRecord) -> FileLog:
        folder, name = self._folder / "log", self._folder.name
        in_thread = self._runtime.in_thread
        if what := await in_thread(is_lost, record, folder):
            raise DamagedStateError(name_of(self.number), what, "so its snapshot can't be told")
        if record.start.epoch and record.snapshot is not None and not await in_thread(has_frames, folder):
            # a migration has filled the container: the log begins after the snapshot, and shows so before it is used
            records, sequence = await self._chunks.records(), record.snapshot.sequence
            await FileLog.begin(folder, [encode_head([])], sequence, record.start.epoch, name=name)
            await records.set_snapshot(self.number, self._epoch, record.snapshot, ChainStart())
        return await in_thread(FileLog.open, folder, name=name)

    async def _opened(self, opened: Opened) -> Opened:
        log, state = opened.log, opened.state
        if not self._has_snapshot and not log.last_sequence and await is_stored(self._chunks, self.number):
            what = "its record and its log are gone, and tier 2 has data of it"
            raise DamagedStateError(str(self._folder), what)
        runs = RunFiles(self._folder / "log", log.epoch, self._folder.name, self._runtime)
        unused = [number for number in await self._runtime.in_thread(runs.numbers) if number not in state.runs.bytes_of]
        state.runs.unused |= dict.fromkeys(unused, state.sequence)
        return opened._replace(runs=runs)

    async def claim_record(self) -> tuple[Records, int]:
        return await self._chunks.records(), self._epoch

    def is_no_room(self, error: Exception) -> bool:
        return reserve.is_no_room(error, self._folder)

    def take_room(self) -> None:
        reserve.take(self._folder)

    def release_room(self) -> bool:
        return reserve.release(self._folder)


def is_lost(record: ContainerRecord, log: Path) -> str:
    """Say why the record in tier 2 can't be that of a container with the log in that folder; "" if it can. Blocking."""
    first = first_in_use(log) if record.snapshot is None else 0
    return f"it is missing, and the log begins with frame {first:,}" if first > 1 else ""
