"""Appends to one segment, each at the offset where its writer believes the segment to end.

An append is stored only if the segment has exactly the expected length, so two writers can't overlap. Several
may be in flight: `submit` sends one at once, to where the one before it will end. If the earlier one is refused,
somebody else's bytes may by chance fill its place exactly, and the later one would find the length it expects. So each
is also conditional on the one before it having been stored; after a refusal, all that were sent later are refused too.

A lost connection, or a session whose token ends soon, is replaced: the next session reports, by the writer's event
number, which of those in flight are stored, and the others are resent, in order and with their numbers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass

from nadi.backoff import Backoff
from nadi.client.segments.connection import AppendSession
from nadi.client.segments.info import explained
from nadi.client.segments.stores import SegmentStores, Session, open_session
from nadi.errors import ClosedError, NadiError, ProtocolError, SegmentNotFoundError, StorageFullError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.errors import error_of
from nadi.wire.fields import NO_VERSION, Buffer


@dataclass(frozen=True, slots=True, eq=False)
class _Append:
    """One append in flight; `after`: the number of the one in flight before it, NO_VERSION if there was none."""

    number: int
    after: int
    offset: int
    data: Buffer
    as_event: bool
    stored: asyncio.Future[None]


class ConditionalAppender:
    """One writer on one segment. The caller limits how much is in flight."""

    def __init__(self, stores: SegmentStores, segment: str) -> None:
        self.segment = segment
        self.trouble: NadiError | None = None  # what the appends in flight wait for
        self._stores = stores
        self._writer_id = uuid.uuid4().bytes
        self._number = 0
        self._under_way: deque[_Append] = deque()
        self._session: Session | None = None
        self._opening: asyncio.Task[None] | None = None
        self._backoff = Backoff()

    def submit(self, data: Buffer, expected_offset: int) -> asyncio.Future[None]:
        """Store `data` at `expected_offset`, where the one submitted before will end; done once it is stored.

        ConditionFailedError if the segment has another length, or if an earlier append failed so; StreamSealedError;
        StreamRemadeError. Any other failure fails everything in flight. If the server is unavailable it retries
        forever, so set a timeout from outside. `data` must not change until then.
        """
        return self._submit(data, expected_offset, as_event=False)

    async def append(self, data: Buffer, expected_offset: int) -> None:
        """Store `data` as one event, with its header before it, at `expected_offset`; the only one in flight.

        Raises what `submit` does, and StorageFullError at once, since that may last. If the wait is cancelled, the
        append may or may not be stored.
        """
        assert not self._under_way, "an event is appended alone: its command can't name the one before it"
        try:
            await self._submit(data, expected_offset, as_event=True)
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Forget what is in flight, whether or not it is stored; its futures are cancelled."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._drop_session()
        while self._under_way:
            self._under_way.popleft().stored.cancel()

    def _submit(self, data: Buffer, expected_offset: int, *, as_event: bool) -> asyncio.Future[None]:
        self._number += 1
        after = self._under_way[-1].number if self._under_way else NO_VERSION
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        append = _Append(self._number, after, expected_offset, data, as_event, stored)
        self._under_way.append(append)
        if self._session is not None and self._session.is_due:
            self._drop_session()  # the next one learns what this one has stored
        if self._session is not None:
            self._send(self._session, append)
        else:
            self._open_soon()
        return stored

    def _send(self, session: Session, append: _Append) -> None:
        writer, number, offset, session_id = self._writer_id, append.number, append.offset, session.session_id
        if append.as_event:
            session.send(wire.ConditionalAppend(writer, number, offset, 0, append.data, session_id))
        else:
            session.send(wire.ConditionalBlockEnd(writer, number, offset, append.data, session_id, append.after))

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
                    self._stores, self.segment, self._writer_id, told, self._waits, self._backoff
                )
            self._session = session
            while self._under_way and self._under_way[0].number <= session.last_event_number:
                self._stored()  # before its reply was lost
            for append in self._under_way:
                self._send(session, append)
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
            self._stored()
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

    def _stored(self) -> None:
        self.trouble = None
        self._backoff = Backoff()
        _end(self._under_way.popleft(), None)

    def _fail(self, error: NadiError) -> None:
        while self._under_way:
            _end(self._under_way.popleft(), error)


def _end(append: _Append, error: NadiError | None) -> None:
    if append.stored.done():  # its wait was cancelled
        return
    if error is None:
        append.stored.set_result(None)
    else:
        append.stored.set_exception(error)
