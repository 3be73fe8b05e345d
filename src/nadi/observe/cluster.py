"""Reports about a cluster, its servers and container owners, and about write freezes for a migration; sent as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec


class ServerReport(msgspec.Struct, frozen=True):
    """A server. state: "dead" if it hasn't been heard of for some seconds. store, controller, rest: its addresses as
    "host:port"; rest is "" without a REST port. containers: numbers of those it owns. started_ms: since 1970, by its
    clock. bytes_per_s: the rate of writes to it."""

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
    """A container's snapshot in the store. sequence: of the last frame in it. age_s: time since it was stored; None if
    unknown."""

    sequence: int
    size_bytes: int
    deltas: int
    age_s: float | None = None


class ContainerReport(msgspec.Struct, frozen=True):
    """A container. owner: the last server that claimed it, "" if it was never claimed. state: "open" at its owner;
    "moving" if the owner has announced a handover to `target`; "released" to `target`; "orphaned" if its owner is dead
    or gone; "new" if it was never claimed. log_epoch, log_number: the log object where its next owner starts, after
    frame `log_sequence`. log_bytes: the log's size; None if unknown."""

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
    """A cluster as seen by the server `reported_by` ("": as recorded in the store). controller: the server with the
    active controller, "" if unknown."""

    cluster: str
    reported_by: str
    controller: str
    servers: list[ServerReport]
    containers: list[ContainerReport]


class DrainReport(msgspec.Struct, frozen=True):
    """A server that is handing over all its containers. containers: those it still owns."""

    server: str
    containers: list[int]


class FrozenContainer(msgspec.Struct, frozen=True):
    """A container whose entire contents are in tier 2, in the snapshot of that frame."""

    number: int
    sequence: int


class WriteFreezeReport(msgspec.Struct, frozen=True):
    """A write freeze. hold: its id. store: the id of the store with all data. remaining_s: time until writes resume."""

    hold: str
    store: str
    remaining_s: float
    containers: list[FrozenContainer]
