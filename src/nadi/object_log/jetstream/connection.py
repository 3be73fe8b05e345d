"""Connection to NATS. The `nats-py` client never reconnects by itself, because it would then send old messages late.
`JetStreamConnection` opens a new one when it has ended, and limits each request.
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
TIMEOUT_S = 10.0  # per request, including queueing and connecting
_AT_ONCE = 64  # requests
_MOST_BYTES = 30 << 20  # estimated answers to reads under way
_FIRST_BYTES = 6 << 20  # a full frame in base64
_CONNECT_S = 2  # to each server
_PING_S, _PINGS_LOST = 3, 2  # a server that answers none of these is dead
_CLOSE_S = 1


class JetStreamConnection:
    """Connection that reopens itself.

    largest_bytes: size of the largest message, headers included; servers with a lower limit are rejected. All requests
    raise UnavailableError on timeout; they may still be carried out, now or later. what: as in "NATS
    can't store log/0/1".
    """

    def __init__(self, where: JetStreamLocation, largest_bytes: int) -> None:
        self._where, self._largest_bytes = where, largest_bytes
        self._client: _NatsConnection | None = None
        self._connecting, self._turns = asyncio.Lock(), asyncio.Semaphore(_AT_ONCE)
        self._reads, self._read_ended = 0, asyncio.Condition()
        self._expected_bytes = _FIRST_BYTES  # of an answer to a read

    async def ask(self, what: str, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Msg:
        async with self._request(what) as client:
            return await client.ask(subject, payload, headers)

    async def read(self, what: str, subject: str, request: bytes) -> Msg:
        """Send a request as `ask`, where the answer may be large.

        A NATS server drops a client with more than `max_pending` outstanding bytes (64 MiB by default, and it may count
        them twice), and a message's size is only known when it arrives. So the size is estimated from recent answers.
        If a connection ends all the same, messages are read one at a time.
        """
        async with self._request(what, self._read_capacity()) as client:
            try:
                answer = await client.ask(subject, request)
            finally:
                if not client.is_connected:
                    self._expected_bytes = _MOST_BYTES
            self._expected_bytes = max(len(answer.data), self._expected_bytes // 2, 1)
            return answer

    @asynccontextmanager
    async def _read_capacity(self) -> AsyncIterator[None]:
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
        """Send a request as `ask`, for up to `most` messages of a stream; a message with a status ends the answer."""
        async with self._request(what) as client:
            return await client.pull(subject, payload, most)

    @asynccontextmanager
    async def _request(
        self, what: str, capacity: AbstractAsyncContextManager[None] | None = None
    ) -> AsyncIterator[_NatsConnection]:
        client = None
        try:
            async with asyncio.timeout(TIMEOUT_S), self._turns, capacity or nullcontext():
                client = await self._connected()
                yield client
        except TimeoutError:
            if client is not None and client.forbidden:
                raise RefusedError(f"NATS can't {what}: permission denied ({client.forbidden})") from None
            raise UnavailableError(f"NATS can't {what}: no answer in {TIMEOUT_S:.0f} s; will be retried") from None
        except UnavailableError as error:
            raise type(error)(f"NATS can't {what}: {error}") from None
        except errors.MaxPayloadError:
            raise RefusedError(f"NATS can't {what}: max_payload of its servers is too small; raise it") from None
        except errors.NoRespondersError:
            raise UnavailableError(f"NATS can't {what}: its stream lacks a leader; will be retried") from None
        except errors.Error as error:
            reason = (client.last if client is not None else "") or _one_line(error)
            raise UnavailableError(f"NATS can't {what}: the connection broke ({reason}); will be retried") from None

    async def call(self, what: str, subject: str, request: object, answer: type[T]) -> T | Problem:
        response = await self.ask(what, f"$JS.API.{subject}", msgspec.json.encode(request))
        return decoded(what, response.data, answer)

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
                        f"its server limits messages to {most_bytes:,} bytes, but a log needs up to "
                        f"{self._largest_bytes:,}: set `max_payload: 32MB` in the configuration of all servers, and "
                        "reload it"
                    )
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError):  # the library may wait forever after a TLS failure
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()


def status_of(message: Msg) -> str:
    """Return the HTTP-like status of a message that is only a status; otherwise ""."""
    return str((message.headers or {}).get("Status", ""))


class Failed(msgspec.Struct):
    error: Problem | None = None


def decoded(what: str, data: bytes, answer: type[T]) -> T | Problem:
    """Decode JetStream's answer or error. UnavailableError: it is neither."""
    try:
        failed = msgspec.json.decode(data, type=Failed)
        return failed.error if failed.error is not None else msgspec.json.decode(data, type=answer)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"NATS can't {what}: the answer isn't JetStream's ({error}); will be retried") from None


def require(what: str, response: T | Problem) -> T:
    if isinstance(response, Problem):
        raise error_for(what, response)
    return response


# from nats-server's `server/errors.json`
EXISTS = 10071  # the subject has a message already
NOT_THERE = 10037  # no message has that subject
NO_STREAM = 10059
NOT_CLUSTERED = 10074  # a single server can't have replicas
TAKEN = 10058  # a different stream has that name
CONSUMER_GONE = 10014
_UNDECIDED = 10164  # as 10071, but the conflicting message isn't stored yet and may never be
_FULL = {10023, 10028, 10047, 10077, 10110, 10111}
_OFF = {10035, 10039, 10076}
_NO_PEERS = {10005, 10004}
_TOO_LARGE = 10054
_NO_STREAM_HERE = "the log's stream no longer exists; restore it, because its cluster can't run without the data"


class Problem(msgspec.Struct):
    err_code: int = 0
    code: int = 0
    description: str = ""


def error_for(what: str, problem: Problem) -> UnavailableError:
    """Return the error to raise. what: as in "NATS can't store log/0/1"."""
    code = problem.err_code
    answer = f" ({code}: {problem.description})"
    if code == _UNDECIDED:
        return UnavailableError(f"NATS can't {what}: concurrent write of the same object{answer}; will be retried")
    if code in _FULL:
        return StorageFullError(f"NATS can't {what}: a storage limit is reached; give JetStream more{answer}")
    if code == NO_STREAM:
        return RefusedError(f"NATS can't {what}: {_NO_STREAM_HERE}{answer}")
    if code in _OFF:
        return RefusedError(f"NATS can't {what}: enable JetStream, also for this account{answer}")
    if code in _NO_PEERS:
        return RefusedError(
            f"NATS can't {what}: too few servers have JetStream and space for the replicas; start more, or "
            f"set a lower number of replicas{answer}"
        )
    if code == _TOO_LARGE:
        return RefusedError(f"NATS can't {what}: the stream limits the message size; remove the limit{answer}")
    if problem.code == 403:
        return RefusedError(f"NATS can't {what}: permission denied{answer}")
    return UnavailableError(f"NATS can't {what}; will be retried{answer}")


class _NatsConnection(NatsClient):
    """Client with fixes for the library, which keeps waiting for answers after its connection has ended, sends
    passwords to servers without TLS, and may hang as it closes."""

    def __init__(self, where: JetStreamLocation) -> None:
        super().__init__()
        self._where = where
        self._pulls: set[asyncio.Future[None]] = set()
        self.last = ""  # last error of the client or the server
        self.forbidden = ""  # last permission error

    async def open(self) -> None:
        """Connect. UnavailableError: no server is reachable. RefusedError: a server rejects this client."""
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
                pending_size=0,  # buffers nothing for later, and no wait swallows a cancellation
                user=where.user or None,
                password=where.password or None,
                token=where.token or None,
                user_credentials=str(where.credentials) if where.credentials is not None else None,
                tls=where.ssl_context() if where.needs_tls else None,
            )
        except (errors.Error, OSError, TimeoutError) as error:
            problem = self._connect_error(error)
        if problem is not None:
            raise problem  # here, without context

    async def ask(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Msg:
        """Send a request. The caller sets the timeout: with its own, the library may swallow a cancellation."""
        return await self.request(subject, payload, None, headers=headers)  # type: ignore[arg-type]

    async def pull(self, subject: str, payload: bytes, most: int) -> list[Msg]:
        inbox, messages, done = self.new_inbox(), list[Msg](), asyncio.get_running_loop().create_future()

        async def receive(message: Msg) -> None:
            messages.append(message)
            if not done.done() and (len(messages) == most or status_of(message)):
                done.set_result(None)

        self._pulls.add(done)
        try:
            subscription = await self.subscribe(inbox, cb=receive, pending_bytes_limit=0)
            try:
                await self.publish(subject, payload, inbox)
                await done
            finally:
                if self.is_connected:
                    await subscription.unsubscribe()
        finally:
            self._pulls.remove(done)
        return messages

    def _connect_error(self, error: Exception) -> UnavailableError:
        if isinstance(error, errors.NoServersError):
            return UnavailableError(f"no NATS server is reachable: {self.last or 'check that one is running'}")
        text = _one_line(error)
        if isinstance(error, errors.AuthorizationError) or "authorization" in text.lower():
            return RefusedError(
                f"NATS rejects this server's login: {text}. Set NATS_CREDS, NATS_TOKEN, or NATS_USER and NATS_PASSWORD"
            )
        if isinstance(error, ssl.SSLError) or "secure connection" in text:
            return RefusedError(
                f"the TLS handshake with NATS failed: {text}. Check the option ca, and tls:// in the URL"
            )
        return UnavailableError(f"NATS is unreachable: {text}")

    async def _note(self, error: Exception) -> None:
        self.last = _one_line(error)
        if "permissions violation" in self.last.lower():
            self.forbidden = self.last
        log.debug("NATS: %s", self.last)

    def _connect_command(self) -> bytes:
        """Refuse to send credentials to a server that doesn't speak TLS."""
        if self._where.needs_tls and not self._server_info.get("tls_required"):
            raise errors.SecureConnRequiredError
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Fail pending requests, and discard unsent data: closing would hang if the peer doesn't read."""
        for answer in [*self._resp_map.values(), *self._pulls]:
            if not answer.done():
                answer.set_exception(errors.ConnectionClosedError())
                answer.exception()  # marks it as retrieved, in case sending failed
        if self._pending_data_size:
            self._pending, self._pending_data_size = [], 0
        writer = getattr(self._transport, "_io_writer", None)  # None unless connected
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()).removeprefix("nats: ").strip("'")
    return text or type(error).__name__
