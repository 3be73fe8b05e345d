"""What follows from the marks of a stream's writers: the next watermark, and which writers no longer count.

Pure: marks, the previous watermark and the stream's history in, a `Verdict` out; `watermark_rounds` carries it out.
A writer takes part once its time is past the previous watermark. A stalled writer holds the next watermark back for
as long as the stream's configuration allows (not at all by default) unless it was removed; then it is dropped.

The cut lies at or after each writer's position and the previous cut, and covers the key space. So the lower bounds
grow, the cuts never go back, and what writers noted up to `lower` lies before the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nadi.controller.state.history import Cut, History
from nadi.controller.state.records import WriterMark
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import segment_epoch


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about a stream: the watermark to emit, the writers to drop, and those to wait for."""

    watermark: Watermark | None
    dropped: tuple[str, ...]
    waited_for: tuple[str, ...]


def judge(
    marks: Mapping[str, WriterMark],
    previous: Watermark | None,
    history: History,
    *,
    timeout_ms: int,
    waited_ms: Mapping[str, int],
) -> Verdict:
    """The verdict on the marks, by writer. timeout_ms: how long to wait for a stalled writer; waited_ms: how long
    each has been waited for so far, if at all."""
    behind = {w: mark for w, mark in marks.items() if previous is not None and mark.time <= previous.lower}
    waited_for = tuple(w for w, mark in behind.items() if mark.alive and waited_ms.get(w, 0) < timeout_ms)
    dropped = tuple(writer for writer in behind if writer not in waited_for)
    taking_part = [mark for writer, mark in marks.items() if writer not in behind]
    if waited_for or not taking_part:
        return Verdict(None, dropped, waited_for)
    times = [mark.time for mark in taking_part]
    before = [previous.positions()] if previous is not None else []
    cut = joined([*(mark.position for mark in taking_part), *before], history)
    return Verdict(Watermark(min(times), max(times), cut), dropped, waited_for)


def joined(positions: Iterable[Cut], history: History) -> tuple[SegmentPosition, ...]:
    """The first cut, among those with the segments of one epoch, that lies at or after all of the positions.

    Its epoch is the newest to which a segment of the positions belongs. What that epoch replaced lies before it, and a
    segment that no position names is taken at its start. Segments of several epochs would say less in few cases, and
    nothing in some: two of them may belong to epochs between which their keys were joined and split again.
    """
    furthest: dict[int, int] = {}
    for position in positions:
        for segment, offset in position.items():
            furthest[segment] = max(furthest.get(segment, 0), offset)
    newest = max(map(segment_epoch, furthest), default=0)
    newest = max(newest, history.first)  # what is forgotten lies before all others
    return tuple(
        SegmentPosition(piece.id, piece.low, piece.high, furthest.get(piece.id, 0)) for piece in history.epoch(newest)
    )
