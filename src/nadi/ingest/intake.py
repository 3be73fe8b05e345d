"""HttpIntake: the client that writes what comes over HTTP, beside the server that took it.

For each caller it has a client with the caller's credentials, which goes to this server's own ports, as any other
would: so tokens, permissions, scaling and the way to other servers of a cluster are as for every writing client.
Requests with an Idempotency-Key are written by `Once`; all others by a writer that is kept for the stream.

A request with an Idempotency-Key is written once, however often it is sent, to whichever server. The key makes a
writer's id, and a fingerprint of the request the one number of all its events; so a segment says, for each key, whether
a request with it wrote there, and whether it was this one (docs/decisions/0028). Nothing about it is kept in memory, so
it holds across restarts and servers.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from weakref import WeakValueDictionary

from cachetools import TTLCache

from nadi.client.aio import EventWriter, StreamManager
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape, epoch_at
from nadi.client.manager.streams import stores_of
from nadi.client.segments.stores import SegmentStores
from nadi.controller.rest.intake import Rejected, Sent
from nadi.controller.state.metadata import StreamName
from nadi.errors import ConflictError, InvalidArgumentError, NadiError, UnavailableError
from nadi.ingest.batch import KEY_HEADER, IngestBatch, batch_of
from nadi.limits import (
    IDEMPOTENCY_KEY_MAX_CHARS,
    INGEST_ANSWER_S,
    INGEST_BODY_MAX_BYTES,
    INGEST_HORIZON_S,
    INGEST_PARSED_AT_ONCE,
    INGEST_PARSED_HERE_BYTES,
    INGEST_REMEMBERED_S,
    INGEST_SETUPS,
    INGEST_STREAMS,
)
from nadi.loopback_clients import OwnClients
from nadi.model.keyspace import key_position


def numbered(batch: IngestBatch, sent: Sent, name: str) -> list[NumberedEvent]:
    """A request's events with the number that stands for it; those without a key go where `name` does, all together."""
    number, spare = _fingerprint(sent), key_position(name)
    events = batch.events if isinstance(batch.events, list) else batch.events.to_pylist()
    if (size := sum(map(len, events))) > INGEST_BODY_MAX_BYTES:  # those of a segment are one append
        raise InvalidArgumentError(
            f"the events have {size:,} bytes, and with an Idempotency-Key at most {INGEST_BODY_MAX_BYTES:,}: send "
            "fewer at a time"
        )
    keys = batch.keys
    if keys is None or isinstance(keys, str):
        position = spare if keys is None else key_position(keys)
        return [NumberedEvent(number, position, event) for event in events]
    known: dict[str | None, float] = {None: spare}
    found = []
    for event, key in zip(events, keys, strict=True):
        if key is not None and key not in known:
            known[key] = key_position(key)
        found.append(NumberedEvent(number, known[key], event))
    return found


def _fingerprint(sent: Sent) -> int:
    told = [sent.media, sent.query.get("key"), sent.query.get("key-field"), sent.headers.get(KEY_HEADER)]
    told += sorted(f"{name}: {value}" for name, value in sent.headers.items() if name.startswith("ce-"))
    digest = hashlib.sha256(repr(told).encode())
    digest.update(sent.body)
    return int.from_bytes(digest.digest()[:8], "big") >> 1  # not negative


class Once:
    """What one caller writes so."""

    def __init__(self, stores: SegmentStores) -> None:
        self._stores = stores
        self._shapes: TTLCache[StreamName, tuple[StreamShape, int]] = TTLCache(INGEST_STREAMS, INGEST_HORIZON_S)
        self._turns: WeakValueDictionary[tuple[StreamName, str], asyncio.Lock] = WeakValueDictionary()
        self._setups = 0

    async def write(self, stream: StreamName, name: str, events: list[NumberedEvent]) -> None:
        """Return once the events of the request of that name are stored; ConflictError if it was another request's."""
        turn = self._turns.get((stream, name))
        if turn is None:
            turn = self._turns[stream, name] = asyncio.Lock()
        async with turn:  # two at a time would end each other's session
            shape, since = await self._shape(stream)
            writer = IdempotentWriter(
                shape,
                hashlib.blake2b(name.encode(), digest_size=16, person=b"nadi once").digest(),
                since_epoch=since,
                only_number=events[0].number,
                purpose=self._purpose(),
            )
            try:
                await writer.write(events, INGEST_ANSWER_S)
            except ConflictError as error:
                self._shapes.pop(stream, None)
                if type(error) is ConflictError:
                    raise ConflictError(
                        f"the Idempotency-Key {name[:60]!r} was used for other data of this stream: take a new one"
                    ) from None
                raise
            except NadiError:
                self._shapes.pop(stream, None)
                raise
            finally:
                writer.close()

    async def _shape(self, stream: StreamName) -> tuple[StreamShape, int]:
        """The stream's, and the epoch since which a request may have been written before."""
        found = self._shapes.get(stream)
        if found is None:
            shape = StreamShape(self._stores, *stream)
            since = await epoch_at(shape, max(0, round((time.time() - INGEST_REMEMBERED_S) * 1000)))
            found = self._shapes[stream] = shape, since
        return found

    def _purpose(self) -> str:
        """Names the connections: a server limits how many writers are set up on one, so there are new ones at times."""
        turn, self._setups = self._setups // INGEST_SETUPS, self._setups + 1
        if self._setups % INGEST_SETUPS == 1 and turn > 1:
            self._stores.release(f"once {turn - 2}")  # nothing is on its way there any more
        return f"once {turn}"


_KEY = "idempotency-key"


class _IntakeCaller:
    """What is kept for one caller: its writers, and what it writes once."""

    def __init__(self, manager: StreamManager) -> None:
        self.once = Once(stores_of(manager))
        self._manager = manager
        self._writers: OrderedDict[StreamName, asyncio.Task[EventWriter]] = OrderedDict()

    async def writer(self, stream: StreamName) -> EventWriter:
        """The stream's. NadiError if there is none."""
        task = self._writers.get(stream)
        if task is None:
            if len(self._writers) >= INGEST_STREAMS:
                self.forget(next(iter(self._writers)))
            task = asyncio.create_task(self._manager.create_writer(*stream, ack_timeout=INGEST_ANSWER_S))
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
    """The `Intake` of a server. clients: of this server itself, for its callers. asks: whether callers have to say who
    they are."""

    def __init__(self, clients: OwnClients, *, asks: bool) -> None:
        self._clients, self._asks = clients, asks
        self._callers: dict[StreamManager, _IntakeCaller] = {}
        clients.ended.append(lambda manager: self._callers.pop(manager, None))
        self._threads = ThreadPoolExecutor(INGEST_PARSED_AT_ONCE, "nadi ingest")

    async def events(self, stream: StreamName, sent: Sent) -> int:
        return len(await self._write(stream, sent, batch_of))

    async def logs(self, stream: StreamName, sent: Sent) -> Rejected | None:
        from nadi.ingest.otlp import records_of  # few servers are sent any

        return (await self._write(stream, sent, records_of)).rejected

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._clients.close()

    async def _write(self, stream: StreamName, sent: Sent, parse: Callable[[Sent], IngestBatch]) -> IngestBatch:
        name = _name(sent)

        def work() -> tuple[IngestBatch, list[NumberedEvent]]:
            batch = parse(sent)
            return batch, numbered(batch, sent, name) if name is not None else []

        if len(sent.body) <= INGEST_PARSED_HERE_BYTES:
            batch, events = work()
        else:
            batch, events = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        if len(batch):
            authorization = sent.authorization if self._asks else None
            async with self._clients.of(authorization or "") as manager:
                if (caller := self._callers.get(manager)) is None:
                    caller = self._callers[manager] = _IntakeCaller(manager)
                if name is not None:
                    await caller.once.write(stream, name, events)
                else:
                    await _stored(caller, stream, batch)
        return batch


async def _stored(caller: _IntakeCaller, stream: StreamName, batch: IngestBatch) -> None:
    try:
        writer = await caller.writer(stream)
        async with asyncio.timeout(INGEST_ANSWER_S):
            await (await writer.write_many(batch.events, batch.keys))
    except TimeoutError as error:
        raise UnavailableError(
            f"not everything was stored within {INGEST_ANSWER_S:.0f} s, and it may be yet: with an Idempotency-Key "
            "you can send it again"
        ) from error
    except NadiError as error:
        if not isinstance(error, InvalidArgumentError):
            caller.forget(stream)  # it may be sealed, or have been made anew
        raise


def _name(sent: Sent) -> str | None:
    name = sent.headers.get(_KEY)
    if name is not None and not (0 < len(name) <= IDEMPOTENCY_KEY_MAX_CHARS and name.isprintable()):
        raise InvalidArgumentError(
            f"an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_MAX_CHARS} printable characters: a UUID, say"
        )
    return name
