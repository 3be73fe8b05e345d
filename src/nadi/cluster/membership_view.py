"""One server's view of the others, concluded from its polls of the registry. Pure: no waiting, no calls.

BEAT, LEASE and DEAD are the times of `MembershipPace`.

A poll lists the folder `servers/`: the version of each entry, which every beat changes. A server is dead when its
version has stayed the same for DEAD by the observer's monotonic clock, from the end of the poll that showed it first to
the start of a query that still returns it. Lists may be stale, so the last query is a `get` of the entry itself, even
if the list lacks the entry. A server that removes its own entry is dead at once.

While polls fail, no server is declared dead. Afterwards, or after a pause of this server, each server gets its full
time again: the cause may have kept them from beating too. The same holds for a server seen for the first time. A dead
server becomes alive again once a newer value is read: it was paused, or cut off.

Values are read when a server is new, and then every few seconds: reading all of them each second would cost n * n
calls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from nadi import limits
from nadi.cluster.placement import ServerView
from nadi.errors import InvalidArgumentError
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.engine import VersionedValue


@dataclass(frozen=True, slots=True)
class PeerServer:
    """Last known state of another server.

    member: None while its value hasn't been read, or can't be decoded. since: when it was first seen alive, or dead, by
    this server's monotonic clock. changed_at: when its entry was last seen to change, by the same clock.
    """

    id: str
    member: ServerMember | None
    is_alive: bool
    since: float
    changed_at: float


class _Watched:
    __slots__ = ("changed_at", "is_alive", "is_listed", "member", "read", "since", "since_draining", "version")

    def __init__(self, version: str | None, now: float) -> None:
        self.version = version  # None: it has no entry
        self.changed_at = now  # the end of the poll that showed this version first
        self.is_listed = version is not None
        self.is_alive = version is not None
        self.since = self.since_draining = now
        self.member: ServerMember | None = None
        self.read = -math.inf  # start of the last successful read of its value


class MembershipView:
    """View of the server `me`, which never observes itself."""

    def __init__(self, me: str, pace: MembershipPace) -> None:
        self._me, self._pace = me, pace
        self._watched: dict[str, _Watched] = {}
        self._named: frozenset[str] = frozenset()
        self._is_blind = False  # the last poll failed
        self._polled: float | None = None  # the end of the last successful poll
        self.polled_at = -math.inf  # its start
        self.stable_since = -math.inf  # the last change of live or draining servers
        self.changes = 0  # number of such changes

    def name(self, owners: Collection[str]) -> None:
        """Set the servers named in records. They are looked up if they have no entry, and remembered as long as they
        are named."""
        self._named = frozenset(owners) - {self._me}

    def queries(self, now: float) -> list[str]:
        """Return the servers whose entries must be read, most urgent first: unknown ones, those that may be gone, dead
        or alive again, and every other server once in a while."""
        unknown = [server for server in sorted(self._named) if server not in self._watched]
        doubtful, old = [], []
        for server, watched in self._watched.items():
            is_late = not watched.is_listed or now >= watched.changed_at + self._pace.dead_s
            if is_late if watched.is_alive else watched.is_listed:
                doubtful.append(server)
            elif watched.is_alive and now >= watched.read + limits.CLUSTER_VALUE_S:
                old.append((watched.read, server))
        return [*unknown, *doubtful, *(server for _, server in sorted(old))]

    def next_doubt(self) -> float:
        """Return when a server will have been silent long enough to be queried, unless it beats first."""
        silent = [watched.changed_at for watched in self._watched.values() if watched.is_alive]
        return math.inf if self._is_blind or not silent else min(silent) + self._pace.dead_s

    def failed(self) -> None:
        self._is_blind = True

    def listed(self, versions: Mapping[str, str], began: float, ended: float) -> None:
        if self._is_blind or (self._polled is not None and began > self._polled + self._pace.dead_s):
            for watched in self._watched.values():
                watched.changed_at = ended
        self._is_blind, self._polled, self.polled_at = False, ended, began
        for server, watched in self._watched.items():
            version = versions.get(server)
            if watched.is_alive:
                watched.is_listed = version is not None
                if version is not None and version != watched.version:
                    watched.version, watched.changed_at = version, ended
            else:
                watched.is_listed = version is not None and version != watched.version
        for server, version in versions.items():
            if server not in self._watched and server != self._me:
                self._watched[server] = _Watched(version, ended)
                self._changed(ended)

    def entry_read(self, server: str, entry: VersionedValue | None, sent_at: float, answered: float) -> None:
        """Conclude from the answer to a query about one server. sent_at: when the query was sent."""
        watched = self._watched.get(server)
        if watched is None:  # known only from a record
            watched = self._watched[server] = _Watched(entry.version if entry else None, answered)
            if entry is not None:
                self._changed(answered)
        if entry is None:
            watched.version, watched.is_listed = None, False
            self._set_alive(watched, False, answered)
            return
        value, version = entry
        watched.read = sent_at
        is_newer = self._take(watched, decode(value), answered)
        if not watched.is_alive:
            is_alive = version != watched.version and is_newer
            watched.version, watched.is_listed = version, False
            if is_alive:
                watched.changed_at, watched.is_listed = answered, True
                self._set_alive(watched, True, answered)
        elif version != watched.version:
            watched.version, watched.changed_at, watched.is_listed = version, answered, True
        else:
            watched.is_listed = True
            if not self._is_blind and sent_at >= watched.changed_at + self._pace.dead_s:
                watched.is_listed = False
                self._set_alive(watched, False, answered)

    def _take(self, watched: _Watched, member: ServerMember | None, now: float) -> bool:
        """Return whether the value is newer than the known one; a late beat may replace a newer one."""
        known = watched.member
        if member is None or (known is not None and member.counter <= known.counter):
            return member is None
        if (known is not None and known.is_draining) != member.is_draining or known is None:
            watched.since_draining = now
            self._changed(now)
        watched.member = member
        return True

    def _set_alive(self, watched: _Watched, is_alive: bool, now: float) -> None:
        if watched.is_alive != is_alive:
            watched.is_alive, watched.since = is_alive, now
            self._changed(now)

    def _changed(self, now: float) -> None:
        self.stable_since = now
        self.changes += 1

    def peers(self) -> dict[str, PeerServer]:
        return {
            server: PeerServer(server, watched.member, watched.is_alive, watched.since, watched.changed_at)
            for server, watched in self._watched.items()
        }

    def servers(self) -> dict[str, ServerView]:
        """Return the servers for `placement`. One whose value can't be decoded gets no containers. A dead one whose new
        entry hasn't been read yet is left out: it may be alive again."""
        return {
            server: ServerView(
                max(watched.since, watched.since_draining) if watched.is_alive else watched.since,
                watched.is_alive,
                watched.member is None or watched.member.is_draining,
            )
            for server, watched in self._watched.items()
            if watched.is_alive or not watched.is_listed
        }

    def is_dead(self, server: str) -> bool:
        watched = self._watched.get(server)
        return watched is not None and not watched.is_alive and not watched.is_listed

    def is_current(self, now: float) -> bool:
        return not self._is_blind and self._polled is not None and now < self._polled + self._pace.dead_s

    def obsolete(self, now: float) -> list[str]:
        """Return the servers whose entries should be deleted: those dead for a day, and the longest dead if there are
        many."""
        known = [(server, watched) for server, watched in self._watched.items() if watched.version is not None]
        dead = [(watched.since, server) for server, watched in known if not watched.is_alive]
        old = [server for since, server in dead if now >= since + limits.CLUSTER_FORGET_S]
        surplus = [server for _, server in heapq.nsmallest(len(dead) - limits.CLUSTER_DEAD_RETAINED, dead)]
        return list(dict.fromkeys([*old, *surplus]))

    def deleted(self, server: str) -> None:
        self._watched[server].version = None

    def forget(self) -> None:
        """Forget dead servers that have no entry and aren't named in any record."""
        for server, watched in list(self._watched.items()):
            if watched.version is None and not watched.is_alive and server not in self._named:
                del self._watched[server]


FOLDER = "servers/"


class ServerMember(msgspec.Struct, frozen=True, kw_only=True):
    """Entry `servers/<id>` of a server: a line of JSON with its checksum. Fields added by later versions are ignored.

    id: new with each start of the server. store, controller, rest: addresses for clients, "host:port". version: of
    nadi. started_ms: since 1970, by its wall clock, for people. counter: number of its beats, from 1; the higher
    counter is the newer value. nonce: makes each value unique. is_draining: it hands over all its containers.
    containers, bytes_per_s: its number of containers and write load.
    """

    id: str
    store: str
    controller: str
    rest: str
    version: str
    started_ms: int
    counter: int = 0
    nonce: str = ""
    is_draining: bool = False
    containers: int = 0
    bytes_per_s: float = 0.0


def encode(member: ServerMember) -> bytes:
    return line_of(msgspec.json.encode(member))


def decode(value: bytes) -> ServerMember | None:
    """Return the entry; None if it is damaged, or was written by a version of nadi whose format is unknown."""
    try:
        payload = value_of(value)
        return None if payload is None else msgspec.json.decode(payload, type=ServerMember)
    except msgspec.MsgspecError:
        return None


CLOCKS_DIFFER_TIMES = 1.25
"""How much faster one clock may run than another: 10 % fast and 10 % slow differ by 1.1 / 0.9."""


@dataclass(frozen=True, slots=True)
class MembershipPace:
    """Time limits in seconds, the same on all servers of a cluster: a server's lease must end before others declare it
    dead. InvalidArgumentError: the limits don't guarantee that."""

    beat_s: float = limits.CLUSTER_BEAT_S
    lease_s: float = limits.CLUSTER_LEASE_S
    dead_s: float = limits.CLUSTER_DEAD_S

    def __post_init__(self) -> None:
        if self.lease_s < 2 * self.beat_s:
            raise InvalidArgumentError(
                f"a lease of {self.lease_s:g} s ends between two beats of {self.beat_s:g} s: use at least two beats"
            )
        if self.dead_s < CLOCKS_DIFFER_TIMES * self.lease_s:
            raise InvalidArgumentError(
                f"a server declared dead after {self.dead_s:g} s may still have its lease of {self.lease_s:g} s, "
                f"because clocks differ: use at least {CLOCKS_DIFFER_TIMES * self.lease_s:g} s"
            )


GCS_PACE = MembershipPace(beat_s=2.0, lease_s=4.0, dead_s=6.0)
"""For Google Cloud Storage, which accepts about one write per second to an object."""
