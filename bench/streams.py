"""Very many streams in one server: the cost of creating, listing, restarting and using them.

Streams are created over the controller's gRPC interface by a client in this process, many at a time; each has a `_MARK`
stream too, so N streams are 2 N segments. Before that, some are created one after another, for the latency of a single
call. Then every page of the list is read, the server is killed and restarted, and random streams are written to and
read.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

import nadi
from bench.measure import MEMORY_MB, Figure
from nadi.client.control.controller import ControllerClient
from nadi.client.control.policy import ScalingPolicy, StreamConfiguration
from nadi.standalone import EmbeddedServer
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import METHODS, path

SCOPE = "bench"
SINGLE_CREATES = 500
PARALLEL = 64
PICKED = 200
SETTLE_S = 4.0  # two checkpoints: new streams are written and may leave memory
_CONFIG = StreamConfiguration(ScalingPolicy.fixed(1), None, ())


def many_streams(folder: Path, count: int) -> list[Figure]:
    figures: list[Figure] = []
    with nadi.embedded(folder) as server:
        waits, rate = asyncio.run(create(server.controller_uri, count, PARALLEL))
        figures += [
            Figure("create a stream, one after another, p50", waits[len(waits) // 2] * 1e3, "ms", 20, at_most=True),
            Figure("create a stream, one after another, p99", waits[len(waits) * 99 // 100] * 1e3, "ms"),
            Figure(f"create {count:,} streams, {PARALLEL} at a time", rate, "streams/s"),
            Figure(f"memory at its peak, {count:,} created", _peak_mb(server), "MB", MEMORY_MB, at_most=True),
        ]
        time.sleep(SETTLE_S)
        figures.append(Figure("memory after it", server.memory_bytes() / 1e6, "MB", MEMORY_MB, at_most=True))
        seconds, grown_mb = asyncio.run(listed(server, count))
        figures += [
            Figure(f"list {count:,} streams by pages", seconds, "s"),
            Figure("private memory that listing added", grown_mb, "MB", 20, at_most=True),
        ]
        server.kill()
    began = time.perf_counter()
    with nadi.embedded(folder) as server:
        figures += [
            Figure("restart after kill -9, until it takes clients", time.perf_counter() - began, "s"),
            Figure("memory after the restart", server.memory_bytes() / 1e6, "MB", MEMORY_MB, at_most=True),
        ]
        seconds, grown_mb = asyncio.run(listed(server, count))
        waits = sorted(_use(server.controller_uri, count))
        figures += [
            Figure("private memory that listing added after it", grown_mb, "MB", 20, at_most=True),
            Figure("first event into a stream, written and read, p50", waits[len(waits) // 2] * 1e3, "ms"),
            Figure("memory at its peak after the restart", _peak_mb(server), "MB", MEMORY_MB, at_most=True),
        ]
    return figures


def name_of(number: int) -> str:
    return f"stream-{number:07d}"


def _peak_mb(server: EmbeddedServer) -> float:
    return server.peak_memory_bytes() / 1e6


def _private_bytes(server: EmbeddedServer) -> int:
    """Return the memory without file-backed pages, which the kernel can reclaim."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this kernel doesn't report RssAnon")


async def create(uri: str, count: int, at_once: int) -> tuple[list[float], float]:
    """Return the seconds of each single create, sorted, and the streams per second of concurrent ones."""
    controller = ControllerClient(uri.removeprefix("tcp://"))
    try:
        await controller.create_scope(SCOPE)
        waits = []
        singles = min(SINGLE_CREATES, count)
        for number in range(singles):
            began = time.perf_counter()
            await controller.create_stream(SCOPE, name_of(number), _CONFIG)
            waits.append(time.perf_counter() - began)
        numbers = iter(range(singles, count))
        began = time.perf_counter()
        await asyncio.gather(*(_create_each(controller, numbers) for _ in range(at_once)))
        seconds = time.perf_counter() - began
    finally:
        await controller.close()
    return sorted(waits), (count - singles) / seconds


async def _create_each(controller: ControllerClient, numbers: Iterator[int]) -> None:
    for number in numbers:  # one that is there already was made by a try that got no answer; `listed` counts them all
        await controller.create_stream(SCOPE, name_of(number), _CONFIG)


async def listed(server: EmbeddedServer, count: int) -> tuple[float, float]:
    """Return the seconds for all pages, and the MB by which the server's own memory grew meanwhile."""
    request_kind, reply_kind = METHODS["listStreamsInScope"]
    channel = grpc.aio.insecure_channel(server.controller_uri.removeprefix("tcp://"))
    ask = channel.unary_unary(
        path("listStreamsInScope"),
        request_serializer=request_kind.SerializeToString,
        response_deserializer=reply_kind.FromString,
    )
    before = highest = _private_bytes(server)
    seen, token = 0, ""
    began = time.perf_counter()
    try:
        while True:
            request = pb.StreamsInScopeRequest(
                scope=pb.ScopeInfo(scope=SCOPE), continuationToken=pb.ContinuationToken(token=token)
            )
            reply = await ask(request)
            highest = max(highest, _private_bytes(server))
            if not reply.streams:
                break
            seen += sum(not stream.stream.startswith("_") for stream in reply.streams)
            token = reply.continuationToken.token
    finally:
        await channel.close()
    assert seen == count, f"{seen:,} of {count:,} streams were listed"
    return time.perf_counter() - began, (highest - before) / 1e6


def _use(uri: str, count: int) -> Iterator[float]:
    """Write an event to random streams and read it back; return the seconds of each."""
    chosen = random.Random(1).sample(range(count), min(PICKED, count))
    with nadi.StreamManager(uri) as manager:
        for number in chosen:
            event = b"event of %d" % number
            began = time.perf_counter()
            with manager.create_writer(SCOPE, name_of(number)) as writer:
                writer.write_event(event, "key").result(30)
            tail = manager.stream_info(SCOPE, name_of(number)).tail
            assert [found.data for found in manager.read_events(SCOPE, name_of(number), end=tail)] == [event]
            yield time.perf_counter() - began
