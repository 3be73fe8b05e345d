"""LocateOffset gives the next event boundary, whatever the bytes lie in."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from pathlib import Path

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from nadi.model.framing import frame_events
from nadi.segmentstore.boundaries import boundary_from
from nadi.wire import commands as wire
from tests.segmentstore.harness import WRITER, Peer, open_store

S = "scope/stream/0.#epoch.0"


async def locate(peer: Peer, target: int) -> int:
    reply = await peer.ask(wire.LocateOffset(1, S, target, ""))
    assert isinstance(reply, wire.OffsetLocated), reply
    return reply.offset


def test_every_offset_has_the_boundary_after_it(tmp_path: Path) -> None:
    async def run() -> None:
        rng = random.Random(1)
        async with open_store(tmp_path, 1) as (store, peer):
            await peer.create(S)
            await peer.setup(S)
            boundaries, last = [0], 0
            for _ in range(12):
                events = [rng.randbytes(rng.randrange(1, 200)) for _ in range(5)]
                for event in events:
                    boundaries.append(boundaries[-1] + 8 + len(event))
                last += 5
                await peer.append(events, last)
            for tier in (1, 2):
                for target in rng.sample(range(boundaries[-1]), 100):
                    assert await locate(peer, target) == boundaries[bisect_left(boundaries, target)], tier
                while await store.storage_writers[0].flush_once(everything=True):
                    pass
            assert await locate(peer, boundaries[-1] + 5) == boundaries[-1]
            await peer.ask(wire.TruncateSegment(2, S, boundaries[3], ""))
            assert await locate(peer, 1) == boundaries[3]
            assert await locate(peer, boundaries[3] + 1) == boundaries[4]

    uvloop.run(run())


def test_inside_an_event_of_several_appends(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_store(tmp_path, 1) as (_, peer):
            await peer.create(S)
            await peer.setup(S)
            await peer.append([b"before"], 1)
            made = await peer.ask(wire.CreateTransientSegment(2, WRITER, S, ""))
            large = frame_events([random.Random(2).randbytes(30_000)])
            other = bytes(15) + b"\1"
            await peer.setup(made.segment, other)
            for number, at in enumerate(range(0, len(large), 8_000)):
                part = large[at : at + 8_000]
                reply = await peer.ask(wire.ConditionalBlockEnd(other, number, at, part, 3))
                assert isinstance(reply, wire.DataAppended)
            await peer.ask(wire.MergeSegments(4, S, made.segment, ""))
            await peer.append([b"after"], 2)
            end = 14 + len(large)
            for target in (1, 13, 14):
                assert await locate(peer, target) == 14
            for target in (15, 8_014, 8_015, 20_000, end):
                assert await locate(peer, target) == end
            assert await locate(peer, end + 1) == end + 13

    uvloop.run(run())


def test_bytes_that_are_no_events_have_the_end_of_their_append(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_store(tmp_path, 1) as (_, peer):
            await peer.create(S)
            await peer.setup(S)
            for number in range(3):
                await peer.ask(wire.ConditionalBlockEnd(WRITER, number, 20 * number, b"\xff" * 20, 3))
            assert [await locate(peer, target) for target in (1, 20, 21, 59)] == [20, 20, 40, 60]

    uvloop.run(run())


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.data())
def test_the_walk_reads_blocks_of_any_size(sizes: list[int], data: st.DataObject) -> None:
    payloads = [bytes([1 + n % 250]) * size for n, size in enumerate(sizes)]
    stored = frame_events(payloads)
    boundaries = [0]
    for payload in payloads:
        boundaries.append(boundaries[-1] + 8 + len(payload))
    target = data.draw(st.integers(0, len(stored) - 1))
    edges = sorted({0, len(stored), *data.draw(st.lists(st.sampled_from(boundaries), max_size=3))})
    most = data.draw(st.integers(1, 30))

    async def read(offset: int, length: int) -> bytes:
        return stored[offset : offset + min(length, most)]

    assert asyncio.run(boundary_from(target, edges, read)) == boundaries[bisect_left(boundaries, target)]
