"""Current health of a running server, from the state of its parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from nadi.controller.controller import Controller
from nadi.errors import NadiError
from nadi.observe.health import Component, HealthStatus, leaf, parent
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.store import SegmentStore

_DAMAGE_SHOWN = 20  # damaged ranges per container


def server_health(store: SegmentStore, controller: Controller | None, rpc_uri: str, elsewhere: str = "") -> Component:
    """Return the server's health. controller: None until it accepts requests. rpc_uri: of the gRPC port, "" until it is
    open. elsewhere: address of the active controller if another server of the cluster has it."""
    scrub = leaf("scrub", HealthStatus.STARTING)
    if store.scrub.started:  # damage that it found doesn't make the server unhealthy
        passes = {"running": store.scrub.running, "last": store.scrub.last}
        details = {name: msgspec.to_builtins(progress) for name, progress in passes.items() if progress is not None}
        scrub = leaf("scrub", HealthStatus.FAILED if store.scrub.ended else HealthStatus.UP, details)
    claim, pairs = store.chunks.claim, zip(store.containers, store.storage_writers, strict=True)
    parts = [
        parent("containers", [_container(container) for container in store.containers]),
        parent("storage-writers", [_writer(writer, owner, is_elsewhere=claim is not None) for owner, writer in pairs]),
        _peers(store),
        scrub,
    ]
    if claim is not None:  # chunks outside the data folder; their store may be unresponsive without harm for a while
        tier2: dict[str, Any] = {"url": claim.url, "claimed": claim.is_confirmed}
        if claim.lost is not None:
            tier2 = {"url": claim.url, "error": str(claim.lost)}
        parts.insert(2, leaf("tier2", HealthStatus.UP if claim.lost is None else HealthStatus.FAILED, tier2))
    if controller is not None:
        active = leaf("controller", HealthStatus.UP, {"unfinished": controller.unfinished})
    elif elsewhere:
        active = leaf("controller", HealthStatus.UP, {"active": elsewhere})
    else:
        active = leaf("controller", HealthStatus.STARTING)
    rpc = leaf("rpc", HealthStatus.UP if rpc_uri else HealthStatus.STARTING, {"uri": rpc_uri})
    return parent("nadi", (active, parent("segment-store", parts), rpc))


def _peers(store: SegmentStore) -> Component:
    """Return memory and number of connected peers, with their limits."""
    listener, budget = store.listener, store.budget
    if listener is None:
        return leaf("peers", HealthStatus.STARTING)
    details: dict[str, Any] = {
        "buffered_bytes": budget.buffered_bytes,
        "peak_bytes": budget.peak_bytes,
        "most_bytes": budget.total_bytes,
        "waiting": budget.waiting,
        "connections": len(listener.connections),
        "refused": listener.refused,
        "ended": listener.ended,
        "too_slow": store.too_slow,
    }
    return leaf("peers", HealthStatus.UP, details)


def _container(container: Container) -> Component:
    """Return a container's health. After losing its log, it restarts by itself."""
    name = f"container-{container.number}"
    if container.ended:
        return leaf(name, HealthStatus.DOWN)
    if container.failure is not None:
        return leaf(name, HealthStatus.STARTING, {"recovers_from": str(container.failure)})
    if not container.started:
        return leaf(name, HealthStatus.STARTING)
    snapshots = container.parts.snapshots
    details: dict[str, Any] = {
        "frame": container.state.sequence,
        "queued_bytes": container.queue.size_bytes,
        "log_bytes": container.logged_bytes,
        "log_max_bytes": container.log_max_bytes,
        "waits_for_space": container.waits_for_space or container.checkpoints.waits_for_space,
        "snapshot": snapshots.sequence,
    }
    unusual: dict[str, Any] = {
        "paused_s": {what: round(seconds, 3) for what, seconds in container.throttle.paused_s.items()},
        "waits_for_tier2": container.logged_bytes > container.log_max_bytes,
        "snapshot_error": snapshots.error,
        "snapshot_damaged": snapshots.damage,
        "snapshot_renewed": snapshots.renewed,
    }
    details |= {name: value for name, value in unusual.items() if value}
    damaged = container.damaged
    if damaged:
        details["damaged_ranges"] = len(damaged) + container.damage.unlisted
        details["damaged"] = [asdict(damage) for damage in damaged[:_DAMAGE_SHOWN]]
    return leaf(name, HealthStatus.UP, details)


def _writer(writer: StorageWriter, container: Container, *, is_elsewhere: bool) -> Component:
    """Return a storage writer's health. With a separate tier 2, failures to move data don't matter before the log is
    full, and a restart doesn't help then."""
    name = f"storage-writer-{writer.number}"
    if not writer.started:
        return leaf(name, HealthStatus.STARTING)
    if writer.ended:
        return leaf(name, HealthStatus.FAILED)
    if writer.error is not None:
        details = {"error": str(writer.error) if isinstance(writer.error, NadiError) else repr(writer.error)}
        if not is_elsewhere:
            return leaf(name, HealthStatus.DOWN, details)
        if container.logged_bytes <= container.log_max_bytes:
            return leaf(name, HealthStatus.UP, details)
        return Component(name, HealthStatus.DOWN, readiness=False, liveness=True, details=details, children={})
    return leaf(name, HealthStatus.UP)
