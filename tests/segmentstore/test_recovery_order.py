"""After a recovery the log is released no further than its oldest frame that is still needed."""

from __future__ import annotations

from pathlib import Path

from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import Extent, FrameRef, Kind, SegmentRecord
from nadi.segmentstore.state.stored import ContainerState, record_changes, state_change
from nadi.segmentstore.tier1.log import LogAddress


def test_frames_are_in_order_whatever_segments_they_hold(tmp_path: Path) -> None:
    frames = {n: FrameRef(n, LogAddress(n, 1, 4096 * n), 0.0) for n in (5, 7, 9)}
    metadata = Metadata(tmp_path)
    changes = [state_change(ContainerState(sequence=9, next_segment=3))]
    extents = []
    for segment, numbers in ((1, (5, 9)), (2, (7,))):
        record = SegmentRecord(segment, f"scope/stream/{segment}", Kind.STREAM, 0)
        for number in numbers:
            record.extents.append(Extent(record.length, 10, frames[number], 0))
            record.changed_extents[record.length] = record.extents[-1]
            record.length += 10
            record.log_bytes += 10
        changes += record_changes(record)
        extents.append((segment, record.changed_extents, 0))
    metadata.commit(changes, extents=extents)

    state = StateMachine(metadata, 0.0)

    assert list(state.frames) == [5, 7, 9]
    assert [frame.live_bytes for frame in state.frames.values()] == [10, 10, 10]
    assert [record.log_bytes for record in state.record_cache.all()] == [20, 10]
    metadata.close()
