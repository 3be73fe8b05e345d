"""The way to NATS: a link, made anew by the next who asks when the last has ended; and a limit to each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nadi.engines.failures import RefusedError
from nadi.engines.jetstream.failures import Problem, told
from nadi.engines.jetstream.room import Room
from nadi.engines.jetstream.where import Where
from nadi.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from nadi.engines.jetstream.link import Answer, Enough, Link

T = TypeVar("T")
TIMEOUT_S = 10.0  # of a request, its turn and its connecting included
_AT_ONCE = 64  # requests


class Failed(msgspec.Struct):
    """What an answer of JetStream's API has if it is an error."""

    error: Problem | None = None


class Connection:
    """largest_bytes: of a message that is to be stored, headers included; servers that take less are refused."""

    def __init__(self, where: Where, largest_bytes: int) -> None:
        self._open_link = _opener()
        self._where, self._largest_bytes = where, largest_bytes
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._turns, self._room = asyncio.Semaphore(_AT_ONCE), Room()

    async def ask(self, what: str, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """The answer to a request. what: as in "NATS can't store log/0/1".

        UnavailableError: there is none in time; it may have been carried out, or be carried out later.
        """
        return await self._with_link(what, lambda link: link.ask(subject, payload, headers))

    async def read(self, what: str, subject: str, request: bytes) -> Answer:
        """As `ask`, for an answer that may be large."""

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
        """Ask JetStream's API: what it answers, or its error."""
        found = await self.ask(what, f"$JS.API.{subject}", msgspec.json.encode(request))
        return decoded(what, found.data, answer)

    async def _connected(self) -> Link:
        async with self._connecting:
            if self._link is None or not self._link.is_open:
                await self._forget()
                self._link = await self._open_link(self._where)
                if self._link.max_payload < self._largest_bytes:
                    raise RefusedError(await self._too_small(self._link))
            return self._link

    async def _too_small(self, link: Link) -> str:
        found = link.max_payload
        await self._forget()
        return (
            f"its server takes messages of up to {found:,} bytes, and those of a log can have {self._largest_bytes:,}: "
            "write `max_payload: 32MB` into the configuration of all its servers, and reload it"
        )

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
    """What was answered; raises the error if it is one."""
    if isinstance(found, Problem):
        raise told(what, found)
    return found


def _opener() -> Callable[[Where], Awaitable[Link]]:
    try:
        from nadi.engines.jetstream.link import Link
    except ImportError:
        raise InvalidArgumentError("a log in NATS needs more: pip install 'nadi[nats]'") from None
    return Link.opened
