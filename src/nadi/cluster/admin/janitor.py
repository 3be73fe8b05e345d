"""Removes garbage from a cluster's store.

Objects are listed a page at a time, and the record is read after the page. For chunks, the state of the record's
snapshot is restored into a folder, and the description of each old chunk that it doesn't know is read. "Old" is by the
store's own clock: its newest entry of a server or container is taken for now. A log elsewhere tells the ages by itself.

What is decided holds whatever servers do meanwhile, for it follows from a record read *after* the objects were listed,
and from names: records only move on, and no name is used twice. What isn't understood stays. What goes:

- A frame of a log, if its epoch is before that of the record's start and has ended before the frame's number (garbage
  of a deposed owner, behind a seal), or if its sequence is before `held_from`, from which on frames may hold the only
  copy of bytes. Seals are never deleted; an object no longer than a header may be one.
- An object of a snapshot, if the record doesn't name it and its own name says an earlier frame than the snapshot that
  counts: later snapshots consist of what counts now, and of new objects of that frame or later ones.
- A chunk, if it was planned by a frame that the snapshot's state reflects, and that state neither refers to it nor
  knows that it is planned, or garbage.
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


class Cleaned(msgspec.Struct):
    """How many objects were removed, or would be, and their bytes. kept_chunks: old ones that the state doesn't know,
    and of which it isn't certain that nobody will."""

    frames: int = 0
    snapshot_objects: int = 0
    chunks: int = 0
    servers: int = 0
    proofs: int = 0
    removed_bytes: int = 0
    kept_chunks: int = 0

    @property
    def objects(self) -> int:
        return self.frames + self.snapshot_objects + self.chunks + self.servers + self.proofs


class Janitor:
    """Of one cluster. count: of its containers. log: if that isn't in the store. older_s: what is younger stays. dry:
    nothing is removed. goes_on: asked after each page; the cleaning ends early if it returns False."""

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

    async def clean(self) -> Cleaned:
        """Remove garbage from the whole store. UnavailableError: the store can't answer. What was removed until then
        was garbage. StoreError: a record is damaged."""
        cleaned, log = Cleaned(), self._log
        now_ms = 0
        for folder in (membership_view.FOLDER, records.FOLDER):
            async for page in self._pages(folder):
                now_ms = max([now_ms, *(one.modified_ms for one in page)])
        self._before_ms = now_ms - round(self._older_s * 1000)
        # entries of dead servers; a slow one that is alive sets its entry again
        async for page in self._old(membership_view.FOLDER):
            cleaned.servers += await self._remove(page, [one.name for one in page], cleaned)
        async for page in self._old(PROOF):
            cleaned.proofs += await self._remove(page, [one.name for one in page], cleaned)
        if log is not None:
            async for page in self._aged(log, PROOF):
                cleaned.proofs += await self._remove(page, [one.name for one in page], cleaned, log)
        for container in range(self._count):
            folder = folder_of(container)
            async for page in self._old(folder) if log is None else self._aged(log, folder):
                names = frames(container, await self._record(container), page)
                cleaned.frames += await self._remove(page, names, cleaned, log)
            async for page in self._old(snapshots.folder_of(container)):
                names = snapshot_objects(container, await self._record(container), page)
                cleaned.snapshot_objects += await self._remove(page, names, cleaned)
            await self._of_chunks(container, cleaned)
        return cleaned

    async def _of_chunks(self, container: int, cleaned: Cleaned) -> None:
        record = await self._record(container)
        if record.snapshot is None:
            return
        try:
            known = await self._known(container, record)
        except snapshots.SnapshotError as error:  # replaced meanwhile, or damaged: whoever takes it over says so
            log.info("container %d: its chunks aren't cleaned this time: %s", container, error)
            return
        async for page in self._old(f"container-{container}"):
            names = []
            for one in page:
                if one.name in known:
                    continue
                if is_lost_chunk(record, known, one.name, await self._planned_by(container, one)):
                    names.append(one.name)
                else:
                    cleaned.kept_chunks += 1
            cleaned.chunks += await self._remove(page, names, cleaned)

    async def _known(self, container: int, record: ContainerRecord) -> set[str]:
        """All chunks that the state of a snapshot refers to, has planned, or knows as garbage."""
        assert record.snapshot is not None
        in_thread = self._runtime.in_thread
        folder = Path(await in_thread(tempfile.mkdtemp, None, "nadi-clean-"))
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

    async def _planned_by(self, container: int, one: ListedObject) -> int:
        tail_bytes = min(one.size_bytes, _TAIL_BYTES)
        try:
            tail = await self._chunks.read(one.name, one.size_bytes - tail_bytes, tail_bytes)
        except NotFoundError:
            return 0  # its owner has removed it
        described = ChunkDescription.decode(one.name, tail)
        return described.sequence if described is not None and described.container == container else 0

    async def _record(self, container: int) -> ContainerRecord:
        return (await self._records.read(container)).record

    async def _pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        async for page in self._chunks.pages(folder.rstrip("/")):
            if not self._goes_on():
                return
            yield page
            await self._runtime.sleep(self._pause_s)

    async def _old(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        async for page in self._pages(folder):
            if aged := [one for one in page if one.modified_ms < self._before_ms]:
                yield aged

    async def _aged(self, log: OwnEngine, folder: str) -> AsyncIterator[list[ListedObject]]:
        """Of a log that isn't in the store, what is old enough."""
        async with aclosing(log.aged(folder)) as pages:  # type: ignore[type-var]
            async for page in pages:
                if not self._goes_on():
                    return
                if aged := [ListedObject(one.name, one.size_bytes, 0) for one in page if one.age_s > self._older_s]:
                    yield aged
                await self._runtime.sleep(self._pause_s)

    async def _remove(
        self, page: Sequence[ListedObject], names: Sequence[str], cleaned: Cleaned, log: OwnEngine | None = None
    ) -> int:
        engine = log or self._engine
        sizes = {one.name: one.size_bytes for one in page}
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
                log.warning("the store couldn't be cleaned, and will be tomorrow: %s", error)
            else:
                what = "cleaned the store of %d objects that nobody needs, with %d bytes"
                (log.info if cleaned.objects else log.debug)(what, cleaned.objects, cleaned.removed_bytes)
        await runtime.sleep(JANITOR_EACH_S)


_OF_SNAPSHOT = re.compile(r"(?:base-([0-9a-f]{16})-[0-9a-f]{32}-\d+|delta-([0-9a-f]{16})-[0-9a-f]{32})(?:-copy)?")


def frames(container: int, record: ContainerRecord, listed: Iterable[ListedObject]) -> list[str]:
    """The names, among objects of a container's log, of frames that nobody needs."""
    found = []
    for one in listed:
        place = place_of(one.name)
        if place is None or name_of(container, place) != one.name or one.size_bytes <= HEADER_BYTES:
            continue
        if _is_past(record, place):
            found.append(one.name)
    return found


def _is_past(record: ContainerRecord, place: ChainPosition) -> bool:
    start = record.start
    begun = dict(start.begun)
    if place.epoch > start.epoch or start.epoch not in begun:
        return False
    if place.epoch == start.epoch:
        return place.number < start.number and begun[place.epoch] + place.number - 1 < start.held_from
    if place.epoch not in begun:  # it ended before `held_from`, or nothing of it was ever in the chain
        return True
    sequence = begun[place.epoch] + place.number - 1
    end = min(first for epoch, first in start.begun if epoch > place.epoch)
    return sequence >= end or sequence < start.held_from


def snapshot_objects(container: int, record: ContainerRecord, listed: Iterable[ListedObject]) -> list[str]:
    """The names, among objects of a container's snapshots, of those that no snapshot will have any more."""
    if record.snapshot is None:
        return []
    named = record.snapshot.names
    folder = snapshots.folder_of(container) + "/"
    found = []
    for one in listed:
        match = _OF_SNAPSHOT.fullmatch(one.name.removeprefix(folder)) if one.name.startswith(folder) else None
        if match is None or one.name in named:
            continue
        if int(match[1] or match[2], 16) < record.snapshot.sequence:
            found.append(one.name)
    return found


def is_lost_chunk(record: ContainerRecord, known: Collection[str], name: str, planned_by: int) -> bool:
    """Whether nobody will ever refer to a chunk. known: all that the state of the record's snapshot knows. planned_by:
    the sequence of the frame that planned it, 0 if that isn't known."""
    return record.snapshot is not None and name not in known and 0 < planned_by <= record.snapshot.sequence
