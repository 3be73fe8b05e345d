"""Reports about a cluster, made of servers' entries and containers' records: as its store shows it to a program that is
none of its servers (`nadi cluster status`), and as one of its servers sees it (`Operator`, behind `/v1/cluster`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from nadi.cluster.container_map import RecordWatch, of_each
from nadi.cluster.membership import Membership
from nadi.cluster.membership_view import FOLDER, GCS_PACE, MembershipPace, ServerMember, decode
from nadi.cluster.reconciler import Keeper
from nadi.errors import ConflictError, InvalidArgumentError, StoreError
from nadi.limits import CLUSTER_BEAT_S, CLUSTER_LOGS_AT_ONCE, CLUSTER_RECORDS_AT_ONCE
from nadi.object_log.engine import LogEngine, OwnEngine, Registry
from nadi.object_log.identity import Cluster, OwnLog, check_its_log, find_cluster
from nadi.object_log.opening import log_name, open_engines, open_log
from nadi.object_log.outcomes import patiently
from nadi.object_log.urls import folder_of
from nadi.observe.cluster import ClusterReport, ContainerReport, DrainReport, ServerReport, SnapshotReport
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.chain import layout
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords

_LOOK_S = CLUSTER_BEAT_S / 2


@dataclass(frozen=True, slots=True)
class SharedStore:
    cluster: Cluster
    engine: LogEngine
    registry: Registry
    chunks: ChunkStore
    runtime: Runtime
    pace: MembershipPace


@asynccontextmanager
async def opened(url: str, options: dict[str, str], runtime: Runtime = REAL) -> AsyncIterator[SharedStore]:
    """Open the store of the cluster at that URL. StoreError: the store has no cluster, or refuses.
    InvalidArgumentError, UnavailableError: as `open_engines`."""
    folder = folder_of(url, **options)
    if folder is not None and not folder.is_dir():
        raise StoreError(f"there is no folder {folder}: correct the URL")
    engine, registry = await open_engines(url, runtime, **options)
    try:
        cluster = await find_cluster(engine, runtime)
        pace = GCS_PACE if url.startswith("gs:") else MembershipPace()
        yield SharedStore(cluster, engine, registry, ChunkStore.from_url(url, **options), runtime, pace)
    finally:
        await engine.close()


@asynccontextmanager
async def opened_log(shared: SharedStore, url: str, options: dict[str, str]) -> AsyncIterator[OwnEngine]:
    """The cluster's log, which isn't in its store, at that URL. InvalidArgumentError: its log has another name, or is
    in the store. StoreError: it isn't the one that the cluster has always had. UnavailableError: it gives no answer for
    a long while."""
    name, known = log_name(url, **options), shared.cluster.log
    if known is None or known.name != name:
        raise InvalidArgumentError(
            f"the log of this cluster is in {known.name if known is not None else 'its store'}, not in {name}: "
            + ("give that one with --log" if known is not None else "leave out --log")
        )
    engine = await open_log(url, shared.runtime, make=False, **options)
    try:
        await check_its_log(shared.cluster, OwnLog(name, engine), shared.runtime)
        yield engine
    finally:
        await engine.close()


async def look(store: SharedStore) -> ClusterReport:
    """The report; it takes some seconds to see who lives."""
    members = await _members(store)
    numbers = range(store.cluster.containers)
    records = dict(zip(numbers, await read_records(store), strict=True))

    async def bytes_of(number: int) -> int:
        """The sizes of the frames of a log; its seals aren't counted."""
        total = 0
        async for page in store.engine.listed(layout.folder_of(number)):
            total += sum(size for size in page.values() if size > layout.HEADER_BYTES)
        return total

    log_bytes = await of_each(bytes_of, numbers, CLUSTER_LOGS_AT_ONCE) if store.cluster.log is None else []
    ages = await of_each(lambda number: _snapshot_age_s(store, number, records[number]), numbers, CLUSTER_LOGS_AT_ONCE)
    known = {number: age for number, age in enumerate(ages) if age is not None}
    return cluster_report(store.cluster.cluster, "", ClusterView(members, records, dict(enumerate(log_bytes)), known))


async def living(store: SharedStore) -> list[str]:
    """The ids of the servers that live; it takes some seconds to see."""
    return [name for name, (_, is_alive) in (await _members(store)).items() if is_alive]


async def read_records(store: SharedStore) -> list[ContainerRecord]:
    records = ContainerRecords(store.registry, store.runtime)

    async def read(number: int) -> ContainerRecord:
        return (await patiently("read the records", lambda: records.read(number), store.runtime)).record

    return await of_each(read, range(store.cluster.containers), CLUSTER_RECORDS_AT_ONCE)


async def _members(store: SharedStore) -> dict[str, tuple[ServerMember, bool]]:
    """What each entry says, and whether it changed while it was watched: for so many looks, as servers may stand still
    with the machine, and beat once it goes on."""
    runtime = store.runtime

    async def versions() -> dict[str, str]:
        return await patiently("list its servers", lambda: store.registry.list(FOLDER), runtime)

    first = last = await versions()
    alive: set[str] = set()
    for _ in range(math.ceil(store.pace.dead_s / _LOOK_S)):
        if len(alive) == len(last):
            break
        await runtime.sleep(_LOOK_S)
        last = await versions()
        alive = {name for name, version in last.items() if first.get(name) != version}
    found: dict[str, tuple[ServerMember, bool]] = {}
    for name in last:
        entry = await patiently("read its servers", partial(store.registry.get, name), runtime)
        member = decode(entry.value) if entry is not None else None
        if member is not None:
            found[member.id] = (member, name in alive)
    return found


async def _snapshot_age_s(store: SharedStore, number: int, record: ContainerRecord) -> float | None:
    """Since its newest object was stored, by the store's clock and this machine's."""
    if record.snapshot is None:
        return None
    names, pages = record.snapshot.names, store.chunks.pages(snapshots.folder_of(number))
    stored_ms = [one.modified_ms async for page in pages for one in page if one.name in names]
    return max(0.0, (store.runtime.now_ms() - max(stored_ms)) / 1000) if stored_ms else None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What is known of a cluster. members: by server, with whether each is alive. records: of the containers.
    log_bytes: what their logs hold; snapshot_ages_s: since their snapshots were stored; as far as known."""

    members: Mapping[str, tuple[ServerMember, bool]]
    records: Mapping[int, ContainerRecord]
    log_bytes: Mapping[int, int] = field(default_factory=dict)
    snapshot_ages_s: Mapping[int, float] = field(default_factory=dict)

    def is_alive(self, server: str) -> bool:
        return server in self.members and self.members[server][1]


def cluster_report(cluster: str, seen_by: str, seen: ClusterView) -> ClusterReport:
    """The report: servers in order of their start, containers in order. seen_by: see `ClusterReport`."""
    containers = [_container(number, seen) for number in sorted(seen.records)]
    by_start = sorted(seen.members.values(), key=lambda one: (one[0].started_ms, one[0].id))
    active = seen.records.get(CONTROLLER_CONTAINER, ContainerRecord())
    has_controller = not active.released and seen.is_alive(active.owner)
    return ClusterReport(
        cluster,
        seen_by,
        active.owner if has_controller else "",
        [_server(member, is_alive=is_alive, containers=containers) for member, is_alive in by_start],
        containers,
    )


def held(server: str, containers: list[ContainerReport]) -> list[int]:
    return [one.number for one in containers if one.owner == server and one.state in ("open", "moving", "orphaned")]


def _server(member: ServerMember, *, is_alive: bool, containers: list[ContainerReport]) -> ServerReport:
    state: Literal["alive", "draining", "dead"] = "draining" if member.is_draining else "alive"
    return ServerReport(
        member.id,
        state if is_alive else "dead",
        member.store,
        member.controller,
        member.rest,
        member.version,
        member.started_ms,
        held(member.id, containers),
        member.bytes_per_s if is_alive else 0.0,
    )


def _container(number: int, seen: ClusterView) -> ContainerReport:
    record = seen.records[number]
    start, snapshot = record.start, None
    if record.snapshot is not None:
        size_bytes = 2 * sum(part.size_bytes for part in record.snapshot.parts)
        deltas, age_s = len(record.snapshot.deltas), seen.snapshot_ages_s.get(number)
        snapshot = SnapshotReport(record.snapshot.sequence, size_bytes, deltas, age_s)
    state: Literal["open", "moving", "released", "orphaned", "new"] = "moving" if record.target else "open"
    if not record.owner:
        state = "new"
    elif record.released:
        state = "released"
    elif not seen.is_alive(record.owner):
        state = "orphaned"
    log = start.epoch, start.number, start.sequence, seen.log_bytes.get(number)
    return ContainerReport(number, state, record.owner, record.epoch, record.target, *log, snapshot)


class Operator:
    """Of the server of the id `me`. What is asked for is begun, not waited for: the report shows how far it is."""

    def __init__(
        self, cluster: Cluster, me: str, membership: Membership, watch: RecordWatch, keeper: Keeper, store: SegmentStore
    ) -> None:
        self._cluster, self._me = cluster, me
        self._membership, self._watch, self._keeper, self._store = membership, watch, keeper, store

    def report(self) -> ClusterReport:
        """The cluster as this server sees it; it knows how much a log holds only of its own containers."""
        peers = self._membership.members.values()
        members = {peer.id: (peer.member, peer.is_alive) for peer in peers if peer.member is not None}
        records = {number: self._watch.record(number) for number in range(self._cluster.containers)}
        log_bytes = {one.number: one.logged_bytes for one in self._store.containers if one.started}
        return cluster_report(self._cluster.cluster, self._me, ClusterView(members, records, log_bytes))

    def drain(self) -> DrainReport:
        """Begin to hand all containers over, for good; ConflictError if no other server takes any."""
        if not self._membership.has_takers():
            raise ConflictError(
                "no other server of the cluster takes containers: start one first, or stop this one, and whichever "
                "comes next takes them over"
            )
        self._membership.drain()
        self._keeper.wake()
        return self._progress()

    def rebalance(self) -> DrainReport:
        """Begin to hand over what other servers are to have, without waiting for a quiet time."""
        self._keeper.rebalance()
        return self._progress()

    def _progress(self) -> DrainReport:
        return DrainReport(self._me, held(self._me, self.report().containers))
