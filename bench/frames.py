"""Frames found by their time: as the player finds events, by the store's time index, and by an index stream.

A camera's frames are written in real time, as events, and as a byte stream with an index stream. Random times are then
looked up with both; a frame contains its time, which shows the error. In addition an index of two hours is searched,
and its records are read.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import nadi
from bench.measure import SCOPE, Figure
from nadi.client import aio
from nadi.web.reading.playing import Playing, first_events

FPS, SECONDS, FRAME_BYTES = 25, 40, 20_000
SEEKS = 200
LONG = 30 * 3600 * 2  # records: two hours of thirty a second
RECORD_SIZE = 80


def frames(folder: Path) -> list[Figure]:
    with nadi.embedded(folder) as server:
        return asyncio.run(_frames(server.controller_uri))


async def _frames(uri: str) -> list[Figure]:
    async with aio.StreamManager(uri) as manager:
        await manager.create_scope(SCOPE)
        for stream in ("events", "film", "index", "long"):
            await manager.create_stream(SCOPE, stream)
        times = await _film(manager)
        rng = random.Random(1)
        wanted = [rng.uniform(times[FPS], times[-FPS]) for _ in range(SEEKS)]
        return [
            *await _by_player(manager, times, wanted),
            *await _by_index(manager, times, wanted),
            *await _long(manager),
        ]


async def _film(manager: aio.StreamManager) -> list[int]:
    """Write frames in real time; return their times in ms."""
    writer = await manager.create_writer(SCOPE, "events")
    film = await manager.create_byte_writer(SCOPE, "film")
    index = await manager.create_index_writer(SCOPE, "index", ["time_ms", "offset"], record_size=RECORD_SIZE)
    times: list[int] = []
    began = time.monotonic()
    for n in range(FPS * SECONDS):
        await asyncio.sleep(max(0.0, began + n / FPS - time.monotonic()))
        times.append(round(time.time() * 1000))
        frame = times[-1].to_bytes(8) + os.urandom(FRAME_BYTES - 8)
        writer.write_event(frame, routing_key="camera")
        await index.append({"time_ms": times[-1], "offset": film.tell()})
        await film.write(frame)
    for one in (writer, film, index):
        await one.close()
    return times


def _found(name: str, took_s: Sequence[float], off_ms: Sequence[float]) -> list[Figure]:
    off_ms = sorted(off_ms)
    return [
        Figure(f"a frame by its time, {name}: p50", statistics.median(took_s) * 1000, "ms"),
        Figure(f"how far off, {name}: p50", statistics.median(off_ms), "ms"),
        Figure(f"how far off, {name}: p99", off_ms[int(len(off_ms) * 0.99)], "ms"),
    ]


def _next(times: list[int], wanted: float) -> int:
    return next(one for one in times if one >= wanted)


async def _by_player(manager: aio.StreamManager, times: list[int], wanted: list[float]) -> list[Figure]:
    cuts = manager.cuts(SCOPE, "events")
    head, tail = await cuts.head(), await cuts.tail()
    took, off = [], []
    for one in wanted:
        began = time.perf_counter()
        found = await first_events(manager, Playing(head, tail, int(one), 1.0, False), 1)
        took.append(time.perf_counter() - began)
        place = found.events[0].offset // (FRAME_BYTES + 8)
        off.append(abs(times[place] - _next(times, one)))
    return _found("by the player", took, off)


async def _by_index(manager: aio.StreamManager, times: list[int], wanted: list[float]) -> list[Figure]:
    reader = await manager.create_index_reader(SCOPE, "index")
    film = await manager.create_byte_reader(SCOPE, "film")
    took, off = [], []
    for one in wanted:
        began = time.perf_counter()
        record = await reader.at(await reader.search("time_ms", int(one) + 1))
        await film.seek(record.value("offset"))
        frame = await film.read(FRAME_BYTES)
        took.append(time.perf_counter() - began)
        off.append(abs(int.from_bytes(frame[:8]) - _next(times, one)))
    return _found("by an index stream", took, off)


async def _long(manager: aio.StreamManager) -> list[Figure]:
    writer = await manager.create_index_writer(SCOPE, "long", ["time_ms", "offset"], record_size=RECORD_SIZE)
    began = time.perf_counter()
    for n in range(LONG):
        await writer.append({"time_ms": n * 33, "offset": n * FRAME_BYTES})
    await writer.close()
    written_s = time.perf_counter() - began
    reader = await manager.create_index_reader(SCOPE, "long")
    took, rng = [], random.Random(2)
    for _ in range(SEEKS):
        n = rng.randrange(LONG)
        began = time.perf_counter()
        place = await reader.search("time_ms", n * 33)
        took.append(time.perf_counter() - began)
        assert place == n * RECORD_SIZE
    began = time.perf_counter()
    count = 0
    async for _ in reader.read():
        count += 1
    read_s = time.perf_counter() - began
    assert count == LONG
    return [
        Figure(f"search among {LONG:,} records: p50", statistics.median(took) * 1000, "ms"),
        Figure("records appended", LONG / written_s, "records/s"),
        Figure("records read", LONG / read_s, "records/s"),
    ]
