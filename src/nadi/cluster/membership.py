"""Announces this server to the others, and observes them.

Two tasks run side by side. One sets the server's own entry in the registry each BEAT, whether or not the last attempt
has ended; each attempt times out after DEAD. The other lists all entries each BEAT, and whenever a server's silence
reaches DEAD, and draws conclusions (`membership_view.py`).

The lease says whether this server may answer reads: not once another server could have its containers. Each successful
beat extends it to LEASE after the beat was *sent*; a beat of unknown outcome doesn't extend it. Other servers declare a
server dead when its entry has been the same for DEAD, from the end of the poll that showed it first to the start of one
that still shows it. Suppose the last version they saw was sent at t. That last poll began at t + DEAD or later, and no
later beat had taken effect by then; so a later beat succeeds after t + DEAD, when the lease from t has expired, as long
as clocks that differ by a fifth or so don't stretch LEASE beyond DEAD (`MembershipPace`).

So **a beat alone doesn't revive an expired lease**: another server may be about to claim the containers. Each unbroken
run of beats is a `term`. The next term is valid once the owner of the containers has rewritten the record of each, by
compare-and-set, since the term began (`affirm`). An earlier claim replaces the record's earlier version, so one of the
two fails. In the first term there is nothing to affirm.

The clock includes time while the machine is suspended, and isn't comparable with another server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from nadi.cluster.membership_view import FOLDER, MembershipPace, MembershipView, PeerServer, ServerMember, encode
from nadi.cluster.placement import Holding, ServerView, View
from nadi.errors import UnavailableError
from nadi.limits import CLUSTER_CALL_S, CLUSTER_CALLS_AT_ONCE, CLUSTER_LEAVE_TRIES
from nadi.object_log.engine import Registry
from nadi.runtime import REAL, Runtime
from nadi.throttled_log import ProblemLog

T = TypeVar("T")
log = logging.getLogger(__name__)


class Load(NamedTuple):
    containers: int = 0
    bytes_per_s: float = 0.0


class Membership:
    """Membership of this server in its cluster.

    me: this server's entry; counter, nonce and load are filled in with each beat. load: returns the server's load,
    called with each beat. on_change: called when a server came, went, or began to drain, and when a term of the lease
    began. Neither callback may fail.
    """

    def __init__(
        self,
        registry: Registry,
        me: ServerMember,
        *,
        runtime: Runtime = REAL,
        pace: MembershipPace | None = None,
        load: Callable[[], Load] = Load,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry, self._me, self._runtime, self._load = registry, me, runtime, load
        self._pace = pace or MembershipPace()
        self._on_change = on_change
        self._view = MembershipView(me.id, self._pace)
        self._lease = ServerLease(runtime, self._pace.lease_s)
        self._problems = ProblemLog(log, "%s; retrying")
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._beats: dict[asyncio.Task[None], None] = {}
        self._since = -math.inf  # when this server joined, or began to drain
        self.lease_is_valid = self._lease.is_valid

    def start(self) -> None:
        """Start beating and polling. The server has joined as soon as its `term` is 1."""
        self._spawn(self._run_beats(), self._tasks)
        self._spawn(self._run_polls(), self._tasks)

    def drain(self) -> None:
        """Announce at once that this server stops accepting containers."""
        self._me, self._since = replace(self._me, is_draining=True), self._runtime.monotonic()
        self._spawn(self._beat(), self._beats)
        self._on_change()

    async def leave(self) -> None:
        """Stop, and remove the entry, so that the others don't have to wait for this server's death. No reads are
        answered any more. Returns even if the registry can't be reached; the others then notice by timeout."""
        self._lease.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._beats:  # a beat that arrives after the removal would restore the entry
            await asyncio.wait(self._beats, timeout=self._pace.dead_s)
        for _ in range(CLUSTER_LEAVE_TRIES):
            try:
                await self._in_time(self._registry.delete(FOLDER + self._me.id))
            except Exception as error:
                log.warning("removing the entry of server %s from the registry failed: %s", self._me.id, error)
            else:
                return

    lease_is_valid: Callable[[], bool]
    """Return whether this server may answer reads: no other server can have declared it dead yet. One comparison."""

    @property
    def term(self) -> int:
        """Number of times the lease has begun: 0 until this server has joined, one more after each expiry. From the
        second term on, reads need `affirm` first."""
        return self._lease.term

    def affirm(self, term: int) -> None:
        """Allow reads in that term. The caller has set the record of each of this server's containers by
        compare-and-set, with it as the owner, in calls that began after the term did.

        Until the next term, this server may also read from a container that it claims by a call that began in this term
        and was answered.
        """
        self._lease.affirm(term)

    @property
    def beat_s(self) -> float:
        return self._pace.beat_s

    @property
    def members(self) -> dict[str, PeerServer]:
        """Return all servers that have an entry or were passed to `name`, dead ones too; this server once it has
        joined."""
        me, now = self._me, self._runtime.monotonic()
        mine = {me.id: PeerServer(me.id, me, True, self._since, now)} if self.term else {}
        return mine | self._view.peers()

    def has_takers(self) -> bool:
        peers = self._view.peers().values()
        return any(peer.is_alive and peer.member is not None and not peer.member.is_draining for peer in peers)

    @property
    def stable_since(self) -> float:
        """Return when a server last came, went or began to drain, by the monotonic clock; -inf if none ever did."""
        return max(self._view.stable_since, self._since)

    def name(self, owners: Collection[str]) -> None:
        """Set the servers named in the containers' records, so that their liveness is tracked."""
        self._view.name(owners)

    async def is_dead(self, server: str) -> bool:
        """Return whether a server that counts as dead is still silent, by asking the registry again. Call it between
        reading a container's record and claiming it, because lists may be stale. UnavailableError: the registry doesn't
        respond."""
        if not self._view.is_dead(server):
            return False
        changes = self._view.changes
        await self._query(server)
        self._notify(changes)
        return self._view.is_dead(server)

    def view(self, holdings: Mapping[int, Holding], containers: int) -> View:
        now = self._runtime.monotonic()
        mine = {self._me.id: ServerView(self._since, True, self._me.is_draining)} if self.term else {}
        return View(
            me=self._me.id,
            at=now,
            servers=mine | self._view.servers(),
            holdings=holdings,
            containers=containers,
            polled_at=self._view.polled_at,
            is_current=self._view.is_current(now),
            stable_since=self.stable_since,
        )

    async def _run_beats(self) -> None:
        due = self._runtime.monotonic()
        while True:
            self._spawn(self._beat(), self._beats)
            due = max(due + self._pace.beat_s, self._runtime.monotonic())
            await self._runtime.sleep(due - self._runtime.monotonic())

    async def _beat(self) -> None:
        """Beat. A beat that fails early is retried once before the next, so that the lease survives it."""
        began, half_s = self._runtime.monotonic(), self._pace.beat_s / 2
        if not await self._try_to_beat() and self._runtime.monotonic() < began + half_s:
            await self._runtime.sleep(half_s)
            await self._try_to_beat()

    async def _try_to_beat(self) -> bool:
        containers, bytes_per_s = self._load()
        self._me = replace(
            self._me,
            counter=self._me.counter + 1,
            nonce=self._runtime.unique(),
            containers=containers,
            bytes_per_s=bytes_per_s,
        )
        sent = self._runtime.boottime()
        has_entry = False
        with self._problems.about("setting this server's entry in the registry failed"):
            beat = self._registry.put(FOLDER + self._me.id, encode(self._me), ends_with_process=True)
            await self._in_time(beat, self._pace.dead_s)
            has_entry = True
            if self._lease.extend(sent):
                if self.term == 1:
                    self._since = self._runtime.monotonic()
                else:
                    message = "the lease of server %s had expired: it answers reads again once its records are renewed"
                    log.warning(message, self._me.id)
                self._on_change()
        return has_entry

    async def _run_polls(self) -> None:
        clock, due = self._runtime.monotonic, self._runtime.monotonic()
        while True:
            changes = self._view.changes
            if clock() >= due:
                due = max(due + self._pace.beat_s, clock())
                if not await self._poll():  # a single lost call isn't evidence against the registry
                    await self._runtime.sleep(self._pace.beat_s / 2)
                    if not await self._poll():
                        self._view.failed()
            asked = clock()
            await self._query_all(self._view.queries(asked))
            with self._problems.about("deleting a dead server's entry from the registry failed"):
                for server in self._view.obsolete(clock())[:CLUSTER_CALLS_AT_ONCE]:
                    await self._in_time(self._registry.delete(FOLDER + server))
                    self._view.deleted(server)
            self._view.forget()
            self._notify(changes)
            doubt = self._view.next_doubt()  # may have passed meanwhile; earlier ones were queried
            await self._runtime.sleep(max(0.0, min(due, doubt if doubt > asked else due) - clock()))

    async def _poll(self) -> bool:
        began, is_listed = self._runtime.monotonic(), False
        with self._problems.about("listing the servers in the registry failed"):
            entries = await self._in_time(self._registry.list(FOLDER))
            is_listed = True
            versions = {name.removeprefix(FOLDER): version for name, version in entries.items()}
            self._view.listed(versions, began, self._runtime.monotonic())
        return is_listed

    async def _query_all(self, servers: Collection[str]) -> None:
        """Query a few servers at a time, within DEAD in total; the rest is queried again next time."""
        waiting = iter(servers)

        async def query_some() -> None:
            for server in waiting:
                with self._problems.about("reading a server's entry from the registry failed"):
                    await self._query(server)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.dead_s), asyncio.TaskGroup() as group:
                for _ in range(min(CLUSTER_CALLS_AT_ONCE, len(servers))):
                    group.create_task(query_some())

    async def _query(self, server: str) -> None:
        asked = self._runtime.monotonic()
        entry = await self._in_time(self._registry.get(FOLDER + server))
        self._view.entry_read(server, entry, asked, self._runtime.monotonic())

    def _notify(self, changes: int) -> None:
        if self._view.changes != changes:
            self._on_change()

    async def _in_time(self, call: Awaitable[T], limit_s: float = CLUSTER_CALL_S) -> T:
        """Await the call. UnavailableError: no answer within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            raise UnavailableError(f"the registry didn't respond within {limit_s:g} s") from None

    def _spawn(self, work: Coroutine[None, None, None], tasks: dict[asyncio.Task[None], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks[task] = None
        task.add_done_callback(tasks.pop)


class ServerLease:
    def __init__(self, runtime: Runtime, length_s: float) -> None:
        self._now = runtime.boottime
        self._length_s = length_s
        self._term_ends = -math.inf  # end of the term
        self._valid_until = -math.inf
        self.term = 0  # 0 until the first beat has succeeded
        self.affirmed = 1  # the newest term in which reads may be answered

    def is_valid(self) -> bool:
        return self._now() < self._valid_until

    def extend(self, sent: float) -> bool:
        """Extend the lease by a successful beat, sent at that boot-time clock. Return whether it began a new term."""
        now, ends = self._now(), sent + self._length_s
        if ends <= now:  # the beat took too long to be useful
            return False
        is_new = now >= self._term_ends
        if is_new:
            self.term += 1
        self._term_ends = max(ends, self._term_ends)
        self._settle()
        return is_new

    def affirm(self, term: int) -> None:
        """Allow reads in that term: all records of this server's containers were set since it began."""
        assert term <= self.term, f"term {term} hasn't begun: this is {self.term}"
        self.affirmed = max(self.affirmed, term)
        self._settle()

    def end(self) -> None:
        """End the lease for good: later beats don't extend it."""
        self._length_s = self._term_ends = self._valid_until = -math.inf

    def _settle(self) -> None:
        self._valid_until = self._term_ends if self.affirmed == self.term else -math.inf
