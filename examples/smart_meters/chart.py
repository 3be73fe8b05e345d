"""The demo's final output: a chart of two weeks with their slices, and a table that compares them.

Both take plain readings and slices, from the stream or from the file; nothing here reads a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from examples.smart_meters.readings import DAY_MS, METERS, MINUTE_MS, Reading
from examples.smart_meters.slices import Slice, micro_wh

STEP_MS = 15 * MINUTE_MS  # one point of the chart is the mean power of a quarter of an hour
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_COLOURS = {"main": "#d97706", "kitchen": "#be185d", "laundry": "#15803d", "climate": "#6d28d9"}
_LINE, _FILL = "#1f4e79", "#9dbbd6"


@dataclass(frozen=True, slots=True)
class Week:
    """One week of a household: [start, start + 7 days) in ms; energies in Wh by meter."""

    title: str  # such as "2010, week 45"
    start: int
    power_kw: np.ndarray[Any, np.dtype[np.float64]]  # of the main meter, one mean for each STEP_MS; nan: no data
    energy_wh: dict[str, float]
    slices: tuple[Slice, ...]


def summarise(title: str, start: int, readings: Iterable[Reading], slices: Iterable[Slice]) -> Week:
    """Compute a week's chart line and energies from its readings; readings outside the week are ignored."""
    steps = 7 * DAY_MS // STEP_MS
    used, counts = np.zeros(steps), np.zeros(steps)
    energy = dict.fromkeys(METERS, 0)
    for reading in readings:
        step = (reading.at - start) // STEP_MS
        if not 0 <= step < steps:
            continue
        energy[reading.meter] += micro_wh(reading.wh)
        if reading.meter == "main":
            used[step] += reading.wh
            counts[step] += 1
    with np.errstate(invalid="ignore"):
        power_kw = used * 60 / 1000 / counts
    energy_wh = {meter: micro / 1_000_000 for meter, micro in energy.items()}
    return Week(title, start, power_kw, energy_wh, tuple(slices))


def comparison(before: Week, after: Week) -> Table:
    """Return a table of each meter's energy in both weeks, and the change."""
    table = Table(title="Energy used, in watt-hours")
    table.add_column("meter")
    table.add_column(before.title, justify="right")
    table.add_column(after.title, justify="right")
    table.add_column("change", justify="right")
    for meter in METERS:
        old, new = before.energy_wh[meter], after.energy_wh[meter]
        change = f"{(new - old) / old:+.2%}" if old else "–"
        table.add_row(meter, f"{old:,.3f}", f"{new:,.3f}", change)
    return table


def draw(weeks: Sequence[Week], path: Path) -> None:
    """Draw a PNG of the weeks, one below the other on the same scales: power, and each meter's slices as bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    top = max(float(np.nanmax(week.power_kw, initial=1.0)) for week in weeks) * 1.08
    lane = top * 0.055  # each meter's slices have their own lane below the power
    floor = -lane * (len(METERS) + 0.6)
    figure, axes = plt.subplots(
        len(weeks), 1, figsize=(13, 3.6 * len(weeks) + 1.2), sharex=True, squeeze=False, layout="constrained"
    )
    figure.suptitle("One household, the same week in two years: power and its slices", fontsize=14)
    for axis, week in zip(axes[:, 0], weeks, strict=True):
        days = np.arange(len(week.power_kw)) * STEP_MS / DAY_MS
        axis.fill_between(days, week.power_kw, step="post", color=_FILL, linewidth=0)
        axis.step(days, week.power_kw, where="post", color=_LINE, linewidth=0.8)
        for row, meter in enumerate(METERS):
            bars = [
                ((slice_.start - week.start) / DAY_MS, (slice_.end - slice_.start) / DAY_MS)
                for slice_ in week.slices
                if slice_.meter == meter
            ]
            axis.broken_barh(bars, (-lane * (row + 1.3), lane * 0.8), color=_COLOURS[meter], linewidth=0.4)
        total = week.energy_wh["main"] / 1000
        axis.set_title(f"{week.title}: {total:,.1f} kWh, {len(week.slices)} slices", loc="left", fontsize=11)
        axis.set_ylabel("main meter, kW")
        axis.set_ylim(floor, top)
        axis.set_yticks(range(int(top) + 1))
        axis.set_xlim(0, 7)
        axis.axhline(0, color="#555555", linewidth=0.6)
        axis.set_xticks([day + 0.5 for day in range(7)], _DAYS)
        axis.set_xticks(range(8), minor=True)  # midnights
        axis.tick_params(axis="x", which="major", length=0)
        axis.grid(axis="x", which="minor", color="#bbbbbb", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=_FILL, label=f"mean power, {STEP_MS // MINUTE_MS} minutes")]
    handles += [Patch(color=_COLOURS[meter], label=f"slices: {meter}") for meter in METERS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
