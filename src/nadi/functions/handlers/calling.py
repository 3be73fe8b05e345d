"""Calling a handler with events, one by one or all at once, in the handler's own process: what it returns or raises
becomes an outcome."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.functions.handlers.event import Context, Event, Reject
from nadi.functions.handlers.loading import HandlerFunction, takes_context, takes_list
from nadi.functions.handlers.outcome import Failure, Outcome, Output
from nadi.limits import (
    FUNCTION_ERROR_CHARS,
    FUNCTION_REPLY_BYTES,
    FUNCTION_SLICE_BYTES,
    FUNCTION_SLICE_S,
    MAX_EVENT_BYTES,
)


class Calls:
    """A handler, and how it is called."""

    def __init__(self, handler: HandlerFunction, *, by_list: bool | None = None) -> None:
        """by_list: whether it takes lists of events; None looks at its annotation."""
        self.handler = handler
        self.by_list = takes_list(handler) if by_list is None else by_list
        self._with_context = takes_context(handler)

    def run(
        self,
        events: Sequence[Event],
        context: Context,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[int], None] = lambda index: None,
    ) -> Outcome:
        """Call it with the events in order; begin: called with the index of each event before it is handled."""
        if self.by_list:
            begin(0)
            try:
                return Outcome(done=len(events), outputs=self._call(list(events), context, loop))
            except BaseException as error:  # also one that would end a program: nobody outside asks for that so
                return Outcome(done=0, failure=failure_of(error), together=len(events))
        outputs: list[Output] = []
        size_bytes = 0
        ends_at = time.monotonic() + FUNCTION_SLICE_S
        for index, event in enumerate(events):
            begin(index)
            try:
                given = self._call(event, context, loop)
            except BaseException as error:
                return Outcome(done=index, outputs=outputs, failure=failure_of(error))
            outputs += [(event.routing_key if key is None else key, data) for key, data in given]
            size_bytes += _size_bytes(given)
            # what is done is recorded, however slow a handler is, or however much it makes
            if time.monotonic() >= ends_at or size_bytes >= FUNCTION_SLICE_BYTES:
                return Outcome(done=index + 1, outputs=outputs)
        return Outcome(done=len(events), outputs=outputs)

    def _call(self, given: object, context: Context, loop: asyncio.AbstractEventLoop) -> list[Output]:
        returned = self.handler(given, context) if self._with_context else self.handler(given)
        if inspect.isawaitable(returned):
            returned = loop.run_until_complete(_awaited(returned))
        outputs = outputs_of(returned)
        if (size_bytes := _size_bytes(outputs)) > FUNCTION_REPLY_BYTES:
            raise OutputTooLargeError(f"{size_bytes:,} bytes of one call, over {FUNCTION_REPLY_BYTES:,}: return less")
        return outputs


class OutputTooLargeError(Exception):
    """What one call returned is more than can be taken."""


async def _awaited(returned: Any) -> object:
    return await returned


def outputs_of(returned: object) -> list[Output]:
    """What a handler returned, as events for the output stream: bytes, a text, a pair of a routing key and one of
    these, or several of them; None is nothing.

    >>> outputs_of([b"a", ("key", "b")])
    [(None, b'a'), ('key', b'b')]
    >>> outputs_of(None)
    []
    """
    if returned is None:
        return []
    if (one := _output(returned)) is not None:
        return [one]
    if isinstance(returned, Iterable) and not isinstance(returned, dict):
        found = [(item, _output(item)) for item in returned if item is not None]
        strange = [item for item, output in found if output is None]
        if not strange:
            return [output for _, output in found if output is not None]
        returned = strange[0]
    raise InvalidArgumentError(
        f"a handler returns bytes, a text, (routing key, bytes or text), a list of these, or None, not {returned!r:.80}"
    )


def _output(item: object) -> Output | None:
    if isinstance(item, tuple) and len(item) == 2 and (item[0] is None or isinstance(item[0], str)):
        data = _bytes(item[1])
        if data is not None:
            (item[0] or "").encode()  # UnicodeEncodeError for a key that is no text
            return item[0], data
    data = _bytes(item)
    return None if data is None else (None, data)


def _bytes(item: object) -> bytes | None:
    if isinstance(item, str):
        item = item.encode()
    if not isinstance(item, bytes | bytearray | memoryview):
        return None
    if len(item) > MAX_EVENT_BYTES:
        raise EventTooLargeError(len(item), MAX_EVENT_BYTES)
    return bytes(item)


def _size_bytes(outputs: list[Output]) -> int:
    return sum(len(data) for _, data in outputs)


def failure_of(error: BaseException) -> Failure:
    """What an exception says, and where in the handler it was raised."""
    kind = type(error)
    try:
        said = str(error).encode(errors="backslashreplace").decode()
    except Exception as another:
        said = f"without a text ({type(another).__name__})"
    lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename != __file__]
    where = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines and not isinstance(error, Reject) else ""
    return Failure(
        kind="raised",
        error=kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        message=said[:FUNCTION_ERROR_CHARS] + where,
        is_final=isinstance(error, Reject),
    )
