"""A stream that nadi's retention or nadi's clients truncate: offsets go on, and never stand for two records."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from confluent_kafka import TopicPartition

import nadi
from nadi.client import aio
from nadi.client.serializers.kafka import Record, batch_of, records_of
from nadi.errors import AlreadyExistsError
from nadi.kafka import segment_log
from nadi.kafka.batches import check_batches
from nadi.kafka.producing import Producing
from nadi.kafka.segment_log import ChunkCache
from nadi.kafka.topics import Topic, Topics
from nadi.limits import KAFKA_HEAD_CACHED_S, KAFKA_ROW_S
from nadi.standalone.embedded import EmbeddedServer
from tests.kafka.support import SCOPE, Door, consumed, running_door, written

PARTITIONS = 3
SEEDS = range(4)
OPERATIONS = 60
Found = dict[tuple[int, int], bytes]


class _Doors:
    """Doors in this process, of one topic. given: the record of each offset that any of them has ever given."""

    def __init__(self, manager: aio.StreamManager, topic: str) -> None:
        self.manager, self.topic = manager, topic
        self.doors: list[Topics] = []
        self.given: Found = {}
        self._written = 0

    def start(self) -> int:
        self.doors.append(Topics(self.manager, SCOPE, PARTITIONS, ChunkCache(1000), lambda _: None))
        return len(self.doors) - 1

    def kill(self, door: int = 0) -> None:
        self.doors.pop(door).close()

    async def get(self, door: int = 0) -> Topic:
        return await self.doors[door].get(self.topic)

    async def write(self, partition: int, count: int = 1, door: int = 0) -> None:
        producing = Producing()
        for _ in range(count):
            values = [b"%d" % (self._written + each) for each in range(random.randint(1, 3))]
            self._written += len(values)
            batches = check_batches(batch_of([Record(i, 1, None, value) for i, value in enumerate(values)]), partition)
            offset = await (await producing.put(await self.get(door), partition, batches))
            for each, value in enumerate(values):
                self._give(partition, offset + each, value)
        producing.close()

    def _give(self, partition: int, offset: int, value: bytes) -> None:
        if offset >= 0:
            assert self.given.setdefault((partition, offset), value) == value, f"offset {offset} is given twice"

    async def read(self, door: int = 0) -> Found:
        """Return all records that a door gives from the beginnings, in order."""
        topic, found = await self.get(door), {}
        topic.log.forget_head()
        for partition in range(PARTITIONS):
            offset, end = await topic.log.start_offset(partition), await topic.log.end_offset(partition)
            assert await topic.log.start_offset(partition) == offset
            while offset < end:
                for placed in await topic.log.batches_from(partition, offset):
                    assert placed.offset == offset
                    for record in records_of(placed.batch.data):
                        found[partition, placed.offset + record.delta] = bytes(record.value or b"")
                    offset = placed.end
        for (partition, offset), value in found.items():
            self._give(partition, offset, value)
        return found

    async def stored(self) -> list[bytes]:
        """Return the values that are stored, sorted."""
        cuts = self.manager.cuts(SCOPE, self.topic)
        events = self.manager.read_events(SCOPE, self.topic, start=await cuts.head(), end=await cuts.tail())
        return sorted([bytes(record.value or b"") async for event in events for record in records_of(event.data)])

    async def check(self) -> Found:
        """Check that all doors give what is stored, with the same offsets."""
        found = await self.read()
        assert sorted(found.values()) == await self.stored()
        for door in range(1, len(self.doors)):
            assert await self.read(door) == found
        return found

    async def cut(self) -> nadi.StreamCut:
        cut: nadi.StreamCut = await self.manager.cuts(SCOPE, self.topic).tail()
        return cut

    async def scale(self, count: int) -> None:
        segments = await self.manager.current_segments(SCOPE, self.topic)
        new = [(each / count, (each + 1) / count) for each in range(count)]
        await self.manager.scale_stream(SCOPE, self.topic, [each.segment_id for each in segments], new)


@asynccontextmanager
async def doors_of(server: EmbeddedServer, topic: str) -> AsyncIterator[_Doors]:
    manager = aio.StreamManager(server.controller_uri)
    doors = _Doors(manager, topic)
    doors.start()
    await doors.doors[0].prepare()
    with suppress(AlreadyExistsError):
        await doors.doors[0].create(topic, PARTITIONS, {})
    try:
        yield doors
    finally:
        while doors.doors:
            doors.kill()
        await manager.close()


@pytest.fixture
def stores_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let doors be killed before they store rows of what they have counted."""
    monkeypatch.setattr(segment_log, "KAFKA_ROW_S", 1000.0)


@pytest.fixture
def stores_rows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_log, "KAFKA_ROW_S", 0.05)


@pytest.mark.usefixtures("stores_rows_soon")
@pytest.mark.parametrize("segments", [1, 2, 4])
async def test_a_later_door_counts_back_from_a_row_behind_the_head(server: EmbeddedServer, segments: int) -> None:
    async with doors_of(server, f"back.{segments}") as doors:
        await doors.scale(segments)
        for partition in (0, 1, 2, 1):
            await doors.write(partition, 5)
        cut = await doors.cut()
        for partition in (2, 0, 1, 0):
            await doors.write(partition, 5)
        before = await doors.read()
        await asyncio.sleep(0.3)
        doors.kill()
        await doors.manager.truncate_stream(cut)
        doors.start()
        found = await doors.check()
        assert found.items() < before.items(), "the same offsets"


@pytest.mark.usefixtures("stores_no_rows")
@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_later_door_skips_offsets_if_all_rows_are_before_the_head(
    server: EmbeddedServer, is_empty: bool
) -> None:
    async with doors_of(server, f"skips.{is_empty}") as doors:
        for partition in range(PARTITIONS):
            await doors.write(partition, 30)
        cut = await doors.cut()
        for partition in () if is_empty else range(PARTITIONS):
            await doors.write(partition, 30)
        doors.kill()
        await doors.manager.truncate_stream(cut)
        doors.start()
        before = len(doors.given)
        found = await doors.check()
        assert len(doors.given) == before + len(found), "all offsets are new"
        await doors.write(1, 5)
        doors.kill()
        doors.start()
        assert (await doors.check()).items() >= found.items()


@pytest.mark.usefixtures("stores_no_rows")
async def test_a_door_that_counted_further_adopts_the_offsets_of_a_later_one(server: EmbeddedServer) -> None:
    async with doors_of(server, "adopts") as doors:
        await doors.write(0, 20)
        cut = await doors.cut()
        await doors.write(0, 20)
        await doors.write(1, 20)
        await doors.manager.truncate_stream(cut)
        later = doors.start()  # the first one hasn't noticed the truncation yet
        skipped = await doors.read(later)
        log = await (await doors.get()).log.waiting_log(0)
        await log._record_for_now()  # the first one's row is behind the later one's, with lower offsets
        last = doors.start()
        assert await doors.read(last) == skipped
        await doors.write(0, 20)
        assert await doors.check() == await doors.read(later)
        assert (await doors.check()).items() >= skipped.items()


@pytest.mark.usefixtures("stores_no_rows")
async def test_a_running_door_goes_on_with_its_offsets(server: EmbeddedServer) -> None:
    async with doors_of(server, "runs") as doors:
        before: Found = {}
        for _ in range(5):
            await doors.write(0, 10)
            cut = await doors.cut()
            await doors.write(1, 1)
            await doors.write(2, 10)
            before |= await doors.read()
            await doors.manager.truncate_stream(cut)
            assert (await doors.check()).items() <= before.items()
            doors.start()
            assert (await doors.check()).items() <= before.items()
            doors.kill(1)


@pytest.mark.usefixtures("stores_no_rows")
async def test_a_door_begins_where_earlier_epochs_are_forgotten(server: EmbeddedServer) -> None:
    async with doors_of(server, "epochs") as doors:
        await doors.write(0, 20)
        await doors.write(1, 20)
        doors.kill()
        for count in (2, 1, 3):
            await doors.scale(count)
        await doors.manager.truncate_stream(await doors.cut())
        doors.start()
        await doors.write(0, 20)
        await doors.write(1, 20)
        await doors.check()


def test_a_stream_is_truncated_before_the_first_door(manager: nadi.StreamManager, door: Door) -> None:
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, "unseen", segments=2)
    for kind in (b"old", b"new"):
        manager.truncate_stream(manager.cuts(SCOPE, "unseen").tail())
        with manager.create_writer(SCOPE, "unseen") as writer:
            for number in range(100):
                writer.write_event(kind + b" %d" % number, str(number))
    consumer = door.consumer("unseen")
    consumer.subscribe(["unseen"])
    assert sorted(message.value() for message in consumed(consumer, 100)) == sorted(b"new %d" % n for n in range(100))
    consumer.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_offsets_never_repeat_whatever_is_truncated(
    server: EmbeddedServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    async with doors_of(server, f"random.{seed}") as doors:
        cuts = [await doors.cut()]
        for _ in range(OPERATIONS):
            monkeypatch.setattr(segment_log, "KAFKA_ROW_S", chance.choice([0.01, 1000.0]))
            door = chance.randrange(len(doors.doors))
            match chance.choice("wwwwwtsskrrc"):
                case "w":
                    await doors.write(chance.randrange(PARTITIONS), chance.randint(1, 10), door)
                    cuts.append(await doors.cut())
                case "t":
                    cuts = cuts[chance.randrange(len(cuts)) :]
                    await doors.manager.truncate_stream(cuts[0])
                case "s" if len(doors.doors) < 3:
                    doors.start()
                case "k" if len(doors.doors) > 1:
                    doors.kill(door)
                case "k":
                    doors.kill()
                    doors.start()
                case "r":
                    await doors.check()
                case "c":
                    await doors.scale(chance.randint(1, 4))
        await doors.check()


def test_a_group_goes_on_behind_what_retention_deleted(
    manager: nadi.StreamManager, server: EmbeddedServer, door: Door
) -> None:
    door.create("retained", 2, retention_bytes="20000")
    producer = door.producer(batch_num_messages=1)
    written(producer, "retained", [b"." * 1000 for _ in range(50)], lambda index: str(index))
    consumer = door.consumer("retained")
    consumer.subscribe(["retained"])
    first = consumed(consumer, 10)
    consumer.commit(message=first[-1], asynchronous=False)
    consumer.close()
    deadline = time.monotonic() + 60
    while manager.retained(SCOPE, "retained").size_bytes > 25_000:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(KAFKA_HEAD_CACHED_S + KAFKA_ROW_S)
    with running_door(server.controller_uri) as later:
        found = []
        for each in (door, later):
            consumer = each.consumer("retained")  # its offset is before the beginning
            consumer.subscribe(["retained"])
            messages = consumed(consumer, 15)
            found.append({(message.partition(), message.offset()) for message in messages})
            consumer.close()
            consumer = each.consumer("ends")
            for partition in range(2):
                low, high = consumer.get_watermark_offsets(TopicPartition("retained", partition), 10)
                assert 0 < low < high <= 110, "counted without a gap"
            consumer.close()
        assert found[0] == found[1]
