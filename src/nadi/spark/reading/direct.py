"""The events of a task's pieces, in blocks: from chunks in tier 2, or through the server, as the option `direct` says
(docs/decisions/0016); or where they lie alone.

Where events lie, the server tells, and none of their bytes are sent. But chunks that a task can read it looks through
itself: measured on two cores with four tasks, events of 85 to 100 bytes are found twice as fast, 6.5 million a second
and not 3.0. The server is faster where events are alike (18 to 15 million; half as fast again for one task), and there
both are fast. What decides is that tasks on more machines find more, while the server has one loop, which appends need.

Reading chunks is a drop-in for `segment_input.read_bytes`. Which chunks there are is asked when a task comes to read
them: what a task reads is a range of offsets, whose bytes never change; only where they are stored does. Chunks that
are replaced meanwhile are asked for again. Each block is checked against the checksums that the server told, which
belong to this chunk alone; what is damaged, or can't be read, is left to the server, so that whoever reads meets the
same errors.

Whether this process can read a store of chunks is looked at once, and kept. A store counts as reached if the mark that
the server told is found in it, so that a folder of the same name on another machine is never taken for it. One that
wasn't reached is looked at again after a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from nadi.client.manager.streams import stores_of
from nadi.client.reading.segment_range import event_places, read_segment_range
from nadi.client.scan.pieces import ScanRange
from nadi.client.scan.rows import read_rows
from nadi.client.segments.assemble import EventAssembler
from nadi.client.segments.byte_locations import locate_chunks
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import InvalidArgumentError, NadiError, NotFoundError, UnavailableError
from nadi.limits import MIB
from nadi.model.event import EventBlock, EventPlaces
from nadi.naming import segment_name
from nadi.object_log.urls import ELSEWHERE
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import MARK, MARK_BYTES, ChunkStore, DiskReadError
from nadi.spark.connections import TaskClient, begin_task, client_of
from nadi.spark.options.parsed import ALWAYS, NEVER, ReadOptions
from nadi.wire.chunks import ChunkPart, Located

log = logging.getLogger(__name__)
PIECE_BYTES = 2 * BLOCK_BYTES  # read and given out at once: about as many rows as suit Spark
LEAST_BYTES = 4 * MIB  # less is sooner read than asked about, and mostly not in tier 2 yet
_LOOK_S = 10.0  # an object store that doesn't answer by then is none to read from
_AGAIN_S = 60.0
_MOST = 100  # stores remembered


async def marked(url: str, mark: str) -> ChunkStore:
    """The store of that URL and mark, to read from; NotFoundError if there is none here, or another.

    UnavailableError or InvalidArgumentError if it can't be looked at.
    """
    parts = urlsplit(url)
    is_folder = parts.scheme == "file" and Path(url2pathname(parts.path)).is_dir()  # noqa: ASYNC240 - a local look
    if not is_folder and parts.scheme not in ELSEWHERE:
        raise NotFoundError(f"there is no {url} here")
    store = ChunkStore.from_url(url)
    try:
        found = bytes(await store.read(MARK, 0, MARK_BYTES)).decode(errors="replace")
    except NotFoundError:
        raise NotFoundError(f"{url} is not the server's store of chunks: it has no mark") from None
    if found != mark:
        raise NotFoundError(f"{url} is another server's store of chunks")
    return store


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The store, or why it can't be read."""

    store: ChunkStore | None
    why: str
    until: float


_known: dict[tuple[int, str, str], StoreAccess] = {}


async def reach(located: Located) -> StoreAccess:
    """The store that the server told, if this process can read it."""
    key = (os.getpid(), located.url, located.mark)  # what a fork inherits is another process's
    found = _known.get(key)
    if found is not None and time.monotonic() <= found.until:
        return found
    if len(_known) >= _MOST:
        _known.clear()
    try:
        async with asyncio.timeout(_LOOK_S):
            found = StoreAccess(await marked(located.url, located.mark), "", float("inf"))
    except (TimeoutError, NadiError) as error:
        is_late = isinstance(error, TimeoutError)
        why = f"{located.url} did not answer within {_LOOK_S:g} s" if is_late else str(error)
        found = StoreAccess(None, why, time.monotonic() + _AGAIN_S)
    _known[key] = found
    return found


def steps(located: Located, start: int, end: int, without: Collection[str]) -> Iterator[tuple[ChunkPart | None, int]]:
    """Whence to read from `start` on, and how far each time: a chunk, or None for the server. without: chunks that are
    left to the server. Ends at `end`, or behind the last chunk if more were not told.

    >>> parts = (ChunkPart("a", 10, 10, b""), ChunkPart("b", 20, 10, b""), ChunkPart("c", 40, 10, b""))
    >>> [(part and part.name, stop) for part, stop in steps(Located("", "", parts), 5, 45, {"b"})]
    [(None, 10), ('a', 20), (None, 40), ('c', 45)]
    >>> [(part and part.name, stop) for part, stop in steps(Located("", "", parts, False), 45, 90, {"c"})]
    [(None, 50)]
    """
    position = start
    for part in located.parts:
        if part.name in without or part.end <= position:
            continue
        if part.offset > position:
            yield None, part.offset
        position = min(part.end, end)
        yield part, position
    last = end if located.is_last else min(located.parts[-1].end, end)
    if position < last:
        yield None, last


class ChunkSource:
    """`read` is the drop-in. direct: `auto` leaves all to the server if the chunks can't be reached, `always` raises an
    UnavailableError that says why. is_alone: `read` ends at the first byte that it can't read from a chunk."""

    def __init__(self, direct: str, *, is_alone: bool = False) -> None:
        self._is_forced = direct == ALWAYS
        self._is_alone = is_alone

    async def read(
        self, stores: SegmentStores, segment: str, start: int, end: int, /, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` to `end`. Raises what `read_bytes` does."""
        position = start
        unreadable: set[str] = set()  # chunks that were told and then not there, or damaged
        while position < end:
            located = await locate_chunks(stores, segment, position, end)
            store = await self._store(located)
            if store is None:
                located = Located()
            for part, stop in steps(located, position, end, unreadable):
                if self._is_alone and (part is None or store is None):
                    return
                if part is None or store is None:
                    found = read_bytes(stores, segment, position, stop, purpose=purpose)
                else:
                    found = self._of_chunk(store, part, position, stop)
                async with aclosing(found) as pieces:
                    async for data in pieces:
                        position += len(data)
                        yield data
                if position < stop:
                    if part is None or store is None:
                        return  # the segment's end
                    unreadable.add(part.name)
                    break  # if it was replaced, the next answer has its successor; else the server has the bytes

    async def _store(self, located: Located) -> ChunkStore | None:
        if not located.parts:
            return None
        found = await reach(located)
        if found.store is None and self._is_forced:
            raise InvalidArgumentError(
                f"the option 'direct' is {ALWAYS!r}, and the chunks can't be read here: {found.why}. Run the executors "
                "where they can, or leave it to 'auto'"
            )
        return found.store

    async def _of_chunk(
        self, store: ChunkStore, part: ChunkPart, start: int, stop: int
    ) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` to `stop` of a chunk, up to the first that can't be read or isn't what was stored; the
        next piece is read meanwhile."""
        position = start
        reading: asyncio.Task[memoryview] | None = asyncio.create_task(self._piece(store, part, position, stop))
        try:
            while reading is not None:
                data = await reading
                position += len(data)
                is_whole = len(data) > 0 and (position - part.offset) % PIECE_BYTES == 0
                reading = None
                if is_whole and position < stop:
                    reading = asyncio.create_task(self._piece(store, part, position, stop))
                if len(data):
                    yield data
        finally:
            if reading is not None:
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading

    async def _piece(self, store: ChunkStore, part: ChunkPart, start: int, stop: int) -> memoryview:
        """From `start` to the end of a piece of the chunk, or as far as it is intact."""
        within = start - part.offset
        begin = within // BLOCK_BYTES * BLOCK_BYTES
        size = min(within // PIECE_BYTES * PIECE_BYTES + PIECE_BYTES, part.length) - begin
        try:
            data, damaged = await store.read_checked(part.name, begin, size, part.checksums)
        except NotFoundError:
            log.debug("chunk %s is gone: it was replaced, or its events were truncated", part.name)
            return memoryview(b"")
        except (DiskReadError, UnavailableError) as error:
            if self._is_forced and isinstance(error, UnavailableError):
                raise
            log.warning("%s: its server is asked", error)
            return memoryview(b"")
        last = len(data)
        if damaged:
            log.warning("chunk %s has a wrong checksum: its server is asked", part.name)
            last = min(damaged) * BLOCK_BYTES - begin
        return memoryview(data)[within - begin : max(within - begin, min(last, stop - part.offset - begin))]


class DirectOrNot:
    def __init__(self, options: ReadOptions, client: TaskClient) -> None:
        self._options, self._stores = options, stores_of(client.manager)

    def blocks(self, piece: ScanRange) -> AsyncIterator[EventBlock]:
        options = self._options
        name = segment_name(options.scope, piece.stream, piece.segment_id)
        read = ChunkSource(options.direct).read if self._is_direct(piece) else read_bytes
        return read_segment_range(self._stores, name, piece.start, piece.end, options.on_damage, read=read)

    def places(self, piece: ScanRange) -> AsyncIterator[EventPlaces | EventBlock]:
        name = segment_name(self._options.scope, piece.stream, piece.segment_id)
        if self._is_direct(piece):
            return self._from_chunks(name, piece)
        return event_places(self._stores, name, piece.start, piece.end, self._options.on_damage)

    def _is_direct(self, piece: ScanRange) -> bool:
        direct = self._options.direct
        return direct == ALWAYS or (direct != NEVER and piece.size_bytes >= LEAST_BYTES)

    async def _from_chunks(self, segment: str, piece: ScanRange) -> AsyncIterator[EventPlaces | EventBlock]:
        """From the chunks as far as these go without a gap; the rest as the server tells it."""
        assembler, direct = EventAssembler(piece.start), self._options.direct
        source = ChunkSource(direct, is_alone=True)
        async with aclosing(source.read(self._stores, segment, piece.start, piece.end, purpose="")) as pieces:
            async for data in pieces:
                for block in assembler.feed(data):
                    yield block
        start, read, on_damage = assembler.offset, ChunkSource(direct).read, self._options.on_damage
        async with aclosing(event_places(self._stores, segment, start, piece.end, on_damage, read=read)) as rest:
            async for places in rest:
                yield places


def read_pieces(options: ReadOptions, pieces: Iterable[ScanRange]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the pieces, one piece after the other, each in offset order."""
    begin_task()
    client = client_of(options.controller)
    return read_rows(options, client, pieces, DirectOrNot(options, client))
