"""A processor: a user's function that receives each event of a stream, run by any number of workers.

>>> from nadi.process import Processor, run
>>> def warm(event):
...     if float(event.data) > 30:
...         yield "warm", event.data
>>> run(Processor("home", "degrees", "warm", warm, output="alarms"))  # doctest: +SKIP

All workers share one record of positions, in the table `_process` of the scope. A crash repeats events, but their
outputs are stored once (`outputs`) if the handler is deterministic.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from nadi.backoff import Backoff
from nadi.client.aio import StreamManager
from nadi.client.control.security import Credentials
from nadi.client.idempotent.writer import NumberedEvent
from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import Catalog, RecordKind
from nadi.defaults import DEFAULT_URI
from nadi.errors import (
    ConflictError,
    EventTooLargeError,
    InvalidArgumentError,
    NadiError,
    NotFoundError,
    StreamNotFoundError,
)
from nadi.limits import MAX_EVENT_BYTES, PROCESS_BATCH_BYTES, PROCESS_BATCH_EVENTS, PROCESS_BATCH_S, PROCESS_RECORD_S
from nadi.model.keyspace import key_position
from nadi.model.streamcut import StreamCut
from nadi.naming import PROCESS_TABLE, check_name, segment_name
from nadi.process.dead_letters import DeadLetter
from nadi.process.members import Members, WorkerInfo, live_members
from nadi.process.outputs import OutputWriter
from nadi.process.runner import in_daemon_thread, run_program, until
from nadi.process.segment_follower import SegmentPositions, check_same, measure_lag_bytes, progress_at
from nadi.process.worker import BatchLimits, SegmentBatch, StreamWorker

Output = tuple[str, bytes]  # routing key, event


class StreamEvent(NamedTuple):
    """An event and its position: `segment` as "scope/stream/segment", `offset` in bytes."""

    data: bytes
    segment: str
    offset: int


Returned = Output | Iterable[Output] | None
Handler = Callable[[StreamEvent], Returned | Awaitable[Returned]]
"""A function, a generator function or a coroutine function."""


class ProcessorStoppedError(NadiError):
    """An event failed for good, and the processor doesn't have a dead-letter stream."""

    def __init__(self, name: str, event: StreamEvent, attempts: int, error: Exception) -> None:
        super().__init__(
            f"processor {name} stopped at {event.segment}@{event.offset} after {attempts} attempts "
            f"({type(error).__name__}: {error}): fix the handler and restart, or set `dead_letters` to a stream"
        )


@dataclass(frozen=True, slots=True)
class Processor:
    """A handler for the events of `scope`/`stream`. name: of its positions; another name starts afresh.

    handle: gets an event, in a thread unless it is a coroutine function; may return outputs for `output`: a pair of a
    routing key and an event, or several. An exception is retried `retries` times, with pauses that grow from
    `retry_first_s`; then the event goes to `dead_letters`, or without one the processor stops. A call may take any
    time: a hanging call keeps its segment from other workers. output, dead_letters: `stream` of the same scope, or
    `scope/stream`. start: where a new processor starts: head, tail, a time or a bookmark.
    """

    scope: str
    stream: str
    name: str
    handle: Handler
    output: str | None = None
    dead_letters: str | None = None
    start: str = "head"
    retries: int = 5
    retry_first_s: float = 0.1

    def __post_init__(self) -> None:
        for kind, name in (("scope", self.scope), ("stream", self.stream), ("processor", self.name)):
            check_name(kind, name)
        if not callable(self.handle):
            raise InvalidArgumentError(f"the handler {self.handle!r} isn't callable: pass a function of an event")
        for option, least in (("retries", self.retries), ("retry_first_s", self.retry_first_s)):
            if not isinstance(least, int if option == "retries" else int | float) or least < 0:
                raise InvalidArgumentError(f"{option} must be a number of at least 0, not {least!r}")
        for to in filter(None, (self.output, self.dead_letters)):
            scope, _, stream = self.full_name(to).partition("/")
            check_name("scope", scope)
            check_name("stream", stream)
        if self.full_name(self.stream) in map(self.full_name, filter(None, (self.output, self.dead_letters))):
            raise InvalidArgumentError(
                "output and dead_letters can't be the processor's input stream: name another stream"
            )

    def full_name(self, stream: str) -> str:
        return stream if "/" in stream else f"{self.scope}/{stream}"


class Positions(SegmentPositions, frozen=True):
    """The positions of a processor. run: an id that is new after each `delete`, for the ids of its writers. events,
    dead_letters: counts so far. is_stopped: its workers end."""

    run: str = ""
    events: int = 0
    dead_letters: int = 0
    is_stopped: bool = False

    def advanced(self, steps: Iterable[tuple[int, int, int]], events: int, dead_letters: int) -> Positions:
        """Return a copy with `steps` processed: (segment, start, end). PositionConflictError."""
        segments = {segment: replace(self.at(segment, start), reached=end) for segment, start, end in steps}
        return replace(
            self,
            segments=self.segments | segments,
            events=self.events + events,
            dead_letters=self.dead_letters + dead_letters,
        )


def processors_of(manager: StreamManager, scope: str) -> Catalog[Positions]:
    """Return the catalog of the positions of a scope's processors, by `stream/name`."""
    kind = RecordKind(
        "the positions of processor",
        scope,
        lambda name: "delete the processor (`nadi.process.delete`), then run it again",
        lambda name: NotFoundError(f"processor {scope}/{name} doesn't exist: it was never run, or was deleted"),
        lambda name, value: msgspec.msgpack.decode(value, type=Positions),
        msgspec.msgpack.encode,
        "positions/",
    )
    return Catalog(stores_of(manager), scope, PROCESS_TABLE, kind)


def _key(stream: str, name: str) -> str:
    return f"{check_name('stream', stream)}/{check_name('processor', name)}"


class ProcessorWorker(StreamWorker[Positions]):
    """A worker of a processor whose record of positions exists."""

    remedy = "the processor's positions are of the old stream. Delete them (`nadi.process.delete`), then run it again"

    def __init__(self, manager: StreamManager, processor: Processor, run: str) -> None:
        scope, stream, name = processor.scope, processor.stream, f"{processor.stream}/{processor.name}"
        super().__init__(
            manager,
            scope,
            stream,
            processors_of(manager, scope).record(name, waits=True),
            Members(stores_of(manager), scope, PROCESS_TABLE, _member_keys(name)),
            BatchLimits(PROCESS_BATCH_BYTES, PROCESS_BATCH_EVENTS, PROCESS_BATCH_S),
            logging.getLogger(f"nadi.process.{processor.name}"),
        )
        self._processor, self._run, self._name = processor, run, f"processor {scope}/{name}"
        self._output, self._dead_letters = (
            OutputWriter(manager, scope, stream, processor.full_name(to), f"{processor.name}/{run}/{kind}")
            if to
            else None
            for kind, to in (("output", processor.output), ("dead", processor.dead_letters))
        )

    async def _check(self) -> bool:
        return not (await self._positions.get()).is_stopped

    def _close(self) -> None:
        for outputs in (self._output, self._dead_letters):
            if outputs is not None:
                outputs.close()

    async def _handle(self, batch: Sequence[SegmentBatch], stop: asyncio.Event) -> None:
        """Handle a batch; record the progress each second and at the end, because handlers may be slow."""
        loop, done = asyncio.get_running_loop(), _HandledEvents()
        until = loop.time() + PROCESS_RECORD_S
        try:
            for followed, blocks in batch:
                segment_id = followed.reach.segment_id
                name = segment_name(self._scope, self._stream, segment_id)
                events = [
                    StreamEvent(bytes(data), name, offset)
                    for block in blocks
                    for data, offset in zip(block.events(), block.offsets().tolist(), strict=True)
                ]
                ends = [*(event.offset for event in events[1:]), blocks[-1].offset + blocks[-1].size_bytes]
                at = 0
                while at < len(events) and not stop.is_set():
                    seconds = max(0.0, until - loop.time())
                    async for outcome in self._outcomes(events[at:], stop, seconds):
                        done.add(segment_id, events[at], ends[at], outcome)
                        at += 1
                    if loop.time() >= until:
                        await self._record(done)
                        done, until = _HandledEvents(), loop.time() + PROCESS_RECORD_S
        finally:
            await self._record(done)

    async def _record(self, done: _HandledEvents) -> None:
        if not done.steps:
            return
        if self._output is not None:
            await self._output.write(done.made)
        if self._dead_letters is not None:
            await self._dead_letters.write_dead_letters(done.dead_letters)
        steps = [(segment, *step) for segment, step in done.steps.items()]

        def advanced(newest: Positions) -> Positions:
            if newest.run != self._run:
                raise ConflictError(f"{self._name} was deleted and recreated: this worker ends")
            return newest.advanced(steps, done.events, len(done.dead_letters))

        await self._positions.change(advanced)
        self._count(done.events)

    async def _outcomes(
        self, events: Sequence[StreamEvent], stop: asyncio.Event, seconds: float
    ) -> AsyncIterator[list[Output] | DeadLetter]:
        """Yield the result of each event, in order, for `seconds` or until `stop` is set. A failed event is retried
        before the next is handled."""
        processor, at, attempts, backoff = self._processor, 0, 0, Backoff(first_s=self._processor.retry_first_s)
        until = time.monotonic() + seconds
        while at < len(events) and not stop.is_set() and (at == 0 or time.monotonic() < until):
            results, error = await self._called(events[at:] if not attempts else events[at : at + 1], stop, until)
            for outputs in results:
                if outputs and self._output is None:
                    raise InvalidArgumentError(f"{self._name} returned outputs without an output stream: set `output`")
                yield outputs
            if results:
                at, attempts, backoff = at + len(results), 0, Backoff(first_s=processor.retry_first_s)
            if error is None:
                continue
            attempts, event = attempts + 1, events[at]
            self._error = f"{type(error).__name__}: {error}"
            self._log.warning("event %s@%d, attempt %d: %s", event.segment, event.offset, attempts, self._error)
            if attempts <= processor.retries:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), backoff.take())
                continue
            if processor.dead_letters is None:
                raise ProcessorStoppedError(processor.name, event, attempts, error) from error
            yield DeadLetter(
                by=f"processor {processor.name}",
                **event._asdict(),
                reason=str(error),
                kind="raised",
                error=type(error).__name__,
                attempts=attempts,
            )
            at, attempts = at + 1, 0

    async def _called(
        self, events: Sequence[StreamEvent], stop: asyncio.Event, until: float
    ) -> tuple[list[list[Output]], Exception | None]:
        """Return the handler's outputs for each event until it failed, and its exception."""
        handle = self._processor.handle
        if not inspect.iscoroutinefunction(handle):
            return await in_daemon_thread(partial(_called, handle, events, stop, until))
        outputs: list[list[Output]] = []
        for event in events:
            try:
                outputs.append(_outputs(await handle(event)))
            except Exception as error:
                return outputs, error
            if stop.is_set() or time.monotonic() >= until:
                break
        return outputs, None


class _HandledEvents:
    """The events handled since the last record."""

    def __init__(self) -> None:
        self.steps: dict[int, tuple[int, int]] = {}  # by segment: from an offset up to another
        self.made: dict[int, list[list[NumberedEvent]]] = {}
        self.dead_letters: list[DeadLetter] = []
        self.events = 0

    def add(self, segment_id: int, event: StreamEvent, end: int, outcome: list[Output] | DeadLetter) -> None:
        start, _ = self.steps.get(segment_id, (event.offset, end))
        self.steps[segment_id] = start, end
        self.events += 1
        if isinstance(outcome, DeadLetter):
            self.dead_letters.append(outcome)
        elif outcome:
            numbered = [NumberedEvent(event.offset, key_position(key), output) for key, output in outcome]
            self.made.setdefault(segment_id, []).append(numbered)


def _called(
    handle: Handler, events: Sequence[StreamEvent], stop: asyncio.Event, until: float
) -> tuple[list[list[Output]], Exception | None]:
    outputs: list[list[Output]] = []
    for event in events:
        try:
            outputs.append(_outputs(handle(event)))
        except Exception as error:
            return outputs, error
        if stop.is_set() or time.monotonic() >= until:
            break
    return outputs, None


def _outputs(result: Any) -> list[Output]:
    """Return the outputs of a call; InvalidArgumentError, EventTooLargeError."""
    outputs: list[Any] = [result] if isinstance(result, tuple) and len(result) == 2 else list(result or ())
    for output in outputs:
        match output:
            case (str(), bytes() as data):
                if len(data) > MAX_EVENT_BYTES:
                    raise EventTooLargeError(len(data), MAX_EVENT_BYTES)
            case _:
                raise InvalidArgumentError(
                    f"a handler must return pairs of a routing key and an event, (str, bytes), not {output!r:.80}"
                )
    return outputs


def _member_keys(name: str) -> str:
    return f"worker/{name}/"


def run(
    processor: Processor,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Run a worker until Ctrl-C, SIGTERM, `stop` or the end of a sealed stream. Any number of workers may run on any
    machines and share the segments. ProcessorStoppedError for an event that fails for good."""
    run_program(lambda manager, stop: serve(processor, manager, stop=stop), controller_uri, credentials, trust_store)


async def serve(processor: Processor, manager: StreamManager, *, stop: asyncio.Event | None = None) -> None:
    """Run a worker with a client of `nadi.client.aio` until `stop` is set; see `run`."""
    await until(stop, partial(_serve, processor, manager))


async def _serve(processor: Processor, manager: StreamManager, stop: asyncio.Event) -> None:
    for stream in (processor.stream, processor.output, processor.dead_letters):
        if stream is not None:
            await manager.stream_info(*processor.full_name(stream).split("/"))  # raises if it is missing
    catalog, name = processors_of(manager, processor.scope), f"{processor.stream}/{processor.name}"
    record = catalog.record(name)
    if await record.find() is None:
        cut = await manager.cuts(processor.scope, processor.stream).named(processor.start)
        segments = await progress_at(stores_of(manager), processor.scope, cut)
        await catalog.prepare()
        first = replace(Positions.started(segments), run=uuid4().hex)
        await record.put(lambda stored: stored or first)
    else:
        with suppress(StreamNotFoundError):
            await check_same(
                stores_of(manager), processor.scope, processor.stream, record.newest.segments, ProcessorWorker.remedy
            )
        if record.newest.is_stopped:
            await record.change(partial(replace, is_stopped=False))
    await ProcessorWorker(manager, processor, record.newest.run).run(stop)


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """The progress of a processor: `reached` is the cut before which all is handled; lag_bytes: from there to the
    tail, None if unknown; workers: those that reported in the last ten seconds."""

    positions: Positions
    reached: StreamCut
    lag_bytes: int | None
    workers: tuple[WorkerInfo, ...]


async def status(manager: StreamManager, scope: str, stream: str, name: str) -> ProcessorStatus:
    """Return a processor's progress; NotFoundError if there is none."""
    positions = await processors_of(manager, scope).get(_key(stream, name))
    reached = StreamCut(scope, stream, positions.positions())
    workers = await live_members(stores_of(manager), scope, PROCESS_TABLE, _member_keys(f"{stream}/{name}"))
    return ProcessorStatus(positions, reached, await measure_lag_bytes(manager, reached), tuple(workers))


async def stop(manager: StreamManager, scope: str, stream: str, name: str) -> None:
    """Stop a processor's workers; `run` resumes at their positions."""
    await processors_of(manager, scope).change(_key(stream, name), partial(replace, is_stopped=True))


async def delete(manager: StreamManager, scope: str, stream: str, name: str) -> bool:
    """Delete a processor's positions, so that its workers end; return False if it doesn't exist."""
    return await processors_of(manager, scope).delete(_key(stream, name))
