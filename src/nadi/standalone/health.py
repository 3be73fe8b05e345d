"""The health of a running server, as its parts tell it at this moment."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from nadi.controller.rest.health import Component, Status, leaf, parent
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.scrub import Scrub
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.store import SegmentStore

if TYPE_CHECKING:
    from nadi.standalone.server import Server

_DAMAGE_SHOWN = 20  # places of each container


def server_health(server: Server) -> Component:
    store = server.store
    containers = [_container(container) for container in store.containers]
    writers = [_storage_writer(number, writer) for number, writer in enumerate(store.storage_writers)]
    return parent(
        "nadi",
        (
            _controller(server),
            parent(
                "segment-store",
                (
                    parent("containers", containers),
                    parent("storage-writers", writers),
                    _peers(store),
                    _scrub(store.scrub),
                ),
            ),
            leaf("rpc", Status.UP if server.controller_uri else Status.STARTING, {"uri": server.controller_uri}),
        ),
    )


def _controller(server: Server) -> Component:
    controller = server.started_controller
    if controller is None:
        return leaf("controller", Status.STARTING)
    return leaf("controller", Status.UP, {"unfinished": controller.unfinished})


def _peers(store: SegmentStore) -> Component:
    """Memory held for those who are connected, of what it may be, and how many there are."""
    listener, budget = store.listener, store.budget
    if listener is None:
        return leaf("peers", Status.STARTING)
    details: dict[str, Any] = {
        "held_bytes": budget.held_bytes,
        "peak_bytes": budget.peak_bytes,
        "most_bytes": budget.total_bytes,
        "waiting": budget.waiting,
        "connections": len(listener.guests),
        "refused": listener.refused,
        "ended": listener.ended,
        "too_slow": store.too_slow,
    }
    return leaf("peers", Status.UP, details)


def _container(container: Container) -> Component:
    """A container that lost its log is starting again, by itself."""
    name = f"container-{container.number}"
    if container.ended:
        return leaf(name, Status.DOWN)
    if container.failure is not None:
        return leaf(name, Status.STARTING, {"recovers_from": str(container.failure)})
    if not container.started:
        return leaf(name, Status.STARTING)
    details: dict[str, Any] = {
        "frame": container.state.sequence,
        "queued_bytes": container.queue_bytes,
        "log_bytes": container.log.size_bytes,
        "waits_for_room": container.waits_for_room or container.state_waits_for_room,
        "snapshot": container.snapshots.sequence,
    }
    if container.snapshots.error:
        details["snapshot_error"] = container.snapshots.error
    if container.snapshots.damage:
        details["snapshot_damaged"] = container.snapshots.damage
    if container.snapshots.renewed:
        details["snapshot_renewed"] = container.snapshots.renewed
    if container.rebuilt:
        details["rebuilt"] = container.rebuilt
    damaged = container.damaged
    if damaged:
        details["damaged_places"] = len(damaged) + container.damage.unlisted
        details["damaged"] = [asdict(damage) for damage in damaged[:_DAMAGE_SHOWN]]
    return leaf(name, Status.UP, details)


def _scrub(scrub: Scrub) -> Component:
    """What the last reading of everything has found; damage that it found doesn't keep the server from its work."""
    if not scrub.started:
        return leaf("scrub", Status.STARTING)
    passes = {"running": scrub.running, "last": scrub.last}
    details = {name: msgspec.to_builtins(one) for name, one in passes.items() if one is not None}
    return leaf("scrub", Status.FAILED if scrub.ended else Status.UP, details)


def _storage_writer(number: int, writer: StorageWriter) -> Component:
    name = f"storage-writer-{number}"
    if not writer.started:
        return leaf(name, Status.STARTING)
    if writer.ended:
        return leaf(name, Status.FAILED)
    if writer.error is not None:
        return leaf(name, Status.DOWN, {"error": str(writer.error)})
    return leaf(name, Status.UP)
