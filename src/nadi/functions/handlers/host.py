"""The handler's own process: `python -m nadi.functions.handlers.host FD`, started by `process`.

It reads calls from a socket and answers each with an outcome. In memory that it shares with the parent it notes which
event it is at, and since when, so that the parent knows which one it hung at, or died of. It leads a process group, for
what the handler starts to end with it, and it ends with its parent: a thread waits for the socket's end. Standard
output and error are the parent's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import mmap
import os
import queue
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.functions.handlers.event import Context, Event, Reject
from nadi.functions.handlers.loading import HandlerFunction, load, takes_context, takes_list
from nadi.functions.handlers.outcome import Failure, Outcome, Output
from nadi.limits import (
    FUNCTION_ERROR_CHARS,
    FUNCTION_REPLY_BYTES,
    FUNCTION_SLICE_BYTES,
    FUNCTION_SLICE_S,
    MAX_EVENT_BYTES,
    MIB,
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


NOTE = struct.Struct("<qd")  # the index of the event being handled, and since when on the monotonic clock
LENGTH = struct.Struct("<I")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Start(msgspec.Struct, frozen=True):
    """The parent's first message. notes: a descriptor of the memory shared; memory_mib: 0 is unlimited; path: where
    modules are looked for."""

    handler: str
    function: str
    worker: str
    by_list: bool | None
    memory_mib: int
    notes: int
    log_level: int
    path: list[str]


class Started(msgspec.Struct, frozen=True):
    """The answer. failure: why there is no handler."""

    failure: Failure | None = None


class Call(msgspec.Struct, frozen=True):
    events: list[Event]
    attempt: int


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes | None:
    """The next message; None at the end."""
    head = _exactly(connection, LENGTH.size)
    return None if head is None else _exactly(connection, LENGTH.unpack(head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray(size)
    view = memoryview(parts)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(parts)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # sent to all processes of a service: the parent lets this one finish
        signal.signal(number, lambda *_: None)  # to ignore them would also make programs started here ignore them
    first = receive(connection)
    if first is None:
        return
    start = msgspec.msgpack.decode(first, type=Start)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, this process goes first, not the one that knows what was handled
    if start.memory_mib:
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory_mib * MIB, start.memory_mib * MIB))
    logging.basicConfig(stream=sys.stderr, level=start.log_level, format=FORMAT)
    sys.path[:] = start.path
    try:
        handler = load(start.handler)
        calls = Calls(getattr(handler, "handler", handler), by_list=start.by_list)
    except Exception as error:
        send(connection, Started(failure_of(error)))
        return
    send(connection, Started())
    _serve(connection, start, calls)


def _serve(connection: socket.socket, start: Start, calls: Calls) -> None:
    notes = mmap.mmap(start.notes, NOTE.size)
    logger = logging.getLogger(f"{start.function}.{start.worker}")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        while (data := receive(connection)) is not None:
            waiting.put(data)
        os.killpg(os.getpid(), signal.SIGKILL)

    def begin(index: int) -> None:
        NOTE.pack_into(notes, 0, index, time.monotonic())

    threading.Thread(target=read, daemon=True).start()
    decoder = msgspec.msgpack.Decoder(Call)
    while True:
        call = decoder.decode(waiting.get())
        context = Context(start.function, start.worker, call.attempt, logger)
        try:
            outcome = calls.run(call.events, context, loop, begin)
        except MemoryError as error:  # while calling, not in the handler
            outcome = Outcome(done=0, failure=failure_of(error), together=len(call.events))
        with suppress(Exception):  # closed, or on a full disk: that is no failure of the events
            sys.stdout.flush()
        send(connection, outcome)


if __name__ == "__main__":
    main()
