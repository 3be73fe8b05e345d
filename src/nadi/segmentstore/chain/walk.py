"""Takes over a container's chain: walks to its end, and seals it there.

It reads 1, 2, 3… of each epoch from the given start, never from a listing. A seal that names an epoch before its claim
leads to that epoch. At the first missing object, it creates a seal that names its claim's epoch; if another server was
faster, it reads that object and continues. Once its seal is stored, it has seen everything ever acknowledged: an owner
acknowledges a number only after all before it, and can't store the number of the seal.

A live owner may win this race repeatedly. So after one lost race the claimant also creates a seal some numbers ahead,
which stops the owner there; the first gap is sealed as well.
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
        self.trouble = ""  # the engine's last error, if its last call failed
        self._engine, self._runtime = engine, runtime
        self._warning = SeldomWarning(
            log, "the store of a log failed %d times, most recently for container %d: %s", runtime.monotonic
        )

    async def store(self, position: ChainPosition, parts: Sequence[bytes]) -> memoryview | None:
        """Store an object there. Return None once it is durable, or the object that another server stored there first.
        If the outcome of an attempt is unknown, the same bytes are stored again under the same name."""
        name, size_bytes = name_of(self.container, position), sum(map(len, parts))
        return await self._until_done(lambda: outcomes.stored(self._engine, name, parts), size_bytes)

    async def read(self, position: ChainPosition, start: int = 0, length: int | None = None) -> memoryview | None:
        """Return the object there, or a part of it; None if it doesn't exist."""
        name = name_of(self.container, position)
        return await self._until_done(lambda: self._engine.get(name, start, length), length or 0)

    async def delete(self, positions: Sequence[ChainPosition]) -> None:
        await self._engine.delete([name_of(self.container, position) for position in positions])

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
    """One claimant's walk. epoch: its claim's; nonce: in its seal. still_claimed: raises FencedError if another server
    has claimed the container since. Read `links` to its end once; `begun` has the first sequence of each epoch
    entered."""

    def __init__(
        self, objects: ChainObjects, epoch: int, nonce: bytes, still_claimed: Callable[[], Awaitable[None]]
    ) -> None:
        self.lost_races = 0
        self.begun: list[tuple[int, int]] = []
        self._objects, self._epoch, self._nonce, self._still_claimed = objects, epoch, nonce, still_claimed
        self._ahead: deque[asyncio.Task[memoryview | None]] = deque()  # from the walk's position on
        self._has_braked = False

    async def links(self, position: ChainPosition, sequence: int) -> AsyncIterator[Link]:
        """Yield all frames from that position on, starting after `sequence`, until the chain is sealed for
        this claimant. FencedError: another server has the container. CorruptLogError: an object is damaged, or missing
        though it was acknowledged."""
        container = self._objects.container
        try:
            while True:
                data = await self._next(position)
                if data is None:
                    await self._check_gap(position)
                    data = await self._seal(position, sequence)
                    if data is None:
                        self.begun.append((self._epoch, sequence + 1))
                        return
                header = Header.decode(data, container, position)
                if header is None:  # possibly only in memory
                    await self._forget()
                    data = await self._objects.read(position) or memoryview(b"")
                    header = Header.decode(data, container, position)
                if header is None:
                    raise self._damaged(position, "has a damaged header")
                if header.kind == FRAME:
                    if header.sequence != sequence + 1:
                        raise self._damaged(position, f"is frame {header.sequence:,}, not {sequence + 1:,}")
                    yield Link(header, data)
                    position, sequence = position.next, header.sequence
                    continue
                await self._forget()
                if header.next_epoch > self._epoch:
                    raise FencedError(container, header.next_epoch)
                if header.next_epoch <= position.epoch:
                    raise self._damaged(position, f"leads from epoch {position.epoch} back to {header.next_epoch}")
                if header.next_epoch == self._epoch:
                    if header.nonce != self._nonce:
                        raise FencedError(container, self._epoch)
                    self.begun.append((self._epoch, sequence + 1))  # stored by an attempt without an answer
                    return
                position = ChainPosition(header.next_epoch, 1)
                self.begun.append((header.next_epoch, sequence + 1))
        finally:
            await self._forget()

    async def _next(self, position: ChainPosition) -> memoryview | None:
        for number in range(position.number + len(self._ahead), position.number + CHAIN_READ_AHEAD):
            self._ahead.append(asyncio.create_task(self._objects.read(ChainPosition(position.epoch, number))))
        return await self._ahead.popleft()

    async def _forget(self) -> None:
        """Discard objects read ahead: after a gap they are invalid, and after a seal another epoch follows."""
        tasks, self._ahead = list(self._ahead), deque()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _check_gap(self, position: ChainPosition) -> None:
        """Raise CorruptLogError if a later object shows that the missing object was durable. To a claimant that was
        overtaken, objects are missing because they were deleted."""
        for number, task in enumerate(self._ahead, position.number + 1):
            data = await task
            header = (
                Header.decode(data, self._objects.container, ChainPosition(position.epoch, number)) if data else None
            )
            if header is not None and header.kind == FRAME and header.durable >= position.number:
                await self._still_claimed()
                if await self._objects.read(position) is not None:  # stored since the first read
                    break
                raise self._damaged(position, f"is missing, though it was durable when number {number:,} was written")
        await self._forget()

    async def _seal(self, position: ChainPosition, sequence: int) -> memoryview | None:
        """Return None if the chain ends here, with this claimant's seal; else the object found there."""
        container = self._objects.container
        if self.lost_races and not self._has_braked:
            self._has_braked = True
            ahead = ChainPosition(position.epoch, position.number + CHAIN_BRAKE)
            await self._objects.store(ahead, [encode_seal(container, ahead, sequence, self._epoch, self._nonce)])
        existing = await self._objects.store(
            position, [encode_seal(container, position, sequence, self._epoch, self._nonce)]
        )
        self.lost_races += existing is not None
        return existing

    def _damaged(self, position: ChainPosition, problem: str) -> CorruptLogError:
        return CorruptLogError(name_of(self._objects.container, position), 0, problem)
