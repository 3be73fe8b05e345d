"""Replace some of a stream's segments with others over the same keys: split hot ones, merge cold ones.

The order makes it safe: create the new segments, publish them as successors, seal the old ones, switch. A writer that
meets a sealed segment asks for its successors and must get some, since an empty answer means that the whole stream is
sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

from nadi.controller.engine.workflows import Workflows, seal_and_measure, switch
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import ScaleWork
from nadi.controller.state.segments import together
from nadi.errors import InvalidArgumentError
from nadi.limits import STREAM_MAX_SEGMENTS
from nadi.model.segments import KeyRange


async def begin(
    flow: Workflows, name: StreamName, sealed: Sequence[int], ranges: Sequence[KeyRange], time_ms: int
) -> ScaleWork:
    stream = await flow.metadata.open_stream(name)
    history = await flow.metadata.history(name)
    now, count = flow.clock.now_ms(), len(stream.segments) - len(sealed) + len(ranges)
    if count > STREAM_MAX_SEGMENTS:
        raise InvalidArgumentError(f"a stream has at most {STREAM_MAX_SEGMENTS:,} segments: give fewer key ranges")
    work = ScaleWork(
        history.plan_scale(
            stream.epoch,
            sealed,
            ranges,
            min_segments=stream.config.min_segments,
            time_ms=min(time_ms, now) if time_ms > 0 else now,
        )
    )
    if flow.admit is not None:
        await flow.admit(name, count)
    return work


def same_scale(work: ScaleWork, sealed: Sequence[int], ranges: Sequence[KeyRange]) -> bool:
    added = sorted((segment.low, segment.high) for segment in work.change.added)
    return sorted(sealed) == list(work.change.removed) and sorted(ranges) == added


async def steps(flow: Workflows, name: StreamName, work: ScaleWork) -> None:
    change = work.change
    stream = (await flow.metadata.stream(name)).value
    if stream.epoch >= change.epoch:
        return
    await together(flow.segments.create_segment(name.segment(segment.id), stream.config) for segment in change.added)
    await flow.metadata.publish(name, [change])
    await seal_and_measure(flow, name, change.removed, f"{change.epoch}")
    await switch(flow, name, change)
