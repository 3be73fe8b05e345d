"""The table of `script/bench peers`: its rows, and the cells of a peer's runs.

A cell is empty if the peer can't do the work, `overloaded` if it kept less than 0.9 of the requested rate (its queues
only grow, so its latencies mean nothing), and `failed` if one of its runs failed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.peer_work import ACK_RATE, SPREAD_RATE, TAIL_RATE, Figures

KEPT = 0.9  # of a rate
OVERLOADED, FAILED = "overloaded", "failed"
SPREAD_OVER = (1, 100, 1_000)  # segments
ALL = "*"  # a row over all works of a peer: the highest


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a work, in one of its runs."""

    text: str


Runs = Sequence[Figures] | Failure
Column = Mapping[str, Runs]  # of a peer, by work


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    work: str
    part: str
    unit: str


def _rows() -> tuple[Row, ...]:
    after = f"ack at {ACK_RATE:,}/s right after full load"
    lone = "one event, then the next: ack"
    tail = f"written to read at {TAIL_RATE:,}/s"
    spread = [
        Row(f"{SPREAD_RATE // 1_000} MB/s on {n:,} segment{'s' * (n > 1)}: ack p95", f"spread-on-{n}", "p95", "ms")
        for n in SPREAD_OVER
    ]
    return (
        Row("write 100 B events", "write-100", "events", "events/s"),
        Row("write 1 KB events", "write-1000", "mb", "MB/s"),
        Row("write 10 KB events", "write-10000", "mb", "MB/s"),
        Row(f"{after}, p50", "after-load", "p50", "ms"),
        Row(f"{after}, p99", "after-load", "p99", "ms"),
        Row(f"{lone} p50", "round-trip", "p50", "ms"),
        Row(f"{lone} p99", "round-trip", "p99", "ms"),
        Row(f"{tail}, p50", "tail", "p50", "ms"),
        Row(f"{tail}, p99", "tail", "p99", "ms"),
        Row("history of 1 KB events", "read", "mb", "MB/s"),
        *spread,
        Row("server memory at its peak", ALL, "memory", "MB"),
        Row("disk bytes a stored byte", "disk", "times", "times"),
        Row("of these, zeros in new log files", "disk", "zeros", "times"),
        Row("process start to first ack", "start", "seconds", "s"),
    )


ROWS = _rows()
WORKS = tuple(dict.fromkeys(row.work for row in ROWS if row.work != ALL))


def value_of(row: Row, column: Column) -> float | str | None:
    """Return the median of a peer's runs, or a word; None without a result."""
    if row.work == ALL:
        figures = [each[row.part] for runs in column.values() for each in _of(runs) if row.part in each]
        return max(figures, default=None)
    runs = column.get(row.work)
    if runs is None:
        return None
    if isinstance(runs, Failure):
        return FAILED
    if statistics.median(each.get("share", 1.0) for each in runs) < KEPT:
        return OVERLOADED
    return statistics.median(each[row.part] for each in runs) if all(row.part in each for each in runs) else None


def _of(runs: Runs) -> Sequence[Figures]:
    return () if isinstance(runs, Failure) else runs


def cell(value: float | str | None) -> str:
    """Format a cell.

    >>> cell(None), cell("overloaded"), cell(0.41327), cell(585_123.4)
    ('', 'overloaded', '0.413', '585,123')
    """
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}"


def table_of(title: str, columns: Mapping[str, Column]) -> Table:
    """Return the table. columns: by the peers' names. Rows without any value are omitted."""
    table = Table(title=title)
    table.add_column("figure", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for row in ROWS:
        cells = [cell(value_of(row, column)) for column in columns.values()]
        if any(cells):
            table.add_row(f"{row.name} ({row.unit})", *cells)
    return table


def found_in(columns: Mapping[str, Column]) -> list[dict[str, object]]:
    """Return each figure as `peer`, `name`, `value` and `unit`; a cell with a word has a `value` of None, and
    `word`."""
    found: list[dict[str, object]] = []
    for row in ROWS:
        for peer, column in columns.items():
            value = value_of(row, column)
            if isinstance(value, str):
                found.append({"peer": peer, "name": row.name, "value": None, "unit": row.unit, "word": value})
            elif value is not None:
                found.append({"peer": peer, "name": row.name, "value": value, "unit": row.unit})
    return found
