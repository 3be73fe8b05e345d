"""The demo: compare a household's energy use this week with the same week a year ago.

`script/demo` runs it. It starts its own nadi server, loads a year of a household's readings, then plays this year's
week while a Spark streaming job finds slices of high power; each slice is read again between its two cuts and must
agree to the last digit. The week of a year ago is cut by date, and the same job runs on it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

import nadi
from examples.programs import spark_session
from examples.smart_meters import jobs, stage
from examples.smart_meters.chart import comparison, draw, summarise
from examples.smart_meters.extract import YEAR, full_data
from examples.smart_meters.readings import METERS, week

console = Console(highlight=False)
LIVE = (2010, 45)
BEFORE = (2009, 45)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/demo", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder for the server's data (default: a temporary one, removed)")
    parser.add_argument("--page", type=int, metavar="PORT", help="serve the live page on this port")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--chart", type=Path, default=Path("demo-output/weeks.png"), help="file of the chart")
    parser.add_argument("--full", action="store_true", help="download and play all four years: 8.2 million events")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.data is not None and options.data.exists() and any(options.data.iterdir()):
        console.print(f"[red]error:[/red] {options.data} is not empty: choose a new folder for --data")
        return 2
    folder = options.data or Path(tempfile.mkdtemp(prefix="nadi-demo-"))
    try:
        return run(options, folder)
    except nadi.NadiError as error:
        console.print(f"[red]error:[/red] {error}")
        return 1
    finally:
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)


def run(options: argparse.Namespace, folder: Path) -> int:
    began = time.monotonic()
    source = full_data(folder) if options.full else YEAR
    with (
        nadi.embedded(folder / "server", rest_port=options.page) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        console.print(f"nadi serves {server.controller_uri}; readings from [bold]{source.name}[/bold]")
        if server.rest_uri:
            console.print(f"the live page is at {server.rest_uri}")
        household = stage.prepare(manager, server.controller_uri)
        stage.load_history(household, source, before=week(*LIVE)[0], console=console)
        with spark_session("smart meters", folder / "spark", is_brief=not options.full) as spark:
            live = stage.play_live(household, spark, source, LIVE, folder / "checkpoint", console)
            weeks_cut = {when: stage.cut_week(household, when) for when in (BEFORE, LIVE)}
            replayed = stage.replay(household, spark, live, console)
            before = jobs.slices_of(spark, household, *weeks_cut[BEFORE])
            energies = {when: jobs.energy_by_meter(spark, household, *weeks_cut[when]) for when in (BEFORE, LIVE)}
            weeks = {}
            inside = {when: _within(when, slices) for when, slices in ((BEFORE, before), (LIVE, live))}
            for when, slices in inside.items():
                readings = jobs.readings_of(spark, household, *weeks_cut[when])
                stretches = [found.slice() for found in slices]
                weeks[when] = summarise(f"{when[0]}, week {when[1]}", week(*when)[0], readings, stretches)
        memory = server.memory_bytes()
    options.chart.parent.mkdir(parents=True, exist_ok=True)
    draw([weeks[BEFORE], weeks[LIVE]], options.chart)
    agree = sum(found.energy_micro_wh == again for found, again in zip(live, replayed, strict=True))
    console.print(slices_table(weeks[BEFORE].title, inside[BEFORE], weeks[LIVE].title, inside[LIVE]))
    console.print(comparison(weeks[BEFORE], weeks[LIVE]))
    console.print(f"slices found live: {len(live)}; replays that agree to the last digit: {agree}")
    console.print(f"chart: {options.chart}; took {time.monotonic() - began:.0f} s")
    if options.json is not None:
        result = {
            "energy_wh": {f"{y}-W{w}": {m: energies[(y, w)][m] / 1e6 for m in METERS} for y, w in (BEFORE, LIVE)},
            "change_percent": {
                m: round(100 * (energies[LIVE][m] / energies[BEFORE][m] - 1), 2) for m in METERS if energies[BEFORE][m]
            },
            "slices": {"live": len(live), "replayed_equal": agree, "last_year": len(before)},
            "live_slices": [msgspec.to_builtins(found) for found in live],
            "server_memory_bytes": memory,
            "chart": str(options.chart),
            "seconds": round(time.monotonic() - began, 1),
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    if agree != len(live):
        console.print("[red]some replays differ from the live result[/red]")
        return 1
    return 0


def _within(when: stage.Week, slices: list[jobs.FoundSlice]) -> list[jobs.FoundSlice]:
    """Return the slices that start in the week: with all the data, the live job continues past it."""
    begin, end = week(*when)
    return [found for found in slices if begin <= found.start < end]


def slices_table(
    title_before: str, before: list[jobs.FoundSlice], title_after: str, after: list[jobs.FoundSlice]
) -> Table:
    """Return a table of each meter's slices in both weeks: their number and energy."""
    table = Table(title="Slices above the threshold")
    table.add_column("meter")
    for title in (title_before, title_after):
        table.add_column(title, justify="right")
        table.add_column("Wh in them", justify="right")
    for meter in METERS:
        row = [meter]
        for found in (before, after):
            mine = [s for s in found if s.meter == meter]
            row += [str(len(mine)), f"{sum(s.energy_micro_wh for s in mine) / 1e6:,.0f}"]
        table.add_row(*row)
    return table


if __name__ == "__main__":
    sys.exit(main())
