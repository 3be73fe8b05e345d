"""Writes the services' log lines into the stream `lines`: an hour and a half of them within seconds.

The routing key is the host, as each host's shipper sends its lines in order.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import nadi
from examples.log_patterns.lines import WRITTEN_MS, Line, generated
from examples.programs import job_parser
from examples.running import INTERRUPTED

LINES = "lines"


def produce(
    manager: nadi.StreamManager,
    scope: str,
    minutes: float,
    a_minute: int,
    seconds: float,
    on_written: Callable[[int], object] = lambda count: None,
) -> int:
    """Write the lines of that many minutes within about `seconds`; return their number. on_written: called with
    counts."""
    lines = list(generated(minutes, a_minute))
    size = max(1, a_minute * WRITTEN_MS // 60_000)
    began = time.monotonic()
    with manager.create_writer(scope, LINES) as writer:
        for low in range(0, len(lines), size):
            batch = lines[low : low + size]
            write(writer, batch)
            writer.flush()
            on_written(len(batch))
            due = began + seconds * (low + len(batch)) / len(lines)
            time.sleep(max(0.0, due - time.monotonic()))
    return len(lines)


def write(writer: nadi.EventWriter, lines: Sequence[Line]) -> None:
    """Write some lines, and an event that isn't one: a Java exception has lines of its own."""
    writer.write_batch([line.event() for line in lines], [line.host for line in lines])
    writer.write_event(b"    at shop.Cart.total(Cart.java:42)", routing_key=lines[0].host)


def main() -> int:
    options = job_parser("examples.log_patterns.producer", __doc__)
    options.add_argument("--minutes", type=float, default=90, help="of log (default: 90)")
    options.add_argument("--a-minute", type=int, default=400, help="lines in each (default: 400)")
    options.add_argument("--seconds", type=float, default=30, help="to write them in (default: 30)")
    given = options.parse_args()
    with nadi.StreamManager(given.controller) as manager:
        try:
            manager.create_scope(given.scope)
            manager.create_stream(given.scope, LINES, 3)
            count = produce(manager, given.scope, given.minutes, given.a_minute, given.seconds)
        except KeyboardInterrupt:
            return INTERRUPTED
    print(f"{count} lines written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
