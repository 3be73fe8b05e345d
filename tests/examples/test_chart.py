"""The demo's table and chart, from a few readings."""

from pathlib import Path

import numpy as np
from rich.console import Console

from examples.smart_meters.chart import STEP_MS, Week, comparison, draw, summarise
from examples.smart_meters.readings import MINUTE_MS, Reading, week
from examples.smart_meters.slices import Slice


def a_week(year: int, wh: float) -> Week:
    start, end = week(year, 45)
    readings = [Reading("main", start + minute * MINUTE_MS, wh) for minute in range(40)]
    readings += [Reading("climate", start, wh / 2), Reading("main", end, 9_999.0)]
    slices = [Slice("main", start, start + 40 * MINUTE_MS, 1, (0, 0), (0, 1))]
    return summarise(f"{year}, week 45", start, readings, slices)


def test_a_week_is_summarised() -> None:
    one = a_week(2009, 10.0)
    assert one.energy_wh == {"main": 400.0, "kitchen": 0.0, "laundry": 0.0, "climate": 5.0}
    assert len(one.power_kw) == 7 * 24 * 60 * MINUTE_MS // STEP_MS
    np.testing.assert_allclose(one.power_kw[:3], 0.6)  # the third quarter of an hour is covered in part
    assert np.isnan(one.power_kw[3:]).all()


def test_the_table_compares_meters() -> None:
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as shown:
        console.quiet = False
        console.print(comparison(a_week(2009, 10.0), a_week(2010, 12.5)))
    rows = {line.split()[1]: line.split() for line in shown.get().splitlines() if line.count("│") == 5}
    assert rows["main"][3::2] == ["400.000", "500.000", "+25.00%"]
    assert rows["kitchen"][-2] == "–"


def test_the_chart_is_a_png(tmp_path: Path) -> None:
    draw([a_week(2009, 10.0), a_week(2010, 12.5)], tmp_path / "weeks.png")
    assert (tmp_path / "weeks.png").read_bytes().startswith(b"\x89PNG")
