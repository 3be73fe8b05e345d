"""Append sessions: one writer's on one segment, from SetupAppend until its connection is lost or its token ends.

Everything that appends gets its sessions here, so waiting for a session, retries and the replacement of its token
are the same for events, byte streams and conditional appends. A session can be reopened at any time: it reports
what the earlier ones have stored, by the writer's number, and whatever was sent after that is resent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nadi.backoff import Backoff
from nadi.client.segments.connection import TWO_WRITERS, AppendSession, SegmentStoreConnection
from nadi.client.segments.stores import APPENDS, SegmentStores
from nadi.errors import ClosedError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.append import APPEND_BYTES, append_frame
from nadi.wire.fields import Buffer

_SETUP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A session that is set up. last_event_number: the writer's last number that was stored by then."""

    connection: SegmentStoreConnection
    session_id: int
    last_event_number: int
    _writer_id: bytes
    _renew_at: float  # on the monotonic clock

    @property
    def is_due(self) -> bool:
        """Whether its token ends soon: the next append needs another session, or the server ends the connection."""
        return time.monotonic() >= self._renew_at

    @property
    def takes_reports(self) -> bool:
        """Whether the server takes reports of keys."""
        return self.connection.takes_reports

    def send(self, append: wire.Command) -> None:
        self.connection.send(append)

    def append(self, writer_id: bytes, parts: list[Buffer], size: int, events: int, last: int) -> None:
        """Send an append of so many bytes and events, the last of which has that number of the writer."""
        frame = append_frame(writer_id, parts, size, events, last, self.session_id)
        self.connection.send_parts(frame, size + APPEND_BYTES)

    def drop(self) -> None:
        """Ignore replies that still arrive for it."""
        self.connection.remove_session(self.session_id, self._writer_id)


async def open_session(
    stores: SegmentStores,
    segment: str,
    writer_id: bytes,
    session: AppendSession,
    on_trouble: Callable[[UnavailableError], None],
    backoff: Backoff,
    purpose: str = APPENDS,
) -> Session:
    """Set one up, however long that takes; `on_trouble` gets the reason for a delay, and may raise to give up.

    session: is told of each reply to an append, and once when the connection is lost. purpose: names the connections
    that it shares.
    Raises ClosedError, and at once any error that a retry would not fix, such as SegmentNotFoundError.
    """
    while True:
        try:
            connection = await stores.connection(segment, purpose)
            token = await stores.tokens.held(segment, wire.SetupAppend)
            session_id = connection.add_session(session, writer_id)
            try:
                last_event_number = await set_up(connection, segment, writer_id, token.text)
                if not connection.has_session(session_id):
                    raise UnavailableError(f"the connection was lost, or another {TWO_WRITERS}")
            except BaseException:
                connection.remove_session(session_id, writer_id)
                raise
            return Session(connection, session_id, last_event_number, writer_id, token.renew_at)
        except ClosedError:
            raise
        except UnavailableError as error:
            on_trouble(error)
            stores.forget(segment)
        await backoff.pause()


async def set_up(connection: SegmentStoreConnection, segment: str, writer_id: bytes, token: str) -> int:
    """Let the writer append to the segment over this connection; return its last number that is stored."""
    asked = wire.SetupAppend(0, writer_id, segment, token)
    return (await connection.ask(asked, wire.AppendSetup, timeout_s=_SETUP_TIMEOUT_S)).last_event_number
