"""Send requests and open append sessions at the right segment store.

The controller locates a segment; the answer is cached until a connection fails or a store replies WrongHost.
Connections are shared by endpoint and purpose: requests, appends, and one group for each reader, so that closing a
reader ends its long polls.

An `OpenSession` belongs to one writer on one segment, from SetupAppend until its connection is lost or its token
expires. All appends use these sessions, so waiting, retries and token renewal are the same for events, byte streams and
conditional appends. A session can be reopened at any time: it reports the writer's last stored number, and the caller
resends later appends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cachetools import LRUCache
from msgspec.structs import replace

from nadi.backoff import Backoff
from nadi.client.control.calls import DEFAULT_TIMEOUT_S
from nadi.client.control.controller import ControllerClient
from nadi.client.control.time_limit import TimeLimit, is_cancelled
from nadi.client.segments.connection import TWO_WRITERS, AppendSession, Connections, Endpoint, SegmentStoreConnection
from nadi.client.segments.key_reports import KeyReports
from nadi.client.segments.tokens import DelegationTokens
from nadi.errors import (
    ClosedError,
    NadiError,
    NotOwnerError,
    PermissionDeniedError,
    ProtocolError,
    StorageFullError,
    TokenExpiredError,
    UnavailableError,
)
from nadi.naming import CLUSTER_SCOPE, container_key
from nadi.wire import commands as wire
from nadi.wire.append import APPEND_BYTES, append_frame
from nadi.wire.errors import is_whole
from nadi.wire.fields import Buffer

ACK_TIMEOUT_S = 60.0
_SETUP_TIMEOUT_S = 30.0


SegmentRequest = (
    wire.GetStreamSegmentInfo
    | wire.LocateOffset
    | wire.LocateMoment
    | wire.LocateChunks
    | wire.ListMoments
    | wire.ListEventSizes
    | wire.IndexTimes
    | wire.GetSegmentAttribute
    | wire.UpdateSegmentAttribute
    | wire.CreateTableSegment
    | wire.DeleteTableSegment
    | wire.GetTableSegmentInfo
    | wire.ReadTable
    | wire.ReadTableKeys
    | wire.ReadTableEntries
    | wire.UpdateTableEntries
    | wire.RemoveTableKeys
    | wire.Scrub
)
_Answer = TypeVar("_Answer", bound=wire.Command)
REQUESTS = "requests"
APPENDS = "appends"
_CONNECT_TIMEOUT_S = 5.0
_CACHED_ENDPOINTS = 10_000


class SegmentStores:
    """All segment stores of one cluster, with retries, tokens and shared connections."""

    def __init__(self, controller: ControllerClient) -> None:
        self.controller = controller
        self.tokens = DelegationTokens(controller)
        self.key_reports = KeyReports()
        tls, closed = controller.security.contexts(), "this client, or this reader, was closed"
        self._connections = Connections(_CONNECT_TIMEOUT_S, tls, closed)
        self._endpoints: LRUCache[str, Endpoint] = LRUCache(_CACHED_ENDPOINTS)
        self._locating: dict[str, asyncio.Task[tuple[str, int]]] = {}
        self.trouble: NadiError | None = None  # error of the last request, until a request succeeds

    def waits_for(self) -> NadiError | None:
        """Return the known reason why requests are not answered now, for timeout messages."""
        return self.trouble or self.controller.trouble

    @property
    def timeout_s(self) -> float:
        return self.controller.timeout_s or DEFAULT_TIMEOUT_S

    def ack_timeout_s(self, chosen: float | None) -> float:
        """Return the writer's own timeout of acknowledgements; without one the client's, or a minute."""
        return (self.controller.timeout_s or ACK_TIMEOUT_S) if chosen is None else chosen

    async def connection(self, segment: str, purpose: str = REQUESTS) -> SegmentStoreConnection:
        """Return an open connection to the segment's store; raise UnavailableError if it can't be reached."""
        if self._connections.is_closed:
            raise ClosedError("this client was closed")
        endpoint = self._endpoints.get(container_key(segment)) or await self._locate(segment)
        try:
            return await self._connections.at(endpoint, max(self.timeout_s, 1.0), purpose)
        except UnavailableError as error:
            self.trouble = error
            self.forget(segment)
            raise

    async def _locate(self, segment: str) -> Endpoint:
        """Return the segment's location from the controller, by one call for all callers that need it now."""
        key = container_key(segment)
        task = self._locating.get(key)
        if task is None:
            task = self._locating[key] = asyncio.create_task(self.controller.segment_endpoint(segment))
            task.add_done_callback(lambda done: self._located(key, done))
        try:
            return Endpoint(*await asyncio.shield(task))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise ClosedError("this client was closed") from None

    def _located(self, key: str, task: asyncio.Task[tuple[str, int]]) -> None:
        del self._locating[key]
        if not task.cancelled() and task.exception() is None:
            self._endpoints[key] = Endpoint(*task.result())

    def forget(self, segment: str) -> None:
        """Discard the cached location and token of `segment`."""
        self.tokens.forget(segment)
        self._endpoints.pop(container_key(segment), None)

    async def ask(
        self, request: SegmentRequest, answer: type[_Answer], timeout_s: float | None = None, *, repeat: bool = True
    ) -> _Answer:
        """Send a request to its segment's store, with id and token filled in; return the reply.

        timeout_s: None for the client's timeout. repeat: whether the request may be sent twice; then it is retried
        until the timeout. Raises ProtocolError if the reply is of another kind.
        """
        segment, kind = request.segment, type(request)
        if timeout_s is None:
            timeout_s = self.timeout_s
        backoff = Backoff()
        trouble: UnavailableError | None = None
        async with TimeLimit(
            timeout_s,
            lambda: f"the server{_about(segment)} did not answer within {timeout_s:g} s",
            lambda: trouble or self.waits_for(),
        ):
            while True:
                try:
                    connection = await self.connection(segment)
                    token = await self.tokens.token(segment, kind)
                except ClosedError:
                    raise
                except UnavailableError as error:
                    trouble = error
                    await backoff.pause()
                    continue
                try:
                    reply = await connection.ask(replace(request, token=token), answer, timeout_s=None)
                    self.trouble = None
                    if not is_whole(request, reply):
                        unexpected = f"unexpected reply to {kind.__name__} for {segment}"
                        raise ProtocolError(f"{unexpected}: {str(reply)[:200]}")
                    return reply
                except (NotOwnerError, TokenExpiredError) as error:  # the server did not execute the request
                    self.forget(segment)
                    trouble = error
                except PermissionDeniedError:
                    self.forget(segment)  # another token may work
                    raise
                except StorageFullError:
                    raise
                except UnavailableError as error:
                    self.forget(segment)
                    if self._connections.is_closed:
                        raise ClosedError("this client was closed") from error
                    if not repeat:
                        raise
                    self.trouble = trouble = error
                await backoff.pause()

    def release(self, purpose: str) -> None:
        self._connections.release(purpose)

    def close(self) -> None:
        self.tokens.close()
        for task in self._locating.values():
            task.cancel()
        self._connections.close()


@dataclass(frozen=True, slots=True, eq=False)
class OpenSession:
    """A session that is set up. last_event_number: the writer's last stored number at that time."""

    connection: SegmentStoreConnection
    session_id: int
    last_event_number: int
    _writer_id: bytes
    _renew_at: float  # on the monotonic clock

    @property
    def is_due(self) -> bool:
        """Whether the token expires soon; appends with an expired token make the server close the connection."""
        return time.monotonic() >= self._renew_at

    @property
    def takes_reports(self) -> bool:
        return self.connection.takes_reports

    def send(self, append: wire.Command) -> None:
        self.connection.send(append)

    def append(self, writer_id: bytes, parts: list[Buffer], size: int, events: int, last: int) -> None:
        """Send an append of `size` bytes and `events` events; `last` is the writer's number of the last one."""
        frame = append_frame(writer_id, parts, size, events, last, self.session_id)
        self.connection.send_parts(frame, size + APPEND_BYTES)

    def drop(self) -> None:
        """Ignore the session's later replies."""
        self.connection.remove_session(self.session_id, self._writer_id)


async def open_session(
    stores: SegmentStores,
    segment: str,
    writer_id: bytes,
    session: AppendSession,
    on_trouble: Callable[[UnavailableError], None],
    backoff: Backoff,
    purpose: str = APPENDS,
) -> OpenSession:
    """Set up a session, retrying without a limit; `on_trouble` gets each reason for a delay, and may raise to stop.

    session: callbacks for each reply to an append and for the loss of the connection. purpose: the group of connections
    to share. Raises ClosedError, and immediately any error that a retry would not fix, such as SegmentNotFoundError.
    """
    while True:
        try:
            connection = await stores.connection(segment, purpose)
            token = await stores.tokens.timed_token(segment, wire.SetupAppend)
            session_id = connection.add_session(session, writer_id)
            try:
                last_event_number = await set_up(connection, segment, writer_id, token.text)
                if not connection.has_session(session_id):
                    raise UnavailableError(f"the connection was lost, or another {TWO_WRITERS}")
            except BaseException:
                connection.remove_session(session_id, writer_id)
                raise
            return OpenSession(connection, session_id, last_event_number, writer_id, token.renew_at)
        except ClosedError:
            raise
        except UnavailableError as error:
            on_trouble(error)
            stores.forget(segment)
        await backoff.pause()


async def set_up(connection: SegmentStoreConnection, segment: str, writer_id: bytes, token: str) -> int:
    """Let the writer append to the segment over this connection; return its last stored number."""
    request = wire.SetupAppend(0, writer_id, segment, token)
    return (await connection.ask(request, wire.AppendSetup, timeout_s=_SETUP_TIMEOUT_S)).last_event_number


def _about(segment: str) -> str:
    """Name the segment in a message, unless it stands for the server itself."""
    return "" if segment.startswith(f"{CLUSTER_SCOPE}/") else f" of segment {segment}"
