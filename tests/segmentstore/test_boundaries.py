"""LocateOffset returns the next event boundary, wherever the bytes are stored."""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

import nadi
from nadi.limits import MIB
from nadi.model.framing import frame_events
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.boundaries import Walks
from nadi.wire import commands as wire
from tests.segmentstore.harness import WRITER, Peer, connect, open_segment

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"


async def locate(peer: Peer, target: int) -> int:
    reply = await peer.ask(wire.LocateOffset(1, S, target, ""))
    assert isinstance(reply, wire.OffsetLocated), reply
    return reply.offset


async def test_every_offset_has_the_boundary_after_it(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with open_segment(tmp_path, S) as (store, peer):
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


async def test_inside_an_event_of_several_appends(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (_, peer):
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


async def test_non_event_bytes_end_at_their_append(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (_, peer):
        for number in range(3):
            await peer.ask(wire.ConditionalBlockEnd(WRITER, number, 20 * number, b"\xff" * 20, 3))
        assert [await locate(peer, target) for target in (1, 20, 21, 59)] == [20, 20, 40, 60]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 80)), min_size=1, max_size=6), st.data())
def test_the_walk_reads_blocks_of_any_size(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes = [size for size, count in rows for _ in range(count)]
    payloads = [bytes([1 + n % 250]) * size for n, size in enumerate(sizes)]
    stored = frame_events(payloads)
    boundaries = [0]
    for payload in payloads:
        boundaries.append(boundaries[-1] + 8 + len(payload))
    target = data.draw(st.integers(0, len(stored) - 1))
    edges = {0, len(stored), *data.draw(st.lists(st.sampled_from(boundaries), max_size=3))}
    begin, end = max(edge for edge in edges if edge <= target), min(edge for edge in edges if edge >= target)
    most = data.draw(st.sampled_from([1, 2, 7, 30, 300, 5_000]))

    async def read(offset: int, length: int) -> bytes:
        return stored[offset : offset + min(length, most)]

    found = asyncio.run(Walks(FairScheduler()).boundary_from(target, begin, end, read))
    assert found == boundaries[bisect_left(boundaries, target)]


def test_boundary_search_in_non_event_bytes_stops_early() -> None:
    """Zeros look like the smallest events, but don't end at the extent's end."""
    size, reads = 1 << 14, 0

    async def read(offset: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        return bytes(min(length, size))

    async def run() -> int:
        return await Walks(FairScheduler()).boundary_from(100, 0, size + 4, read)

    assert uvloop.run(run()) == size + 4
    assert reads < 5


def test_a_walk_over_a_segment_that_is_shorter_by_now_ends() -> None:
    """The segment was deleted and recreated meanwhile."""
    whole = frame_events([b"one", b"two"])

    async def read(offset: int, length: int) -> bytes:
        return whole[:15][offset : offset + length]

    async def run() -> int:
        async with asyncio.timeout(60):
            return await Walks(FairScheduler()).boundary_from(12, 0, 22, read)

    assert asyncio.run(run()) == 22


async def test_walks_yield_the_loop_and_end_with_their_connection(tmp_path: Path) -> None:
    """Regression: one walk blocked the loop for 200,000 events, and a hundred ran at once."""

    async with open_segment(tmp_path, S) as (store, peer):
        events = [bytes(4 + n % 2) for n in range(80_000)]
        await peer.append(events, len(events))
        target = len(frame_events(events)) - 50
        end = await locate(peer, target)
        others = [await connect(store.address) for _ in range(14)]
        turns: list[float] = []
        asked = [asyncio.create_task(locate(other, target)) for other in others[:10]]
        for other in others[10:]:
            other.send(*(wire.LocateOffset(n, S, target, "") for n in range(200)))
        while not all(task.done() for task in asked):
            turns.append(await _cpu_of_a_turn())
        assert {task.result() for task in asked} == {end}
        for other in others:
            other.close()
        left = 0
        while left < 50:  # almost idle turns
            turns.append(await _cpu_of_a_turn())
            left = left + 1 if turns[-1] < 0.000_05 else 0
            assert len(turns) < 100_000, "the walk continues without a caller"
        longest = sorted(turns)[-3:]  # a garbage collection may affect one or two
        assert longest[0] < 0.01, f"turns took {[round(turn * 1e3) for turn in longest]} ms of processor time"


async def _cpu_of_a_turn() -> float:
    before = time.thread_time()
    await asyncio.sleep(0)
    return time.thread_time() - before


# --- damage in an event too large for one append: reads resume after the entire event ------------------


MARK = b"a mark that stands nowhere else"


@pytest.mark.parametrize(
    ("at", "is_noise", "stop"),
    [
        pytest.param(0.01, True, True, marks=pytest.mark.slow),
        (0.5, True, True),
        pytest.param(0.95, True, True, marks=pytest.mark.slow),
        pytest.param(0.01, False, True, marks=pytest.mark.slow),
        (0.01, False, False),
    ],
)
def test_read_resumes_after_a_damaged_large_event(tmp_path: Path, at: float, *, is_noise: bool, stop: bool) -> None:
    """The server knows where appends begin, but a large event has several: reads resume after all of them, even if the
    following bytes look like headers of empty events."""
    large = bytearray(random.Random(1).randbytes(20 * MIB) if is_noise else 20 * MIB)
    place = int(at * len(large))
    large[place : place + len(MARK)] = MARK
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        with manager.create_writer("s", "t") as writer:
            for event in (b"before", bytes(large), b"after", b"later"):
                writer.write_event(event, "key").result(60)
        if not stop:
            server.kill()
    spoil(tmp_path, MARK)
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info("s", "t").tail
        read = [event.data for event in manager.read_events("s", "t", end=end, on_damage="skip")]
    assert read[-2:] == [b"after", b"later"]
    # damage at its start may share a checksum block with the bytes before it
    assert read[:-2] in ([b"before"], [] if place < MIB else [b"before"])


def spoil(folder: Path, what: bytes) -> None:
    """Flip a bit of the bytes wherever they are stored."""
    found = 0
    for path in folder.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(what)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([what[0] ^ 1]))
            found += 1
    assert found
