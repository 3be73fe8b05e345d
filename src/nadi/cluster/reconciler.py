"""Reconciles a server's containers with its assignment: claims, hands over, and drops containers that others have
claimed.

Each second, more often while a dead server's containers are free, and whenever a server comes or goes, it reads the
records that have changed and carries out `decisions`. A handover is announced first, so that the target and all servers
that route clients there poll closely. The owner then brings its snapshot up to date, which the target fetches, stops,
and releases the container, and the target claims it at once. Several handovers are prepared concurrently; closing and
opening go one by one.
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
from nadi.cluster.storage import ClusterStorage
from nadi.errors import ClosedError, FencedError, NadiError, UnavailableError
from nadi.observe.logs import about
from nadi.runtime import Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.records import ContainerRecords, VersionedRecord
from nadi.throttled_log import ProblemLog

log = logging.getLogger(__name__)
Moved = Callable[[int], Awaitable[None]]


class Reconciler:
    """Reconciler of one server.

    me: its id. storage_of: makes a container's storage for a claim of the record version that was read. on_acquired:
    awaited with a container's number once it is open here; on_leaving: before it is handed over, or when it was lost.
    on_polled: called after records and servers were polled. `moves` counts completed moves.
    """

    def __init__(
        self,
        me: str,
        store: SegmentStore,
        membership: Membership,
        records: ContainerRecords,
        watch: RecordWatch,
        parts_of: Callable[[int, VersionedRecord], ClusterStorage],
        count: int,
        runtime: Runtime,
        on_acquired: Moved,
        on_leaving: Moved,
        on_polled: Callable[[], None],
    ) -> None:
        self.me = me
        self._store, self._membership, self._records, self._watch = store, membership, records, watch
        self._storage_of, self._count, self._runtime = parts_of, count, runtime
        self._on_acquired, self._on_leaving, self._on_polled = on_acquired, on_leaving, on_polled
        self._parts: dict[int, ClusterStorage] = {}
        self._announced: dict[int, ClusterStorage] = {}  # of containers announced to this server
        self._moving: dict[int, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Future[None], None] = {}
        self._takes = asyncio.Semaphore(limits.CLUSTER_TAKES_AT_ONCE)
        self._closing = asyncio.Lock()  # one at a time, to keep each container's downtime short
        self._failures: dict[int, int] = {}  # consecutive failed takes of a container
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._close_watch: asyncio.Task[None] | None = None
        self._affirmed = 1
        self._terms: dict[int, int] = {}  # lease term in which this server last set the container's record
        self._counted: dict[int, int] = {}  # bytes logged by each container at the last `load`
        self._counted_at = runtime.monotonic()
        self._stopping = False
        self._hasty_until = -math.inf
        self.moves = Moves()
        self._problems = ProblemLog(log, "%s; retrying")

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="reconciler")

    def wake(self) -> None:
        self._wake.set()

    async def stop(self) -> None:
        """Stop deciding, and wait for moves under way; containers stay here. Cancelling it cancels the moves."""
        self._stopping = True
        for task in (self._task, self._close_watch):
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
        for number in list(self._announced):
            await self._announced.pop(number).discard()

    async def drained(self) -> None:
        """Wait, after `Membership.drain`, until this server has no containers, no other server accepts any, or the
        store can't be reached: no container is released then."""
        while self._membership.lease_is_valid() and (self._moving or (self._parts and self._membership.has_takers())):
            await self._runtime.sleep(limits.CLUSTER_HANDOVER_POLL_S)

    async def give_back(self) -> None:
        """Close and release all containers on a clean stop, after `stop`, so that others needn't wait for this server's
        death."""
        await asyncio.gather(*(self._release_on_stop(number) for number in list(self._parts)))

    async def _release_on_stop(self, number: int) -> None:
        if number not in self._parts:  # lost since
            return
        order = self._membership.view({}, self._count).order()[number]
        target = next((server for server in order if server != self.me), "")
        try:
            await self._store.bring_up_to_date(number)
            await self._close(number, target)
        except NadiError as error:
            log.info("releasing container %d failed, another server takes it over later: %s", number, error)

    def load(self) -> Load:
        now, counted = self._runtime.monotonic(), self._counted
        logged = {container.number: container.checkpoints.logged_bytes for container in self._store.containers}
        logged_bytes = sum(max(0, size - counted.get(number, size)) for number, size in logged.items())
        elapsed_s, self._counted_at, self._counted = now - self._counted_at, now, logged
        return Load(len(self._parts), logged_bytes / elapsed_s if elapsed_s > 0 else 0.0)

    def rebalance(self) -> None:
        """Hand over misplaced containers without waiting for stable membership, for as long as that wait would have
        lasted."""
        self._hasty_until = self._runtime.monotonic() + limits.CLUSTER_STABLE_S
        self.wake()

    def lost(self, number: int) -> None:
        """Handle the loss of a container that another server has claimed; the store has dropped it already."""
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
                self._problems.report("reading the containers' records failed", error)
            except Exception:
                log.exception("a step of the reconciler failed; continuing")
            else:
                self._problems.settled("reading the containers' records failed")
            try:
                pause_s = limits.CLUSTER_ORPHAN_POLL_S if self._has_orphans() else limits.CLUSTER_BEAT_S
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _has_orphans(self) -> bool:
        """Return whether containers of a server that has just died may be claimed at any moment, while clients ask for
        them. Stops after a while, because they may be impossible to open."""
        members, since = self._membership.members, self._runtime.monotonic() - limits.CLUSTER_ARRIVAL_S
        records = (seen.stored.record for seen in self._watch.seen.values())
        owners = {record.owner for record in records if not record.released} & members.keys()
        return any(not members[owner].is_alive and members[owner].since > since for owner in owners)

    async def _step(self) -> None:
        term = self._membership.term
        await self._watch.poll()
        is_watching_closely = self._close_watch is not None and not self._close_watch.done()
        if not is_watching_closely and any(seen.stored.record.target for seen in self._watch.seen.values()):
            self._close_watch = asyncio.create_task(self._follow_announced(), name="reconciler-close-watch")
        if term != self._affirmed or any(self._terms.get(number) != term for number in self._parts):
            await self._affirm(term)
        self._on_polled()
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
        for number in records:
            if number not in self._moving and number not in self._parts:
                await self._prepare(number, self._watch.seen[number].stored)
        for number, record in records.items():  # claimed, but opening failed
            is_mine = record.owner == self.me and not record.released
            if is_mine and number not in self._parts and number not in self._moving:
                self._move(number, self._take(number, self._watch.seen[number].stored))

    def may_answer(self, number: int) -> bool:
        """Return whether reads of the container may be answered: see `membership`."""
        membership = self._membership
        return membership.lease_is_valid() and self._terms.get(number) == membership.term

    def epoch(self, number: int) -> int:
        """Return the epoch in which this server owns the container; 0 if it doesn't."""
        parts = self._parts.get(number)
        return parts.epoch if parts is not None else 0

    def may_command(self, number: int, epoch: int) -> bool:
        """Return whether the controller that started in that epoch of the container with its records may give
        commands."""
        return epoch > 0 and self.epoch(number) == epoch and self.may_answer(number)

    async def _affirm(self, term: int) -> None:
        """Renew the records of all containers here after a silence in which others may have claimed them."""
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

    async def _prepare(self, number: int, seen: VersionedRecord) -> None:
        """Fetch the snapshot of a container that is announced to this server; discard it if another server gets it."""
        parts = self._announced.get(number)
        if seen.record.target != self.me:
            if parts is not None:
                await self._announced.pop(number).discard()
        elif not seen.record.released and (parts is None or parts.claimed.record.snapshot != seen.record.snapshot):
            parts = self._announced[number] = parts or self._storage_of(number, seen)
            self._move(number, self._fetch(parts, seen))

    async def _fetch(self, parts: ClusterStorage, seen: VersionedRecord) -> None:
        async with self._takes:
            try:
                await parts.fetch(seen)
            except (NadiError, OSError) as error:  # the opening tries again
                log.info("container %d: its snapshot can't be fetched yet: %s", parts.number, error)

    def _move(self, number: int, move: Coroutine[None, None, None]) -> None:
        if self._stopping:
            move.close()
            return

        async def moved() -> None:
            try:
                with about(container=number):
                    await move
            except (UnavailableError, TimeoutError) as error:  # the next step decides again
                self._problems.report(f"moving container {number} failed", error)
            except Exception:
                log.exception("moving container %d failed", number, extra={"container": number})
            else:
                self._problems.settled(f"moving container {number} failed")
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
            started, term = self._runtime.monotonic(), self._membership.term
            parts = self._announced.pop(number, None) or self._storage_of(number, seen)
            parts.claimed = seen
            try:
                await parts.prepare()
                self._terms[number] = term
                await self._store.take(parts)
            except FencedError as error:
                self.moves.fenced += 1
                log.info("container %d: %s", number, error)
                await self._watch.read(number)
                return
            except ClosedError:
                return
            except Exception as error:
                await self._handle_failed_take(number, parts, error)
                return
            finally:
                await parts.discard()
            self._failures.pop(number, None)
            self._parts[number] = parts
            if seen.record.released:
                self.moves.received += 1
            elif seen.record.owner:
                self.moves.taken_over += 1
            took_s = self._runtime.monotonic() - started
            log.info("container %d opened in epoch %d after %.2f s", number, parts.epoch, took_s)
            self._watch.note(number, parts.claimed)
        self._on_polled()
        await self._on_acquired(number)

    async def _handle_failed_take(self, number: int, parts: ClusterStorage, error: Exception) -> None:
        """Wait before the next try; after several failures release the container to another server, if there is one."""
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        unforeseen = None if isinstance(error, NadiError | OSError) else error
        log.warning("opening container %d failed (try %d): %s", number, failures, error, exc_info=unforeseen)
        await self._runtime.sleep(min(limits.CLUSTER_HANDOVER_POLL_S * 2**failures, limits.CLUSTER_RETAKE_S))
        order = self._membership.view({}, self._count).order()[number]
        others = [server for server in order if server != self.me]
        if failures % limits.CLUSTER_FAILED_TAKES == 0 and others and parts.epoch > 0:
            await self._records.release(number, parts.epoch, others[0])

    async def _hand_over(self, release: ReleaseContainer) -> None:
        number, parts = release.container, self._parts[release.container]
        began = self._runtime.monotonic()
        async with asyncio.timeout(limits.CLUSTER_HAND_OVER_S):
            await self._records.announce(number, parts.epoch, release.target)
            await self._watch.read(number)
            await self._runtime.sleep(limits.CLUSTER_ANNOUNCE_S)
            await self._store.bring_up_to_date(number)
        async with self._closing:
            await self._store.bring_up_to_date(number)  # again: each frame since then is an object to replay
            if self._parts.get(number) is not parts:  # claimed by another server meanwhile
                return
            closing = self._runtime.monotonic()
            await self._close(number, release.target)
        self.moves.handed_over += 1
        now = self._runtime.monotonic()
        message = "container %d handed over to server %s: closed for %.2f s, announced %.1f s before"
        log.info(message, number, release.target, now - closing, closing - began)

    async def _close(self, number: int, target: str) -> None:
        parts = self._parts[number]
        await self._on_leaving(number)
        self._parts.pop(number, None)
        await self._store.give_up(number)
        await self._records.release(number, parts.epoch, target)
        await self._watch.read(number)

    async def _follow_announced(self) -> None:
        """Poll the records of containers that are about to change hands."""
        while True:
            await self._runtime.sleep(limits.CLUSTER_HANDOVER_POLL_S)
            announced = [number for number, seen in self._watch.seen.items() if seen.stored.record.target]
            if not announced:
                return
            known = [self._watch.seen[number].stored for number in announced]
            try:
                current = await asyncio.gather(*map(self._watch.read, announced))
            except UnavailableError:
                continue  # the next step reports the error
            if current != known:
                self._on_polled()
                self.wake()
