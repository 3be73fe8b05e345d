"""Read the events of a task's ranges in blocks: from chunks in tier 2, or through the server, by the option `direct`
(docs/decisions/0016); or only the events' offsets.

The server returns the offsets of events without sending their bytes. But tasks scan chunks that they can read
themselves: with four tasks on two cores, events of 85 to 100 bytes are located twice as fast, 6.5 million a second
instead of 3.0. The server is faster for events of equal sizes (18 instead of 15 million; half as much again for one
task), where both are fast. What decides is that tasks scale out, while the server has one loop, which appends need.

`ChunkSource.read` replaces `segment_input.read_bytes`. A task requests the chunks' locations when it reads them: its
range of offsets never changes its bytes, only their location. Locations of chunks that were replaced meanwhile are
requested again. Each block is verified against checksums from the server that belong to this chunk alone; damaged or
unreadable data is left to the server, so that readers get the usual errors.

Whether this process can read a chunk store is checked once and cached. A store is accessible if it contains the mark
that the server sent, so a folder of the same name on another machine is never mistaken for it. An inaccessible store is
checked again after a while.
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
from nadi.model.event import EventBlock, EventPositions
from nadi.naming import segment_name
from nadi.object_log.urls import ELSEWHERE
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import MARK, MARK_BYTES, ChunkStore, DiskReadError
from nadi.spark.connections import TaskClient, begin_task, client_of
from nadi.spark.options.parsed import ALWAYS, NEVER, ReadOptions
from nadi.wire.chunks import ChunkPart, Located

log = logging.getLogger(__name__)
PIECE_BYTES = 2 * BLOCK_BYTES  # read and yielded at once: a suitable number of rows for Spark
LEAST_BYTES = 4 * MIB  # smaller ranges are read faster than located, and mostly not in tier 2 yet
_CHECK_TIMEOUT_S = 10.0  # an object store that doesn't respond in time is inaccessible
_RECHECK_S = 60.0
_MAX_STORES = 100  # in the cache


async def open_marked(url: str, mark: str) -> ChunkStore:
    """Return the store at that URL with that mark; NotFoundError if it doesn't exist here, or has another mark.

    UnavailableError or InvalidArgumentError if it can't be checked.
    """
    parts = urlsplit(url)
    is_folder = parts.scheme == "file" and Path(url2pathname(parts.path)).is_dir()  # noqa: ASYNC240 - a local check
    if not is_folder and parts.scheme not in ELSEWHERE:
        raise NotFoundError(f"{url} doesn't exist here")
    store = ChunkStore.from_url(url)
    try:
        stored_mark = bytes(await store.read(MARK, 0, MARK_BYTES)).decode(errors="replace")
    except NotFoundError:
        raise NotFoundError(f"{url} is not the server's store of chunks: it lacks a mark") from None
    if stored_mark != mark:
        raise NotFoundError(f"{url} is another server's store of chunks")
    return store


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The store, or why it is inaccessible."""

    store: ChunkStore | None
    why: str
    until: float


_known: dict[tuple[int, str, str], StoreAccess] = {}


async def access(located: Located) -> StoreAccess:
    """Return the store that the server named, if this process can read it."""
    key = (os.getpid(), located.url, located.mark)  # entries inherited by a fork belong to another process
    known = _known.get(key)
    if known is not None and time.monotonic() <= known.until:
        return known
    if len(_known) >= _MAX_STORES:
        _known.clear()
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            known = StoreAccess(await open_marked(located.url, located.mark), "", float("inf"))
    except (TimeoutError, NadiError) as error:
        is_late = isinstance(error, TimeoutError)
        why = f"{located.url} did not respond within {_CHECK_TIMEOUT_S:g} s" if is_late else str(error)
        known = StoreAccess(None, why, time.monotonic() + _RECHECK_S)
    _known[key] = known
    return known


def steps(located: Located, start: int, end: int, without: Collection[str]) -> Iterator[tuple[ChunkPart | None, int]]:
    """Yield the source of each part from `start` on, and where the part ends: a chunk, or None for the server. without:
    chunks that are left to the server. Ends at `end`, or after the last chunk if the server listed only some.

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
    """A source of bytes that uses chunks. direct: `auto` leaves everything to the server if the chunks are
    inaccessible, `always` raises an error with the reason. is_alone: `read` ends at the first byte that isn't in a
    readable chunk."""

    def __init__(self, direct: str, *, is_alone: bool = False) -> None:
        self._is_forced = direct == ALWAYS
        self._is_alone = is_alone

    async def read(
        self, stores: SegmentStores, segment: str, start: int, end: int, /, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes from `start` to `end`. Raises the errors of `read_bytes`."""
        position = start
        unreadable: set[str] = set()  # listed chunks that turned out missing or damaged
        while position < end:
            located = await locate_chunks(stores, segment, position, end)
            store = await self._store(located)
            if store is None:
                located = Located()
            for part, stop in steps(located, position, end, unreadable):
                if self._is_alone and (part is None or store is None):
                    return
                if part is None or store is None:
                    source = read_bytes(stores, segment, position, stop, purpose=purpose)
                else:
                    source = self._of_chunk(store, part, position, stop)
                async with aclosing(source) as pieces:
                    async for data in pieces:
                        position += len(data)
                        yield data
                if position < stop:
                    if part is None or store is None:
                        return  # the segment's end
                    unreadable.add(part.name)
                    break  # the next response has its replacement, if any; else the server reads the bytes

    async def _store(self, located: Located) -> ChunkStore | None:
        if not located.parts:
            return None
        known = await access(located)
        if known.store is None and self._is_forced:
            raise InvalidArgumentError(
                f"the option 'direct' is {ALWAYS!r}, but the chunks are inaccessible here: {known.why}. Run the "
                "executors where they are accessible, or use 'auto'"
            )
        return known.store

    async def _of_chunk(
        self, store: ChunkStore, part: ChunkPart, start: int, stop: int
    ) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes from `start` to `stop` of a chunk, up to the first that is unreadable or damaged; the next
        piece is read ahead."""
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
        """Return the bytes from `start` to the end of a piece of the chunk, or as far as they are intact."""
        chunk_offset = start - part.offset
        begin = chunk_offset // BLOCK_BYTES * BLOCK_BYTES
        size = min(chunk_offset // PIECE_BYTES * PIECE_BYTES + PIECE_BYTES, part.length) - begin
        try:
            data, damaged = await store.read_checked(part.name, begin, size, part.checksums)
        except NotFoundError:
            log.debug("chunk %s doesn't exist: it was replaced, or its events were truncated", part.name)
            return memoryview(b"")
        except (DiskReadError, UnavailableError) as error:
            if self._is_forced and isinstance(error, UnavailableError):
                raise
            log.warning("%s: reading from the server instead", error)
            return memoryview(b"")
        last = len(data)
        if damaged:
            log.warning("chunk %s has a wrong checksum: reading from the server instead", part.name)
            last = min(damaged) * BLOCK_BYTES - begin
        return memoryview(data)[chunk_offset - begin : max(chunk_offset - begin, min(last, stop - part.offset - begin))]


class DirectSource:
    def __init__(self, options: ReadOptions, client: TaskClient) -> None:
        self._options, self._stores = options, stores_of(client.manager)

    def blocks(self, piece: ScanRange) -> AsyncIterator[EventBlock]:
        options = self._options
        name = segment_name(options.scope, piece.stream, piece.segment_id)
        read = ChunkSource(options.direct).read if self._is_direct(piece) else read_bytes
        return read_segment_range(self._stores, name, piece.start, piece.end, options.on_damage, read=read)

    def places(self, piece: ScanRange) -> AsyncIterator[EventPositions | EventBlock]:
        name = segment_name(self._options.scope, piece.stream, piece.segment_id)
        if self._is_direct(piece):
            return self._from_chunks(name, piece)
        return event_places(self._stores, name, piece.start, piece.end, self._options.on_damage)

    def _is_direct(self, piece: ScanRange) -> bool:
        direct = self._options.direct
        return direct == ALWAYS or (direct != NEVER and piece.size_bytes >= LEAST_BYTES)

    async def _from_chunks(self, segment: str, piece: ScanRange) -> AsyncIterator[EventPositions | EventBlock]:
        """Yield offsets from the chunks up to the first gap, the remaining ones from the server."""
        assembler, direct = EventAssembler(piece.start), self._options.direct
        source = ChunkSource(direct, is_alone=True)
        async with aclosing(source.read(self._stores, segment, piece.start, piece.end, purpose="")) as pieces:
            async for data in pieces:
                for block in assembler.feed(data):
                    yield block
        start, read, on_damage = assembler.offset, ChunkSource(direct).read, self._options.on_damage
        async with aclosing(event_places(self._stores, segment, start, piece.end, on_damage, read=read)) as remaining:
            async for places in remaining:
                yield places


def read_pieces(options: ReadOptions, pieces: Iterable[ScanRange]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the ranges, range by range, each in offset order."""
    begin_task()
    client = client_of(options.controller)
    return read_rows(options, client, pieces, DirectSource(options, client))
