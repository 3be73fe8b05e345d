"""A batch on its way through the handler: when a worker is to stop, it does so after the event in hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from nadi.functions import Event, Function
from nadi.functions.handlers.event import Failure, Outcome, Output
from nadi.functions.progress import Counters
from nadi.functions.worker import Delivery, Stopping
from nadi.model.event import whole_events
from nadi.model.framing import frame_events
from nadi.process import DeadLetter

FAILURE = Failure(kind="raised", error="ValueError", message="no")


class Refusing:
    """A handler that fails at each event, or at all of a batch together."""

    def __init__(self, together: bool) -> None:
        self.together, self.calls = together, 0

    async def start(self) -> None: ...

    async def call(self, events: Sequence[Event], attempt: int) -> Outcome:
        self.calls += 1
        return Outcome(done=0, failure=FAILURE, together=len(events) if self.together else 1)

    async def close(self) -> None: ...


class Written:
    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def begin(self, end: int) -> None: ...

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        self.letters += [DeadLetter.decode(data) for _, data in letters]

    async def close(self) -> None: ...


@pytest.mark.parametrize(("together", "calls", "letters"), [(False, 3, 3), (True, 3, 1)])
async def test_it_stops_between_events_that_are_given_up(together: bool, calls: int, letters: int) -> None:
    function = Function(scope="s", stream="in", handler="m:f", retries=0, dead_letters="dead")
    handler, written = Refusing(together), Written()

    async def pause(seconds: float) -> None:
        if handler.calls == 3:
            raise Stopping

    block, _ = whole_events(memoryview(frame_events([b"%d" % i for i in range(4)])))
    delivery = Delivery(function, handler, Counters(), logging.getLogger("test"), pause)
    with pytest.raises(Stopping):
        await delivery.deliver("s/in/0.#epoch.0", block, written)
    assert handler.calls == calls
    assert [letter.data for letter in written.letters] == [b"%d" % i for i in range(letters)]


class Taking:
    """A handler that takes nothing for an event, and a store that takes a second for whatever it gets."""

    def __init__(self) -> None:
        self.now = 0.0

    async def start(self) -> None: ...

    async def call(self, events: Sequence[Event], attempt: int) -> Outcome:
        return Outcome(done=len(events))

    def begin(self, end: int) -> None: ...

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        self.now += 1.0

    async def close(self) -> None: ...


@pytest.mark.parametrize("events", [1, 20, 100])
async def test_workers_busy_with_small_batches_are_known_to_handle_full_ones(events: int) -> None:
    function, both = Function(scope="s", stream="in", handler="m:f", batch_events=100), Taking()
    counters = Counters(lambda: both.now)

    async def pause(seconds: float) -> None: ...

    block, _ = whole_events(memoryview(frame_events([b"%03d" % i for i in range(events)])))
    delivery = Delivery(function, both, counters, logging.getLogger("test"), pause)
    for _ in range(10):
        with counters.busy():
            await delivery.deliver("s/in/0.#epoch.0", block, both)
    work = counters.work()
    full_per_s = 100 * block.size_bytes / events
    assert work.size_bytes / work.busy_s == pytest.approx(full_per_s, rel=0.1)
