"""Events at a steady rate, without waiting for each: the times of their acknowledgements.

The time is from the call to the acknowledgement. A late writer sends all due events at once, so the rate is kept if
possible; `rate` of the result shows whether it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.events import percentile
from nadi.client.aio import Ack

LEAST_SLEEP_S = 0.000_2


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds of each acknowledgement, sorted; rate: events/s written and acknowledged."""

    seconds: list[float]
    rate: float

    def ms(self, part: int) -> float:
        """Return a percentile, in milliseconds.

        >>> Waits([0.001, 0.002, 0.003, 0.004], 10.0).ms(50)
        3.0
        """
        return percentile(self.seconds, part)


def steadily(
    write: Callable[[int], Ack], rate: float, seconds: float, flush: Callable[[], object], *, warm_s: float = 0.0
) -> Waits:
    """Call `write` with 0, 1, 2 and so on, `rate` times a second; the first `warm_s` seconds aren't measured.

    flush: waits for all events, and raises if one failed.
    """
    noted: list[tuple[float, float]] = []
    count = int(rate * seconds)
    began = time.perf_counter()
    for number in range(count):
        wait = began + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(max(wait, LEAST_SLEEP_S))
        write(number).add_done_callback(partial(_note, noted, time.perf_counter()))
    flush()
    rate = count / (time.perf_counter() - began)
    warm = began + warm_s
    late = [done - sent for sent, done in noted if sent >= warm]
    assert len(noted) == count, "each is acknowledged once"
    return Waits(sorted(late), rate)


def _note(noted: list[tuple[float, float]], sent: float, _: object) -> None:
    noted.append((sent, time.perf_counter()))
