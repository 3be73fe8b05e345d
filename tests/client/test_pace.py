"""The window of appends in flight: how many small appends follow others before slow acknowledgements, and when."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import SimpleNamespace

import pytest

import nadi
from nadi.client.blocking.manager import StreamManager
from nadi.client.writing import segment_output
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
    clock = Clock()
    monkeypatch.setattr(segment_output, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def batch(size: int = 100) -> EventBatch:
    batch = EventBatch()
    batch.add(b"", bytes(size), None)
    return batch


def window(clock: Clock, took_s: float, in_flight: int = 1, *, size: int = 100, outputs: int = 1) -> InFlightWindow:
    """Return a window whose last acknowledgement took `took_s`, with `in_flight` appends sent just now."""
    appends = deque(batch(size) for _ in range(in_flight))
    window, before = InFlightWindow(deque(), appends, range(outputs)), batch()
    window.sent(before)
    clock.now += took_s
    window.acknowledged(before, clock.now)
    for append in appends:
        window.sent(append)
    return window


def test_quick_acknowledgements_allow_one_append_or_two_large_ones(clock: Clock) -> None:
    quick = SLOW_S / 2
    assert window(clock, quick, 0).may_send(batch())
    with_one, with_two = window(clock, quick, 1), window(clock, quick, 2)
    clock.now += 1.0
    assert not with_one.may_send(batch())
    assert with_one.may_send(batch(SECOND_APPEND_BYTES))
    assert not with_two.may_send(batch(SECOND_APPEND_BYTES))


def test_slow_acknowledgements_allow_a_small_append_after_a_pause(clock: Clock) -> None:
    slow = window(clock, 0.080)
    assert not slow.may_send(batch()), "an append was just sent"
    clock.now += 0.019
    assert not slow.may_send(batch()), "less than a quarter of the last acknowledgement's time has passed"
    clock.now += 0.002
    assert slow.may_send(batch())
    assert not slow.may_send(EventBatch()), "the batch is empty"


@pytest.mark.parametrize(
    ("in_flight", "size", "outputs", "may"),
    [
        (7, 100, 1, True),
        (8, 100, 1, False),  # the limit of a segment
        (2, 100, 10, True),
        (3, 100, 10, False),  # the limit of a writer, 32, divided by ten segments
        (1, 100, 33, False),  # many segments have enough appends in flight
        (2, SECOND_APPEND_BYTES // 3, 1, True),
        (3, SECOND_APPEND_BYTES // 3, 1, False),  # not small in total
    ],
)
def test_small_appends_in_flight_are_limited(clock: Clock, in_flight: int, size: int, outputs: int, may: bool) -> None:
    slow = window(clock, 0.080, in_flight, size=size, outputs=outputs)
    clock.now += 1.0
    assert slow.may_send(batch()) is may


def test_waiting_batches_are_sent_without_a_pause(clock: Clock) -> None:
    in_flight, waiting = deque([batch(), batch()]), deque([batch()])
    window = InFlightWindow(waiting, in_flight, range(1))
    assert window.may_send(EventBatch())
    in_flight += [batch() for _ in range(30)]
    assert not window.may_send(EventBatch()), "too many appends are in flight"
    in_flight.clear()
    in_flight += [batch(SECOND_APPEND_BYTES // 2)] * 2
    assert not window.may_send(EventBatch()), "too many bytes are in flight"
    waiting[0] = batch(SECOND_APPEND_BYTES)
    in_flight.pop()
    assert window.may_send(EventBatch()), "a second append is always allowed"


async def test_one_very_slow_acknowledgement_does_not_delay_later_appends(clock: Clock) -> None:
    """Such as of an append sent before an outage and acknowledged after it."""
    slow, sent = window(clock, 600.0), asyncio.Event()
    slow.next_notice(EventBatch(), sent.set)
    before = batch()
    slow.sent(before)
    clock.now += 2 * SLOW_S
    slow.acknowledged(before, clock.now)
    slow.sent(batch())
    slow.next_notice(batch(), sent.set)
    async with asyncio.timeout(60):
        await sent.wait()


async def test_batches_of_sealed_segments_are_sent_to_their_successor_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending two at a time, each pair after an acknowledgement, would take seconds where those are slow."""
    monkeypatch.setattr(segment_output, "SLOW_S", 0.0)
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


def test_events_reach_a_slow_store_before_earlier_ones_are_acknowledged(
    uri: str, server: nadi.standalone.EmbeddedServer, manager: StreamManager
) -> None:
    """And are stored once, in order, even if several replies are lost with the connection."""
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
