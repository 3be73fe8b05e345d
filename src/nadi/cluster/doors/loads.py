"""The loads of the segments of all stores, as a page of one store would be."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from nadi.limits import LOAD_PAGE_SEGMENTS
from nadi.model.load import SegmentLoad
from nadi.wire import commands as wire
from nadi.wire.loads import packed_loads, unpacked_loads


def joined(command: wire.GetSegmentLoads, replies: Sequence[wire.SegmentLoads]) -> wire.SegmentLoads:
    """One page of the pages of several stores, each in order of names.

    It ends where the first of them ends that isn't its store's last one: what comes after that isn't known of all. A
    segment that moved from one to the other meanwhile is in it once.
    """
    pages = [(unpacked_loads(reply.loads), reply.is_last) for reply in replies]
    ends = [page[-1].segment for page, is_last in pages if page and not is_last]
    found: dict[str, SegmentLoad] = {}
    for page, _ in pages:
        for load in page:
            if not ends or load.segment <= min(ends):
                found.setdefault(load.segment, load)
    loads = sorted(found.values(), key=attrgetter("segment"))
    is_last = not ends and len(loads) <= LOAD_PAGE_SEGMENTS
    return wire.SegmentLoads(command.request_id, command.segment, packed_loads(loads[:LOAD_PAGE_SEGMENTS]), is_last)
