"""Holding the writers of a store, so that tier 2 has everything and nothing changes: for a migration.

Whatever writes waits in its container's queue, unanswered; reads go on. All that is in the log moves to tier 2, and a
snapshot of each state follows. The hold ends by itself after a limit, unless it is kept for good: then the data is
another store's, and what waits is refused when this one stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from enum import Enum
from pathlib import Path

from msgspec.structs import replace

from nadi.errors import ConflictError, DamagedDataError, NadiError, RequestTimeoutError, UnavailableError
from nadi.observe.cluster import HeldContainer
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.data_dir import find
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.records import ContainerRecords, MovedAway

log = logging.getLogger(__name__)


async def leave_folder(folder: Path, stored: ContainerRecords, to: str, migration: str) -> None:
    """Let no server open a data folder any more; may be done again. The first container's record decides.
    UnavailableError, OSError: it is left, or not: see `is_left`."""
    said = find(folder).store
    assert said is not None, "a server or a migration has it open"
    for number in range(said.containers):
        record = (await stored.read(number)).record
        if record.moved is None:
            await stored.move_away(number, record.epoch, MovedAway(to, migration))
    await REAL.in_thread(replace(said, moved_to=to, moved_by=migration).write, folder)


async def is_left(stored: ContainerRecords) -> bool:
    """Whether a data folder is left, or might be."""
    try:
        return (await stored.read(0)).record.moved is not None
    except NadiError:
        return True


class _FreezePhase(Enum):
    FREE = "free"
    BEGUN = "begun"
    HELD = "held"
    LEAVING = "leaving"  # somebody makes sure that the data is another's
    KEPT = "kept"


class Hold:
    """Of one store, which has started."""

    def __init__(self, store: SegmentStore, runtime: Runtime = REAL) -> None:
        self._store, self._runtime = store, runtime
        self._phase = _FreezePhase.FREE
        self.id = ""  # of the newest one
        self._ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._turns = AsyncExitStack()  # of the storage writers
        self._ending: asyncio.Future[None] | None = None  # by whoever doesn't wait for it

    @property
    def is_kept(self) -> bool:
        return self._phase is _FreezePhase.KEPT

    @property
    def left_s(self) -> float:
        """Until it ends by itself."""
        return max(0.0, self._ends_at - self._runtime.monotonic())

    async def refresh(self) -> None:
        """Move what is in the log by now, and have the snapshots name it. Nobody is held. ConflictError: the writers
        are held."""
        if self._phase is not _FreezePhase.FREE:
            raise self._is_held()
        for container, writer in self._each():
            async with writer.turns:
                await writer.move_everything(container.state.sequence)
            await container.checkpoints.bring_up_to_date()

    async def begin(self, limit_s: float) -> list[HeldContainer]:
        """Hold the writers for so long at most; return once tier 2 has everything. ConflictError: they are held
        already. RequestTimeoutError: tier 2 doesn't have everything by then; they go on. DamagedDataError: some bytes
        in the log are damaged, and can't be moved; they go on."""
        if self._phase is not _FreezePhase.FREE:
            raise self._is_held()
        self._phase, self._ends_at = _FreezePhase.BEGUN, self._runtime.monotonic() + limit_s
        self.id = self._runtime.unique()
        try:
            async with asyncio.timeout(limit_s):
                for container in self._store.containers:
                    container.queue.is_held = True
                for writer in self._store.storage_writers:
                    await self._turns.enter_async_context(writer.turns)
                held = [await self._settled(*each) for each in self._each()]
        except BaseException as error:
            await self._let_go()
            if isinstance(error, TimeoutError):
                raise RequestTimeoutError(
                    f"the log could not be moved to tier 2 within {limit_s:g} s, and the writers go on: try again when "
                    "there is less to move, or with a longer limit"
                ) from error
            raise
        self._phase = _FreezePhase.HELD
        self._timer = asyncio.get_running_loop().call_later(self.left_s, self._expire)
        return held

    def _is_held(self) -> ConflictError:
        return ConflictError(f"the writers are held already, for {self.left_s:.0f} s more at most")

    def _each(self) -> Iterable[tuple[Container, StorageWriter]]:
        return zip(self._store.containers, self._store.storage_writers, strict=True)

    async def _settled(self, container: Container, writer: StorageWriter) -> HeldContainer:
        await container.call(lambda frame: None, own=True)  # what was in flight is durable
        await writer.move_everything()
        for frame in container.state.frames.values():  # whose bytes could not be moved
            record = container.state.logged_in(frame)
            extent = next(extent for extent in record.extents if extent.frame is not None)
            raise DamagedDataError(record.name, extent.offset, extent.end, "they can't be moved from the log to tier 2")
        while container.parts.snapshots.sequence < container.state.sequence:
            await container.checkpoints.bring_up_to_date()
        return HeldContainer(container.number, container.state.sequence)

    def _expire(self) -> None:
        if self._phase is _FreezePhase.HELD:
            log.warning("the writers were held for as long as they may be, and go on")
            self._phase = _FreezePhase.LEAVING  # nobody else ends it
            self._ending = asyncio.ensure_future(self._let_go())

    async def end(self) -> None:
        """Let the writers go on, if they are held; one that is ending has ended afterwards."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
        if self._phase is _FreezePhase.HELD:
            await self._let_go()

    async def keep(
        self, hold: str, leave: Callable[[], Awaitable[None]], is_left: Callable[[], Awaitable[bool]]
    ) -> None:
        """Hold them for good. hold: the id of the hold, which must still be on. leave: makes sure that no other server
        opens this data from now on. is_left: whether it did, or may have, though it failed: then they are held for good
        all the same, and go on only if nothing has been done. It is carried out though its caller goes. ConflictError:
        they aren't held, or go on already."""
        if self._phase is not _FreezePhase.HELD or hold != self.id:
            raise ConflictError("the writers aren't held any more, and went on: begin again")
        self._phase = _FreezePhase.LEAVING
        self._forget_timer()
        self._ending = asyncio.ensure_future(self._leave(leave, is_left))
        await asyncio.shield(self._ending)

    async def _leave(self, leave: Callable[[], Awaitable[None]], is_left: Callable[[], Awaitable[bool]]) -> None:
        try:
            await leave()
        except BaseException:
            if await is_left():
                self._phase = _FreezePhase.KEPT
            else:
                await self._let_go()
            raise
        self._phase = _FreezePhase.KEPT

    def refuse(self) -> None:
        """Refuse what waits, and whatever comes: another store has the data. Before a stop."""
        for container in self._store.containers:
            container.give_up("")

    async def _let_go(self) -> None:
        self._forget_timer()
        for container in self._store.containers:
            container.queue.is_held = False
        self._phase = _FreezePhase.FREE
        await self._turns.aclose()
        for container in self._store.containers:
            with contextlib.suppress(UnavailableError):  # it recovers, or stops
                await container.call(lambda frame: None)  # which wakes it

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
