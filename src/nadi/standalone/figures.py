"""What a server tells of itself for Prometheus: of its segment store, and of its doors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import nadi
from nadi.access.gate import Gate
from nadi.access.listener import Listener
from nadi.access.shares import Shares
from nadi.observe.metrics import Meaning, Sample, Value, by_name
from nadi.runtime import Runtime
from nadi.segmentstore.figures import samples
from nadi.segmentstore.store import SegmentStore

MEANINGS = by_name(
    (
        Meaning("nadi_build_info", "Always 1; the label has nadi's version.", ("version",)),
        Meaning("nadi_connections", "Connections that are open, by door.", ("door",)),
        Meaning("nadi_connections_refused", "Connections that found no place, by door.", ("door",), "counter"),
        Meaning("nadi_connections_ended", "Connections that had to go for others, by door.", ("door",), "counter"),
        Meaning("nadi_rpc_calls", "Calls of gRPC that are in progress."),
        Meaning("nadi_rpc_calls_refused", "Calls of gRPC refused, as their address had too many.", (), "counter"),
        Meaning("nadi_logins_failed", "Calls and requests without valid credentials.", (), "counter"),
        Meaning("nadi_permissions_refused", "Calls and requests that weren't permitted.", (), "counter"),
    )
)


class ServerFigures:
    """Of one server. rests: the listeners of its REST ports. gate: None if callers needn't log in. Its gRPC doors are
    added once they are there (`rpc`), and whatever else it has to tell (`more`)."""

    def __init__(self, store: SegmentStore, gate: Gate | None, runtime: Runtime) -> None:
        self.rests: list[Listener] = []
        self.rpc: list[Shares] = []
        self.more: Callable[[], Iterable[Sample]] = tuple
        self._store, self._gate, self._runtime = store, gate, runtime

    def samples(self) -> Iterator[Sample]:
        """All of it, as it is now."""
        yield _sample("nadi_build_info", 1, nadi.__version__)
        yield from samples(self._store, self._runtime)
        yield from _doors({"store": [self._store.listener] if self._store.listener else [], "rest": self.rests})
        yield _sample("nadi_rpc_calls", sum(calls.entered for calls in self.rpc))
        yield _sample("nadi_rpc_calls_refused", sum(calls.refused for calls in self.rpc))
        if self._gate is not None:
            yield _sample("nadi_logins_failed", self._gate.failed_logins)
            yield _sample("nadi_permissions_refused", self._gate.refusals)
        yield from self.more()


def _doors(listeners: dict[str, Sequence[Listener]]) -> Iterator[Sample]:
    for door, found in listeners.items():
        yield _sample("nadi_connections", sum(len(one.guests) for one in found), door)
        yield _sample("nadi_connections_refused", sum(one.refused for one in found), door)
        yield _sample("nadi_connections_ended", sum(one.ended for one in found), door)


def _sample(name: str, value: Value, *labels: str) -> Sample:
    return Sample(MEANINGS[name], value, labels)
