"""Append to one segment at an expected offset, or under event numbers that the caller chooses.

An append at an offset is stored only if the segment has exactly that length, so two writers can't overlap. Several may
be in flight: `submit` sends an append immediately, to the offset where the previous one will end. If the previous one
is rejected, another writer's bytes may happen to have the same length, and the later append would find the length it
expects. So each append also depends on the previous one being stored; after a rejection, all later ones are rejected.

A lost connection, or a session whose token expires soon, is replaced. The next session reports by event number which of
the appends in flight are stored; the others are resent, in order and with their numbers. If the number is neither one
of these nor the last known one, another process has written under the writer's id: then none is resent.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nadi.backoff import Backoff
from nadi.client.segments.connection import AppendSession
from nadi.client.segments.info import resolving_missing
from nadi.client.segments.stores import APPENDS, OpenSession, SegmentStores, open_session
from nadi.errors import ClosedError, NadiError, ProtocolError, SegmentNotFoundError, StorageFullError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.errors import error_of
from nadi.wire.fields import NO_VERSION, Buffer


@dataclass(frozen=True, slots=True, eq=False)
class _PendingAppend:
    """An append in flight. stored: resolves to the writer's last number in the segment."""

    number: int
    send: Callable[[OpenSession], None]
    as_event: bool
    stored: asyncio.Future[int]


class SegmentAppender:
    """One writer on one segment; the caller limits the bytes in flight.

    writer_id: an id that other processes may have used before; then the caller also chooses the numbers. purpose: the
    group of connections to share.
    """

    def __init__(
        self, stores: SegmentStores, segment: str, writer_id: bytes | None = None, purpose: str = APPENDS
    ) -> None:
        self.segment = segment
        self.trouble: NadiError | None = None  # why the appends in flight wait
        self.end = -1  # of the segment behind the last acknowledged append; unknown if its reply was lost
        self._stores, self._purpose = stores, purpose
        self._has_private_id = writer_id is None
        self._writer_id = writer_id or uuid.uuid4().bytes
        self._number = 0
        self._last = NO_VERSION  # the writer's last known number in the segment
        self._in_flight: deque[_PendingAppend] = deque()
        self._session: OpenSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._backoff = Backoff()

    def submit(self, data: Buffer, expected_offset: int) -> asyncio.Future[int]:
        """Store `data` at `expected_offset`, the end of the append submitted before; the future resolves once stored.

        Raises ConditionFailedError if the segment has another length or an earlier append failed with that error,
        StreamSealedError, StreamRecreatedError. Any other failure fails all appends in flight. Retries without limit
        while the server is unavailable, so callers set a timeout. `data` must not change until the future is done.
        """
        after = self._in_flight[-1].number if self._in_flight else NO_VERSION
        self._number = number = self._number + 1

        def send(session: OpenSession) -> None:
            block = wire.ConditionalBlockEnd(self._writer_id, number, expected_offset, data, session.session_id, after)
            session.send(block)

        return self._submit(number, send)

    async def append(self, data: Buffer, expected_offset: int) -> None:
        """Store `data` with its header as one event at `expected_offset`; no other append may be in flight.

        Raises the errors of `submit`, and StorageFullError immediately, because that may last. If the wait is
        cancelled, the append may or may not be stored.
        """
        assert not self._in_flight, "other appends are in flight: this command can't depend on them"
        self._number = number = self._number + 1

        def send(session: OpenSession) -> None:
            session.send(wire.ConditionalAppend(self._writer_id, number, expected_offset, 0, data, session.session_id))

        await self._stored_alone(self._submit(number, send, as_event=True))

    async def append_block(self, data: bytes, events: int, number: int) -> int:
        """Store framed events under a number above all stored numbers of the writer's id; call it alone in flight.

        Return the number. If it returns another number, another process has written under the writer's id: that is its
        last number, and this append isn't stored. If the wait is cancelled, the append may or may not be stored.
        """
        return await self._stored_alone(
            self._submit(number, lambda session: session.append(self._writer_id, [data], len(data), events, number))
        )

    async def last_number(self) -> int:
        """Return the writer's last number in the segment, or NO_VERSION; wait until the store answers."""
        self._drop_session()
        return await self._stored_alone(self._submit(NO_VERSION, lambda _: None))  # every session has stored NO_VERSION

    async def _stored_alone(self, stored: asyncio.Future[int]) -> int:
        try:
            return await stored
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Cancel the futures of all appends in flight, whether or not these are stored."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._drop_session()
        self._last = NO_VERSION  # the cancelled caller may not know the stored number
        while self._in_flight:
            self._in_flight.popleft().stored.cancel()

    def _submit(
        self, number: int, send: Callable[[OpenSession], None], *, as_event: bool = False
    ) -> asyncio.Future[int]:
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        append = _PendingAppend(number, send, as_event, stored)
        self._in_flight.append(append)
        if self._session is not None and self._session.is_due:
            self._drop_session()  # the next session learns which appends this one stored
        if self._session is not None:
            append.send(self._session)
        else:
            self._open_soon()
        return stored

    # --- the session ------------------------------------------------------------------------

    def _open_soon(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        """Set up a session, retrying without a limit, and resend the appends in flight."""
        try:
            if self.trouble is not None:
                await self._backoff.pause()
            callbacks = AppendSession(self._on_reply, self._on_lost)
            async with resolving_missing(self._stores, self.segment):
                session = await open_session(
                    self._stores,
                    self.segment,
                    self._writer_id,
                    callbacks,
                    self._on_trouble,
                    self._backoff,
                    self._purpose,
                )
            self._session, last = session, session.last_event_number
            is_known = self._has_private_id or last in (self._last, *(append.number for append in self._in_flight))
            while self._in_flight and (self._in_flight[0].number <= last or not is_known):
                self._stored(last)  # its reply was lost, or another process has stored something else
            self._last = last
            for append in self._in_flight:
                append.send(session)
        except NadiError as error:
            self._fail(error)
        except Exception:  # callers must not wait forever for this task
            self._fail(ClosedError(f"appends to {self.segment} failed with an unexpected error: see the traceback"))
            raise
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    def _on_trouble(self, error: UnavailableError) -> None:
        if self._must_fail(error):
            raise error
        self.trouble = error

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.drop()
        self._session = None

    def _on_reply(self, reply: wire.Command) -> None:
        if self._session is None or not self._in_flight:
            return
        error = error_of(reply)
        if isinstance(reply, wire.DataAppended) and reply.event_number == self._in_flight[0].number:
            self._stored(reply.event_number, reply.current_segment_write_offset)
        elif isinstance(reply, wire.ConditionalCheckFailed) and reply.event_number == self._in_flight[0].number:
            assert error is not None
            _end(self._in_flight.popleft(), error)  # each later append gets its own reply
        else:
            self._interrupt(error or ProtocolError(f"unexpected reply to an append to {self.segment}: {reply!r}"))

    def _on_lost(self, error: NadiError) -> None:
        if self._session is not None:
            self._interrupt(error)

    def _interrupt(self, error: NadiError) -> None:
        """Drop the session; another one resumes, or all appends in flight fail."""
        self._drop_session()
        if isinstance(error, SegmentNotFoundError):
            self._open_soon()  # it determines why the segment is missing
        elif not isinstance(error, UnavailableError) or isinstance(error, ClosedError) or self._must_fail(error):
            self._fail(error)
        elif self._in_flight:
            self.trouble = error
            self._stores.forget(self.segment)
            self._open_soon()

    def _must_fail(self, error: NadiError) -> bool:
        """Return whether `append` must fail because the server's storage is full, instead of waiting."""
        return isinstance(error, StorageFullError) and bool(self._in_flight) and self._in_flight[0].as_event

    # --- ends -------------------------------------------------------------------------------

    def _stored(self, number: int, end: int = -1) -> None:
        self.trouble, self.end = None, end
        self._backoff = Backoff()
        self._last = number
        stored = self._in_flight.popleft().stored
        if not stored.done():  # otherwise its wait was cancelled
            stored.set_result(number)

    def _fail(self, error: NadiError) -> None:
        while self._in_flight:
            _end(self._in_flight.popleft(), error)


def _end(append: _PendingAppend, error: NadiError) -> None:
    if not append.stored.done():  # otherwise its wait was cancelled
        append.stored.set_exception(error)
