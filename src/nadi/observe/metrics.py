"""What a metric is, and how figures become Prometheus's families of metrics.

Whoever counts does it with plain integers, and with a `Histogram` where a distribution is wanted. At a scrape, in the
loop, the figures are taken as they are, as `Sample`s; families are made of these in a thread. So counting costs next to
nothing, and telling of it nothing at all until somebody asks.
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
class Meaning:
    """One metric; a counter's samples are called `<name>_total`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"

    @property
    def written(self) -> str:
        """The name as documents and queries have it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def by_name(meanings: Iterable[Meaning]) -> Mapping[str, Meaning]:
    """A registry of them."""
    return {meaning.name: meaning for meaning in meanings}


class Distribution(NamedTuple):
    """How many values lie at or below each bound, but above the one before; the last has those above all bounds."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class Histogram:
    """Counts values by size: one search among few bounds for each.

    >>> took = Histogram((0.1, 1.0))
    >>> took.add(0.5), took.add(0.1, 3), took.add(7.0)
    (None, None, None)
    >>> took.read()
    Distribution(bounds=(0.1, 1.0), counts=(3, 1, 1), total=7.8)
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, count: int = 1) -> None:
        """It occurred so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def read(self) -> Distribution:
        """As it is now."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


Value: TypeAlias = float | Distribution | Callable[[], float] | None
"""A function is called where families are made, outside the loop; None is for what isn't known, and has no sample."""


class Sample(NamedTuple):
    """labels: their values, in the meaning's order."""

    meaning: Meaning
    value: Value
    labels: tuple[str, ...] = ()


def families(samples: Iterable[Sample]) -> Iterator[Metric]:
    """Families of metrics, each once, in the order in which its first sample comes."""
    together: dict[str, list[Sample]] = {}
    for sample in samples:
        together.setdefault(sample.meaning.name, []).append(sample)
    for found in together.values():
        yield family(found[0].meaning, ((sample.labels, sample.value) for sample in found))


def family(meaning: Meaning, samples: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    """One metric with its samples."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if meaning.kind == "histogram":
        made = HistogramMetricFamily(meaning.name, meaning.help, labels=meaning.labels)
        for labels, value in samples:
            assert isinstance(value, Distribution), f"{meaning.name} is a histogram"
            made.add_metric(list(labels), _buckets(value), value.total)
        return made
    make = CounterMetricFamily if meaning.kind == "counter" else GaugeMetricFamily
    plain = make(meaning.name, meaning.help, labels=meaning.labels)
    for labels, value in samples:
        assert not isinstance(value, Distribution), f"{meaning.name} is no histogram"
        number = value() if callable(value) else value
        if number is not None:
            plain.add_metric(list(labels), number)
    return plain


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    """Cumulative, as they are exposed."""
    totals = map(float, accumulate(value.counts))
    return list(zip([*map(str, value.bounds), "+Inf"], totals, strict=True))
