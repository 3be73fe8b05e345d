"""Many concurrent workflows over a store that keeps dying: transactions stay all or nothing, exactly once, and groups,
tables and tags are intact."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from nadi.controller.controller import Controller
from nadi.controller.state.records import GroupRetention, StreamConfigRecord, TableConfig
from nadi.errors import NadiError
from nadi.model.keyspace import equal_ranges
from nadi.model.load import ScaleType
from nadi.naming import transaction_segment_name

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, settle
from .test_crashes import GROUP, ID, OTHER, TABLE, check, group_config

TAGS: list[tuple[str, ...]] = [(), ("a",), ("a", "b"), ("b", "c")]


class Storm:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.actions = [self.transact, self.transact, self.scale, self.update, self.other, self.group, self.table]
        self.store = FakeStore()
        self.clock = FakeClock()
        self.written: dict[bytes, int] = {}  # tag of a transaction -> number of segments
        self.acknowledged: set[bytes] = set()
        self.aborted: set[bytes] = set()

    async def transact(self, controller: Controller) -> None:
        transaction = await controller.transactions.create(STREAM, 600_000)
        tag = b"<%d>" % transaction.txn_id
        for segment in transaction.ranges:
            self.store.append(transaction_segment_name(STREAM.segment(segment.id), transaction.txn_id), tag)
        self.written[tag] = len(transaction.ranges)
        await settle(self.random.randrange(60))
        if self.random.random() < 0.25:
            await controller.transactions.abort(STREAM, transaction.txn_id)
            self.aborted.add(tag)
        else:
            await controller.transactions.commit(STREAM, transaction.txn_id)
            self.acknowledged.add(tag)

    async def scale(self, controller: Controller) -> None:
        segments = await controller.current_segments(STREAM)
        start = self.random.randrange(len(segments))
        sealed = segments[start : start + self.random.randint(1, 2)]
        count = self.random.randint(1, 2) if len(segments) < 5 else 1
        ranges = equal_ranges(count, sealed[0].low, sealed[-1].high)
        await controller.scale(STREAM, [s.id for s in sealed], ranges)

    async def update(self, controller: Controller) -> None:
        await controller.update_stream(
            STREAM, StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, 5, 2, 1, tags=self.random.choice(TAGS))
        )

    async def other(self, controller: Controller) -> None:
        if await controller.stream_exists(OTHER):
            await controller.seal_stream(OTHER)
            await controller.delete_stream(OTHER)
        else:
            await controller.create_stream(OTHER, StreamConfigRecord(min_segments=2))

    async def group(self, controller: Controller) -> None:
        """Create, change or delete a reader group of one or both streams."""
        config = group_config(*self.random.choice([(STREAM,), (OTHER,), (STREAM, OTHER)]))
        if self.random.random() < 0.3:
            config = replace(config, retention_type=GroupRetention.NONE)
        stored = await controller.create_reader_group(GROUP, config, ID)
        await settle(self.random.randrange(20))
        if self.random.random() < 0.5:
            await controller.update_reader_group(GROUP, config, ID, stored.generation)
        elif self.random.random() < 0.5:
            await controller.delete_reader_group(GROUP, ID)

    async def table(self, controller: Controller) -> None:
        if (await controller.list_tables(TABLE.scope, ""))[0]:
            await controller.delete_table(TABLE)
        else:
            await controller.create_table(TABLE, TableConfig(3, 8, 4))

    async def attempt(self, controller: Controller) -> None:
        action = self.random.choice(self.actions)
        try:
            await action(controller)
        except NadiError:
            pass

    async def run(self) -> None:
        controller = new_controller(self.store, self.clock)
        await controller.start()
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, 5, 2, 1))
        for _ in range(6):
            self.store.die_at(self.random.randrange(5, 80), lose_reply=self.random.random() < 0.5)
            tasks = [asyncio.ensure_future(self.attempt(controller)) for _ in range(6)]
            await settle(400)
            await controller.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.store.revive()
            if self.random.random() < 0.5:  # the next one dies while resuming the work
                self.store.die_at(self.random.randrange(4, 30), lose_reply=self.random.random() < 0.5)
                controller = new_controller(self.store, self.clock)
                try:
                    starting = asyncio.ensure_future(controller.start())
                    await settle(200)
                finally:
                    starting.cancel()
                    await asyncio.gather(starting, return_exceptions=True)
                    await controller.stop()
                    self.store.revive()
            controller = new_controller(self.store, self.clock)
            await controller.start()
            await settle(1_200)
            await check(controller, self.store, recreated=True)
        await controller.seal_stream(STREAM)
        await settle()
        await check(controller, self.store, recreated=True)
        await controller.stop()
        data = b"".join(bytes(s.data) for s in self.store.segments.values())
        for tag, segments in self.written.items():
            count = data.count(tag)
            assert count in (0, segments), (tag, count, segments)
            if tag in self.acknowledged:
                assert count == segments
            if tag in self.aborted:
                assert count == 0


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 60))])
def test_storm(seed: int) -> None:
    asyncio.run(Storm(seed).run())
