"""What was decided about a stream's segments, and the load of those that it has now."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from nadi.controller.engine.workflows import Workflows
from nadi.controller.scaling.cutting import HotKey
from nadi.controller.scaling.log import ScalingLog, is_done
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, ScalingEntry, StreamState
from nadi.errors import InvalidArgumentError
from nadi.limits import LIST_PAGE
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.model.reports import HotKeyReport, LoadReport, ScalingReport

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_PAGE_PARTS = 10_000  # segments and key ranges in a page, 40 bytes each: one decision may be about a thousand
_NONE = (0.0,) * len(WINDOWS_S)
HotKeys = Callable[[StreamName], Mapping[int, HotKey | None]]


async def scalings(log: ScalingLog, flow: Workflows, name: StreamName, token: str) -> tuple[list[ScalingReport], str]:
    """A page of the stream's scaling log, oldest first. token: the last number of the page before."""
    if token and not _NUMBER.fullmatch(token):
        raise InvalidArgumentError(f"{token[:40]!r} is not the token of a page: give back the one that you got")
    history = await flow.metadata.history(name)
    found = [entry for entry in await log.entries(name) if entry.number > int(token or 0)]
    page = [
        ScalingReport(
            entry.number,
            entry.at_ms,
            entry.kind,
            list(entry.segments),
            list(entry.into),
            entry.rate,
            entry.target,
            entry.unit,
            entry.why,
            entry.profile,
            entry.epoch,
            is_done(entry, history),
        )
        for entry in found[: _fitting(found)]
    ]
    return page, str(page[-1].number) if len(found) > len(page) else ""


def _fitting(entries: Sequence[ScalingEntry]) -> int:
    """How many of the first ones make a page."""
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
    measured = {load.segment: load for load in await flow.segments.loads(f"{name.key}/")}
    hot = hot_keys(name)
    return [_load(piece, measured.get(name.segment(piece.id)), hot) for piece in stream.segments], ""


def _load(piece: EpochSegment, load: SegmentLoad | None, hot: Mapping[int, HotKey | None]) -> LoadReport:
    key = hot.get(piece.id)
    told = HotKeyReport(key.position, key.share) if key is not None else HotKeyReport(None, None)
    return LoadReport(
        piece.id,
        piece.low,
        piece.high,
        list(load.events_per_s if load is not None else _NONE),
        list(load.bytes_per_s if load is not None else _NONE),
        load is not None and load.keys is not None,
        told if piece.id in hot else None,
    )
