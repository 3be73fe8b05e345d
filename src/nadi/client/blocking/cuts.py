"""The blocking face of stream cuts, and of what a scope keeps by name: bookmarks, named slices, stream tables."""

from __future__ import annotations

from nadi.client import aio
from nadi.client.blocking.face import Face, described, waits


@described(aio.StreamCuts)
class StreamCuts(Face[aio.StreamCuts]):
    """See nadi.client.aio.StreamCuts."""

    head = waits(aio.StreamCuts.head)
    tail = waits(aio.StreamCuts.tail)
    at = waits(aio.StreamCuts.at)
    named = waits(aio.StreamCuts.named)
    after = waits(aio.StreamCuts.after)
    before = waits(aio.StreamCuts.before)
    came_by = waits(aio.StreamCuts.came_by)
    at_event_time = waits(aio.StreamCuts.at_event_time)
    after_event_time = waits(aio.StreamCuts.after_event_time)
    between = waits(aio.StreamCuts.between)
    check = waits(aio.StreamCuts.check)
    settled = waits(aio.StreamCuts.settled)
    compare = waits(aio.StreamCuts.compare)
    earliest = waits(aio.StreamCuts.earliest)
    latest = waits(aio.StreamCuts.latest)
    segments_between = waits(aio.StreamCuts.segments_between)
    bytes_between = waits(aio.StreamCuts.bytes_between)
    events_between = waits(aio.StreamCuts.events_between)


@described(aio.Bookmarks)
class Bookmarks(Face[aio.Bookmarks]):
    """See nadi.client.aio.Bookmarks."""

    create = waits(aio.Bookmarks.create)
    get = waits(aio.Bookmarks.get)
    list = waits(aio.Bookmarks.list)
    unreadable = waits(aio.Bookmarks.unreadable)
    list_with_unreadable = waits(aio.Bookmarks.list_with_unreadable)
    tag = waits(aio.Bookmarks.tag)
    rename = waits(aio.Bookmarks.rename)
    delete = waits(aio.Bookmarks.delete)


@described(aio.NamedSlices)
class NamedSlices(Face[aio.NamedSlices]):
    """See nadi.client.aio.NamedSlices."""

    create = waits(aio.NamedSlices.create)
    get = waits(aio.NamedSlices.get)
    list = waits(aio.NamedSlices.list)
    unreadable = waits(aio.NamedSlices.unreadable)
    list_with_unreadable = waits(aio.NamedSlices.list_with_unreadable)
    tag = waits(aio.NamedSlices.tag)
    rename = waits(aio.NamedSlices.rename)
    delete = waits(aio.NamedSlices.delete)


@described(aio.StreamTables)
class StreamTables(Face[aio.StreamTables]):
    """See nadi.client.aio.StreamTables."""

    define = waits(aio.StreamTables.define)
    get = waits(aio.StreamTables.get)
    list = waits(aio.StreamTables.list)
    unreadable = waits(aio.StreamTables.unreadable)
    list_with_unreadable = waits(aio.StreamTables.list_with_unreadable)
    drop = waits(aio.StreamTables.drop)
