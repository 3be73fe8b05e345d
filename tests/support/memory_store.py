"""An in-memory segment store for tests: the real rules, state, reader and connections over a container without a log.

Each request is processed and answered at once, within the call that brings it: nothing waits for a disk, so tests
determine the order of events. `tests/conformance/test_segment_store.py` holds it to the real store's behaviour. Faults
are left to wrappers: the store itself has none but a full disk.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from nadi.access.budget import Budget
from nadi.errors import NadiError, SegmentNotFoundError
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.container.request_queue import QueuedRequest
from nadi.segmentstore.container_registry import ContainerRegistry
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.recovery.storage import ContainerStorage
from nadi.segmentstore.server.connection import Connection
from nadi.segmentstore.server.service import SegmentService, TokenCheck
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.records import FrameRef, SegmentKind, SegmentRecord
from nadi.segmentstore.store import LocalCommands
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire

_PLENTY_BYTES = 1 << 62


@functools.cache
def _nothing_stored() -> ContainerMetadata:
    """Return the stored state: always empty, so that all stores of the process share one."""
    folder = tempfile.TemporaryDirectory(prefix="nadi-tests-")
    metadata = ContainerMetadata(Path(folder.name) / "state", 0)
    atexit.register(folder.cleanup)
    atexit.register(metadata.close)  # called before its own exit handler
    return metadata


class _NoParts:
    number = 0

    def may_answer(self) -> bool:
        return True


class MemoryContainer(Container):
    """A container that processes each request at once, in memory."""

    def __init__(self) -> None:
        super().__init__(cast("ContainerStorage", _NoParts()), BlockCache(_PLENTY_BYTES))
        self.metadata = _nothing_stored()
        self.state = StateMachine(self.metadata, 0.0)
        self.disk_full = False

    def _free_bytes(self, of_reserve: float) -> int:
        return 0 if self.disk_full and not of_reserve else _PLENTY_BYTES

    def submit(self, request: QueuedRequest, *, own: bool = False) -> None:
        state, sequence = self.state, self.state.sequence + 1
        ref = FrameRef(sequence, LogAddress(sequence, 0, 0), self._runtime.monotonic())
        frame = FrameBuilder(ref, self._runtime.now_ms(), state, self._free_bytes)
        try:
            result = request.prepare(frame)
        except NadiError as error:
            request.failed(error)
            return
        parts, extents = frame.finish()
        state.sequence = sequence
        if ref.live_bytes:
            state.frames[sequence] = ref
        for extent, block in zip(extents, parts[1:], strict=True):
            self.cache.put((self.number, sequence, extent.position), block)
        state.durable(frame.touched.values())
        self.load.count(frame.appended, ref.at)
        request.done(result)
        for record in frame.touched.values():
            record.waiters.wake()
            if record.deleted:
                self.load.forget(record.name)


class MemoryStore:
    """A store. `exchange` of a real store is `answer` here, without waiting; `connection` serves a client."""

    def __init__(self) -> None:
        self.container = MemoryContainer()
        self.connections: dict[Connection, None] = {}
        self.refused: list[object] = []  # why connections were closed
        self._scheduler = FairScheduler()
        self._reader = SegmentReader(ChunkStore.from_url("memory:///"), self.container.cache, self._scheduler)
        hosted = ContainerRegistry(1, [self.container])
        self._service = SegmentService(hosted, self._reader, TokenCheck(None), self.container._runtime)
        self._door = LocalCommands(self._container_of, self._reader, self._service)
        self._budget = Budget()

    def _container_of(self, segment: str) -> Container:
        return self.container

    async def exchange(self, command: wire.Command) -> wire.Command:
        """Return a command's reply."""
        return await self._door.exchange(command)

    def answer(self, command: wire.Command) -> Any:
        """Return the reply to a command that doesn't wait; call it within a running loop."""
        coroutine = self._door.exchange(command)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        coroutine.close()
        raise AssertionError(f"the command would wait: {command}")

    def connection(self, kind: type[Connection] = Connection) -> Connection:
        """Return a new client's connection, which needs a transport."""
        return kind(
            self._container_of,
            self._service,
            self._reader,
            self.connections,
            lambda _, reason: self.refused.append(reason),
            self._budget,
            self._scheduler,
        )

    # --- for tests: contents, and changes by other clients ---------------------------------------------

    @property
    def segments(self) -> Mapping[str, Held]:
        """The stream segments, including transient ones, with their current contents."""
        return {r.name: Held(self, r) for r in self._records() if r.kind != SegmentKind.TABLE}

    @property
    def tables(self) -> Mapping[str, HeldTable]:
        return {r.name: HeldTable(r) for r in self._records() if r.kind == SegmentKind.TABLE}

    def _records(self) -> Iterator[SegmentRecord]:
        return iter(self.container.state.record_cache.all())

    def create(self, name: str) -> None:
        self._done(wire.CreateSegment(0, name, 0, 0, ""))

    def seal(self, name: str) -> None:
        self._done(wire.SealSegment(0, name, ""))

    def truncate(self, name: str, offset: int) -> None:
        self._done(wire.TruncateSegment(0, name, offset, ""))

    def delete(self, name: str) -> None:
        self._done(wire.DeleteSegment(0, name, ""))

    def merge(self, target: str, source: str) -> None:
        self._done(wire.MergeSegments(0, target, source, ""))

    def append(self, name: str, data: bytes) -> None:
        """Append bytes without a known writer."""

        def add(frame: FrameBuilder) -> int:
            record = self.container.state.find(name)
            if record is None:
                raise SegmentNotFoundError(name)
            assert not record.sealed, f"{name} is sealed"
            return frame.append(record, [data], len(data), 1, None, 0)

        self.container.submit(_Now(add))

    def data(self, name: str) -> bytes:
        return self.segments[name].data

    def _done(self, command: wire.Command) -> None:
        reply = self.answer(command)
        assert type(reply).__name__.startswith("Segment"), reply
        assert not isinstance(reply, wire.SegmentIsSealed | wire.SegmentIsTruncated | wire.SegmentAlreadyExists), reply


class Held:
    """A stream segment's current contents."""

    def __init__(self, store: MemoryStore, record: SegmentRecord) -> None:
        self._store, self._record = store, record

    @property
    def data(self) -> bytes:
        """The bytes from offset 0; zeros where truncated."""
        record, parts = self._record, [bytes(self.start)]
        offset = self.start
        while offset < record.length:
            _, block = self._store._reader.at_hand(self._store.container, record.name, offset, record.length)
            assert block is not None, "all data is in memory"
            parts.append(bytes(block))
            offset += len(block)
        return b"".join(parts)

    @property
    def start(self) -> int:
        return self._record.start_offset

    @property
    def sealed(self) -> bool:
        return self._record.sealed

    @property
    def target_rate(self) -> int:
        return self._record.target_rate

    @property
    def attributes(self) -> dict[bytes, int]:
        """The live attributes: changing them changes the store."""
        return self._record.attributes


class HeldTable:
    """A table's current contents."""

    def __init__(self, record: SegmentRecord) -> None:
        self._record = record

    @property
    def entries(self) -> dict[bytes, tuple[int, bytes]]:
        return {key: (version, value) for key, (version, value) in self._record.overlay.items() if value is not None}


class _Now:
    """A request whose error is raised at the point of the call."""

    size_bytes = 0
    count = 1

    def __init__(self, prepare: Any) -> None:
        self.prepare = prepare

    def done(self, result: object) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error
