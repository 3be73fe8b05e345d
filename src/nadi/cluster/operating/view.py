"""Reports about a cluster, made of servers' entries and containers' records. All of it is pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nadi.cluster.mapping import CONTROLLER_CONTAINER
from nadi.cluster.records import ContainerRecord
from nadi.cluster.servers.members import Member
from nadi.observe.cluster import ClusterReport, ContainerReport, ServerReport, SnapshotReport


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a cluster. members: by server, with whether each is alive. records: of the containers.
    log_bytes: what their logs hold; snapshot_ages_s: since their snapshots were stored; as far as known."""

    members: Mapping[str, tuple[Member, bool]]
    records: Mapping[int, ContainerRecord]
    log_bytes: Mapping[int, int] = field(default_factory=dict)
    snapshot_ages_s: Mapping[int, float] = field(default_factory=dict)

    def is_alive(self, server: str) -> bool:
        return server in self.members and self.members[server][1]


def cluster_report(cluster: str, seen_by: str, seen: Seen) -> ClusterReport:
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
    """The containers that a server has."""
    return [one.number for one in containers if one.owner == server and one.state in ("open", "moving", "orphaned")]


def _server(member: Member, *, is_alive: bool, containers: list[ContainerReport]) -> ServerReport:
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


def _container(number: int, seen: Seen) -> ContainerReport:
    record = seen.records[number]
    start, snapshot = record.start, None
    if record.snapshot is not None:
        size_bytes = sum(part.size_bytes for part in record.snapshot.parts)
        deltas, age_s = len(record.snapshot.deltas), seen.snapshot_ages_s.get(number)
        snapshot = SnapshotReport(record.snapshot.sequence, size_bytes, deltas, age_s)
    return ContainerReport(
        number,
        _state(record, seen),
        record.owner,
        record.epoch,
        record.target,
        start.epoch,
        start.number,
        start.sequence,
        seen.log_bytes.get(number),
        snapshot,
    )


def _state(record: ContainerRecord, seen: Seen) -> Literal["open", "moving", "released", "orphaned", "new"]:
    if not record.owner:
        return "new"
    if record.released:
        return "released"
    if not seen.is_alive(record.owner):
        return "orphaned"
    return "moving" if record.target else "open"
