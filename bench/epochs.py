"""A stream that was scaled very often: the cost of its past, before and after it is truncated.

Random neighbours are split and merged, over the controller's gRPC interface, one scaling after another; events are
written at both ends. Then the stream is queried and read like a client does, from head to tail.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import nadi
from bench.measure import SCOPE, STREAM, Figure
from nadi.client import aio
from nadi.client.control.controller import ControllerClient
from nadi.client.stream_cuts import cuts
from nadi.errors import TruncatedError
from nadi.model.segments import SegmentRange
from nadi.standalone import EmbeddedServer

LEAST, MOST = 4, 16  # segments
LOOKS = 50
SETTLE_S = 4.0  # two checkpoints: new data is written and may leave memory


def epochs(folder: Path, count: int) -> list[Figure]:
    figures: list[Figure] = []
    with nadi.embedded(folder, rest_port=0) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope(SCOPE)
        manager.create_stream(SCOPE, STREAM, LEAST)
        _write(manager, b"at the head")
        head = manager.stream_info(SCOPE, STREAM).head
        before_mb = _settled_mb(server)
        waits, moments = asyncio.run(_scale(server.controller_uri, count))
        share = max(1, count // 20)
        figures += [
            Figure(f"one scaling, the first of {count:,}, p50", statistics.median(waits[:share]) * 1e3, "ms"),
            Figure(f"one scaling, the last of {count:,}, p50", statistics.median(waits[-share:]) * 1e3, "ms"),
            Figure(f"memory that {count:,} epochs added", _settled_mb(server) - before_mb, "MB"),
        ]
        _write(manager, b"at the tail")
        figures += _use(server, moments, "")
        server.kill()
    with nadi.embedded(folder, rest_port=0) as server, nadi.StreamManager(server.controller_uri) as manager:
        before_mb = _settled_mb(server)
        figures += _first_uses(server, "after a restart")
        figures.append(Figure("memory that reading it after a restart added", _settled_mb(server) - before_mb, "MB"))
        began = time.perf_counter()
        manager.truncate_stream(manager.stream_info(SCOPE, STREAM).tail)
        figures.append(Figure("truncating all of it", time.perf_counter() - began, "s"))
        _write(manager, b"behind the head")
        figures += _use(server, moments, " once it is truncated")
        began = time.perf_counter()
        try:
            list(manager.read_events(SCOPE, STREAM, start=head))
            raise AssertionError("the old head can be read")
        except TruncatedError:
            figures.append(Figure("refusing the old head", (time.perf_counter() - began) * 1e3, "ms"))
        server.kill()
    with nadi.embedded(folder, rest_port=0) as server:
        before_mb = _settled_mb(server)
        figures += _first_uses(server, "truncated, after a restart")
        figures.append(Figure("memory that reading it added then", _settled_mb(server) - before_mb, "MB"))
    return figures


def _write(manager: nadi.StreamManager, event: bytes) -> None:
    with manager.create_writer(SCOPE, STREAM) as writer:
        for number in range(LEAST):
            writer.write_event(event, str(number)).result(30)


def _settled_mb(server: EmbeddedServer) -> float:
    time.sleep(SETTLE_S)
    return server.memory_bytes() / 1e6


async def _scale(uri: str, count: int) -> tuple[list[float], list[int]]:
    """Return the seconds of each scaling, and the time, in ms since 1970, after some of them."""
    chance = random.Random(1)
    waits: list[float] = []
    moments: list[int] = []
    controller = ControllerClient(uri.removeprefix("tcp://"))
    try:
        for number in range(count):
            sealed, ranges = _next(chance, await controller.current_segments(SCOPE, STREAM))
            began = time.perf_counter()
            epoch = await controller.scale(SCOPE, STREAM, [piece.segment_id for piece in sealed], ranges)
            while not await controller.scale_is_done(SCOPE, STREAM, epoch):  # noqa: ASYNC110 - it is elsewhere
                await asyncio.sleep(0.001)
            waits.append(time.perf_counter() - began)
            if number % max(1, count // LOOKS) == 0:
                moments.append(time.time_ns() // 1_000_000)
    finally:
        await controller.close()
    return waits, moments


def _next(
    chance: random.Random, segments: Sequence[SegmentRange]
) -> tuple[Sequence[SegmentRange], list[tuple[float, float]]]:
    """Return a segment to split in two, or two neighbours to merge."""
    widest = max(segments, key=lambda piece: piece.high - piece.low)
    chosen = widest if len(segments) == LEAST else chance.choice(segments)
    low, high = chosen.low, chosen.high
    if len(segments) == LEAST or (len(segments) < MOST and high - low > 1e-6 and chance.random() < 0.5):
        return [chosen], [(low, (low + high) / 2), ((low + high) / 2, high)]
    at = chance.randrange(len(segments) - 1)
    return segments[at : at + 2], [(segments[at].low, segments[at + 1].high)]


def _first_uses(server: EmbeddedServer, when: str) -> list[Figure]:
    """Measure the waits of the first user."""

    async def look() -> tuple[float, float]:
        controller = ControllerClient(server.controller_uri.removeprefix("tcp://"))
        try:
            await controller.scope_exists(SCOPE)
            began = time.perf_counter()
            await controller.current_segments(SCOPE, STREAM)
            current_s = time.perf_counter() - began
            head = await controller.head(SCOPE, STREAM)
            await controller.successors(SCOPE, STREAM, min(head.positions))
            return current_s, time.perf_counter() - began - current_s
        finally:
            await controller.close()

    current_s, head_s = asyncio.run(look())
    return [
        Figure(f"first getCurrentSegments {when}", current_s * 1e3, "ms"),
        Figure(f"first head and successors {when}", head_s * 1e3, "ms"),
    ]


def _use(server: EmbeddedServer, moments: list[int], when: str) -> list[Figure]:
    with nadi.StreamManager(server.controller_uri) as manager:
        began = time.perf_counter()
        next(iter(manager.read_events(SCOPE, STREAM)))
        first_s = time.perf_counter() - began
        tail = manager.stream_info(SCOPE, STREAM).tail
        began = time.perf_counter()
        seen = sum(1 for _ in manager.read_events(SCOPE, STREAM, end=tail))
        read_s = time.perf_counter() - began
        group_s = _read_with_group(manager, seen)
    figures = [
        Figure(f"first event from the head{when}", first_s * 1e3, "ms"),
        Figure(f"reading from head to tail{when}", read_s, "s"),
        Figure(f"the same by a reader group{when}", group_s, "s"),
    ]
    figures += asyncio.run(_ask(server.controller_uri, moments, when))
    address = f"{server.rest_uri}/v1/scopes/{SCOPE}/streams/{STREAM}/scaling-events?from=0&to={(1 << 63) - 1}"
    began = time.perf_counter()
    with urllib.request.urlopen(address) as reply:
        reply.read()
    figures.append(Figure(f"listing all scaling events{when}", time.perf_counter() - began, "s"))
    return figures


def _read_with_group(manager: nadi.StreamManager, events: int) -> float:
    groups, name = manager.reader_group_manager(SCOPE), f"group-{time.time_ns()}"
    groups.create_reader_group(name, [STREAM])
    with groups.get_reader_group(name).create_reader("reader") as reader:
        began = time.perf_counter()
        while events:
            if reader.read_next_event(timeout=600.0) is not None:
                events -= 1
        return time.perf_counter() - began


async def _ask(uri: str, moments: list[int], when: str) -> list[Figure]:
    figures: list[Figure] = []

    async def note(name: str, asks: Sequence[Callable[[], Awaitable[object]]]) -> None:
        waits = []
        for ask in asks:
            began = time.perf_counter()
            await ask()
            waits.append(time.perf_counter() - began)
        if len(waits) == 1:
            figures.append(Figure(name + when, waits[0], "s"))
        else:
            figures.append(Figure(f"{name}{when}, p50", statistics.median(waits) * 1e3, "ms"))

    async with aio.StreamManager(uri) as manager:
        places = manager.cuts(SCOPE, STREAM)
        head, tail = await places.head(), await places.tail()
        controller = ControllerClient(uri.removeprefix("tcp://"))
        try:
            await note("getCurrentSegments", [lambda: controller.current_segments(SCOPE, STREAM)] * LOOKS)
            await note("the cut of a moment", [partial(controller.cut_at, SCOPE, STREAM, at) for at in moments])
            await note("checking the cut of the tail", [lambda: controller.is_stream_cut_valid(tail)] * LOOKS)
            await note("segments from head to tail", [lambda: controller.segments_between(SCOPE, STREAM, head, tail)])
            await note("planning a batch from head to tail", [lambda: cuts.slices_between(places, head, tail)])

            async def all_successors() -> None:
                for segment in await controller.segments_between(SCOPE, STREAM, head, tail):
                    await controller.successors(SCOPE, STREAM, segment)

            await note("successors of all segments", [all_successors])
        finally:
            await controller.close()
    return figures
