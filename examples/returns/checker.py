"""The checker: reads `sales`, `returns` and `pairs`, and says whether the pairs are those of a plain computation."""

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
    """How many pairs are missing, too many or there twice, and what they say."""

    returns: int
    matched: int  # returns that have a sale
    pairs: int
    days: float  # between sale and return: half of the pairs have less
    missing: int
    surplus: int
    twice: int

    @property
    def is_right(self) -> bool:
        return self.pairs > 0 and not (self.missing or self.surplus or self.twice)


def compare(sales: Iterable[bytes], returns: Iterable[bytes], pairs: Iterable[bytes]) -> Verdict:
    """What the job wrote beside what a plain join over all lines gives."""
    sold, back = [read(event) for event in sales], [read(event) for event in returns]
    expected = set(joined(sold, back))
    told = Counter((one.back, one.sale) for one in (msgspec.json.decode(event, type=Found) for event in pairs))
    times = {line.id: line.at for line in (*sold, *back)}
    between = [(times[one] - times[sale]) / DAY_MS for one, sale in expected if sale is not None]
    return Verdict(
        returns=len({one for one, _ in expected}),
        matched=len({one for one, sale in expected if sale is not None}),
        pairs=len(told),
        days=median(between or [0.0]),
        missing=len(expected - told.keys()),
        surplus=len(told.keys() - expected),
        twice=told.total() - len(told),
    )


def read_and_compare(manager: nadi.StreamManager, scope: str) -> Verdict:
    streams = []
    for stream in (SALES, RETURNS, PAIRS):
        tail = manager.stream_info(scope, stream).tail
        streams.append([event.data for event in manager.read_events(scope, stream, end=tail)])
    return compare(*streams)


def show(verdict: Verdict, console: Console) -> None:
    console.print(
        f"{verdict.returns} returns: {verdict.matched} of something bought within thirty days before, half of that "
        f"{verdict.days:.1f} days or less before; {verdict.returns - verdict.matched} of nothing that is known"
    )
    if verdict.is_right:
        console.print(f"[green]{verdict.pairs} pairs, equal to those of the plain computation, each once[/green]")
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
