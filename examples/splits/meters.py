"""The stream to read: readings of a house's meters, half of them from one, while segments are split and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import nadi

STREAM = "meters"
SCHEMA = "meter string, wh long"
METERS = ("oven", "hall", "lamp", "pump", "attic", "heating")


def readings(count: int) -> Iterator[tuple[str, int]]:
    """Yield meter and watt-hours; every other reading is the heating's.

    >>> list(readings(4))
    [('heating', 0), ('hall', 1), ('heating', 2), ('pump', 3)]
    """
    for number in range(count):
        yield ("heating" if number % 2 == 0 else METERS[number % 5]), number % 1_000


def produce(manager: nadi.StreamManager, scope: str, count: int, on_written: Callable[[int], object]) -> dict[str, int]:
    """Write the readings; return the watt-hours of each meter. on_written: called with the number just written."""
    manager.create_stream(scope, STREAM, 2)
    cuts = manager.cuts(scope, STREAM)
    totals = dict.fromkeys(METERS, 0)
    with manager.create_writer(scope, STREAM) as writer:
        for number, (meter, wh) in enumerate(readings(count)):
            event = b'{"meter":"%s","wh":%d,"note":"%s"}' % (meter.encode(), wh, b"." * (number % 300))
            writer.write_event(event, meter)
            totals[meter] += wh
            if number == count // 3:
                writer.flush()
                manager.scale_stream(scope, STREAM, [0], [(0.0, 0.2), (0.2, 0.5)])
            if number == count * 2 // 3:
                writer.flush()
                merged = sorted(cuts.tail().positions)[-2:]
                manager.scale_stream(scope, STREAM, merged, [(0.0, 0.5)])
            if number % 1_000 == 999:
                on_written(1_000)
    on_written(count % 1_000)
    return totals
