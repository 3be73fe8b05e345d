"""A batch on its way through the handler: when a worker is to stop, it does so after the event in hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from nadi.functions import DeadLetter, Event, Function
from nadi.functions.delivery import Delivery, Stopping
from nadi.functions.handlers.outcome import Failure, Outcome, Output
from nadi.functions.progress import Counters
from nadi.model.event import whole_events
from nadi.model.framing import frame_events

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
