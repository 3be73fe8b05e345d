"""The checker: reads `sales`, `returns` and `pairs`, and compares the pairs with a plain computation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import msgspec
from rich.console import Console

import nadi
from examples.programs import job_parser
from examples.returns.producer import RETURNS, SALES
from examples.returns.shop import DAY_MS, joined, read

PAIRS = "pairs"


class Found(msgspec.Struct, frozen=True):
    """An event of `pairs`: a return, and a sale that it may belong to."""

    back: str
    sale: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The number of missing, surplus or duplicate pairs, and statistics of them."""

    returns: int
    matched: int  # returns with a sale
    pairs: int
    days: float  # between sale and return: the median
    missing: int
    surplus: int
    twice: int

    @property
    def is_right(self) -> bool:
        return self.pairs > 0 and not (self.missing or self.surplus or self.twice)


def compare(sales: Iterable[bytes], returns: Iterable[bytes], pairs: Iterable[bytes]) -> Verdict:
    """Compare the job's output with a plain join over all lines."""
    sold, back = [read(event) for event in sales], [read(event) for event in returns]
    expected = set(joined(sold, back))
    written = Counter((pair.back, pair.sale) for pair in (msgspec.json.decode(event, type=Found) for event in pairs))
    times = {line.id: line.at for line in (*sold, *back)}
    between = [(times[returned] - times[sale]) / DAY_MS for returned, sale in expected if sale is not None]
    return Verdict(
        returns=len({returned for returned, _ in expected}),
        matched=len({returned for returned, sale in expected if sale is not None}),
        pairs=len(written),
        days=median(between or [0.0]),
        missing=len(expected - written.keys()),
        surplus=len(written.keys() - expected),
        twice=written.total() - len(written),
    )


def read_and_compare(manager: nadi.StreamManager, scope: str) -> Verdict:
    streams = []
    for stream in (SALES, RETURNS, PAIRS):
        tail = manager.stream_info(scope, stream).tail
        streams.append([event.data for event in manager.read_events(scope, stream, end=tail)])
    return compare(*streams)


def show(verdict: Verdict, console: Console) -> None:
    console.print(
        f"{verdict.returns} returns: {verdict.matched} of items bought within the thirty days before, half of them "
        f"{verdict.days:.1f} days or less before; {verdict.returns - verdict.matched} without a known sale"
    )
    if verdict.is_right:
        console.print(f"[green]{verdict.pairs} pairs, equal to the plain computation, without duplicates[/green]")
    else:
        console.print(f"[red]missing: {verdict.missing}, surplus: {verdict.surplus}, twice: {verdict.twice}[/red]")


def main() -> int:
    options = job_parser("examples.returns.checker", __doc__).parse_args()
    with nadi.StreamManager(options.controller) as manager:
        verdict = read_and_compare(manager, options.scope)
    show(verdict, Console(highlight=False))
    return 0 if verdict.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
