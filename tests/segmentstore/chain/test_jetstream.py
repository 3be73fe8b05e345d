"""Chains on real NATS servers: racing owners, and servers killed under load."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from nadi.errors import ClosedError, FencedError, UnavailableError
from nadi.object_log.engine import LogEngine
from nadi.object_log.jetstream.connection import JetStreamConnection, Problem
from nadi.object_log.jetstream.location import where
from nadi.object_log.opening import open_log
from nadi.runtime import REAL
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from tests.support.nats import NatsServer, nats_servers, url_of

OWNERS, FRAMES = 4, 40


class Record:
    """The container's owner."""

    def __init__(self) -> None:
        self.epoch = 0

    def opened(self, engine: LogEngine, container: int) -> ChainLog:
        self.epoch += 1
        epoch = self.epoch

        async def still_claimed() -> None:
            if epoch != self.epoch:
                raise FencedError(container, self.epoch)

        return ChainLog(engine, container, epoch, ChainStart(), still_claimed)


async def chain_of(log: ChainLog) -> list[bytes]:
    return [frame.payload async for frame in log.replay(0)]


async def raced(engines: Sequence[LogEngine], container: int, chance: random.Random) -> int:
    """Claim in turns with owners that don't stop when overtaken; return the number of acknowledged frames."""
    record, acknowledged = Record(), list[bytes]()

    async def owner(number: int) -> None:
        await asyncio.sleep(chance.random() * 0.3)
        log = record.opened(engines[number % len(engines)], container)
        try:
            await chain_of(log)
            for frame in range(FRAMES):
                payload = b"%d-%d" % (number, frame)
                await log.append([payload])
                acknowledged.append(payload)
        except (FencedError, ClosedError):
            pass
        finally:
            await log.close()

    await asyncio.gather(*map(owner, range(OWNERS)))
    last = record.opened(engines[0], container)
    chain = await chain_of(last)
    await last.close()
    assert len(set(chain)) == len(chain)
    assert set(acknowledged) <= set(chain)
    for number in range(OWNERS):
        frames = [int(payload.split(b"-")[1]) for payload in chain if payload.startswith(b"%d-" % number)]
        assert frames == list(range(len(frames)))
    return len(acknowledged)


@pytest.mark.parametrize(
    ("servers", "rounds"),
    [(1, 5), pytest.param(1, 60, marks=pytest.mark.slow), pytest.param(3, 60, marks=pytest.mark.slow)],
)
async def test_chain_keeps_acknowledged_frames_in_races(tmp_path: Path, servers: int, rounds: int) -> None:
    with nats_servers(tmp_path, servers) as running:
        engines = [await open_log(url_of(running), REAL, make=True) for _ in range(OWNERS)]
        acknowledged = [await raced(engines, number, random.Random(number)) for number in range(rounds)]
        for engine in engines:
            await engine.close()
    assert sum(acknowledged) > rounds


async def leader_of(servers: list[NatsServer]) -> NatsServer:
    """Return the stream's leader, once it has one."""
    connection = JetStreamConnection(where(url_of(servers), {}), 0)
    try:
        while True:
            with contextlib.suppress(UnavailableError):
                info = await connection.call("test", "STREAM.INFO.LOG", {}, dict)
                leader = None if isinstance(info, Problem) else info["cluster"].get("leader")
                for server in servers:
                    if server.name == leader:
                        return server
            await REAL.sleep(0.1)
    finally:
        await connection.close()


@pytest.mark.slow
async def test_killed_leader_loses_no_acknowledged_frames(tmp_path: Path) -> None:
    with nats_servers(tmp_path, 3) as servers:
        engine = await open_log(url_of(servers), REAL, make=True)
        record, acknowledged, longest_s, stop = Record(), list[bytes](), 0.0, False
        log = record.opened(engine, 0)
        await chain_of(log)

        async def write() -> None:
            nonlocal longest_s
            while not stop:
                payload = b"%d" % len(acknowledged) * 500
                began = REAL.monotonic()
                await log.append([payload])
                longest_s = max(longest_s, REAL.monotonic() - began)
                acknowledged.append(payload)

        writer = asyncio.create_task(write())
        for _ in range(3):
            await REAL.sleep(2)
            leader = await leader_of(servers)
            leader.kill()
            before = len(acknowledged)
            while len(acknowledged) < before + 50:
                assert not writer.done(), writer.result()
                await REAL.sleep(0.05)
            leader.start()
        stop = True
        await writer
        await log.close()
        reader = record.opened(engine, 0)
        assert await chain_of(reader) == acknowledged
        await reader.close()
        await engine.close()
        print(msgspec.json.encode({"acknowledged": len(acknowledged), "longest_s": round(longest_s, 1)}).decode())
