"""How a claimant takes a container's chain over: it walks to its end, and seals it there.

It reads 1, 2, 3… of each epoch from where it was told to begin, never from a listing. A seal that names an earlier
epoch than its own leads on to that. Where nothing is, it creates a seal that names its own epoch; if somebody was
faster, that is read and the walk goes on. So it has seen all that was ever acknowledged once its own seal stands, for
an owner acknowledges a number only after all before it, and can't have the one where the seal is.

A live owner may win this race again and again. So after one lost race the claimant also creates a seal some numbers
ahead, which stops the owner there; the first gap is sealed all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from nadi.backoff import Backoff
from nadi.errors import CorruptLogError, FencedError, UnavailableError
from nadi.limits import CHAIN_BRAKE, CHAIN_LONGEST_PAUSE_S, CHAIN_READ_AHEAD, CHAIN_TRY_BYTES_PER_S, CHAIN_TRY_S
from nadi.object_log import outcomes
from nadi.object_log.engine import LogEngine
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import FRAME, ChainPosition, Header, encode_seal, name_of
from nadi.throttled_log import SeldomWarning

log = logging.getLogger(__name__)
T = TypeVar("T")


class ChainObjects:
    def __init__(self, engine: LogEngine, container: int, runtime: Runtime) -> None:
        self.container = container
        self.trouble = ""  # what the engine last said, if its last answer was an error
        self._engine, self._runtime = engine, runtime
        self._warning = SeldomWarning(
            log, "the store of a log failed %d times, last of container %d: %s", runtime.monotonic
        )

    async def store(self, place: ChainPosition, parts: Sequence[bytes]) -> memoryview | None:
        """Store an object there. None: there it is, and durable; else what somebody else has stored there first. The
        outcome of a try may stay unknown: then the same bytes are stored again under the same name."""
        name, size_bytes = name_of(self.container, place), sum(map(len, parts))
        return await self._until_done(lambda: outcomes.stored(self._engine, name, parts), size_bytes)

    async def read(self, place: ChainPosition, position: int = 0, length: int | None = None) -> memoryview | None:
        """The object there, or a part of it; None if there is none."""
        name = name_of(self.container, place)
        return await self._until_done(lambda: self._engine.get(name, position, length), length or 0)

    async def delete(self, places: Sequence[ChainPosition]) -> None:
        await self._engine.delete([name_of(self.container, place) for place in places])

    async def _until_done(self, attempt: Callable[[], Awaitable[T]], size_bytes: int) -> T:
        limit_s = CHAIN_TRY_S + size_bytes / CHAIN_TRY_BYTES_PER_S
        backoff = Backoff(longest_s=CHAIN_LONGEST_PAUSE_S, sleep=self._runtime.sleep, chance=self._spread)
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    done = await attempt()
            except TimeoutError:
                self.trouble = f"no answer within {limit_s:.0f} s"
            except UnavailableError as error:
                self.trouble = str(error)
            else:
                self.trouble = ""
                return done
            self._warning(self.container, self.trouble)
            await backoff.pause()

    def _spread(self) -> float:
        return 0.5 + self._runtime.chance() / 2


class Link(NamedTuple):
    header: Header
    data: memoryview


class ChainWalk:
    """One claimant's. epoch: its own; nonce: its own, in the seal. still_claimed: raises FencedError if another has
    claimed the container since. `links` is to be read to its end once; `begun` has the first sequence of each epoch
    that was entered."""

    def __init__(
        self, objects: ChainObjects, epoch: int, nonce: bytes, still_claimed: Callable[[], Awaitable[None]]
    ) -> None:
        self.lost_races = 0
        self.begun: list[tuple[int, int]] = []
        self._objects, self._epoch, self._nonce, self._still_claimed = objects, epoch, nonce, still_claimed
        self._ahead: deque[asyncio.Task[memoryview | None]] = deque()  # from the walk's place on
        self._has_braked = False

    async def links(self, place: ChainPosition, sequence: int) -> AsyncIterator[Link]:
        """All frames from that place on, the first of which follows `sequence`, until the chain is sealed for this
        claimant. FencedError: the container is another's. CorruptLogError: an object is damaged, or missing though it
        was acknowledged."""
        container = self._objects.container
        try:
            while True:
                data = await self._next(place)
                if data is None:
                    await self._check_gap(place)
                    data = await self._seal(place, sequence)
                    if data is None:
                        self.begun.append((self._epoch, sequence + 1))
                        return
                header = Header.decode(data, container, place)
                if header is None:  # the one in memory may be
                    await self._forget()
                    data = await self._objects.read(place) or memoryview(b"")
                    header = Header.decode(data, container, place)
                if header is None:
                    raise self._damaged(place, "has a damaged header")
                if header.kind == FRAME:
                    if header.sequence != sequence + 1:
                        raise self._damaged(place, f"is frame {header.sequence:,}, and {sequence + 1:,} should follow")
                    yield Link(header, data)
                    place, sequence = place.next, header.sequence
                    continue
                await self._forget()
                if header.next_epoch > self._epoch:
                    raise FencedError(container, header.next_epoch)
                if header.next_epoch <= place.epoch:
                    raise self._damaged(place, f"leads from epoch {place.epoch} back to {header.next_epoch}")
                if header.next_epoch == self._epoch:
                    if header.nonce != self._nonce:
                        raise FencedError(container, self._epoch)
                    self.begun.append((self._epoch, sequence + 1))  # stored by a try that got no answer
                    return
                place = ChainPosition(header.next_epoch, 1)
                self.begun.append((header.next_epoch, sequence + 1))
        finally:
            await self._forget()

    async def _next(self, place: ChainPosition) -> memoryview | None:
        for number in range(place.number + len(self._ahead), place.number + CHAIN_READ_AHEAD):
            self._ahead.append(asyncio.create_task(self._objects.read(ChainPosition(place.epoch, number))))
        return await self._ahead.popleft()

    async def _forget(self) -> None:
        """What was read ahead: behind a gap it means nothing, and behind a seal there is another epoch."""
        tasks, self._ahead = list(self._ahead), deque()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _check_gap(self, place: ChainPosition) -> None:
        """CorruptLogError if the object that isn't there is known to have been there: a later one says so. To a
        claimant that others have overtaken, objects are missing because they were deleted."""
        for number, task in enumerate(self._ahead, place.number + 1):
            data = await task
            header = Header.decode(data, self._objects.container, ChainPosition(place.epoch, number)) if data else None
            if header is not None and header.kind == FRAME and header.durable >= place.number:
                await self._still_claimed()
                if await self._objects.read(place) is not None:  # stored since the first look
                    break
                raise self._damaged(place, f"is missing, and was durable when number {number:,} was written")
        await self._forget()

    async def _seal(self, place: ChainPosition, sequence: int) -> memoryview | None:
        """None: the chain ends here, with this claimant's seal; else what is there."""
        container = self._objects.container
        if self.lost_races and not self._has_braked:
            self._has_braked = True
            ahead = ChainPosition(place.epoch, place.number + CHAIN_BRAKE)
            await self._objects.store(ahead, [encode_seal(container, ahead, sequence, self._epoch, self._nonce)])
        there = await self._objects.store(place, [encode_seal(container, place, sequence, self._epoch, self._nonce)])
        self.lost_races += there is not None
        return there

    def _damaged(self, place: ChainPosition, what: str) -> CorruptLogError:
        return CorruptLogError(name_of(self._objects.container, place), 0, what)
