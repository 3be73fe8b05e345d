"""The picture of a stream's segments over time, in a cell's output."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from nadi.client.control.arguments import check_seconds
from nadi.errors import InvalidArgumentError
from nadi.pictures import chart
from nadi.pictures.spans import spans_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nadi.client import StreamManager

_SIZE_IN = (9, 4)  # a cell is about 900 pixels wide


class Picture:
    """Shows itself in a notebook, as SVG; `figure` is matplotlib's, to be changed or saved."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def _repr_svg_(self) -> str:
        made = io.StringIO()
        self.figure.savefig(made, format="svg")
        return made.getvalue()


def plot_segments(manager: StreamManager, scope: str, stream: str, *, last_s: float | None = None) -> Picture:
    """Draw how a stream's segments were split and merged: the key range up, time across, and the colour is the rate.

    last_s: only so many seconds up to now; None means since the stream was made. It takes matplotlib, of the extra
    `nadi[notebook]`: InvalidArgumentError without it.
    """
    if last_s is not None:
        check_seconds(last_s, "last_s")
        if not last_s:
            raise InvalidArgumentError("last_s is 0: give a number of seconds, or None for all")
    now_ms = time.time_ns() // 1_000_000
    since_ms = now_ms - round(last_s * 1000) if last_s is not None else 0
    spans = spans_of(manager.segment_history(scope, stream), now_ms, since_ms)
    return Picture(chart.drawn(spans, f"{scope}/{stream}", _SIZE_IN))
