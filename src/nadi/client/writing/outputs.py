"""What a writer does with all its outputs together: sends what they have, and fails what nobody acknowledges.

A writer of many segments has something for many of them at once, mostly one event each. They share what a turn of the
loop costs: one call that wakes it, one look at the lock, and one write to the socket.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from nadi.errors import NadiError, RequestTimeoutError, StorageFullError

if TYPE_CHECKING:
    from nadi.client.writing.segment_output import SegmentOutput

_LOOK_S = 1.0


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


async def fail_overdue(
    outputs: Mapping[int, SegmentOutput],
    lock: threading.Lock,
    ack_timeout_s: float,
    waits_for: Callable[[], NadiError | None],
) -> None:
    """Fail the events of outputs that have made no progress for the acknowledgement timeout; until cancelled."""
    while True:
        await asyncio.sleep(min(_LOOK_S, ack_timeout_s / 4))
        now = time.monotonic()
        for output in list(outputs.values()):
            with lock:
                if not output.has_pending:
                    output.progress_at = now
            if now - output.progress_at > ack_timeout_s:
                what = f"segment {output.segment} acknowledged nothing for {ack_timeout_s} s"
                if isinstance(output.trouble, StorageFullError):
                    output.fail(StorageFullError(f"{what}: {output.trouble}"))
                else:
                    output.fail(too_late(what, output.trouble or waits_for()))


def too_late(what: str, trouble: NadiError | None) -> RequestTimeoutError:
    return RequestTimeoutError(what + (f": {trouble}" if trouble else ""))
