"""Which outputs of a writer have something to send, and the one turn of the loop in which all of them send it.

A writer of many segments has something for many of them at once, mostly one event each. They share what a turn costs:
one call that wakes the loop, one look at the lock, and one write to the socket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nadi.client.writing.segment_output import SegmentOutput


class Pump:
    """lock: the writer's, held when something is added. schedule: has a function called on the loop's thread, soon."""

    def __init__(self, lock: threading.Lock, schedule: Callable[[Callable[[], None]], None]) -> None:
        self._lock, self._schedule = lock, schedule
        self._due: list[SegmentOutput] = []

    def add(self, output: SegmentOutput) -> None:
        """It has more to send; call with the lock held, from any thread. Raises what `schedule` does."""
        is_first = not self._due
        self._due += (output,)  # calls nothing: Ctrl-C can't come between this and the `try`
        if is_first:
            try:
                self._schedule(self.run)
            except BaseException:
                self._due.clear()  # nobody comes for them: the next one is told again
                raise

    def add_unsent(self, outputs: Iterable[SegmentOutput]) -> None:
        """Add those whose events wait: Ctrl-C may have come before the thread that wrote them could do so."""
        with self._lock:
            for output in outputs:
                if output.current.entries:
                    self.add(output)

    def run(self) -> None:
        """Have all that is due sent; on the loop's thread."""
        with self._lock:
            due, self._due = self._due, []
            for output in due:
                output.prepare()
        for output in due:
            output.send_prepared()
