"""Generated and parsed log lines, and a checker that detects each kind of fault."""

import json
import random
from collections import Counter

from examples.log_patterns.checker import compare
from examples.log_patterns.lines import (
    LATE_MS,
    SHUFFLED_MS,
    START,
    TOO_LATE,
    WATERMARK_MS,
    WINDOW_MS,
    WRITTEN_MS,
    Line,
    counted,
    generated,
    pattern,
    read,
)


def test_lines_read_back_equal() -> None:
    for line in generated(20, 50):
        assert read(line.event()) == line
    for other in (
        b"",
        b"    at shop.Cart.total(Cart.java:42)",
        b"a b c d e f",
        b"2026-11-14 2026-11-14 h s ERROR no zone",
    ):
        assert read(other) is None


def test_variable_parts_are_not_in_the_pattern() -> None:
    assert pattern("order 0f3a9c01: stock of item 17 is negative") == "order #: stock of item # is negative"
    assert pattern("decade of faded cafe") == "decade of faded cafe"
    assert len({pattern(line.message) for line in generated(30, 200) if line.level == "ERROR"}) == 10


def test_lines_come_late_and_out_of_order_within_bounds() -> None:
    lines = list(generated(60, 200))
    received = [line.received for line in lines]
    assert received != sorted(received)
    latest = START
    for line in lines:
        assert line.received > latest - SHUFFLED_MS
        latest = max(latest, line.received)
        delay = line.received - line.at
        assert delay > LATE_MS or line.at > latest + 2 * WRITTEN_MS - WATERMARK_MS, (
            "the watermark would pass a line in time"
        )
    delays = [line.received - line.at for line in lines]
    late = Counter(0 if delay < 5_000 else 1 if delay <= LATE_MS else 2 for delay in delays)
    assert late[0] > late[1] > late[2] > 0


def error(at: int, delay: int = 0, message: str = "disk 3 is full") -> bytes:
    return Line(START + at + delay, START + at, "web-1", "mail", "ERROR", message).event()


def test_a_window_has_its_start_and_not_its_end() -> None:
    over, growing = counted([error(0), error(WINDOW_MS - 1, 1), error(WINDOW_MS), error(3 * WINDOW_MS)])
    assert over == {
        ("2026-11-14T12:00Z", "mail", "disk # is full"): 2,
        ("2026-11-14T12:05Z", "mail", "disk # is full"): 1,
    }
    assert growing == {("2026-11-14T12:15Z", "mail", "disk # is full"): 1}


def test_a_window_is_over_when_the_watermark_is_at_its_end() -> None:
    for at, is_over in ((WINDOW_MS + WATERMARK_MS - 1, False), (WINDOW_MS + WATERMARK_MS, True)):
        over, _ = counted([error(0), error(at)])
        assert bool(over) == is_over


def test_late_line_counts_in_window_of_receipt() -> None:
    over, _ = counted([error(0, LATE_MS), error(0, LATE_MS + 1), error(0, WINDOW_MS), error(9 * WINDOW_MS)])
    assert over == {
        ("2026-11-14T12:00Z", "mail", "disk # is full"): 1,
        ("2026-11-14T12:00Z", "mail", TOO_LATE): 1,
        ("2026-11-14T12:05Z", "mail", TOO_LATE): 1,
    }


def test_order_of_lines_is_irrelevant() -> None:
    events = [line.event() for line in generated(30, 100)]
    shuffled = random.Random(1).sample(events, len(events))
    assert counted(shuffled) == counted(events)


def test_checker_detects_each_fault() -> None:
    lines = [line.event() for line in generated(30, 100)]
    over, growing = counted(lines)
    right = [
        json.dumps({"window": window, "service": service, "pattern": what, "count": count}).encode()
        for (window, service, what), count in over.items()
    ]
    verdict = compare(lines, right)
    assert verdict.is_right
    assert verdict.errors + verdict.growing == sum(over.values()) + sum(growing.values())
    assert verdict.too_late == sum(count for (_, _, what), count in over.items() if what == TOO_LATE)
    another = json.loads(right[0]) | {"count": 10_000}
    for wrong, faults in (
        (right[1:], (1, 0, 0)),
        (right + right[:2], (0, 0, 2)),
        ([json.dumps(another).encode(), *right[1:]], (0, 1, 0)),
        ([*right, json.dumps(another | {"service": "shoes"}).encode()], (0, 1, 0)),
    ):
        verdict = compare(lines, wrong)
        assert (verdict.missing, verdict.wrong, verdict.twice) == faults
        assert not verdict.is_right
    assert not compare([], []).is_right, "empty results prove nothing"
