"""Prometheus metrics of a server's view of its cluster. Each server reports its own, wherever the controller is."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nadi.cluster.membership import Membership
from nadi.errors import UnavailableError
from nadi.object_log.engine import LogEngine
from nadi.observe.metrics import Histogram, MetricDefinition, Sample, Value, by_name
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import place_of
from nadi.wire.fields import Buffer

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

MEANINGS = by_name(
    (
        MetricDefinition("nadi_cluster_containers", "Containers on this server."),
        MetricDefinition("nadi_cluster_all_containers", "Containers of the whole cluster."),
        MetricDefinition("nadi_cluster_servers", "Servers seen by this server, alive or dead.", ("state",)),
        MetricDefinition(
            "nadi_cluster_lease_valid", "1 while this server may answer reads, 0 if it can't reach the store."
        ),
        MetricDefinition(
            "nadi_cluster_lease_term", "Number of lease terms: 1, plus 1 for each time the lease expired."
        ),
        MetricDefinition("nadi_cluster_controller", "1 if the active controller is here, else 0."),
        MetricDefinition("nadi_cluster_takeovers", "Containers taken over from dead servers.", (), "counter"),
        MetricDefinition("nadi_cluster_containers_received", "Containers handed over by other servers.", (), "counter"),
        MetricDefinition(
            "nadi_cluster_containers_handed_over", "Containers handed over to other servers.", (), "counter"
        ),
        MetricDefinition("nadi_cluster_fenced", "Containers that another server claimed first.", (), "counter"),
        MetricDefinition("nadi_cluster_log_put_seconds", "Duration of puts of log objects.", (), "histogram"),
        MetricDefinition("nadi_cluster_log_put_bytes", "Bytes of stored log objects.", (), "counter"),
        MetricDefinition(
            "nadi_cluster_log_retries", "Puts of log objects that were retried or verified by a read.", (), "counter"
        ),
        MetricDefinition("nadi_cluster_log_errors", "Failed calls for log objects.", (), "counter"),
    )
)


class CountedEngine:
    """`LogEngine` that counts calls on log objects. `put_s`: durations of the puts that stored an object."""

    def __init__(self, engine: LogEngine, runtime: Runtime) -> None:
        self._engine, self._runtime = engine, runtime
        self.put_s = Histogram(BUCKETS_S)
        self.put_bytes = self.retries = self.errors = 0

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        began = self._runtime.monotonic()
        try:
            is_stored = await self._engine.create(name, parts)
        except UnavailableError:
            self._failed(name, is_put=True)
            raise
        if place_of(name) is not None:
            if is_stored:
                self.put_s.add(self._runtime.monotonic() - began)
                self.put_bytes += sum(memoryview(part).nbytes for part in parts)
            else:
                self.retries += 1
        return is_stored

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        try:
            return await self._engine.get(name, position, length)
        except UnavailableError:
            self._failed(name)
            raise

    def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        return self._engine.listed(prefix)

    async def delete(self, names: Sequence[str]) -> None:
        try:
            await self._engine.delete(names)
        except UnavailableError:
            self._failed(names[0] if names else "")
            raise

    async def close(self) -> None:
        await self._engine.close()

    def _failed(self, name: str, *, is_put: bool = False) -> None:
        if place_of(name) is not None:
            self.errors += 1
            self.retries += is_put


def samples(
    containers: int, all_containers: int, membership: Membership, moves: Moves, engine: CountedEngine, *, controls: bool
) -> Iterator[Sample]:
    """Yield the current values. containers: number on this server. controls: whether the active controller is here."""
    servers = Counter("alive" if peer.is_alive else "dead" for peer in membership.members.values())
    for state in ("alive", "dead"):
        yield Sample(MEANINGS["nadi_cluster_servers"], servers[state], (state,))
    values: dict[str, Value] = {
        "containers": containers,
        "all_containers": all_containers,
        "lease_valid": int(membership.lease_is_valid()),
        "lease_term": membership.term,
        "controller": int(controls),
        "takeovers": moves.taken_over,
        "containers_received": moves.received,
        "containers_handed_over": moves.handed_over,
        "fenced": moves.fenced,
        "log_put_seconds": engine.put_s.read(),
        "log_put_bytes": engine.put_bytes,
        "log_retries": engine.retries,
        "log_errors": engine.errors,
    }
    for name, value in values.items():
        yield Sample(MEANINGS[f"nadi_cluster_{name}"], value, ())


@dataclass(slots=True)
class Moves:
    """Container moves since the server started. taken_over: from dead servers. received, handed_over: by agreement,
    from and to other servers. fenced: claims or containers lost to another server."""

    taken_over: int = 0
    received: int = 0
    handed_over: int = 0
    fenced: int = 0
