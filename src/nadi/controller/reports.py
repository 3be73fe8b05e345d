"""What there is to know about a stream, kind by kind, for `nadi.v1.Reports` and for people, page by page; and the
identity of a server or a cluster: chance digits, by which clients know whose a thing is that they keep elsewhere.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from nadi.controller import consumer_lag
from nadi.controller.engine.workflows import Workflows
from nadi.controller.rates import loads_of
from nadi.controller.scaling.judge import HotKey
from nadi.controller.scaling.rounds import is_done, logged_decisions
from nadi.controller.state.history import History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, Number, ScalingEntry, StreamState
from nadi.controller.state.segments import together
from nadi.errors import InvalidArgumentError
from nadi.limits import LIST_PAGE
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.model.reports import (
    GROUP_LAG,
    IDENTITY,
    SCALING,
    SEGMENTS,
    STREAM_LAG,
    HotKeyReport,
    IdentityReport,
    LoadReport,
    ScalingReport,
    SegmentReport,
)
from nadi.naming import segment_epoch

_KEY = "identity"  # in `numbers`
_BITS = 52  # that a chance has


async def identity(flow: Workflows) -> IdentityReport:
    async def made(held: Number | None) -> Number:
        return Number(int(flow.clock.chance() * (1 << _BITS))) if held is None else held

    held = await flow.metadata.numbers.change(_KEY, "the identity", made)
    return IdentityReport(f"{held.value.value:013x}")


_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_PAGE_PARTS = 10_000  # segments and key ranges in a page, 40 bytes each: one decision may be about a thousand
_NONE = (0.0,) * len(WINDOWS_S)
HotKeys = Callable[[StreamName], Mapping[int, HotKey | None]]


async def scalings(flow: Workflows, name: StreamName, token: str) -> tuple[list[ScalingReport], str]:
    """A page of the stream's scaling log, oldest first. token: the last number of the page before."""
    last, history = _last(token), await flow.metadata.history(name)
    found = [entry for entry in await logged_decisions(flow.metadata, name) if entry.number > max(last, 0)]
    page = [
        msgspec.convert({**asdict(entry), "is_done": is_done(entry, history)}, ScalingReport)
        for entry in found[: _fitting(found)]
    ]
    return page, str(page[-1].number) if len(found) > len(page) else ""


def _last(token: str) -> int:
    """What the page before ended with; -1 if there is none."""
    if token and not _NUMBER.fullmatch(token):
        raise InvalidArgumentError(f"{token[:40]!r} is not the token of a page: give back the one that you got")
    return int(token) if token else -1


def _fitting(entries: Sequence[ScalingEntry]) -> int:
    parts = 0
    for count, entry in enumerate(entries[:LIST_PAGE]):
        parts += len(entry.segments) + len(entry.into)
        if count and parts > _PAGE_PARTS:
            return count
    return min(len(entries), LIST_PAGE)


async def loads(hot_keys: HotKeys, flow: Workflows, name: StreamName, _: str) -> tuple[list[LoadReport], str]:
    """All of the stream's current segments, by key; none if it is sealed."""
    stream = (await flow.metadata.stream(name)).value
    if stream.state is StreamState.SEALED:
        return [], ""
    measured, hot = await loads_of(flow, name), hot_keys(name)
    return [_load(piece, measured.get(piece.id), hot) for piece in stream.segments], ""


def _load(piece: EpochSegment, load: SegmentLoad | None, hot: Mapping[int, HotKey | None]) -> LoadReport:
    key = hot.get(piece.id)
    found = HotKeyReport(key.position, key.share) if key is not None else HotKeyReport(None, None)
    events, sizes = (load.events_per_s, load.bytes_per_s) if load is not None else (_NONE, _NONE)
    has_keys, hot_key = load is not None and load.keys is not None, found if piece.id in hot else None
    return LoadReport(piece.id, piece.low, piece.high, list(events), list(sizes), has_keys, hot_key)


async def segments(flow: Workflows, name: StreamName, token: str) -> tuple[list[SegmentReport], str]:
    """A page in the order of ids. token: the last id of the page before."""
    last, history = _last(token), await flow.metadata.history(name)
    ids = list(itertools.islice(history.ids_after(last), LIST_PAGE + 1))
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
    now = await together(flow.segments.length_if_there(name.segment(i)) for i in asked)
    lengths |= zip(asked, now, strict=True)
    is_passed = history.passed(stream.head) if stream.head else lambda _: False

    def start(segment: int) -> int:
        end = lengths[segment]
        is_gone = history.is_forgotten(segment) or is_passed(segment)
        return end if is_gone else min(max(stream.head.get(segment, 0), 0), end)

    return [replace(one, start_offset=start(one.segment_id), end_offset=lengths[one.segment_id]) for one in found]


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


Page = tuple[Sequence[Any], str]  # records, and the token of the next page: empty at the end
Kind = Callable[[Workflows, StreamName, str], Awaitable[Page]]

KINDS: Mapping[str, Kind] = {
    SEGMENTS: segments,
    SCALING: scalings,
    GROUP_LAG: consumer_lag.of_group,
    STREAM_LAG: consumer_lag.of_stream,
}


async def report(flow: Workflows, name: StreamName, kind: str, token: str, more: Mapping[str, Kind]) -> Page:
    """A page of the stream's report of that kind. more: kinds whose makers remember something. StreamNotFoundError, or
    InvalidArgumentError if it isn't one."""
    if kind == IDENTITY:
        return [await identity(flow)], ""
    kinds = {**KINDS, **more}
    make = kinds.get(kind)
    if make is None:
        raise InvalidArgumentError(
            f"there are no reports of the kind {kind[:40]!r}: ask for {', '.join(sorted([*kinds, IDENTITY]))}"
        )
    await flow.metadata.stream(name)
    return await make(flow, name, token)
