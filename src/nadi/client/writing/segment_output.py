"""The way of events into one segment: the batch that grows, those that wait, those in flight.

Any thread may add events to `current` while it holds the writer's lock; everything else happens on
the loop's thread. One append is in flight, or two when there is much to send; meanwhile the next
batch grows, so appends are small when the segment is quiet and large when it is busy.

Event numbers count the events of this output for ever. A new session learns the last number that
is stored, forgets the batches up to it and sends the rest again in order: a batch is one append
and therefore stored as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from nadi.client.control.patience import Backoff
from nadi.client.segments.connection import AppendSession, SegmentStoreConnection, error_of
from nadi.client.segments.stores import APPENDS, SegmentStores
from nadi.client.writing.batch import Batch
from nadi.client.writing.large_event import merge_large_event
from nadi.errors import (
    AccessDeniedError,
    ClosedError,
    NadiError,
    NotFoundError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    UnavailableError,
)
from nadi.limits import WRITER_BLOCK_BYTES
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer

log = logging.getLogger("nadi.client")

SECOND_APPEND_BYTES = WRITER_BLOCK_BYTES // 4  # a second append goes out if it is at least this large
_SETUP_TIMEOUT_S = 30.0
_FULL_PAUSE_S = 0.25


class OutputOwner(Protocol):
    """The writer, as its outputs see it."""

    lock: threading.Lock
    stores: SegmentStores

    def schedule(self, call: Callable[[], None]) -> None:
        """Call it on the loop's thread, soon; from any thread."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it until the writer is closed; on the loop's thread."""

    def settle(self, batch: Batch, error: NadiError | None) -> None:
        """A batch is stored or has failed."""

    def on_sealed(self, output: SegmentOutput, error: NadiError) -> None:
        """The segment takes no more events: those left are in `output.take_all()`."""


class SegmentOutput:
    """One segment of one writer."""

    def __init__(self, owner: OutputOwner, segment: str, segment_id: int) -> None:
        self.segment = segment
        self.segment_id = segment_id
        self.current = Batch()
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.is_sealed = False
        self.notice_at = 1  # size of `current` at which `notice` must be called
        self.progress_at = time.monotonic()  # of the last acknowledgement, or of the end of idleness
        self.trouble: NadiError | None = None  # why nothing goes out now
        self._wakes = True  # whether a notice schedules `pump`
        self._owner = owner
        self._writer_id = uuid.uuid4().bytes
        self._number = 0
        self._renew_at = math.inf  # when the session needs another token, on the monotonic clock
        self._connection: SegmentStoreConnection | None = None  # with a session that is set up
        self._session: AppendSession | None = None
        self._opening = False
        self._closed = False

    def pending(self) -> list[Batch]:
        """Batches with events that are not settled, oldest first; call with the lock held."""
        batches = [*self.in_flight, *self.waiting]
        return [*batches, self.current] if self.current.entries else batches

    def take_all(self) -> list[Batch]:
        """`pending`, which this output then forgets; call with the lock held."""
        batches = self.pending()
        self.in_flight.clear()
        self.waiting.clear()
        if self.current.entries:
            self.current = Batch()
        return batches

    def notice(self) -> None:
        """`current` has reached `notice_at`; call with the lock held, from any thread."""
        if self.current.size >= WRITER_BLOCK_BYTES:
            self.cut()
        self.notice_at = WRITER_BLOCK_BYTES
        if self._wakes:
            self._wakes = False
            self._owner.schedule(self.pump)

    def cut(self) -> None:
        """Later events go into a new batch; call with the lock held."""
        if self.current.entries:
            self.waiting.append(self.current)
            self.current = Batch()

    def adopt(self, batch: Batch) -> None:
        """Take over a batch of a segment that this one follows; call with the lock held."""
        self.waiting.append(batch)
        if self._wakes:
            self._wakes = False
            self.notice_at = WRITER_BLOCK_BYTES
            self._owner.schedule(self.pump)

    def pump(self) -> None:
        """Send what may be sent."""
        sends: list[Batch] = []
        with self._owner.lock:
            self._wakes, self.notice_at = False, WRITER_BLOCK_BYTES
            if self.is_sealed or self._closed:
                return
            pending = bool(self.in_flight or self.waiting or self.current.entries)
            if not pending:
                self._wakes, self.notice_at = True, 1
                return
            large = bool(self.in_flight and self.in_flight[0].is_large)
            if self._connection is not None and not large and time.monotonic() >= self._renew_at:
                self._drop_session()  # the next one learns what this one has stored
            if self._connection is not None:
                while self._may_send():
                    sends.append(self._next())
                if len(self.in_flight) == 1:
                    self._wakes, self.notice_at = True, SECOND_APPEND_BYTES
        if self._connection is None:
            self._open_soon()
            return
        connection = self._connection
        for batch in sends:
            self._send(connection, batch)

    def _may_send(self) -> bool:
        if not self.in_flight:
            return bool(self.waiting or self.current.entries)
        if len(self.in_flight) > 1 or self.in_flight[0].is_large:
            return False
        if self.waiting:
            return not self.waiting[0].is_large
        return self.current.size >= SECOND_APPEND_BYTES

    def _next(self) -> Batch:
        if self.waiting:
            batch = self.waiting.popleft()
        else:
            batch, self.current = self.current, Batch()
        self._number += len(batch)
        batch.number = self._number
        self.in_flight.append(batch)
        return batch

    def _send(self, connection: SegmentStoreConnection, batch: Batch) -> None:
        if self._connection is not connection or self._session is None:
            return  # lost meanwhile: the next session sends it
        if batch.is_large:
            self._owner.spawn(self._send_large(connection, batch))
            return
        data = cast("Buffer", batch.data_to_send())  # parts pass for one buffer where they are only sent
        count, session_id = len(batch), self._session.session_id
        connection.send(wire.AppendBlockEnd(self._writer_id, batch.size, data, count, batch.number, session_id))

    async def _send_large(self, connection: SegmentStoreConnection, batch: Batch) -> None:
        """Through a transient segment. The merge sets the writer's event number, so that the next
        session knows whether it was done; that session acknowledges the event, or sends it again."""
        try:
            tokens = self._owner.stores.tokens
            await merge_large_event(connection, tokens, self.segment, self._writer_id, batch)
        except StreamSealedError as error:
            if self._connection is connection:
                self._end(error)
            return
        except UnavailableError as error:
            self.trouble = error
            if isinstance(error, TokenExpiredError):
                self._owner.stores.forget(self.segment)
        except NotFoundError:
            pass  # the segment, or the transient one with its connection: the next session knows
        except NadiError as error:
            if self._connection is connection:
                self.fail(error)
            return
        if self._connection is connection:
            full = isinstance(self.trouble, StorageFullError)
            self._drop_session()
            self._open_soon(_FULL_PAUSE_S if full else 0.0)

    # --- the session ------------------------------------------------------------------------

    def _open_soon(self, pause_s: float = 0.0) -> None:
        if not self._opening and not self._closed and not self.is_sealed:
            self._opening = True
            self._owner.spawn(self._open(pause_s))

    async def _open(self, pause_s: float) -> None:
        backoff = Backoff()
        try:
            await asyncio.sleep(pause_s)
            while not self._closed and not self.is_sealed:
                try:
                    await self._set_up()
                    break
                except ClosedError:
                    break
                except UnavailableError as error:
                    self.trouble = error
                    self._owner.stores.forget(self.segment)
                except SegmentNotFoundError as error:
                    self._end(error)
                    break
                except NadiError as error:
                    self.fail(error)
                    break
                await backoff.pause()
        finally:
            self._opening = False
        self.pump()

    async def _set_up(self) -> None:
        connection = await self._owner.stores.connection(self.segment, APPENDS)
        held = await self._owner.stores.tokens.held(self.segment, wire.SetupAppend)
        session = connection.add_session(self._on_reply, self._on_lost)
        try:
            setup = await connection.call(
                wire.SetupAppend, _SETUP_TIMEOUT_S, writer_id=self._writer_id, segment=self.segment, token=held.text
            )
            if not isinstance(setup, wire.AppendSetup):
                raise UnavailableError(f"SetupAppend was answered with {type(setup).__name__}")
            if self._closed or not connection.is_open:
                raise UnavailableError("the connection was lost")
        except BaseException:
            connection.remove_session(session)
            raise
        self._connection, self._session, self._renew_at = connection, session, held.renew_at
        if not isinstance(self.trouble, StorageFullError):
            self.trouble = None
        self._acknowledge(setup.last_event_number)
        for batch in list(self.in_flight):
            self._send(connection, batch)

    def _drop_session(self) -> None:
        if self._connection is not None and self._session is not None:
            self._connection.remove_session(self._session)
        self._connection = self._session = None

    def _on_lost(self, error: NadiError) -> None:
        if self._connection is not None:
            self._connection = self._session = None
            if not isinstance(self.trouble, StorageFullError):  # with that the server ends it, for all writers on it
                self.trouble = error
            self._owner.stores.forget(self.segment)
            if self.in_flight or self.waiting or self.current.entries:
                self._open_soon()

    def _on_reply(self, reply: wire.Command) -> None:
        if self._session is None:
            return
        if isinstance(reply, wire.DataAppended):
            self.trouble = None
            self._acknowledge(reply.event_number)
            self.pump()
            return
        error = error_of(reply)
        self._drop_session()
        if isinstance(reply, wire.SegmentIsSealed | wire.NoSuchSegment):
            assert error is not None
            self._end(error)
        elif isinstance(reply, wire.ErrorMessage) and reply.error_code == wire.STORAGE_FULL:
            if not isinstance(self.trouble, StorageFullError):
                log.warning("writing to %s waits: the server has no room left", self.segment)
            self.trouble = error
            self._open_soon(_FULL_PAUSE_S)
        elif error is None or isinstance(error, UnavailableError):
            self.trouble = error
            self._owner.stores.forget(self.segment)
            self._open_soon(0.005)
        else:
            self.fail(error)

    def _acknowledge(self, number: int) -> None:
        done: list[Batch] = []
        with self._owner.lock:
            while self.in_flight and self.in_flight[0].number <= number:
                done.append(self.in_flight.popleft())
            if done:
                self.progress_at = time.monotonic()
        for batch in done:
            self._owner.settle(batch, None)

    # --- ends -------------------------------------------------------------------------------

    def _end(self, error: NadiError) -> None:
        self._drop_session()
        self.is_sealed = True
        self._owner.on_sealed(self, error)

    def fail(self, error: NadiError) -> None:
        """All pending events fail; later ones are tried anew, in a new session."""
        if isinstance(error, AccessDeniedError):
            self._owner.stores.forget(self.segment)  # another token may do
        self._drop_session()
        with self._owner.lock:
            batches = self.take_all()
            self._wakes, self.notice_at = True, 1
        for batch in batches:
            self._owner.settle(batch, error)

    def close(self) -> None:
        self._closed = True
        self._drop_session()
