"""What there is to know about a cluster: its servers, and who has which container; and what a server says while its
writers are held for a migration. Reports that travel as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec


class ServerReport(msgspec.Struct, frozen=True):
    """One server. state: "dead" has said nothing for some seconds. store, controller, rest: where it answers, as
    "host:port"; rest is "" if it has no REST port. containers: the numbers of those it has. started_ms: since 1970, by
    its clock. bytes_per_s: what is written to it."""

    id: str
    state: Literal["alive", "draining", "dead"]
    store: str
    controller: str
    rest: str
    version: str
    started_ms: int
    containers: list[int]
    bytes_per_s: float


class SnapshotReport(msgspec.Struct, frozen=True):
    """A container's snapshot in the store. sequence: of the last frame in it. age_s: since it was stored; None if that
    isn't known."""

    sequence: int
    size_bytes: int
    deltas: int
    age_s: float | None = None


class ContainerReport(msgspec.Struct, frozen=True):
    """One container. owner: the server that claimed it last, "" if nobody ever did. state: "open" at its owner;
    "moving", when that has announced to give it to `target`; "released" to `target`; "orphaned", when its owner is
    dead or gone; "new", when nobody has claimed it yet. log_epoch, log_number: the object of the log where one who
    takes it over begins, after frame `log_sequence`. log_bytes: what the log holds; None if that isn't known."""

    number: int
    state: Literal["open", "moving", "released", "orphaned", "new"]
    owner: str
    epoch: int
    target: str
    log_epoch: int
    log_number: int
    log_sequence: int
    log_bytes: int | None
    snapshot: SnapshotReport | None


class ClusterReport(msgspec.Struct, frozen=True):
    """A cluster, as `seen_by` a server ("": as its store shows it). controller: the server that has the active
    controller, "" if none is known to."""

    cluster: str
    seen_by: str
    controller: str
    servers: list[ServerReport]
    containers: list[ContainerReport]


class DrainReport(msgspec.Struct, frozen=True):
    """A server that gives all its containers away. containers: those it still has."""

    server: str
    containers: list[int]


class HeldContainer(msgspec.Struct, frozen=True):
    """All that a container was ever told is in tier 2, in the snapshot of that frame."""

    number: int
    sequence: int


class HoldReport(msgspec.Struct, frozen=True):
    """hold: its id. store: the id of the one that has everything. left_s: until the writers go on by themselves."""

    hold: str
    store: str
    left_s: float
    containers: list[HeldContainer]
