"""A container's parts in a folder: its log in `log/`, with the files beside it, its state in `state/`, and room kept
aside.

The state is checked before it is opened, and rebuilt if necessary (`rebuild`), once: after that only this process
has written it, and a recovery uses it unchecked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import lmdb

from nadi.errors import UnavailableError
from nadi.runtime import REAL, Runtime
from nadi.segmentstore import reserve
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery import rebuild, snapshots
from nadi.segmentstore.recovery.parts import Opened
from nadi.segmentstore.recovery.replay import recovered
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.operations import encode_head
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.runs import RunFiles
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest, Records

log = logging.getLogger(__name__)
_OWNER = "data-folder"


class LocalParts:
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
        self.number = number
        self.snapshots = Snapshotter(number, folder, chunks, self, runtime)
        self.rebuilt = ""
        self.looks_for_chunks = self.sweeps = True
        self.may_be_sealed = True
        self.is_owned = is_owned
        self._folder, self._chunks, self._runtime = folder, chunks, runtime
        self._state_trusted = False
        self._epoch = 0  # of its record, once that is claimed

    def may_answer(self) -> bool:
        return True

    async def open(self) -> Opened:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            opened = await self._open()
        except (OSError, lmdb.Error, UnavailableError) as error:
            if not self.is_no_room(error) or not self.release_room():
                raise
            try:
                opened = await self._open()
            except BaseException:
                self.take_room()  # for the next try: nothing else was left over
                raise
        self.take_room()
        return opened

    async def _open(self) -> Opened:
        epoch = 0
        if not self._state_trusted:
            await self._begin()
            found = await rebuild.sound_state(self._folder, self.number, self._chunks, self._fits)
            self.rebuilt, epoch = found.made or self.rebuilt, found.all_to_epoch
            self.may_be_sealed = True
        opened = await self._open_with(self._folder / rebuild.STATE, all_to_epoch=epoch)
        self._state_trusted = True
        return opened

    async def _begin(self) -> None:
        """Begin the log of a container that a migration has filled; StoreError if the data was moved elsewhere."""
        record = await snapshots.begins_log(self._chunks, self._folder, self.number)
        if record is None or record.snapshot is None:
            return
        folder, in_thread, snapshot = self._folder / "log", self._runtime.in_thread, record.snapshot
        begins = snapshot.sequence, record.start.epoch
        file_log = await in_thread(FileLog.open, folder, name=folder.parent.name, complete=begins, is_new=True)
        try:
            async for _ in file_log.replay(snapshot.sequence):
                raise AssertionError("it is new")
            await file_log.append([encode_head([])])  # so it shows where it begins
        finally:
            await file_log.close()
        records, epoch = await self.claim_record()
        await records.set_snapshot(self.number, epoch, snapshot, self.start_after(snapshot.sequence))

    async def _fits(self, state: Path) -> None:
        """Check that the container can be recovered from that state and its log."""
        await (await self._open_with(state)).close()

    async def _open_with(self, state: Path, *, all_to_epoch: int = 0) -> Opened:
        """all_to_epoch: the state has all that the log ever said, and its last owner had this epoch."""
        in_thread = self._runtime.in_thread
        metadata = await in_thread(Metadata, state, self.number)
        try:
            name = f"container-{self.number}"
            complete = (metadata.state().sequence, all_to_epoch) if all_to_epoch else None
            file_log = await in_thread(FileLog.open, self._folder / "log", name=name, complete=complete)
        except BaseException:
            metadata.close()
            raise
        try:
            machine = await recovered(metadata, file_log, self._runtime)
            runs = RunFiles(self._folder / "log", file_log.epoch, name, self._runtime)
            unused = [number for number in await in_thread(runs.numbers) if number not in machine.runs.bytes_of]
            machine.runs.unused |= dict.fromkeys(unused, machine.sequence)
            return Opened(metadata, file_log, machine, runs)
        except BaseException:
            await file_log.close()
            metadata.close()
            raise

    # --- its record --------------------------------------------------------------------------------------

    async def newest_snapshot(self) -> tuple[Manifest | None, list[str]]:
        return await snapshots.newest(self._chunks, self.number)

    async def claim_record(self) -> tuple[Records, int]:
        records = await self._chunks.records()
        if self._chunks.claim is not None:
            return records, self._chunks.claim.store.epochs[self.number]
        if not self._epoch:
            seen = await records.read_to_change(self.number)
            self._epoch = (await records.claim(self.number, _OWNER, seen)).record.epoch
        return records, self._epoch

    def start_after(self, sequence: int) -> ChainStart:
        """The log is here, and says itself where it begins."""
        return ChainStart()

    def released(self, start: ChainStart) -> None: ...

    # -----------------------------------------------------------------------------------------------------

    def distrust_state(self) -> None:
        self._state_trusted = False

    async def unseal(self) -> None:
        await self._runtime.in_thread(statecheck.unseal, self._folder / rebuild.STATE)
        self.may_be_sealed = False

    async def seal(self, log_epoch: int, *, has_all: bool) -> None:
        await self._runtime.in_thread(self._seal, log_epoch if has_all else 0)

    def _seal(self, epoch: int) -> None:
        try:
            statecheck.seal(self._folder / rebuild.STATE, epoch)
        except OSError as error:  # a full disk, say: then the next start checks all of the state
            log.info("container %d: its state has no seal: %s", self.number, error)

    async def inspect_state(self) -> tuple[str, int]:
        file = self._folder / rebuild.STATE / statecheck.STATE_FILE
        inspected = await self._runtime.in_thread(statecheck.inspect_file, file, self.number)
        return inspected.damage, file.stat().st_size

    def is_no_room(self, error: Exception) -> bool:
        return reserve.is_no_room(error, self._folder)

    def take_room(self) -> None:
        reserve.take(self._folder)

    def release_room(self) -> bool:
        return reserve.release(self._folder)
