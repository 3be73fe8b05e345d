"""The producer: writes the sensors' readings into the stream `readings`, with the sensor as routing key.

Halfway the stream's segments are split, as in a stream with a scaling policy under load: each sensor's readings stay in
order, and continue in another segment.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import nadi
from examples.programs import job_parser
from examples.running import INTERRUPTED
from examples.sensor_slices.waves import SENSORS, Reading, sensors, value_of

READINGS, SLICES, AGGREGATES = "readings", "slices", "aggregates"
_PIECES = 100


def create_streams(manager: nadi.StreamManager, scope: str) -> None:
    for stream, segments in ((READINGS, 2), (SLICES, 2), (AGGREGATES, 1)):
        manager.create_stream(scope, stream, segments)


def produce(
    manager: nadi.StreamManager,
    scope: str,
    readings: range,
    seconds: float,
    on_written: Callable[[int], object] = lambda count: None,
) -> None:
    """Write these readings of all sensors within about `seconds`. on_written: called with the number just written."""
    names = sensors()
    size = max(1, -(-len(readings) // _PIECES))
    began = time.monotonic()
    with manager.create_writer(scope, READINGS) as writer:
        is_split = False
        for low in range(0, len(readings), size):
            if not is_split and low >= len(readings) // 2:
                is_split = split(manager, scope)
            numbers = readings[low : low + size]
            batch = [Reading(name, number, value_of(name, number)) for number in numbers for name in names]
            writer.write_batch([reading.event() for reading in batch], [reading.sensor for reading in batch])
            writer.flush()
            on_written(len(batch))
            due = began + seconds * (low + size) / len(readings)
            time.sleep(max(0.0, due - time.monotonic()))


def split(manager: nadi.StreamManager, scope: str) -> bool:
    """Split each segment of the readings into two halves."""
    for segment in manager.current_segments(scope, READINGS):
        middle = (segment.low + segment.high) / 2
        manager.scale_stream(scope, READINGS, [segment.segment_id], [(segment.low, middle), (middle, segment.high)])
    return True


def main() -> int:
    options = job_parser("examples.sensor_slices.producer", __doc__)
    options.add_argument("--readings", type=int, default=3_000, help="of each sensor (default: 3000)")
    options.add_argument("--seconds", type=float, default=30, help="to write them in (default: 30)")
    given = options.parse_args()
    with nadi.StreamManager(given.controller) as manager:
        try:
            manager.create_scope(given.scope)
            create_streams(manager, given.scope)
            produce(manager, given.scope, range(given.readings), given.seconds)
        except KeyboardInterrupt:
            return INTERRUPTED
    print(f"{given.readings} readings written of each of {SENSORS} sensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
