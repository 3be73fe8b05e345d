"""How workflows run: one at a time per stream, recorded before they start, finished whatever happens.

`run` takes a stream's lock, lets `begin` check the request, records the work that `begin` returns, and
then performs its steps until they succeed. The steps are idempotent; a store that can't be reached
makes them wait and start over. A controller that dies leaves the record, and `resume` finishes the work.
Workflows run in their own tasks, so a client that hangs up doesn't stop one halfway; one that hasn't begun never will.

Other controllers may use the same store. The lock covers one process only; among controllers, the one that has stored
the stream's `Turn` (together with its work) goes first. What `begin` read may have changed before then, so it is
checked again once the turn is taken. A turn whose controller shows no sign is taken over; one that was passed over
finds out before its next command (`hold`). Records are removed only at the version that this controller wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from nadi.backoff import Backoff
from nadi.controller.engine.hold import Hold, Leased, TurnLostError, always
from nadi.controller.engine.persistence import seen, settle, until_done
from nadi.controller.engine.tasks import Tasks
from nadi.controller.engine.work import FREES_ROOM, KIND_OF, KINDS, ON_A_STREAM, Recorded, Refused, Steps
from nadi.controller.state.metadata import Metadata, StreamName
from nadi.controller.state.records import AnyWork, Turn
from nadi.controller.state.segments import Segments, only_if
from nadi.controller.state.store import ABSENT, freeing_room
from nadi.errors import ClosedError, ConditionFailedError, RequestTimeoutError, StorageFullError, StreamNotFoundError
from nadi.limits import WORKFLOW_TAKE_UP_S, WORKFLOW_WAIT_S
from nadi.naming import MARK_PREFIX
from nadi.runtime import Runtime

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_FULL_PAUSE_S = 1.0  # longest pause while the disk is full


class Workflows:
    def __init__(
        self, metadata: Metadata, segments: Segments, clock: Runtime, tasks: Tasks, is_leased: Leased = always
    ) -> None:
        self.metadata = metadata
        self.segments = segments
        self.clock = clock
        self.tasks = tasks
        self.steps: dict[type[Any], Steps] = {}
        self._pending: dict[str, dict[str, AnyWork]] = {}
        self._me = clock.unique()
        self._full: dict[str, StorageFullError] = {}  # by the lock's key: the error with which its work waits for space
        self._hold = partial(Hold, metadata.work, clock, self._full, is_leased)
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
        """Finish everything unfinished in the scope, whichever controller started it; StorageFullError if something
        is waiting for space."""
        before: set[StreamName] = set()
        while True:
            works = [key.split("/") async for key, _ in self.metadata.work.scan(f"{scope}/")]
            names = {StreamName(scope, parts[1]) for parts in works if parts[1]}
            if not names:
                return
            if names == before:  # parts of something that another controller is doing, or something new
                await self.clock.sleep(_FIRST_PAUSE_S)
            before = names
            for name in names:
                if (full := self._full.get(self._lock_key(name))) is not None:
                    raise full
                async with self.lock(name):
                    await self.others_first(name)

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

        async def flow() -> None:
            nonlocal is_begun
            try:
                async with self.lock(name):
                    is_begun = True
                    while await self._begin(name, begin, recorded, done):
                        pass
                    settle(recorded, None)
                    settle(done, None)
            except asyncio.CancelledError:
                stopped = ClosedError("the controller is being stopped: try again")
                settle(recorded, error=stopped)
                settle(done, error=stopped)
                raise
            except Exception as error:
                settle(recorded, error=error)
                settle(done, error=error)

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
                future.add_done_callback(seen)

    async def _unless_full(self, name: StreamName, recorded: asyncio.Future[Any]) -> None:
        """Wait for `recorded`; StorageFullError if work that goes first is stuck on a full disk."""
        while not recorded.done():
            full = self._full.get(self._lock_key(name))
            if full is not None:
                error = StorageFullError(f"{name} has unfinished work, which waits for room: {full}")
                settle(recorded, error=error)
                raise error
            await asyncio.wait([recorded], timeout=_FULL_PAUSE_S)

    async def _begin(
        self,
        name: StreamName,
        begin: Callable[[], Awaitable[AnyWork | None]],
        recorded: asyncio.Future[AnyWork | None],
        done: asyncio.Future[None],
    ) -> bool:
        """Start a workflow and finish it; True if another controller got in between and it must start again."""
        self.metadata.forget(name)
        work = await begin()
        if work is None:
            return False
        before = self.metadata.remembered(name)
        try:
            mine = await self.record(name, work, turn=True)
        except ConditionFailedError:  # a record whose acknowledgement was lost, or another controller's
            if not await self.others_first(name):
                await self.clock.sleep(_FIRST_PAUSE_S)  # it is just gone, or an older version's, which knew no turns
            return True

        def failed(error: Exception) -> None:
            settle(recorded, work)
            settle(done, error=error)

        return not await self.finish(
            name,
            mine,
            before=before,
            started=lambda: settle(recorded, work),
            reached=lambda: settle(done),
            failed=failed,
        )

    async def others_first(self, name: StreamName) -> bool:
        """Wait until it is nobody's turn on the stream, whose lock the caller holds; False if it was nobody's.

        Work that was recorded here, or whose controller shows no sign, is taken over.
        """
        table, key = self.metadata.work, self._lock_key(name)
        waited, version, patience_ends = False, None, 0.0
        backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_FULL_PAUSE_S, sleep=self.clock.sleep)
        while (found := await table.get(key, fresh=True)) is not None:
            turn, waited = found.value, True
            assert isinstance(turn, Turn)
            if found.version != version:
                version, patience_ends = found.version, self.clock.monotonic() + WORKFLOW_TAKE_UP_S
            if turn.controller == self._me or self.clock.monotonic() >= patience_ends:
                owner = StreamName(name.scope, turn.stream)
                works = await self._recorded(owner)
                if turn.kind not in works:
                    await table.remove_if((key, found.version))  # its work was lost, or an older version finished it
                elif (hold := await self._hold(key, turn, found.version, 0.0).taken_over(self._me)) is not None:
                    if turn.controller != self._me:
                        await hold.others_know()
                    self.metadata.forget(owner)
                    self.metadata.forget_history(owner)
                    works[turn.kind] = works[turn.kind]._replace(hold=hold)
                    await self._finish_all(owner, works)
            else:
                await backoff.pause()
        return waited

    async def _recorded(self, name: StreamName) -> dict[str, Recorded]:
        """The work that is recorded for the name, by kind: what has the turn, and parts of it."""
        keys = [f"{name.key}/{kind}" for kind in KINDS]
        found = zip(KINDS, keys, await self.metadata.work.get_all(keys), strict=True)
        return {kind: Recorded(held.value, key, held.version) for kind, key, held in found if held is not None}

    async def record(self, name: StreamName, work: AnyWork, *, turn: bool = False) -> Recorded:
        """Record work that the caller, who holds the stream's lock, will finish; ConditionFailedError if it is already
        recorded or, with `turn`, if the turn is another's."""
        kind = KIND_OF[type(work)]
        mine, now = Turn(self._me, name.stream, kind), self.clock.monotonic()
        records: list[tuple[str, AnyWork, int]] = [(f"{name.key}/{kind}", work, ABSENT)]
        if turn:
            records.append((self._lock_key(name), mine, ABSENT))
        self._pending.setdefault(name.key, {})[kind] = work
        try:
            with freeing_room() if kind in FREES_ROOM else nullcontext():
                stored = await self.metadata.work.put_all(records)
        except BaseException:
            self._ended(name, kind)
            raise
        hold = self._hold(records[1][0], mine, stored[1].version, now) if turn else None
        return Recorded(work, records[0][0], stored[0].version, hold)

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
            kind = KIND_OF[type(work)]
            key = f"{name.key}/{kind}"
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
        before: Sequence[int | None] = (),
        started: Callable[[], None] = lambda: None,
        reached: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> bool:
        """Perform recorded work until it is done, then drop the record. Return False if it must start again, because
        what it started from no longer has the versions in `before`, or because the steps said so.

        `reached` is called in between: the caller needn't wait for the record to be removed.
        """
        work = recorded.work
        kind = KIND_OF[type(work)]
        is_checked, is_done = not any(version is not None for version in before), True  # what makes new checks itself
        refusal: Exception | None = None
        self._pending.setdefault(name.key, {})[kind] = work

        async def attempt() -> None:
            try:
                with only_if(recorded.hold.check) if recorded.hold is not None else nullcontext():
                    await attempt_in_turn()
            except TurnLostError:
                if recorded.hold is None:  # part of what has lost it
                    raise
                log.info("another controller has taken up %s of %s", kind, name)
                self.metadata.forget_history(name)
                await self.others_first(name)
                if is_done and refusal is None:
                    started()
                    reached()

        async def attempt_in_turn() -> None:
            nonlocal is_checked, is_done, refusal
            is_done = True
            try:
                if not is_checked:
                    now = await self.metadata.standing(name)
                    if any(was not in (None, version) for was, version in zip(before, now, strict=True)):
                        raise Refused
                is_checked = True
                started()
                with freeing_room() if kind in FREES_ROOM else nullcontext():
                    await self.steps[type(work)](name, work)
            except Refused as refused:
                refusal = refused.error or refusal
                is_done = refusal is not None
            except ConditionFailedError:
                if await self._stands(recorded):
                    raise
                log.info("another controller has finished %s of %s", kind, name)
            except StreamNotFoundError as error:
                if kind not in ON_A_STREAM or await self.metadata.find_stream(name) is not None:
                    raise
                failed(error)  # recorded by another controller, and the stream is gone
            if is_done and refusal is None:
                reached()
            await self._remove(recorded)

        try:
            await self.persist(f"{kind} {name}", attempt, failed=failed, locked=name)
        finally:
            self._ended(name, kind)
        if refusal is not None:
            failed(refusal)
        return is_done

    async def _remove(self, recorded: Recorded) -> None:
        records, hold = [(recorded.key, recorded.version)], recorded.hold
        if hold is not None:
            await hold.check()
            records.append((hold.key, hold.version))
        with only_if(None):  # else the turn might get another version meanwhile
            await self.metadata.work.remove_if(*records)

    async def _stands(self, recorded: Recorded) -> bool:
        found = await self.metadata.work.get(recorded.key, fresh=True)
        return found is not None and found.version == recorded.version

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
        try:
            await until_done(what, attempt, failed, partial(self._full.__setitem__, key), sleep=self.clock.sleep)
        finally:
            self._full.pop(key, None)

    # --- after a restart -------------------------------------------------------------------------

    async def resume(self) -> None:
        """Load all recorded work, and finish it in the background; return once it is loaded."""
        turns: dict[tuple[str, str], tuple[str, Turn, int]] = {}  # by the work's owner and kind
        works: dict[str, dict[str, Recorded]] = {}
        async for key, record in self.metadata.work.scan():
            if isinstance(record.value, Turn):
                scope, _, _ = key.partition("/")
                turns[f"{scope}/{record.value.stream}", record.value.kind] = key, record.value, record.version
            else:
                owner, _, kind = key.rpartition("/")
                works.setdefault(owner, {})[kind] = Recorded(record.value, key, record.version)
        for owner, kinds in works.items():
            for kind, recorded in list(kinds.items()):
                if (turn := turns.get((owner, kind))) is not None:
                    if (hold := await self._hold(*turn, 0.0).taken_over(self._me, at_start=True)) is not None:
                        kinds[kind] = recorded._replace(hold=hold)
                    else:  # another was faster
                        del kinds[kind]
            self._pending[owner] = {kind: recorded.work for kind, recorded in kinds.items()}
            self.tasks.spawn(self._resume(StreamName.of(owner), kinds))

    async def _resume(self, name: StreamName, works: dict[str, Recorded]) -> None:
        async with self.lock(name):
            await self._finish_all(name, works)

    async def _finish_all(self, name: StreamName, works: dict[str, Recorded]) -> None:
        """Finish work with the parts of it that are recorded; they have no hold of their own."""
        hold = next(filter(None, (recorded.hold for recorded in works.values())), None)
        try:
            with only_if(hold.check if hold is not None else None):
                for kind in KINDS:
                    if kind in works:
                        log.info("finishing %s of %s", kind, name)
                        await self.finish(name, works[kind])
        except TurnLostError:
            for kind in works:
                self._ended(name, kind)
