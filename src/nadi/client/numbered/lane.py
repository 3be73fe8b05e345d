"""One writer on one segment: an append at a time, stored once however often its connection is lost.

Unlike the outputs of an EventSender, the writer's id and its numbers are the caller's, so that another process can go
on. A session says which number was stored last; so after a lost connection it is known whether the append arrived.
"""

from __future__ import annotations

import asyncio

from nadi.backoff import Backoff
from nadi.client.segments.connection import AppendSession
from nadi.client.segments.session import Session, open_session
from nadi.client.segments.stores import APPENDS, SegmentStores
from nadi.errors import (
    AccessDeniedError,
    ClosedError,
    NadiError,
    ProtocolError,
    SegmentNotFoundError,
    StreamSealedError,
    UnavailableError,
)
from nadi.wire import commands as wire
from nadi.wire.errors import error_of
from nadi.wire.fields import NO_VERSION, Buffer


class Lane:
    """Open it, append one after the other, and drop it. purpose: names the connections that it shares."""

    def __init__(self, stores: SegmentStores, segment: str, writer_id: bytes, purpose: str = APPENDS) -> None:
        self.segment = segment
        self.trouble: NadiError | None = None  # what keeps it waiting
        self._stores, self._writer_id, self._purpose = stores, writer_id, purpose
        self._session: Session | None = None
        self._last = NO_VERSION  # the writer's number, as far as is known
        self._reply: asyncio.Future[wire.Command] | None = None

    async def stored(self) -> int:
        """The writer's last number in the segment, NO_VERSION if there is none. It waits as long as that takes.

        StreamSealedError if the segment takes no more appends, or is gone.
        """
        return (await self._open()).last_event_number

    async def append(self, parts: list[Buffer], size: int, events: int, number: int) -> int:
        """Store an append of so many bytes and events, under a number above all that this writer has stored here.

        Return the number; or the writer's last one in the segment, if that isn't the one that was known: somebody else
        has written under its id, a process that was killed since, and this append isn't stored. StreamSealedError if it
        isn't because the segment takes no more.
        """
        backoff = Backoff()
        while True:
            session = self._session
            if session is None or session.is_due:
                self.drop()
                known = self._last
                session = await self._open()
                if session.last_event_number != known:
                    return session.last_event_number
            self._reply, is_known = asyncio.get_running_loop().create_future(), False
            try:
                session.append(self._writer_id, parts, size, events, number)
                reply = await self._reply
                if isinstance(reply, wire.DataAppended):
                    self.trouble, self._last, is_known = None, number, True
                    return number
                raise error_of(reply) or ProtocolError(f"an append to {self.segment} was answered with {reply!r:.200}")
            except SegmentNotFoundError:
                raise StreamSealedError(self.segment) from None
            except ClosedError:
                raise
            except UnavailableError as error:
                self.trouble = error
                self._stores.forget(self.segment)
            except AccessDeniedError:
                self._stores.forget(self.segment)  # another token may work
                raise
            finally:
                if not is_known:  # cancelled, too, though the answer has come: another session tells what is stored
                    self.drop()
                self._reply = None
            await backoff.pause()

    def drop(self) -> None:
        """Let go of the session: what is under way may or may not be stored."""
        session, self._session = self._session, None
        if session is not None:
            session.drop()

    async def _open(self) -> Session:
        told = AppendSession(self._on_reply, self._on_lost, lambda: self._reply is None)
        try:
            self._session = await open_session(
                self._stores, self.segment, self._writer_id, told, self._waits, Backoff(), self._purpose
            )
        except SegmentNotFoundError:
            raise StreamSealedError(self.segment) from None
        self._last = self._session.last_event_number
        return self._session

    def _waits(self, error: UnavailableError) -> None:
        self.trouble = error

    def _on_reply(self, reply: wire.Command) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def _on_lost(self, error: NadiError) -> None:
        self._session = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
