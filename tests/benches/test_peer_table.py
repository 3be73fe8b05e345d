"""The cells of `script/bench peers`: medians, words, and nothing."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from bench.peer_table import ROWS, Column, Failure, Row, cell, found_in, table_of, value_of

TAIL = Row("tail, p50", "tail", "p50", "ms")
MEMORY = next(row for row in ROWS if row.part == "memory")


def test_the_median_of_the_runs_counts() -> None:
    assert value_of(TAIL, {"tail": [{"p50": 1.0}, {"p50": 9.0}, {"p50": 2.0}]}) == 2.0


def test_who_keeps_less_than_nine_tenths_of_a_rate_is_overloaded() -> None:
    assert value_of(TAIL, {"tail": [{"p50": 1.0, "share": 0.9}]}) == 1.0
    assert value_of(TAIL, {"tail": [{"p50": 1.0, "share": 0.89}]}) == "overloaded"
    runs = [{"p50": 1.0, "share": 0.5}, {"p50": 3.0, "share": 1.0}, {"p50": 2.0, "share": 0.95}]
    assert value_of(TAIL, {"tail": runs}) == 2.0, "the median of the shares counts, too"


def test_works_that_fail_or_are_not_done_have_no_figure() -> None:
    assert value_of(TAIL, {"tail": Failure("it ended")}) == "failed"
    assert value_of(TAIL, {}) is None
    assert value_of(TAIL, {"tail": [{"p99": 3.0}]}) is None


def test_memory_is_the_most_of_all_works() -> None:
    column: Column = {
        "tail": [{"p50": 1.0, "memory": 80.0}, {"p50": 1.0, "memory": 95.0}],
        "read": [{"mb": 1.0, "memory": 90.0}],
        "disk": Failure("it ended"),
        "start": [{"seconds": 1.0}],
    }
    assert value_of(MEMORY, column) == 95.0
    assert value_of(MEMORY, {"start": [{"seconds": 1.0}]}) is None


def test_cells() -> None:
    assert [cell(None), cell("failed"), cell(0.41327), cell(999.4), cell(585_123.4)] == [
        "",
        "failed",
        "0.413",
        "999",
        "585,123",
    ]


def test_the_table_and_the_figures_say_the_same() -> None:
    columns: dict[str, Column] = {
        "one": {"tail": [{"p50": 1.5, "p99": 4.0}], "spread-on-100": [{"p95": 600.0, "share": 0.7}]},
        "other": {"tail": Failure("it ended")},
    }
    text = StringIO()
    Console(file=text, width=160).print(table_of("a title", columns))
    rows = [[part.strip() for part in line.split("│")[1:-1]] for line in text.getvalue().splitlines()]
    assert [row for row in rows if len(row) == 3 and row[0] != "figure"] == [
        ["written to read at 10,000/s, p50 (ms)", "1.5", "failed"],
        ["written to read at 10,000/s, p99 (ms)", "4", "failed"],
        ["20 MB/s on 100 segments: ack p95 (ms)", "overloaded", ""],
    ]
    assert [(each["peer"], each["value"], each.get("word")) for each in found_in(columns)] == [
        ("one", 1.5, None),
        ("other", None, "failed"),
        ("one", 4.0, None),
        ("other", None, "failed"),
        ("one", None, "overloaded"),
    ]
