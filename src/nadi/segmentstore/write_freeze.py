"""Freezes the writes of a store, so that a migration finds everything in tier 2 and unchanged.

Writes wait in their container's queue, unanswered; reads continue. All data in the log moves to tier 2, and a snapshot
of each state follows. The freeze ends at a time limit, unless it is made permanent: then another store has the data,
and waiting requests are refused when this store stops.
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
from nadi.observe.cluster import FrozenContainer
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.data_dir import find_store
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.records import ContainerRecords, NewLocation

log = logging.getLogger(__name__)


async def abandon_folder(folder: Path, stored: ContainerRecords, to: str, migration: str) -> None:
    """Prevent every server from opening the data folder from now on; idempotent. The first container's record decides.
    UnavailableError, OSError: unknown whether this took effect; see `is_abandoned`."""
    store = find_store(folder).store
    assert store is not None, "a server or a migration has it open"
    for number in range(store.containers):
        record = (await stored.read(number)).record
        if record.moved is None:
            await stored.move_away(number, record.epoch, NewLocation(to, migration))
    await REAL.in_thread(replace(store, moved_to=to, moved_by=migration).write, folder)


async def is_abandoned(stored: ContainerRecords) -> bool:
    """Return whether a data folder was, or might have been, abandoned."""
    try:
        return (await stored.read(0)).record.moved is not None
    except NadiError:
        return True


class _FreezePhase(Enum):
    FREE = "free"
    BEGUN = "begun"
    HELD = "held"
    LEAVING = "leaving"  # the data is being handed to another server
    KEPT = "kept"


class WriteFreeze:
    """The write freeze of one started store."""

    def __init__(self, store: SegmentStore, runtime: Runtime = REAL) -> None:
        self._store, self._runtime = store, runtime
        self._phase = _FreezePhase.FREE
        self.id = ""  # of the latest freeze
        self._ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._turns = AsyncExitStack()  # exclusive turns of the storage writers
        self._ending: asyncio.Future[None] | None = None  # an end for which no caller waits

    @property
    def is_kept(self) -> bool:
        return self._phase is _FreezePhase.KEPT

    @property
    def remaining_s(self) -> float:
        """Seconds until the freeze ends on its own."""
        return max(0.0, self._ends_at - self._runtime.monotonic())

    async def refresh(self) -> None:
        """Move the log's current contents to tier 2 and snapshot the states, without freezing writes. ConflictError:
        the writes are frozen."""
        if self._phase is not _FreezePhase.FREE:
            raise self._is_held()
        for container, writer in self._each():
            async with writer.turns:
                await writer.move_everything(container.state.sequence)
            await container.checkpoints.bring_up_to_date()

    async def begin(self, limit_s: float) -> list[FrozenContainer]:
        """Freeze writes for at most `limit_s`; return once tier 2 has everything. On an error, writes continue.
        ConflictError: they are frozen already. RequestTimeoutError: tier 2 lacks data after `limit_s`.
        DamagedDataError: damaged bytes in the log can't be moved."""
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
                frozen = [await self._freeze_container(*each) for each in self._each()]
        except BaseException as error:
            await self._unfreeze()
            if isinstance(error, TimeoutError):
                raise RequestTimeoutError(
                    f"the log could not be moved to tier 2 within {limit_s:g} s, and writes continue: try again when "
                    "there is less to move, or with a longer limit"
                ) from error
            raise
        self._phase = _FreezePhase.HELD
        self._timer = asyncio.get_running_loop().call_later(self.remaining_s, self._expire)
        return frozen

    def _is_held(self) -> ConflictError:
        return ConflictError(f"writes are frozen already, for at most {self.remaining_s:.0f} s more: try again later")

    def _each(self) -> Iterable[tuple[Container, StorageWriter]]:
        return zip(self._store.containers, self._store.storage_writers, strict=True)

    async def _freeze_container(self, container: Container, writer: StorageWriter) -> FrozenContainer:
        await container.call(lambda frame: None, own=True)  # requests in flight are durable
        await writer.move_everything()
        for frame in container.state.frames.values():  # frames whose bytes could not be moved
            record = container.state.logged_in(frame)
            extent = next(extent for extent in record.extents if extent.frame is not None)
            raise DamagedDataError(record.name, extent.offset, extent.end, "they can't be moved from the log to tier 2")
        while container.parts.snapshots.sequence < container.state.sequence:
            await container.checkpoints.bring_up_to_date()
        return FrozenContainer(container.number, container.state.sequence)

    def _expire(self) -> None:
        if self._phase is _FreezePhase.HELD:
            log.warning("the write freeze reached its time limit: writes continue")
            self._phase = _FreezePhase.LEAVING  # no other call ends it
            self._ending = asyncio.ensure_future(self._unfreeze())

    async def end(self) -> None:
        """Resume writes, if they are frozen; wait for a freeze that is ending."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
        if self._phase is _FreezePhase.HELD:
            await self._unfreeze()

    async def keep(
        self, hold: str, leave: Callable[[], Awaitable[None]], is_abandoned: Callable[[], Awaitable[bool]]
    ) -> None:
        """Make the freeze permanent. hold: the id of the freeze, which must still be active. leave: prevents other
        servers from opening this data. is_abandoned: returns whether a failed `leave` did, or may have, taken effect:
        then the freeze is permanent, else writes resume. Runs to its end even if the caller is cancelled.
        ConflictError: writes aren't frozen any more."""
        if self._phase is not _FreezePhase.HELD or hold != self.id:
            raise ConflictError("the write freeze has ended and writes continue: begin again")
        self._phase = _FreezePhase.LEAVING
        self._forget_timer()
        self._ending = asyncio.ensure_future(self._leave(leave, is_abandoned))
        await asyncio.shield(self._ending)

    async def _leave(self, leave: Callable[[], Awaitable[None]], is_abandoned: Callable[[], Awaitable[bool]]) -> None:
        try:
            await leave()
        except BaseException:
            if await is_abandoned():
                self._phase = _FreezePhase.KEPT
            else:
                await self._unfreeze()
            raise
        self._phase = _FreezePhase.KEPT

    def refuse(self) -> None:
        """Refuse waiting and new requests before a stop, as another store has the data."""
        for container in self._store.containers:
            container.give_up("")

    async def _unfreeze(self) -> None:
        self._forget_timer()
        for container in self._store.containers:
            container.queue.is_held = False
        self._phase = _FreezePhase.FREE
        await self._turns.aclose()
        for container in self._store.containers:
            with contextlib.suppress(UnavailableError):  # the container is recovering or stopping
                await container.call(lambda frame: None)  # to wake it

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
