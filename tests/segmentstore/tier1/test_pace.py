"""Which frames are written in the loop's thread."""

from __future__ import annotations

from nadi.limits import LOG_QUICK_FRAME_BYTES, LOG_QUICK_PAUSE_S, LOG_QUICK_WRITE_S
from nadi.segmentstore.tier1.pace import Pace

QUICK_S = LOG_QUICK_WRITE_S / 3


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_small_frames_on_a_quick_disk() -> None:
    pace = Pace(Clock())
    for _ in range(100):
        assert pace.is_quick(LOG_QUICK_FRAME_BYTES)
        pace.took(QUICK_S)
    assert not pace.is_quick(LOG_QUICK_FRAME_BYTES + 1)


def test_a_slow_disk_holds_the_loop_up_once_in_a_while() -> None:
    clock = Clock()
    pace = Pace(clock)
    here = 0
    for _ in range(1000):
        if pace.is_quick(100):
            here += 1
            pace.took(0.005)
        clock.now += LOG_QUICK_PAUSE_S / 100
    assert here == 10


def test_a_disk_that_stands_still_is_tried_again_later() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(50):
        pace.took(QUICK_S)
    pace.took(0.1)
    assert not pace.is_quick(100)
    clock.now += LOG_QUICK_PAUSE_S
    assert pace.is_quick(100)
    pace.took(QUICK_S)
    assert pace.is_quick(100)


def test_a_single_slower_write_among_quick_ones_changes_nothing() -> None:
    pace = Pace(Clock())
    for number in range(1000):
        pace.took(3 * LOG_QUICK_WRITE_S if number % 50 == 0 else QUICK_S)
        assert pace.is_quick(100)
