"""How far background work gives way to frames."""

from __future__ import annotations

import pytest

from nadi.limits import COURTESY_LONGEST_S, COURTESY_MOST_TIMES, LOG_QUICK_FRAME_BYTES
from nadi.segmentstore.container.checkpoints import BackgroundThrottle


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def written(throttle: BackgroundThrottle, clock: Clock, count: int, took_s: float, size: int = 1_000) -> None:
    for _ in range(count):
        clock.now += 0.001
        throttle.took(took_s, size)


def test_nothing_pauses_while_frames_take_what_they_take_at_rest() -> None:
    throttle = BackgroundThrottle(clock := Clock())
    assert throttle.pause("moving", 1.0) == 0, "nobody has written"
    written(throttle, clock, 500, 0.000_3)
    assert throttle.pause("moving", 1.0) == 0
    assert not throttle.paused_s


def test_the_slower_frames_are_the_longer_is_the_pause_up_to_a_limit() -> None:
    throttle = BackgroundThrottle(clock := Clock())
    written(throttle, clock, 500, 0.000_3)
    written(throttle, clock, 500, 0.000_9)
    assert throttle.pause("moving", 0.01) == pytest.approx(0.02, rel=0.01)
    written(throttle, clock, 500, 0.02)
    assert throttle.pause("moving", 0.01) == pytest.approx(0.01 * COURTESY_MOST_TIMES)
    assert throttle.pause("compaction", 10.0) == COURTESY_LONGEST_S
    assert throttle.paused_s["moving"] == pytest.approx(0.06, rel=0.01)
    assert throttle.paused_s["compaction"] == COURTESY_LONGEST_S


def test_large_frames_say_nothing_and_neither_does_what_is_long_ago() -> None:
    throttle = BackgroundThrottle(clock := Clock())
    written(throttle, clock, 500, 0.000_3)
    written(throttle, clock, 500, 0.02, LOG_QUICK_FRAME_BYTES + 1)
    assert throttle.pause("moving", 0.01) == 0
    written(throttle, clock, 500, 0.02)
    clock.now += 1.0
    assert throttle.pause("moving", 0.01) == 0, "nobody waits"


def test_a_disk_that_stays_slow_is_not_waited_for() -> None:
    """After a minute its speed is what there is."""
    throttle = BackgroundThrottle(clock := Clock())
    written(throttle, clock, 500, 0.000_3)
    written(throttle, clock, 30_000, 0.002)
    assert throttle.pause("moving", 0.01) > 0
    written(throttle, clock, 70_000, 0.002)
    assert throttle.pause("moving", 0.01) == 0
