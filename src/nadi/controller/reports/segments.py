"""All segments of a stream that aren't forgotten, oldest first: when each took which keys, and what is left."""

from __future__ import annotations

import asyncio
import itertools
import re

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import History
from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError, SegmentNotFoundError
from nadi.limits import LIST_PAGE
from nadi.model.reports import SegmentReport
from nadi.naming import segment_epoch

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


async def segments(flow: Workflows, name: StreamName, token: str) -> tuple[list[SegmentReport], str]:
    """A page in the order of ids. token: the last id of the page before."""
    if token and not _NUMBER.fullmatch(token):
        raise InvalidArgumentError(f"{token[:40]!r} is not the token of a page: give back the one that you got")
    history = await flow.metadata.history(name)
    ids = list(itertools.islice(history.ids_after(int(token) if token else -1), LIST_PAGE + 1))
    page = ids[:LIST_PAGE]
    records = await _reports(flow, name, history, page)
    return records, str(page[-1]) if len(ids) > LIST_PAGE else ""


async def replaced(flow: Workflows, name: StreamName, count: int) -> list[SegmentReport]:
    """The segments that were replaced last, the newest replacement first."""
    history = await flow.metadata.history(name)
    found: list[int] = []
    for epoch in range(history.newest, history.first, -1):
        found += [segment for segment in history.change(epoch).removed if segment in history.segments]
        if len(found) >= count:
            break
    return await _reports(flow, name, history, found[:count])


async def _reports(flow: Workflows, name: StreamName, history: History, ids: list[int]) -> list[SegmentReport]:
    """As they are now: the history goes on while lengths are asked for, and who is told that a segment was replaced is
    to be told by which."""
    found = [_report(history, i) for i in ids]
    lengths = {i: history.sizes[i] for i in ids if i in history.sizes}
    asked = [i for i in ids if i not in lengths]
    stream = (await flow.metadata.stream(name)).value
    lengths |= zip(asked, await _lengths(flow, name, asked), strict=True)
    is_passed = history.passed(stream.head) if stream.head else lambda _: False

    def start(segment: int) -> int:
        end = lengths[segment]
        is_gone = history.is_forgotten(segment) or is_passed(segment)
        return end if is_gone else min(max(stream.head.get(segment, 0), 0), end)

    return [replace(one, start_offset=start(one.segment_id), end_offset=lengths[one.segment_id]) for one in found]


async def _lengths(flow: Workflows, name: StreamName, ids: list[int]) -> list[int]:
    """Of segments whose end isn't on record; 0 for those that are gone."""

    async def one(segment: int) -> int:
        try:
            return await flow.segments.length(name.segment(segment))
        except SegmentNotFoundError:
            return 0

    return await asyncio.gather(*map(one, ids))


def _report(history: History, segment: int) -> SegmentReport:
    """All but its offsets."""
    piece, sealed_in = history.segments[segment], history.sealed_in.get(segment)
    epoch = segment_epoch(segment)  # which may be forgotten, and the segment still there
    return SegmentReport(
        segment,
        piece.low,
        piece.high,
        history.began_ms(segment),
        None if sealed_in is None else history.change(sealed_in).created_ms,
        0,
        0,
        rolled=epoch >= history.first and history.reference(epoch) != epoch,
    )
