"""Removes garbage from a cluster's store.

Objects are listed page by page, and the record is read after the page. For chunks, the state of the record's snapshot
is restored into a folder, and the description of each old chunk unknown to that state is read. Age is measured by the
store's own clock: its newest entry of a server or container counts as the present. A separate log reports ages itself.

Each decision stays valid whatever servers do meanwhile, because it follows from names and from a record read *after*
the objects were listed: records only advance, and names are never reused. Unrecognised objects are kept. Garbage is:

- A frame of a log if its epoch is before the record's start epoch and ended before the frame's number (written by a
  deposed owner, behind a seal), or if its sequence is before `held_from`. Frames from `held_from` on may hold the only
  copy of bytes. Seals are never deleted; an object no longer than a header may be a seal.
- An object of a snapshot if the record doesn't name it and its own name gives an earlier frame than the current
  snapshot. Later snapshots consist of the current objects and of new ones from that frame or later.
- A chunk if it was planned by a frame that the snapshot's state reflects, and that state neither refers to it nor lists
  it as planned or garbage.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec

from nadi.cluster import membership_view
from nadi.errors import NadiError, NotFoundError
from nadi.limits import JANITOR_DELETED_AT_ONCE, JANITOR_EACH_S, JANITOR_FIRST_S, JANITOR_OLDER_S, JANITOR_PAUSE_S
from nadi.object_log.engine import LogEngine, OwnEngine, Registry
from nadi.object_log.store_probe import PROOF
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import HEADER_BYTES, ChainPosition, folder_of, name_of, place_of
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.snapshots import restored
from nadi.segmentstore.tier2 import records
from nadi.segmentstore.tier2.checksums import ChunkDescription
from nadi.segmentstore.tier2.chunks import ChunkStore, ListedObject
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords

log = logging.getLogger(__name__)
_TAIL_BYTES = 64 * 1024  # holds any chunk's description


class CleanupResult(msgspec.Struct):
    """Number and bytes of removed objects, or of those that a dry run would remove. retained_chunks: old chunks unknown
    to the state that a container may still refer to."""

    frames: int = 0
    snapshot_objects: int = 0
    chunks: int = 0
    servers: int = 0
    proofs: int = 0
    removed_bytes: int = 0
    retained_chunks: int = 0

    @property
    def objects(self) -> int:
        return self.frames + self.snapshot_objects + self.chunks + self.servers + self.proofs


class Janitor:
    """Garbage collector of one cluster.

    count: number of containers. log: the log outside the store, if any. older_s: minimum age of garbage. dry: report
    only. goes_on: called after each page; cleaning ends early when it returns False.
    """

    def __init__(
        self,
        engine: LogEngine,
        registry: Registry,
        chunks: ChunkStore,
        count: int,
        runtime: Runtime,
        *,
        log: OwnEngine | None = None,
        older_s: float = JANITOR_OLDER_S,
        dry: bool = False,
        goes_on: Callable[[], bool] = lambda: True,
        pause_s: float = JANITOR_PAUSE_S,
    ) -> None:
        self._engine, self._registry, self._chunks, self._count = engine, registry, chunks, count
        self._log = log
        self._runtime, self._older_s, self._dry = runtime, older_s, dry
        self._goes_on, self._pause_s = goes_on, pause_s
        self._records = ContainerRecords(registry, runtime)

    async def clean(self) -> CleanupResult:
        """Remove garbage from the whole store. UnavailableError: the store doesn't respond; objects removed so far were
        garbage. StoreError: a record is damaged."""
        cleaned, log = CleanupResult(), self._log
        now_ms = 0
        for folder in (membership_view.FOLDER, records.FOLDER):
            async for page in self._pages(folder):
                now_ms = max([now_ms, *(item.modified_ms for item in page)])
        self._before_ms = now_ms - round(self._older_s * 1000)
        # entries of dead servers; a slow but live server rewrites its entry
        async for page in self._old_pages(membership_view.FOLDER):
            cleaned.servers += await self._remove(page, [item.name for item in page], cleaned)
        async for page in self._old_pages(PROOF):
            cleaned.proofs += await self._remove(page, [item.name for item in page], cleaned)
        if log is not None:
            async for page in self._old_log_pages(log, PROOF):
                cleaned.proofs += await self._remove(page, [item.name for item in page], cleaned, log)
        for container in range(self._count):
            folder = folder_of(container)
            async for page in self._old_pages(folder) if log is None else self._old_log_pages(log, folder):
                names = frames(container, await self._record(container), page)
                cleaned.frames += await self._remove(page, names, cleaned, log)
            async for page in self._old_pages(snapshots.folder_of(container)):
                names = snapshot_objects(container, await self._record(container), page)
                cleaned.snapshot_objects += await self._remove(page, names, cleaned)
            await self._clean_chunks(container, cleaned)
        return cleaned

    async def _clean_chunks(self, container: int, cleaned: CleanupResult) -> None:
        record = await self._record(container)
        if record.snapshot is None:
            return
        try:
            known = await self._known_chunks(container, record)
        except snapshots.SnapshotError as error:  # replaced meanwhile, or damaged: a takeover reports damage
            log.info("container %d: chunks not cleaned in this run: %s", container, error)
            return
        async for page in self._old_pages(f"container-{container}"):
            names = []
            for chunk in page:
                if chunk.name in known:
                    continue
                if is_lost_chunk(record, known, chunk.name, await self._planned_by(container, chunk)):
                    names.append(chunk.name)
                else:
                    cleaned.retained_chunks += 1
            cleaned.chunks += await self._remove(page, names, cleaned)

    async def _known_chunks(self, container: int, record: ContainerRecord) -> set[str]:
        """Return all chunks that the state of a snapshot refers to, has planned, or lists as garbage."""
        assert record.snapshot is not None
        in_thread = self._runtime.in_thread
        folder = Path(await in_thread(tempfile.mkdtemp, None, "nadi-clean-", self._chunks.sealing.scratch))
        try:
            metadata, _ = await restored(self._chunks, container, record.snapshot, folder)
            try:
                state = metadata.state()
                chunks = await in_thread(lambda: {chunk for _, _, _, chunk in metadata.chunks()})
                return {*chunks, *state.planned, *state.garbage}
            finally:
                metadata.close()
        finally:
            await in_thread(shutil.rmtree, folder, True)

    async def _planned_by(self, container: int, chunk: ListedObject) -> int:
        tail_bytes = min(chunk.size_bytes, _TAIL_BYTES)
        try:
            tail = await self._chunks.read(chunk.name, chunk.size_bytes - tail_bytes, tail_bytes)
        except NotFoundError:
            return 0  # removed by its owner
        described = ChunkDescription.decode(chunk.name, tail, self._chunks.sealing)
        return described.sequence if described is not None and described.container == container else 0

    async def _record(self, container: int) -> ContainerRecord:
        return (await self._records.read(container)).record

    async def _pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        async for page in self._chunks.pages(folder.rstrip("/")):
            if not self._goes_on():
                return
            yield page
            await self._runtime.sleep(self._pause_s)

    async def _old_pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        async for page in self._pages(folder):
            if aged := [item for item in page if item.modified_ms < self._before_ms]:
                yield aged

    async def _old_log_pages(self, log: OwnEngine, folder: str) -> AsyncIterator[list[ListedObject]]:
        """Yield pages of old objects from the log outside the store."""
        async with aclosing(log.aged(folder)) as pages:  # type: ignore[type-var]
            async for page in pages:
                if not self._goes_on():
                    return
                if aged := [ListedObject(item.name, item.size_bytes, 0) for item in page if item.age_s > self._older_s]:
                    yield aged
                await self._runtime.sleep(self._pause_s)

    async def _remove(
        self, page: Sequence[ListedObject], names: Sequence[str], cleaned: CleanupResult, log: OwnEngine | None = None
    ) -> int:
        engine = log or self._engine
        sizes = {item.name: item.size_bytes for item in page}
        if not self._dry:
            for first in range(0, len(names), JANITOR_DELETED_AT_ONCE):
                await engine.delete(names[first : first + JANITOR_DELETED_AT_ONCE])
        cleaned.removed_bytes += sum(sizes[name] for name in names)
        return len(names)


async def clean_daily(janitor: Janitor, runtime: Runtime, is_due: Callable[[], bool]) -> None:
    await runtime.sleep(JANITOR_FIRST_S)
    while True:
        if is_due():
            try:
                cleaned = await janitor.clean()
            except (TimeoutError, NadiError, OSError) as error:
                log.warning("cleaning the store failed: %s; the next run is tomorrow", error)
            else:
                message = "removed %d unused objects with %d bytes from the store"
                (log.info if cleaned.objects else log.debug)(message, cleaned.objects, cleaned.removed_bytes)
        await runtime.sleep(JANITOR_EACH_S)


_OF_SNAPSHOT = re.compile(r"(?:base-([0-9a-f]{16})-[0-9a-f]{32}-\d+|delta-([0-9a-f]{16})-[0-9a-f]{32})(?:-copy)?")


def frames(container: int, record: ContainerRecord, listed: Iterable[ListedObject]) -> list[str]:
    """Return the names, among the listed objects of a container's log, of frames that are garbage."""
    garbage = []
    for item in listed:
        position = place_of(item.name)
        if position is None or name_of(container, position) != item.name or item.size_bytes <= HEADER_BYTES:
            continue
        if _is_past(record, position):
            garbage.append(item.name)
    return garbage


def _is_past(record: ContainerRecord, position: ChainPosition) -> bool:
    start = record.start
    begun = dict(start.begun)
    if position.epoch > start.epoch or start.epoch not in begun:
        return False
    if position.epoch == start.epoch:
        return position.number < start.number and begun[position.epoch] + position.number - 1 < start.held_from
    if position.epoch not in begun:  # it ended before `held_from`, or none of its frames was ever in the chain
        return True
    sequence = begun[position.epoch] + position.number - 1
    end = min(first for epoch, first in start.begun if epoch > position.epoch)
    return sequence >= end or sequence < start.held_from


def snapshot_objects(container: int, record: ContainerRecord, listed: Iterable[ListedObject]) -> list[str]:
    """Return the names, among the listed objects of a container's snapshots, of those that no later snapshot will
    contain."""
    if record.snapshot is None:
        return []
    named = record.snapshot.names
    folder = snapshots.folder_of(container) + "/"
    garbage = []
    for item in listed:
        match = _OF_SNAPSHOT.fullmatch(item.name.removeprefix(folder)) if item.name.startswith(folder) else None
        if match is None or item.name in named:
            continue
        if int(match[1] or match[2], 16) < record.snapshot.sequence:
            garbage.append(item.name)
    return garbage


def is_lost_chunk(record: ContainerRecord, known: Collection[str], name: str, planned_by: int) -> bool:
    """Return whether no state will ever refer to a chunk. known: all chunks known to the state of the record's
    snapshot. planned_by: the sequence of the frame that planned the chunk, 0 if unknown."""
    return record.snapshot is not None and name not in known and 0 < planned_by <= record.snapshot.sequence
