"""ListEventSizes returns the events that a read would find, wherever the bytes are stored, in bounded parts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from nadi import limits
from nadi.limits import EVENT_SIZES_A_TURN
from nadi.model.event import whole_events
from nadi.model.framing import event_starts, frame_events
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading import boundaries
from nadi.segmentstore.reading import reads as reads_module
from nadi.segmentstore.reading.boundaries import SizesOfEvents
from nadi.wire import commands as wire
from nadi.wire.event_sizes import sizes_in
from nadi.wire.fields import Buffer
from tests.segmentstore.harness import WRITER, Peer, open_segment

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
END = 1 << 40


async def listed(ask: Any, start: int, end: int, most: int = 1_000_000) -> tuple[list[int], int, int]:
    """Return all sizes listed, their end, and the number of replies."""
    found: list[int] = []
    checked, pages = start, 0
    while start < end:
        request = wire.ListEventSizes(1, S, start, checked, end, most, "")
        page = sizes_in(request, await ask(request))
        pages += 1
        if (page.reached, page.checked) <= (start, checked):
            break
        found += page.sizes.tolist()
        start, checked = page.reached, page.checked
    return found, start, pages


def read(stored: bytes, start: int = 0) -> list[int]:
    """Return the sizes of events that a reader of the bytes finds."""
    block, size = whole_events(memoryview(stored)[start:])
    sizes: list[int] = np.diff(block.starts, append=size).tolist()
    return sizes


async def large(peer: Peer, payload: bytes, piece: int) -> None:
    """Append an event too large for one append, as Java does."""
    made = await peer.ask(wire.CreateTransientSegment(2, WRITER, S, ""))
    data, other = frame_events([payload]), bytes(15) + b"\1"
    await peer.setup(made.segment, other)
    for number, at in enumerate(range(0, len(data), piece)):
        reply = await peer.ask(wire.ConditionalBlockEnd(other, number, at, data[at : at + piece], 3))
        assert isinstance(reply, wire.DataAppended)
    assert isinstance(await peer.ask(wire.MergeSegments(4, S, made.segment, "")), wire.SegmentsMerged)


async def test_listed_sizes_match_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SIZES_SCANNED_BYTES", 5_000)
    rng = random.Random(1)
    async with open_segment(tmp_path, S) as (store, peer):
        last = 0
        for tier in (1, 2, 1):  # the last part stays in the log
            for kind in (0, 50, 50, 1000):
                events = [rng.randbytes(kind or rng.randrange(200)) for _ in range(40)]
                last += 40
                await peer.append(events, last)
            await large(peer, rng.randbytes(30_000), 8_003)
            await peer.append([b"", b"after"], last := last + 2)
            while tier == 2 and await store.storage_writers[0].flush_once(everything=True):
                pass
            stored = await peer.read_all(S)
            sizes, reached, pages = await listed(peer.ask, 0, len(stored))
            assert sizes == read(stored)
            assert reached == len(stored)
            assert pages > len(stored) // 5_000, "each reply covers at most this much"
        boundaries = [0, *np.cumsum(sizes).tolist()]
        for _ in range(30):
            first, to = sorted(rng.sample(range(len(boundaries)), 2))
            found = await listed(peer.ask, boundaries[first], boundaries[to], rng.choice([1, 3, 1000]))
            assert found[:2] == (sizes[first:to], boundaries[to])
            within = await listed(peer.ask, boundaries[first], boundaries[to] + rng.choice([1, 7]))
            assert within[:2] == found[:2] or sizes[to] == 8, "readers refuse an end within an event"
        assert (await listed(peer.ask, boundaries[5], boundaries[5]))[0] == []
        assert (await listed(peer.ask, len(stored), END))[0] == []
        cut = boundaries[len(boundaries) // 2]
        await peer.ask(wire.TruncateSegment(2, S, cut, ""))
        assert (await listed(peer.ask, cut, len(stored)))[0] == read(stored, cut)
        reply = await peer.ask(wire.ListEventSizes(1, S, 0, 0, END, 9, ""))
        assert reply == wire.SegmentIsTruncated(1, S, cut, "", -1)
        await peer.ask(wire.SealSegment(3, S, ""))
        assert (await listed(peer.ask, cut, END))[0] == read(stored, cut)


async def test_a_turn_puts_few_small_appends_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "_EXTENTS_A_TURN", 5)
    async with open_segment(tmp_path, S) as (_, peer):
        for number in range(1, 24):
            await peer.append([b"%d" % number], number)
        stored = await peer.read_all(S)
        reply = await peer.ask(wire.ReadSegment(S, 0, 1 << 20, "", 7))
        assert bytes(reply.data) == stored[: 5 * 9]
        assert (await listed(peer.ask, 0, len(stored)))[0] == read(stored)


async def test_non_event_bytes_end_the_list(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (_, peer):
        await peer.append([b"one", b"three"], 2)
        await peer.ask(wire.ConditionalBlockEnd(WRITER, 3, 24, b"\xff" * 40, 3))
        for start in (24, 25, 30, 12, 3):
            reply = await peer.ask(wire.ListEventSizes(1, S, start, start, 64, 9, ""))
            assert (reply.reached, reply.checked) == (start, start)
        for start, checked, most in ((0, 0, 0), (0, -1, 9), (0, 12, 9), (24, 30, 9), (64, 70, 9), (70, 80, 9)):
            reply = await peer.ask(wire.ListEventSizes(1, S, start, checked, END, most, ""))
            refused = isinstance(reply, wire.ErrorMessage) and reply.error_code == wire.ILLEGAL_ARGUMENT
            assert refused or (reply.reached, reply.checked) == (start, start), (start, checked, reply)
        reply = await peer.ask(wire.ListEventSizes(1, S, 0, 5, 24, 9, ""))  # the remainder of an event
        assert sizes_in(wire.ListEventSizes(1, S, 0, 5, 24, 9, ""), reply).sizes.tolist() == [11, 13]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=6),
    st.lists(st.sampled_from([1, 2, 7, 8, 30, 300, 5_000]), min_size=1, max_size=5),
    st.sampled_from([40, 100, 1_000, 100_000]),
    st.sampled_from([1, 5, 1_000]),
)
def test_blocks_and_pages_of_any_size(rows: list[tuple[int, int]], blocks: list[int], page: int, most: int) -> None:
    sizes = [size + 8 for size, count in rows for _ in range(count)]
    stored = frame_events([bytes([1 + n % 250]) * (size - 8) for n, size in enumerate(sizes)])
    reads = 0

    async def read(offset: int, length: int) -> Buffer:
        nonlocal reads
        reads += 1
        return stored[offset : offset + min(max(length, 8), blocks[reads % len(blocks)])]

    answers = SizesOfEvents(FairScheduler())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "EVENT_SIZES_SCANNED_BYTES", page)
        found, reached, _ = asyncio.run(listed(lambda request: answers.answer(request, read), 0, len(stored), most))
    assert found == sizes
    assert reached == len(stored)


def test_little_is_done_in_one_turn_of_the_loop() -> None:
    """Appends, which share the loop, must not wait."""
    rng = random.Random(2)
    stored = frame_events([bytes(rng.randrange(8)) for _ in range(50_000)])
    blocks: list[int] = []

    async def read(offset: int, length: int) -> Buffer:
        return memoryview(stored)[offset : offset + length]

    def noted(*given: Any, **options: Any) -> Any:
        found = event_starts(*given, **options)
        blocks.append(len(found[0]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundaries, "event_starts", noted)
        request = wire.ListEventSizes(1, S, 0, 0, len(stored), 1_000_000, "")
        uvloop.run(SizesOfEvents(FairScheduler()).answer(request, read))
    assert sum(blocks) == 50_000
    assert max(blocks) < 10 * EVENT_SIZES_A_TURN
