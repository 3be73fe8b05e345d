"""What a picture shows of each segment: a rectangle of keys and time, with the mean rate of what it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nadi.model.reports import SegmentReport


@dataclass(frozen=True, slots=True)
class Span:
    """A segment's keys and times (ms since 1970), and its mean rate. Until gone_ms, what it took was truncated."""

    segment_id: int
    low: float
    high: float
    start_ms: int
    end_ms: int
    gone_ms: int
    bytes_per_s: float


def spans_of(reports: Iterable[SegmentReport], now_ms: int, since_ms: int = 0) -> list[Span]:
    """The segments that took events after since_ms, each cut off there, in the order of their ids.

    Where within a segment's life its head lies is reckoned as if it had been written evenly.

    >>> (span,) = spans_of([SegmentReport(7, 0.0, 1.0, 1_000, None, 2_000, 8_000)], now_ms=5_000)
    >>> span.end_ms, span.gone_ms, span.bytes_per_s
    (5000, 2000, 2000.0)
    """
    spans = []
    for report in reports:
        end_ms = now_ms if report.replaced_ms is None else report.replaced_ms
        lasted_ms = end_ms - report.created_ms
        if end_ms <= since_ms or lasted_ms <= 0:
            continue
        gone = report.start_offset / report.end_offset if report.end_offset else 0.0
        rate = report.end_offset / (lasted_ms / 1000)
        start_ms, gone_ms = max(report.created_ms, since_ms), report.created_ms + round(gone * lasted_ms)
        spans.append(Span(report.segment_id, report.low, report.high, start_ms, end_ms, gone_ms, rate))
    return spans


def rate_text(bytes_per_s: float) -> str:
    """A rate for people.

    >>> rate_text(0), rate_text(1_530), rate_text(2_000_000)
    ('0 B/s', '1.5 KB/s', '2 MB/s')
    """
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)):
        if bytes_per_s >= factor:
            rate = bytes_per_s / factor
            return f"{rate:.2g} {unit}" if rate < 10 else f"{rate:.0f} {unit}"
    return f"{bytes_per_s:.0f} B/s"
