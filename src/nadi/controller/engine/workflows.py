"""How workflows run: one at a time for each stream, recorded before they begin, finished whatever happens.

`run` takes a stream's lock, lets `begin` check the request, records the work that `begin` returns, and
then performs its steps until they succeed. The steps are idempotent; a store that can't be reached
makes them wait and start over. A controller that dies leaves the record, and `resume` finishes it.
Workflows live in tasks of their own, so a client that hangs up doesn't stop one half-way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Any
from weakref import WeakValueDictionary

from nadi.controller.state.clock import Clock
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
    RequestTimeoutError,
    StorageFullError,
    StreamNotFoundError,
    UnavailableError,
)
from nadi.limits import WORKFLOW_RETRY_MAX_S, WORKFLOW_WAIT_S
from nadi.naming import MARK_PREFIX

log = logging.getLogger(__name__)

# In this order they are resumed: the inner ones first, which others begin within themselves.
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
_KIND_OF: dict[type[Any], str] = {kind: label for label, kind in KINDS.items()}
_ON_A_STREAM = frozenset(("scale", "update", "truncate", "seal"))  # what changes a stream that is there
# These make room, by their steps or in the end, and so go on on a full disk.
BACKGROUND = "controller background"  # the name of tasks that no call waits for
_FREES_ROOM = frozenset(("truncate", "seal", "delete", "delete_group", "delete_table", "scope"))
_FIRST_PAUSE_S = 0.1
_FULL_PAUSE_S = 1.0  # longest pause while the disk is full

Steps = Callable[[StreamName, Any], Awaitable[None]]


class Tasks:
    """Owner of the controller's background tasks: none outlives `close`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            coroutine.close()
            raise ClosedError("the controller is being stopped: try again")
        task = asyncio.get_running_loop().create_task(coroutine, name=BACKGROUND)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Workflows:
    def __init__(self, metadata: Metadata, segments: Segments, clock: Clock, tasks: Tasks) -> None:
        self.metadata = metadata
        self.segments = segments
        self.clock = clock
        self.tasks = tasks
        self.steps: dict[type[Any], Steps] = {}
        self._pending: dict[str, dict[str, AnyWork]] = {}
        self.scopes_deleted = 0  # so that a request begun before a deletion notices it
        self._reached: set[tuple[str, str]] = set()  # (key, kind) of works of which only the record is left
        self._full: dict[str, StorageFullError] = {}  # by the lock's key: what its work waits for room with
        self._one_ended = asyncio.Event()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, name: StreamName) -> asyncio.Lock:
        """The lock that serialises the workflows of a stream and of its mark stream, which is made and deleted with
        it; keep the returned object while it is used."""
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

    def any_pending_in(self, scope: str, *, reached: bool = True) -> bool:
        """Whether a workflow of anything in the scope is unfinished; without those that have `reached` their
        goal, if asked so."""
        return any(
            reached or (key, kind) not in self._reached
            for key, kinds in self._pending.items()
            if key.startswith(f"{scope}/") and key != f"{scope}/"
            for kind in kinds
        )

    async def quiet(self, scope: str) -> None:
        """Wait until nothing is pending in the scope."""
        while self.any_pending_in(scope):
            self._one_ended.clear()
            await self._one_ended.wait()

    # --- running ---------------------------------------------------------------------------------

    async def run(
        self, name: StreamName, begin: Callable[[], Awaitable[AnyWork | None]], *, wait: bool = True
    ) -> AnyWork | None:
        """Begin a workflow and wait until it is done (`wait`) or recorded.

        `begin` runs under the stream's lock; it raises what is wrong with the request, or returns None
        where nothing is to be done. RequestTimeoutError, StorageFullError: if it is recorded, it goes on after
        the reply.
        """
        loop = asyncio.get_running_loop()
        recorded: asyncio.Future[AnyWork | None] = loop.create_future()
        done: asyncio.Future[None] = loop.create_future()

        async def flow() -> None:
            try:
                async with self.lock(name):
                    if recorded.done():  # nobody waits for it any more
                        return
                    work = await self._begin(name, begin)
                    _settle(recorded, work)
                    if work is not None:
                        await self.finish(
                            name,
                            work,
                            reached=lambda: _settle(done),
                            failed=lambda error: _settle(done, error=error),
                        )
                    _settle(done, None)
            except asyncio.CancelledError:
                stopped = ClosedError("the controller is being stopped: try again")
                _settle(recorded, error=stopped)
                _settle(done, error=stopped)
                raise
            except Exception as error:
                _settle(recorded, error=error)
                _settle(done, error=error)

        self.tasks.spawn(flow())
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
            for future in (recorded, done):
                future.add_done_callback(_seen)

    async def _unless_full(self, name: StreamName, recorded: asyncio.Future[Any]) -> None:
        """Wait for that; StorageFullError if a work that goes first can't go on for want of room."""
        while not recorded.done():
            full = self._full.get(self._lock_key(name))
            if full is not None:
                error = StorageFullError(f"{name} has unfinished work, which waits for room: {full}")
                _settle(recorded, error=error)
                raise error
            await asyncio.wait([recorded], timeout=_FULL_PAUSE_S)

    async def _begin(self, name: StreamName, begin: Callable[[], Awaitable[AnyWork | None]]) -> AnyWork | None:
        work = await begin()
        if work is None:
            return None
        try:
            await self.record(name, work)
        except ConditionFailedError:
            # A record whose acknowledgement was lost, or that of another controller: that one first.
            await self._adopt(name)
            work = await begin()
            if work is not None:
                await self.record(name, work)
        return work

    async def _adopt(self, name: StreamName) -> None:
        found = await self.metadata.work.get_all([f"{name.key}/{kind}" for kind in KINDS])
        for kind, record in zip(KINDS, found, strict=True):
            if record is not None:
                self._pending.setdefault(name.key, {})[kind] = record.value
                await self.finish(name, record.value)

    async def record(self, name: StreamName, work: AnyWork) -> None:
        """Record work that the caller, who holds the stream's lock, will finish."""
        kind = _KIND_OF[type(work)]
        self._pending.setdefault(name.key, {})[kind] = work  # before any await: see `scopes`
        try:
            with freeing_room() if kind in _FREES_ROOM else nullcontext():
                await self.metadata.work.put(f"{name.key}/{kind}", work, ABSENT)
        except BaseException:
            self._ended(name, kind)
            raise

    def _ended(self, name: StreamName, kind: str) -> None:
        self._reached.discard((name.key, kind))
        self._one_ended.set()
        kinds = self._pending.get(name.key, {})
        kinds.pop(kind, None)
        if not kinds:
            self._pending.pop(name.key, None)

    async def within(self, name: StreamName, work: AnyWork) -> None:
        """Record and finish work as one step of other work, which may be repeated."""
        try:
            await self.record(name, work)
        except ConditionFailedError:  # recorded by an earlier try that got no answer
            kind = _KIND_OF[type(work)]
            found = await self.metadata.work.get(f"{name.key}/{kind}", fresh=True)
            if found is None:
                raise
            self._pending.setdefault(name.key, {})[kind] = work = found.value
        await self.finish(name, work)

    async def finish(
        self,
        name: StreamName,
        work: AnyWork,
        *,
        reached: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Perform recorded work until it is done, then drop the record.

        `reached` is told in between: whoever asked needn't wait for the record to go.
        """
        kind = _KIND_OF[type(work)]

        async def attempt() -> None:
            try:
                with freeing_room() if kind in _FREES_ROOM else nullcontext():
                    await self.steps[type(work)](name, work)
            except StreamNotFoundError as error:
                if kind not in _ON_A_STREAM or await self.metadata.find_stream(name) is not None:
                    raise
                failed(error)  # recorded by another controller, and the stream is gone
            self._reached.add((name.key, kind))
            reached()
            await self.metadata.work.remove([f"{name.key}/{kind}"])

        await self.persist(f"{kind} {name}", attempt, failed=failed, locked=name)
        self._ended(name, kind)

    async def persist(
        self,
        what: str,
        attempt: Callable[[], Awaitable[None]],
        *,
        failed: Callable[[Exception], None] = lambda error: None,
        locked: StreamName | None = None,
    ) -> None:
        """Try until it succeeds, with growing pauses; errors other than an outage are logged and told, and so is a
        full disk: it goes on once there is room, and who waits for the lock that the caller holds is told too."""
        key = self._lock_key(locked) if locked is not None else ""
        try:
            await self._persist(what, attempt, failed, key)
        finally:
            self._full.pop(key, None)

    async def _persist(
        self, what: str, attempt: Callable[[], Awaitable[None]], failed: Callable[[Exception], None], key: str
    ) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except StorageFullError as error:
                log.warning("%s waits for room on the disk: %s", what, error)
                self._full[key] = error
                failed(error)
                pause = min(pause, _FULL_PAUSE_S / 2)
            except UnavailableError as error:
                log.warning("%s waits for the segment store: %s", what, error)
            except Exception as error:
                log.exception("%s failed and is tried again", what)
                failed(error)
            await self.clock.sleep(pause)
            pause = min(pause * 2, WORKFLOW_RETRY_MAX_S)

    # --- after a restart -------------------------------------------------------------------------

    async def resume(self) -> None:
        """Take up all recorded work; returns when it is known, and finishes it in the background."""
        async for key, record in self.metadata.work.scan():
            scope, stream, kind = key.split("/")
            self._pending.setdefault(f"{scope}/{stream}", {})[kind] = record.value
        for key, works in list(self._pending.items()):
            scope, stream = key.split("/")
            self.tasks.spawn(self._resume(StreamName(scope, stream), dict(works)))

    async def _resume(self, name: StreamName, works: dict[str, AnyWork]) -> None:
        async with self.lock(name):
            for kind in KINDS:
                if kind in works:
                    log.info("resuming %s of %s", kind, name)
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
