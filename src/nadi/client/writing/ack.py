"""Acknowledgement shared by the events of a batch, or by several batches of one call.

Each batch has one. A batch on a quiet segment is a single event, so an Ack is a few fields; a waiter creates its own
future or lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable

from nadi.client.control.arguments import check_timeout
from nadi.errors import AccessDeniedError, NadiError, RequestTimeoutError

log = logging.getLogger("nadi.client")
_SETTLING = threading.Lock()  # one lock for all Acks: held only for a few instructions


class Ack:
    """The outcome of a write: await it, or call `result` in a thread without an event loop.

    A batch divided among its segment's successors, or a call that spans several batches, has an Ack of several
    parts: it is done when all parts are, and fails if any part fails.
    """

    __slots__ = ("_callbacks", "_error", "_parts")

    def __init__(self, parts: int = 1) -> None:
        self._callbacks: list[Callable[[Ack], object]] | None = []  # None once it is done
        self._parts = parts
        self._error: NadiError | None = None

    @classmethod
    def of_all(cls, acks: Iterable[Ack]) -> Ack:
        """Combine several Acks into one, which is done at once if `acks` is empty."""
        distinct = list(dict.fromkeys(acks))
        if len(distinct) == 1:
            return distinct[0]
        combined = cls(len(distinct) or 1)
        if not distinct:
            combined.settle(None)
        for ack in distinct:
            ack.add_done_callback(lambda part: combined.settle(part._error))
        return combined

    def done(self) -> bool:
        """Return True once the events are stored or have failed."""
        return self._callbacks is None

    def result(self, timeout: float | None = None) -> None:
        """Return once the events are stored, or raise the error that prevented it.

        Raise RequestTimeoutError after `timeout` seconds; the events may still be stored later.
        """
        check_timeout(timeout)
        if self._callbacks is not None and not self._wait(timeout):
            raise RequestTimeoutError(f"the write was not acknowledged within {timeout} s")
        if self._error is not None:
            raise self._error

    def add_done_callback(self, function: Callable[[Ack], object]) -> None:
        """Call `function` with this Ack once it is done, in the thread that settles it."""
        with _SETTLING:
            if self._callbacks is not None:
                self._callbacks.append(function)
                return
        self._call(function)

    def __await__(self) -> Generator[object, None, None]:
        if self._callbacks is not None:
            loop, waiting_thread = asyncio.get_running_loop(), threading.get_ident()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def settled(_: Ack) -> None:
                if threading.get_ident() == waiting_thread:
                    wake()
                else:
                    loop.call_soon_threadsafe(wake)

            self.add_done_callback(settled)
            yield from waiter
        if self._error is not None:
            raise self._error

    # --- for the writer ---------------------------------------------------------------------

    def split(self, parts: int) -> None:
        """Divide one part into `parts` parts."""
        self._parts += parts - 1

    def settle(self, error: NadiError | None) -> None:
        """Record that one part is stored (`error` is None) or has failed."""
        with _SETTLING:  # two threads may settle parts of the same call
            self._parts -= 1
            self._error = self._error or error
            if self._parts > 0:
                return
            callbacks, self._callbacks = self._callbacks, None
        for function in callbacks or ():
            self._call(function)

    # --- inside -----------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> bool:
        waiting = threading.Lock()
        waiting.acquire()

        def settled(_: Ack) -> None:
            waiting.release()

        self.add_done_callback(settled)
        if waiting.acquire(timeout=-1 if timeout is None else timeout):
            return True
        with _SETTLING:
            if self._callbacks is None:
                return True
            self._callbacks.remove(settled)  # else repeated waits would accumulate callbacks
            return False

    def _call(self, function: Callable[[Ack], object]) -> None:
        try:
            function(self)
        except Exception:
            log.exception("an acknowledgement callback failed")


def was_refused(ack: Ack) -> bool:
    """Return whether the events were refused for lack of permission, so that none of them was stored."""
    return isinstance(ack._error, AccessDeniedError)


def is_stored(ack: Ack) -> bool:
    """Return True if the events are known to be stored."""
    return ack._callbacks is None and ack._error is None
