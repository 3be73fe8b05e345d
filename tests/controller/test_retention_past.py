"""How much lies after a cut, against streams that lived at random, and over a store."""

from __future__ import annotations

import random

import pytest

from nadi.controller.retention.past import Past, look
from nadi.errors import InvalidStreamCutError
from tests.model.random_stream import RandomStream

from .support import STREAM, scaled, with_stream


@pytest.mark.parametrize("seed", range(150))
def test_bytes_after_any_cut_are_those_of_the_events_after_it(seed: int) -> None:
    stream = RandomStream(random.Random(seed))
    for _ in range(random.Random(seed).randint(1, 40)):
        stream.live()
    if seed % 3:
        stream.truncate(stream.somewhere())
    past = Past(stream.history, stream.head, {s: n for s, n in stream.lengths.items() if not stream.is_gone(s)})
    events = [event for event in stream.events() if not stream.is_before(event, stream.head)]
    assert past.kept_bytes == sum(event.end - event.start for event in events)
    for _ in range(10):
        cut = stream.somewhere()
        expected = sum(event.end - event.start for event in events if not stream.is_before(event, cut))
        assert past.bytes_after(cut) == expected


async def test_bytes_after_a_cut_over_a_store_and_what_was_scaled_and_truncated() -> None:
    async with with_stream(2) as (controller, store, _):
        flow = controller._flow
        store.append(STREAM.segment(0), b"a" * 100)
        store.append(STREAM.segment(1), b"b" * 50)
        assert (await look(flow, STREAM)).bytes_after({}) == 150
        await scaled(controller, [0, 1], [(0.0, 0.75), (0.75, 1.0)])
        left, right = [segment.id for segment in await controller.current_segments(STREAM)]
        store.append(STREAM.segment(left), b"c" * 7)
        assert (await look(flow, STREAM)).bytes_after({0: 60, 1: 50}) == 47
        assert (await look(flow, STREAM)).bytes_after({0: 100, left: -1, 1: 10}) == 47
        assert (await look(flow, STREAM)).bytes_after({left: 7, right: 0}) == 0
        await controller.truncate_stream(STREAM, {0: 90, 1: 50})
        assert (await look(flow, STREAM)).bytes_after({0: 60, 1: 50}) == 17, "what was truncated doesn't count"
        assert (await look(flow, STREAM)).bytes_after({}) == 17
        with pytest.raises(InvalidStreamCutError):
            (await look(flow, STREAM)).bytes_after({99: 0})
