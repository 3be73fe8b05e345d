"""HttpIntake: the client that writes what comes over HTTP, beside the server that took it.

For each caller it has a client with the caller's credentials, which goes to this server's own doors, as any other
would: so tokens, permissions, scaling and the way to other servers of a cluster are as for every writing client.
Requests that say who they are, by an Idempotency-Key, are written by `once`; all others by a writer that is kept for
the stream.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from nadi.client.aio import EventWriter, StreamManager
from nadi.client.control.controller import ControllerClient
from nadi.client.control.security import Encoded, Security, split_uri
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.writer import NumberedEvent
from nadi.controller.rest.intake import Rejected, Sent
from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError, NadiError, UnavailableError
from nadi.ingest.http.batch import Batch, batch_of
from nadi.ingest.http.once import Once, numbered
from nadi.limits import (
    IDEMPOTENCY_KEY_MAX_CHARS,
    INGEST_ANSWER_S,
    INGEST_CLIENTS,
    INGEST_PARSED_AT_ONCE,
    INGEST_PARSED_HERE_BYTES,
    INGEST_STREAMS,
)

_KEY = "idempotency-key"


class _Client:
    """Of one caller: its writers, and what it writes once. in_use: requests at work."""

    def __init__(self, uri: str, security: Security) -> None:
        self.manager = StreamManager(controller=ControllerClient(split_uri(uri)[0], security, INGEST_ANSWER_S))
        self.once = Once(stores_of(self.manager))
        self.in_use = 0
        self._writers: OrderedDict[StreamName, asyncio.Task[EventWriter]] = OrderedDict()

    async def writer(self, stream: StreamName) -> EventWriter:
        """The stream's. NadiError if there is none."""
        task = self._writers.get(stream)
        if task is None:
            if len(self._writers) >= INGEST_STREAMS:
                self.forget(next(iter(self._writers)))
            task = asyncio.create_task(self.manager.create_writer(*stream, ack_timeout=INGEST_ANSWER_S))
            self._writers[stream] = task
        self._writers.move_to_end(stream)
        return await asyncio.shield(task)

    def forget(self, stream: StreamName) -> None:
        """The next request gets another writer; this one ends once it has stored what it has."""
        task = self._writers.pop(stream, None)
        if task is not None:
            task.add_done_callback(_end)


_ENDING = set[asyncio.Task[None]]()


def _end(opened: asyncio.Task[EventWriter]) -> None:
    if not opened.cancelled() and opened.exception() is None:

        async def close() -> None:
            with suppress(NadiError):  # who wrote knows
                await opened.result().close(INGEST_ANSWER_S)

        task = asyncio.get_running_loop().create_task(close())
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)


class HttpIntake:
    """The `Intake` of a server. uri, security: of its own doors; `security` has no credentials. asks: whether callers
    have to say who they are."""

    def __init__(self, uri: Callable[[], str], security: Security, *, asks: bool) -> None:
        self._uri, self._security, self._asks = uri, security, asks
        self._clients: OrderedDict[str | None, _Client] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(INGEST_PARSED_AT_ONCE, "nadi ingest")

    async def events(self, stream: StreamName, sent: Sent) -> int:
        return len(await self._write(stream, sent, batch_of))

    async def logs(self, stream: StreamName, sent: Sent) -> Rejected | None:
        from nadi.ingest.otlp.records import records_of  # few servers are sent any

        return (await self._write(stream, sent, records_of)).rejected

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        clients = list(self._clients.values())
        self._clients.clear()
        await asyncio.gather(*(client.manager.close() for client in clients), *self._closing)

    async def _write(self, stream: StreamName, sent: Sent, parse: Callable[[Sent], Batch]) -> Batch:
        name = _name(sent)

        def work() -> tuple[Batch, list[NumberedEvent]]:
            batch = parse(sent)
            return batch, numbered(batch, sent, name) if name is not None else []

        if len(sent.body) <= INGEST_PARSED_HERE_BYTES:
            batch, events = work()
        else:
            batch, events = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        if len(batch):
            async with self._client(sent.authorization) as client:
                if name is not None:
                    await client.once.write(stream, name, events)
                else:
                    await _stored(client, stream, batch)
        return batch

    @asynccontextmanager
    async def _client(self, authorization: str | None) -> AsyncIterator[_Client]:
        key = authorization if self._asks else None
        client = self._clients.get(key)
        if client is None:
            security = replace(self._security, credentials=Encoded(key) if key is not None else None)
            self._make_room()
            client = self._clients[key] = _Client(self._uri(), security)
        self._clients.move_to_end(key)
        client.in_use += 1
        try:
            yield client
        finally:
            client.in_use -= 1

    def _make_room(self) -> None:
        """For one more client: of those not in use now, the one that was used longest ago is closed."""
        if len(self._clients) < INGEST_CLIENTS:
            return
        for key, client in self._clients.items():
            if not client.in_use:
                del self._clients[key]
                task = asyncio.create_task(client.manager.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
                return
        raise UnavailableError("as many callers as may be are writing: try again")


async def _stored(client: _Client, stream: StreamName, batch: Batch) -> None:
    try:
        writer = await client.writer(stream)
        async with asyncio.timeout(INGEST_ANSWER_S):
            await (await writer.write_many(batch.events, batch.keys))
    except TimeoutError as error:
        raise UnavailableError(
            f"not everything was stored within {INGEST_ANSWER_S:.0f} s, and it may be yet: with an Idempotency-Key "
            "you can send it again"
        ) from error
    except NadiError as error:
        if not isinstance(error, InvalidArgumentError):
            client.forget(stream)  # it may be sealed, or have been made anew
        raise


def _name(sent: Sent) -> str | None:
    name = sent.headers.get(_KEY)
    if name is not None and not (0 < len(name) <= IDEMPOTENCY_KEY_MAX_CHARS and name.isprintable()):
        raise InvalidArgumentError(
            f"an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_MAX_CHARS} printable characters: a UUID, say"
        )
    return name
