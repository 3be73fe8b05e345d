"""A Kafka broker in front of nadi: the door's port and its connections.

A connection's requests are answered in their order. Those that write are queued as they arrive, so that they don't wait
for each other's acknowledgements; any other one starts once those before it are answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

from nadi.access.authentication import Gate
from nadi.access.budget import Budget
from nadi.access.listener import (
    AcceptedConnection,
    Listener,
    TlsContexts,
    available_files,
    bound_sockets,
    raise_file_limit,
)
from nadi.access.quotas import IN, OUT, Brake, Quotas
from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.defaults import DEFAULT_HOST, DEFAULT_KAFKA_PARTITIONS, DEFAULT_KAFKA_PORT, DEFAULT_KAFKA_SCOPE
from nadi.errors import NadiError, NotAuthenticatedError, ProtocolError
from nadi.kafka.access import NO_USER, Peer
from nadi.kafka.doors import Doors
from nadi.kafka.group_records import GroupRecords
from nadi.kafka.groups import Groups
from nadi.kafka.handlers import BEFORE_LOGIN, Handlers, api_versions
from nadi.kafka.messages import (
    API_VERSIONS,
    FETCH,
    PRODUCE,
    ErrorCode,
    Fields,
    KafkaError,
    Request,
    UnsupportedVersionError,
    code_of,
    decoded,
    encoded,
)
from nadi.kafka.producing import Producing
from nadi.kafka.segment_log import ChunkCache
from nadi.kafka.topics import Topics
from nadi.kafka.transactions import Transactions
from nadi.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_OF_ADDRESS,
    KAFKA_CACHE_BYTES,
    KAFKA_CLEANED_S,
    KAFKA_IDLE_S,
    KAFKA_LAGS_S,
    KAFKA_PAUSE_S,
    KAFKA_RECEIVED_BYTES,
    KAFKA_REQUEST_BYTES,
    KAFKA_REQUESTS_AT_ONCE,
    KAFKA_UNKNOWN_PEER_BYTES,
    PATROL_S,
    SEND_TIMEOUT_S,
)
from nadi.model.reports import GroupLagReport
from nadi.throttled_log import SeldomWarning

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    """Options of a door. host, port: to listen at; 0 for any free port. advertised: what clients connect to, if it
    differs. scope: of the topics' streams. partitions: of a topic that is created without a number. auto_creates:
    whether asking for a missing topic creates it."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_KAFKA_PORT
    advertised_host: str | None = None
    advertised_port: int | None = None
    scope: str = DEFAULT_KAFKA_SCOPE
    partitions: int = DEFAULT_KAFKA_PARTITIONS
    auto_creates: bool = True


class KafkaDoor:
    """A door, as `async with KafkaDoor(manager, DoorOptions())`. `address`: "host:port" for clients.

    gate: authenticates callers by SASL or by their certificates; None if they needn't. manager: must have all rights on
    the scope. quotas: of the server, which doesn't count the manager's own requests; None if it does.
    """

    def __init__(
        self,
        manager: StreamManager,
        options: DoorOptions,
        *,
        gate: Gate | None = None,
        tls: TlsContexts | None = None,
        budget: Budget | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._manager, self._options, self.gate, self._tls = manager, options, gate, tls
        self.quotas, self.scope = quotas or Quotas(time.monotonic), options.scope
        self.budget = budget or Budget(2 * KAFKA_RECEIVED_BYTES)
        self._producing = Producing()
        self._topics = Topics(
            manager,
            options.scope,
            options.partitions,
            ChunkCache(KAFKA_CACHE_BYTES),
            self._producing.close_topic,
        )
        self.listener = Listener(
            self._protocol,
            _abort,
            most=available_files(CONNECTIONS_MAX),
            most_of_address=CONNECTIONS_OF_ADDRESS,
            name="Kafka",
        )
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self.report = SeldomWarning(log, "Kafka connections closed: %d, the last from %s: %s")
        self.address = ""
        self.lags: list[GroupLagReport] = []  # as `measure_lags` last found them

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; OSError if the port is unavailable."""
        options = self._options
        await self._topics.prepare()
        sockets = await bound_sockets(options.host, options.port)
        listening = sockets[0].getsockname()[1]
        stores = stores_of(self._manager)
        host, port = options.advertised_host or options.host, options.advertised_port or listening
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._groups = Groups(GroupRecords(stores, options.scope, self._topics.table))
        self._doors = Doors(stores, options.scope, host, port, self._drop_groups)
        self._transactions = Transactions(
            stores,
            options.scope,
            self._topics.table,
            lambda name: self._doors.is_own("transaction", name),
            self._topics.new_producer_id,
        )
        self.handlers = Handlers(
            self._manager,
            self._topics,
            self._doors,
            self._groups,
            self._producing,
            self._transactions,
            self.gate,
            auto_creates=options.auto_creates,
        )
        await self._doors.start()
        self._transactions.start()
        self.listener.listen(sockets, self._tls)
        self._patrolling = asyncio.create_task(self._patrol(), name="end overdue Kafka connections")
        self._cleaning = asyncio.create_task(self._clean_on(), name="remove unused Kafka records")

    async def _patrol(self) -> None:
        """End connections whose peers are overdue. One timer for all is a fifth of the work of one per request."""
        while True:
            await asyncio.sleep(PATROL_S)
            for connection in list(self._connections.values()):
                connection.end_if_overdue()

    async def _clean_on(self) -> None:
        while True:
            try:
                await self._topics.remove_orphans()
                await self._groups.records.remove_orphans(self._topics.names)
                for name in filter(partial(self._doors.is_own, "group"), await self._groups.records.unused()):
                    with suppress(KafkaError):  # it has members
                        await self._groups.delete(name)
            except NadiError as error:
                log.warning("records of unused Kafka topics and groups could not be removed: %s", error)
            await asyncio.sleep(KAFKA_CLEANED_S)

    async def measure_lags(self, is_due: Callable[[], bool]) -> None:
        """Measure the lags of the scope's groups again and again, unless another server does it."""
        while True:
            try:
                self.lags = await self._groups.records.lags(self._topics) if is_due() else []
            except NadiError as error:
                self.lags = []
                log.warning("the lags of Kafka groups could not be measured: %s", error)
            await asyncio.sleep(KAFKA_LAGS_S)

    async def stop(self) -> None:
        self.listener.close()
        self._cleaning.cancel()
        await self._doors.stop()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._patrolling.cancel()
        await self._groups.close()
        await self._transactions.close()
        self._topics.close()
        self._producing.close()

    def _drop_groups(self) -> None:
        self._groups.keep_only(lambda name: self._doors.is_own("group", name))

    def _protocol(self, accepted: AcceptedConnection) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=1 << 20)

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = _Connection(self, accepted, reader, writer)
            task = asyncio.create_task(connection.run(), name=f"Kafka connection of {accepted.address}")
            self._connections[task] = connection
            task.add_done_callback(self._connections.pop)

        return asyncio.StreamReaderProtocol(reader, connected)


def _abort(protocol: asyncio.BaseProtocol) -> None:
    transport = getattr(protocol, "_transport", None)
    if transport is not None:
        transport.abort()


class _Answer:
    """A response to send. fields: None if the producer wants none. throttle_ms: how long its client isn't read."""

    __slots__ = ("fields", "request", "size", "throttle_ms")

    def __init__(self, request: Request, fields: Awaitable[Fields], size: int, throttle_ms: int = 0) -> None:
        self.request, self.fields, self.size, self.throttle_ms = request, fields, size, throttle_ms


class _Connection:
    """One client's connection."""

    def __init__(
        self, door: KafkaDoor, accepted: AcceptedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._door, self._accepted, self._reader, self._writer = door, accepted, reader, writer
        self._answers: asyncio.Queue[_Answer] = asyncio.Queue(KAFKA_REQUESTS_AT_ONCE)
        self._read_by = self._sent_by = math.inf  # by the loop's clock
        self._received = door.budget.receiving.account()
        self._sending = door.budget.sending.account()
        self._peer = Peer(accepted.address, self._sending)
        self._unmuted = asyncio.Event()
        self._brake = Brake(door.quotas, self._unmuted.set)

    async def run(self) -> None:
        self._use_certificate()
        try:
            async with asyncio.TaskGroup() as tasks:
                answering = tasks.create_task(self._answer_all())
                await self._read_all()
                answering.cancel()
        except* (ConnectionError, asyncio.IncompleteReadError, TimeoutError, ssl.SSLError):
            pass  # the peer has gone, or doesn't read
        except* ProtocolError as group:
            self._door.report(self._accepted.address, group.exceptions[0])
        except* Exception as group:
            log.error("a Kafka connection failed", exc_info=group)
        finally:
            self._brake.close()
            self._drop_answers()
            self._received.hold(0)
            self._sending.hold(0)
            self._accepted.leave()
            self._writer.transport.abort()

    def _use_certificate(self) -> None:
        """Let the client's certificate name the caller until a login by SASL does. One that isn't a user's gives no
        permissions, so that the client gets errors rather than a closed connection."""
        sealed: ssl.SSLObject | None = self._writer.get_extra_info("ssl_object")
        certificate = sealed.getpeercert(binary_form=True) if sealed is not None else None
        if self._door.gate is not None and certificate is not None:
            try:
                self._peer.caller = self._door.gate.certified(certificate, f"{self._accepted.address}:0")
                self._peer.certificate = certificate
            except NotAuthenticatedError:
                self._peer.caller = NO_USER

    def end_if_overdue(self) -> None:
        if min(self._read_by, self._sent_by) < asyncio.get_running_loop().time():
            self._writer.transport.abort()

    def _drop_answers(self) -> None:
        while not self._answers.empty():
            fields = self._answers.get_nowait().fields
            if isinstance(fields, Coroutine):
                fields.close()

    # --- reading ------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            while self._brake.is_on:  # as Kafka's brokers do: KIP-219
                self._unmuted.clear()
                await self._unmuted.wait()
            self._read_by = now() + KAFKA_IDLE_S
            head = await self._reader.readexactly(4)
            self._read_by = math.inf
            size = int.from_bytes(head, "big", signed=True)
            most = KAFKA_REQUEST_BYTES if self._is_known else KAFKA_UNKNOWN_PEER_BYTES
            if not 8 <= size <= most:
                raise ProtocolError(f"a request of {size:,} bytes: the limit is {most:,}")
            self._accepted.mark_busy()
            await self._received.wait_for_capacity(size)
            self._received.take(size)
            frame = await self._exactly(size)
            try:
                request = decoded(frame)
            except UnsupportedVersionError as error:
                if error.key != API_VERSIONS:
                    raise
                request = Request(API_VERSIONS, 0, error.correlation, "", None)
                await self._answers.put(_Answer(request, _unsupported(), size))
                continue
            fields = await self._begin(request)
            throttle_ms = self._throttle_ms(IN, size) if request.key == PRODUCE else 0
            await self._answers.put(_Answer(request, fields, size, throttle_ms))

    def _throttle_ms(self, first: int, size_bytes: int) -> int:
        """Count a request against its quotas; return how long the client isn't read, so that it can wait itself."""
        quotas, caller = self._door.quotas, self._peer.caller
        if not quotas.is_limiting:
            return 0
        wait_s = quotas.take(first, self._door.scope, "" if caller is None else caller.name, size_bytes)
        if wait_s <= 0:
            return 0
        self._brake.hold(wait_s)
        return math.ceil(1000 * wait_s)

    async def _exactly(self, size: int) -> bytes:
        """Return the next bytes, whose peer may not pause for long if they are many."""
        now = asyncio.get_running_loop().time
        end, pause_s = now() + SEND_TIMEOUT_S, KAFKA_PAUSE_S if size > KAFKA_UNKNOWN_PEER_BYTES else SEND_TIMEOUT_S
        parts, missing = [], size
        while missing:
            self._read_by = min(end, now() + pause_s)
            if not (data := await self._reader.read(missing)):
                raise asyncio.IncompleteReadError(b"", size)
            parts.append(data)
            missing -= len(data)
        self._read_by = math.inf
        return b"".join(parts)  # without a copy if it is one

    @property
    def _is_known(self) -> bool:
        return self._door.gate is None or self._peer.caller is not None

    async def _begin(self, request: Request) -> Awaitable[Fields]:
        """Return the response's fields to await; what writes is queued at once."""
        if not self._is_known and request.key not in BEFORE_LOGIN:
            raise ProtocolError(f"a request of API {request.key} before the login: use SASL")
        self._refresh_caller()
        if request.key == PRODUCE:
            return await self._door.handlers.produce(self._peer, request)
        return self._door.handlers.answer(self._peer, request)

    def _refresh_caller(self) -> None:
        gate, peer = self._door.gate, self._peer
        if gate is None or peer.caller is None or peer.caller is NO_USER:
            return
        try:
            if peer.certificate is not None:
                peer.caller = gate.certified(peer.certificate, f"{self._accepted.address}:0")
            else:
                peer.caller = gate.current(peer.caller)
        except NotAuthenticatedError as error:
            raise ProtocolError(str(error)) from error

    # --- answering ----------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        while True:
            answer = await self._answers.get()
            try:
                fields = await answer.fields
            except NadiError as error:
                fields = {"error_code": code_of(error), "error_message": str(error)[:500]}
            except Exception:
                log.exception("a Kafka request of API %d failed", answer.request.key)
                fields = {"error_code": ErrorCode.unknown_server_error}
            request = answer.request
            if request.key == FETCH:
                answer.throttle_ms = self._throttle_ms(OUT, _records_bytes(fields))
            if answer.throttle_ms:
                fields = {**fields, "throttle_time": answer.throttle_ms}
            if request.key != PRODUCE or request.body.acks:
                await self._send(encoded(request.key, request.version, request.correlation, fields))
            self._received.give(answer.size)
            if self._answers.empty():
                self._accepted.mark_idle()

    async def _send(self, frame: bytes) -> None:
        self._sending.take(len(frame))
        try:
            self._writer.write(frame)
            self._sent_by = asyncio.get_running_loop().time() + SEND_TIMEOUT_S
            await self._writer.drain()
        finally:
            self._sent_by = math.inf
            self._sending.give(len(frame))


def _records_bytes(fields: Fields) -> int:
    """Return the size of the records in a response to a fetch."""
    topics = fields.get("responses", ())
    return sum(len(partition.get("records") or b"") for topic in topics for partition in topic["partitions"])


async def _unsupported() -> Fields:
    return {**api_versions(), "error_code": ErrorCode.unsupported_version}


async def serve(door: KafkaDoor, starting: AbstractContextManager[object], ready: Callable[[KafkaDoor], None]) -> None:
    """Run a door until SIGTERM or SIGINT. starting: entered until it listens. ready: called as soon as it does."""
    raise_file_limit()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with starting:
        await door.start()
    try:
        ready(door)
        await stop.wait()
    finally:
        await door.stop()
