"""How much of a stream lies after a stream cut: the sum over the cut's own segments and all that follow them.

Sealed segments' lengths are recorded with the epoch that replaced them; only those that may still grow are asked for
at the store. So an answer costs as many questions as the stream has current segments, however often it was scaled.

>>> from nadi.controller.state.history import History, first_epoch
>>> history = History([first_epoch(1, 0)])
>>> split = history.plan_scale(0, [0], [(0.0, 0.5), (0.5, 1.0)], min_segments=1, time_ms=0)
>>> history.add(split)
>>> left, right = (segment.id for segment in split.added)
>>> past = Past(history, {}, {0: 100, left: 20, right: 3})
>>> past.bytes_after({0: 70}), past.bytes_after({left: 20, right: 1}), past.bytes_after({0: 100, left: -1, right: 0})
(53, 2, 23)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nadi.controller.engine.comparisons import ask
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.segments import together
from nadi.errors import InvalidStreamCutError, SegmentNotFoundError
from nadi.naming import segment_epoch


@dataclass(frozen=True)
class Past:
    """A stream as it was when it was looked at. head: the cut at which it began; empty: it was never truncated.
    ends: the lengths of all segments that don't lie before the head."""

    history: History
    head: Cut
    ends: Mapping[int, int]

    def bytes_after(self, cut: Cut) -> int:
        """Bytes after a stream cut; of what was truncated, none counts."""
        total = 0
        for segment in not_passed(self.history, cut):
            end = self.ends.get(segment)
            if end is not None:
                total += max(0, end - max(cut.get(segment, 0), self.head.get(segment, 0), 0))
        return total

    @property
    def kept_bytes(self) -> int:
        """Bytes from head to tail."""
        return self.bytes_after(self.head or self.history.head_of_time())


def not_passed(history: History, cut: Cut) -> Iterator[int]:
    """The segments that a cut has not read to their ends, its own included; all if the cut is empty.

    InvalidStreamCutError if it names a segment that the history doesn't have.
    """
    if not cut:
        yield from history.segments
        return
    if any(segment not in history.segments for segment in cut):
        raise InvalidStreamCutError("the stream cut names a segment that this stream never had")
    epochs = [segment_epoch(segment) for segment in cut]
    oldest, newest = min(epochs), max(epochs)
    is_passed = history.passed(cut)
    for segment in history.segments:
        epoch = segment_epoch(segment)  # most are told by it alone
        if epoch > newest or (epoch >= oldest and not is_passed(segment)):
            yield segment


async def look(flow: Workflows, name: StreamName) -> Past:
    """The stream as it is now; StreamNotFoundError if there is none."""
    head = (await flow.metadata.stream(name)).value.head
    history = await flow.metadata.history(name)
    kept = await ask(flow.clock, history, lambda known: list(not_passed(known, head)))
    ends = {segment: history.sizes[segment] for segment in kept if segment in history.sizes}

    async def measure(segment: int) -> None:
        try:
            ends[segment] = await flow.segments.length(name.segment(segment))
        except SegmentNotFoundError:  # truncated away meanwhile; a barrier; or the stream is being deleted
            ends[segment] = 0

    await together(measure(segment) for segment in kept if segment not in ends)
    return Past(history, head, ends)


async def bytes_after(flow: Workflows, name: StreamName, cut: Cut) -> int:
    """How many bytes of the stream lie after the cut now, in its segments and all that follow them. What was truncated
    doesn't count, and an empty cut stands for the head.

    Raises StreamNotFoundError, and InvalidStreamCutError for a cut of another stream.
    """
    past = await look(flow, name)
    return await ask(flow.clock, past.history, lambda known: Past(known, past.head, past.ends).bytes_after(cut))
