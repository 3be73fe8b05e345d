"""The picture as an image, drawn by matplotlib: SVG, PNG or whatever else it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nadi.errors import InvalidArgumentError
from nadi.naming import segment_number
from nadi.pictures.spans import Span, rate_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png", ".pdf")
_NAMED_UP_TO = 40  # segments; with more, their names would cover the picture


def check_file(path: Path) -> None:
    """Refuse a file that can't be written, before anything is asked of a server."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidArgumentError(f"a picture is a file ending in {', '.join(FORMATS)}, not {path.name}")
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"there is no folder {path.absolute().parent} for the picture: create it first")
    _check_matplotlib()


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("pictures need matplotlib: pip install 'nadi[pictures]'") from None


def save(spans: Sequence[Span], path: Path, title: str) -> None:
    """Write the picture to a file of one of FORMATS."""
    check_file(path)
    drawn(spans, title).savefig(path, dpi=150)


def drawn(spans: Sequence[Span], title: str, size_in: tuple[float, float] = (12, 6)) -> Figure:
    """The picture; InvalidArgumentError if matplotlib isn't installed."""
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
    kept, gone = [], []
    for span in spans:
        start, head, end = _days(span.start_ms), _days(_head(span)), _days(span.end_ms)
        height = span.high - span.low
        gone.append(Rectangle((start, span.low), head - start, height))
        kept.append(Rectangle((head, span.low), end - head, height, facecolor=colours(scale(span.bytes_per_s))))
        if len(spans) <= _NAMED_UP_TO:
            middle = (start + end) / 2, (span.low + span.high) / 2
            axes.text(*middle, str(segment_number(span.segment_id)), ha="center", va="center", clip_on=True)
    axes.add_collection(PatchCollection(kept, match_original=True, edgecolor="white", linewidth=0.5))
    axes.add_collection(PatchCollection(gone, facecolor="none", edgecolor="grey", hatch="///", linewidth=0.5))
    if spans:
        axes.set_xlim(_days(min(span.start_ms for span in spans)), _days(max(span.end_ms for span in spans)))
    axes.xaxis_date()
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, label="mean rate of the segment")
    bar.ax.yaxis.set_major_formatter(lambda rate, _: rate_text(rate))
    return figure


def _head(span: Span) -> int:
    """Where the truncated part ends, in ms."""
    return min(max(span.gone_ms, span.start_ms), span.end_ms)


def _days(ms: int) -> float:
    """What matplotlib counts dates in."""
    return ms / 86_400_000
