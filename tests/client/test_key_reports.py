"""Reports of routing keys: representative samples from all kinds of writers, sent to servers that accept them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from nadi.client.segments import key_reports
from nadi.client.segments.key_reports import KeySampler
from nadi.client.writing.blocks import Blocks, EventBatch, Routes
from nadi.errors import ProtocolError
from nadi.model.keyspace import key_position
from nadi.model.load import SegmentLoad
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.load_reports import positions_of

from . import fake_server
from .fake_server import FakeConnection
from .world import World, world

S = segment_name("sc", "st", 0)
WRITER = bytes(16)


class Sampled:
    """A sampler, its clock, and what it reported."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sampler = KeySampler(lambda: self.now, random.Random(7).random)
        self.reports: list[wire.ReportKeys] = []

    def append(self, keys: Sequence[str | None], after_s: float = 0.0) -> None:
        self.now += after_s
        report = self.sampler.passed(WRITER, len(keys), lambda indexes: [keys[index] for index in indexes])
        if report is not None:
            self.reports.append(report)

    @property
    def events(self) -> int:
        return sum(report.events for report in self.reports)

    @property
    def positions(self) -> list[float]:
        return [position for report in self.reports for position in positions_of(report)]


@pytest.mark.parametrize(("batch", "per_s"), [(1, 2_000), (7, 5_000), (1_000, 100_000), (20_000, 200_000)])
def test_reports_represent_all_events(batch: int, per_s: int) -> None:
    sampled, keys = Sampled(), [f"key-{number}" for number in range(64)]  # a cycle as long as one or two strides
    seconds = 8
    for first in range(0, seconds * per_s, batch):
        sampled.append([keys[number % 64] for number in range(first, first + batch)], batch / per_s)
    assert seconds - 2 <= len(sampled.reports) <= seconds
    assert sampled.events == pytest.approx(len(sampled.reports) * per_s, rel=0.25)
    assert all(16 <= len(positions_of(report)) <= 64 for report in sampled.reports)
    picked = Counter(sampled.positions)
    assert set(picked) <= {key_position(key) for key in keys}
    assert len(picked) >= 48, "the picks are not synchronous with the cycle of keys"


def test_hot_key_is_reported_in_proportion_to_its_events() -> None:
    sampled, chance = Sampled(), random.Random(3)
    for _ in range(1_000):
        sampled.append(["hot" if chance.random() < 0.9 else f"key-{chance.random()}" for _ in range(50)], 0.01)
    assert Counter(sampled.positions)[key_position("hot")] / len(sampled.positions) == pytest.approx(0.9, abs=0.04)


def test_events_without_a_key_are_not_reported() -> None:
    sampled = Sampled()
    for _ in range(1_000):
        sampled.append(["a", None, None, None], 0.01)
    assert set(sampled.positions) == {key_position("a")}
    assert sampled.events == pytest.approx(1_000, rel=0.3)
    silent = Sampled()
    for _ in range(1_000):
        silent.append([None], 0.01)
    assert silent.reports == []


def test_few_events_are_reported_less_often() -> None:
    sampled = Sampled()
    for _ in range(40):
        sampled.append(["a"], 0.5)
    assert 3 <= len(sampled.reports) <= 4
    assert sampled.events == 10 * len(sampled.reports)


def test_falling_load_is_still_reported() -> None:
    sampled = Sampled()
    for _ in range(300):
        sampled.append(["a"] * 1000, 0.01)
    before = len(sampled.reports)
    for _ in range(20):
        sampled.append(["b"], 0.5)
    assert len(sampled.reports) > before
    assert key_position("b") in positions_of(sampled.reports[-1])


def test_old_events_are_not_reported() -> None:
    sampled = Sampled()
    sampled.append(["a"] * 100)
    sampled.append(["b"], 60.0)
    assert sampled.reports == []
    sampled.append(["c"] * 100, 1.0)
    assert set(sampled.positions) == {key_position("c")}


def test_keys_of_a_batch() -> None:
    """Single events, blocks with a key per event, blocks with one key, and mixtures."""
    routes = Routes([(0.0, 1.0, "only")])
    batch = EventBatch()
    keys: list[str | None] = []
    for part in range(4):
        batch.add(b"", b"x", f"single-{part}")
        keys.append(f"single-{part}")
        mixed = [f"{part}-{number}" if number % 3 else None for number in range(40)]
        for routing_keys in (mixed, "same", None):
            (block,) = Blocks([b"x"] * 40, routing_keys, routes)
            ((_, piece),) = block.pieces(routes, 0)
            batch.add_piece(piece)
            keys.extend(routing_keys if isinstance(routing_keys, list) else [routing_keys] * 40)
    assert len(batch) == len(keys)
    chance = random.Random(5)
    for count in (1, 5, 100, len(keys)):
        indexes = sorted(chance.sample(range(len(keys)), count))
        assert batch.keys_of(indexes) == [keys[index] for index in indexes]


# --- through a server -------------------------------------------------------------------------------


async def reported(w: World, write: Callable[[int], Awaitable[object]]) -> SegmentLoad:
    """Call `write` with ascending numbers until the server knows keys; return the load."""
    async with asyncio.timeout(60):
        for number in range(100_000):
            await write(number)
            loads = [load for load in w.store.container.load.loads() if load.keys is not None]
            if loads:
                return loads[0]
            await asyncio.sleep(0.01)
    raise AssertionError("unreachable")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_reports, "REPORT_S", 0.1)
    monkeypatch.setattr("nadi.segmentstore.counters._LEAST_S", 0.05)


KEYS = [f"key-{number}" for number in range(100)]
POSITIONS = {key_position(key) for key in KEYS}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", ["write_event", "write_batch", "write_many"])
async def test_writer_reports_its_keys(kind: str) -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")

        async def write(_: int) -> None:
            if kind == "write_event":
                for key in KEYS:
                    writer.write_event(b"x", key)
            elif kind == "write_batch":
                writer.write_batch([b"x"] * 100, KEYS)
            else:
                await writer.write_many([b"x"] * 100, KEYS)
            await writer.flush()

        load = await reported(w, write)
        assert load.segment == S
        assert load.keys is not None
        assert set(load.keys.positions) <= POSITIONS
        assert len(set(load.keys.positions)) > 8
        assert 100 <= sum(load.keys.weights) <= len(w.all_stored()) + 0.001


@pytest.mark.usefixtures("soon")
async def test_short_transactions_report_their_keys() -> None:
    async with world() as w:
        writer = await w.manager.create_transaction_writer("sc", "st")

        async def write(_: int) -> None:
            async with await writer.begin_txn() as transaction:
                transaction.write_batch([b"x"] * 100, KEYS)

        load = await reported(w, write)
        assert load.segment == S
        assert load.keys is not None
        assert set(load.keys.positions) <= POSITIONS


@pytest.mark.usefixtures("soon")
async def test_byte_stream_has_a_load_without_keys() -> None:
    async with world() as w, await w.manager.create_byte_writer("sc", "st") as stream:
        for _ in range(20):
            await stream.write(b"x" * 1000)
            await stream.flush()
            await asyncio.sleep(0.01)
        (load,) = w.store.container.load.loads()
        assert load.segment == S
        assert load.keys is None
        assert load.bytes_per_s[-1] > 1000


class OlderConnection(FakeConnection):
    """The connection of a server that doesn't support reports, such as Pravega's."""

    def _dispatch(self, command: wire.Command) -> None:
        if isinstance(command, wire.ReportKeys):
            raise ProtocolError(f"there is no command of type {command.code}")
        super()._dispatch(command)

    def _hello(self, command: wire.Hello) -> None:
        self.send(wire.HELLO)


@pytest.mark.usefixtures("soon")
async def test_server_without_support_gets_no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_server, "FakeConnection", OlderConnection)
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        for _ in range(30):
            writer.write_batch([b"x"] * 100, KEYS)
            await writer.flush()
            await asyncio.sleep(0.01)
        assert len(w.all_stored()) == 3000
        assert not w.store.refused
        (load,) = w.store.container.load.loads()
        assert load.keys is None


@pytest.mark.usefixtures("soon")
async def test_reports_of_a_segment_contain_only_its_keys() -> None:
    async with world(segments=4) as w:
        writer = await w.manager.create_writer("sc", "st")
        async with asyncio.timeout(60):
            while True:
                writer.write_batch([b"x"] * 100, KEYS)
                await writer.flush()
                loads = w.store.container.load.loads()
                if len(loads) == 4 and all(load.keys is not None for load in loads):
                    break
                await asyncio.sleep(0.01)
        for number, load in enumerate(loads):
            assert load.keys is not None
            assert {int(4 * position) for position in load.keys.positions} == {number}
        assert np.mean([load.age_s for load in loads]) > 0
