"""A segment's bytes in order, from its chunks where they can be read, else from its server.

A drop-in for `segment_input.read_bytes`. Which chunks there are is asked when a task comes to read them: what a task
reads is a range of offsets, whose bytes never change; only where they are stored does. Chunks that are replaced
meanwhile are asked for again. Each block is checked against the checksums that the server told, which belong to this
chunk alone; what is damaged, or can't be read, is left to the server, so that whoever reads meets the same errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing, suppress

from nadi.client.segments.located import locate_chunks
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nadi.limits import MIB
from nadi.model.chunks import ChunkPart, Located
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.spark.options.read import ALWAYS
from nadi.spark.reading.direct.reach import reach

log = logging.getLogger(__name__)
PIECE_BYTES = 2 * BLOCK_BYTES  # read and given out at once: about as many rows as suit Spark
LEAST_BYTES = 4 * MIB  # less is sooner read than asked about, and mostly not in tier 2 yet


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
        reading: asyncio.Task[memoryview] | None = None
        position = start
        try:
            reading = asyncio.create_task(self._piece(store, part, position, stop))
            while True:
                data = await reading
                position += len(data)
                is_whole = len(data) > 0 and (position - part.offset) % PIECE_BYTES == 0
                reading = None
                if is_whole and position < stop:
                    reading = asyncio.create_task(self._piece(store, part, position, stop))
                if len(data):
                    yield data
                if reading is None:
                    return
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
        except DiskReadError as error:
            log.warning("%s: its server is asked", error)
            return memoryview(b"")
        except UnavailableError as error:
            if self._is_forced:
                raise
            log.warning("%s: its server is asked", error)
            return memoryview(b"")
        last = len(data)
        if damaged:
            log.warning("chunk %s has a wrong checksum: its server is asked", part.name)
            last = min(damaged) * BLOCK_BYTES - begin
        return memoryview(data)[within - begin : max(within - begin, min(last, stop - part.offset - begin))]
