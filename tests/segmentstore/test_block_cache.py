"""The parts of a frame are put into the block cache in one go, as if one by one."""

from __future__ import annotations

from nadi.segmentstore.container.cache import BlockCache, place_in_log
from nadi.segmentstore.state.records import Extent, FrameRef
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES


def test_the_parts_of_a_frame_are_there_and_count_as_if_put_one_by_one() -> None:
    ref, parts = FrameRef(7, None, 0.0), [bytes([number]) * 100 for number in range(20)]
    extents = [Extent(0, 100, ref, 50 + 100 * number) for number in range(20)]
    together, single = BlockCache(4_000), BlockCache(4_000)
    together.put_frame(3, 7, extents, parts, bytes(range(20 * CHECKSUM_BYTES)))
    assert extents[1].checksums == bytes(range(CHECKSUM_BYTES, 2 * CHECKSUM_BYTES))
    for extent, part in zip(extents, parts, strict=True):
        single.put(place_in_log(3, extent), part)
    assert 0 < together.size_bytes == single.size_bytes <= 4_000
    found = [together.get(place_in_log(3, extent)) for extent in extents]
    assert found == [single.get(place_in_log(3, extent)) for extent in extents]
    assert found[0] is None, "the oldest made room"
    assert found[-1] == parts[-1]
    together.drop(3, extents[-1:])
    single.drop(3, extents[-1:])
    assert together.size_bytes == single.size_bytes
    together.drop(3, extents)
    assert (len(together), together.size_bytes) == (0, 0)


def test_history_pushes_out_nothing_of_the_log_but_the_log_leaves_it_room() -> None:
    cache = BlockCache(100_000)
    extents = [Extent(0, 680, FrameRef(number, None, 0.0), 0) for number in range(200)]
    for number, extent in enumerate(extents[:60]):
        cache.put_frame(0, number, [extent], [bytes(680)], bytes(CHECKSUM_BYTES))
    for number in range(1_000):
        cache.put(("chunk", number, 0), bytes(680))
        assert cache.size_bytes <= 100_000
    assert all(cache.peek(place_in_log(0, extent)) for extent in extents[:60])
    assert sum(cache.peek(("chunk", number, 0)) is not None for number in range(1_000)) == 40
    for number, extent in enumerate(extents[60:], 60):
        cache.put_frame(0, number, [extent], [bytes(680)], bytes(CHECKSUM_BYTES))
        cache.put(("chunk", number, 0), bytes(680))
    assert sum(cache.peek(place_in_log(0, extent)) is not None for extent in extents) == 75
    assert cache.peek(place_in_log(0, extents[-1])) is not None, "the newest stays"
    assert len(cache) == 100
    assert cache.evictions == 200 + 1_000 + 140 - 100
