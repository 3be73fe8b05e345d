"""EventSender: events in, acknowledgements out, in order for each routing key. Writers and transactions send with it.

`write_event` adds the event to the batch of its key's segment and returns; there is nothing to
await. When a segment is sealed (the stream scaled), the writer asks for its successors. In one
step under the lock it hands them all its unacknowledged events, in order, before any newer event
can reach them; so the order of each key survives.

`write_batch` does the same with blocks of events. The slow part runs in the caller's thread without the lock, using
a table of routes; under the lock the pieces are added if that table is still current, and rebuilt otherwise.

Memory is bounded by WRITER_PENDING_BYTES of unacknowledged events. Past that the blocking writer
waits in `write_event`, or before each block in `write_batch`; asynchronous callers `await ready()`
or `write_many`.
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
from nadi.client.segments.stores import SegmentStores
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
from nadi.client.writing.event_time import NotedTimes
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


@checked()
class Writing(Closing):
    """What writers of events and of values have in common."""

    def __init__(self, sender: EventSender) -> None:
        self._sender = sender

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        await self._sender.ready()

    def note_time(self, timestamp_ms: int) -> Ack:
        """Declare that all events so far are at or before this timestamp, and that later ones are not before it.

        The Ack, which need not be awaited, completes when the controller has recorded it or a later time.
        """
        return self._sender.note_time(timestamp_ms)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored; raise the first failure since the last flush."""
        await self._sender.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; writes not stored by then fail with ClosedError."""
        await self._sender.close(timeout)


@checked(without=("write", "write_batch", "write_event", "write_many"))
class EventWriter(Writing):
    """Writes events to one stream, in order for each routing key; made by `StreamManager.create_writer`."""

    def __init__(self, sender: EventSender) -> None:
        super().__init__(sender)
        self.name = sender.name
        self.write_event = sender.write_event  # type: ignore[method-assign]  # saves one call per event

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Accept one event and return the Ack, shared by its batch, which completes when it is stored.

        Events of one routing key keep their order. Raises EventTooLargeError, StreamSealedError, ClosedError. While
        too much is pending, the blocking writer waits here for room; asynchronous callers use `write`, or get
        UnavailableError once twice the limit is pending.
        """
        return self._sender.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Accept many events, with one key for all or one each; return one Ack for all of them.

        events: bytes, or an Arrow array of binaries without nulls; keys may be an Arrow array of strings, where null
        means no key. Invalid lists and arrays are rejected before any of it is accepted. The blocking writer waits
        for room before each block of about half a megabyte, so any number of events may be passed; the asyncio one
        raises UnavailableError once twice the limit is pending, with the events before accepted: use `write_many`.
        """
        return self._sender.write_batch(events, routing_keys)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Accept any number of events: `write_batch`, with `ready` before each block."""
        return await self._sender.write_many(events, routing_keys)

    async def write(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Wait until there is `ready` room, then `write_event`."""
        await self._sender.ready()
        return self._sender.write_event(event, routing_key)


ACK_TIMEOUT_S = 60.0
_LOOK_S = 1.0
_SHORT = 4096
_SHORT_HEADERS = [event_header(size) for size in range(_SHORT)]  # looked up in the fast path


class EventSender:
    """Sends to `segments` and to their successors; its public face, EventWriter, documents the calls.

    find_successors: returns what follows a sealed segment; if nothing can, raises the error that the events
    fail with. name_of: returns the name of a segment by its id.
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
        self._due: list[SegmentOutput] = []  # those that have more to send
        self._room = threading.Condition(self.lock)
        self._awaiting_room = 0  # threads
        self._room_waiters: list[asyncio.Future[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._pending = 0  # bytes that are not acknowledged
        self._most_pending = WRITER_PENDING_BYTES  # past this a writer checks further; -1 once stopped
        self._settled = 0  # bytes that are
        self._since_pause = 0  # bytes written since `ready` last let the loop run
        self._stopped: NadiError | None = None  # why no more events are taken
        self._failure: NadiError | None = None  # the first since the last flush
        self.times: NotedTimes | None = None  # a transaction's writer has none
        self.outputs: dict[int, SegmentOutput] = {}
        self._output_of_key: dict[str, SegmentOutput] = {}
        self._keyless: SegmentOutput | None  # takes events without a key now
        self._set_table([(s.low, s.high, self._output(s.segment_id)) for s in segments])
        self.spawn(self._fail_overdue())

    # --- writing; any thread in the blocking face, else the loop's ---------------------------

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
            if self._pending >= self._most_pending:
                self._wait_for_room()
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
            raise self._stopped or InvalidArgumentError("a transaction's events get their time by its commit")
        return self.times.note(timestamp_ms)

    def written(self) -> int:
        return self._settled + self._pending

    def ends(self) -> list[tuple[int, EventBatch | None, int]]:
        """Return where all that was written so far ends, by segment: the last batch that is not stored yet, which takes
        no more events; and the end of what is stored, negative if unknown."""
        with self.lock:
            for output in self.outputs.values():
                output.cut()
            return [(output.segment_id, output.last, output.stored_to) for output in self.outputs.values()]

    def unacknowledged(self) -> list[Ack]:
        """The Acks of everything written so far that is not settled."""
        with self.lock:
            return list(dict.fromkeys(batch.ack for output in self.outputs.values() for batch in output.pending()))

    def segment_ids(self) -> list[int]:
        with self.lock:
            return list(dict.fromkeys(output.segment_id for _, _, output in self._routes.table))

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        while self._pending >= WRITER_PENDING_BYTES // 2 and self._stopped is None:
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            await waiter
        # a caller that never has to wait would keep the loop from sending
        if self._pending - self._since_pause >= WRITER_BLOCK_BYTES or self._pending < self._since_pause:
            await asyncio.sleep(0)
            self._since_pause = self._pending

    async def flush(self, timeout: float | None = None) -> None:
        failure, self._failure = self._failure, None
        async with TimeLimit(timeout, lambda: f"not everything was acknowledged within {timeout} s", self._trouble):
            with self.lock:
                for output in self.outputs.values():  # Ctrl-C may have come before the thread that wrote could do so
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
        """End at once: pending events fail with `error`."""
        with self.lock:
            self._stop_taking(error)
        for output in self.outputs.values():
            output.fail(error)
            output.close()
        for task in self._tasks:
            task.cancel()
        if self.times is not None:
            self.times.stop(error)
        self._make_room()

    @property
    def is_closed(self) -> bool:
        return isinstance(self._stopped, ClosedError)

    # --- what the outputs call; the loop's thread --------------------------------------------

    def schedule(self, call: Callable[[], None]) -> None:
        """Call it on the loop's thread, soon; from any thread."""
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
        self._due += (output,)  # calls nothing: Ctrl-C can't come between this and the `try`
        if is_first:
            try:
                self.schedule(self._send_due)
            except BaseException:
                self._due.clear()  # nobody comes for them: the next one is told again
                raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it until the writer is closed."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def settled(self, batches: Sequence[EventBatch], error: NadiError | None = None) -> None:
        """The batches are stored, or have failed."""
        if batches and self._failure is None and not isinstance(error, ClosedError):
            self._failure = error
        with self.lock:
            for batch in batches:
                self._pending -= batch.size
                self._settled += batch.size
                batch.entries = []  # a step of event time may keep the batch, but not its events
        for batch in batches:
            batch.ack.settle(error)
        self._make_room()

    def on_sealed(self, output: SegmentOutput) -> None:
        """The segment takes no more events: its successors get the remaining ones."""
        self.spawn(self._replace(output))

    # --- inside -----------------------------------------------------------------------------

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
            await asyncio.sleep(min(_LOOK_S, self._ack_timeout_s / 4))
            now = time.monotonic()
            for output in list(self.outputs.values()):
                with self.lock:
                    if not output.has_pending:
                        output.progress_at = now
                if now - output.progress_at > self._ack_timeout_s:
                    what = f"segment {output.segment} acknowledged nothing for {self._ack_timeout_s} s"
                    if isinstance(output.trouble, StorageFullError):
                        output.fail(StorageFullError(f"{what}: {output.trouble}"))
                    else:
                        output.fail(_too_late(what, output.trouble or self.stores.waits_for()))

    def _stop_taking(self, error: NadiError) -> None:
        self._stopped, self._most_pending = error, -1

    def _wait_for_room(self) -> None:
        """With the lock held: wait, or raise, until an event may be taken."""
        if not self._blocking:
            if self._stopped is None and self._pending < 2 * WRITER_PENDING_BYTES:
                return
            if self._stopped is None:
                raise UnavailableError(
                    f"{self._pending:,} bytes wait to be stored: `await writer.ready()` before writing more, "
                    "or `await writer.write_many(...)`"
                )
        deadline = time.monotonic() + self._ack_timeout_s
        self._awaiting_room += 1
        try:
            while self._stopped is None and self._pending >= WRITER_PENDING_BYTES:
                if not self._room.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise _too_late(f"no room to write after {self._ack_timeout_s} s", self._trouble())
        finally:
            self._awaiting_room -= 1
        if self._stopped is not None:
            raise self._stopped

    def _trouble(self) -> NadiError | None:
        """What keeps events from being acknowledged, as far as is known."""
        outputs = list(self.outputs.values())
        return next((output.trouble for output in outputs if output.trouble), None) or self.stores.waits_for()

    def _make_room(self) -> None:
        if self._pending <= WRITER_PENDING_BYTES // 2 or self._stopped is not None:
            if self._awaiting_room:
                with self.lock:
                    self._room.notify_all()
            waiters, self._room_waiters = self._room_waiters, []
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
                if self._pending >= self._most_pending:
                    self._wait_for_room()
                if self._routes is routes:  # else a segment was replaced meanwhile
                    return [self._add(routes.segments[code], piece) for code, piece in pieces]

    def _add(self, output: SegmentOutput, piece: FramedEvents) -> Ack:
        """With the lock held."""
        batch = output.current
        batch.add_piece(piece)
        self._pending += len(piece.framed)
        if batch.size >= output.notice_at:
            output.notice()
        return batch.ack

    def _next_keyless(self) -> SegmentOutput:
        """Where events without a key go now: to one segment until its batch is sent, then to the next."""
        output = self._keyless
        if output is None or not output.current.entries:
            output = self._keyless = next(self._cycle)
        return output

    def _route(self, key: str) -> SegmentOutput:
        if len(self._output_of_key) >= CACHED_KEYS:  # a dict: a cache of cachetools costs 0.2 us more per event
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
        """Hand the events of a sealed segment, and its keys, to its successors."""
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
                self._give_up(output, error)
                return
            await backoff.pause()
        if not successors:
            self._give_up(output, StreamSealedError(f"stream {self.name}"))
            return
        with self.lock:
            if not isinstance(self._stopped, ClosedError):
                self._hand_over(output, [successor.segment for successor in successors])

    def _give_up(self, output: SegmentOutput, error: NadiError) -> None:
        with self.lock:
            self._stop_taking(self._stopped or error)
        output.fail(error)
        self._make_room()

    def _hand_over(self, sealed: SegmentOutput, successors: list[SegmentRange]) -> None:
        """With the lock held. Each successor gets only the keys that the sealed segment had: other predecessors of a
        merge keep theirs until they are found sealed themselves."""
        entries: list[tuple[float, float, SegmentOutput]] = []
        for low, high, output in self._routes.table:
            if output is not sealed:
                entries.append((low, high, output))
                continue
            own = SegmentRange(sealed.segment_id, low, high)
            entries += [
                (*keys, self._output(piece.segment_id)) for piece in successors if (keys := common_keys(own, piece))
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
        """The batch's events, in order, grouped by the output that takes their key; those without a key go to
        `spare`."""
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


def _too_late(what: str, trouble: NadiError | None) -> RequestTimeoutError:
    return RequestTimeoutError(what + (f": {trouble}" if trouble else ""))
