"""Compare the slice processor's results with the known contents of the sine waves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from examples.sensor_slices.waves import Aggregate


@dataclass(frozen=True, slots=True)
class Verdict:
    """The aggregates, and how many are missing, wrong (no such slice, or other values), or duplicated."""

    found: Sequence[Aggregate]
    missing: int
    wrong: int
    twice: int

    @property
    def is_right(self) -> bool:
        return bool(self.found) and not (self.missing or self.wrong or self.twice)


def compare(truth: Iterable[Aggregate], aggregates: Iterable[bytes]) -> Verdict:
    """Compare the processor's events with the truth."""
    expected = set(truth)
    written = Counter(msgspec.json.decode(event, type=Aggregate) for event in aggregates)
    return Verdict(
        sorted(written),
        missing=len(expected - written.keys()),
        wrong=len(written.keys() - expected),
        twice=written.total() - len(written),
    )


def show(verdict: Verdict, console: Console) -> None:
    table = Table(title="Slices of high values")
    for column in ("sensor", "slices", "readings in them", "their mean"):
        table.add_column(column, justify="left" if column == "sensor" else "right")
    for sensor in sorted({aggregate.sensor for aggregate in verdict.found}):
        of_sensor = [aggregate for aggregate in verdict.found if aggregate.sensor == sensor]
        events = sum(aggregate.events for aggregate in of_sensor)
        table.add_row(
            sensor,
            str(len(of_sensor)),
            f"{events:,}",
            f"{sum(aggregate.total for aggregate in of_sensor) / events:.1f}",
        )
    console.print(table)
    if verdict.is_right:
        console.print(f"[green]{len(verdict.found)} slices, exact to the event, without duplicates[/green]")
    else:
        console.print(f"[red]missing: {verdict.missing}, wrong: {verdict.wrong}, twice: {verdict.twice}[/red]")
