"""Large requests and responses are bounded for all connections together."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from nadi.access.budget import Budget
from nadi.client import aio
from nadi.client.serializers.kafka import Record, batch_of
from nadi.kafka.server import DoorOptions, KafkaDoor
from nadi.limits import KIB, MIB
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.raw import Connection, requests

CONSUMERS = 20


async def test_a_large_request_waits_until_most_others_are_released() -> None:
    pool = Budget(256 * MIB).receiving
    accounts = [pool.account() for _ in range(20)]
    admitted = []
    for account in accounts:
        try:
            async with asyncio.timeout(0.01):
                await account.wait_for_capacity(32 * MIB)
        except TimeoutError:
            continue
        account.take(32 * MIB)
        admitted.append(account)
    assert pool.buffered_bytes <= pool.total_bytes
    waiting = asyncio.create_task(accounts[-1].wait_for_capacity(32 * MIB))
    small = pool.account()
    await asyncio.wait_for(small.wait_for_capacity(16 * KIB), 1)
    for account in admitted:
        account.give(32 * MIB)
    await asyncio.wait_for(waiting, 1)


async def test_a_request_over_an_accounts_share_does_not_wait_for_all_others() -> None:
    pool = Budget(256 * MIB).receiving
    other, large = pool.account(), pool.account()
    other.take(1)
    await asyncio.wait_for(large.wait_for_capacity(pool.largest_share_bytes + MIB), 1)


def unread_fetches(address: str) -> list[Connection]:
    """Store 40 MB; return connections that have asked for it, and don't read it."""
    with Connection(address) as connection:
        connection.metadata("large")
        for _ in range(40):
            connection.produce("large", 0, batch_of([Record(0, 1, None, b"x" * 1_000_000)]))
    kinds = requests(1, 11)
    most = {"max_bytes": 1 << 30, "min_bytes": 0, "max_wait": timedelta()}
    part = kinds.FetchPartition(partition=0, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1 << 30)
    topics = (kinds.FetchTopic(topic="large", partitions=(part,)),)
    connections = [Connection(address) for _ in range(CONSUMERS)]
    for connection in connections:
        connection.begin(kinds.FetchRequest(topics=topics, forgotten_topics_data=(), rack_id="", **most))
    return connections


async def test_responses_that_are_not_read_stay_within_the_budget(server: EmbeddedServer) -> None:
    manager = aio.StreamManager(server.controller_uri)
    async with KafkaDoor(manager, DoorOptions(port=0, scope="unread"), budget=Budget(128 * MIB)) as door:
        connections = await asyncio.to_thread(unread_fetches, door.address)
        await asyncio.sleep(2)
        sending = door.budget.sending
        assert 16 * MIB < sending.peak_bytes <= sending.total_bytes + CONSUMERS * MIB  # each may send a whole batch
        for connection in connections:
            connection.socket.close()
    await manager.close()
