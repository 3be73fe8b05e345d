"""Cluster reports made from the servers' entries and the containers' records.

`read_report` reads the store from outside the cluster (`nadi cluster status`); `Operator` reports from inside a server,
behind `/v1/cluster`.
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
from nadi.cluster.reconciler import Reconciler
from nadi.errors import ConflictError, InvalidArgumentError, StoreError
from nadi.limits import CLUSTER_BEAT_S, CLUSTER_LOGS_AT_ONCE, CLUSTER_RECORDS_AT_ONCE
from nadi.object_log.engine import LogEngine, OwnEngine, Registry
from nadi.object_log.identity import Cluster, OwnLog, check_log_identity, find_cluster
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

_POLL_S = CLUSTER_BEAT_S / 2


@dataclass(frozen=True, slots=True)
class SharedStore:
    cluster: Cluster
    engine: LogEngine
    registry: Registry
    chunks: ChunkStore
    runtime: Runtime
    pace: MembershipPace


@asynccontextmanager
async def open_shared_store(
    url: str, options: dict[str, str], runtime: Runtime = REAL, *, unlocks: bool = False
) -> AsyncIterator[SharedStore]:
    """Open the store of the cluster at that URL. unlocks: to read its data, see `ChunkStore.unlock`.

    StoreError: the store has no cluster, or refuses access. InvalidArgumentError, UnavailableError: as `open_engines`.
    """
    folder = folder_of(url, **options)
    if folder is not None and not folder.is_dir():
        raise StoreError(f"folder {folder} doesn't exist: correct the URL")
    engine, registry = await open_engines(url, runtime, **options)
    try:
        cluster = await find_cluster(engine, runtime)
        pace = GCS_PACE if url.startswith("gs:") else MembershipPace()
        chunks = ChunkStore.from_url(url, **options)
        try:
            if unlocks and cluster.is_encrypted:
                await chunks.unlock()
            yield SharedStore(cluster, engine, registry, chunks, runtime, pace)
        finally:
            await chunks.close()
    finally:
        await engine.close()


@asynccontextmanager
async def opened_log(shared: SharedStore, url: str, options: dict[str, str]) -> AsyncIterator[OwnEngine]:
    """Open the cluster's log that is kept outside its store, at that URL.

    InvalidArgumentError: the log has another name, or is in the store. StoreError: the log at that URL was created for
    another cluster. UnavailableError: the log doesn't respond for a long time.
    """
    name, known = log_name(url, **options), shared.cluster.log
    if known is None or known.name != name:
        raise InvalidArgumentError(
            f"the log of this cluster is in {known.name if known is not None else 'its store'}, not in {name}: "
            + ("pass that name to --log" if known is not None else "leave out --log")
        )
    engine = await open_log(url, shared.runtime, make=False, **options)
    try:
        await check_log_identity(shared.cluster, OwnLog(name, engine), shared.runtime)
        yield engine
    finally:
        await engine.close()


async def read_report(store: SharedStore) -> ClusterReport:
    """Read the report. Detecting which servers are alive takes some seconds."""
    members = await _members(store)
    numbers = range(store.cluster.containers)
    records = dict(zip(numbers, await read_records(store), strict=True))

    async def bytes_of(number: int) -> int:
        """Return the total size of a log's frames, without its seals."""
        total = 0
        async for page in store.engine.listed(layout.folder_of(number)):
            total += sum(size for size in page.values() if size > layout.HEADER_BYTES)
        return total

    log_bytes = await of_each(bytes_of, numbers, CLUSTER_LOGS_AT_ONCE) if store.cluster.log is None else []
    ages = await of_each(lambda number: _snapshot_age_s(store, number, records[number]), numbers, CLUSTER_LOGS_AT_ONCE)
    known = {number: age for number, age in enumerate(ages) if age is not None}
    return cluster_report(store.cluster.cluster, "", ClusterView(members, records, dict(enumerate(log_bytes)), known))


async def live_servers(store: SharedStore) -> list[str]:
    """Return the ids of the live servers. Detecting them takes some seconds."""
    return [name for name, (_, is_alive) in (await _members(store)).items() if is_alive]


async def read_records(store: SharedStore) -> list[ContainerRecord]:
    records = ContainerRecords(store.registry, store.runtime)

    async def read(number: int) -> ContainerRecord:
        return (await patiently("read the records", lambda: records.read(number), store.runtime)).record

    return await of_each(read, range(store.cluster.containers), CLUSTER_RECORDS_AT_ONCE)


async def _members(store: SharedStore) -> dict[str, tuple[ServerMember, bool]]:
    """Return each server's entry, and whether it changed during the watch.

    The watch ends after a number of polls, not a time span: servers may pause together with this machine, and beat once
    it resumes.
    """
    runtime = store.runtime

    async def versions() -> dict[str, str]:
        return await patiently("list its servers", lambda: store.registry.list(FOLDER), runtime)

    first = last = await versions()
    alive: set[str] = set()
    for _ in range(math.ceil(store.pace.dead_s / _POLL_S)):
        if len(alive) == len(last):
            break
        await runtime.sleep(_POLL_S)
        last = await versions()
        alive = {name for name, version in last.items() if first.get(name) != version}
    members: dict[str, tuple[ServerMember, bool]] = {}
    for name in last:
        entry = await patiently("read its servers", partial(store.registry.get, name), runtime)
        member = decode(entry.value) if entry is not None else None
        if member is not None:
            members[member.id] = (member, name in alive)
    return members


async def _snapshot_age_s(store: SharedStore, number: int, record: ContainerRecord) -> float | None:
    """Return the time since the snapshot's newest object was stored, by the store's clock and this machine's."""
    if record.snapshot is None:
        return None
    names, pages = record.snapshot.names, store.chunks.pages(snapshots.folder_of(number))
    stored_ms = [item.modified_ms async for page in pages for item in page if item.name in names]
    return max(0.0, (store.runtime.now_ms() - max(stored_ms)) / 1000) if stored_ms else None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Known facts about a cluster.

    members: by server, with whether each is alive. records: of the containers. log_bytes: sizes of the logs.
    snapshot_ages_s: ages of the snapshots. The last two may be incomplete.
    """

    members: Mapping[str, tuple[ServerMember, bool]]
    records: Mapping[int, ContainerRecord]
    log_bytes: Mapping[int, int] = field(default_factory=dict)
    snapshot_ages_s: Mapping[int, float] = field(default_factory=dict)

    def is_alive(self, server: str) -> bool:
        return server in self.members and self.members[server][1]


def cluster_report(cluster: str, reported_by: str, view: ClusterView) -> ClusterReport:
    """Return the report: servers in order of their start, containers in order. reported_by: see `ClusterReport`."""
    containers = [_container(number, view) for number in sorted(view.records)]
    by_start = sorted(view.members.values(), key=lambda entry: (entry[0].started_ms, entry[0].id))
    active = view.records.get(CONTROLLER_CONTAINER, ContainerRecord())
    has_controller = not active.released and view.is_alive(active.owner)
    return ClusterReport(
        cluster,
        reported_by,
        active.owner if has_controller else "",
        [_server(member, is_alive=is_alive, containers=containers) for member, is_alive in by_start],
        containers,
    )


def owned_containers(server: str, containers: list[ContainerReport]) -> list[int]:
    return [
        container.number
        for container in containers
        if container.owner == server and container.state in ("open", "moving", "orphaned")
    ]


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
        owned_containers(member.id, containers),
        member.bytes_per_s if is_alive else 0.0,
    )


def _container(number: int, view: ClusterView) -> ContainerReport:
    record = view.records[number]
    start, snapshot = record.start, None
    if record.snapshot is not None:
        size_bytes = 2 * sum(part.size_bytes for part in record.snapshot.parts)
        deltas, age_s = len(record.snapshot.deltas), view.snapshot_ages_s.get(number)
        snapshot = SnapshotReport(record.snapshot.sequence, size_bytes, deltas, age_s)
    state: Literal["open", "moving", "released", "orphaned", "new"] = "moving" if record.target else "open"
    if not record.owner:
        state = "new"
    elif record.released:
        state = "released"
    elif not view.is_alive(record.owner):
        state = "orphaned"
    log = start.epoch, start.number, start.sequence, view.log_bytes.get(number)
    return ContainerReport(number, state, record.owner, record.epoch, record.target, *log, snapshot)


class Operator:
    """Operator commands of the server `me`. They start an operation without waiting for it: the report shows its
    progress."""

    def __init__(
        self,
        cluster: Cluster,
        me: str,
        membership: Membership,
        watch: RecordWatch,
        reconciler: Reconciler,
        store: SegmentStore,
    ) -> None:
        self._cluster, self._me = cluster, me
        self._membership, self._watch, self._reconciler, self._store = membership, watch, reconciler, store

    def report(self) -> ClusterReport:
        """Return the cluster as this server sees it. Log sizes are known only for its own containers."""
        peers = self._membership.members.values()
        members = {peer.id: (peer.member, peer.is_alive) for peer in peers if peer.member is not None}
        records = {number: self._watch.record(number) for number in range(self._cluster.containers)}
        log_bytes = {
            container.number: container.logged_bytes for container in self._store.containers if container.started
        }
        return cluster_report(self._cluster.cluster, self._me, ClusterView(members, records, log_bytes))

    def drain(self) -> DrainReport:
        """Begin to hand over all containers for good. ConflictError: no other server accepts containers."""
        if not self._membership.has_takers():
            raise ConflictError(
                "no other server of the cluster accepts containers: start another server first, or stop this one and "
                "let the next server take them over"
            )
        self._membership.drain()
        self._reconciler.wake()
        return self._progress()

    def rebalance(self) -> DrainReport:
        """Begin to hand over the containers that placement assigns to other servers, without waiting for a quiet
        period."""
        self._reconciler.rebalance()
        return self._progress()

    def _progress(self) -> DrainReport:
        return DrainReport(self._me, owned_containers(self._me, self.report().containers))
