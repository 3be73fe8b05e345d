"""The way to NATS: a client of `nats-py` that never reconnects by itself, for what is sent then would be stored late.
`JetStreamConnection` opens another when it has ended, and limits each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

import msgspec
from nats import errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from nadi.errors import StorageFullError, UnavailableError
from nadi.object_log.failures import RefusedError
from nadi.object_log.jetstream.location import JetStreamLocation

log = logging.getLogger(__name__)

T = TypeVar("T")
TIMEOUT_S = 10.0  # of a request, its turn and its connecting included
_AT_ONCE = 64  # requests
_MOST_BYTES = 30 << 20  # of answers to reads that are under way, as far as can be guessed
_FIRST_BYTES = 6 << 20  # a full frame in base64
_CONNECT_S = 2  # to each server
_PING_S, _PINGS_LOST = 3, 2  # a server that answers none of these is gone
_CLOSE_S = 1


class JetStreamConnection:
    """largest_bytes: of a message that is to be stored, headers included; servers that take less are refused. All
    requests raise UnavailableError if there is no answer in time; they may have been carried out, or be carried out
    later. what: as in "NATS can't store log/0/1"."""

    def __init__(self, where: JetStreamLocation, largest_bytes: int) -> None:
        self._where, self._largest_bytes = where, largest_bytes
        self._client: _NatsConnection | None = None
        self._connecting, self._turns = asyncio.Lock(), asyncio.Semaphore(_AT_ONCE)
        self._reads, self._read_ended = 0, asyncio.Condition()
        self._expected_bytes = _FIRST_BYTES  # of an answer to a read

    async def ask(self, what: str, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Msg:
        async with self._asking(what) as client:
            return await client.ask(subject, payload, headers)

    async def read(self, what: str, subject: str, request: bytes) -> Msg:
        """As `ask`, where the answer may be large. A NATS server drops a client to which it would have to send more
        than its `max_pending`, 64 MiB by default, which may count twice what is under way; and how large a message is
        shows only when it comes. So it is guessed from the last ones, and after a connection has ended all the same,
        one is read at a time."""
        async with self._asking(what, self._room()) as client:
            try:
                answer = await client.ask(subject, request)
            finally:
                if not client.is_connected:
                    self._expected_bytes = _MOST_BYTES
            self._expected_bytes = max(len(answer.data), self._expected_bytes // 2, 1)
            return answer

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        async with self._read_ended:
            await self._read_ended.wait_for(lambda: self._reads < max(1, _MOST_BYTES // self._expected_bytes))
            self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1
            async with self._read_ended:
                self._read_ended.notify_all()

    async def pull(self, what: str, subject: str, payload: bytes, most: int) -> list[Msg]:
        """As `ask`, for messages of a stream: `most` of them, or up to one that has a status instead."""
        async with self._asking(what) as client:
            return await client.pull(subject, payload, most)

    @asynccontextmanager
    async def _asking(
        self, what: str, room: AbstractAsyncContextManager[None] | None = None
    ) -> AsyncIterator[_NatsConnection]:
        client = None
        try:
            async with asyncio.timeout(TIMEOUT_S), self._turns, room or nullcontext():
                client = await self._connected()
                yield client
        except TimeoutError:
            if client is not None and client.forbidden:
                raise RefusedError(f"NATS can't {what}: it forbids that ({client.forbidden})") from None
            raise UnavailableError(f"NATS can't {what}: no answer in {TIMEOUT_S:.0f} s; it is tried again") from None
        except UnavailableError as error:
            raise type(error)(f"NATS can't {what}: {error}") from None
        except errors.MaxPayloadError:
            raise RefusedError(f"NATS can't {what}: its servers' max_payload is too small now: raise it") from None
        except errors.NoRespondersError:
            raise UnavailableError(f"NATS can't {what}: nobody answers: its stream has no leader now") from None
        except errors.Error as error:
            why = (client.last if client is not None else "") or _words(error)
            raise UnavailableError(f"NATS can't {what}: the connection to NATS broke ({why})") from None

    async def call(self, what: str, subject: str, request: object, answer: type[T]) -> T | Problem:
        found = await self.ask(what, f"$JS.API.{subject}", msgspec.json.encode(request))
        return decoded(what, found.data, answer)

    async def _connected(self) -> _NatsConnection:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self.close()
                self._client = _NatsConnection(self._where)
                await self._client.open()
                most_bytes = self._client.max_payload
                if most_bytes < self._largest_bytes:
                    await self.close()
                    raise RefusedError(
                        f"its server takes messages of up to {most_bytes:,} bytes, and those of a log can have "
                        f"{self._largest_bytes:,}: write `max_payload: 32MB` into the configuration of all its "
                        "servers, and reload it"
                    )
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError):  # its library waits forever for some that failed at TLS
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()


def status_of(message: Msg) -> str:
    """As in HTTP, if it is only that; else ""."""
    return str((message.headers or {}).get("Status", ""))


class Failed(msgspec.Struct):
    error: Problem | None = None


def decoded(what: str, data: bytes, answer: type[T]) -> T | Problem:
    """JetStream's answer, or its error. UnavailableError: it is neither."""
    try:
        failed = msgspec.json.decode(data, type=Failed)
        return failed.error if failed.error is not None else msgspec.json.decode(data, type=answer)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"NATS can't {what}: what it answers isn't JetStream's ({error})") from None


def good(what: str, found: T | Problem) -> T:
    if isinstance(found, Problem):
        raise told(what, found)
    return found


# of nats-server's `server/errors.json`
EXISTS = 10071  # the subject has a message already
NOT_THERE = 10037  # no message has that subject
NO_STREAM = 10059
NOT_CLUSTERED = 10074  # a single server has no replicas
TAKEN = 10058  # a stream has that name, and is another
CONSUMER_GONE = 10014
_UNDECIDED = 10164  # as 10071, but the message that is in the way isn't stored yet and may never be
_FULL = {10023, 10028, 10047, 10077, 10110, 10111}
_OFF = {10035, 10039, 10076}
_NO_PEERS = {10005, 10004}
_TOO_LARGE = 10054
_NO_STREAM_HERE = "the log's stream isn't there any more; its cluster can't run without what it held: restore it"


class Problem(msgspec.Struct):
    err_code: int = 0
    code: int = 0
    description: str = ""


def told(what: str, problem: Problem) -> UnavailableError:
    """The error to raise. what: as in "NATS can't store log/0/1"."""
    code = problem.err_code
    answer = f" ({code}: {problem.description})"
    if code == _UNDECIDED:
        return UnavailableError(f"NATS can't {what}: somebody is storing it right now{answer}; it is tried again")
    if code in _FULL:
        return StorageFullError(f"NATS can't {what}: its storage or a limit is full; give JetStream more{answer}")
    if code == NO_STREAM:
        return RefusedError(f"NATS can't {what}: {_NO_STREAM_HERE}{answer}")
    if code in _OFF:
        return RefusedError(f"NATS can't {what}: turn JetStream on, for this account, too{answer}")
    if code in _NO_PEERS:
        return RefusedError(
            f"NATS can't {what}: there are too few servers with JetStream and room for its replicas; start more, or "
            f"choose a number of replicas{answer}"
        )
    if code == _TOO_LARGE:
        return RefusedError(f"NATS can't {what}: the stream has a maximum message size; take it away{answer}")
    if problem.code == 403:
        return RefusedError(f"NATS can't {what}: it forbids that{answer}")
    return UnavailableError(f"NATS can't {what}: it is tried again{answer}")


class _NatsConnection(NatsClient):
    """The library's, which goes on waiting for answers when its connection has ended, sends a password to a server
    without TLS, and may hang as it closes."""

    def __init__(self, where: JetStreamLocation) -> None:
        super().__init__()
        self._where = where
        self._pulls: set[asyncio.Future[None]] = set()
        self.last = ""  # what the client or the server last said went wrong
        self.forbidden = ""  # what the server last refused for lack of permission

    async def open(self) -> None:
        """UnavailableError: no server can be reached; RefusedError: one doesn't let this client in."""
        where, problem = self._where, None
        try:
            await self.connect(
                list(where.servers),
                name="nadi",
                error_cb=self._note,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                max_outstanding_pings=_PINGS_LOST,
                pending_size=0,  # nothing is kept for later, and none of its waits swallows a cancellation
                user=where.user or None,
                password=where.password or None,
                token=where.token or None,
                user_credentials=str(where.credentials) if where.credentials is not None else None,
                tls=where.ssl_context() if where.needs_tls else None,
            )
        except (errors.Error, OSError, TimeoutError) as error:
            problem = self._told(error)
        if problem is not None:
            raise problem  # here, so that it has no context

    async def ask(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Msg:
        """The caller limits how long: with a limit of its own, the library may swallow a cancellation."""
        return await self.request(subject, payload, None, headers=headers)  # type: ignore[arg-type]

    async def pull(self, subject: str, payload: bytes, most: int) -> list[Msg]:
        inbox, messages, done = self.new_inbox(), list[Msg](), asyncio.get_running_loop().create_future()

        async def came(message: Msg) -> None:
            messages.append(message)
            if not done.done() and (len(messages) == most or status_of(message)):
                done.set_result(None)

        self._pulls.add(done)
        try:
            subscription = await self.subscribe(inbox, cb=came, pending_bytes_limit=0)
            try:
                await self.publish(subject, payload, inbox)
                await done
            finally:
                if self.is_connected:
                    await subscription.unsubscribe()
        finally:
            self._pulls.remove(done)
        return messages

    def _told(self, error: Exception) -> UnavailableError:
        if isinstance(error, errors.NoServersError):
            return UnavailableError(f"no NATS server can be reached: {self.last or 'is one running?'}")
        text = _words(error)
        if isinstance(error, errors.AuthorizationError) or "authorization" in text.lower():
            return RefusedError(
                f"NATS doesn't let this server in: {text}. Set NATS_CREDS, NATS_TOKEN, or NATS_USER and NATS_PASSWORD"
            )
        if isinstance(error, ssl.SSLError) or "secure connection" in text:
            return RefusedError(
                f"NATS and this server can't agree on TLS: {text}. See the ca and the tls:// of the URL"
            )
        return UnavailableError(f"NATS can't be reached: {text}")

    async def _note(self, error: Exception) -> None:
        self.last = _words(error)
        if "permissions violation" in self.last.lower():
            self.forbidden = self.last
        log.debug("NATS: %s", self.last)

    def _connect_command(self) -> bytes:
        """Says nothing to a server that doesn't speak TLS."""
        if self._where.needs_tls and not self._server_info.get("tls_required"):
            raise errors.SecureConnRequiredError
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Ends what waits for an answer, and sends nothing more: where the other side takes nothing in, it would
        wait."""
        for answer in [*self._resp_map.values(), *self._pulls]:
            if not answer.done():
                answer.set_exception(errors.ConnectionClosedError())
                answer.exception()  # nobody else looks at it if sending failed
        if self._pending_data_size:
            self._pending, self._pending_data_size = [], 0
        writer = getattr(self._transport, "_io_writer", None)  # None before it connects, or if it couldn't
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).removeprefix("nats: ").strip("'")
    return text or type(error).__name__
