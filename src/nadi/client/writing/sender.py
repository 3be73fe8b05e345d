"""Send events in order for each routing key and acknowledge them; used by writers and transactions.

`write_event` adds the event to the batch of its key's segment and returns without awaiting. When a segment is sealed
(the stream scaled), the sender asks for its successors. In one step under the lock it hands them all its
unacknowledged events, in order, before any newer event can reach them; this keeps the order of each key.

`write_batch` does the same with blocks of events. The slow part runs in the caller's thread without the lock, using a
table of routes; under the lock the pieces are added if that table is still current, and rebuilt otherwise.

Memory is bounded by WRITER_PENDING_BYTES of unacknowledged events. Beyond that the blocking writer waits in
`write_event`, or before each block in `write_batch`; asynchronous callers `await ready()` or `write_many`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from nadi.backoff import Backoff
from nadi.client.control.arguments import check_ack_timeout, checked
from nadi.client.control.closing import Closing
from nadi.client.control.process import OwnProcess
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.stores import ACK_TIMEOUT_S, SegmentStores
from nadi.client.writing.ack import Ack
from nadi.client.writing.blocks import (
    CACHED_KEYS,
    FEW_EVENTS,
    BatchBlock,
    Blocks,
    EventBatch,
    Events,
    FramedEvents,
    Routes,
    RoutingKeys,
    as_bytes,
)
from nadi.client.writing.event_time import WriterTimes
from nadi.client.writing.segment_output import SegmentOutput
from nadi.errors import (
    ClosedError,
    EventTooLargeError,
    InvalidArgumentError,
    NadiError,
    RequestTimeoutError,
    StorageFullError,
    StreamSealedError,
    UnavailableError,
)
from nadi.limits import MAX_EVENT_BYTES, MAX_LARGE_EVENT_BYTES, WRITER_BLOCK_BYTES, WRITER_PENDING_BYTES
from nadi.model.framing import HEADER_BYTES, event_header
from nadi.model.segments import SegmentRange, Successor, common_keys
from nadi.wire import commands as wire


@checked()
class Writing(Closing):
    """Methods shared by the writers of events and of values."""

    def __init__(self, sender: EventSender) -> None:
        self._sender = sender

    async def ready(self) -> None:
        """Wait until the writer can accept more events."""
        await self._sender.ready()

    def note_time(self, timestamp_ms: int) -> Ack:
        """Declare that all events so far are at or before this timestamp, and that later ones are not before it.

        The Ack, which need not be awaited, completes when the controller has recorded this or a later time.
        """
        return self._sender.note_time(timestamp_ms)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything written so far is stored; raise the first failure since the last flush."""
        await self._sender.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; writes not stored within `timeout` seconds fail with ClosedError."""
        await self._sender.close(timeout)


@checked(without=("write", "write_batch", "write_event", "write_many"))
class EventWriter(Writing):
    """Writer of events to one stream, in order for each routing key; made by `StreamManager.create_writer`."""

    def __init__(self, sender: EventSender) -> None:
        super().__init__(sender)
        self.name = sender.name
        self.write_event = sender.write_event  # type: ignore[method-assign]  # saves one call per event

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Accept one event; return its batch's Ack, which completes when the batch is stored.

        Events of one routing key keep their order. Raises EventTooLargeError, StreamSealedError, ClosedError. While
        too many bytes are pending, the blocking writer waits here; asynchronous callers use `write`, or get
        UnavailableError once twice the limit is pending.
        """
        return self._sender.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Accept many events, with one key for all or one per event; return one Ack for all of them.

        events: bytes, or an Arrow array of binaries without nulls; keys may be an Arrow array of strings, where null
        means no key. Invalid lists and arrays are rejected as a whole. The blocking writer waits for capacity before
        each block of about half a megabyte, so any number of events may be passed; the asyncio writer raises
        UnavailableError once twice the limit is pending and keeps the events accepted before: use `write_many`.
        """
        return self._sender.write_batch(events, routing_keys)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Accept any number of events like `write_batch`, awaiting `ready` before each block."""
        return await self._sender.write_many(events, routing_keys)

    async def write(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Await `ready`, then `write_event`."""
        await self._sender.ready()
        return self._sender.write_event(event, routing_key)


_OVERDUE_CHECK_S = 1.0
_SHORT = 4096
_SHORT_HEADERS = [event_header(size) for size in range(_SHORT)]  # for the fast path


class EventSender:
    """Sender to `segments` and to their successors; EventWriter documents the public calls.

    find_successors: returns the successors of a sealed segment, or raises the error with which its events fail.
    name_of: returns the name of a segment by its id.
    """

    def __init__(
        self,
        stores: SegmentStores,
        name: str,
        segments: Sequence[SegmentRange],
        *,
        name_of: Callable[[int], str],
        find_successors: Callable[[int], Awaitable[list[Successor]]],
        ack_timeout_s: float = ACK_TIMEOUT_S,
        blocking: bool = False,
    ) -> None:
        check_ack_timeout(ack_timeout_s)
        self.name = name
        self.lock = threading.Lock()
        self.stores = stores
        self._name_of = name_of
        self._find_successors = find_successors
        self._ack_timeout_s = ack_timeout_s
        self._blocking = blocking
        self._process = OwnProcess()
        self._loop = asyncio.get_running_loop()
        self._due: list[SegmentOutput] = []  # outputs that have more to send
        self._capacity = threading.Condition(self.lock)
        self._waiting_threads = 0  # number of threads in `_wait_for_capacity`
        self._capacity_waiters: list[asyncio.Future[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._pending = 0  # unacknowledged bytes
        self._pending_limit = WRITER_PENDING_BYTES  # beyond it `_wait_for_capacity` decides; -1 once stopped
        self._settled = 0  # bytes stored or failed
        self._since_pause = 0  # bytes written since `ready` last let the loop run
        self._stopped: NadiError | None = None  # why new events are rejected
        self._failure: NadiError | None = None  # the first since the last flush
        self.times: WriterTimes | None = None  # None for a transaction
        self.outputs: dict[int, SegmentOutput] = {}
        self._output_of_key: dict[str, SegmentOutput] = {}
        self._keyless: SegmentOutput | None  # currently takes the events without a key
        self._set_table([(s.low, s.high, self._output(s.segment_id)) for s in segments])
        self.spawn(self._fail_overdue())

    # --- writing: from any thread if blocking, else on the loop's thread ---------------------

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        if type(event) is not bytes:
            event = as_bytes(event)
        size = len(event)
        if size < _SHORT:
            header = _SHORT_HEADERS[size]
        elif size <= MAX_LARGE_EVENT_BYTES:
            header = event_header(size)
        else:
            raise EventTooLargeError(size, MAX_LARGE_EVENT_BYTES)
        size += HEADER_BYTES
        with self.lock:
            if self._pending >= self._pending_limit:
                self._wait_for_capacity()
            if routing_key is None:
                output = self._keyless
                if output is None or not output.current.entries:
                    output = self._keyless = next(self._cycle)
            else:
                try:
                    output = self._output_of_key.get(routing_key) or self._route(routing_key)
                except TypeError:  # a list, say, which can't be a dict's key
                    kind = type(routing_key).__name__
                    raise InvalidArgumentError(f"a routing key is a str, not {kind}") from None
            if size > MAX_EVENT_BYTES + HEADER_BYTES:
                output.cut()  # a large event is a batch of its own
            batch = output.current
            entries = batch.entries
            entries += (header, event, routing_key)
            batch.size += size
            self._pending += size
            ack = batch.ack
            if batch.size >= output.notice_at:
                output.notice()
            return ack

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        blocks = Blocks(events, routing_keys, self._routes)
        return Ack.of_all(itertools.chain.from_iterable(map(self._take, blocks)))

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        acks: dict[Ack, None] = {}
        for block in Blocks(events, routing_keys, self._routes):
            await self.ready()
            acks.update(dict.fromkeys(self._take(block)))
        return Ack.of_all(acks)

    def note_time(self, timestamp_ms: int) -> Ack:
        if self.times is None or self._stopped is not None:
            raise self._stopped or InvalidArgumentError(
                "a transaction can't note times: pass timestamp_ms to its commit"
            )
        return self.times.note(timestamp_ms)

    def written(self) -> int:
        return self._settled + self._pending

    def ends(self) -> list[tuple[int, EventBatch | None, int]]:
        """Return (segment id, last pending batch, end of the stored events) for each segment: the batch takes no
        further events, and the end is negative if unknown."""
        with self.lock:
            for output in self.outputs.values():
                output.cut()
            return [(output.segment_id, output.last, output.stored_to) for output in self.outputs.values()]

    def unacknowledged(self) -> list[Ack]:
        """Return the Acks of all pending batches."""
        with self.lock:
            return list(dict.fromkeys(batch.ack for output in self.outputs.values() for batch in output.pending()))

    def segment_ids(self) -> list[int]:
        with self.lock:
            return list(dict.fromkeys(output.segment_id for _, _, output in self._routes.table))

    async def ready(self) -> None:
        """Wait until more events may be written."""
        while self._pending >= WRITER_PENDING_BYTES // 2 and self._stopped is None:
            waiter = self._loop.create_future()
            self._capacity_waiters.append(waiter)
            await waiter
        # a caller that never waits would keep the loop from sending
        if self._pending - self._since_pause >= WRITER_BLOCK_BYTES or self._pending < self._since_pause:
            await asyncio.sleep(0)
            self._since_pause = self._pending

    async def flush(self, timeout: float | None = None) -> None:
        failure, self._failure = self._failure, None
        overdue = f"flushing the writer of {self.name} took over {timeout} s: some events are unacknowledged"
        async with TimeLimit(timeout, lambda: overdue, self._trouble):
            with self.lock:
                for output in self.outputs.values():  # Ctrl-C may have prevented the writing thread from doing so
                    if output.current.entries:
                        self.add_due(output)
            for ack in self.unacknowledged():
                try:
                    await ack
                except NadiError as error:
                    failure = failure or error
        if failure is not None:
            self._failure = None
            raise failure

    async def close(self, timeout: float | None = None) -> None:
        try:
            if self._stopped is None or isinstance(self._stopped, StreamSealedError):
                await self.flush(timeout)
        finally:
            if self.times is not None:
                await self.times.close()
            self.stop(ClosedError(f"the writer of {self.name} was closed"))

    def stop(self, error: NadiError) -> None:
        """Stop immediately: pending events fail with `error`."""
        with self.lock:
            self._stop_taking(error)
        for output in self.outputs.values():
            output.fail(error)
            output.close()
        for task in self._tasks:
            task.cancel()
        if self.times is not None:
            self.times.stop(error)
        self._release_waiters()

    @property
    def is_closed(self) -> bool:
        return isinstance(self._stopped, ClosedError)

    # --- called by the outputs, on the loop's thread -----------------------------------------

    def schedule(self, call: Callable[[], None]) -> None:
        """Run `call` soon on the loop's thread; callable from any thread."""
        self._process.check()
        try:
            if self._blocking:
                self._loop.call_soon_threadsafe(call)
            else:
                self._loop.call_soon(call)
        except RuntimeError:
            raise ClosedError(f"the writer of {self.name} was closed") from None

    def add_due(self, output: SegmentOutput) -> None:
        is_first = not self._due
        self._due += (output,)  # makes no call, so Ctrl-C can't interrupt between this and the `try`
        if is_first:
            try:
                self.schedule(self._send_due)
            except BaseException:
                self._due.clear()  # nothing is scheduled: the next output must schedule again
                raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the writer is closed."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def acknowledged(self, acknowledged: list[tuple[SegmentOutput, wire.DataAppended]]) -> None:
        """Settle the batches up to each acknowledged event; takes the lock once, as there may be one per event."""
        batches: list[EventBatch] = []
        with self.lock:
            for output, reply in acknowledged:
                output.trouble = None
                batches += output.stored(reply.event_number, reply.current_segment_write_offset)
            self._count_settled(batches)
        self._settle(batches, None)

    def settled(self, batches: Sequence[EventBatch], error: NadiError | None = None) -> None:
        """Settle batches that are stored or have failed."""
        if batches and self._failure is None and not isinstance(error, ClosedError):
            self._failure = error
        with self.lock:
            self._count_settled(batches)
        self._settle(batches, error)

    def on_sealed(self, output: SegmentOutput) -> None:
        """Hand the events of a sealed segment to its successors."""
        self.spawn(self._replace(output))

    # --- inside -----------------------------------------------------------------------------

    def _count_settled(self, batches: Sequence[EventBatch]) -> None:
        size = 0
        for batch in batches:
            size += batch.size
            batch.entries = []  # an event-time step may keep the batch, but must not keep its events in memory
        self._pending -= size
        self._settled += size

    def _settle(self, batches: Sequence[EventBatch], error: NadiError | None) -> None:
        for batch in batches:
            batch.ack.settle(error)
        self._release_waiters()

    def _send_due(self) -> None:
        with self.lock:
            due, self._due = self._due, []
            for output in due:
                output.prepare()
        for output in due:
            output.send_prepared()

    async def _fail_overdue(self) -> None:
        """Fail the events of outputs that have made no progress for the acknowledgement timeout; until cancelled."""
        while True:
            await asyncio.sleep(min(_OVERDUE_CHECK_S, self._ack_timeout_s / 4))
            now = time.monotonic()
            for output in list(self.outputs.values()):
                with self.lock:
                    if not output.has_pending:
                        output.progress_at = now
                if now - output.progress_at > self._ack_timeout_s:
                    overdue = f"segment {output.segment} acknowledged nothing for {self._ack_timeout_s} s"
                    if isinstance(output.trouble, StorageFullError):
                        output.fail(StorageFullError(f"{overdue}: {output.trouble}"))
                    else:
                        output.fail(_timeout_error(overdue, output.trouble or self.stores.waits_for()))

    def _stop_taking(self, error: NadiError) -> None:
        self._stopped, self._pending_limit = error, -1

    def _wait_for_capacity(self) -> None:
        """Wait until an event may be accepted, or raise; call with the lock held."""
        if not self._blocking:
            if self._stopped is None and self._pending < 2 * WRITER_PENDING_BYTES:
                return
            if self._stopped is None:
                raise UnavailableError(
                    f"can't accept the event: {self._pending:,} bytes are pending; await writer.ready() before "
                    "writing, or use writer.write_many(...)"
                )
        deadline = time.monotonic() + self._ack_timeout_s
        self._waiting_threads += 1
        try:
            while self._stopped is None and self._pending >= WRITER_PENDING_BYTES:
                if not self._capacity.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    full = f"could not accept the event within {self._ack_timeout_s} s: too many bytes are pending"
                    raise _timeout_error(full, self._trouble())
        finally:
            self._waiting_threads -= 1
        if self._stopped is not None:
            raise self._stopped

    def _trouble(self) -> NadiError | None:
        """Return the known reason why events are not acknowledged, if any."""
        outputs = list(self.outputs.values())
        return next((output.trouble for output in outputs if output.trouble), None) or self.stores.waits_for()

    def _release_waiters(self) -> None:
        if self._pending <= WRITER_PENDING_BYTES // 2 or self._stopped is not None:
            if self._waiting_threads:
                with self.lock:
                    self._capacity.notify_all()
            waiters, self._capacity_waiters = self._capacity_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _take(self, block: BatchBlock) -> list[Ack]:
        """Add a block's events to the batches of their segments; return the batches' Acks."""
        if len(block) < FEW_EVENTS:
            return [self.write_event(event, key) for event, key in block.one_by_one()]
        while True:
            with self.lock:
                routes, keyless = self._routes, self._next_keyless()
            pieces = block.pieces(routes, routes.code_of[keyless])
            with self.lock:
                if self._pending >= self._pending_limit:
                    self._wait_for_capacity()
                if self._routes is routes:  # otherwise a segment was replaced meanwhile
                    return [self._add(routes.segments[code], piece) for code, piece in pieces]

    def _add(self, output: SegmentOutput, piece: FramedEvents) -> Ack:
        """Add a piece to the output's batch; call with the lock held."""
        batch = output.current
        batch.add_piece(piece)
        self._pending += len(piece.framed)
        if batch.size >= output.notice_at:
            output.notice()
        return batch.ack

    def _next_keyless(self) -> SegmentOutput:
        """Return the output for events without a key: one segment until its batch is sent, then the next."""
        output = self._keyless
        if output is None or not output.current.entries:
            output = self._keyless = next(self._cycle)
        return output

    def _route(self, key: str) -> SegmentOutput:
        if len(self._output_of_key) >= CACHED_KEYS:  # a cachetools cache costs 0.2 us more per event
            self._output_of_key.clear()
        output = self._output_of_key[key] = self._routes.segment(key)
        return output

    def _output(self, segment_id: int) -> SegmentOutput:
        output = self.outputs.get(segment_id)
        if output is None:
            output = SegmentOutput(self, self._name_of(segment_id), segment_id)
            self.outputs[segment_id] = output
        return output

    def _set_table(self, entries: list[tuple[float, float, SegmentOutput]]) -> None:
        self._routes = Routes(entries)
        self._output_of_key.clear()
        self._cycle = itertools.cycle(self._routes.segments)
        self._keyless = next(self._cycle, None)

    async def _replace(self, output: SegmentOutput) -> None:
        """Hand the events and keys of a sealed segment to its successors."""
        backoff = Backoff()
        while True:
            try:
                successors = await self._find_successors(output.segment_id)
                break
            except ClosedError:
                return
            except UnavailableError as error:
                output.trouble = error
            except NadiError as error:
                self._end_with(output, error)
                return
            await backoff.pause()
        if not successors:
            self._end_with(output, StreamSealedError(f"stream {self.name}"))
            return
        with self.lock:
            if not isinstance(self._stopped, ClosedError):
                self._hand_over(output, [successor.segment for successor in successors])

    def _end_with(self, output: SegmentOutput, error: NadiError) -> None:
        with self.lock:
            self._stop_taking(self._stopped or error)
        output.fail(error)
        self._release_waiters()

    def _hand_over(self, sealed: SegmentOutput, successors: list[SegmentRange]) -> None:
        """Route the sealed segment's keys and pending batches to its successors; call with the lock held. The other
        predecessors of a merge keep their keys until they turn out to be sealed."""
        entries: list[tuple[float, float, SegmentOutput]] = []
        for low, high, output in self._routes.table:
            if output is not sealed:
                entries.append((low, high, output))
                continue
            sealed_range = SegmentRange(sealed.segment_id, low, high)
            entries += [
                (*keys, self._output(piece.segment_id))
                for piece in successors
                if (keys := common_keys(sealed_range, piece))
            ]
        self._set_table(entries)
        spare = self._routes.segments[0] if self._keyless is None else self._keyless
        for batch in sealed.take_all():
            groups = self._divided(batch, spare)
            batch.ack.split(len(groups))
            for output, group in groups.items():
                output.adopt(group)
        sealed.close()
        del self.outputs[sealed.segment_id]

    def _divided(self, batch: EventBatch, spare: SegmentOutput) -> dict[SegmentOutput, EventBatch]:
        """Group the batch's events, in order, by their key's output; events without a key go to `spare`."""
        routes = self._routes
        groups: defaultdict[SegmentOutput, EventBatch] = defaultdict(partial(EventBatch, batch.ack))
        for header, payload, key in batch.parts():
            if isinstance(key, FramedEvents):
                for code, part in key.divide(routes, routes.code_of[spare]):
                    groups[routes.segments[code]].add_piece(part)
            else:
                output = spare if key is None else self._output_of_key.get(key) or self._route(key)
                groups[output].add(header, payload, key)
        return groups


def _timeout_error(message: str, trouble: NadiError | None) -> RequestTimeoutError:
    return RequestTimeoutError(message + (f": {trouble}" if trouble else ""))
