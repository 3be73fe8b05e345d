"""A server's own figures of its cluster, for Prometheus: each server tells its own, whichever has the controller.

`CountedEngine` stands in front of the engine and counts what a log's objects take; the rest is asked for when it is
told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from nadi.cluster.operating.moves import Moves
from nadi.engines.engine import LogEngine
from nadi.errors import UnavailableError
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import place_of
from nadi.wire.fields import Buffer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meaning(NamedTuple):
    """One metric; a counter's samples are called `<name>_total`."""

    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"


MEANINGS = {
    "nadi_cluster_containers": Meaning("Containers that this server has."),
    "nadi_cluster_servers": Meaning("Servers that this one sees, by whether they are alive.", ("state",)),
    "nadi_cluster_lease_valid": Meaning("1 while this server may answer reads, else 0: it doesn't reach the store."),
    "nadi_cluster_lease_term": Meaning("How often the lease has begun: once, and again after each silence."),
    "nadi_cluster_controller": Meaning("1 if the active controller is here, else 0."),
    "nadi_cluster_takeovers": Meaning("Containers taken over from servers that were dead.", (), "counter"),
    "nadi_cluster_containers_received": Meaning("Containers that other servers have handed over.", (), "counter"),
    "nadi_cluster_containers_handed_over": Meaning("Containers handed over to other servers.", (), "counter"),
    "nadi_cluster_fenced": Meaning("Claims, or containers, that another server was faster to claim.", (), "counter"),
    "nadi_cluster_log_put_seconds": Meaning(
        "How long puts of the log's objects took that were stored.", (), "histogram"
    ),
    "nadi_cluster_log_put_bytes": Meaning("Bytes of the log's objects that were stored.", (), "counter"),
    "nadi_cluster_log_retries": Meaning(
        "Puts of the log's objects that had to be tried again, or read.", (), "counter"
    ),
    "nadi_cluster_log_errors": Meaning(
        "Calls for the log's objects that the store answered with an error.", (), "counter"
    ),
}


class CountedEngine:
    """A `LogEngine` that counts. `took`: how many puts ended within each of `BUCKETS_S`, and later."""

    def __init__(self, engine: LogEngine, runtime: Runtime) -> None:
        self._engine, self._runtime = engine, runtime
        self.took = [0] * (len(BUCKETS_S) + 1)
        self.took_s = 0.0
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
                took_s = self._runtime.monotonic() - began
                self.took[bisect_left(BUCKETS_S, took_s)] += 1
                self.took_s += took_s
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


class Figures(NamedTuple):
    """All of a server's, at one moment. servers: whether each is alive."""

    containers: int
    servers: Iterable[bool]
    lease_is_valid: bool
    term: int
    has_controller: bool
    moves: Moves
    engine: CountedEngine


def families(figures: Figures) -> Iterator[Metric]:
    """As metrics with their samples."""
    servers = Counter("alive" if is_alive else "dead" for is_alive in figures.servers)
    moves, engine = figures.moves, figures.engine
    yield _plain("nadi_cluster_containers", figures.containers)
    yield _plain("nadi_cluster_servers", servers["alive"], ("alive",), more=((("dead",), servers["dead"]),))
    yield _plain("nadi_cluster_lease_valid", int(figures.lease_is_valid))
    yield _plain("nadi_cluster_lease_term", figures.term)
    yield _plain("nadi_cluster_controller", int(figures.has_controller))
    yield _plain("nadi_cluster_takeovers", moves.taken_over)
    yield _plain("nadi_cluster_containers_received", moves.received)
    yield _plain("nadi_cluster_containers_handed_over", moves.handed_over)
    yield _plain("nadi_cluster_fenced", moves.fenced)
    yield _histogram("nadi_cluster_log_put_seconds", engine)
    yield _plain("nadi_cluster_log_put_bytes", engine.put_bytes)
    yield _plain("nadi_cluster_log_retries", engine.retries)
    yield _plain("nadi_cluster_log_errors", engine.errors)


def _plain(
    name: str,
    value: float,
    labels: tuple[str, ...] = (),
    more: Iterable[tuple[tuple[str, ...], float]] = (),
) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    meaning = MEANINGS[name]
    make = CounterMetricFamily if meaning.kind == "counter" else GaugeMetricFamily
    family = make(name, meaning.help, labels=meaning.labels)
    for its, one in ((labels, value), *more):
        family.add_metric(list(its), one)
    return family


def _histogram(name: str, engine: CountedEngine) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    buckets, total = [], 0
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], engine.took, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return HistogramMetricFamily(name, MEANINGS[name].help, buckets=buckets, sum_value=engine.took_s)
