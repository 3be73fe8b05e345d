"""Send a writer's batches to one segment: the growing batch, the waiting ones, those in flight.

Any thread may add events to `current` while it holds the writer's lock; everything else happens on the loop's thread.
One append is in flight, or a few (`InFlightWindow`); meanwhile the next batch grows, so appends are small on a quiet
segment and large on a busy one.

Event numbers count all events of this output. A new session learns the last stored number, drops the batches up to
it and resends the remaining ones in order: a batch is one append and therefore stored completely or not at all.

`InFlightWindow` decides which appends may be in flight: one while events gather for the next, or two when there is much
to send. With slow acknowledgements, as from a log in an object store, an event would then wait twice: for the previous
append and for its own. So a few small appends may be in flight there, some milliseconds apart: a server stores together
what arrives while it stores something else. The first append of such a group takes up to twice as long as the last, and
as many appends may be in flight as follow each other in that time.

Batches that already wait, such as those handed over by a sealed segment, are sent without a pause.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence, Sized
from typing import Any, Protocol

from nadi.backoff import Backoff
from nadi.client.segments.connection import AppendSession, SegmentStoreConnection
from nadi.client.segments.key_reports import KeySampler
from nadi.client.segments.stores import OpenSession, SegmentStores, open_session, set_up
from nadi.client.segments.tokens import DelegationTokens
from nadi.client.segments.tracing import BlockTrace, stored
from nadi.client.writing.blocks import EventBatch
from nadi.errors import (
    AccessDeniedError,
    ClosedError,
    NadiError,
    NotFoundError,
    NotOwnerError,
    ProtocolError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    UnavailableError,
)
from nadi.limits import MAX_EVENT_BYTES, WRITER_BLOCK_BYTES
from nadi.observe import traces
from nadi.wire import commands as wire
from nadi.wire.errors import error_of
from nadi.wire.fields import NO_VERSION, AttributeUpdate

SECOND_APPEND_BYTES = WRITER_BLOCK_BYTES // 4  # least size of a second append in flight
SLOW_S = 0.010  # acknowledgements that take longer are slow
_GAP_S = 0.005  # least pause between two small appends
_SMALL_APPENDS = 8
_WRITER_APPENDS = 32  # small appends over all segments of a writer: many segments keep a server busy anyway


class InFlightWindow:
    """Rule for when one segment's output may send. outputs: all outputs of its writer."""

    __slots__ = ("_in_flight", "_outputs", "_sent_at", "_tick", "_tick_at", "_took_s", "_waiting")

    def __init__(self, waiting: deque[EventBatch], in_flight: deque[EventBatch], outputs: Sized) -> None:
        self._waiting, self._in_flight, self._outputs = waiting, in_flight, outputs
        self._sent_at = self._took_s = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._tick_at = 0.0

    def sent(self, batch: EventBatch) -> None:
        batch.sent_at = self._sent_at = time.monotonic()

    def acknowledged(self, batch: EventBatch, now: float) -> None:
        self._took_s = now - batch.sent_at

    def may_send(self, current: EventBatch) -> bool:
        """Return True if the next waiting batch, or else the growing batch, may be sent now."""
        if not self._in_flight:
            return bool(self._waiting or current.entries)
        if self._waiting:
            if self._waiting[0].is_large or self._in_flight[0].is_large:
                return False
            return len(self._in_flight) == 1 or self._has_capacity(self._waiting[0].size, _WRITER_APPENDS)
        if not current.entries or self._in_flight[0].is_large:
            return False
        if len(self._in_flight) == 1 and current.size >= SECOND_APPEND_BYTES:
            return True
        return self._took_s >= SLOW_S and self._wait_s(current.size) == 0

    def next_notice(self, current: EventBatch, send: Callable[[], None]) -> int | None:
        """Return the size at which the growing batch may be sent in addition to those in flight, or None if no size
        is enough. Call `send` later if a small batch may follow after a pause."""
        wait_s = None
        if self._took_s >= SLOW_S and not self._waiting and self._in_flight and not self._in_flight[0].is_large:
            wait_s = self._wait_s(current.size)
            if wait_s == 0 and not current.entries:
                return 1
        if wait_s is not None:
            self._tick_after(wait_s, send)
        return SECOND_APPEND_BYTES if len(self._in_flight) == 1 else None

    def _tick_after(self, wait_s: float, send: Callable[[], None]) -> None:
        """Schedule `send` after `wait_s`, unless an earlier call is scheduled already."""
        loop = asyncio.get_running_loop()
        at = loop.time() + wait_s
        if self._tick is not None:
            if self._tick_at <= at:
                return
            self._tick.cancel()  # an acknowledgement took very long, and the next one didn't
        self._tick, self._tick_at = loop.call_at(at, self._ticked, send), at

    def _ticked(self, send: Callable[[], None]) -> None:
        self._tick = None
        send()

    def _wait_s(self, size: int) -> float | None:
        """Return the seconds until `size` bytes may follow as a small append; None if only after an acknowledgement."""
        if self._took_s < SLOW_S or not self._has_capacity(size, _SMALL_APPENDS):
            return None
        gap_s = max(_GAP_S, 2 * self._took_s / _SMALL_APPENDS)
        return max(self._sent_at + gap_s - time.monotonic(), 0.0)

    def _has_capacity(self, size: int, limit: int) -> bool:
        """Return True if fewer than `limit` appends are in flight, and small in total with `size` bytes added."""
        if len(self._in_flight) >= min(limit, _WRITER_APPENDS // max(len(self._outputs), 1)):
            return False
        return sum(batch.size for batch in self._in_flight) + size <= SECOND_APPEND_BYTES


_TIMEOUT_S = 60.0
_REPLACE_IF_GREATER = 2


async def merge_large_event(
    connection: SegmentStoreConnection, tokens: DelegationTokens, segment: str, writer_id: bytes, batch: EventBatch
) -> None:
    """Store the batch's single event at the end of `segment`, with its number as the writer's last.

    The transient segment disappears with its connection, so a failed attempt leaves nothing to clean up.
    """
    token = await tokens.token(segment, wire.CreateTransientSegment)
    create = wire.CreateTransientSegment(0, writer_id, segment, token)
    created = await connection.ask(create, wire.SegmentCreated, timeout_s=_TIMEOUT_S)
    transient, writer = created.segment, uuid.uuid4().bytes
    await set_up(connection, transient, writer, token)
    data = memoryview(batch.data())
    for number, offset in enumerate(range(0, len(data), MAX_EVENT_BYTES)):
        piece = wire.ConditionalBlockEnd(writer, number, offset, data[offset : offset + MAX_EVENT_BYTES], 0)
        await connection.ask(piece, wire.DataAppended, timeout_s=_TIMEOUT_S)
    update = AttributeUpdate(writer_id, _REPLACE_IF_GREATER, batch.number, NO_VERSION)
    token = await tokens.token(segment, wire.MergeSegments)
    merge = wire.MergeSegments(0, segment, transient, token, (update,))
    refused = wire.SegmentAttributeUpdated  # an earlier attempt has merged the event
    await connection.ask(merge, wire.SegmentsMerged, refused, timeout_s=_TIMEOUT_S)


log = logging.getLogger("nadi.client")

_FULL_PAUSE_S = 0.25


class Owner(Protocol):
    """An output's writer, as the output sees it. lock: held while events are added or removed."""

    lock: threading.Lock
    stores: SegmentStores
    outputs: dict[int, SegmentOutput]

    def add_due(self, output: SegmentOutput) -> None:
        """Note that the output has more to send; call with the lock held, from any thread."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def acknowledged(self, acknowledged: list[tuple[SegmentOutput, wire.DataAppended]]) -> None: ...

    def settled(self, batches: Sequence[EventBatch], error: NadiError | None = None) -> None: ...

    def on_sealed(self, sealed: SegmentOutput) -> None: ...


class SegmentOutput:
    """The unacknowledged batches of one segment, and the session that sends them."""

    def __init__(self, owner: Owner, segment: str, segment_id: int) -> None:
        self.segment = segment
        self.segment_id = segment_id
        self.current = EventBatch()
        self.waiting: deque[EventBatch] = deque()
        self.in_flight: deque[EventBatch] = deque()
        self._prepared: list[EventBatch] = []  # the last batches of `in_flight`, for `send_prepared`
        self.is_sealed = False
        self.notice_at = 1  # size of `current` at which `notice` must be called
        self.progress_at = time.monotonic()  # time of the last acknowledgement, or of the end of idleness
        self.trouble: NadiError | None = None  # why nothing can be sent now
        self.stored_to = 0  # end offset of the last stored event; if unknown, its negative number
        self._wakes = True  # whether a notice schedules `pump`
        self._owner = owner
        self._window = InFlightWindow(self.waiting, self.in_flight, owner.outputs)
        self._writer_id = uuid.uuid4().bytes
        self._number = 0
        self._session: OpenSession | None = None
        self._sampler: KeySampler | None = None  # samples routing keys for servers that accept key reports
        self._opening = False
        self._closed = False

    def pending(self) -> list[EventBatch]:
        """Return the batches that are not settled, oldest first; call with the lock held."""
        batches = [*self.in_flight, *self.waiting]
        return [*batches, self.current] if self.current.entries else batches

    @property
    def last(self) -> EventBatch | None:
        return self.pending()[-1] if self.has_pending else None

    @property
    def has_pending(self) -> bool:
        return bool(self.in_flight or self.waiting or self.current.entries)

    def take_all(self) -> list[EventBatch]:
        """Return `pending` and remove those batches; call with the lock held."""
        batches = self.pending()
        self.in_flight.clear()
        self.waiting.clear()
        if self.current.entries:
            self.current = EventBatch()
        return batches

    def notice(self) -> None:
        """Note that `current` has reached `notice_at`; call with the lock held, from any thread."""
        if traces.active is not None:
            self.current.trace = BlockTrace(traces.active, self.current.trace)
        if self.current.size >= WRITER_BLOCK_BYTES:
            self.cut()
        self.notice_at = WRITER_BLOCK_BYTES
        if self._wakes:
            self._wakes = False
            try:
                self._owner.add_due(self)
            except BaseException:
                self._wakes, self.notice_at = True, 1  # the next event or flush sends both, or raises again
                raise

    def cut(self) -> None:
        """Start a new batch for later events; call with the lock held."""
        if self.current.entries:
            self.waiting.append(self.current)
            self.current = EventBatch()

    def adopt(self, batch: EventBatch) -> None:
        """Take over a batch from a segment that this one succeeds; call with the lock held."""
        self.waiting.append(batch)
        self.notice()

    def prepare(self) -> None:
        """Select the batches that may be sent now; call with the lock held, on the loop's thread."""
        self._wakes, self.notice_at = False, WRITER_BLOCK_BYTES
        if self.is_sealed or self._closed:
            return
        if not self.has_pending:
            self._wakes, self.notice_at = True, 1
            return
        large = bool(self.in_flight and self.in_flight[0].is_large)
        if self._session is not None and not large and self._session.is_due:
            self._drop_session()  # the next session learns which events this one stored
        if self._session is None:
            return
        while self._window.may_send(self.current):
            self._prepared.append(self._next())
        if (notice_at := self._window.next_notice(self.current, self.pump)) is not None:
            self._wakes, self.notice_at = True, notice_at

    def send_prepared(self) -> None:
        session, batches, self._prepared = self._session, self._prepared, []
        if session is None:
            if self.has_pending:
                self._open_soon()
            return
        for batch in batches:
            self._send(session, batch)

    def pump(self) -> None:
        with self._owner.lock:
            self.prepare()
        self.send_prepared()

    def _next(self) -> EventBatch:
        if self.waiting:
            batch = self.waiting.popleft()
        else:
            batch, self.current = self.current, EventBatch()
        batch.number = self._number = self._number + len(batch)
        self._window.sent(batch)
        if traces.active is not None:
            batch.trace = BlockTrace(traces.active, batch.trace)
        self.in_flight.append(batch)
        return batch

    def _send(self, session: OpenSession, batch: EventBatch) -> None:
        if self._session is not session:
            return  # lost meanwhile: the next session sends it
        if batch.is_large:
            self._owner.spawn(self._send_large(session, batch))
            return
        session.append(self._writer_id, batch.data_to_send(), batch.size, len(batch), batch.number)
        if self._sampler is not None:
            report = self._sampler.passed(self._writer_id, len(batch), batch.keys_of)
            if report is not None:
                session.send(report)

    async def _send_large(self, session: OpenSession, batch: EventBatch) -> None:
        """Send a large event through a transient segment. The merge sets the writer's event number, by which the next
        session knows whether to acknowledge the event or to send it again."""
        try:
            tokens = self._owner.stores.tokens
            await merge_large_event(session.connection, tokens, self.segment, self._writer_id, batch)
        except StreamSealedError:
            if self._session is session:
                self._end()
            return
        except UnavailableError as error:
            self.trouble = error
            if isinstance(error, NotOwnerError | TokenExpiredError):
                self._owner.stores.forget(self.segment)
        except NotFoundError:
            pass  # either the segment is gone, or the transient one with its connection: the next session finds out
        except NadiError as error:
            if self._session is session:
                self.fail(error)
            return
        if self._session is session:
            full = isinstance(self.trouble, StorageFullError)
            self._drop_session()
            self._open_soon(_FULL_PAUSE_S if full else 0.0)

    # --- the session ------------------------------------------------------------------------

    def _open_soon(self, pause_s: float = 0.0) -> None:
        if not self._opening and not self._closed and not self.is_sealed:
            self._opening = True
            self._owner.spawn(self._open(pause_s))

    async def _open(self, pause_s: float) -> None:
        stores, backoff = self._owner.stores, Backoff()
        callbacks = AppendSession(self._on_reply, self._on_lost, self._owner, self)
        try:
            await asyncio.sleep(pause_s)
            if not self._closed and not self.is_sealed:
                self._resume(
                    await open_session(stores, self.segment, self._writer_id, callbacks, self._on_trouble, backoff)
                )
        except ClosedError:
            pass
        except SegmentNotFoundError:
            self._end()
        except NadiError as error:
            self.fail(error)
        finally:
            self._opening = False
        self.pump()

    def _on_trouble(self, error: UnavailableError) -> None:
        self.trouble = error
        if self._closed or self.is_sealed:
            raise ClosedError(f"the output of {self.segment} was closed")

    def _resume(self, session: OpenSession) -> None:
        """Send the batches that earlier sessions have not stored."""
        self._session = session
        self._sampler = self._owner.stores.key_reports.sampler(self.segment) if session.takes_reports else None
        if self._closed:
            self._drop_session()
            return
        if not isinstance(self.trouble, StorageFullError):
            self.trouble = None
        with self._owner.lock:
            stored = self.stored(session.last_event_number)
        self._owner.settled(stored)
        for batch in list(self.in_flight):
            self._window.sent(batch)
            self._send(session, batch)

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.drop()

    def _on_lost(self, error: NadiError) -> None:
        if self._session is not None:
            self._session = None
            if not isinstance(self.trouble, StorageFullError):  # a full server closes the connection of all its writers
                self.trouble = error
            self._owner.stores.forget(self.segment)
            if self.has_pending:
                self._open_soon()

    def _on_reply(self, reply: wire.Command) -> None:
        if self._session is None:
            return
        if isinstance(reply, wire.DataAppended):
            self._owner.acknowledged([(self, reply)])
            return
        error = error_of(reply)
        self._drop_session()
        if isinstance(error, StreamSealedError | SegmentNotFoundError):
            self._end()
        elif isinstance(error, StorageFullError):
            if not isinstance(self.trouble, StorageFullError):
                log.warning("writes to %s wait: the server's storage is full", self.segment)
            self.trouble = error
            self._open_soon(_FULL_PAUSE_S)
        elif isinstance(error, UnavailableError):
            self.trouble = error
            self._owner.stores.forget(self.segment)
            self._open_soon(0.005)
        else:
            self.fail(error or ProtocolError(f"unexpected reply to an append to {self.segment}: {str(reply)[:200]}"))

    def stored(self, number: int, end: int = -1) -> list[EventBatch]:
        """Remove and return the batches up to event `number`, for the owner to settle; call with the lock held. end:
        the segment offset after the last of them, -1 if unknown."""
        in_flight, done = self.in_flight, list[EventBatch]()
        while in_flight and in_flight[0].number <= number:
            done.append(in_flight.popleft())
        if done:
            last = done[-1]
            last.end = end
            self.stored_to = end if end >= 0 else -last.number
            self.progress_at = time.monotonic()
            self._window.acknowledged(last, self.progress_at)
            if traces.active is not None:
                stored(traces.active, self.segment, self._writer_id, done)
        if in_flight or self.waiting or self.current.entries:
            self._owner.add_due(self)
        else:
            self._wakes, self.notice_at = True, 1
        return done

    # --- ends -------------------------------------------------------------------------------

    def _end(self) -> None:
        self._drop_session()
        self.is_sealed = True
        self._owner.on_sealed(self)

    def fail(self, error: NadiError) -> None:
        """Fail all pending events; later events use a new session."""
        if isinstance(error, AccessDeniedError):
            self._owner.stores.forget(self.segment)  # another token may work
        self._drop_session()
        with self._owner.lock:
            batches = self.take_all()
            self._wakes, self.notice_at = True, 1
        self._owner.settled(batches, error)

    def close(self) -> None:
        self._closed = True
        self._drop_session()
