"""Keeps what a server has in step with what it is to have: it claims containers, hands them over, and drops those that
others have claimed.

Each second, more often while containers of a dead server are to be taken, and as soon as a server comes or goes, it
reads the records that have changed and does what `decisions` says. A hand-over is announced first, so that the target
and all who send clients there look closely; the owner brings its snapshot up to date, stops, and releases the
container, and the target claims it at once. Several are prepared side by side; only closing or opening a container goes
one by one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

from nadi import limits
from nadi.cluster.admin.metrics import Moves
from nadi.cluster.container_map import RecordWatch
from nadi.cluster.membership import Load, Membership
from nadi.cluster.placement import ClaimContainer, Holding, ReleaseContainer, decisions
from nadi.cluster.storage import ClusterParts
from nadi.errors import ClosedError, FencedError, NadiError, UnavailableError
from nadi.observe.logs import about
from nadi.runtime import Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.records import ContainerRecords, VersionedRecord
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)
Moved = Callable[[int], Awaitable[None]]


class Keeper:
    """One server's. me: its id. parts_of: makes a container's parts, for a claim of the record that was seen. on_taken:
    awaited once a container is here, on_leaving before it is handed over or when it was lost, with its number.
    on_looked: called when records and servers were looked at. `moves` counts what has moved."""

    def __init__(
        self,
        me: str,
        store: SegmentStore,
        membership: Membership,
        records: ContainerRecords,
        watch: RecordWatch,
        parts_of: Callable[[int, VersionedRecord], ClusterParts],
        count: int,
        runtime: Runtime,
        on_taken: Moved,
        on_leaving: Moved,
        on_looked: Callable[[], None],
    ) -> None:
        self.me = me
        self._store, self._membership, self._records, self._watch = store, membership, records, watch
        self._parts_of, self._count, self._runtime = parts_of, count, runtime
        self._on_taken, self._on_leaving, self._on_looked = on_taken, on_leaving, on_looked
        self._parts: dict[int, ClusterParts] = {}
        self._moving: dict[int, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Future[None], None] = {}
        self._takes = asyncio.Semaphore(limits.CLUSTER_TAKES_AT_ONCE)
        self._closing = asyncio.Lock()  # each of many is closed for no longer than if it were alone
        self._failed: dict[int, int] = {}  # takes of a container, one after another
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closely: asyncio.Task[None] | None = None
        self._affirmed = 1
        self._terms: dict[int, int] = {}  # of the lease: in it the container's record was last set as this server's
        self._counted: dict[int, int] = {}  # bytes logged by each container, when that was last told
        self._counted_at = runtime.monotonic()
        self._stopping = False
        self._hasty_until = -math.inf
        self.moves = Moves()
        self._complaints = Complaints(log, "%s, and it tries again")

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="keeper")

    def wake(self) -> None:
        self._wake.set()

    async def stop(self) -> None:
        """Stop deciding, and let moves under way end; what this server has, it keeps. Cancelled, it ends them."""
        self._stopping = True
        for task in (self._task, self._closely):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        under_way = [*self._moving.values(), *self._leaving]
        try:
            if under_way:
                await asyncio.wait(under_way)
        except asyncio.CancelledError:
            for move in under_way:
                move.cancel()
            raise

    async def drained(self) -> None:
        """After `Membership.drain`: return once this server has no containers any more, or nobody else takes any, or it
        can't reach the store, for then it gives none away."""
        while self._membership.lease_is_valid() and (self._moving or (self._parts and self._membership.has_takers())):
            await self._runtime.sleep(limits.CLUSTER_CLOSE_LOOK_S)

    async def give_back(self) -> None:
        """On a clean stop, after `stop`: close all containers that are still here, and release them, so that others
        needn't wait for this server's death."""
        await asyncio.gather(*(self._give_back(number) for number in list(self._parts)))

    async def _give_back(self, number: int) -> None:
        if number not in self._parts:  # lost since
            return
        order = self._membership.view({}, self._count).order()[number]
        target = next((server for server in order if server != self.me), "")
        try:
            await self._close(number, target)
        except NadiError as error:
            log.info("container %d is left to whoever finds this server gone: %s", number, error)

    def load(self) -> Load:
        now, counted = self._runtime.monotonic(), self._counted
        logged = {container.number: container.checkpoints.logged_bytes for container in self._store.containers}
        more = sum(max(0, size - counted.get(number, size)) for number, size in logged.items())
        passed_s, self._counted_at, self._counted = now - self._counted_at, now, logged
        return Load(len(self._parts), more / passed_s if passed_s > 0 else 0.0)

    def rebalance(self) -> None:
        """Hand over what other servers are to have without waiting for a time in which none comes or goes. Such a time
        has passed when this ends, or somebody has come or gone since."""
        self._hasty_until = self._runtime.monotonic() + limits.CLUSTER_STABLE_S
        self.wake()

    def lost(self, number: int) -> None:
        """The store has dropped a container that another server has claimed."""
        if self._parts.pop(number, None) is not None:
            self.moves.fenced += 1
            leaving = asyncio.ensure_future(self._on_leaving(number))
            self._leaving[leaving] = None
            leaving.add_done_callback(self._leaving.pop)
        self.wake()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._step()
            except UnavailableError as error:
                self._complaints.tell("the containers' records can't be read", error)
            except Exception:
                log.exception("the keeper failed, and goes on")
            else:
                self._complaints.settled("the containers' records can't be read")
            try:
                pause_s = limits.CLUSTER_ORPHAN_LOOK_S if self._has_orphans() else limits.CLUSTER_BEAT_S
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _has_orphans(self) -> bool:
        """Whether containers of a server that has just died are to be another's at any moment: clients ask where they
        are. Not forever, for it may be that nobody can open one."""
        members, since = self._membership.members, self._runtime.monotonic() - limits.CLUSTER_ARRIVAL_S
        records = (seen.stored.record for seen in self._watch.seen.values())
        owners = {record.owner for record in records if not record.released} & members.keys()
        return any(not members[owner].is_alive and members[owner].since > since for owner in owners)

    async def _step(self) -> None:
        term = self._membership.term
        await self._watch.look()
        is_looking = self._closely is not None and not self._closely.done()
        if not is_looking and any(seen.stored.record.target for seen in self._watch.seen.values()):
            self._closely = asyncio.create_task(self._follow_announced(), name="keeper-close-look")
        if term != self._affirmed or any(self._terms.get(number) != term for number in self._parts):
            await self._affirm(term)
        self._on_looked()
        records = {number: seen.stored.record for number, seen in self._watch.seen.items()}
        self._membership.name({name for record in records.values() for name in (record.owner, record.target) if name})
        holdings = {
            number: Holding(version, record.epoch, since, record.owner, record.target if record.released else "")
            for number, ((record, version), since) in self._watch.seen.items()
        }
        is_hasty = self._runtime.monotonic() < self._hasty_until
        view = replace(self._membership.view(holdings, self._count), is_hasty=is_hasty)
        for decision in decisions(view):
            if decision.container in self._moving:
                continue
            if isinstance(decision, ClaimContainer):
                self._move(decision.container, self._claim(decision))
            elif decision.container in self._parts:
                self._move(decision.container, self._hand_over(decision))
        for number, record in records.items():  # claimed, and then opening it failed
            is_mine = record.owner == self.me and not record.released
            if is_mine and number not in self._parts and number not in self._moving:
                self._move(number, self._take(number, self._watch.seen[number].stored))

    def may_answer(self, number: int) -> bool:
        """Whether reads of the container may be answered: see `membership`."""
        membership = self._membership
        return membership.lease_is_valid() and self._terms.get(number) == membership.term

    def epoch(self, number: int) -> int:
        """The epoch in which a container is here; 0 if it isn't."""
        parts = self._parts.get(number)
        return parts.epoch if parts is not None else 0

    def may_command(self, number: int, epoch: int) -> bool:
        """Whether the controller that began in that epoch of the container that has its records may give commands."""
        return epoch > 0 and self.epoch(number) == epoch and self.may_answer(number)

    async def _affirm(self, term: int) -> None:
        """After this server was silent for so long that others may have claimed what it has, or is about to have."""
        for number, parts in list(self._parts.items()):
            if self._terms.get(number) == term:
                continue
            try:
                began = self._membership.term
                await self._records.renew(number, parts.epoch)
                self._terms[number] = began
            except FencedError:
                await self._store.drop(number)
                self.lost(number)
        self._membership.affirm(term)
        self._affirmed = term

    def _move(self, number: int, move: Coroutine[None, None, None]) -> None:
        if self._stopping:
            move.close()
            return

        async def moved() -> None:
            try:
                with about(container=number):
                    await move
            except (UnavailableError, TimeoutError) as error:  # decided anew, with what is seen then
                self._complaints.tell(f"container {number} can't be moved now", error)
            except Exception:
                log.exception("moving container %d failed", number, extra={"container": number})
            else:
                self._complaints.settled(f"container {number} can't be moved now")
            finally:
                self._moving.pop(number, None)
                self.wake()

        self._moving[number] = asyncio.create_task(moved(), name=f"move-{number}")

    async def _claim(self, claim: ClaimContainer) -> None:
        seen = self._watch.seen[claim.container].stored
        owner = seen.record.owner if not seen.record.released else ""
        if owner and owner != self.me and not await self._membership.is_dead(owner):
            return
        if seen.version == claim.version:
            await self._take(claim.container, seen)

    async def _take(self, number: int, seen: VersionedRecord) -> None:
        async with self._takes:
            if number in self._parts:
                return
            began, term = self._runtime.monotonic(), self._membership.term
            parts = self._parts_of(number, seen)
            try:
                await parts.prepare()
                self._terms[number] = term
                await self._store.take(parts)
            except FencedError as error:
                self.moves.fenced += 1
                log.info("container %d: %s", number, error)
                await self._watch.look_at(number)
                return
            except ClosedError:
                return
            except Exception as error:
                await self._failed_to_take(number, parts, error)
                return
            finally:
                await parts.discard()
            self._failed.pop(number, None)
            self._parts[number] = parts
            if seen.record.released:
                self.moves.received += 1
            elif seen.record.owner:
                self.moves.taken_over += 1
            took_s = self._runtime.monotonic() - began
            log.info("container %d is here, in epoch %d, after %.2f s", number, parts.epoch, took_s)
            self._watch.note(number, parts.claimed)
        self._on_looked()
        await self._on_taken(number)

    async def _failed_to_take(self, number: int, parts: ClusterParts, error: Exception) -> None:
        """It is tried again; after some times another server is to try, if there is one."""
        failures = self._failed[number] = self._failed.get(number, 0) + 1
        unforeseen = None if isinstance(error, NadiError | OSError) else error
        log.warning("container %d can't be opened here (try %d): %s", number, failures, error, exc_info=unforeseen)
        await self._runtime.sleep(min(limits.CLUSTER_CLOSE_LOOK_S * 2**failures, limits.CLUSTER_RETAKE_S))
        order = self._membership.view({}, self._count).order()[number]
        others = [server for server in order if server != self.me]
        if failures % limits.CLUSTER_FAILED_TAKES == 0 and others and parts.epoch > 0:
            await self._records.release(number, parts.epoch, others[0])

    async def _hand_over(self, release: ReleaseContainer) -> None:
        number, parts = release.container, self._parts[release.container]
        began = self._runtime.monotonic()
        async with asyncio.timeout(limits.CLUSTER_HAND_OVER_S):
            await self._records.announce(number, parts.epoch, release.target)
            await self._watch.look_at(number)
            await self._runtime.sleep(limits.CLUSTER_ANNOUNCE_S)
            await self._store.bring_up_to_date(number)
        async with self._closing:
            if self._parts.get(number) is not parts:  # another server has claimed it meanwhile
                return
            closing = self._runtime.monotonic()
            await self._close(number, release.target)
        self.moves.handed_over += 1
        now = self._runtime.monotonic()
        what = "container %d is given to server %s: closed for %.2f s, announced %.1f s before"
        log.info(what, number, release.target, now - closing, closing - began)

    async def _close(self, number: int, target: str) -> None:
        parts = self._parts[number]
        await self._on_leaving(number)
        self._parts.pop(number, None)
        await self._store.give_up(number)
        await self._records.release(number, parts.epoch, target)
        await self._watch.look_at(number)

    async def _follow_announced(self) -> None:
        """Look closely at the records of containers that are about to change hands."""
        while True:
            await self._runtime.sleep(limits.CLUSTER_CLOSE_LOOK_S)
            announced = [number for number, seen in self._watch.seen.items() if seen.stored.record.target]
            if not announced:
                return
            known = [self._watch.seen[number].stored for number in announced]
            try:
                found = await asyncio.gather(*map(self._watch.look_at, announced))
            except UnavailableError:
                continue  # the next `look` says what is wrong
            if found != known:
                self._on_looked()
                self.wake()
