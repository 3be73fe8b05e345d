"""What lies between a place in a stream and its tail: bytes, events, and how long the oldest event has waited.

Bytes are exact. Events are those bytes divided by the mean size of the stream's events in the last 20 minutes. How long
an event has waited is told by the time indexes of the segments that the place stands in: backwards from now in steps
that double, until nothing unread had come by then, then by halves; so who keeps up costs one question a segment. The
index is coarse: the event has waited for at least the time that is told, and at most ten seconds longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nadi.controller.engine.workflows import Workflows
from nadi.controller.retention.cuts import Cuts
from nadi.controller.retention.past import Past
from nadi.controller.state.histories import ask
from nadi.controller.state.history import Cut
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.segments import together
from nadi.errors import InvalidArgumentError, SegmentNotFoundError
from nadi.limits import LAG_QUESTIONS, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.load import SegmentLoad
from nadi.naming import parse_segment_name


@dataclass(frozen=True, slots=True)
class Behind:
    """size: bytes, None if the place is unknown. unread: for the segments it stands in that have more, from where on.
    why: what isn't known, and why."""

    size: int | None
    unread: Mapping[int, int]
    why: str = ""


async def bytes_behind(flow: Workflows, past: Past, cut: Cut, end: Cut | None) -> Behind:
    """How much lies after the cut, and before the end if there is one. past: the stream, looked at after the cut."""
    return await ask(flow.clock, past.history, lambda history: _measured(past.over(history), cut, end), cuts=2)


def _measured(past: Past, cut: Cut, end: Cut | None) -> Behind:
    cuts = Cuts(past)
    if not cuts.is_of_stream(cut):
        if not cuts.is_forgotten(cut):
            return Behind(None, {}, "its position is none of this stream: it was deleted and made anew, perhaps")
        if not cuts.is_gone(cut):
            return Behind(None, {}, "its position lies where the controller has forgotten how the stream was scaled")
        cut = cuts.head
    if end is not None and not cuts.is_of_stream(end):
        if cuts.is_forgotten(end) and cuts.is_gone(end):
            return Behind(0, {})
        end = None
    size = past.bytes_after(cut)
    _, offsets = cuts.standing(cut)
    until = past.ends
    if end is not None:
        size = max(0, size - past.bytes_after(end))
        is_before = past.history.passed(end)
        until = {i: end.get(i, past.ends.get(i, 0) if is_before(i) else 0) for i in offsets}
    starts = {segment: max(offset, past.head.get(segment, 0)) for segment, offset in offsets.items()}
    unread = {i: start for i, start in starts.items() if start < min(past.ends.get(i, 0), until.get(i, 0))}
    return Behind(size, unread)


async def seconds_behind(flow: Workflows, name: StreamName, unread: Mapping[int, int]) -> float | None:
    """For how long the oldest unread event has waited, at least; 0 if there is none. None if there are too many
    segments to ask, or they were truncated meanwhile."""
    if not unread:
        return 0.0
    now_ms = flow.clock.now_ms()
    left = LAG_QUESTIONS

    async def waiting_at(at_ms: int, segments: Iterable[int]) -> list[int]:
        """Of these segments, those that had something unread by then."""
        offsets: dict[int, int] = {}

        async def one(segment: int) -> None:
            offsets[segment], _ = await flow.segments.locate_moment(name.segment(segment), at_ms)

        await together(one(segment) for segment in segments)
        return [segment for segment, offset in offsets.items() if offset > unread[segment]]

    late_ms, early_ms, step_ms = now_ms + 1, now_ms, TIME_INDEX_MOST_MS  # at late_ms something had come
    suspects = list(unread)
    try:
        while early_ms > 0 and (left := left - len(suspects)) >= 0:
            found = await waiting_at(early_ms, suspects)
            if not found:
                break
            suspects, late_ms, early_ms, step_ms = found, early_ms, now_ms - step_ms, step_ms * 2
        while left >= 0 and late_ms - max(early_ms, 0) > max(TIME_INDEX_MS, (now_ms - late_ms) // 50):
            left -= len(suspects)
            middle_ms = (late_ms + max(early_ms, 0)) // 2
            found = await waiting_at(middle_ms, suspects)
            if found:
                suspects, late_ms = found, middle_ms
            else:
                early_ms = middle_ms
    except SegmentNotFoundError:
        return None
    if left < 0:
        return None
    return max(0, now_ms - late_ms) / 1000


def event_sizes(loads: Iterable[SegmentLoad]) -> dict[str, float]:
    """The mean size of each stream's events in the last 20 minutes, headers included, by "scope/stream"."""
    events: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for load in loads:
        try:
            scope, stream, _ = parse_segment_name(load.segment)
        except InvalidArgumentError:
            continue  # a part of a transaction, say
        key = f"{scope}/{stream}"
        events[key] = events.get(key, 0.0) + load.events_per_s[-1]
        sizes[key] = sizes.get(key, 0.0) + load.bytes_per_s[-1]
    return {key: sizes[key] / count for key, count in events.items() if count > 0 and sizes[key] > 0}
