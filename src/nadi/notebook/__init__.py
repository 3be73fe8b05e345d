"""For notebooks: the player, pictures of segments, and tables of what a client returns.

Owns: a widget that plays a stream in a cell's output with the modules of nadi's own page (`widget`), and what
answers it from the kernel (`projector`): a browser asks over the widget's comm, so it need not reach nadi. Never sees:
HTTP, and files of a server. The extra `nadi[notebook]` brings what it needs; single values show themselves without it
(`nadi.display`).

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
    """Make a player of a stream, which begins live, or of a named slice, which begins at its start.

    A name is that of a stream or of a slice; where both have it, InvalidArgumentError says so, and the slice itself can
    be given. The widget plays for as long as the client is open; `close` ends it. It takes the extra `nadi[notebook]`.
    """
    if not isinstance(manager, StreamManager):
        raise InvalidArgumentError(
            f"the player needs a nadi.StreamManager, not {type(manager).__name__}: open one for it"
        )
    if isinstance(height_px, bool) or not isinstance(height_px, int) or not HEIGHT_LEAST <= height_px <= HEIGHT_MOST:
        raise InvalidArgumentError(f"height_px is a number from {HEIGHT_LEAST} to {HEIGHT_MOST:,}, not {height_px!r}")
    try:
        from nadi.notebook.widget import PlayerWidget
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("anywidget", "traitlets"):
            raise
        raise InvalidArgumentError("the player needs anywidget: pip install 'nadi[notebook]'") from None
    stream, name = _found(manager, scope, slice_or_stream)
    return PlayerWidget(manager, scope, stream, name, height_px)


def _found(manager: StreamManager, scope: str, what: str | NamedSlice) -> tuple[str, str]:
    """The stream, and the slice's name or "" for the whole stream."""
    if isinstance(what, NamedSlice):
        if what.scope != scope:
            raise InvalidArgumentError(f"slice {what.name} is one of scope {what.scope}: give that, not {scope}")
        return what.stream, manager.slices(scope).get(what.name).name
    if not isinstance(what, str):
        raise InvalidArgumentError(f"give a stream's or a slice's name, or a NamedSlice, not {type(what).__name__}")
    try:
        named: NamedSlice | None = manager.slices(scope).get(what)
    except SliceNotFoundError:
        named = None
    if named is None:
        manager.current_segments(scope, what)  # StreamNotFoundError, if it is neither
        return what, ""
    if what in manager.list_streams(scope):
        raise InvalidArgumentError(
            f"{scope} has both a stream and a slice {what}: for the slice give manager.slices({scope!r}).get({what!r}),"
            " for the stream rename the slice"
        )
    return named.stream, named.name


# --- pictures and tables ----------------------------------------------------------------------------


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
    spans = charts.spans_of(manager.segment_history(scope, stream), now_ms, since_ms)
    return Picture(charts.drawn(spans, f"{scope}/{stream}", _SIZE_IN))


class HtmlTable:
    """Shows itself in a notebook; `values` are what it was made of."""

    def __init__(self, values: tuple[Any, ...], title: str) -> None:
        self.values, self._title = values, title

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values)) or "nothing"

    def _repr_html_(self) -> str:
        return display.table(self.values, self._title, "" if self.values else "nothing")


def table(values: Iterable[Any], title: str = "") -> HtmlTable:
    """Make a table of bookmarks, slices, segments, loads, lags, …: values of one class, as a client returns them.

    >>> from nadi.client import SegmentRange
    >>> print(table([SegmentRange(0, 0.0, 1.0)]))
    SegmentRange(segment_id=0, low=0.0, high=1.0)
    """
    found = tuple(values)
    kinds = {type(one) for one in found}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidArgumentError(f"a table has values of one class, not of several ({names}): make a table of each")
    if found and not (dataclasses.is_dataclass(found[0]) or hasattr(found[0], "__struct_fields__")):
        raise InvalidArgumentError(f"a {type(found[0]).__name__} has no fields: give values that a client returned")
    return HtmlTable(found, title)
