"""The meters' budgets, and the plain computation of the alerts.

>>> readings = [Reading("kitchen", minute * MINUTE_MS, 160.0) for minute in (0, 1, 2, 60)]
>>> expected(readings)
{('kitchen', 0): 320000000}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from examples.smart_meters.readings import MINUTE_MS, Reading
from examples.smart_meters.slices import micro_wh

METERS, ALERTS = "meters", "alerts"
HOUR_MS = 60 * MINUTE_MS
BUDGETS = {  # micro-watt-hours within an hour
    "main": 2_000_000_000,
    "kitchen": 300_000_000,
    "laundry": 300_000_000,
    "climate": 800_000_000,
}


def expected(readings: Iterable[Reading]) -> dict[tuple[str, int], int]:
    """Return the sum at each meter's first reading above its budget, by meter and hour."""
    used: Counter[tuple[str, int]] = Counter()
    alerts: dict[tuple[str, int], int] = {}
    for reading in readings:
        hour = reading.meter, reading.at // HOUR_MS
        used[hour] += micro_wh(reading.wh)
        if used[hour] > BUDGETS[reading.meter]:
            alerts.setdefault(hour, used[hour])
    return alerts
