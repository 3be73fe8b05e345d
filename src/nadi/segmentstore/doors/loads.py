"""What passes into the segments of a store: a page of their loads, and what writers report of their keys."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter

from nadi.errors import SegmentNotFoundError
from nadi.limits import LOAD_PAGE_SEGMENTS
from nadi.naming import LOAD_SEGMENT
from nadi.segmentstore.load.meter import LoadMeter
from nadi.wire import commands as wire
from nadi.wire.loads import packed_loads


def answer(command: wire.GetSegmentLoads, meters: Iterable[LoadMeter]) -> wire.SegmentLoads:
    """The loads of the first segments after the one named, over all containers."""
    if command.segment != LOAD_SEGMENT:
        raise SegmentNotFoundError(command.segment)
    pages = [meter.loads(command.after, LOAD_PAGE_SEGMENTS + 1) for meter in meters]
    loads = sorted(chain.from_iterable(pages), key=attrgetter("segment"))
    page = packed_loads(loads[:LOAD_PAGE_SEGMENTS])
    return wire.SegmentLoads(command.request_id, command.segment, page, len(loads) <= LOAD_PAGE_SEGMENTS)
