"""The handler's process: its worker starts it, calls it, and replaces it when it dies, hangs or runs out of memory. All
of these are outcomes.

The process is `python -m nadi.functions.handlers.process FD`. It reads calls from a socket and answers each with an
outcome. The handler is called with single events, or all at once; its result or exception becomes the outcome. In
memory shared with the parent the process records the current event and its start time, so that the parent knows which
event it hung at or died of. It leads a process group, so that processes started by the handler end with it, and it ends
with its parent: a thread waits for the socket's end. Standard output and error are the parent's.
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
from dataclasses import KW_ONLY, dataclass
from typing import IO, Any

import msgspec

from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.functions.handlers.event import (
    Context,
    Failure,
    FunctionError,
    HandlerEvent,
    HandlerNotStartedError,
    Outcome,
    Output,
    Reject,
)
from nadi.functions.handlers.loading import HandlerFunction, load, takes_context, takes_list
from nadi.limits import (
    FUNCTION_ERROR_CHARS,
    FUNCTION_REPLY_BYTES,
    FUNCTION_SLICE_BYTES,
    FUNCTION_SLICE_S,
    FUNCTION_START_S,
    MAX_EVENT_BYTES,
    MIB,
)


class HandlerCalls:
    def __init__(self, handler: HandlerFunction, *, by_list: bool | None = None) -> None:
        """by_list: whether it takes lists of events; None uses its annotation."""
        self.handler = handler
        self.by_list = takes_list(handler) if by_list is None else by_list
        self._with_context = takes_context(handler)

    def run(
        self,
        events: Sequence[HandlerEvent],
        context: Context,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[int], None] = lambda index: None,
    ) -> Outcome:
        """Call the handler with the events in order; begin: called with the index of each event before it is
        handled."""
        if self.by_list:
            begin(0)
            try:
                return Outcome(done=len(events), outputs=self._call(list(events), context, loop))
            except BaseException as error:  # including SystemExit, which must not end the worker
                return Outcome(done=0, failure=failure_of(error), together=len(events))
        outputs: list[Output] = []
        size_bytes = 0
        ends_at = time.monotonic() + FUNCTION_SLICE_S
        for index, event in enumerate(events):
            begin(index)
            try:
                items = self._call(event, context, loop)
            except BaseException as error:
                return Outcome(done=index, outputs=outputs, failure=failure_of(error))
            outputs += [(event.routing_key if key is None else key, data) for key, data in items]
            size_bytes += _size_bytes(items)
            # return early, so that slow or large results are recorded
            if time.monotonic() >= ends_at or size_bytes >= FUNCTION_SLICE_BYTES:
                return Outcome(done=index + 1, outputs=outputs)
        return Outcome(done=len(events), outputs=outputs)

    def _call(self, items: object, context: Context, loop: asyncio.AbstractEventLoop) -> list[Output]:
        returned = self.handler(items, context) if self._with_context else self.handler(items)
        if inspect.isawaitable(returned):
            returned = loop.run_until_complete(asyncio.wait_for(returned, None))
        outputs = outputs_of(returned)
        if (size_bytes := _size_bytes(outputs)) > FUNCTION_REPLY_BYTES:
            raise OutputTooLargeError(
                f"the result of one call has {size_bytes:,} bytes, over {FUNCTION_REPLY_BYTES:,}: return less"
            )
        return outputs


class OutputTooLargeError(Exception):
    """The result of one call is over the limit."""


def outputs_of(returned: object) -> list[Output]:
    """Convert a handler's result to events for the output stream: bytes, a text, a pair of a routing key and one of
    these, or several of them; None gives no events.

    >>> outputs_of([b"a", ("key", "b")])
    [(None, b'a'), ('key', b'b')]
    >>> outputs_of(None)
    []
    """
    if returned is None:
        return []
    if (output := _output(returned)) is not None:
        return [output]
    if isinstance(returned, Iterable) and not isinstance(returned, dict):
        converted = [(item, _output(item)) for item in returned if item is not None]
        invalid = [item for item, output in converted if output is None]
        if not invalid:
            return [output for _, output in converted if output is not None]
        returned = invalid[0]
    raise InvalidArgumentError(
        "a handler must return bytes, a text, (routing key, bytes or text), a list of these, or None, not "
        f"{returned!r:.80}"
    )


def _output(item: object) -> Output | None:
    if isinstance(item, tuple) and len(item) == 2 and (item[0] is None or isinstance(item[0], str)):
        data = _bytes(item[1])
        if data is not None:
            (item[0] or "").encode()  # UnicodeEncodeError for an invalid key
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
    """Describe an exception, and where in the handler it was raised."""
    kind = type(error)
    try:
        text = str(error).encode(errors="backslashreplace").decode()
    except Exception as another:
        text = f"no message ({type(another).__name__})"
    lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename != __file__]
    location = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines and not isinstance(error, Reject) else ""
    return Failure(
        kind="raised",
        error=kind.__name__ if kind.__module__ in ("builtins", __name__) else f"{kind.__module__}.{kind.__qualname__}",
        message=text[:FUNCTION_ERROR_CHARS] + location,
        is_final=isinstance(error, Reject),
    )


NOTE = struct.Struct("<qd")  # index of the current event and its start on the monotonic clock
LENGTH = struct.Struct("<I")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Start(msgspec.Struct, frozen=True):
    """The parent's first message. notes: descriptor of the shared memory; memory_mib: 0 is unlimited; path: for module
    search."""

    handler: str
    function: str
    worker: str
    by_list: bool | None
    memory_mib: int
    notes: int
    log_level: int
    path: list[str]


class HandlerCall(msgspec.Struct, frozen=True):
    events: list[HandlerEvent]
    attempt: int


def framed(message: msgspec.Struct | None) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def receive(file: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end."""
    head = file.read(LENGTH.size)
    size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    data = file.read(size)
    return data if size and len(data) == size else None


def main() -> None:
    connection: Any = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
    # Signals are sent to all processes of a service: the parent lets this one finish. A handler instead of SIG_IGN,
    # because child processes would inherit SIG_IGN.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    first = receive(connection)
    if first is None:
        return
    start = msgspec.msgpack.decode(first, type=Start)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, kill this process rather than the parent, which knows the progress
    if start.memory_mib:
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory_mib * MIB, start.memory_mib * MIB))
    logging.basicConfig(stream=sys.stderr, level=start.log_level, format=FORMAT)
    sys.path[:] = start.path
    try:
        handler = load(start.handler)
        calls = HandlerCalls(getattr(handler, "handler", handler), by_list=start.by_list)
    except Exception as error:
        _send(connection, failure_of(error))
        return
    _send(connection, None)
    _serve(connection, start, calls)


def _send(file: IO[bytes], message: msgspec.Struct | None) -> None:
    file.write(framed(message))
    file.flush()


def _serve(connection: IO[bytes], start: Start, calls: HandlerCalls) -> None:
    notes = mmap.mmap(start.notes, NOTE.size)
    logger = logging.getLogger(f"{start.function}.{start.worker}")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        try:
            while (data := receive(connection)) is not None:
                waiting.put(data)
        finally:  # the connection is reset, not closed, if the parent died before it read an outcome
            os.killpg(os.getpid(), signal.SIGKILL)

    def begin(index: int) -> None:
        NOTE.pack_into(notes, 0, index, time.monotonic())

    threading.Thread(target=read, daemon=True).start()
    decoder = msgspec.msgpack.Decoder(HandlerCall)
    while True:
        call = decoder.decode(waiting.get())
        context = Context(start.function, start.worker, call.attempt, logger)
        try:
            outcome = calls.run(call.events, context, loop, begin)
        except MemoryError as error:  # outside the handler
            outcome = Outcome(done=0, failure=failure_of(error), together=len(call.events))
        with suppress(Exception):  # closed, or on a full disk: not a failure of the events
            sys.stdout.flush()
        _send(connection, outcome)


_DYING_S = 5.0


@dataclass(eq=False)
class HandlerProcess:
    """A `Handler` in a separate process. logger: named after the worker."""

    handler: str
    _: KW_ONLY
    function: str
    worker: str
    by_list: bool | None
    timeout_s: float
    memory_mib: int | None
    logger: logging.Logger

    def __post_init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._notes: mmap.mmap | None = None
        self._ending: asyncio.Task[None] | None = None
        self._outcomes = msgspec.msgpack.Decoder(Outcome)

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("nadi-function")
        try:
            os.ftruncate(memory, NOTE.size)
            self._notes = mmap.mmap(memory, NOTE.size)
            self._streams = await asyncio.open_unix_connection(sock=ours, limit=MIB)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nadi.functions.handlers.process", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                start_new_session=True,
            )
        except OSError as error:
            await self.close()
            raise HandlerNotStartedError(f"can't start a process for handler {self.handler}: {error}") from error
        finally:
            theirs.close()
            os.close(memory)
        self._ending = asyncio.create_task(_follow_to_its_end(self._process, ours))
        start = Start(
            *(self.handler, self.function, self.worker, self.by_list, self.memory_mib or 0, memory),
            log_level=self.logger.getEffectiveLevel(),
            path=[folder or os.getcwd() for folder in sys.path],
        )
        try:
            async with asyncio.timeout(FUNCTION_START_S):
                answer = await self._ask(start)
        except TimeoutError:
            await self.close()
            raise HandlerNotStartedError(
                f"the process of handler {self.handler} was not ready within {FUNCTION_START_S:g} s: check its module"
            ) from None
        if answer is None:
            how = await self._exit_reason()
            raise HandlerNotStartedError(f"the process of handler {self.handler} {how} while it imported its module")
        failure = msgspec.msgpack.decode(answer, type=Failure | None)
        if failure is not None:
            await self.close()
            raise FunctionError(f"can't load the handler {self.handler}: {failure.error}: {failure.message}")

    async def call(self, events: Sequence[HandlerEvent], attempt: int) -> Outcome:
        if self.pid is None:
            await self.close()  # died between two calls: not caused by these events
            await self.start()
        assert self._notes is not None
        NOTE.pack_into(self._notes, 0, 0, time.monotonic())
        try:
            outcome = await self._answer(HandlerCall(list(events), attempt))
        except asyncio.CancelledError:
            await self.close()  # a late answer must not be mistaken for a later call's
            raise
        if outcome.failure is not None and outcome.failure.error == "MemoryError":
            await self.close()
        return outcome

    async def _answer(self, call: HandlerCall) -> Outcome:
        asking = asyncio.create_task(self._ask(call))
        try:
            while True:
                at, since = self._current()
                left_s = since + self.timeout_s - time.monotonic()
                done, _ = await asyncio.wait([asking], timeout=max(left_s, 0.0))
                if done:
                    break
                if self._current() == (at, since):
                    await self.close()
                    message = f"not done after {self.timeout_s:g} s; the process was killed"
                    return self._lost_outcome(call, at, Failure(kind="timed out", error="Timeout", message=message))
            answer = asking.result()
        finally:
            asking.cancel()
        if answer is not None:
            return self._outcomes.decode(answer)
        at, _ = self._current()
        message = f"the handler's process {await self._exit_reason()}"
        failure = Failure(kind="died", error="ProcessDied", message=message)
        return self._lost_outcome(call, at, failure)

    async def _ask(self, message: msgspec.Struct) -> bytes | None:
        """Return the answer; None if the process ends without one."""
        assert self._streams is not None
        reader, writer = self._streams
        try:
            writer.write(framed(message))
            await writer.drain()
            return await reader.readexactly(LENGTH.unpack(await reader.readexactly(LENGTH.size))[0])
        except (ConnectionError, asyncio.IncompleteReadError):
            return None

    def _current(self) -> tuple[int, float]:
        assert self._notes is not None
        at, since = NOTE.unpack_from(self._notes)
        return at, since

    def _lost_outcome(self, call: HandlerCall, at: int, failure: Failure) -> Outcome:
        """Return the outcome of a lost process: events before `at` were handled, but their outputs are lost."""
        if self.by_list:
            return Outcome(done=0, failure=failure, together=len(call.events))
        return Outcome(done=min(max(at, 0), len(call.events) - 1), failure=failure, is_lost=True)

    async def _exit_reason(self) -> str:
        process = self._process
        if process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DYING_S):
                    await process.wait()
        await self.close()
        code = None if process is None else process.returncode
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            return "was killed with SIGKILL (perhaps out of memory)"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    async def close(self) -> None:
        process = self._process
        if process is not None:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_DYING_S):
                    await process.wait()
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None


async def _follow_to_its_end(process: asyncio.subprocess.Process, connection: socket.socket) -> None:
    """Close the connection when the process ends: its child processes may keep the other end open."""
    await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)  # data already sent can still be read


if __name__ == "__main__":
    main()
