"""The controller's only way to segments: wire commands through one `exchange`, wrapped in typed calls.

`exchange` takes a command and gives the store's reply, which may be an error command; it raises
UnavailableError when the store can't be reached. Each call here is idempotent: what was done already
counts as done, so a workflow can be run again from its start. Unavailability alone is retried, a few
times; longer outages are the workflows' business.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence

from nadi.controller.state.clock import Clock
from nadi.controller.state.records import Config
from nadi.errors import NadiError, SegmentNotFoundError, StorageFullError, StreamSealedError, UnavailableError
from nadi.limits import SEGMENT_CALL_ATTEMPTS
from nadi.wire import commands as wire
from nadi.wire.commands import Command

Exchange = Callable[[Command], Awaitable[Command]]

_FIRST_PAUSE_S = 0.05
_PARALLEL = 64


class StoreError(NadiError):
    """The segment store gave a reply that doesn't belong to the command; the message tells both."""


class Segments:
    """Typed calls to the segment store."""

    def __init__(self, exchange: Exchange, clock: Clock) -> None:
        self._exchange = exchange
        self._clock = clock
        self._request_ids = itertools.count(1)
        self._permits = asyncio.Semaphore(_PARALLEL)

    def request_id(self) -> int:
        return next(self._request_ids)

    async def call(self, command: Command) -> tuple[Command, bool]:
        """The reply, and whether the command may have been carried out by an earlier, unanswered try."""
        pause = _FIRST_PAUSE_S
        for attempt in itertools.count(1):
            try:
                async with self._permits:
                    reply = await self._exchange(command)
                if isinstance(reply, wire.WrongHost):
                    raise UnavailableError(f"segment {reply.segment} is being moved to another store: try again")
                return reply, attempt > 1
            except UnavailableError:
                if attempt == SEGMENT_CALL_ATTEMPTS:
                    raise
            await self._clock.sleep(pause)
            pause *= 4
        raise AssertionError("unreachable")

    async def _expect(self, command: Command, *good: type[Command]) -> Command:
        reply, _ = await self.call(command)
        if not isinstance(reply, good):
            raise failure(command, reply)
        return reply

    async def create_segment(self, name: str, config: Config, *, fixed: bool = False) -> None:
        """Create a stream segment. `fixed`: it never asks to be scaled (transactions, duplicates)."""
        await self._expect(
            wire.CreateSegment(
                self.request_id(),
                name,
                0 if fixed else config.target_rate,
                0 if fixed else int(config.scale_type),
                "",
                config.rollover_size_bytes,
            ),
            wire.SegmentCreated,
            wire.SegmentAlreadyExists,
        )

    async def update_policy(self, name: str, config: Config) -> None:
        await self._expect(
            wire.UpdateSegmentPolicy(self.request_id(), name, config.target_rate, int(config.scale_type), ""),
            wire.SegmentPolicyUpdated,
        )

    async def seal(self, name: str) -> None:
        await self._expect(wire.SealSegment(self.request_id(), name, ""), wire.SegmentSealed, wire.SegmentIsSealed)

    async def truncate(self, name: str, offset: int) -> None:
        await self._expect(
            wire.TruncateSegment(self.request_id(), name, offset, ""),
            wire.SegmentTruncated,
            wire.SegmentIsTruncated,
            wire.NoSuchSegment,  # truncated away altogether by a later truncation
        )

    async def delete(self, name: str) -> None:
        await self._expect(wire.DeleteSegment(self.request_id(), name, ""), wire.SegmentDeleted, wire.NoSuchSegment)

    async def create_table(self, name: str, key_bytes: int, rollover_size_bytes: int) -> None:
        """Create a table segment whose keys have `key_bytes` bytes each."""
        await self._expect(
            wire.CreateTableSegment(self.request_id(), name, "", False, key_bytes, rollover_size_bytes),
            wire.SegmentCreated,
            wire.SegmentAlreadyExists,
        )

    async def delete_table(self, name: str) -> None:
        """Delete a table segment with all it holds."""
        await self._expect(
            wire.DeleteTableSegment(self.request_id(), name, False, ""), wire.SegmentDeleted, wire.NoSuchSegment
        )

    async def length(self, name: str) -> int:
        """The offset at which the next byte goes into the segment."""
        reply = await self._expect(wire.GetStreamSegmentInfo(self.request_id(), name, ""), wire.StreamSegmentInfo)
        assert isinstance(reply, wire.StreamSegmentInfo)
        if not reply.exists:
            raise SegmentNotFoundError(name)
        return reply.write_offset

    async def locate_moment(self, name: str, at_ms: int) -> tuple[int, bool]:
        """Where the segment stood at that moment, and whether it was sealed before it."""
        reply = await self._expect(wire.LocateMoment(self.request_id(), name, at_ms, ""), wire.MomentLocated)
        assert isinstance(reply, wire.MomentLocated)
        return reply.offset, reply.is_sealed

    async def merge(self, target: str, sources: Sequence[str], *, sealed_is_done: bool = False) -> list[int]:
        """Append the sources to the target in order; absent ones were merged before. Gives the target's
        length after each. `sealed_is_done`: a sealed target shows that all was merged before."""
        command = wire.MergeSegmentsBatch(self.request_id(), target, tuple(sources), "")
        good: tuple[type[Command], ...] = (wire.SegmentsBatchMerged,)
        if sealed_is_done:
            good += (wire.SegmentIsSealed,)
        reply = await self._expect(command, *good)
        return [offset for _, offset in reply.merged] if isinstance(reply, wire.SegmentsBatchMerged) else []


async def together(calls: Iterable[Awaitable[object]]) -> None:
    """Await all at once; the first error cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def failure(command: Command, reply: Command) -> NadiError:
    """The error that a reply stands for."""
    if isinstance(reply, wire.NoSuchSegment):
        return SegmentNotFoundError(reply.segment)
    if isinstance(reply, wire.SegmentIsSealed):
        return StreamSealedError(f"segment {reply.segment}")
    if isinstance(reply, wire.ErrorMessage) and reply.error_code == wire.STORAGE_FULL:
        return StorageFullError(f"segment {reply.segment}: {reply.message}")
    return StoreError(f"the segment store answered {command} with {reply}")
