"""Small appends that follow others still under way, where acknowledgements are slow: when, how many, and in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import SimpleNamespace

import pytest

import nadi
from nadi.client.blocking.manager import StreamManager
from nadi.client.writing import segment_output as pace
from nadi.client.writing.blocks import EventBatch
from nadi.client.writing.segment_output import SECOND_APPEND_BYTES, SLOW_S, InFlightWindow
from nadi.model.keyspace import key_position
from tests.support.waiting import until, until_async

from .gate import gated
from .world import world

KEYS = [f"key-{number}" for number in range(20)]


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


def batch(size: int = 100) -> EventBatch:
    made = EventBatch()
    made.add(b"", bytes(size), None)
    return made


def paced(clock: Clock, took_s: float, in_flight: int = 1, *, size: int = 100, outputs: int = 1) -> InFlightWindow:
    """Of an output whose last acknowledgement took so long, with so many appends under way, sent just now."""
    under_way = deque(batch(size) for _ in range(in_flight))
    made, before = InFlightWindow(deque(), under_way, range(outputs)), batch()
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
    clock.now += 0.019
    assert not slow.may_send(batch()), "a quarter of the time that the last one takes hasn't passed"
    clock.now += 0.002
    assert slow.may_send(batch())
    assert not slow.may_send(EventBatch()), "nothing is no append"


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


def test_those_that_wait_already_follow_each_other_at_once(clock: Clock) -> None:
    under_way, waiting = deque([batch(), batch()]), deque([batch()])
    made = InFlightWindow(waiting, under_way, range(1))
    assert made.may_send(EventBatch())
    under_way += [batch() for _ in range(30)]
    assert not made.may_send(EventBatch()), "so many are under way"
    under_way.clear()
    under_way += [batch(SECOND_APPEND_BYTES // 2)] * 2
    assert not made.may_send(EventBatch()), "so much is"
    waiting[0] = batch(SECOND_APPEND_BYTES)
    under_way.pop()
    assert made.may_send(EventBatch()), "there is a second in any case"


async def test_one_that_took_very_long_holds_nothing_back_once_others_do_not(clock: Clock) -> None:
    """As after an outage: it was sent before, and is acknowledged after it."""
    slow, sent = paced(clock, 600.0), asyncio.Event()
    slow.next_notice(EventBatch(), sent.set)
    before = batch()
    slow.sent(before)
    clock.now += 2 * SLOW_S
    slow.acknowledged(before, clock.now)
    slow.sent(batch())
    slow.next_notice(batch(), sent.set)
    async with asyncio.timeout(60):
        await sent.wait()


async def test_what_sealed_segments_leave_goes_to_their_successor_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was two at a time, each pair after an acknowledgement: seconds, where those are slow."""
    monkeypatch.setattr(pace, "SLOW_S", 0.0)
    async with world(segments=2) as here:
        writer = await here.manager.create_writer("sc", "st")
        keys, events = [next(key for key in KEYS if (key_position(key) < 0.5) == low) for low in (True, False)], []
        for key in keys:
            await writer.write_event(key.encode(), key)
            events.append(key.encode())
        here.store.silent = True
        outputs = writer._sender.outputs.values()
        for number in range(4):
            for key in keys:
                writer.write_event(b"%d" % number, key)
                events.append(b"%d" % number)
            await until_async(lambda: all(len(output.in_flight) > number for output in outputs))  # noqa: B023
        here.store.silent, here.store.hold = False, True
        here.controller.rescale("sc", "st", list(here.controller.streams["sc", "st"].epochs[-1]), [(0.0, 1.0)])
        here.store.drop_all()
        await until_async(lambda: sorted(here.all_stored()) == sorted(events))
        here.store.hold = False
        here.store.drop_all()
        await writer.close(60)
        assert sorted(here.all_stored()) == sorted(events)


def test_events_reach_a_slow_store_without_waiting_for_those_before(
    uri: str, server: nadi.standalone.EmbeddedServer, manager: StreamManager
) -> None:
    """And are in it once, in order, where its answers are lost with the connection while several are under way."""
    manager.create_stream("sc", "slow", 1)
    with gated(uri, server.store_address) as (client, gate), client.create_writer("sc", "slow") as writer:
        gate.changed = lambda data: [time.sleep(3 * SLOW_S) or data]  # type: ignore[func-returns-value]
        writer.write_event(b"first").result(60)
        for round_ in range(3):
            gate.answers.clear()
            for number in range(4):
                before = tail(manager)
                writer.write_event(b"%d %d" % (round_, number))
                until(lambda: tail(manager) > before)  # noqa: B023
            gate.cut() if round_ == 1 else gate.answers.set()
            writer.flush(60)
    end = manager.stream_info("sc", "slow").tail
    events = [event for events in manager.read_batches("sc", "slow", end=end) for event in events]
    assert events == [b"first", *(b"%d %d" % (round_, number) for round_ in range(3) for number in range(4))]


def tail(manager: StreamManager) -> int:
    return sum(manager.stream_info("sc", "slow").tail.positions.values())
