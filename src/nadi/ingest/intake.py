"""HttpIntake: writes events received over HTTP through clients of the same server.

Each caller gets a client with the caller's credentials that connects to this server's public ports, so tokens,
permissions, scaling and routing in a cluster work as for every writing client. Requests with an Idempotency-Key are
written by `Once`; all others by a cached writer of the stream.

A request with an Idempotency-Key is written once, however often it is sent, and to whichever server. The key determines
a writer id, and a fingerprint of the request is the event number of all its events. So each segment records whether a
request with the key wrote there, and whether it was the same request (docs/decisions/0028). No memory is involved, so
this works across restarts and servers.
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
from nadi.controller.rest.intake import DataRequest, RejectedRecords
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


def numbered(batch: IngestBatch, sent: DataRequest, name: str) -> list[NumberedEvent]:
    """Number a request's events with its fingerprint; events without a key are routed by `name`."""
    number, spare = _fingerprint(sent), key_position(name)
    events = batch.events if isinstance(batch.events, list) else batch.events.to_pylist()
    if (size := sum(map(len, events))) > INGEST_BODY_MAX_BYTES:  # all events of a segment are one append
        raise InvalidArgumentError(
            f"the events have {size:,} bytes; the limit with an Idempotency-Key is {INGEST_BODY_MAX_BYTES:,}: send "
            "fewer at a time"
        )
    keys = batch.keys
    if keys is None or isinstance(keys, str):
        position = spare if keys is None else key_position(keys)
        return [NumberedEvent(number, position, event) for event in events]
    positions: dict[str | None, float] = {None: spare}
    numbered_events = []
    for event, key in zip(events, keys, strict=True):
        if key is not None and key not in positions:
            positions[key] = key_position(key)
        numbered_events.append(NumberedEvent(number, positions[key], event))
    return numbered_events


def _fingerprint(sent: DataRequest) -> int:
    identifying = [sent.media, sent.query.get("key"), sent.query.get("key-field"), sent.headers.get(KEY_HEADER)]
    identifying += sorted(f"{name}: {value}" for name, value in sent.headers.items() if name.startswith("ce-"))
    digest = hashlib.sha256(repr(identifying).encode())
    digest.update(sent.body)
    return int.from_bytes(digest.digest()[:8], "big") >> 1  # not negative


class Once:
    """The idempotent writes of one caller."""

    def __init__(self, stores: SegmentStores) -> None:
        self._stores = stores
        self._shapes: TTLCache[StreamName, tuple[StreamShape, int]] = TTLCache(INGEST_STREAMS, INGEST_HORIZON_S)
        self._turns: WeakValueDictionary[tuple[StreamName, str], asyncio.Lock] = WeakValueDictionary()
        self._setups = 0

    async def write(self, stream: StreamName, name: str, events: list[NumberedEvent]) -> None:
        """Store the events of the request with that key; ConflictError if another request used the key."""
        turn = self._turns.get((stream, name))
        if turn is None:
            turn = self._turns[stream, name] = asyncio.Lock()
        async with turn:  # concurrent writers with one id would end each other's session
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
                        f"the Idempotency-Key {name[:60]!r} was used for other data in this stream: choose a new one"
                    ) from None
                raise
            except NadiError:
                self._shapes.pop(stream, None)
                raise
            finally:
                writer.close()

    async def _shape(self, stream: StreamName) -> tuple[StreamShape, int]:
        """Return the stream's shape, and the first epoch to search for earlier writes of a request."""
        cached = self._shapes.get(stream)
        if cached is None:
            shape = StreamShape(self._stores, *stream)
            since = await epoch_at(shape, max(0, round((time.time() - INGEST_REMEMBERED_S) * 1000)))
            cached = self._shapes[stream] = shape, since
        return cached

    def _purpose(self) -> str:
        """Name the connections to use; they are replaced periodically, because a server limits the writers of each."""
        turn, self._setups = self._setups // INGEST_SETUPS, self._setups + 1
        if self._setups % INGEST_SETUPS == 1 and turn > 1:
            self._stores.release(f"once {turn - 2}")  # its requests have ended
        return f"once {turn}"


_KEY = "idempotency-key"


class _IntakeCaller:
    """The cached writers and idempotent writes of one caller."""

    def __init__(self, manager: StreamManager) -> None:
        self.once = Once(stores_of(manager))
        self._manager = manager
        self._writers: OrderedDict[StreamName, asyncio.Task[EventWriter]] = OrderedDict()

    async def writer(self, stream: StreamName) -> EventWriter:
        """Return the stream's writer; NadiError."""
        task = self._writers.get(stream)
        if task is None:
            if len(self._writers) >= INGEST_STREAMS:
                self.forget(next(iter(self._writers)))
            task = asyncio.create_task(self._manager.create_writer(*stream, ack_timeout=INGEST_ANSWER_S))
            self._writers[stream] = task
        self._writers.move_to_end(stream)
        return await asyncio.shield(task)

    def forget(self, stream: StreamName) -> None:
        """Drop the stream's writer, which closes after storing its pending events."""
        task = self._writers.pop(stream, None)
        if task is not None:
            task.add_done_callback(_end)


_ENDING = set[asyncio.Task[None]]()


def _end(opened: asyncio.Task[EventWriter]) -> None:
    if not opened.cancelled() and opened.exception() is None:

        async def close() -> None:
            with suppress(NadiError):  # reported to the requests that wrote
                await opened.result().close(INGEST_ANSWER_S)

        task = asyncio.get_running_loop().create_task(close())
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)


class HttpIntake:
    """The `Intake` of a server. clients: loopback clients by credentials. authenticates: whether callers must
    authenticate."""

    def __init__(self, clients: OwnClients, *, authenticates: bool) -> None:
        self._clients, self._authenticates = clients, authenticates
        self._callers: dict[StreamManager, _IntakeCaller] = {}
        clients.ended.append(lambda manager: self._callers.pop(manager, None))
        self._threads = ThreadPoolExecutor(INGEST_PARSED_AT_ONCE, "nadi ingest")

    async def events(self, stream: StreamName, sent: DataRequest) -> int:
        return len(await self._write(stream, sent, batch_of))

    async def logs(self, stream: StreamName, sent: DataRequest) -> RejectedRecords | None:
        from nadi.ingest.otlp import records_of  # few servers receive any

        return (await self._write(stream, sent, records_of)).rejected

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._clients.close()

    async def _write(
        self, stream: StreamName, sent: DataRequest, parse: Callable[[DataRequest], IngestBatch]
    ) -> IngestBatch:
        name = _name(sent)

        def work() -> tuple[IngestBatch, list[NumberedEvent]]:
            batch = parse(sent)
            return batch, numbered(batch, sent, name) if name is not None else []

        if len(sent.body) <= INGEST_PARSED_HERE_BYTES:
            batch, events = work()
        else:
            batch, events = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        if len(batch):
            authorization = sent.authorization if self._authenticates else None
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
            f"not all events were stored within {INGEST_ANSWER_S:.0f} s, and some still may be: use an "
            "Idempotency-Key to retry safely"
        ) from error
    except NadiError as error:
        if not isinstance(error, InvalidArgumentError):
            caller.forget(stream)  # the stream may be sealed or recreated
        raise


def _name(sent: DataRequest) -> str | None:
    name = sent.headers.get(_KEY)
    if name is not None and not (0 < len(name) <= IDEMPOTENCY_KEY_MAX_CHARS and name.isprintable()):
        raise InvalidArgumentError(
            f"an Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_MAX_CHARS} printable characters, such as a UUID"
        )
    return name
