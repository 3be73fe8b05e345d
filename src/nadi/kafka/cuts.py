"""Stream cuts from topics' offsets, and back, and the lag of consumer groups, without a door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.defaults import DEFAULT_KAFKA_PARTITIONS
from nadi.errors import InvalidStreamCutError
from nadi.kafka.group_records import GroupRecords
from nadi.kafka.segment_log import ChunkCache
from nadi.kafka.topics import Topics, stream_of
from nadi.limits import KAFKA_CHUNK_BYTES
from nadi.model.reports import GroupLagReport
from nadi.model.streamcut import StreamCut


@asynccontextmanager
async def _opened(manager: StreamManager, scope: str) -> AsyncIterator[Topics]:
    topics = Topics(manager, scope, DEFAULT_KAFKA_PARTITIONS, ChunkCache(4 * KAFKA_CHUNK_BYTES), lambda _: None)
    try:
        yield topics
    finally:
        topics.close()


async def cut_of(manager: StreamManager, scope: str, name: str, offsets: Mapping[int, int]) -> StreamCut:
    async with _opened(manager, scope) as topics:
        topic = await topics.get(name)
        for partition in offsets:
            topic.check_partition(partition)
        return StreamCut(scope, stream_of(name), await topic.log.cut_at(offsets))


async def offsets_of(manager: StreamManager, name: str, cut: StreamCut) -> dict[int, int]:
    if cut.stream != stream_of(name):
        raise InvalidStreamCutError(f"the cut is one of stream {cut.stream}, not of topic {name}'s")
    async with _opened(manager, cut.scope) as topics:
        topic = await topics.get(name)
        return await topic.log.offsets_at(cut.positions)


async def group_lags(manager: StreamManager, scope: str) -> list[GroupLagReport]:
    async with _opened(manager, scope) as topics:
        return await GroupRecords(stores_of(manager), scope, topics.table).lags(topics)
