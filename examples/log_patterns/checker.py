"""The checker: reads `lines` and `patterns`, and says whether what was found is what a plain computation finds."""

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
    """Counts that are missing, wrong, or there twice, among so many of windows that are over."""

    found: dict[Found, int]
    missing: int
    wrong: int
    twice: int
    errors: int  # of lines in windows that are over
    growing: int  # of lines in windows that are not

    @property
    def is_right(self) -> bool:
        return bool(self.found) and not (self.missing or self.wrong or self.twice)

    @property
    def too_late(self) -> int:
        return sum(count for (_, _, what), count in self.found.items() if what == TOO_LATE)


def compare(lines: Iterable[bytes], patterns: Iterable[bytes]) -> Verdict:
    """What the job wrote beside what a plain computation over all lines finds."""
    over, growing = counted(lines)
    told = [msgspec.json.decode(event, type=Counted) for event in patterns]
    times = Counter((one.window, one.service, one.pattern) for one in told)
    found = {(one.window, one.service, one.pattern): one.count for one in told}
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
    """The worst windows, and the verdict."""
    table = Table(title="Windows with most errors of a kind")
    for column in ("five minutes from", "service", "errors like", "count"):
        table.add_column(column, justify="right" if column == "count" else "left")
    errors = [item for item in verdict.found.items() if item[0][2] != TOO_LATE]
    for (window, service, pattern), count in sorted(errors, key=lambda item: (-item[1], item[0]))[:5]:
        table.add_row(window, service, pattern, str(count))
    console.print(table)
    console.print(
        f"{verdict.errors} errors in {len(verdict.found)} counts, {verdict.too_late} of them too late for their "
        f"window; {verdict.growing} in windows that are not over"
    )
    if verdict.is_right:
        console.print("[green]equal to the plain computation, each count once[/green]")
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
