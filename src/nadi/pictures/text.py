"""The picture as text, for a terminal or a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from nadi.naming import segment_epoch, segment_number
from nadi.pictures.spans import Span, rate_text

SHADES = " ░▒▓█"
GONE, ACROSS, UP = "·", "─", "│"
_LABEL_CHARS = 6


@dataclass(frozen=True, slots=True)
class Grid:
    """Which span each cell shows, by row (highest keys first) and column; None where there is none."""

    cells: list[list[Span | None]]
    start_ms: int
    end_ms: int

    def time_of(self, column: int) -> float:
        """The time in the middle of a column, in ms."""
        return self.start_ms + (column + 0.5) * (self.end_ms - self.start_ms) / len(self.cells[0])


def grid(spans: Sequence[Span], columns: int, rows: int) -> Grid:
    """Spread the spans over cells: each cell shows what is in its middle."""
    start_ms, end_ms = min(span.start_ms for span in spans), max(span.end_ms for span in spans)
    made = Grid([[None] * columns for _ in range(rows)], start_ms, end_ms)
    a_column = (end_ms - start_ms) / columns
    for span in sorted(spans, key=lambda span: span.start_ms - span.end_ms):  # the shortest last: not drawn over
        first = max(0, round((span.start_ms - start_ms) / a_column))
        last = min(columns, max(first + 1, round((span.end_ms - start_ms) / a_column)))
        for row in range(rows):
            if span.low <= 1 - (row + 0.5) / rows < span.high:
                made.cells[row][first:last] = [span] * (last - first)
    return made


def picture(spans: Sequence[Span], columns: int = 80, rows: int = 16) -> str:
    """Lines with the key range up and time across; `columns` and `rows` are those of the field without its labels.

    >>> left, right = Span(1, 0, 0.5, 2000, 4000, 0, 9e3), Span(2, 0.5, 1, 2000, 4000, 0, 1e3)
    >>> print(picture([Span(0, 0, 1, 0, 2000, 1000, 4e3), left, right], 12, 4).splitlines()[1])
     0.75 ···▒▒▒│░░░░░
    """
    if not spans:
        return "No segment took events in that time."
    field = grid(spans, columns, rows)
    most = max(span.bytes_per_s for span in spans)
    lines = []
    for row, cells in enumerate(field.cells):
        label = f"{1 - row / rows:.2f}" if row % max(1, rows // 4) == 0 else ""
        lines.append(f"{label:>{_LABEL_CHARS - 1}} " + "".join(_sign(field, row, i, most) for i in range(len(cells))))
    lines.append(f"{'0.00':>{_LABEL_CHARS - 1}} " + "└" + "─" * (columns - 1))
    lines.append(" " * _LABEL_CHARS + _times(field, columns))
    lines.append(_legend(spans, most))
    return "\n".join(lines)


def _sign(field: Grid, row: int, column: int, most: float) -> str:
    span = field.cells[row][column]
    if span is None:
        return " "
    if column and (before := field.cells[row][column - 1]) is not None and before is not span:
        return UP
    if row and (above := field.cells[row - 1][column]) is not None and above is not span:
        return ACROSS
    if field.time_of(column) < span.gone_ms:
        return GONE
    if not span.bytes_per_s:
        return SHADES[0]
    return SHADES[min(len(SHADES) - 1, 1 + int((len(SHADES) - 1) * span.bytes_per_s / most * 0.999))]


def _times(field: Grid, columns: int) -> str:
    """Local times under the field: its start, and its end if there is room."""
    day = "" if field.end_ms - field.start_ms < 24 * 3_600_000 else "%Y-%m-%d "
    first, last = (
        time.strftime(f"{day}%H:%M:%S", time.localtime(at_ms / 1000)) for at_ms in (field.start_ms, field.end_ms)
    )
    return f"{first}{last:>{columns - len(first)}}" if columns >= len(first) + len(last) + 1 else first


def _legend(spans: Sequence[Span], most: float) -> str:
    steps = len(SHADES) - 1
    shades = "  ".join(f"{SHADES[i + 1]} to {rate_text(most * (i + 1) / steps)}" for i in range(steps)) if most else ""
    gone = f"  {GONE} truncated" if any(span.gone_ms > span.start_ms for span in spans) else ""
    return f"{len(spans):,} segments  {shades}{gone}".rstrip()


def name_of(segment_id: int) -> str:
    """A segment's number and epoch, as its name has them.

    >>> name_of((2 << 32) | 5)
    '5.#epoch.2'
    """
    return f"{segment_number(segment_id)}.#epoch.{segment_epoch(segment_id)}"
