"""A `DurableLog` stored as a chain of objects in an engine: any server can continue it, and none has local data.

Frames and seals are stored by put-if-absent under the numbers 1, 2, 3… of an epoch, and are immutable. `replay` walks
to the chain's end, seals it (`walk`), and checks again that this claim is the latest; only then are appends
acknowledged. If another claimant's object has a frame's number, this owner was fenced, for good.

Frames are deleted only once the container's manifest, which only its owner can change, names a later start
(`released`). Seals are never deleted: they stop an owner that wakes up late.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from nadi import limits
from nadi.errors import ClosedError, CorruptLogError, FencedError, NotFoundError, UnavailableError
from nadi.object_log.engine import LogEngine
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.chain.layout import HEADER_BYTES, ChainPosition, Header, encode_frame, name_of, part_is_whole
from nadi.segmentstore.chain.walk import ChainObjects, ChainWalk, Link
from nadi.segmentstore.tier1.log import (
    NOTHING,
    AppendedFrame,
    Frame,
    HeadsPage,
    LogAddress,
    LogRange,
    PartRead,
    read_each,
)

log = logging.getLogger(__name__)
_PLENTY_BYTES = 1 << 62
_READS_AT_ONCE = 16  # frames read in parallel for one caller


class WalkAhead:
    """Walks ahead of the reader of `links`, which raises the walk's errors; `close` ends it early."""

    def __init__(self, links: AsyncIterator[Link]) -> None:
        self._links: deque[Link] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(links))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def _run(self, links: AsyncIterator[Link]) -> None:
        async for link in links:
            self._links.append(link)
            self._bytes += len(link.data)
            self._changed.set()
            while self._bytes > limits.CHAIN_AHEAD_BYTES:
                self._changed.clear()
                await self._changed.wait()

    async def links(self) -> AsyncIterator[Link]:
        while True:
            while self._links:
                link = self._links.popleft()
                self._bytes -= len(link.data)
                self._changed.set()
                yield link
            if self._task.done():
                self._task.result()
                return
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class ChainStart(NamedTuple):
    """The start of a claimant's walk: part of the container's record. epoch, number: the position of the frame after
    `sequence`, which may not exist yet. begun: (epoch, its first sequence), of epochs whose frames before that position
    may still exist. held_from: the first of these frames; held_bytes: their size."""

    epoch: int = 0
    number: int = 1
    sequence: int = 0
    begun: tuple[tuple[int, int], ...] = ((0, 1),)
    held_from: int = 1
    held_bytes: int = 0

    @property
    def place(self) -> ChainPosition:
        return ChainPosition(self.epoch, self.number)


class ChainLog:
    """One claimant's log of one container. epoch: of its claim. still_claimed: raises FencedError if another server has
    claimed the container since. interval_s: the minimum time between the starts of two frames, unless a full frame is
    waiting: fewer, larger objects. After a slow frame there is a short pause, so that requests triggered by its
    acknowledgements join the next frame."""

    def __init__(
        self,
        engine: LogEngine,
        container: int,
        epoch: int,
        start: ChainStart,
        still_claimed: Callable[[], Awaitable[None]],
        runtime: Runtime = REAL,
        interval_s: float = 0.0,
    ) -> None:
        self.epoch = epoch
        self.fenced: FencedError | None = None
        self._objects = ChainObjects(engine, container, runtime)
        self._start, self._still_claimed = start, still_claimed
        self._runtime, self._interval_s = runtime, interval_s
        self._nonce = bytes.fromhex(runtime.unique())
        self._walk = ChainWalk(self._objects, epoch, self._nonce, still_claimed)
        self._ahead: WalkAhead | None = None
        self._next_sequence = 0  # 0 until replay() has ended
        self._number = 0  # the last number used in this epoch
        self._appended_at = self._next_at = -1e9  # start of the last frame; earliest start of the next
        self._writing: asyncio.Task[AppendedFrame] | None = None
        self._closed = False
        self._epochs = list(start.begun)
        self._safe = start.sequence  # frames up to here aren't needed by a start from the manifest
        self._deleted_to = start.held_from  # frames below it are deleted, except `_retained`
        self._retained: set[int] = set()
        self._sizes: deque[int] = deque()  # of the frames from `_sized_from` on
        self._sized_from = start.sequence + 1
        self._older_bytes = start.held_bytes
        self._held_bytes = 0
        self._deleting: asyncio.Task[None] | None = None
        self._to_delete: list[int] = []

    def read_ahead(self) -> None:
        """Start reading, and seal the chain, before the frames are requested."""
        self._ahead = WalkAhead(self._walk.links(self._start.place, self._start.sequence))

    async def replay(self, after_sequence: int) -> AsyncIterator[Frame]:
        """As DurableLog.replay; raises FencedError if another server has claimed the container before this ends."""
        assert self._next_sequence == 0, "replay() is called once, before the first append"
        sequence = self._start.sequence
        if after_sequence < sequence:
            problem = f"frames {after_sequence + 1:,} to {sequence:,} were released, but are still needed"
            raise CorruptLogError(self._name(self._start.place), 0, problem)
        if self._ahead is None:
            self.read_ahead()
        assert self._ahead is not None
        async for header, data in self._ahead.links():
            sequence = header.sequence
            self._add_size(len(data))
            if sequence <= after_sequence:
                continue
            check = header.check(data)
            if not check.head_is_whole:
                raise CorruptLogError(self._name(header.place), 0, "the head has a wrong checksum")
            address = LogAddress(sequence, *header.place)
            payload = bytes(data[HEADER_BYTES : HEADER_BYTES + header.payload_bytes])
            yield Frame(address, payload, check.checksums, check.damaged_parts)
        if sequence < after_sequence:
            raise CorruptLogError(self._name(self._start.place), 0, f"the log ends before frame {sequence + 1:,}")
        await self._still_claimed()
        self._epochs += self._walk.begun
        self._next_sequence = sequence + 1

    def _add_size(self, size_bytes: int) -> None:
        self._sizes.append(size_bytes)
        self._held_bytes += size_bytes

    @property
    def size_bytes(self) -> int:
        return self._older_bytes + self._held_bytes

    @property
    def last_sequence(self) -> int:
        return max(0, self._next_sequence - 1)

    is_full = False
    sure_bytes = _PLENTY_BYTES

    def free_bytes(self, of_reserve: float = NOTHING) -> int:
        return _PLENTY_BYTES

    def is_settled(self, payload_bytes: int) -> bool:
        """Return whether the next frame may start: interval and pause are over, or the frame is full."""
        return payload_bytes >= limits.FRAME_MAX_BYTES or self._pause_s() <= 0

    async def settle(self, payload_bytes: int) -> None:
        await self._runtime.sleep(self._pause_s())

    def _pause_s(self) -> float:
        return max(self._appended_at + self._interval_s, self._next_at) - self._runtime.monotonic()

    async def append(self, parts: Sequence[bytes]) -> AppendedFrame:
        assert self._next_sequence > 0, "replay() must have ended before the first append"
        if self._writing is not None and not self._writing.done():  # the caller was cancelled
            await asyncio.wait([self._writing])
        self._check_open()
        self._appended_at = self._runtime.monotonic()
        self._writing = asyncio.create_task(self._append(parts), name=f"log-{self._objects.container}")
        try:
            appended = await asyncio.shield(self._writing)
            took_s = (ended_at := self._runtime.monotonic()) - self._appended_at
            if took_s >= limits.CHAIN_SLOW_S:
                self._next_at = ended_at + min(took_s * limits.CHAIN_PAUSE_PART, limits.CHAIN_PAUSE_S)
            return appended
        except asyncio.CancelledError:
            self._writing.add_done_callback(_abandoned)
            raise

    async def _append(self, parts: Sequence[bytes]) -> AppendedFrame:
        position, sequence = ChainPosition(self.epoch, self._number + 1), self._next_sequence
        container = self._objects.container
        pieces, checksums = encode_frame(container, position, sequence, self._number, self._nonce, parts)
        conflicting = await self._objects.store(position, pieces)
        if conflicting is not None:
            header = Header.decode(conflicting, container, position)
            self.fenced = FencedError(container, header.next_epoch if header is not None else 0)
            raise self.fenced
        self._number, self._next_sequence = position.number, sequence + 1
        self._add_size(sum(map(len, pieces)))
        return AppendedFrame(LogAddress(sequence, *position), checksums)

    def _check_open(self) -> None:
        if self.fenced is not None:
            raise self.fenced.with_traceback(None)
        if self._closed:
            raise ClosedError("the log is closed")

    async def read_at(self, address: LogAddress, offset: int, length: int, checksum: bytes = b"") -> bytes:
        if self._closed:
            raise ClosedError("the log is closed")
        position, is_whole = ChainPosition(address.file, address.offset), not checksum
        data = None
        if self._is_held(address.sequence):
            data = await self._objects.read(position, *(() if is_whole else (HEADER_BYTES + offset, length)))
        if data is None:
            raise NotFoundError(f"frame {address.sequence:,} is not in the log (any more)")
        if is_whole:
            header = Header.decode(data, self._objects.container, position)
            if header is None or header.sequence != address.sequence or not header.check(data).is_whole:
                raise CorruptLogError(self._name(position), 0, f"frame {address.sequence:,} has a wrong checksum")
            return bytes(data[HEADER_BYTES + offset : HEADER_BYTES + offset + length])
        if len(data) < length or not part_is_whole(self._objects.container, position, offset, data, checksum):
            raise CorruptLogError(
                self._name(position), HEADER_BYTES + offset, f"{length:,} bytes have a wrong checksum"
            )
        return bytes(data)

    async def read_parts(self, parts: Sequence[LogRange]) -> list[PartRead]:
        permits = asyncio.Semaphore(_READS_AT_ONCE)

        async def of_frame(frame_parts: list[LogRange]) -> list[PartRead]:
            async with permits:
                return await self._parts_of_frame(frame_parts)

        frames = [list(frame_parts) for _, frame_parts in itertools.groupby(parts, lambda part: part.address)]
        return [result for frame_parts in await asyncio.gather(*map(of_frame, frames)) for result in frame_parts]

    async def _parts_of_frame(self, parts: list[LogRange]) -> list[PartRead]:
        begin = min(part.offset for part in parts)
        size = max(part.offset + part.length for part in parts) - begin
        position = ChainPosition(parts[0].address.file, parts[0].address.offset)
        data = None
        if len(parts) > 1 and all(part.checksum for part in parts) and self._is_held(parts[0].address.sequence):
            data = await self._objects.read(position, HEADER_BYTES + begin, size)
        if data is None or len(data) < size:
            return await read_each(self.read_at, parts)
        results: list[PartRead] = []
        for _, offset, length, checksum in parts:
            piece = data[offset - begin : offset - begin + length]
            if part_is_whole(self._objects.container, position, offset, piece, checksum):
                results.append(bytes(piece))
            else:
                problem = f"{length:,} bytes have a wrong checksum"
                results.append(CorruptLogError(self._name(position), HEADER_BYTES + offset, problem))
        return results

    async def read_heads(self, after_sequence: int) -> AsyncIterator[HeadsPage]:
        for sequence in range(max(after_sequence + 1, self._deleted_to), self._next_sequence):
            position = self._position_of(sequence)
            data = await self._objects.read(position)
            if sequence < self._deleted_to:
                continue  # released meanwhile
            header = Header.decode(data, self._objects.container, position) if data is not None else None
            problem = "is missing" if data is None else "has a damaged header" if header is None else ""
            if header is not None and data is not None and not header.check(data).head_is_whole:
                problem = "has a wrong checksum"
            damages = (CorruptLogError(self._name(position), 0, f"frame {sequence:,} {problem}"),) if problem else ()
            yield HeadsPage(0, sequence + 1, len(data) if data is not None else 0, damages)

    def has(self, address: LogAddress, length: int) -> bool:
        if not self._is_held(address.sequence):
            return False
        at = address.sequence - self._sized_from
        return at < 0 or length <= self._sizes[at]

    def _is_held(self, sequence: int) -> bool:
        return self._deleted_to <= sequence < self._next_sequence or sequence in self._retained

    def start_after(self, sequence: int) -> ChainStart:
        """Return the start for a claimant whose state includes that frame: for the next manifest."""
        assert sequence <= self.last_sequence, "a state is never ahead of the log"
        held_from = min(self._deleted_to, sequence + 1, *self._retained, *self._to_delete)
        oldest = bisect.bisect_right(self._epochs, held_from, key=lambda entry: entry[1]) - 1
        epochs = tuple(each for each in self._epochs[max(0, oldest) :] if each[1] <= sequence + 1)
        sized = max(0, sequence + 1 - self._sized_from)
        held_bytes = self._older_bytes + sum(size for size, _ in zip(self._sizes, range(sized), strict=False))
        return ChainStart(*self._position_of(sequence + 1), sequence, epochs, held_from, held_bytes)

    def released(self, start: ChainStart) -> None:
        """Handle a manifest that durably names `start`: earlier frames may be deleted once truncated."""
        self._safe = max(self._safe, start.sequence)

    def truncate(self, before_sequence: int, keep: Iterable[LogAddress] = ()) -> None:
        before = min(before_sequence, self._safe + 1, self._next_sequence)
        kept = {address.sequence for address in keep if address.sequence < before}
        released = [sequence for sequence in self._retained if sequence not in kept]
        released += [sequence for sequence in range(self._deleted_to, before) if sequence not in kept]
        self._retained = kept | {sequence for sequence in self._retained if sequence >= before}
        self._deleted_to = max(self._deleted_to, before)
        while self._sized_from < before and self._sizes:
            self._held_bytes -= self._sizes.popleft()
            self._sized_from += 1
        if before > self._start.sequence:
            self._older_bytes = 0
        self._to_delete += released
        if self._to_delete and (self._deleting is None or self._deleting.done()):
            self._deleting = asyncio.create_task(self._delete(), name=f"log-delete-{self._objects.container}")

    async def _delete(self) -> None:
        """Delete released frames; those that can't be deleted now are left to a later call, or to the next owner."""
        while self._to_delete:
            batch = self._to_delete[: limits.CHAIN_DELETED_AT_ONCE]
            try:
                await self._objects.delete([self._position_of(sequence) for sequence in batch])
            except UnavailableError as error:
                log.info("container %d: released frames can't be deleted yet: %s", self._objects.container, error)
                return
            del self._to_delete[: len(batch)]

    def _position_of(self, sequence: int) -> ChainPosition:
        at = bisect.bisect_right(self._epochs, sequence, key=lambda entry: entry[1]) - 1
        epoch, first = self._epochs[at]
        return ChainPosition(epoch, sequence - first + 1)

    def _name(self, position: ChainPosition) -> str:
        return name_of(self._objects.container, position)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ahead is not None:
            await self._ahead.close()
        under_way = [task for task in (self._writing, self._deleting) if task is not None and not task.done()]
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=limits.CHAIN_CLOSE_S)
            for task in late:  # the store may be down for long; a cancelled append was not acknowledged
                task.cancel()
            if late:
                await asyncio.wait(late)


def _abandoned(append: asyncio.Task[AppendedFrame]) -> None:
    """Log the error of an append whose caller was cancelled. The log knows that it was fenced."""
    if not append.cancelled() and (error := append.exception()) is not None and not isinstance(error, FencedError):
        log.error("an append failed after its caller was cancelled", exc_info=error)
