"""The controller's only way to segments: wire commands through one `exchange`, wrapped in typed calls.

`exchange` takes a command and returns the store's reply, which may be an error command; it raises UnavailableError when
the store can't be reached. Each call here is idempotent: what is already done counts as done. Only unavailability is
retried, a few times; workflows deal with longer outages. Calls to each store wait in a lane of its own, so one that
doesn't answer holds up nobody who asks another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from nadi.backoff import Backoff
from nadi.controller.state.records import Config
from nadi.errors import (
    DamagedDataError,
    NadiError,
    ProtocolError,
    SegmentNotFoundError,
    StreamSealedError,
    UnavailableError,
)
from nadi.limits import SEGMENT_CALL_ATTEMPTS, SEGMENT_CALLS_AT_ONCE, TABLE_PAGE_MAX_ENTRIES
from nadi.model.load import SegmentLoad
from nadi.naming import LOAD_SEGMENT
from nadi.runtime import Runtime
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.errors import error_of, is_whole
from nadi.wire.fields import TableEntry
from nadi.wire.loads import unpacked_loads
from nadi.wire.moments import ARRIVAL

Exchange = Callable[[Command], Awaitable[Command]]
PlaceOf = Callable[[Command], str]
Leased = Callable[[], bool]

Answer = TypeVar("Answer", bound=Command)
A = TypeVar("A")
B = TypeVar("B")
_FIRST_PAUSE_S = 0.05
_CAN_COME = (SegmentNotFoundError, StreamSealedError, DamagedDataError, UnavailableError)  # for a correct command


def always() -> bool:
    return True


def one_place(command: Command) -> str:
    return ""


class Segments:
    """Typed calls to the segment stores. place_of: returns the one that a command goes to, by any name. is_leased:
    whether no other controller can have started since this one did; no command is given otherwise."""

    def __init__(
        self, exchange: Exchange, clock: Runtime, place_of: PlaceOf = one_place, is_leased: Leased = always
    ) -> None:
        self._exchange, self._place_of, self._is_leased = exchange, place_of, is_leased
        self.clock = clock
        self._request_ids = itertools.count(1)
        self._lanes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # those in use, by store

    def request_id(self) -> int:
        return next(self._request_ids)

    async def call(self, command: Command) -> tuple[Command, bool]:
        """The reply, and whether the command may have been carried out by an earlier, unanswered try."""
        backoff = Backoff(first_s=_FIRST_PAUSE_S, growth=4, sleep=self.clock.sleep)
        for attempt in itertools.count(1):
            lane = self._lane(command)  # anew each time: segments move
            try:
                async with lane:
                    self._check_lease()  # just before the command is given: one of thousands may wait for long
                    reply = await self._exchange(command)
                if isinstance(reply, wire.WrongHost):
                    raise failure(command, reply)
                return reply, attempt > 1
            except UnavailableError:
                if attempt == SEGMENT_CALL_ATTEMPTS:
                    raise
            await backoff.pause()
        raise AssertionError("unreachable")

    def _check_lease(self) -> None:
        if not self._is_leased():
            raise UnavailableError("another server may have the active controller by now: try again")

    def place_of(self, segment: str) -> str:
        """The store that has a segment, by any name, as far as is known now."""
        return self._place_of(wire.GetStreamSegmentInfo(0, segment, ""))

    def _lane(self, command: Command) -> asyncio.Semaphore:
        place = self._place_of(command)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = asyncio.Semaphore(SEGMENT_CALLS_AT_ONCE)
        return lane

    async def ask(self, command: Command, *answers: type[Answer]) -> Answer:
        """The reply if it is one of the answers; otherwise raise the error that it stands for."""
        reply, _ = await self.call(command)
        if not (isinstance(reply, answers) and is_whole(command, reply)):
            raise failure(command, reply)
        return reply

    async def create_segment(self, name: str, config: Config, *, fixed: bool = False) -> None:
        """Create a stream segment. `fixed`: it never asks to be scaled (transactions, duplicates)."""
        await self.ask(
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
        await self.ask(
            wire.UpdateSegmentPolicy(self.request_id(), name, config.target_rate, int(config.scale_type), ""),
            wire.SegmentPolicyUpdated,
        )

    async def seal(self, name: str) -> None:
        await self.ask(wire.SealSegment(self.request_id(), name, ""), wire.SegmentSealed, wire.SegmentIsSealed)

    async def truncate(self, name: str, offset: int) -> None:
        await self.ask(
            wire.TruncateSegment(self.request_id(), name, offset, ""),
            wire.SegmentTruncated,
            wire.SegmentIsTruncated,
            wire.NoSuchSegment,  # truncated away altogether by a later truncation
        )

    async def delete(self, name: str) -> None:
        await self.ask(wire.DeleteSegment(self.request_id(), name, ""), wire.SegmentDeleted, wire.NoSuchSegment)

    async def create_table(self, name: str, key_bytes: int, rollover_size_bytes: int) -> None:
        await self.ask(
            wire.CreateTableSegment(self.request_id(), name, "", False, key_bytes, rollover_size_bytes),
            wire.SegmentCreated,
            wire.SegmentAlreadyExists,
        )

    async def delete_table(self, name: str) -> None:
        await self.ask(
            wire.DeleteTableSegment(self.request_id(), name, False, ""), wire.SegmentDeleted, wire.NoSuchSegment
        )

    async def table_entries(self, name: str) -> AsyncIterator[TableEntry]:
        """All entries of a table that clients write; none if there is no such table."""
        token = b""
        while True:
            command = wire.ReadTableEntries(self.request_id(), name, "", TABLE_PAGE_MAX_ENTRIES, (token, b"", b""))
            try:
                page = await self.ask(command, wire.TableEntriesRead)
            except SegmentNotFoundError:
                return
            if not page.entries:
                return
            for entry in page.entries:
                yield entry
            token = page.continuation_token

    async def length(self, name: str) -> int:
        """The offset at which the next byte goes into the segment."""
        reply = await self.ask(wire.GetStreamSegmentInfo(self.request_id(), name, ""), wire.StreamSegmentInfo)
        if not reply.exists:
            raise SegmentNotFoundError(name)
        return reply.write_offset

    async def length_if_there(self, name: str) -> int:
        """As `length`; 0 if the segment is gone."""
        try:
            return await self.length(name)
        except SegmentNotFoundError:
            return 0

    async def locate_moment(self, name: str, at: int, clock: int = ARRIVAL) -> tuple[int, bool]:
        """The segment's offset at that time of a clock, and whether it was sealed before it."""
        reply = await self.ask(wire.LocateMoment(self.request_id(), name, at, clock, ""), wire.MomentLocated)
        return reply.offset, reply.is_sealed

    async def loads(self, of: str = "") -> list[SegmentLoad]:
        """The loads of all stream segments that the store has measured in the last 20 minutes, in order of their names,
        not counting those that began in the last half second. Some may have been sealed or deleted meanwhile; a
        segment without load is absent. of: only of those whose names begin so, such as `home/meters/`."""
        found: list[SegmentLoad] = []
        is_last = False
        while not is_last:
            after = found[-1].segment if found else of
            command = wire.GetSegmentLoads(self.request_id(), LOAD_SEGMENT, "", after)
            reply = await self.ask(command, wire.SegmentLoads)
            page = unpacked_loads(reply.loads)
            wanted = [load for load in page if load.segment.startswith(of)]
            found += wanted
            is_last = reply.is_last or not page or len(wanted) < len(page)
        return found

    async def locate(self, name: str, offset: int) -> int:
        """The first boundary between the segment's events at or after an offset, of those that aren't truncated."""
        command = wire.LocateOffset(self.request_id(), name, offset, "")
        located: tuple[type[Command], ...] = (wire.OffsetLocated, wire.SegmentIsTruncated)
        reply = await self.ask(command, *located)
        if isinstance(reply, wire.SegmentIsTruncated):
            return reply.start_offset
        assert isinstance(reply, wire.OffsetLocated)
        return reply.offset

    async def merge(self, target: str, sources: Sequence[str], *, sealed_is_done: bool = False) -> list[int]:
        """Append the sources to the target in order; absent ones were merged before. Return the target's
        length after each. `sealed_is_done`: a sealed target means that all were merged before."""
        command = wire.MergeSegmentsBatch(self.request_id(), target, tuple(sources), "")
        good: tuple[type[Command], ...] = (wire.SegmentsBatchMerged,)
        if sealed_is_done:
            good += (wire.SegmentIsSealed,)
        reply = await self.ask(command, *good)
        return [offset for _, offset in reply.merged] if isinstance(reply, wire.SegmentsBatchMerged) else []


async def together(calls: Iterable[Awaitable[A]]) -> list[A]:
    """Await all at once, and return their results; the first error cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Await the two at once, as `together`; what they return."""
    beside = asyncio.ensure_future(second)
    try:
        return await first, await beside
    except BaseException:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        raise


def failure(command: Command, reply: Command) -> NadiError:
    """The error that a reply stands for; ProtocolError if the command should never get that reply."""
    error = error_of(reply)
    if isinstance(error, _CAN_COME):
        return error
    return ProtocolError(f"the segment store answered {str(command)[:200]} with {str(reply)[:200]}")
