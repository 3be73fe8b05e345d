"""`play`: what is to be played, found before there is a widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nadi.client import NamedSlice, StreamManager
from nadi.errors import InvalidArgumentError, SliceNotFoundError

if TYPE_CHECKING:
    from nadi.notebook.widget import PlayerWidget

HEIGHT_LEAST, HEIGHT_MOST = 400, 4_000


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
