"""Small appends that follow others still under way, where acknowledgements are slow: when, how many, and in order."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace

import pytest

import nadi
from nadi.client.blocking.manager import StreamManager
from nadi.client.writing import pace
from nadi.client.writing.batch import Batch
from nadi.client.writing.pace import SECOND_APPEND_BYTES, SLOW_S, Pace
from tests.support.waiting import until

from .gate import gated


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def batch(size: int = 100) -> Batch:
    made = Batch()
    made.add(b"", bytes(size), None)
    return made


def paced(clock: Clock, took_s: float, in_flight: int = 1, *, size: int = 100, outputs: int = 1) -> Pace:
    """Of an output whose last acknowledgement took so long, with so many appends under way, sent just now."""
    under_way = deque(batch(size) for _ in range(in_flight))
    made, before = Pace(deque(), under_way, range(outputs)), batch()
    made.sent(before)
    clock.now += took_s
    made.acknowledged(before, clock.now)
    for one in under_way:
        made.sent(one)
    return made


def test_one_is_under_way_where_acknowledgements_are_quick(clock: Clock) -> None:
    quick = SLOW_S / 2
    assert paced(clock, quick, 0).may_send(batch())
    one, two = paced(clock, quick, 1), paced(clock, quick, 2)
    clock.now += 1.0
    assert not one.may_send(batch())
    assert one.may_send(batch(SECOND_APPEND_BYTES)), "or two, if there is much"
    assert not two.may_send(batch(SECOND_APPEND_BYTES))


def test_a_few_small_ones_are_where_they_are_slow_each_a_while_after_the_one_before(clock: Clock) -> None:
    slow = paced(clock, 0.080)
    assert not slow.may_send(batch()), "the one before has just been sent"
    clock.now += 0.009
    assert not slow.may_send(batch()), "an eighth of the time that one takes hasn't passed"
    clock.now += 0.002
    assert slow.may_send(batch())
    assert not slow.may_send(Batch()), "nothing is no append"


@pytest.mark.parametrize(
    ("in_flight", "size", "outputs", "may"),
    [
        (7, 100, 1, True),
        (8, 100, 1, False),  # so many of one segment
        (2, 100, 10, True),
        (3, 100, 10, False),  # of ten segments: 32 of all of them
        (1, 100, 33, False),  # of many there are enough anyhow
        (2, SECOND_APPEND_BYTES // 3, 1, True),
        (3, SECOND_APPEND_BYTES // 3, 1, False),  # there is much: it gathers
    ],
)
def test_there_is_a_limit_to_them(clock: Clock, in_flight: int, size: int, outputs: int, may: bool) -> None:
    slow = paced(clock, 0.080, in_flight, size=size, outputs=outputs)
    clock.now += 1.0
    assert slow.may_send(batch()) is may


def test_events_reach_a_slow_store_without_waiting_for_those_before(
    uri: str, server: nadi.standalone.EmbeddedServer, manager: StreamManager
) -> None:
    """And are in it once, in order, where its answers are lost with the connection while several are under way."""
    manager.create_stream("sc", "slow", 1)
    with gated(uri, server.store_address) as (client, gate), client.create_writer("sc", "slow") as writer:
        gate.changed = lambda data: [time.sleep(3 * SLOW_S) or data]  # type: ignore[func-returns-value]
        writer.write_event(b"first").result(30)
        for round_ in range(3):
            gate.answers.clear()
            for number in range(4):
                before = tail(manager)
                writer.write_event(b"%d %d" % (round_, number))
                until(lambda: tail(manager) > before)  # noqa: B023
            gate.cut() if round_ == 1 else gate.answers.set()
            writer.flush(30)
    end = manager.stream_info("sc", "slow").tail
    events = [event for events in manager.read_batches("sc", "slow", end=end) for event in events]
    assert events == [b"first", *(b"%d %d" % (round_, number) for round_ in range(3) for number in range(4))]


def tail(manager: StreamManager) -> int:
    return sum(manager.stream_info("sc", "slow").tail.positions.values())
