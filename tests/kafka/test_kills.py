"""A server and two doors are killed at random: producers, a group and transactions lose and double nothing."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.kafka.chaos import Chaos
from tests.kafka.copier import ABORTED

pytestmark = pytest.mark.crash


def by_key(messages: list[Message]) -> dict[bytes, list[bytes]]:
    values: dict[bytes, list[bytes]] = defaultdict(list)
    for message in messages:
        values[message.key()].append(message.value())
    return values


def kills(folder: Path, count: int, least_s: float, most_s: float) -> None:
    """Kill processes at random, and check all that was written and read."""
    chance = random.Random(count)
    chaos = Chaos(folder, chance)
    victims: Counter[str] = Counter()
    try:
        chaos.start()
        while victims.total() < count and not chaos.failed:
            time.sleep(chance.uniform(least_s, most_s))
            victims.update(chaos.kill())
        chaos.finish()
        assert not chaos.failed
        written, copied = chaos.stored("in"), chaos.stored("out")
    finally:
        chaos.close()
    ends = Counter(chaos.copier_log.read_text().splitlines())
    print(f"{dict(victims)} killed: {len(written):,} records, {chaos.repeats} with an unknown offset; {dict(ends)}")
    assert by_key(written) == chaos.sent
    assert not [message for message in copied if message.value() == ABORTED]
    assert by_key(copied) == chaos.sent
    offsets = {(message.partition(), message.offset()): message.value() for message in written}
    assert chaos.seen == offsets
    assert chaos.reported.items() <= offsets.items()


def test_some_kills_of_doors_and_the_server_lose_and_double_nothing(tmp_path: Path) -> None:
    kills(tmp_path / "data", 4, 0.2, 1.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_kills_of_doors_and_the_server_lose_and_double_nothing(tmp_path: Path) -> None:
    kills(tmp_path / "data", 100, 0.2, 3.0)
