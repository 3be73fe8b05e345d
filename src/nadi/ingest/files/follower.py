"""Follower: finds files, knows them again, and has each read by a Tail.

A file is one that is known if its inode and its beginning are those of a place. If a place's own file is gone, or was
emptied, another that begins so and is long enough is the copy that rotation made of it, and goes on from there. A file
whose whole content is the beginning of another's beside it is such a copy in the making, and waits. All others are new.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedWriter
from nadi.ingest.files.disk import FileId, OpenFile, identity, matching, siblings_in
from nadi.ingest.files.places import Place, Places, patiently
from nadi.ingest.files.tail import End, Progress, Reading, Tail
from nadi.limits import INGEST_FILES, INGEST_FILES_AT_ONCE, INGEST_KEEP_S, INGEST_SCAN_S


@dataclass(frozen=True, slots=True)
class _Scan:
    """What is on disk: the files that match, and those beside the places' files that nothing else names."""

    found: dict[FileId, str]
    beside: dict[FileId, str]


class Follower:
    """Of some patterns, into one stream. from_end: files that are there when a name is at work for the first time are
    read from their ends. `run` it until it is cancelled, or with `reading.once` until all is written.
    """

    def __init__(
        self,
        manager: StreamManager,
        scope: str,
        stream: str,
        patterns: Sequence[str],
        places: Places,
        reading: Reading,
        *,
        from_end: bool = False,
    ) -> None:
        self.progress = Progress()
        self.waiting_files = 0  # beyond the limit of open ones
        self._patterns, self._places, self._reading, self._from_end = patterns, places, reading, from_end
        self._shape = StreamShape(stores_of(manager), scope, stream)
        self._slots = asyncio.Semaphore(INGEST_FILES_AT_ONCE)
        self._known: dict[bytes, Place] = {}  # those that no tail reads
        self._over: dict[FileId, int] = {}  # files that are over, and how long they were
        self._tails: dict[FileId, Tail] = {}
        self._tasks: dict[asyncio.Task[End | None], Tail] = {}

    async def run(self) -> None:
        self._known = {place.id: place for place in await self._places.load()}
        keeping = asyncio.create_task(self._keep())
        try:
            while True:
                await self._look()
                await self._settle(INGEST_SCAN_S)
                if self._reading.once and not self._tasks and not self.waiting_files:
                    return
        finally:
            keeping.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(keeping, *self._tasks, return_exceptions=True)
            await self._keep_all()
            for tail in self._tails.values():
                tail.close()

    async def _settle(self, timeout_s: float) -> None:
        """Wait, and see which files are done."""
        tasks = list(self._tasks)
        if not tasks:
            if not self._reading.once:
                await asyncio.sleep(timeout_s)
            return
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            tail = self._tasks.pop(task)
            await self._end(tail, task.result())
        if not self._reading.once:
            await asyncio.sleep(timeout_s if done else 0)

    async def _end(self, tail: Tail, end: End | None) -> None:
        del self._tails[tail.file.id]
        if end is not End.EMPTIED:
            self._over[tail.file.id] = tail.file.size
        if end is End.OVER and tail.file.is_deleted:
            self._over.pop(tail.file.id, None)
            await self._places.forget(tail.place)
        else:
            await self._places.keep(tail.place)
            self._known[tail.place.id] = tail.place
        tail.close()

    # --- which files there are ---------------------------------------------------------------

    async def _look(self) -> None:
        folders = {os.path.dirname(place.path) for place in self._known.values()}
        scan = await asyncio.to_thread(_scan, self._patterns, folders)
        for tail in self._tails.values():
            tail.is_replaced = await asyncio.to_thread(identity, tail.place.path) != tail.file.id
        was_begun = self._places.were_begun
        files = await asyncio.to_thread(self._opened, scan)
        try:
            await self._begin_known(files, self._place_at)
            there = {file.id for file in files} | self._tails.keys()
            await self._begin_known(files, lambda file: self._place_of_copy(file, there))
            for file in [file for file in files if file.id in scan.found]:
                if file.is_worth_knowing() and not await asyncio.to_thread(self._may_be_a_copy, file):
                    files.remove(file)
                    await self._begin(file, await self._new(file, from_end=self._from_end and not was_begun))
        finally:
            for file in files:
                file.close()
        if not was_begun:
            await self._places.begin()

    async def _begin_known(self, files: list[OpenFile], place_of: Callable[[OpenFile], Place | None]) -> None:
        for file in list(files):
            if (place := await asyncio.to_thread(place_of, file)) is not None:
                files.remove(file)
                await self._begin(file, place)

    def _opened(self, scan: _Scan) -> list[OpenFile]:
        """The files that nothing reads yet; empty ones aren't anything yet."""
        opened: list[OpenFile] = []
        self.waiting_files = 0
        for file_id, path in (*scan.found.items(), *scan.beside.items()):
            if file_id in self._tails:
                continue
            if len(self._tails) + len(opened) >= INGEST_FILES:
                self.waiting_files += 1
                continue
            try:
                file = OpenFile(path)
            except OSError:
                continue  # gone again, or not to be read
            if file.size and file.id == file_id and self._over.get(file_id) != file.size:
                opened.append(file)
            else:
                file.close()
        return opened

    def _place_at(self, file: OpenFile) -> Place | None:
        """The place of this very file."""
        for place in self._known.values():
            if place.file == file.id and file.size >= place.offset and file.begins_so(place.head):
                return place
        return None

    def _place_of_copy(self, file: OpenFile, there: Iterable[FileId]) -> Place | None:
        """The place of a file that is gone, or was emptied, and of which this is the copy."""
        for place in self._known.values():
            is_beside = os.path.dirname(place.path) == os.path.dirname(file.path)
            is_like_it = is_beside and file.size >= place.offset and file.begins_so(place.head)
            if is_like_it and file.id != place.file and (place.file not in there or not self._is_itself(place)):
                return place
        return None

    def _is_itself(self, place: Place) -> bool:
        try:
            file = OpenFile(place.path)
        except OSError:
            return False
        try:
            return file.id == place.file and file.size >= place.offset and file.begins_so(place.head)
        finally:
            file.close()

    def _may_be_a_copy(self, file: OpenFile) -> bool:
        """Whether it is the copy of a file beside it that is about to be emptied, or has been just now."""
        folder = os.path.dirname(file.path)
        for tail in self._tails.values():
            if os.path.dirname(tail.file.path) == folder and (
                file.is_beginning_of(tail.file) or (file.begins_so(tail.place.head) and tail.was_emptied)
            ):
                return True
        return False

    async def _new(self, file: OpenFile, *, from_end: bool) -> Place:
        head = file.head()
        epoch = await patiently(self._shape.newest_epoch)
        place = Place(uuid.uuid4().bytes, *file.id, file.path, file.path, head.size, head.digest, epoch)
        if from_end:
            place.offset = await asyncio.to_thread(_last_line_end, file)
        await self._places.keep(place)
        return place

    async def _begin(self, file: OpenFile, place: Place) -> None:
        self._known.pop(place.id, None)
        self._over.pop(file.id, None)
        if place.file != file.id:
            place.is_of(file.id, place.path, place.head)
            await self._places.keep(place)
        before = [tail for tail in self._tails.values() if tail.place.path == place.path]
        writer = NumberedWriter(self._shape, place.id, since_epoch=place.epoch)
        work = self._reading, self._places.keep, self._slots, self.progress
        tail = Tail(file, place, writer, *work, before[-1] if before else None)
        tail.is_replaced = identity(place.path) != file.id
        self._tails[file.id] = tail
        self.progress.files += 1
        self._tasks[asyncio.create_task(tail.run())] = tail

    # --- keeping places ------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(INGEST_KEEP_S)
            await self._keep_all()

    async def _keep_all(self) -> None:
        for tail in list(self._tails.values()):
            if tail.is_dirty:
                tail.is_dirty = False
                await self._places.keep(tail.place)


def _scan(patterns: Sequence[str], folders: Iterable[str]) -> _Scan:
    found, beside = matching(patterns), dict[FileId, str]()
    for folder in folders:
        for path in siblings_in(folder or "."):
            if (known := identity(path)) is not None and known not in found:
                beside[known] = path
    return _Scan(found, beside)


def _last_line_end(file: OpenFile) -> int:
    """Where the last whole line ends."""
    end, size = file.size, 64 * 1024
    while end > 0:
        start = max(0, end - size)
        at = file.read(start, end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
