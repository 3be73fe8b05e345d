"""The segment store of one data folder: its containers, its tier 2, and its server for clients.

    DIR/store.json              the store's identity and the number of containers (`data_dir`)
    DIR/lock                    held by the one server that uses the folder
    DIR/container-N/log/        tier 1
    DIR/container-N/state/      the container's state, written after the log
    DIR/container-N/reserve     space reserved for a recovery on a full disk, and for the state
    DIR/scrub                   the position of the weekly scrub
    DIR/tier2/                  the store, unless it is external: chunks, snapshots of the states, container records

Callers in the same process use `LocalCommands`: one command in, its reply out. A read at a segment's end returns no
data instead of waiting.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from nadi.access.budget import Budget
from nadi.access.listener import AcceptedConnection, Listener, TlsContexts, available_files, bound_sockets
from nadi.access.tokens import TokenKey
from nadi.errors import ClosedError, InvalidArgumentError, NadiError
from nadi.limits import CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS, LOG_MAX_BYTES, PATROL_S, STORAGE_WRITER_RUNS
from nadi.observe import traces
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container, note_missing
from nadi.segmentstore.container_registry import ContainerRegistry, Placement
from nadi.segmentstore.counters import StoreCounters, StoreTracing
from nadi.segmentstore.data_dir import (
    TIER2,
    FolderLock,
    Tier2,
    container_folders,
    is_pristine,
    make_private,
    mapped_errors,
    open_folder,
)
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.recovery.storage import ContainerStorage, LocalStorage
from nadi.segmentstore.scrub import Scrubber
from nadi.segmentstore.server.appends import Appends, Setup, WriterAppend, WriterSession
from nadi.segmentstore.server.connection import Connection
from nadi.segmentstore.server.reads import reply_to
from nadi.segmentstore.server.service import SegmentService, TokenCheck
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.opening import chunks_of
from nadi.throttled_log import SeldomWarning
from nadi.wire import commands as wire
from nadi.wire.append import event_parts
from nadi.wire.commands import Command
from nadi.wire.errors import error_reply


class LocalCommands:
    """Executes commands of callers in the same process. container_of: returns a segment's container; reader: reads its
    bytes."""

    def __init__(
        self, container_of: Callable[[str], Container], reader: SegmentReader, service: SegmentService
    ) -> None:
        self._container_of = container_of
        self._reader = reader
        self._service = service
        self._sessions: dict[bytes, WriterSession] = {}  # by writer: the latest set-up

    async def exchange(self, command: wire.Command) -> wire.Command:
        """Return the reply, which may be an error; raise UnavailableError if the store can't answer."""
        offset = -1
        match command:
            case wire.SetupAppend():
                segment, work = command.segment, self._set_up(command)
            case wire.ReadSegment():
                segment, work, offset = command.segment, self._read(command), command.offset
            case wire.ConditionalAppend():
                session = self._sessions.get(command.writer_id)
                segment, work = session.segment if session is not None else "", self._append(command, session)
            case _:
                return await self._service.handle(command)
        try:
            return await work
        except NadiError as error:
            return error_reply(error, command.request_id, segment, offset)

    async def _set_up(self, command: wire.SetupAppend) -> wire.Command:
        ends_at = self._service.access.check(command)
        session = WriterSession(command.segment, self._container_of(command.segment), ends_at, command.request_id)
        caller = _AppendWaiter()
        session.container.submit(Setup(caller, session, command))
        reply = await caller.reply
        self._sessions[command.writer_id] = session
        return reply

    async def _append(self, command: wire.ConditionalAppend, session: WriterSession | None) -> wire.Command:
        if session is None:
            raise InvalidArgumentError("an append without SetupAppend")
        writer, number = command.writer_id, command.event_number
        if number <= session.stored:
            return wire.InvalidEventNumber(writer, command.request_id, "", number)
        caller, parts = _AppendWaiter(), event_parts(command)
        appends = Appends(caller, session.container.monotonic())
        size, expected = sum(map(len, parts)), command.expected_offset
        appends.appends.append(WriterAppend(session, writer, parts, size, 1, number, command.request_id, expected))
        session.container.submit(appends)
        return await caller.reply

    async def _read(self, command: wire.ReadSegment) -> wire.Command:
        self._service.access.check(command)
        container = self._container_of(command.segment)
        record, data = await self._reader.read(container, command.segment, command.offset, command.suggested_length)
        return reply_to(command, record, data)


class _AppendWaiter:
    """A `Peer` that waits for the one reply to an append or its set-up."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[wire.Command] = asyncio.get_running_loop().create_future()

    def settled(self, count: int) -> None:
        """Does nothing: no back-pressure applies here."""

    def send_all(self, commands: list[wire.DataAppended]) -> None:
        for command in commands:
            self.send(command)

    def send(self, command: wire.Command) -> None:
        if not self.reply.done():  # else the wait was cancelled
            self.reply.set_result(command)

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def end(self) -> None:
        """Does nothing: there is no connection to close."""


log = logging.getLogger(__name__)

_POLLS_A_TURN = 200


class SegmentStore:
    """A segment store: construct it, `start`, `listen`, and `close` it. tokens: if given, every command needs a
    delegation token. runtime: its clocks. chunks: tier 2; by default the one that `tier2` describes, else a folder
    beside the log. log_max_bytes: see `LOG_MAX_BYTES`. parts: the storage of the initial containers, if outside the
    folder; by default the store owns all containers. owner_of: returns the owner of another container. on_lost: called
    with the number of a container that another server took over, once it is closed here; without it the whole store
    must stop then, and `taken_over` is set. It is also set if another server takes over tier 2."""

    def __init__(
        self,
        folder: Path,
        containers: int | None = None,
        tokens: TokenKey | None = None,
        runtime: Runtime = REAL,
        chunks: ChunkStore | None = None,
        parts: Sequence[ContainerStorage] | None = None,
        owner_of: Placement = lambda number: "",
        on_lost: Callable[[int], None] | None = None,
        tier2: Tier2 | None = None,
        log_max_bytes: int = LOG_MAX_BYTES,
        encryption: str | None = None,
    ) -> None:
        self._folder = folder
        with mapped_errors(folder):
            self._lock = FolderLock(folder)
            try:
                make_private(folder)
                if parts is None:
                    store = open_folder(folder, containers, tier2, runtime.unique(), encrypted=encryption is not None)
                    count, options = store.containers, tier2.options if tier2 is not None else {}
                    chunks = chunks or chunks_of(folder, store, options, runtime)
                    self.id, self._is_encrypted = store.cluster, store.is_encrypted
                    self._is_new = all(map(is_pristine, container_folders(folder).values()))
                else:
                    assert containers is not None, "the caller that passes parts passes the number too"
                    count, self.id, self._is_encrypted = containers, "", False  # else `chunks` are unlocked
                    chunks = chunks or ChunkStore.in_folder(folder / TIER2, runtime)
            except BaseException:
                self._lock.release()
                raise
        self.taken_over = asyncio.Event()  # another server has the folder: this one must stop
        self.log_max_bytes = log_max_bytes
        if chunks.claim is not None:
            chunks.claim.on_lost = self.taken_over.set
        self._on_lost, self._encryption = on_lost, encryption
        self._leaving: dict[int, Container] = {}  # released, but not yet closed
        self._coming: Container | None = None  # being acquired
        self._runtime, self.chunks, self.cache, self.counts = runtime, chunks, BlockCache(), StoreCounters()
        if parts is None:
            is_owned = self._lock.is_held
            parts = [LocalStorage(n, folder / f"container-{n}", chunks, is_owned, runtime) for n in range(count)]
        self._registry = ContainerRegistry(count, map(self._container, parts), owner_of)
        self.container_of = self._registry.container_of
        if traces.active is not None:
            tracing = StoreTracing(traces.active)
            self.counts.on_frame, self.counts.on_read = tracing.frame, tracing.read
        self._scheduler = FairScheduler()
        self._reader = SegmentReader(chunks, self.cache, self._scheduler, self.counts)
        self._at_once = asyncio.Semaphore(STORAGE_WRITER_RUNS)
        self._writers = {container.number: self._storage_writer(container) for container in self.containers}
        self._service = SegmentService(self._registry, self._reader, TokenCheck(tokens, runtime.unique()), runtime)
        self.quotas, self.access = self._service.quotas, self._service.access
        self.scrub = self._service.scrub = Scrubber(
            folder / "scrub", self._registry, self._reader, self._writers, runtime
        )
        self._local_commands = LocalCommands(self.container_of, self._reader, self._service)
        self._moves, self._moving = asyncio.Lock(), set[asyncio.Task[None]]()
        self._closed = False
        self._connections: dict[Connection, None] = {}  # in order of arrival
        self.budget = Budget()
        self._patrol: asyncio.Task[None] | None = None
        self._report = SeldomWarning(log, "connections closed: %d, the last from %s: %s", runtime.monotonic)
        self.listener: Listener | None = None
        self.address = ("", 0)
        self.too_slow = 0  # connections ended because the peer was too slow

    def _container(self, parts: ContainerStorage) -> Container:
        container = Container(parts, self.cache, self._runtime, self.counts)
        container.log_max_bytes = self.log_max_bytes
        if parts.looks_for_chunks:
            container.on_opened = partial(note_missing, container, self.chunks)
        container.on_taken_over = self._on_taken_over if self._on_lost is None else partial(self._drop_lost, container)
        return container

    def _on_taken_over(self) -> None:
        if self.chunks.claim is not None and self._lock.is_held():
            self.chunks.claim.overtaken()  # logs the reason
        self.taken_over.set()

    def _storage_writer(self, container: Container) -> StorageWriter:
        return StorageWriter(container, self.chunks, self._reader, self._at_once, self._runtime)

    @property
    def containers(self) -> list[Container]:
        """The containers that the store owns now, by number."""
        return self._registry.all()

    def has(self, segment: str) -> bool:
        """Return whether the store owns the segment's container now."""
        return self._registry.has(segment)

    @property
    def storage_writers(self) -> list[StorageWriter]:
        """The storage writers of the containers, in the same order."""
        return [self._writers[container.number] for container in self.containers]

    async def start(self) -> None:
        """Recover all containers; raise StorageFullError or another NadiError if one can't be recovered."""
        try:
            with mapped_errors(self._folder):
                if self.chunks.claim is not None:
                    await self.chunks.claim.start()
                if self._is_encrypted:
                    await self.chunks.unlock(self._encryption, serves=True, creates=self._is_new)
                for container in self.containers:
                    await container.start()
        except BaseException:
            await self.close()
            raise
        for writer in self.storage_writers:
            writer.start()
        self.scrub.start()

    async def take(self, parts: ContainerStorage) -> None:
        """Acquire a container that no other server has open; raise as `start` does if it can't be recovered. Runs to
        its end even if cancelled, as `give_up` does; `close` waits for either."""
        await self._move(partial(self._take, parts))

    async def _take(self, parts: ContainerStorage) -> None:
        assert parts.number not in self._registry, "a container is acquired only once"
        self._coming = container = self._container(parts)
        try:
            await container.start()
        finally:
            self._coming = None
        self._registry.add(container)
        self._writers[container.number] = self._storage_writer(container)
        self._writers[container.number].start()

    async def give_up(self, number: int) -> None:
        """Release a container: on return its storage is closed, and another store may open it. From now on requests for
        its segments get NotOwnerError, as do waiting reads and queued appends; its writers are notified. The frame in
        flight is still acknowledged. ClosedError: it was lost or released before, or the store is closed."""
        await self._move(partial(self._give_up, number))

    async def _give_up(self, number: int) -> None:
        owner = self._registry.owner_of(number)
        if number not in self._registry:
            raise ClosedError(f"this store no longer owns container {number}: it was lost or released before")
        container = self._leaving[number] = self._registry.remove(number)
        await self._writers.pop(number).stop()
        container.give_up(owner)
        await self._part_with(container, owner)

    async def bring_up_to_date(self, number: int) -> None:
        """Store a container's current state, so that releasing it takes little time; give up after some seconds."""
        container = next((each for each in self.containers if each.number == number), None)
        if container is not None:
            await container.checkpoints.bring_up_to_date()

    async def drop(self, number: int) -> None:
        """Close a container that another server owns, or may own: on return its storage is closed. Like `give_up`, but
        nothing is written from now on: appends in flight get an error, though they may be stored. A release in progress
        ends at once; a container being acquired is dropped afterwards; a container not owned is ignored."""
        self._forsake(number)
        await self._move(partial(self._drop, number))

    def _forsake(self, number: int) -> str:
        """Stop writing for the container, if it is here; return its owner."""
        container, owner = self._leaving.get(number), self._registry.owner_of(number)
        if container is None and number in self._registry:
            container = self._leaving[number] = self._registry.remove(number)
        if container is not None:
            container.lose(owner)
        return owner

    async def _drop(self, number: int) -> None:
        owner = self._forsake(number)  # it may have been acquired meanwhile
        container = self._leaving.get(number)
        if container is not None:
            writer = self._writers.pop(number, None)
            if writer is not None:
                await writer.stop()
            await self._part_with(container, owner)

    def _drop_lost(self, container: Container) -> None:
        """Drop a container that another server owns. One being acquired isn't here yet: its `start` raises the
        error."""
        number = container.number
        if self._closed or (self._leaving.get(number) is not container and container not in self._registry.all()):
            return
        self._forsake(number)
        on_lost = self._on_lost
        assert on_lost is not None, "else the whole store stops"

        async def end() -> None:
            await self._drop(number)
            on_lost(number)

        self._begin(end).add_done_callback(_log_failure)

    async def _part_with(self, container: Container, owner: str) -> None:
        """Notify the container's writers of the new owner, and close it."""
        steps = 0
        for connection in list(self._connections):
            for _ in connection.writers.notify_released(container, owner):
                steps += 1
                if steps % _POLLS_A_TURN == 0:
                    await asyncio.sleep(0)
        await container.stop()
        del self._leaving[container.number]

    async def _move(self, move: Callable[[], Awaitable[None]]) -> None:
        """Run a move to its end: half-way the container would have no owner, and its files would stay open."""
        task = self._begin(move)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)  # no other code sees the error
            raise

    def _begin(self, move: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run_move(move), name="move")
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)
        return task

    async def _run_move(self, move: Callable[[], Awaitable[None]]) -> None:
        """Run one move at a time, with the scrub stopped."""
        async with self._moves:
            if self._closed:
                raise ClosedError("this store is closed: open a new one")
            await self.scrub.stop()
            try:
                await move()
            finally:
                if not self._closed:
                    self.scrub.start()

    async def listen(self, host: str, port: int, tls: TlsContexts | None = None) -> tuple[str, int]:
        """Accept clients; return the address, with the port chosen if `port` is 0."""
        return self.listen_on(await bound_sockets(host, port), tls)

    def listen_on(self, sockets: list[socket.socket], tls: TlsContexts | None = None) -> tuple[str, int]:
        """Accept clients on sockets that are already bound; return the first one's address."""
        self.listener = Listener(
            self._connection,
            _abort,
            most=available_files(CONNECTIONS_MAX),
            most_of_address=CONNECTIONS_OF_ADDRESS,
            name="segment store",
        )
        self.listener.listen(sockets, tls)
        self._patrol = asyncio.create_task(self._patrol_connections(), name="patrol")
        self.address = sockets[0].getsockname()[:2]
        return self.address

    def _connection(self, accepted: AcceptedConnection | None = None) -> Connection:
        return Connection(
            self.container_of,
            self._service,
            self._reader,
            self._connections,
            self._report,
            self.budget,
            self._scheduler,
            *((accepted.mark_busy, accepted.leave) if accepted is not None else ()),
        )

    async def _patrol_connections(self) -> None:
        """Poll each connection now and then, and close those whose peers are too slow."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PATROL_S)
            for number, connection in enumerate(list(self._connections), 1):
                self.too_slow += connection.poll(loop.time())
                if number % _POLLS_A_TURN == 0:
                    await asyncio.sleep(0)

    async def exchange(self, command: Command) -> Command:
        """Return the reply to a command of a caller in the same process."""
        return await self._local_commands.exchange(command)

    def forsake(self) -> None:
        """Abandon all pending writes from now on, as if the process were killed here. For stopping while the log
        doesn't respond; `close` afterwards."""
        self._closed = True
        for container in (*self.containers, *self._leaving.values(), *filter(None, [self._coming])):
            container.lose("")
        for task in self._moving:
            task.cancel()

    async def close(self) -> None:
        """Close connections, finish queued work, write the state, release the folder; idempotent."""
        self._closed = True
        if self.listener is not None:
            self.listener.close()
        if self._patrol is not None:
            self._patrol.cancel()
        for connection in list(self._connections):
            connection.close()
        async with self._moves:
            await self.scrub.stop()
            for writer in self._writers.values():
                await writer.stop()
            containers = [*self.containers, *self._leaving.values()]  # each may wait seconds for its log or tier 2
            await asyncio.gather(*(container.stop() for container in containers))
            await self.chunks.close()
            if self.chunks.claim is not None:
                await self.chunks.claim.close()
            self._lock.release()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("moving a container failed after its caller was cancelled", exc_info=error)


def _abort(protocol: asyncio.BaseProtocol) -> None:
    assert isinstance(protocol, Connection)
    protocol.abort()
