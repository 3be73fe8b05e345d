"""One connection to a NATS server, as long as it lasts: requests with their answers. It never reconnects by itself, for
what is sent then would be stored late; `connection` makes another.

`nats-py` is imported here alone. It has requests of its own, which go on waiting when their connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

from nats import errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from nadi.engines.failures import RefusedError
from nadi.engines.jetstream.where import Where
from nadi.errors import UnavailableError

log = logging.getLogger(__name__)
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
        """Send a request and wait for its answer; the caller limits how long.

        UnavailableError: nobody is there to answer, or the connection breaks; it may have been carried out.
        """
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
