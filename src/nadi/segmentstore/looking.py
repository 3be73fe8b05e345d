"""A stopped data folder that answers as its server would: commands that change nothing, and their replies."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from nadi.runtime import REAL
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.datafolder import known_containers
from nadi.segmentstore.doors.local import InnerDoor
from nadi.segmentstore.doors.service import SegmentService, TokenCheck
from nadi.segmentstore.hosted import Hosted
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.repair.inspection import state_to_use
from nadi.segmentstore.repair.report import Report
from nadi.segmentstore.repair.stopped import StoppedContainer
from nadi.segmentstore.rota import Rota
from nadi.segmentstore.state.records import FrameRef
from nadi.segmentstore.tier2 import opening
from nadi.wire.commands import Command

T = TypeVar("T")


class StoppedStore:
    """`exchange` answers as the store would; what would change anything is refused with StorageFullError."""

    def __init__(self, containers: list[StoppedContainer], reader: SegmentReader) -> None:
        self.containers = containers
        container_of = Hosted(len(containers), containers).container_of
        service = SegmentService(container_of, reader, TokenCheck(), REAL)
        self._door = InnerDoor(container_of, reader, service)

    async def exchange(self, command: Command) -> Command:
        return await self._door.exchange(command)


class _Asked(StoppedContainer):
    async def call(self, function: Callable[[FrameBuilder], T], size_bytes: int = 64, *, own: bool = False) -> T:
        no_room = FrameBuilder(FrameRef(self.state.sequence + 1, None, 0.0), 0, self.state, lambda _: 0)
        return function(no_room)


@asynccontextmanager
async def looked_at(folder: Path) -> AsyncIterator[StoppedStore]:
    """The store of a folder that no server has open, but on which one could start; nothing there is changed.

    Raises:
        DamagedStateError: no server could start on it.
        UnavailableError, OSError: it can't be read.
    """
    async with AsyncExitStack() as stack:
        chunks = stack.enter_context(opening.looked_at(folder, REAL))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nadi-look-")))
        containers: list[StoppedContainer] = []
        for number, path in known_containers(folder).items():
            state = scratch / path.name
            has_all = await state_to_use(Report(path.name), path, number, chunks, state)
            container = _Asked(number, path, chunks)
            await container.open(state, has_all=bool(has_all))
            stack.push_async_callback(container.shut)
            containers.append(container)
        yield StoppedStore(containers, SegmentReader(chunks, containers[0].cache, Rota()))
