"""The blocking face of stream cuts, bookmarks and named slices; see the classes of the same names in `aio`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from datetime import datetime

from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.places import bookmarks, cuts, slices
from nadi.client.places.bookmarks import Bookmark
from nadi.client.places.slices import NamedSlice
from nadi.model.cutorder import CutOrder
from nadi.model.streamcut import StreamCut


class StreamCuts:
    """The stream cuts of one stream."""

    def __init__(self, thread: LoopThread, core: cuts.StreamCuts) -> None:
        self._thread, self._core = thread, core

    def head(self) -> StreamCut:
        """Where the stream begins now, after what was truncated away."""
        return self._thread.run(self._core.head())

    def tail(self) -> StreamCut:
        """Where the stream ends now."""
        return self._thread.run(self._core.tail())

    def at(self, moment: datetime | int) -> StreamCut:
        """Where the stream stood at a moment: a datetime with a time zone, or milliseconds since 1970.

        All events of that moment or later lie behind the cut, and few of those before (docs/stream-cuts.md).
        """
        return self._thread.run(self._core.at(moment))

    def named(self, text: str) -> StreamCut:
        """The cut meant by `head`, `tail`, a time (ISO 8601 with a zone, as 2026-11-14T00:00+01:00), the text of a
        cut, or the name of one of the scope's bookmarks."""
        return self._thread.run(self._core.named(text))

    def after(self, cut: StreamCut, events: int) -> StreamCut:
        """The cut `events` events after `cut`, in equal shares of the segments; the tail if there are fewer."""
        return self._thread.run(self._core.after(cut, events))

    def at_event_time(self, timestamp_ms: int) -> StreamCut:
        """A cut to read from so as to get every event of that time or a later one, given that writers kept the
        word of their notes; the head if watermarks don't reach back so far."""
        return self._thread.run(self._core.at_event_time(timestamp_ms))

    def after_event_time(self, timestamp_ms: int) -> StreamCut | None:
        """A cut to read up to so as to get every event before that time, given that writers kept the word of their
        notes; None while a writer has not noted that time."""
        return self._thread.run(self._core.after_event_time(timestamp_ms))

    def check(self, cut: StreamCut) -> None:
        """Raise unless a reader can start here: InvalidStreamCutError or TruncatedError."""
        self._thread.run(self._core.check(cut))

    def settled(self, cut: StreamCut) -> StreamCut:
        """The same boundary, led over segments that are read to their ends; equal boundaries settle alike."""
        return self._thread.run(self._core.settled(cut))

    def compare(self, first: StreamCut, second: StreamCut) -> CutOrder:
        """Whether `first` lies before `second`, at it, after it, or both (overlapping)."""
        return self._thread.run(self._core.compare(first, second))

    def earliest(self, first: StreamCut, second: StreamCut) -> StreamCut:
        """The cut before which lies just what lies before both."""
        return self._thread.run(self._core.earliest(first, second))

    def latest(self, first: StreamCut, second: StreamCut) -> StreamCut:
        """The cut before which lies all that lies before either."""
        return self._thread.run(self._core.latest(first, second))

    def segments_between(self, start: StreamCut, end: StreamCut) -> builtins.list[int]:
        """Ids of the segments between two cuts, older ones first; InvalidStreamCutError if the end lies before the
        start."""
        return self._thread.run(self._core.segments_between(start, end))

    def bytes_between(self, start: StreamCut, end: StreamCut) -> int:
        """Bytes from one cut to the other, events' headers included."""
        return self._thread.run(self._core.bytes_between(start, end))

    def events_between(self, start: StreamCut, end: StreamCut) -> int:
        """Events from one cut to the other; they are read for that."""
        return self._thread.run(self._core.events_between(start, end))


class Bookmarks:
    """The bookmarks of a scope."""

    def __init__(self, thread: LoopThread, core: bookmarks.Bookmarks) -> None:
        self._thread, self._core = thread, core

    def create(self, name: str, cut: StreamCut, *, note: str = "", tags: Iterable[str] = ()) -> Bookmark:
        """AlreadyExistsError if the scope has a bookmark of that name."""
        return self._thread.run(self._core.create(name, cut, note=note, tags=tags))

    def get(self, name: str) -> Bookmark:
        """BookmarkNotFoundError if there is none."""
        return self._thread.run(self._core.get(name))

    def list(self, *, stream: str | None = None, tag: str | None = None) -> builtins.list[Bookmark]:
        """In order of names; only those of the stream, or with the tag, if given."""
        return self._thread.run(self._core.list(stream=stream, tag=tag))

    def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Bookmark:
        """Give it tags and take others away."""
        return self._thread.run(self._core.tag(name, add, remove))

    def rename(self, name: str, new_name: str) -> Bookmark:
        """AlreadyExistsError if the new name is taken. Not one step: for a moment it has both names."""
        return self._thread.run(self._core.rename(name, new_name))

    def delete(self, name: str) -> bool:
        """False if there was none; the events stay."""
        return self._thread.run(self._core.delete(name))


class NamedSlices:
    """The named slices of a scope."""

    def __init__(self, thread: LoopThread, core: slices.NamedSlices) -> None:
        self._thread, self._core = thread, core

    def create(
        self, name: str, start: StreamCut, end: StreamCut, *, note: str = "", tags: Iterable[str] = ()
    ) -> NamedSlice:
        """AlreadyExistsError if the scope has a slice of that name; InvalidStreamCutError unless `end` lies at or
        after `start` everywhere."""
        return self._thread.run(self._core.create(name, start, end, note=note, tags=tags))

    def get(self, name: str) -> NamedSlice:
        """SliceNotFoundError if there is none."""
        return self._thread.run(self._core.get(name))

    def list(self, *, stream: str | None = None, tag: str | None = None) -> builtins.list[NamedSlice]:
        """In order of names; only those of the stream, or with the tag, if given."""
        return self._thread.run(self._core.list(stream=stream, tag=tag))

    def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> NamedSlice:
        """Give it tags and take others away."""
        return self._thread.run(self._core.tag(name, add, remove))

    def rename(self, name: str, new_name: str) -> NamedSlice:
        """AlreadyExistsError if the new name is taken. Not one step: for a moment it has both names."""
        return self._thread.run(self._core.rename(name, new_name))

    def delete(self, name: str) -> bool:
        """False if there was none; the events stay."""
        return self._thread.run(self._core.delete(name))
