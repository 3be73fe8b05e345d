"""This server's place among the others: it says that it is there, and sees who else is.

Two tasks run side by side. One sets the server's own entry in the registry each BEAT, whether or not the last try has
ended; each try times out after DEAD. The other lists all entries each BEAT, and whenever a server's silence reaches
DEAD, and draws conclusions (`membership_view.py`).

The lease says whether this server may answer reads: it may not once another server could have its containers. Each beat
that succeeds extends it to LEASE after the beat was *sent*; one whose outcome isn't known extends nothing. Others take
a server for dead when its entry has been the same for DEAD, from the end of the look that showed it first to the start
of one that shows it still. Say the last version they saw was sent at t. That look began at t + DEAD or later, and no
later beat had taken effect by then; so a later beat succeeds after t + DEAD, when the lease of the one at t is over, as
long as clocks that differ by a fifth or so don't make LEASE longer than DEAD (`MembershipPace`).

So **a lease that has ended doesn't begin again by a beat alone**: another server may be about to claim the containers.
Each unbroken stretch of beats is a `term`. The next term is valid once the owner of the containers has set the record
of each again, by compare-and-set, since the term began (`affirm`). An earlier claim replaces the record's earlier
version, so one of the two fails. In the first term there is nothing to affirm.

The clock goes on while the machine is suspended, and can't be compared with another server's.
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
from nadi.throttled_log import Complaints

T = TypeVar("T")
log = logging.getLogger(__name__)


class Load(NamedTuple):
    containers: int = 0
    bytes_per_s: float = 0.0


class Membership:
    """me: what the server says of itself; its counter, nonce and load are filled in with each beat. load: what it has
    to do, asked with each beat. on_change: called when somebody came, went, or began to drain, and when a term of the
    lease began. Neither may fail."""

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
        self._complaints = Complaints(log, "%s, and it tries again")
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._beats: dict[asyncio.Task[None], None] = {}
        self._since = -math.inf  # when this server joined, or began to drain
        self.lease_is_valid = self._lease.is_valid

    def start(self) -> None:
        """Begin to beat and to look. The server has joined as soon as its `term` is 1."""
        self._spawn(self._beat_for_ever(), self._tasks)
        self._spawn(self._look_for_ever(), self._tasks)

    def drain(self) -> None:
        """Tell all, at once, that this server is to have no containers any more."""
        self._me, self._since = replace(self._me, is_draining=True), self._runtime.monotonic()
        self._spawn(self._beat(), self._beats)
        self._on_change()

    async def leave(self) -> None:
        """Stop, and remove the entry, so that nobody waits for this server's death. It answers no reads any more.
        Returns in the end, even if the registry can't be reached; then the others notice by themselves."""
        self._lease.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._beats:  # one that arrives after the removal would bring the entry back
            await asyncio.wait(self._beats, timeout=self._pace.dead_s)
        for _ in range(CLUSTER_LEAVE_TRIES):
            try:
                await self._in_time(self._registry.delete(FOLDER + self._me.id))
            except Exception as error:
                log.warning("server %s couldn't remove its entry from the registry: %s", self._me.id, error)
            else:
                return

    lease_is_valid: Callable[[], bool]
    """Whether this server may answer reads: for so long after it sent its last beat that succeeded, nobody takes it for
    dead. One comparison."""

    @property
    def term(self) -> int:
        """How often the lease has begun: 0 until this server has joined; one more each time that it had ended. From the
        second on, reads aren't answered in a term before `affirm`."""
        return self._lease.term

    def affirm(self, term: int) -> None:
        """The record of each of this server's containers has been set by compare-and-set, by a call that began after
        the term did, and names it as the owner: it may answer reads again. From then on until the next term, it may
        read from a container that it claims if that call began in this term, and was answered."""
        self._lease.affirm(term)

    @property
    def beat_s(self) -> float:
        return self._pace.beat_s

    @property
    def members(self) -> dict[str, PeerServer]:
        """All that have an entry, and those that `name` asked for, dead ones too; this one once it has joined."""
        me, now = self._me, self._runtime.monotonic()
        mine = {me.id: PeerServer(me.id, me, True, self._since, now)} if self.term else {}
        return mine | self._view.peers()

    def has_takers(self) -> bool:
        peers = self._view.peers().values()
        return any(one.is_alive and one.member is not None and not one.member.is_draining for one in peers)

    @property
    def stable_since(self) -> float:
        """When somebody last came, went or began to drain, by the monotonic clock; in the past, if nobody ever did."""
        return max(self._view.stable_since, self._since)

    def name(self, owners: Collection[str]) -> None:
        """Tell whom the containers' records name, so that it is known of all of them whether they are alive."""
        self._view.name(owners)

    async def is_dead(self, server: str) -> bool:
        """Ask the registry once more whether a server that counts as dead is still as silent as it was. To be asked
        between reading a container's record and claiming it: lists may be stale. UnavailableError: it can't answer."""
        if not self._view.is_dead(server):
            return False
        changes = self._view.changes
        await self._ask(server)
        self._tell(changes)
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
            looked_at=self._view.looked_at,
            is_current=self._view.is_current(now),
            stable_since=self.stable_since,
        )

    async def _beat_for_ever(self) -> None:
        due = self._runtime.monotonic()
        while True:
            self._spawn(self._beat(), self._beats)
            due = max(due + self._pace.beat_s, self._runtime.monotonic())
            await self._runtime.sleep(due - self._runtime.monotonic())

    async def _beat(self) -> None:
        """One that fails soon is tried once more before the next, so that the lease survives it."""
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
        with self._complaints.about("the registry doesn't say that it has this server's entry"):
            await self._in_time(self._registry.put(FOLDER + self._me.id, encode(self._me)), self._pace.dead_s)
            has_entry = True
            if self._lease.extend(sent):
                if self.term == 1:
                    self._since = self._runtime.monotonic()
                else:
                    what = "server %s was silent for too long: it reads again when it has renewed its records"
                    log.warning(what, self._me.id)
                self._on_change()
        return has_entry

    async def _look_for_ever(self) -> None:
        clock, due = self._runtime.monotonic, self._runtime.monotonic()
        while True:
            changes = self._view.changes
            if clock() >= due:
                due = max(due + self._pace.beat_s, clock())
                if not await self._look():  # one lost call says nothing of the registry
                    await self._runtime.sleep(self._pace.beat_s / 2)
                    if not await self._look():
                        self._view.failed()
            asked = clock()
            await self._ask_all(self._view.questions(asked))
            with self._complaints.about("the registry doesn't delete the entry of a dead server"):
                for server in self._view.obsolete(clock())[:CLUSTER_CALLS_AT_ONCE]:
                    await self._in_time(self._registry.delete(FOLDER + server))
                    self._view.deleted(server)
            self._view.forget()
            self._tell(changes)
            doubt = self._view.next_doubt()  # may have come meanwhile; an earlier one was asked about
            await self._runtime.sleep(max(0.0, min(due, doubt if doubt > asked else due) - clock()))

    async def _look(self) -> bool:
        began, is_listed = self._runtime.monotonic(), False
        with self._complaints.about("the registry doesn't say which servers there are"):
            found = await self._in_time(self._registry.list(FOLDER))
            is_listed = True
            versions = {name.removeprefix(FOLDER): version for name, version in found.items()}
            self._view.listed(versions, began, self._runtime.monotonic())
        return is_listed

    async def _ask_all(self, servers: Collection[str]) -> None:
        """A few at a time, and no longer than it takes to be dead: what isn't answered then is asked again."""
        waiting = iter(servers)

        async def ask_some() -> None:
            for server in waiting:
                with self._complaints.about("the registry doesn't tell of a server"):
                    await self._ask(server)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.dead_s), asyncio.TaskGroup() as group:
                for _ in range(min(CLUSTER_CALLS_AT_ONCE, len(servers))):
                    group.create_task(ask_some())

    async def _ask(self, server: str) -> None:
        asked = self._runtime.monotonic()
        entry = await self._in_time(self._registry.get(FOLDER + server))
        self._view.found(server, entry, asked, self._runtime.monotonic())

    def _tell(self, changes: int) -> None:
        if self._view.changes != changes:
            self._on_change()

    async def _in_time(self, call: Awaitable[T], limit_s: float = CLUSTER_CALL_S) -> T:
        """UnavailableError if there is no answer by then."""
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            raise UnavailableError(f"the registry hasn't answered within {limit_s:g} s") from None

    def _spawn(self, work: Coroutine[None, None, None], tasks: dict[asyncio.Task[None], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks[task] = None
        task.add_done_callback(tasks.pop)


class ServerLease:
    def __init__(self, runtime: Runtime, length_s: float) -> None:
        self._now = runtime.boottime
        self._length_s = length_s
        self._ends = -math.inf  # of the term
        self._valid_until = -math.inf
        self.term = 0  # 0 until the first beat has succeeded
        self.affirmed = 1  # the newest term that reads may be answered in

    def is_valid(self) -> bool:
        return self._now() < self._valid_until

    def extend(self, sent: float) -> bool:
        """A beat that was sent then, by the boot-time clock, has succeeded. True: it has begun a new term."""
        now, ends = self._now(), sent + self._length_s
        if ends <= now:  # it took too long to be of use
            return False
        is_new = now >= self._ends
        if is_new:
            self.term += 1
        self._ends = max(ends, self._ends)
        self._settle()
        return is_new

    def affirm(self, term: int) -> None:
        """All records of one's containers were set since that term began. Another term isn't meant by it."""
        assert term <= self.term, f"term {term} hasn't begun: this is {self.term}"
        self.affirmed = max(self.affirmed, term)
        self._settle()

    def end(self) -> None:
        """For good: no beat extends it any more."""
        self._length_s = self._ends = self._valid_until = -math.inf

    def _settle(self) -> None:
        self._valid_until = self._ends if self.affirmed == self.term else -math.inf
