"""Appends to one segment, each at the offset where its writer believes it to end, or under a number of the caller's.

The former are stored only if the segment has exactly the expected length, so two writers can't overlap. Several may be
in flight: `submit` sends one at once, to where the one before it will end. If the earlier one is refused, somebody
else's bytes may by chance fill its place exactly, and the later one would find the length it expects. So each is also
conditional on the one before it having been stored; after a refusal, all that were sent later are refused too.

A lost connection, or a session whose token ends soon, is replaced: the next session reports, by the writer's event
number, which of those in flight are stored, and the others are resent, in order and with their numbers. If the number
is neither theirs nor the last that was known, another process has written under the writer's id: then none is resent.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nadi.backoff import Backoff
from nadi.client.segments.connection import AppendSession
from nadi.client.segments.info import explained
from nadi.client.segments.stores import APPENDS, OpenSession, SegmentStores, open_session
from nadi.errors import ClosedError, NadiError, ProtocolError, SegmentNotFoundError, StorageFullError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.errors import error_of
from nadi.wire.fields import NO_VERSION, Buffer


@dataclass(frozen=True, slots=True, eq=False)
class _ConditionalAppend:
    """One append in flight. stored: gets the writer's last number in the segment."""

    number: int
    send: Callable[[OpenSession], None]
    as_event: bool
    stored: asyncio.Future[int]


class SegmentAppender:
    """One writer on one segment. The caller limits how much is in flight. writer_id: the caller's, by which other
    processes may have written before; then the numbers are the caller's too. purpose: names the connections that it
    shares."""

    def __init__(
        self, stores: SegmentStores, segment: str, writer_id: bytes | None = None, purpose: str = APPENDS
    ) -> None:
        self.segment = segment
        self.trouble: NadiError | None = None  # what the appends in flight wait for
        self._stores, self._purpose = stores, purpose
        self._has_own_id = writer_id is None
        self._writer_id = writer_id or uuid.uuid4().bytes
        self._number = 0
        self._last = NO_VERSION  # the writer's number in the segment, as far as is known
        self._under_way: deque[_ConditionalAppend] = deque()
        self._session: OpenSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._backoff = Backoff()

    def submit(self, data: Buffer, expected_offset: int) -> asyncio.Future[int]:
        """Store `data` at `expected_offset`, where the one submitted before will end; done once it is stored.

        ConditionFailedError if the segment has another length, or if an earlier append failed so; StreamSealedError;
        StreamRemadeError. Any other failure fails everything in flight. If the server is unavailable it retries
        forever, so set a timeout from outside. `data` must not change until then.
        """
        after = self._under_way[-1].number if self._under_way else NO_VERSION
        self._number = number = self._number + 1

        def send(session: OpenSession) -> None:
            block = wire.ConditionalBlockEnd(self._writer_id, number, expected_offset, data, session.session_id, after)
            session.send(block)

        return self._submit(number, send)

    async def append(self, data: Buffer, expected_offset: int) -> None:
        """Store `data` as one event, with its header before it, at `expected_offset`; the only one in flight.

        Raises what `submit` does, and StorageFullError at once, since that may last. If the wait is cancelled, the
        append may or may not be stored.
        """
        assert not self._under_way, "an event is appended alone: its command can't name the one before it"
        self._number = number = self._number + 1

        def send(session: OpenSession) -> None:
            session.send(wire.ConditionalAppend(self._writer_id, number, expected_offset, 0, data, session.session_id))

        await self._stored_alone(self._submit(number, send, as_event=True))

    async def append_block(self, data: bytes, events: int, number: int) -> int:
        """Store framed events under a number above all that the writer's id stored here; the only append in flight.

        Return the number; or the writer's last one in the segment, if that isn't the one that was known: another
        process has written under its id, and this append isn't stored. If the wait is cancelled, it may be.
        """
        return await self._stored_alone(
            self._submit(number, lambda session: session.append(self._writer_id, [data], len(data), events, number))
        )

    async def last_number(self) -> int:
        """Return the writer's last number in the segment, or NO_VERSION; wait until the store answers."""
        self._drop_session()
        return await self._stored_alone(self._submit(NO_VERSION, lambda _: None))  # any session knows that number

    async def _stored_alone(self, stored: asyncio.Future[int]) -> int:
        try:
            return await stored
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Forget what is in flight, whether or not it is stored; its futures are cancelled."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._drop_session()
        self._last = NO_VERSION  # whoever waited may not know what was stored
        while self._under_way:
            self._under_way.popleft().stored.cancel()

    def _submit(
        self, number: int, send: Callable[[OpenSession], None], *, as_event: bool = False
    ) -> asyncio.Future[int]:
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        append = _ConditionalAppend(number, send, as_event, stored)
        self._under_way.append(append)
        if self._session is not None and self._session.is_due:
            self._drop_session()  # the next one learns what this one has stored
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
        """Set up a session, however long it takes, and send what is in flight."""
        try:
            if self.trouble is not None:
                await self._backoff.pause()
            told = AppendSession(self._on_reply, self._on_lost)
            async with explained(self._stores, self.segment):
                session = await open_session(
                    self._stores, self.segment, self._writer_id, told, self._waits, self._backoff, self._purpose
                )
            self._session, last = session, session.last_event_number
            is_known = self._has_own_id or last in (self._last, *(append.number for append in self._under_way))
            while self._under_way and (self._under_way[0].number <= last or not is_known):
                self._stored(last)  # before its reply was lost; or another process has stored something else
            self._last = last
            for append in self._under_way:
                append.send(session)
        except NadiError as error:
            self._fail(error)
        except Exception:  # nobody may wait forever for a task that is no more
            self._fail(ClosedError(f"appending to {self.segment} has broken down"))
            raise
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    def _waits(self, error: UnavailableError) -> None:
        if self._gives_up(error):
            raise error
        self.trouble = error

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.drop()
        self._session = None

    def _on_reply(self, reply: wire.Command) -> None:
        if self._session is None or not self._under_way:
            return
        error = error_of(reply)
        if isinstance(reply, wire.DataAppended) and reply.event_number == self._under_way[0].number:
            self._stored(reply.event_number)
        elif isinstance(reply, wire.ConditionalCheckFailed) and reply.event_number == self._under_way[0].number:
            assert error is not None
            _end(self._under_way.popleft(), error)  # each of the later ones gets an answer of its own
        else:
            self._interrupt(error or ProtocolError(f"an append to {self.segment} was answered with {reply!r}"))

    def _on_lost(self, error: NadiError) -> None:
        if self._session is not None:
            self._interrupt(error)

    def _interrupt(self, error: NadiError) -> None:
        """The session is no longer usable: another resumes, or everything in flight fails."""
        self._drop_session()
        if isinstance(error, SegmentNotFoundError):
            self._open_soon()  # which finds out what became of it
        elif not isinstance(error, UnavailableError) or isinstance(error, ClosedError) or self._gives_up(error):
            self._fail(error)
        elif self._under_way:
            self.trouble = error
            self._stores.forget(self.segment)
            self._open_soon()

    def _gives_up(self, error: NadiError) -> bool:
        """Whether an event is in flight that the server has no room for: another try would wait for room."""
        return isinstance(error, StorageFullError) and bool(self._under_way) and self._under_way[0].as_event

    # --- ends -------------------------------------------------------------------------------

    def _stored(self, number: int) -> None:
        self.trouble = None
        self._backoff = Backoff()
        self._last = number
        stored = self._under_way.popleft().stored
        if not stored.done():  # else its wait was cancelled
            stored.set_result(number)

    def _fail(self, error: NadiError) -> None:
        while self._under_way:
            _end(self._under_way.popleft(), error)


def _end(append: _ConditionalAppend, error: NadiError) -> None:
    if not append.stored.done():  # else its wait was cancelled
        append.stored.set_exception(error)
