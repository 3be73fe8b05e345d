"""Medians of alternating rounds, and ratios of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A figure; ratio: to its reference; mark: the target of the ratio, or else of the value."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    mark: float | None = None
    at_most: bool = False

    @property
    def is_reached(self) -> bool | None:
        """Whether the mark is reached; None without a mark."""
        if self.mark is None:
            return None
        measured = self.value if self.ratio is None else self.ratio
        return measured <= self.mark if self.at_most else measured >= self.mark


class Tally:
    """The results of each round, by name."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._noted: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        self._noted.setdefault(name, []).append(value)

    def rows(self, reference: str, marks: Mapping[str, float | None], *, at_most: bool = False) -> list[Row]:
        """Return the medians; for the names in `marks`, with the ratio to `reference`.

        >>> tally = Tally("ms")
        >>> for name, value in (("a", 40.0), ("b", 60.0), ("a", 42.0), ("b", 62.0), ("a", 44.0), ("b", 400.0)):
        ...     tally.note(name, value)
        >>> [(row.name, row.value, row.ratio) for row in tally.rows("a", {"b": 1.2}, at_most=True)]
        [('a', 42.0, None), ('b', 62.0, 1.4761904761904763)]
        """
        medians = {name: statistics.median(values) for name, values in self._noted.items()}
        return [
            Row(
                name, value, self._unit, value / medians[reference] if name in marks else None, marks.get(name), at_most
            )
            for name, value in medians.items()
        ]
