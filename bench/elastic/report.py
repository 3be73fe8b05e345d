"""The results of a run, printed and as figures."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.elastic.parts import SCOPE, STREAM, ms_now
from bench.elastic.run import Outcome
from bench.elastic.verdict import Verdict

ROWS = 40  # of the table of rates


def show(console: Console, title: str, outcome: Outcome) -> None:
    console.print(_rates(title, outcome))
    console.print(_scalings(outcome))
    console.print(_verdicts(outcome))
    for name, value in figures(outcome).items():
        if isinstance(value, float | int | str):
            console.print(f"{name}: {value}")
    for decision in outcome.log:
        if decision.kind == "hot-key":
            console.print(f"hot key, {_time(decision.at_ms)}: {decision.why}")


def figures(outcome: Outcome) -> dict[str, Any]:
    late_s = max((note["late_s"] for note in outcome.progress), default=0.0)
    kinds = Counter(scaling.kind for scaling in outcome.scalings)
    waits = {kind: [one.reaction_s for one in outcome.scalings if one.kind == kind] for kind in kinds}
    reactions = {kind: [wait for wait in found if wait is not None] for kind, found in waits.items()}
    p50, p99, most = outcome.waits_s
    return {
        "events": outcome.group.written,
        "highest rate, events/s": max(outcome.rates),
        "writer late by at most, s": round(late_s, 2),
        "segments, at most": max((len(sample.rates) for sample in outcome.samples), default=0),
        "splits": kinds["split"],
        "merges": kinds["merge"],
        "hot keys": sum(decision.kind == "hot-key" for decision in outcome.log),
        "reaction of a split, median, s": _rounded(median(reactions["split"])) if reactions.get("split") else "",
        "reaction of a split, at most, s": _rounded(max(reactions["split"])) if reactions.get("split") else "",
        "written to read, p50, s": _rounded(p50),
        "written to read, p99, s": _rounded(p99),
        "written to read, at most, s": _rounded(most),
        "events of each reader": ", ".join(f"{share:,}" for share in outcome.shares),
        "batches of the query": outcome.batches,
        "server memory at its peak, MB": round(outcome.memory_bytes / 1e6),
        "machine": f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end, this run's included",
        "group": _plain(outcome.group),
        "query": _plain(outcome.query) if outcome.query is not None else None,
        "scalings": [
            {"at_s": (one.at_ms - outcome.began_ms) / 1000, "kind": one.kind, "before": one.before, "after": one.after}
            | {"reaction_s": one.reaction_s}
            for one in outcome.scalings
        ],
    }


def draw(outcome: Outcome, file: Path) -> None:
    """Draw the picture of `nadi stream segments --picture`."""
    from nadi import charts

    charts.check_file(file)
    end_ms = outcome.progress[-1]["at_ms"] if outcome.progress else ms_now()
    charts.save(charts.spans_of(outcome.history, end_ms, 0), file, f"{SCOPE}/{STREAM}")


def _rates(title: str, outcome: Outcome) -> Table:
    table = Table(title=title)
    for column in ("time", "offered, events/s", "segments", "busiest, events/s", "changes"):
        table.add_column(column, justify="right")
    step_s = max(1, len(outcome.rates) // ROWS)
    for start_s in range(0, len(outcome.rates), step_s):
        rates = outcome.rates[start_s : start_s + step_s]
        from_ms = outcome.began_ms + start_s * 1000
        within = range(from_ms, from_ms + step_s * 1000)
        samples = [sample for sample in outcome.samples if sample.at_ms in within]
        counts = [len(sample.rates) for sample in samples]
        least, most = min(counts, default=0), max(counts, default=0)
        table.add_row(
            f"{start_s // 60}:{start_s % 60:02}",
            f"{sum(rates) / len(rates):,.0f}",
            f"{least}" if least == most else f"{least} to {most}",
            f"{max((sample.highest for sample in samples), default=0):,.0f}",
            ", ".join(f"{one.before} → {one.after}" for one in outcome.scalings if one.at_ms in within),
        )
    return table


def _scalings(outcome: Outcome) -> Table:
    table = Table(title="scalings")
    for column in ("time", "what", "replaced", "made", "segments", "reaction, s"):
        table.add_column(column, justify="right")
    for one in outcome.scalings:
        seconds = (one.at_ms - outcome.began_ms) / 1000
        reaction = "" if one.reaction_s is None else f"{one.reaction_s:.1f}"
        table.add_row(
            f"{seconds // 60:.0f}:{seconds % 60:04.1f}",
            one.kind,
            f"{one.replaced}",
            f"{one.made}",
            f"{one.after}",
            reaction,
        )
    return table


def _verdicts(outcome: Outcome) -> Table:
    table = Table(title="every event once, each key's in order")
    for column in ("reader", "written", "read", "lost", "doubled", "out of order", "unknown", "verdict"):
        table.add_column(column, justify="right")
    for name, verdict in (("group of readers", outcome.group), ("Spark query", outcome.query)):
        if verdict is not None:
            counts = (
                verdict.written, verdict.read, verdict.lost, verdict.doubled, verdict.disordered, verdict.unknown
            )  # fmt: skip
            table.add_row(name, *(f"{count:,}" for count in counts), "good" if verdict.is_good else "BAD")
    return table


def _plain(verdict: Verdict) -> dict[str, int]:
    return {name: getattr(verdict, name) for name in Verdict.__slots__}


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
