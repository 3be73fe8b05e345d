"""The choice of frames that are written in the loop's thread."""

from __future__ import annotations

import pytest

from nadi.limits import (
    LOG_QUICK_FRAME_BYTES,
    LOG_QUICK_LONGEST_PAUSE_S,
    LOG_QUICK_PAUSE_S,
    LOG_QUICK_WRITE_S,
    THROTTLE_MAX_FACTOR,
    THROTTLE_MAX_S,
)
from nadi.segmentstore.container.checkpoints import BackgroundThrottle
from nadi.segmentstore.tier1.files import WritePace

QUICK_S = LOG_QUICK_WRITE_S / 3


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_small_frames_on_a_quick_disk() -> None:
    pace = WritePace(Clock())
    for _ in range(100):
        assert pace.is_quick(LOG_QUICK_FRAME_BYTES)
        pace.record(QUICK_S)
    assert not pace.is_quick(LOG_QUICK_FRAME_BYTES + 1)


def until_slow(pace: WritePace, clock: Clock, write_s: float = 0.005) -> int:
    """Record writes of `write_s` seconds in the loop's thread until the writer thread takes over; return their
    number."""
    count = 0
    while pace.is_quick(100):
        clock.now += write_s
        pace.record(write_s)
        count += 1
    return count


def test_slow_disk_blocks_the_loop_rarely() -> None:
    clock = Clock()
    pace = WritePace(clock)
    began, here = clock.now, 0.0
    while clock.now < began + 120:
        here += 0.005 * until_slow(pace, clock)
        clock.now += 0.005  # in the writer thread
    assert 0.01 < here < 0.3


def test_stalled_disk_is_retried_soon() -> None:
    clock = Clock()
    pace = WritePace(clock)
    assert until_slow(pace, clock) < 5
    clock.now += LOG_QUICK_PAUSE_S
    assert pace.is_quick(100)
    for _ in range(1000):
        pace.record(QUICK_S)
    clock.now += 1  # it was fast for longer than the pause
    for _ in range(3):
        until_slow(pace, clock)
        clock.now += LOG_QUICK_PAUSE_S
        assert pace.is_quick(100)
        clock.now += 2 * LOG_QUICK_PAUSE_S


def test_the_pause_grows_while_the_disk_is_found_slow() -> None:
    clock = Clock()
    pace = WritePace(clock)
    pauses = []
    for _ in range(12):
        until_slow(pace, clock)
        began = clock.now
        while not pace.is_quick(100):
            clock.now += 0.01
        pauses.append(clock.now - began)
    assert pauses[:3] == pytest.approx([0.1, 0.2, 0.4], abs=0.02)
    assert pauses[-2:] == pytest.approx([LOG_QUICK_LONGEST_PAUSE_S] * 2, abs=0.02)


def test_a_single_slower_write_among_quick_ones_changes_nothing() -> None:
    pace = WritePace(Clock())
    for number in range(1000):
        pace.record(0.1 if number % 50 == 0 else QUICK_S)
        assert pace.is_quick(100)


# --- how background work yields to frames ------------------------------------------------------


def written(throttle: BackgroundThrottle, clock: Clock, count: int, took_s: float, size: int = 1_000) -> None:
    for _ in range(count):
        clock.now += 0.001
        throttle.record(took_s, size)


def test_background_work_does_not_pause_at_idle_frame_times() -> None:
    throttle = BackgroundThrottle(clock := Clock())
    assert throttle.pause("tiering", 1.0) == 0, "no frame was written"
    written(throttle, clock, 500, 0.000_3)
    assert throttle.pause("tiering", 1.0) == 0
    assert not throttle.paused_s


def test_pause_grows_with_frame_time_up_to_a_limit() -> None:
    throttle = BackgroundThrottle(clock := Clock())
    written(throttle, clock, 500, 0.000_3)
    written(throttle, clock, 500, 0.000_9)
    assert throttle.pause("tiering", 0.01) == pytest.approx(0.02, rel=0.01)
    written(throttle, clock, 500, 0.02)
    assert throttle.pause("tiering", 0.01) == pytest.approx(0.01 * THROTTLE_MAX_FACTOR)
    assert throttle.pause("compaction", 10.0) == THROTTLE_MAX_S
    assert throttle.paused_s["tiering"] == pytest.approx(0.06, rel=0.01)
    assert throttle.paused_s["compaction"] == THROTTLE_MAX_S


def test_large_and_old_frames_are_ignored() -> None:
    throttle = BackgroundThrottle(clock := Clock())
    written(throttle, clock, 500, 0.000_3)
    written(throttle, clock, 500, 0.02, LOG_QUICK_FRAME_BYTES + 1)
    assert throttle.pause("tiering", 0.01) == 0
    written(throttle, clock, 500, 0.02)
    clock.now += 1.0
    assert throttle.pause("tiering", 0.01) == 0, "no caller waits"


def test_permanently_slow_disk_causes_no_pause() -> None:
    """After a minute its speed counts as normal."""
    throttle = BackgroundThrottle(clock := Clock())
    written(throttle, clock, 500, 0.000_3)
    written(throttle, clock, 30_000, 0.002)
    assert throttle.pause("tiering", 0.01) > 0
    written(throttle, clock, 70_000, 0.002)
    assert throttle.pause("tiering", 0.01) == 0
