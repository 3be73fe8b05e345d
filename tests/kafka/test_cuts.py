"""A bookmark where a consumer group is, and a consumer where a bookmark is."""

from __future__ import annotations

import nadi
import nadi.kafka
from nadi.client.serializers.kafka import records_of
from tests.kafka.support import SCOPE, Door, written


def values_from(manager: nadi.StreamManager, cut: nadi.StreamCut) -> list[int]:
    tail = manager.cuts(SCOPE, "cuts").tail()
    events = manager.read_events(SCOPE, "cuts", start=cut, end=tail)
    return [int(record.value or b"") for event in events for record in records_of(event.data)]


def test_cuts_and_offsets_over_splits(manager: nadi.StreamManager, door: Door) -> None:
    door.create("cuts", 4)
    producer, ends, cuts = door.producer(), [], []
    for round_ in range(4):
        messages = written(producer, "cuts", [b"%d" % (round_ * 100 + i) for i in range(100)], lambda i: b"k%d" % i)
        cuts.append(manager.cuts(SCOPE, "cuts").tail())
        last = {message.partition(): message.offset() + 1 for message in messages}
        ends.append({partition: last.get(partition, 0) for partition in range(4)})
        segments = manager.current_segments(SCOPE, "cuts")
        count = (3, 1, 4, 2)[round_]
        new = [(i / count, (i + 1) / count) for i in range(count)]
        manager.scale_stream(SCOPE, "cuts", [segment.segment_id for segment in segments], new)
    for round_ in range(4):
        assert nadi.kafka.offsets_of(manager, "cuts", cuts[round_]) == ends[round_]
        cut = nadi.kafka.cut_of(manager, "cuts", ends[round_])
        manager.cuts(SCOPE, "cuts").check(cut)
        assert sorted(values_from(manager, cut)) == list(range(round_ * 100 + 100, 400))
    half = {partition: offset // 2 for partition, offset in ends[-1].items()}
    cut = nadi.kafka.cut_of(manager, "cuts", half)
    offsets = nadi.kafka.offsets_of(manager, "cuts", cut)
    assert all(offsets[partition] <= half[partition] for partition in half)
    assert len(values_from(manager, cut)) >= 400 - sum(half.values())
