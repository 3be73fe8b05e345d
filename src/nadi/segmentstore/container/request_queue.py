"""Queues a container's requests, and the callers that wait for space to add more.

The queue can be frozen: then callers' requests wait, and only the store's own requests, such as those that move bytes
to tier 2, get their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nadi.errors import DamagedStateError, NadiError, UnavailableError
from nadi.limits import FRAME_MAX_BYTES, FRAME_MAX_REQUESTS, QUEUE_MAX_BYTES
from nadi.segmentstore.container.frame import FrameBuilder


class QueuedRequest(Protocol):
    """A request in the queue: `prepare` is called when the frame is built, then `done` or `failed`."""

    @property
    def size_bytes(self) -> int:
        """The approximate memory it takes while it waits."""

    @property
    def count(self) -> int:
        """The number of requests it stands for."""

    def prepare(self, frame: FrameBuilder) -> Any:
        """Check against the state and add to the frame; return the result, or raise a NadiError."""

    def done(self, result: Any) -> None: ...

    def failed(self, error: Exception) -> None: ...


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A queued function; its result or error goes to a future."""

    function: Callable[[FrameBuilder], Any]
    size_bytes: int
    future: asyncio.Future[Any]
    count: int = 1

    def prepare(self, frame: FrameBuilder) -> Any:
        return self.function(frame)

    def done(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def again(error: UnavailableError) -> UnavailableError:
    """Copy an error for another request: one object raised many times accumulates the frames of all raises."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh


Answers = list[tuple[QueuedRequest, Any, Exception | None]]  # each request with its result or error


class RequestQueue:
    """Requests in order of arrival. size_bytes, count: totals; adding is never refused, so senders must respect
    `is_full`.

    >>> queue = RequestQueue()
    >>> len(queue), queue.size_bytes, queue.is_full
    (0, 0, False)
    """

    def __init__(self) -> None:
        self.size_bytes = self.count = 0
        self.is_held = False
        self._requests: deque[QueuedRequest] = deque()
        self._own: deque[QueuedRequest] = deque()  # the store's own, added while the queue is frozen
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """Return the number of requests that may have their turn."""
        return len(self._own) + (0 if self.is_held else len(self._requests))

    @property
    def is_full(self) -> bool:
        return self.size_bytes > QUEUE_MAX_BYTES

    def add(self, request: QueuedRequest, *, own: bool = False) -> None:
        """Add a request. own: it is the store's own, and never frozen."""
        self.size_bytes += request.size_bytes
        self.count += request.count
        (self._own if own and self.is_held else self._requests).append(request)

    def take(self) -> QueuedRequest:
        request = (self._own or self._requests).popleft()
        self.size_bytes -= request.size_bytes
        self.count -= request.count
        return request

    def prepare(self, frame: FrameBuilder, answers: Answers) -> None:
        """Add requests to the frame, in order, up to its limits. Each is in `answers`, with its result or error, even
        if this raises: then an operation may be half applied."""
        requests = 0
        while len(self) and frame.size_bytes < FRAME_MAX_BYTES and requests < FRAME_MAX_REQUESTS:
            request = self.take()
            requests += request.count
            try:
                answers.append((request, request.prepare(frame), None))
            except DamagedStateError:
                answers.append((request, None, None))
                raise
            except NadiError as error:
                # without its traceback, which would keep all appended data alive
                answers.append((request, None, error.with_traceback(None)))
            except Exception:
                answers.append((request, None, None))
                raise
            frame.size_bytes += 64 * request.count

    def take_all(self) -> deque[QueuedRequest]:
        requests, self._own, self._requests = self._own + self._requests, deque(), deque()
        self.size_bytes = self.count = 0
        return requests

    async def wait_for_capacity(self) -> None:
        while self.is_full:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def notify_capacity(self) -> None:
        """Wake the callers that wait for space, if there is some."""
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
