"""Charts of a stream's segments over time: keys vertically, time horizontally, shaded by the segments' mean rates.

They are drawn as text for terminals and logs, or by matplotlib as SVG, PNG or PDF.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nadi.defaults import PICTURE_SUFFIXES
from nadi.errors import InvalidArgumentError
from nadi.model.reports import SegmentReport
from nadi.naming import segment_epoch, segment_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = " ░▒▓█"
TRUNCATED, ACROSS, UP = "·", "─", "│"
_LABEL_CHARS = 6
_NAMED_UP_TO = 40  # segments; more names would cover the picture


@dataclass(frozen=True, slots=True)
class Span:
    """A segment's key range, times (ms since 1970) and mean rate. Data from before head_ms was truncated."""

    segment_id: int
    low: float
    high: float
    start_ms: int
    end_ms: int
    head_ms: int
    bytes_per_s: float


def spans_of(reports: Iterable[SegmentReport], now_ms: int, since_ms: int = 0) -> list[Span]:
    """Return the segments that were open after since_ms, starting there at the earliest, ordered by id.

    The time of a segment's head is interpolated, as if the segment had been written at a constant rate.

    >>> (span,) = spans_of([SegmentReport(7, 0.0, 1.0, 1_000, None, 2_000, 8_000)], now_ms=5_000)
    >>> span.end_ms, span.head_ms, span.bytes_per_s
    (5000, 2000, 2000.0)
    """
    spans = []
    for report in reports:
        end_ms = now_ms if report.replaced_ms is None else report.replaced_ms
        lasted_ms = end_ms - report.created_ms
        if end_ms <= since_ms or lasted_ms <= 0:
            continue
        truncated = report.start_offset / report.end_offset if report.end_offset else 0.0
        rate = report.end_offset / (lasted_ms / 1000)
        start_ms, head_ms = max(report.created_ms, since_ms), report.created_ms + round(truncated * lasted_ms)
        spans.append(Span(report.segment_id, report.low, report.high, start_ms, end_ms, head_ms, rate))
    return spans


def rate_text(bytes_per_s: float) -> str:
    """Format a rate.

    >>> rate_text(0), rate_text(1_530), rate_text(2_000_000)
    ('0 B/s', '1.5 KB/s', '2 MB/s')
    """
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)):
        if bytes_per_s >= factor:
            rate = bytes_per_s / factor
            return f"{rate:.2g} {unit}" if rate < 10 else f"{rate:.0f} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def name_of(segment_id: int) -> str:
    """Return a segment's number and epoch as in its name.

    >>> name_of((2 << 32) | 5)
    '5.#epoch.2'
    """
    return f"{segment_number(segment_id)}.#epoch.{segment_epoch(segment_id)}"


# --- as text --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grid:
    """The span of each cell by row (highest keys first) and column; None for an empty cell."""

    cells: list[list[Span | None]]
    start_ms: int
    end_ms: int

    def time_of(self, column: int) -> float:
        """Return the time in the middle of a column, in ms."""
        return self.start_ms + (column + 0.5) * (self.end_ms - self.start_ms) / len(self.cells[0])


def grid(spans: Sequence[Span], columns: int, rows: int) -> Grid:
    """Rasterize the spans; a cell shows the span at its middle."""
    start_ms, end_ms = min(span.start_ms for span in spans), max(span.end_ms for span in spans)
    raster = Grid([[None] * columns for _ in range(rows)], start_ms, end_ms)
    column_ms = (end_ms - start_ms) / columns
    for span in sorted(spans, key=lambda span: span.start_ms - span.end_ms):  # shortest last, so that none is covered
        first = max(0, round((span.start_ms - start_ms) / column_ms))
        last = min(columns, max(first + 1, round((span.end_ms - start_ms) / column_ms)))
        for row in range(rows):
            if span.low <= 1 - (row + 0.5) / rows < span.high:
                raster.cells[row][first:last] = [span] * (last - first)
    return raster


def picture(spans: Sequence[Span], columns: int = 80, rows: int = 16) -> str:
    """Draw the spans as text; `columns` and `rows` exclude labels.

    >>> left, right = Span(1, 0, 0.5, 2000, 4000, 0, 9e3), Span(2, 0.5, 1, 2000, 4000, 0, 1e3)
    >>> print(picture([Span(0, 0, 1, 0, 2000, 1000, 4e3), left, right], 12, 4).splitlines()[1])
     0.75 ···▒▒▒│░░░░░
    """
    if not spans:
        return "No segment was open in this time."
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
    if field.time_of(column) < span.head_ms:
        return TRUNCATED
    if not span.bytes_per_s:
        return SHADES[0]
    return SHADES[min(len(SHADES) - 1, 1 + int((len(SHADES) - 1) * span.bytes_per_s / most * 0.999))]


def _times(field: Grid, columns: int) -> str:
    """Return the axis labels: the local start time, and the end time if it fits."""
    day = "" if field.end_ms - field.start_ms < 24 * 3_600_000 else "%Y-%m-%d "
    first, last = (
        time.strftime(f"{day}%H:%M:%S", time.localtime(at_ms / 1000)) for at_ms in (field.start_ms, field.end_ms)
    )
    return f"{first}{last:>{columns - len(first)}}" if columns >= len(first) + len(last) + 1 else first


def _legend(spans: Sequence[Span], most: float) -> str:
    steps = len(SHADES) - 1
    shades = "  ".join(f"{SHADES[i + 1]} to {rate_text(most * (i + 1) / steps)}" for i in range(steps)) if most else ""
    truncated = f"  {TRUNCATED} truncated" if any(span.head_ms > span.start_ms for span in spans) else ""
    return f"{len(spans):,} segments  {shades}{truncated}".rstrip()


# --- drawn ----------------------------------------------------------------------------------------


def check_file(path: Path) -> None:
    """Raise InvalidArgumentError if a picture can't be written to this path."""
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise InvalidArgumentError(
            f"{path.name} is not a picture's name: use one of the extensions {', '.join(PICTURE_SUFFIXES)}"
        )
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"folder {path.absolute().parent} doesn't exist: create it first")
    _check_matplotlib()


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("pictures require matplotlib: pip install 'nadi[pictures]'") from None


def save(spans: Sequence[Span], path: Path, title: str) -> None:
    """Draw the spans into a file of one of PICTURE_SUFFIXES."""
    check_file(path)
    drawn(spans, title).savefig(path, dpi=150)


def drawn(spans: Sequence[Span], title: str, size_in: tuple[float, float] = (12, 6)) -> Figure:
    """Draw the spans with matplotlib; InvalidArgumentError if it isn't installed."""
    _check_matplotlib()
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=size_in, layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, ylabel="routing key's position", ylim=(0, 1), xlabel="time (UTC); hatched: truncated")
    scale, colours = Normalize(0, max((span.bytes_per_s for span in spans), default=0.0) or 1.0), colormaps["viridis_r"]
    stored, truncated = [], []
    for span in spans:
        head_ms = min(max(span.head_ms, span.start_ms), span.end_ms)
        start, head, end = _days(span.start_ms), _days(head_ms), _days(span.end_ms)
        height = span.high - span.low
        truncated.append(Rectangle((start, span.low), head - start, height))
        stored.append(Rectangle((head, span.low), end - head, height, facecolor=colours(scale(span.bytes_per_s))))
        if len(spans) <= _NAMED_UP_TO:
            middle = (start + end) / 2, (span.low + span.high) / 2
            axes.text(*middle, str(segment_number(span.segment_id)), ha="center", va="center", clip_on=True)
    axes.add_collection(PatchCollection(stored, match_original=True, edgecolor="white", linewidth=0.5))
    axes.add_collection(PatchCollection(truncated, facecolor="none", edgecolor="grey", hatch="///", linewidth=0.5))
    if spans:
        axes.set_xlim(_days(min(span.start_ms for span in spans)), _days(max(span.end_ms for span in spans)))
    axes.xaxis_date()
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, label="mean rate of the segment")
    bar.ax.yaxis.set_major_formatter(lambda rate, _: rate_text(rate))
    return figure


def _days(ms: int) -> float:
    """Convert to days, matplotlib's unit of dates."""
    return ms / 86_400_000
