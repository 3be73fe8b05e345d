"""Follower: finds files, knows them again, and has each read by a Tail.

A file is one that is known if its inode, its beginning, and what is before its place are those of a place. If a place's
own file is gone, or was emptied, another that is so and is long enough is the copy that rotation made of it, and goes
on from there. A file whose whole content is the beginning of another's beside it is such a copy in the making, and
waits. All others are new. Files that were written to longest ago are begun first, for rotation makes them so.
"""

from __future__ import annotations

import asyncio
import resource
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedWriter
from nadi.ingest.files.disk import FileId, OpenFile, Seen, State, add_seen, identity, matching, siblings_in
from nadi.ingest.files.places import Place, Places, patiently
from nadi.ingest.files.tail import End, Progress, Reading, Tail
from nadi.limits import (
    INGEST_END_S,
    INGEST_FILES,
    INGEST_FILES_AT_ONCE,
    INGEST_FILES_LEFT,
    INGEST_KEEP_S,
    INGEST_LOOK_S,
    INGEST_PLACES_KEPT_S,
    INGEST_SCAN_S,
    INGEST_SEEN_S,
)


class Known:
    """Filled and emptied by the follower, which asks it of each file that it comes upon."""

    def __init__(self) -> None:
        self._places: dict[bytes, Place] = {}
        self._by_file: defaultdict[FileId, dict[bytes, Place]] = defaultdict(dict)
        self._by_folder: defaultdict[str, dict[bytes, Place]] = defaultdict(dict)

    def add(self, place: Place) -> None:
        self._places[place.id] = self._by_file[place.file][place.id] = self._by_folder[place.folder][place.id] = place

    def remove(self, place: Place) -> None:
        if self._places.pop(place.id, None) is not None:
            del self._by_file[place.file][place.id]
            del self._by_folder[place.folder][place.id]

    @property
    def folders(self) -> list[str]:
        """Where their files are, whatever they are called by now."""
        return [folder for folder, places in self._by_folder.items() if places]

    def at(self, file: OpenFile) -> Place | None:
        """The place of this very file."""
        return next((place for place in self._of(file.id) if place.is_in(file)), None)

    def copied_to(self, file: OpenFile, there: Mapping[FileId, Seen]) -> Place | None:
        """The place of a file that is gone, or was emptied, and of which this is the copy. there: all files."""
        for place in list(self._by_folder.get(file.folder, {}).values()):
            if place.file != file.id and place.is_in(file) and not _is_there(place, there):
                return place
        return None

    def seen(self, there: Iterable[FileId]) -> tuple[list[Place], list[Place]]:
        """Given the files there are: the places that are to be kept because their files are still seen, each once a
        day, and those to be forgotten because nobody has seen their files for long, which it hasn't any more."""
        now, seen = time.time(), list[Place]()
        for file_id in there:
            for place in self._of(file_id):
                if now - place.seen_s > INGEST_SEEN_S:
                    seen.append(place)
        new = {place.id for place in seen}
        gone = [one for one in self._places.values() if now - one.seen_s > INGEST_PLACES_KEPT_S and one.id not in new]
        for place in gone:
            self.remove(place)
        return seen, gone

    def _of(self, file_id: FileId) -> list[Place]:
        return list(self._by_file.get(file_id, {}).values())


def _is_there(place: Place, there: Mapping[FileId, Seen]) -> bool:
    try:
        file = OpenFile(there[place.file].path)
    except (KeyError, OSError):
        return False
    try:
        return file.id == place.file and place.is_in(file)
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class _Scan:
    """What is on disk. found: what matches; all: also what is beside the places' files."""

    found: dict[FileId, Seen]
    all: dict[FileId, Seen]


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
        self._most_files = _most_files()
        self._known = Known()
        self._done: dict[FileId, State] = {}  # files that nothing is to be read of, as they were then,
        self._others: dict[FileId, State] = {}  # and such as are no place's, as long as there are no other places
        self._copies: dict[FileId, tuple[State, Tail]] = {}  # of what
        self._tails: dict[FileId, Tail] = {}
        self._tasks: dict[asyncio.Task[End | None], Tail] = {}

    async def run(self) -> None:
        for place in await self._places.load():
            self._known.add(place)
        keeping, watching = asyncio.create_task(self._keep()), asyncio.create_task(self._watch())
        try:
            while True:
                await self._look()
                await self._settle(INGEST_SCAN_S, keeping, watching)
                if self._reading.once and not self._tasks and not self.waiting_files:
                    return
        finally:
            tasks = [keeping, watching, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            try:
                async with asyncio.timeout(INGEST_END_S):  # a server that is away: the segments know the rest
                    await self._keep_all()
            except TimeoutError:
                pass
            finally:
                for tail in self._tails.values():
                    tail.close()

    async def _settle(self, timeout_s: float, *work: asyncio.Task[None]) -> None:
        """Wait, and see which files are done. work: never is."""
        if self._reading.once and not self._tasks:
            return
        done, _ = await asyncio.wait([*self._tasks, *work], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            if task in done:
                task.result()
        await self._end([(self._tasks.pop(task), task.result()) for task in list(self._tasks) if task in done])
        if done and not self._reading.once:
            await asyncio.sleep(timeout_s)

    async def _end(self, ended: list[tuple[Tail, End | None]]) -> None:
        gone = [tail.place for tail, end in ended if end is End.OVER and tail.file.is_deleted]
        left = [tail.place for tail, _ in ended if tail.place not in gone]
        for tail, end in ended:
            del self._tails[tail.file.id]
            if end is not End.EMPTIED and tail.seen is not None:
                self._done[tail.file.id] = tail.seen
            tail.close()
        if ended:
            self._others.clear()
        for place in left:
            self._known.add(place)
        await self._places.keep(left)
        await self._places.forget(gone)

    # --- which files there are ---------------------------------------------------------------

    async def _look(self) -> None:
        scan = await asyncio.to_thread(_scan, self._patterns, self._known.folders)
        await asyncio.to_thread(_look_at_names, list(self._tails.values()))
        was_begun = self._places.were_begun
        waiting = self._to_look_at(scan)
        while waiting and (room := self._most_files - len(self._tails)) > 0:
            few, waiting = waiting[:room], waiting[room:]
            await self._look_at(few, scan, from_end=self._from_end and not was_begun)
        self.waiting_files = len(waiting)
        for tail in self._tails.values():
            tail.gives_way = bool(waiting)
        if not was_begun:
            await self._places.begin()
        await self._note(scan)

    def _to_look_at(self, scan: _Scan) -> list[tuple[FileId, Seen]]:
        """The files that nothing reads yet, oldest first; empty ones aren't anything yet."""
        wanted = [
            (file_id, seen)
            for file_id, seen in scan.all.items()
            if file_id not in self._tails
            and seen.state.size
            and seen.state not in (self._done.get(file_id), self._others.get(file_id))
        ]
        return sorted(wanted, key=lambda one: one[1].state.changed_ns)

    async def _look_at(self, some: list[tuple[FileId, Seen]], scan: _Scan, *, from_end: bool) -> None:
        files = await asyncio.to_thread(_opened, some)
        try:
            await self._begin_known(files, self._known.at)
            await self._begin_known(files, lambda file: self._known.copied_to(file, scan.all))
            new = await asyncio.to_thread(self._new_ones, [file for file in files if file.id in scan.found])
            for file, place in zip(new, await self._new_places(new, from_end=from_end), strict=True):
                files.remove(file)
                await self._begin(file, place)
            self._others.update((file.id, file.state) for file in files if file.id not in scan.found)
        finally:
            for file in files:
                file.close()

    async def _note(self, scan: _Scan) -> None:
        """Which files there still are, and what isn't there any more."""
        there = scan.all.keys()
        for noted in (self._done, self._others, self._copies):
            for file_id in noted.keys() - there:
                del noted[file_id]
        seen, gone = self._known.seen(there)
        await self._places.keep(seen)
        await self._places.forget(gone)

    async def _begin_known(self, files: list[OpenFile], place_of: Callable[[OpenFile], Place | None]) -> None:
        for file in list(files):
            if (place := await asyncio.to_thread(place_of, file)) is not None:
                files.remove(file)
                await self._begin(file, place)

    def _new_ones(self, files: list[OpenFile]) -> list[OpenFile]:
        """Those that are no copies of others, which are longer, or have the plainer names."""
        new: list[OpenFile] = []
        for file in sorted(files, key=lambda file: (-file.size, len(file.path), file.path)):
            if file.is_worth_knowing() and not self._may_be_a_copy(file) and not any(map(file.is_copy_of, new)):
                new.append(file)
        return [file for file in files if file in new]

    def _may_be_a_copy(self, file: OpenFile) -> bool:
        """Whether it is the copy of a file beside it that is about to be emptied, or has been just now."""
        state, tails = file.state, list(self._tails.values())
        seen, original = self._copies.get(file.id, (None, None))
        if seen == state and original in tails:
            return True
        for tail in tails:
            if file.is_copy_of(tail.file):
                self._copies[file.id] = state, tail
                return True
            if file.folder == tail.file.folder and file.begins_so(tail.place.head) and tail.was_emptied:
                return True
        return False

    async def _new_places(self, files: list[OpenFile], *, from_end: bool) -> list[Place]:
        epoch = await patiently(self._shape.newest_epoch) if files else 0
        places = []
        for file in files:
            head, id_ = file.head(), uuid.uuid4().bytes
            place = Place(id_, *file.id, file.path, file.path, head.size, head.digest, epoch)
            if from_end:
                place.offset = await asyncio.to_thread(_last_line_end, file)
            places.append(place)
        await self._places.keep(places)
        return places

    async def _begin(self, file: OpenFile, place: Place) -> None:
        self._known.remove(place)
        self._done.pop(file.id, None)
        if place.file != file.id:
            place.goes_on_in(file)
            await self._places.keep([place])
        before = [tail for tail in self._tails.values() if tail.place.path == place.path]
        writer = NumberedWriter(self._shape, place.id, since_epoch=place.epoch)
        work = self._reading, self._places.keep, self._slots, self.progress
        tail = Tail(file, place, writer, *work, before[-1] if before else None)
        tail.is_replaced = identity(place.path) != file.id
        self._tails[file.id] = tail
        self.progress.files += 1
        self._tasks[asyncio.create_task(tail.run())] = tail

    # --- while files are read -------------------------------------------------------------------

    async def _watch(self) -> None:
        """Wake those that have something to do."""
        while True:
            await asyncio.sleep(INGEST_LOOK_S)
            for tail in await asyncio.to_thread(_due, list(self._tails.values())):
                tail.bell.set()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(INGEST_KEEP_S)
            await self._keep_all()

    async def _keep_all(self) -> None:
        dirty = [tail for tail in self._tails.values() if tail.is_dirty]
        for tail in dirty:
            tail.is_dirty = False
        await self._places.keep([tail.place for tail in dirty])


def _most_files() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = INGEST_FILES if allowed == resource.RLIM_INFINITY else allowed - INGEST_FILES_LEFT
    return max(1, min(INGEST_FILES, left))


def _scan(patterns: Sequence[str], folders: Iterable[str]) -> _Scan:
    found = matching(patterns)
    all_ = dict(found)
    for folder in folders:
        add_seen(all_, siblings_in(folder))
    return _Scan(found, all_)


def _opened(some: Iterable[tuple[FileId, Seen]]) -> list[OpenFile]:
    opened: list[OpenFile] = []
    for file_id, seen in some:
        try:
            file = OpenFile(seen.path)
        except OSError:
            continue  # gone again, or not to be read
        if file.size and file.id == file_id:
            opened.append(file)
        else:
            file.close()
    return opened


def _look_at_names(tails: Iterable[Tail]) -> None:
    for tail in tails:
        tail.is_replaced = identity(tail.place.path) != tail.file.id


def _due(tails: Iterable[Tail]) -> list[Tail]:
    return [tail for tail in tails if tail.is_due()]


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
