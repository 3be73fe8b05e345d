"""Notebook support: a stream player, charts of segments, and tables of a client's values.

The player is a widget that runs the modules of nadi's web page in a cell's output (`widget`); the kernel answers its
requests (`projector`) over the widget's comm, so the browser needs no connection to nadi. Uses neither HTTP nor a
server's files. Requires the extra `nadi[notebook]`; single values are displayed without it (`nadi.display`).

>>> import nadi.notebook
>>> with nadi.StreamManager() as manager:  # doctest: +SKIP
...     nadi.notebook.play(manager, "home", "meters")
"""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nadi import charts, display
from nadi.client import NamedSlice, StreamManager
from nadi.client.control.arguments import check_seconds
from nadi.errors import InvalidArgumentError, SliceNotFoundError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nadi.notebook.widget import PlayerWidget

__all__ = ["HtmlTable", "Picture", "play", "plot_segments", "table"]

_SIZE_IN = (9, 4)  # a cell is about 900 pixels wide
HEIGHT_LEAST, HEIGHT_MOST = 400, 4_000


# --- the player -------------------------------------------------------------------------------------


def play(
    manager: StreamManager, scope: str, slice_or_stream: str | NamedSlice, *, height_px: int = 560
) -> PlayerWidget:
    """Create a player of a stream, which starts live, or of a named slice, which starts at the slice's start.

    InvalidArgumentError if both a stream and a slice have the name: pass the NamedSlice for the slice. The widget plays
    as long as the client is open; `close` ends it. Requires the extra `nadi[notebook]`.
    """
    if not isinstance(manager, StreamManager):
        raise InvalidArgumentError(
            f"the player needs a nadi.StreamManager, not {type(manager).__name__}: open one first"
        )
    if isinstance(height_px, bool) or not isinstance(height_px, int) or not HEIGHT_LEAST <= height_px <= HEIGHT_MOST:
        raise InvalidArgumentError(f"height_px can't be {height_px!r}: use {HEIGHT_LEAST} to {HEIGHT_MOST:,}")
    try:
        from nadi.notebook.widget import PlayerWidget
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("anywidget", "traitlets"):
            raise
        raise InvalidArgumentError("the player needs anywidget: pip install 'nadi[notebook]'") from None
    stream, name = _resolve(manager, scope, slice_or_stream)
    return PlayerWidget(manager, scope, stream, name, height_px)


def _resolve(manager: StreamManager, scope: str, target: str | NamedSlice) -> tuple[str, str]:
    """Return the stream, and the slice's name or "" for the entire stream."""
    if isinstance(target, NamedSlice):
        if target.scope != scope:
            raise InvalidArgumentError(
                f"slice {target.name} belongs to scope {target.scope}, not {scope}: pass its scope"
            )
        return target.stream, manager.slices(scope).get(target.name).name
    if not isinstance(target, str):
        raise InvalidArgumentError(f"pass the name of a stream or slice, or a NamedSlice, not {type(target).__name__}")
    try:
        named: NamedSlice | None = manager.slices(scope).get(target)
    except SliceNotFoundError:
        named = None
    if named is None:
        manager.current_segments(scope, target)  # StreamNotFoundError, if it is neither
        return target, ""
    if target in manager.list_streams(scope):
        raise InvalidArgumentError(
            f"{scope} has both a stream and a slice {target}: pass manager.slices({scope!r}).get({target!r}) for the "
            "slice, or rename the slice to play the stream"
        )
    return named.stream, named.name


# --- charts and tables ------------------------------------------------------------------------------


class Picture:
    """A chart that notebooks show as SVG; `figure` is matplotlib's, to change or save."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def _repr_svg_(self) -> str:
        svg = io.StringIO()
        self.figure.savefig(svg, format="svg")
        return svg.getvalue()


def plot_segments(manager: StreamManager, scope: str, stream: str, *, last_s: float | None = None) -> Picture:
    """Chart the splits and merges of a stream's segments: key range against time, coloured by rate.

    last_s: the last seconds to show; None means since the stream's creation. InvalidArgumentError without matplotlib,
    which the extra `nadi[notebook]` installs.
    """
    if last_s is not None:
        check_seconds(last_s, "last_s")
        if not last_s:
            raise InvalidArgumentError("last_s is 0: pass a number of seconds, or None for all")
    now_ms = time.time_ns() // 1_000_000
    since_ms = now_ms - round(last_s * 1000) if last_s is not None else 0
    spans = charts.spans_of(manager.segment_history(scope, stream), now_ms, since_ms)
    return Picture(charts.drawn(spans, f"{scope}/{stream}", _SIZE_IN))


class HtmlTable:
    """A table that notebooks show as HTML; `values` are its rows."""

    def __init__(self, values: tuple[Any, ...], title: str) -> None:
        self.values, self._title = values, title

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values)) or "nothing"

    def _repr_html_(self) -> str:
        return display.table(self.values, self._title, "" if self.values else "nothing")


def table(values: Iterable[Any], title: str = "") -> HtmlTable:
    """Create a table of values of one class that a client returned: bookmarks, slices, segments, loads, lags, …

    >>> from nadi.client import SegmentRange
    >>> print(table([SegmentRange(0, 0.0, 1.0)]))
    SegmentRange(segment_id=0, low=0.0, high=1.0)
    """
    rows = tuple(values)
    kinds = {type(row) for row in rows}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidArgumentError(f"a table takes values of one class, not {names}: create a table for each")
    if rows and not (dataclasses.is_dataclass(rows[0]) or hasattr(rows[0], "__struct_fields__")):
        raise InvalidArgumentError(
            f"can't show a {type(rows[0]).__name__} in a table: pass values returned by a client"
        )
    return HtmlTable(rows, title)
