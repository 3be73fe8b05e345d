"""Definitions of metrics, and their conversion into Prometheus's metric families.

Components count with plain integers, or with a `Histogram` for distributions. At a scrape, current values are collected
in the loop as `Sample`s; families are built from these in a thread. So counting costs next to nothing, and reporting
nothing at all until a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.core import Metric


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """The definition of a metric; a counter's samples are named `<name>_total`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"

    @property
    def full_name(self) -> str:
        """The name used in documents and queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def by_name(meanings: Iterable[MetricDefinition]) -> Mapping[str, MetricDefinition]:
    """Return a registry of metrics by name."""
    return {meaning.name: meaning for meaning in meanings}


class Distribution(NamedTuple):
    """The number of values per bucket: up to each bound but above the previous one; the last counts the remainder."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class Histogram:
    """Counts values by size with a binary search of a few bounds.

    >>> latency = Histogram((0.1, 1.0))
    >>> latency.add(0.5), latency.add(0.1, 3), latency.add(7.0)
    (None, None, None)
    >>> latency.read()
    Distribution(bounds=(0.1, 1.0), counts=(3, 1, 1), total=7.8)
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Record `count` occurrences of a value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def read(self) -> Distribution:
        """Return the current counts."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


Value: TypeAlias = float | Distribution | Callable[[], float] | None
"""A function is called when families are built, outside the loop; None means unknown, and omits the sample."""


class Sample(NamedTuple):
    """A metric's current value. labels: their values, in the definition's order."""

    meaning: MetricDefinition
    value: Value
    labels: tuple[str, ...] = ()


def families(samples: Iterable[Sample]) -> Iterator[Metric]:
    """Yield metric families, each once, in the order of their first samples."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.meaning.name, []).append(sample)
    for same in by_metric.values():
        yield family(same[0].meaning, ((sample.labels, sample.value) for sample in same))


def family(meaning: MetricDefinition, samples: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    """Return one metric with its samples."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if meaning.kind == "histogram":
        histogram = HistogramMetricFamily(meaning.name, meaning.help, labels=meaning.labels)
        for labels, value in samples:
            assert isinstance(value, Distribution), f"{meaning.name} is a histogram"
            histogram.add_metric(list(labels), _buckets(value), value.total)
        return histogram
    make = CounterMetricFamily if meaning.kind == "counter" else GaugeMetricFamily
    plain = make(meaning.name, meaning.help, labels=meaning.labels)
    for labels, value in samples:
        assert not isinstance(value, Distribution), f"{meaning.name} is not a histogram"
        number = value() if callable(value) else value
        if number is not None:
            plain.add_metric(list(labels), number)
    return plain


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    """Return cumulative counts, as Prometheus expects."""
    totals = map(float, accumulate(value.counts))
    return list(zip([*map(str, value.bounds), "+Inf"], totals, strict=True))
