"""The checker: reads `lines` and `patterns`, and compares the job's counts with a plain computation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table

import nadi
from examples.log_patterns.lines import TOO_LATE, Found, counted
from examples.log_patterns.producer import LINES
from examples.programs import job_parser

PATTERNS = "patterns"


class Counted(msgspec.Struct, frozen=True):
    """An event of `patterns`."""

    window: str
    service: str
    pattern: str
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job's counts in finished windows, and how many are missing, wrong, or duplicated."""

    found: dict[Found, int]
    missing: int
    wrong: int
    twice: int
    errors: int  # in finished windows
    growing: int  # in unfinished windows

    @property
    def is_right(self) -> bool:
        return bool(self.found) and not (self.missing or self.wrong or self.twice)

    @property
    def too_late(self) -> int:
        return sum(count for (_, _, kind), count in self.found.items() if kind == TOO_LATE)


def compare(lines: Iterable[bytes], patterns: Iterable[bytes]) -> Verdict:
    """Compare the job's output with a plain computation over all lines."""
    over, growing = counted(lines)
    written = [msgspec.json.decode(event, type=Counted) for event in patterns]
    times = Counter((record.window, record.service, record.pattern) for record in written)
    found = {(record.window, record.service, record.pattern): record.count for record in written}
    return Verdict(
        found,
        missing=len(over.keys() - found.keys()),
        wrong=sum(over.get(key) != count for key, count in found.items()),
        twice=sum(times.values()) - len(times),
        errors=sum(over.values()),
        growing=sum(growing.values()),
    )


def read_and_compare(manager: nadi.StreamManager, scope: str) -> Verdict:
    streams = []
    for stream in (LINES, PATTERNS):
        tail = manager.stream_info(scope, stream).tail
        streams.append([event.data for event in manager.read_events(scope, stream, end=tail)])
    return compare(*streams)


def show(verdict: Verdict, console: Console) -> None:
    """Print the worst windows, and the verdict."""
    table = Table(title="Windows with most errors of a kind")
    for column in ("five minutes from", "service", "errors like", "count"):
        table.add_column(column, justify="right" if column == "count" else "left")
    errors = [item for item in verdict.found.items() if item[0][2] != TOO_LATE]
    for (window, service, pattern), count in sorted(errors, key=lambda item: (-item[1], item[0]))[:5]:
        table.add_row(window, service, pattern, str(count))
    console.print(table)
    console.print(
        f"{verdict.errors} errors in {len(verdict.found)} counts, {verdict.too_late} of them too late for their "
        f"window; {verdict.growing} in unfinished windows"
    )
    if verdict.is_right:
        console.print("[green]equal to the plain computation, without duplicates[/green]")
    else:
        console.print(f"[red]missing: {verdict.missing}, wrong: {verdict.wrong}, twice: {verdict.twice}[/red]")


def main() -> int:
    options = job_parser("examples.log_patterns.checker", __doc__).parse_args()
    with nadi.StreamManager(options.controller) as manager:
        verdict = read_and_compare(manager, options.scope)
    show(verdict, Console(highlight=False))
    return 0 if verdict.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
