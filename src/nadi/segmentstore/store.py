"""The segment store of one data folder: its containers, its tier 2, and the door for clients.

DIR/format                  the folder's format and number of containers (`datafolder`)
DIR/lock                    held by the one server that uses the folder
DIR/container-N/log/        tier 1
DIR/container-N/state/      the container's state, written behind
DIR/container-N/reserve     room kept aside for a recovery on a full disk, and for the state
DIR/container-N/format      a copy of DIR/format
DIR/scrub                   how far the weekly reading of everything is
DIR/tier2/                  chunk objects, and snapshots of the states, where tier 2 is local
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nadi.access.budget import Budget
from nadi.access.listener import Guest, Listener, bound_sockets, files_left
from nadi.access.tokens import TokenKey
from nadi.limits import CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS, PATROL_S, STORAGE_WRITER_RUNS
from nadi.segmentstore.container import inventory
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container, wall_clock_ms
from nadi.segmentstore.datafolder import FolderLock, container_number, explained, make_private, read_format
from nadi.segmentstore.doors.access import TokenCheck
from nadi.segmentstore.doors.connection import Connection
from nadi.segmentstore.doors.local import InnerDoor
from nadi.segmentstore.doors.service import SegmentService
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.rota import Rota
from nadi.segmentstore.scrub import Scrub
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.seldom import SeldomWarning
from nadi.wire.commands import Command

log = logging.getLogger(__name__)

_LOOKS_A_TURN = 200


class SegmentStore:
    """Open it, `listen`, and `close` it.

    tokens: with it every command must show a delegation token. now_ms: the clock that says when something was
    appended.
    """

    def __init__(
        self,
        folder: Path,
        containers: int | None = None,
        tokens: TokenKey | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._folder = folder
        with explained(folder):
            self._lock = FolderLock(folder)
            try:
                make_private(folder)
                count = read_format(folder, containers)
                chunks = ChunkStore.in_folder(folder / "tier2")
            except BaseException:
                self._lock.release()
                raise
        self.taken = asyncio.Event()  # another server has the folder: this one must stop
        cache = BlockCache()
        self.containers = [Container(n, folder / f"container-{n}", cache, chunks, now_ms) for n in range(count)]
        for container in self.containers:
            container.on_opened = partial(inventory.take, container, chunks)
            container.is_owned, container.on_taken = self._lock.is_held, self.taken.set
        self._rota = Rota()
        self._reader = SegmentReader(chunks, cache, self._rota)
        at_once = asyncio.Semaphore(STORAGE_WRITER_RUNS)
        self.storage_writers = [
            StorageWriter(container, chunks, self._reader, at_once) for container in self.containers
        ]
        self._service = SegmentService(self.container_of, self._reader, TokenCheck(tokens))
        self.scrub = self._service.scrub = Scrub(
            folder / "scrub", self.containers, self._reader, self.storage_writers, now_ms
        )
        self._door = InnerDoor(self.container_of, self._reader, self._service)
        self._connections: set[Connection] = set()
        self.budget = Budget()
        self._patrol: asyncio.Task[None] | None = None
        self._report = SeldomWarning(log, "%d connections were ended, the last from %s: %s")
        self.listener: Listener | None = None
        self.address = ("", 0)
        self.too_slow = 0  # connections that were ended for it

    def container_of(self, segment: str) -> Container:
        """The container that owns the segment of that name, by a hash that ignores epochs and transactions."""
        if len(self.containers) == 1:
            return self.containers[0]
        return self.containers[container_number(segment, len(self.containers))]

    async def start(self) -> None:
        """Recover all containers; StorageFullError or another NadiError says why one can't be."""
        started: list[Container] = []
        try:
            with explained(self._folder):
                for container in self.containers:
                    await container.start()
                    started.append(container)
        except BaseException:
            for container in started:
                await container.stop()
            self._lock.release()
            raise
        for writer in self.storage_writers:
            writer.start()
        self.scrub.start()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Take clients; gives the address, with the port that was found for port 0."""
        found = await bound_sockets(host, port)
        self.listener = Listener(
            self._connection,
            _abort,
            most=files_left(CONNECTIONS_MAX),
            most_of_address=CONNECTIONS_OF_ADDRESS,
            name="segment store",
        )
        self.listener.listen(found, tls)
        self._patrol = asyncio.create_task(self._look_after(), name="patrol")
        self.address = found[0].getsockname()[:2]
        return self.address

    def _connection(self, guest: Guest | None = None) -> Connection:
        return Connection(
            self.container_of,
            self._service,
            self._reader,
            self._connections,
            self._report,
            self.budget,
            self._rota,
            *((guest.settle, guest.leave) if guest is not None else ()),
        )

    async def _look_after(self) -> None:
        """End connections whose peers are too slow, each looked at every now and then."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PATROL_S)
            connections = list(self._connections)
            for first in range(0, len(connections), _LOOKS_A_TURN):
                for connection in connections[first : first + _LOOKS_A_TURN]:
                    self.too_slow += connection.look(loop.time())
                await asyncio.sleep(0)

    async def exchange(self, command: Command) -> Command:
        """A command's reply, for whoever lives in the same process."""
        return await self._door.exchange(command)

    async def close(self) -> None:
        """End connections, finish what is queued, write the state, release the folder."""
        if self.listener is not None:
            self.listener.close()
        if self._patrol is not None:
            self._patrol.cancel()
        for connection in list(self._connections):
            connection.close()
        await self.scrub.stop()
        for writer in self.storage_writers:
            await writer.stop()
        for container in self.containers:
            await container.stop()
        self._lock.release()


def _abort(protocol: asyncio.BaseProtocol) -> None:
    assert isinstance(protocol, Connection)
    protocol.abort()
