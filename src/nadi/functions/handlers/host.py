"""The handler's own process: `python -m nadi.functions.handlers.host FD`, started by `process`.

It reads calls from a socket and answers each with an outcome. In memory that it shares with the parent it notes which
event it is at, and since when, so that the parent knows which one it hung at, or died of. It leads a process group, for
what the handler starts to end with it, and it ends with its parent: a thread waits for the socket's end. Standard
output and error are the parent's.
"""

from __future__ import annotations

import asyncio
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
from contextlib import suppress

import msgspec

from nadi.functions.handlers.calling import Calls, failure_of
from nadi.functions.handlers.event import Context, Event
from nadi.functions.handlers.loading import load
from nadi.functions.handlers.outcome import Failure, Outcome
from nadi.limits import MIB

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
