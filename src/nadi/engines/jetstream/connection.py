"""The way to NATS: a `Link`, which never reconnects by itself, for what is sent then would be stored late; `Connection`
makes another when it has ended, and limits each request. `nats-py` is imported here alone; its own requests go on
waiting when their connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from itertools import count
from typing import Any, NamedTuple, TypeVar

import msgspec
from nats import errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from nadi.engines.failures import RefusedError
from nadi.engines.jetstream.where import Where
from nadi.errors import StorageFullError, UnavailableError

log = logging.getLogger(__name__)

T = TypeVar("T")
TIMEOUT_S = 10.0  # of a request, its turn and its connecting included
_AT_ONCE = 64  # requests


class Failed(msgspec.Struct):
    error: Problem | None = None


class Connection:
    """largest_bytes: of a message that is to be stored, headers included; servers that take less are refused."""

    def __init__(self, where: Where, largest_bytes: int) -> None:
        self._open_link = Link.opened
        self._where, self._largest_bytes = where, largest_bytes
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._turns, self._room = asyncio.Semaphore(_AT_ONCE), Room()

    async def ask(self, what: str, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """The answer to a request. what: as in "NATS can't store log/0/1". UnavailableError: there is none in time; it
        may have been carried out, or be carried out later."""
        return await self._with_link(what, lambda link: link.ask(subject, payload, headers))

    async def read(self, what: str, subject: str, request: bytes) -> Answer:

        async def asked(link: Link) -> Answer:
            try:
                answer = await link.ask(subject, request, None)
            except UnavailableError:
                if not link.is_open:
                    self._room.broke()
                raise
            self._room.came(len(answer.data))
            return answer

        return await self._with_link(what, asked, self._room.taken())

    async def ask_many(self, what: str, subject: str, payload: bytes, enough: Enough) -> list[Answer]:
        """As `ask`, for messages of a stream: until there are `enough`."""
        return await self._with_link(what, lambda link: link.ask_many(subject, payload, enough))

    async def _with_link(
        self, what: str, work: Callable[[Link], Awaitable[T]], room: AbstractAsyncContextManager[None] | None = None
    ) -> T:
        link = None
        try:
            async with asyncio.timeout(TIMEOUT_S), self._turns, room or nullcontext():
                link = await self._connected()
                return await work(link)
        except TimeoutError:
            if link is not None and link.forbidden:
                raise RefusedError(f"NATS can't {what}: it forbids that ({link.forbidden})") from None
            raise UnavailableError(f"NATS can't {what}: no answer in {TIMEOUT_S:.0f} s; it is tried again") from None
        except UnavailableError as error:
            raise type(error)(f"NATS can't {what}: {error}") from None

    async def call(self, what: str, subject: str, request: object, answer: type[T]) -> T | Problem:
        found = await self.ask(what, f"$JS.API.{subject}", msgspec.json.encode(request))
        return decoded(what, found.data, answer)

    async def _connected(self) -> Link:
        async with self._connecting:
            if self._link is None or not self._link.is_open:
                await self._forget()
                self._link = await self._open_link(self._where)
                most_bytes = self._link.max_payload
                if most_bytes < self._largest_bytes:
                    await self._forget()
                    raise RefusedError(
                        f"its server takes messages of up to {most_bytes:,} bytes, and those of a log can have "
                        f"{self._largest_bytes:,}: write `max_payload: 32MB` into the configuration of all its "
                        "servers, and reload it"
                    )
            return self._link

    async def _forget(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def close(self) -> None:
        await self._forget()


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


_MOST_BYTES = 30 << 20  # under way at one time
_FIRST_BYTES = 6 << 20  # a full frame in base64


class Room:
    """Room for answers that may be large: `async with room.taken():` around a request; then `came` or `broke`.

    A NATS server drops a client to which it would have to send more than its `max_pending`, 64 MiB by default, which
    may count twice what is under way; and how large a message is shows only when it comes. So it is guessed from the
    last ones, and if the connection ends all the same, the next are asked for one by one.
    """

    def __init__(self) -> None:
        self._expected = _FIRST_BYTES
        self._held = self._count = 0
        self._is_over = False  # more may be under way than was expected: nothing more is, until all of it came
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            taken = self._expected
            self._held += taken
            self._count += 1
        try:
            yield
        finally:
            self._held -= taken
            self._count -= 1
            self._is_over = self._is_over and self._count > 0
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return not self._count or (not self._is_over and self._held + self._expected <= _MOST_BYTES)

    def came(self, size_bytes: int) -> None:
        """An answer came: the next ones are expected to be as large, or half of what was expected."""
        if size_bytes > self._expected:
            self._is_over = self._is_over or size_bytes * self._count > _MOST_BYTES
        self._expected = max(size_bytes, self._expected // 2, 1)

    def broke(self) -> None:
        self._expected = _MOST_BYTES


_CONNECT_S = 2  # to each server
_PING_S, _PINGS_LOST = 3, 2  # a server that answers none of these is gone
_CLOSE_S = 1
_NOBODY = "503"


class Answer(NamedTuple):
    """subject: of the message, in the stream or here; status: as in HTTP, if it is only that. reply: where a stream's
    message would be acknowledged, which tells when it was stored."""

    data: bytes
    subject: str
    headers: Mapping[str, str]
    reply: str = ""

    @property
    def status(self) -> str:
        return self.headers.get("Status", "")


Enough = Callable[[list[Answer]], bool]


class _Waiting(NamedTuple):
    answers: list[Answer]
    enough: Enough
    done: asyncio.Future[None]


class Link:
    """`await Link.opened(…)`; `is_open` until it breaks."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._client = _Client(needs_tls=where.needs_tls)
        self._inbox = self._client.new_inbox()
        self._tokens = count()
        self._waiting: dict[str, _Waiting] = {}
        self._last = ""  # what the client or the server last said went wrong
        self.forbidden = ""  # what the server last refused for lack of permission

    @classmethod
    async def opened(cls, where: Where) -> Link:
        """Raises UnavailableError if no server can be reached, RefusedError if one doesn't let this client in."""
        link = cls(where)
        try:
            await link._open()
        except BaseException:
            await link.close()
            raise
        return link

    async def _open(self) -> None:
        problem = None
        try:
            await self._client.connect(
                list(self._where.servers),
                name="nadi",
                error_cb=self._failed,
                closed_cb=self._ended,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                max_outstanding_pings=_PINGS_LOST,
                pending_size=0,  # nothing is kept for later, and none of its waits swallows a cancellation
                **self._credentials(),
            )
        except (errors.Error, OSError, TimeoutError) as error:
            problem = self._told(error)
        if problem is not None:
            raise problem  # here, so that it has no context
        await self._client.subscribe(f"{self._inbox}.*", cb=self._received, pending_bytes_limit=0)

    def _credentials(self) -> dict[str, Any]:
        where = self._where
        given: dict[str, Any] = {"user": where.user or None, "password": where.password or None}
        given["token"] = where.token or None
        given["user_credentials"] = str(where.credentials) if where.credentials is not None else None
        if where.needs_tls:
            given["tls"] = where.ssl_context()
        return given

    def _told(self, error: Exception) -> UnavailableError:
        if isinstance(error, errors.NoServersError):
            return UnavailableError(f"no NATS server can be reached: {self._last or 'is one running?'}")
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

    @property
    def is_open(self) -> bool:
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes, in bytes."""
        return self._client.max_payload

    async def ask(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> Answer:
        """Send a request and wait for its answer; the caller limits how long. UnavailableError: nobody is there to
        answer, or the connection breaks; it may have been carried out."""
        token = str(next(self._tokens))
        waiting = self._waiting[token] = _Waiting([], lambda _: True, asyncio.get_running_loop().create_future())
        try:
            return (await self._answers(waiting, subject, payload, f"{self._inbox}.{token}", headers))[0]
        finally:
            del self._waiting[token]

    async def ask_many(self, subject: str, payload: bytes, enough: Enough) -> list[Answer]:
        """As `ask`, for messages of a stream, which come under their own subjects; until there are `enough`."""
        inbox = self._client.new_inbox()
        waiting = self._waiting[inbox] = _Waiting([], enough, asyncio.get_running_loop().create_future())

        async def received(message: Msg) -> None:
            _take(waiting, message)

        try:
            subscription = await self._client.subscribe(inbox, cb=received, pending_bytes_limit=0)
            try:
                return await self._answers(waiting, subject, payload, inbox, None)
            finally:
                if self.is_open:
                    await subscription.unsubscribe()
        except errors.Error as error:
            raise UnavailableError(f"the connection to NATS broke ({_words(error)})") from None
        finally:
            del self._waiting[inbox]

    async def _answers(
        self, waiting: _Waiting, subject: str, payload: bytes, inbox: str, headers: dict[str, str] | None
    ) -> list[Answer]:
        try:
            await self._client.publish(subject, payload, inbox, headers)
            await waiting.done
        except errors.MaxPayloadError:
            raise RefusedError(
                f"the NATS server takes no more than {self.max_payload:,} bytes: raise its max_payload"
            ) from None
        except errors.Error as error:
            raise UnavailableError(f"the connection to NATS broke ({_words(error)})") from None
        finally:
            if not waiting.done.cancel() and not waiting.done.cancelled():
                waiting.done.exception()  # nobody else looks at it if sending failed
        return waiting.answers

    async def _received(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None:
            _take(waiting, message)

    async def _failed(self, error: Exception) -> None:
        self._last = _words(error)
        if "permissions violation" in self._last.lower():
            self.forbidden = self._last
        log.debug("NATS: %s", self._last)

    async def _ended(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done.done():
                waiting.done.set_exception(UnavailableError(f"the connection to NATS ended ({self._last or 'closed'})"))

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # its library waits forever for some that failed at TLS
            async with asyncio.timeout(_CLOSE_S):
                await self._client.close()


def _take(waiting: _Waiting, message: Msg) -> None:
    if waiting.done.done():
        return
    answer = Answer(message.data, message.subject, message.headers or {}, message.reply)
    if answer.status == _NOBODY:
        waiting.done.set_exception(UnavailableError("nobody in NATS answers for it: its stream has no leader now"))
        return
    waiting.answers.append(answer)
    if waiting.enough(waiting.answers):
        waiting.done.set_result(None)


class _Client(NatsClient):
    """The library's, with two faults mended."""

    def __init__(self, *, needs_tls: bool) -> None:
        super().__init__()
        self._needs_tls = needs_tls

    def _connect_command(self) -> bytes:
        """Says nothing to a server that doesn't speak TLS: the library would send it the password."""
        if self._needs_tls and not self._server_info.get("tls_required"):
            raise errors.SecureConnRequiredError
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Sends nothing more. The library tries to: where that fails it never calls `closed_cb`, and where the other
        side takes nothing in, it waits."""
        if self._pending_data_size:
            self._pending, self._pending_data_size = [], 0
        writer = getattr(self._transport, "_io_writer", None)  # None before it connects, or if it couldn't
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).removeprefix("nats: ").strip("'")
    return text or type(error).__name__
