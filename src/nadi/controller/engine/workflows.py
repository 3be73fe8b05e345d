"""Runs workflows: one at a time per stream, recorded before they start, finished whatever happens.

`run` takes a stream's lock, lets `begin` check the request, records the work that `begin` returns, and
then performs its steps until they succeed. The steps are idempotent; a store that can't be reached
makes them wait and start over. A controller that dies leaves the record, and `resume` finishes the work.
Workflows run in their own tasks, so a client that hangs up doesn't stop one halfway; one that hasn't begun never will.

A store has one controller: a deposed one gives no further command (`state.segments`), and its records are fenced with
the container that has them (docs/decisions/0012). So the lock, and the records, are all that keeps workflows apart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from nadi.backoff import Backoff
from nadi.controller.engine.tasks import Tasks
from nadi.controller.state.metadata import Metadata, StreamName
from nadi.controller.state.records import (
    AnyWork,
    CreateGroupWork,
    CreateTableWork,
    CreateWork,
    DeleteGroupWork,
    DeleteScopeWork,
    DeleteTableWork,
    DeleteWork,
    RollWork,
    ScaleWork,
    SealWork,
    TruncateWork,
    UpdateGroupWork,
    UpdateWork,
)
from nadi.controller.state.segments import Segments
from nadi.controller.state.store import ABSENT, freeing_room
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    NotOwnerError,
    RequestTimeoutError,
    StorageFullError,
    UnavailableError,
)
from nadi.limits import WORKFLOW_RETRY_MAX_S, WORKFLOW_WAIT_S
from nadi.naming import MARK_PREFIX
from nadi.runtime import Runtime

log = logging.getLogger(__name__)

# They are resumed in this order: inner ones, which others start as part of themselves, come first.
KINDS: dict[str, type[AnyWork]] = {
    "roll": RollWork,
    "scale": ScaleWork,
    "update": UpdateWork,
    "truncate": TruncateWork,
    "seal": SealWork,
    "create": CreateWork,
    "delete": DeleteWork,
    "create_group": CreateGroupWork,
    "update_group": UpdateGroupWork,
    "delete_group": DeleteGroupWork,
    "create_table": CreateTableWork,
    "delete_table": DeleteTableWork,
    "scope": DeleteScopeWork,
}
KIND_OF: dict[type[Any], str] = {kind: label for label, kind in KINDS.items()}
# These free space, in their steps or at the end, so they continue on a full disk.
FREES_ROOM = frozenset(("truncate", "seal", "delete", "delete_group", "delete_table", "scope"))

Steps = Callable[[StreamName, Any], Awaitable[None]]
_FIRST_PAUSE_S = 0.1
_FULL_PAUSE_S = 0.5  # longest pause while the disk is full
_FULL_LOOK_S = 1.0  # between two looks at whether work that goes first waits for space
_MOVED_PAUSE_S = 0.5  # and while a container is between two servers: that is over in a second or a few


class Refused(Exception):
    """Raised by steps: the work must not be done after all and left nothing behind. `error` goes to the caller."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Recorded(NamedTuple):
    """Recorded work: the key and version of its record."""

    work: AnyWork
    key: str
    version: int


class Workflows:
    def __init__(self, metadata: Metadata, segments: Segments, clock: Runtime, tasks: Tasks) -> None:
        self.metadata = metadata
        self.segments = segments
        self.clock = clock
        self.tasks = tasks
        self.steps: dict[type[Any], Steps] = {}
        self._pending: dict[str, dict[str, AnyWork]] = {}
        self._full: dict[str, StorageFullError] = {}  # by the lock's key: the error with which its work waits for space
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, name: StreamName) -> asyncio.Lock:
        """The lock that serialises the workflows of a stream and of its mark stream, which is made and deleted with
        it; keep a reference to the returned object while using it."""
        key = self._lock_key(name)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    @staticmethod
    def _lock_key(name: StreamName) -> str:
        return f"{name.scope}/{name.stream.removeprefix(MARK_PREFIX)}"

    def pending(self, name: StreamName, kind: str) -> AnyWork | None:
        """The recorded, unfinished work of that kind."""
        return self._pending.get(name.key, {}).get(kind)

    @property
    def pending_count(self) -> int:
        return sum(map(len, self._pending.values()))

    async def quiet(self, scope: str) -> None:
        """Wait for everything unfinished in the scope; StorageFullError if something is waiting for space."""
        while True:
            works = [key.split("/") async for key, _ in self.metadata.work.scan(f"{scope}/")]
            names = {StreamName(scope, parts[1]) for parts in works if parts[1]}
            if not names:
                return
            for name in names:
                if (full := self._full.get(self._lock_key(name))) is not None:
                    raise full
                async with self.lock(name):
                    pass  # what is recorded has the lock, or waits for it

    # --- running ---------------------------------------------------------------------------------

    async def run(
        self, name: StreamName, begin: Callable[[], Awaitable[AnyWork | None]], *, wait: bool = True
    ) -> AnyWork | None:
        """Start a workflow and wait until it is done (`wait`) or recorded.

        `begin` runs under the stream's lock; it raises if the request is wrong, and returns None if there is
        nothing to do. On RequestTimeoutError or StorageFullError, work that is recorded continues after
        the reply.
        """
        loop = asyncio.get_running_loop()
        recorded: asyncio.Future[AnyWork | None] = loop.create_future()
        done: asyncio.Future[None] = loop.create_future()
        is_begun = False

        def failed(error: Exception) -> None:
            _settle(recorded, error=error)
            _settle(done, error=error)

        async def flow() -> None:
            nonlocal is_begun
            try:
                async with self.lock(name):
                    is_begun = True
                    work = await begin()
                    if work is not None:
                        mine = await self._record_surely(name, work, failed)
                        if mine is None:
                            return
                        _settle(recorded, work)
                        await self.finish(name, mine, reached=lambda: _settle(done), failed=failed)
                    _settle(recorded, None)
                    _settle(done)
            except asyncio.CancelledError:
                failed(ClosedError("the controller is being stopped: try again"))
                raise
            except Exception as error:
                failed(error)

        task = self.tasks.spawn(flow())
        try:
            async with asyncio.timeout(WORKFLOW_WAIT_S):
                await self._unless_full(name, recorded)
                work = await asyncio.shield(recorded)
                if wait:
                    await asyncio.shield(done)
                return work
        except TimeoutError as error:
            raise RequestTimeoutError(f"{name} is busy for too long: try again") from error
        finally:
            if not is_begun:  # who gave up leaves the queue: calls have a limit only while somebody waits for them
                task.cancel()
            for future in (recorded, done):
                future.add_done_callback(_seen)

    async def _unless_full(self, name: StreamName, recorded: asyncio.Future[Any]) -> None:
        """Wait for `recorded`; StorageFullError if work that goes first is stuck on a full disk."""
        while not recorded.done():
            full = self._full.get(self._lock_key(name))
            if full is not None:
                error = StorageFullError(f"{name} has unfinished work, which waits for room: {full}")
                _settle(recorded, error=error)
                raise error
            await asyncio.wait([recorded], timeout=_FULL_LOOK_S)

    async def _record_surely(
        self, name: StreamName, work: AnyWork, failed: Callable[[Exception], None]
    ) -> Recorded | None:
        """Record work. If the outcome is unknown, report that, do whatever turns out to be recorded, and return None:
        else it might be done after what follows."""
        try:
            return await self.record(name, work)
        except (ConditionFailedError, UnavailableError) as error:
            failed(error if isinstance(error, UnavailableError) else UnavailableError(f"{name} is busy: try again"))
        works: dict[str, Recorded] = {}

        async def look() -> None:
            keys = [f"{name.key}/{kind}" for kind in KINDS]
            for kind, key, found in zip(KINDS, keys, await self.metadata.work.get_all(keys), strict=True):
                if found is not None:
                    works[kind] = Recorded(found.value, key, found.version)

        await self.persist(f"a look at the work of {name}", look, locked=name)
        await self._finish_all(name, works)
        return None

    async def record(self, name: StreamName, work: AnyWork) -> Recorded:
        """Record work that the caller, who holds the stream's lock, will finish; ConditionFailedError if it is already
        recorded."""
        kind = KIND_OF[type(work)]
        key = f"{name.key}/{kind}"
        self._pending.setdefault(name.key, {})[kind] = work
        try:
            with freeing_room() if kind in FREES_ROOM else nullcontext():
                stored = await self.metadata.work.put(key, work, ABSENT)
        except BaseException:
            self._ended(name, kind)
            raise
        return Recorded(work, key, stored.version)

    def _ended(self, name: StreamName, kind: str) -> None:
        kinds = self._pending.get(name.key, {})
        kinds.pop(kind, None)
        if not kinds:
            self._pending.pop(name.key, None)

    async def within(self, name: StreamName, work: AnyWork) -> None:
        """Record and finish work as one step of other work, where the step may be repeated."""
        try:
            recorded = await self.record(name, work)
        except ConditionFailedError:  # recorded by an earlier try that got no answer
            key = f"{name.key}/{KIND_OF[type(work)]}"
            found = await self.metadata.work.get(key, fresh=True)
            if found is None:
                raise
            recorded = Recorded(found.value, key, found.version)
        await self.finish(name, recorded)

    async def finish(
        self,
        name: StreamName,
        recorded: Recorded,
        *,
        reached: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Perform recorded work until it is done, then drop the record. `reached` is called in between: the caller
        needn't wait for the record to be removed."""
        work = recorded.work
        kind = KIND_OF[type(work)]
        refusal: Exception | None = None
        self._pending.setdefault(name.key, {})[kind] = work

        async def attempt() -> None:
            nonlocal refusal
            try:
                with freeing_room() if kind in FREES_ROOM else nullcontext():
                    await self.steps[type(work)](name, work)
            except Refused as refused:
                refusal = refused.error
            if refusal is None:
                reached()
            await self.metadata.work.remove_if((recorded.key, recorded.version))

        try:
            await self.persist(f"{kind} {name}", attempt, failed=failed, locked=name)
        finally:
            self._ended(name, kind)
        if refusal is not None:
            failed(refusal)

    async def persist(
        self,
        what: str,
        attempt: Callable[[], Awaitable[None]],
        *,
        failed: Callable[[Exception], None] = lambda error: None,
        locked: StreamName | None = None,
    ) -> None:
        """Try until it succeeds, with growing pauses. Errors other than an outage are logged and reported, and so is
        a full disk, also to those who wait for the lock that the caller holds; it continues once there is space."""
        key = self._lock_key(locked) if locked is not None else ""
        backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=WORKFLOW_RETRY_MAX_S, sleep=self.clock.sleep)
        try:
            while True:
                try:
                    return await attempt()
                except StorageFullError as error:
                    log.warning("%s waits for room on the disk: %s", what, error)
                    self._full[key] = error
                    failed(error)
                    backoff.at_most(_FULL_PAUSE_S)
                except NotOwnerError as error:
                    log.info("%s waits for a container: %s", what, error)
                    backoff.at_most(_MOVED_PAUSE_S)
                except UnavailableError as error:
                    log.warning("%s waits for the segment store: %s", what, error)
                except Exception as error:
                    log.exception("%s failed and is tried again", what)
                    failed(error)
                await backoff.pause()
        finally:
            self._full.pop(key, None)

    # --- after a restart -------------------------------------------------------------------------

    async def resume(self) -> None:
        """Load all recorded work, and finish it in the background; return once it is loaded."""
        works: dict[str, dict[str, Recorded]] = {}
        async for key, record in self.metadata.work.scan():
            owner, _, kind = key.rpartition("/")
            works.setdefault(owner, {})[kind] = Recorded(record.value, key, record.version)
        for owner, kinds in works.items():
            self._pending[owner] = {kind: recorded.work for kind, recorded in kinds.items()}
            self.tasks.spawn(self._resume(StreamName.of(owner), kinds))

    async def _resume(self, name: StreamName, works: dict[str, Recorded]) -> None:
        async with self.lock(name):
            await self._finish_all(name, works)

    async def _finish_all(self, name: StreamName, works: dict[str, Recorded]) -> None:
        """Finish work, and first the parts of it that are recorded."""
        for kind in KINDS:
            if kind in works:
                log.info("finishing %s of %s", kind, name)
                await self.finish(name, works[kind])


def _settle(future: asyncio.Future[Any], value: Any = None, *, error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # a caller that gave up doesn't leave an unread error behind
