"""Appends to one segment, each at the offset where its writer believes the segment to end.

An append is stored only if the segment has exactly the expected length, so two writers can't overlap. Several
may be under way: `submit` sends one at once, to where the one before it will end. If that one is refused,
somebody else's bytes may by chance fill its place exactly, and the later one would meet its length; so each is also
conditional on the one before it having been stored, and after one was refused all that were sent behind it are.

A lost connection is replaced: AppendSetup tells by the writer's event number which of those under way are
stored, and the others are sent again, in order and with their numbers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass

from nadi.client.control.patience import Backoff
from nadi.client.segments.connection import AppendSession, SegmentStoreConnection, error_of
from nadi.client.segments.stores import APPENDS, SegmentStores
from nadi.errors import ClosedError, NadiError, ProtocolError, StorageFullError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, Buffer

_SETUP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class _Append:
    """One append under way; `after`: the number of the one under way before it, NO_VERSION if there was none."""

    number: int
    after: int
    offset: int
    data: Buffer
    as_event: bool
    stored: asyncio.Future[None]


class ConditionalAppender:
    """One writer on one segment. How much is under way is for the caller to limit."""

    def __init__(self, stores: SegmentStores, segment: str) -> None:
        self.segment = segment
        self.trouble: NadiError | None = None  # what the appends under way wait for
        self._stores = stores
        self._writer_id = uuid.uuid4().bytes
        self._number = 0
        self._under_way: deque[_Append] = deque()
        self._connection: SegmentStoreConnection | None = None  # with a session that is set up
        self._session: AppendSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._backoff = Backoff()

    def submit(self, data: Buffer, expected_offset: int) -> asyncio.Future[None]:
        """Store `data` at `expected_offset`, where the one submitted before will end; done once it is stored.

        ConditionFailedError if the segment has another length, or if one before it failed so; StreamSealedError;
        SegmentNotFoundError. Any other failure is that of all under way. What is unavailable is tried
        again for ever, so give it a timeout from outside. `data` must stay as it is until then.
        """
        return self._submit(data, expected_offset, as_event=False)

    async def append(self, data: Buffer, expected_offset: int) -> None:
        """Store `data` as one event, with its header before it, at `expected_offset`; alone under way.

        Raises what `submit` does, and StorageFullError at once, for that may last. Whether an append whose wait was
        cancelled is stored is not known.
        """
        assert not self._under_way, "an event is appended alone: its command can't name the one before it"
        try:
            await self._submit(data, expected_offset, as_event=True)
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Forget what is under way, whether or not it is stored; its futures are cancelled."""
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
        if self._session is not None:
            self._send(append)
        else:
            self._open_soon()
        return stored

    def _send(self, append: _Append) -> None:
        assert self._connection is not None
        assert self._session is not None
        session_id = self._session.session_id
        if append.as_event:
            self._connection.send(
                wire.ConditionalAppend(self._writer_id, append.number, append.offset, 0, append.data, session_id)
            )
        else:
            self._connection.send(
                wire.ConditionalBlockEnd(
                    self._writer_id, append.number, append.offset, append.data, session_id, append.after
                )
            )

    # --- the session ------------------------------------------------------------------------

    def _open_soon(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        """Set up a session, however long it takes, and send what is under way."""
        try:
            while True:
                if self.trouble is not None:
                    await self._backoff.pause()
                try:
                    await self._set_up()
                    return
                except ClosedError:
                    raise
                except UnavailableError as error:
                    if self._gives_up(error):
                        raise
                    self.trouble = error
                    self._stores.forget(self.segment)
        except NadiError as error:
            self._fail(error)
        except Exception:  # nobody may wait for ever for a task that is no more
            self._fail(ClosedError(f"appending to {self.segment} has broken down"))
            raise
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    async def _set_up(self) -> None:
        connection = await self._stores.connection(self.segment, APPENDS)
        token = await self._stores.tokens.token(self.segment, wire.SetupAppend)
        session = connection.add_session(self._on_reply, self._on_lost)
        try:
            setup = await connection.call(
                wire.SetupAppend, _SETUP_TIMEOUT_S, writer_id=self._writer_id, segment=self.segment, token=token
            )
            if not isinstance(setup, wire.AppendSetup):
                raise ProtocolError(f"SetupAppend for {self.segment} was answered with {type(setup).__name__}")
            if not connection.is_open:
                raise UnavailableError("the connection was lost")
        except BaseException:
            connection.remove_session(session)
            raise
        self._connection, self._session = connection, session
        while self._under_way and self._under_way[0].number <= setup.last_event_number:
            self._stored()  # before its reply was lost
        for append in self._under_way:
            self._send(append)

    def _drop_session(self) -> None:
        if self._connection is not None and self._session is not None:
            self._connection.remove_session(self._session)
        self._connection = self._session = None

    def _on_reply(self, reply: wire.Command) -> None:
        if self._session is None or not self._under_way:
            return
        error = error_of(reply)
        if isinstance(reply, wire.DataAppended) and reply.event_number == self._under_way[0].number:
            self._stored()
        elif isinstance(reply, wire.ConditionalCheckFailed) and reply.event_number == self._under_way[0].number:
            assert error is not None
            _end(self._under_way.popleft(), error)  # each of those behind it has an answer of its own
        else:
            self._interrupt(error or ProtocolError(f"an append to {self.segment} was answered with {reply!r}"))

    def _on_lost(self, error: NadiError) -> None:
        if self._session is not None:
            self._interrupt(error)

    def _interrupt(self, error: NadiError) -> None:
        """The session is of no more use: another goes on, or all under way fails."""
        self._drop_session()
        if not isinstance(error, UnavailableError) or isinstance(error, ClosedError) or self._gives_up(error):
            self._fail(error)
        elif self._under_way:
            self.trouble = error
            self._stores.forget(self.segment)
            self._open_soon()

    def _gives_up(self, error: NadiError) -> bool:
        """Whether an event is under way that the server has no room for: another try would wait for room."""
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
