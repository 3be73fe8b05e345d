"""All segments of a stream that aren't forgotten, oldest first: when each took which keys, and what is left."""

from __future__ import annotations

import asyncio
import itertools
import re

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Stream
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
    stream = (await flow.metadata.stream(name)).value
    asked = [i for i in ids if i not in history.sizes]
    lengths = {i: history.sizes[i] for i in ids if i in history.sizes}
    lengths |= zip(asked, await _lengths(flow, name, asked), strict=True)
    is_passed = history.passed(stream.head) if stream.head else lambda _: False
    return [_report(history, stream, i, lengths[i], gone=is_passed(i)) for i in ids]


async def _lengths(flow: Workflows, name: StreamName, ids: list[int]) -> list[int]:
    """Of segments whose end isn't on record; 0 for those that are gone."""

    async def one(segment: int) -> int:
        try:
            return await flow.segments.length(name.segment(segment))
        except SegmentNotFoundError:
            return 0

    return await asyncio.gather(*map(one, ids))


def _report(history: History, stream: Stream, segment: int, length: int, *, gone: bool) -> SegmentReport:
    piece, sealed_in = history.segments[segment], history.sealed_in.get(segment)
    epoch = segment_epoch(segment)  # which may be forgotten, and the segment still there
    return SegmentReport(
        segment,
        piece.low,
        piece.high,
        history.began_ms(segment),
        None if sealed_in is None else history.change(sealed_in).created_ms,
        length if gone else min(max(stream.head.get(segment, 0), 0), length),
        length,
        rolled=epoch >= history.first and history.reference(epoch) != epoch,
    )
