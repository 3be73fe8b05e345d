"""Writes a shop's sales and returns into the streams `sales` and `returns`: three months within seconds.

The routing key is the customer. Lines are stored up to six hours of the shop's time out of order.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import nadi
from examples.programs import job_parser
from examples.returns.extract import EXTRACT
from examples.returns.shop import SHUFFLED_MS, WRITTEN_MS, Line, closing, lines_of
from examples.running import INTERRUPTED

SALES, RETURNS = "sales", "returns"


def shuffled(lines: Sequence[Line], seed: int = 1) -> list[Line]:
    """Return the lines in the order of storage."""
    chance = random.Random(seed)
    times = [(line.at + chance.randrange(SHUFFLED_MS), number) for number, line in enumerate(lines)]
    return [lines[number] for _, number in sorted(times)]


def some_lines(most: int | None = None) -> list[Line]:
    """Return the first lines of the extract, or all, in the order of storage; the last two close the streams."""
    lines = list(lines_of(EXTRACT))[:most]
    return [*shuffled(lines), *closing(lines)]


def pieces(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield the lines to write at once: at most WRITTEN_MS of them."""
    piece: list[Line] = []
    for line in lines:
        if piece and line.at > piece[0].at + WRITTEN_MS:
            yield piece
            piece = []
        piece.append(line)
    yield piece


def produce(
    manager: nadi.StreamManager,
    scope: str,
    lines: Sequence[Line],
    seconds: float,
    on_written: Callable[[int], object] = lambda count: None,
) -> None:
    """Write the lines within about `seconds`. on_written: called with the number just written."""
    began, count = time.monotonic(), 0
    with ExitStack() as stack:
        writers = [stack.enter_context(manager.create_writer(scope, stream)) for stream in (SALES, RETURNS)]
        for batch in pieces(lines):
            for is_return, writer in enumerate(writers):
                selected = [line for line in batch if line.is_return == bool(is_return)]
                writer.write_batch([line.event() for line in selected], [line.customer for line in selected])
                writer.flush()
            on_written(len(batch))
            count += len(batch)
            due = began + seconds * count / len(lines)
            time.sleep(max(0.0, due - time.monotonic()))


def create_streams(manager: nadi.StreamManager, scope: str) -> None:
    for stream, segments in ((SALES, 3), (RETURNS, 2)):
        manager.create_stream(scope, stream, segments)


def main() -> int:
    options = job_parser("examples.returns.producer", __doc__)
    options.add_argument("--seconds", type=float, default=30, help="to write them in (default: 30)")
    given = options.parse_args()
    lines = some_lines()
    with nadi.StreamManager(given.controller) as manager:
        try:
            manager.create_scope(given.scope)
            create_streams(manager, given.scope)
            produce(manager, given.scope, lines, given.seconds)
        except KeyboardInterrupt:
            return INTERRUPTED
    print(f"{len(lines)} lines written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
