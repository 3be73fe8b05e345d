"""Appends to one segment, one at a time, each at the offset where its writer believes the segment to end.

An append is stored only if the segment has exactly the expected length, so two writers can't overlap. A
lost connection is replaced and the append repeated: its event number tells the server, and through
AppendSetup this client, whether it was stored before. There is never a second append under way: if the
first failed, it could be stored although what should lie before it is not.
"""

from __future__ import annotations

import asyncio
import uuid

from nadi.client.connection import AppendSession, SegmentStoreConnection, error_of
from nadi.client.stores import APPENDS, Backoff, SegmentStores
from nadi.errors import ClosedError, NadiError, ProtocolError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer

_SETUP_TIMEOUT_S = 10.0


class ConditionalAppender:
    """One writer on one segment; `append` by one task at a time."""

    def __init__(self, stores: SegmentStores, segment: str) -> None:
        self.segment = segment
        self.trouble: NadiError | None = None  # what the append under way waits for
        self._stores = stores
        self._writer_id = uuid.uuid4().bytes
        self._number = 0
        self._connection: SegmentStoreConnection | None = None
        self._session: AppendSession | None = None
        self._reply: asyncio.Future[wire.Command] | None = None

    async def append(self, data: Buffer, expected_offset: int, *, as_event: bool = False) -> None:
        """Store `data` at `expected_offset`, with an event's header before it if `as_event`.

        ConditionFailedError if the segment has another length; StreamSealedError; SegmentNotFoundError. What
        is unavailable is tried again for ever, so give it a timeout from outside. Whether an append that
        was ended so is stored is not known.
        """
        self._number += 1
        number = self._number
        backoff = Backoff()
        try:
            while True:
                try:
                    connection, session, last = await self._opened()
                    if last >= number:
                        return  # stored before its reply was lost
                    self._reply = asyncio.get_running_loop().create_future()
                    connection.send(self._command(data, number, expected_offset, session.session_id, as_event))
                    reply = await self._reply
                except ClosedError:
                    raise
                except UnavailableError as error:
                    self.trouble = error
                    self._drop()
                    self._stores.forget(self.segment)
                    await backoff.pause()
                    continue
                self.trouble = None
                if not isinstance(reply, wire.DataAppended) or reply.event_number != number:
                    raise ProtocolError(f"an append to {self.segment} was answered with {reply!r}")
                return
        except (ClosedError, asyncio.CancelledError, ProtocolError):
            self._drop()
            raise

    def close(self) -> None:
        self._drop()

    def _command(self, data: Buffer, number: int, offset: int, session_id: int, as_event: bool) -> wire.Command:
        if as_event:
            return wire.ConditionalAppend(self._writer_id, number, offset, 0, data, session_id)
        return wire.ConditionalBlockEnd(self._writer_id, number, offset, data, session_id)

    async def _opened(self) -> tuple[SegmentStoreConnection, AppendSession, int]:
        """The session, and the last number known to be stored if it had to be set up."""
        if self._connection is not None and self._session is not None and self._connection.is_open:
            return self._connection, self._session, -1
        connection = await self._stores.connection(self.segment, APPENDS)
        token = await self._stores.tokens.token(self.segment, wire.SetupAppend)
        session = connection.add_session(self._on_reply, self._on_lost)
        try:
            setup = await connection.call(
                wire.SetupAppend, _SETUP_TIMEOUT_S, writer_id=self._writer_id, segment=self.segment, token=token
            )
        except BaseException:
            connection.remove_session(session)
            raise
        if not isinstance(setup, wire.AppendSetup):
            connection.remove_session(session)
            raise ProtocolError(f"SetupAppend for {self.segment} was answered with {type(setup).__name__}")
        self._connection, self._session = connection, session
        return connection, session, setup.last_event_number

    def _drop(self) -> None:
        if self._connection is not None and self._session is not None:
            self._connection.remove_session(self._session)
        self._connection = self._session = self._reply = None

    def _on_reply(self, reply: wire.Command) -> None:
        if self._reply is not None and not self._reply.done():
            error = error_of(reply)
            if error is None:
                self._reply.set_result(reply)
            else:
                self._reply.set_exception(error)

    def _on_lost(self, error: NadiError) -> None:
        self._connection = self._session = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
