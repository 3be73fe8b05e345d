"""What the slice processor found, beside what the sine waves are known to hold."""

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
    """Aggregates that are missing, wrong (there is no such slice, or other values are in it), or there twice."""

    found: Sequence[Aggregate]
    missing: int
    wrong: int
    twice: int

    @property
    def is_right(self) -> bool:
        return bool(self.found) and not (self.missing or self.wrong or self.twice)


def compare(truth: Iterable[Aggregate], aggregates: Iterable[bytes]) -> Verdict:
    """The processor's events beside the truth."""
    expected = set(truth)
    told = Counter(msgspec.json.decode(event, type=Aggregate) for event in aggregates)
    return Verdict(
        sorted(told),
        missing=len(expected - told.keys()),
        wrong=len(told.keys() - expected),
        twice=told.total() - len(told),
    )


def show(verdict: Verdict, console: Console) -> None:
    table = Table(title="Slices of high values")
    for column in ("sensor", "slices", "readings in them", "their mean"):
        table.add_column(column, justify="left" if column == "sensor" else "right")
    for sensor in sorted({one.sensor for one in verdict.found}):
        mine = [one for one in verdict.found if one.sensor == sensor]
        events = sum(one.events for one in mine)
        table.add_row(sensor, str(len(mine)), f"{events:,}", f"{sum(one.total for one in mine) / events:.1f}")
    console.print(table)
    if verdict.is_right:
        console.print(f"[green]{len(verdict.found)} slices, exact to the event, each once[/green]")
    else:
        console.print(f"[red]missing: {verdict.missing}, wrong: {verdict.wrong}, twice: {verdict.twice}[/red]")
