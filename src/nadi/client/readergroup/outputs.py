"""Batches of a group's events, and their output: recorded together with the position, so that it comes exactly once.

Whoever makes something of events writes it into transactions, flushes them, and has `OutputReader.record` store
the position after the events and the transactions' ids in one conditional update of the group's state. From then on
the events are done, and the transactions have to be committed, by this reader or, if it dies, by whichever finds them:
the next reader of the segment does so before it gets any of its events, and no segment is counted as read to its end
before. A reader that was taken for dead has no part in the group any more, so its update fails, and with it its output.

Transactions that can't be committed (nobody came before their lease ran out) are undone: the group goes back to where
their events start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nadi.client.control.arguments import check_seconds
from nadi.client.readergroup.event_reads import EventRead
from nadi.client.readergroup.group import ReaderGroup, join, shared_state_of
from nadi.client.readergroup.reader import EventReader, drop_out
from nadi.client.readergroup.state import GroupState
from nadi.client.readergroup.updates import ForgetOutput, Leave, RecordOutput, UndoOutput
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.errors import ConditionFailedError, InvalidArgumentError
from nadi.model.readergroup import NOBODY, RecordedOutput


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A segment's output that may not be committed yet."""

    segment: str
    output: RecordedOutput


class OutputReader(EventReader):
    """A reader of batches; created by `open_output_reader`. What `next_batch` returned last is in hand until the next
    call, which counts it as done."""

    def __init__(self, *given: Any, **options: Any) -> None:
        """As an EventReader."""
        super().__init__(*given, **options)
        self._settled: dict[str, RecordedOutput] = {}  # by segment: committed, as this reader knows
        self._unsettled: Unsettled | None = None

    async def next_batch(
        self, most_events: int, linger_s: float = 0.0, timeout: float | None = None
    ) -> EventRead | Unsettled | None:
        """Return events of one segment as a `block`, up to so many: as soon as there are any, or, with `linger_s`, once
        there are that many, that time has passed, or no more can follow. Otherwise as `read_next_block`; `Unsettled`
        for an output that is to be settled before anything else (`settle`, `undo`)."""
        check_seconds(linger_s, "linger_s")
        self._holdings.most_events = most_events
        try:
            read = await self.read_next_block(timeout)
        except _UnsettledFound:
            return self._unsettled
        if read is None or read.block is None:
            return read
        ends_at = time.monotonic() + linger_s
        while (cursor := self._holdings.cursor) is not None and len(cursor.block) < most_events and not self._attention:
            self._news.clear()
            if self._holdings.take_more():
                continue
            left_s = ends_at - time.monotonic()
            if left_s <= 0 or self._holdings.is_full:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()
        block = read.block if cursor is None else cursor.block
        while self._records_first and not await self._recorded(read.segment, block.offset + block.size_bytes):
            if self._holdings.in_hand != read.segment:
                return await self.next_batch(most_events, linger_s, timeout)
        return EventRead(None, block, read.segment, block.offset)

    def confirm(self, offset: int) -> None:
        """Count the events of the block in hand before this offset as done."""
        if self._holdings.cursor is not None:
            self._holdings.cursor.confirmed = offset

    async def record(self, start: int, end: int, transactions: Mapping[str, str]) -> Unsettled:
        """Record that the events of the block in hand up to `end` are done, with the transactions (ids by
        `scope/stream`) that hold what was made of those from `start` on. They have to be stored completely. Then
        commit them, and say so to `settle`.

        ReaderOfflineError or ConditionFailedError if this reader no longer has the segment: nothing was recorded, so
        abort the transactions. UnavailableError if it isn't known: call it again.
        """
        cursor = self._holdings.cursor
        if cursor is None or self._holdings.in_hand is None:
            raise ConditionFailedError("the group was reset, or the segment given to another reader, meanwhile")
        segment, output = cursor.source.segment, RecordedOutput(start, end, tuple(transactions.items()))
        generation = self._state.generation

        def change(state: GroupState) -> GroupState:
            if state.outputs.get(segment) == output:
                return state  # an earlier try, whose answer was lost
            state.member(self.name, self._token)
            held = state.segments.get(segment)
            if state.generation != generation or held is None or held.owner != self.name:
                raise ConditionFailedError(f"segment {segment} is with another reader of the group, or it was reset")
            return state.apply(RecordOutput(self.name, segment, output, self._settled.get(segment)))

        async with self._lock:
            state = await self._shared.change(change)
            if state.generation == generation:
                cursor.confirmed = end
            self._reconcile(state)
        return Unsettled(segment, output)

    def settle(self, found: Unsettled) -> None:
        """Note that an output is committed; the group's state forgets it with the next update."""
        self._settled[found.segment] = found.output

    async def undo(self, found: Unsettled) -> None:
        """Have the events of an output that can't be committed read again, and leave the group: what this reader knows
        of the segment lies after them."""

        def change(state: GroupState) -> GroupState:
            state = state.apply(UndoOutput(self.name, found.segment, found.output))
            return state.apply(Leave(self.name)) if state.has_member(self.name, self._token) else state

        async with self._lock:
            await self._shared.change(change)
            drop_out(self)

    # --- inside -----------------------------------------------------------------------------

    def _done(self) -> dict[str, int]:
        return self._holdings.done()  # `confirm` says of what is in hand how much was begun

    async def _find(self, is_whole: bool) -> EventRead | None:
        state = self._state
        if state.outputs:
            for segment in state.owned_by(self.name):
                output = state.outputs.get(segment)
                if output is not None and output != self._settled.get(segment):
                    self._unsettled = Unsettled(segment, output)
                    raise _UnsettledFound
        return await super()._find(is_whole)

    def _change(self, state: GroupState) -> GroupState:
        return super()._change(self._without_settled(state))

    def _leave(self, state: GroupState) -> GroupState:
        return super()._leave(self._without_settled(state)) if state.has_member(self.name, self._token) else state

    def _without_settled(self, state: GroupState) -> GroupState:
        """The state without outputs that are committed, of the segments that aren't in hand."""
        in_hand = self._holdings.in_hand
        done = [(name, output) for name, output in self._settled.items() if name != in_hand]
        return state.apply(*(ForgetOutput(name, output) for name, output in done if name in state.outputs))


class _UnsettledFound(Exception):
    """Ends a read: there is an output to be settled first."""


async def open_output_reader(
    group: ReaderGroup, reader_id: str, *, on_damage: OnDamage = RAISE, records_first: bool = False
) -> OutputReader:
    """Create a reader of batches; AlreadyExistsError if one with that id is online. records_first: a batch is recorded
    as done before it is returned; what of it is not confirmed is given back if the reader is closed."""
    if not reader_id:
        raise InvalidArgumentError("a reader needs an id")
    return await join(group, OutputReader, reader_id, {}, on_damage, None, records_first=records_first)


async def recorded_outputs(group: ReaderGroup) -> list[Unsettled]:
    """Return the outputs that may not be committed yet; committing one again does no harm."""
    state = await shared_state_of(group).read()
    return [Unsettled(segment, output) for segment, output in state.outputs.items()]


async def forget_output(group: ReaderGroup, found: Unsettled, *, undo: bool = False) -> None:
    """Note that an output is committed, or, with `undo`, have its events read again unless a reader has the segment,
    which then does so itself."""
    update = UndoOutput(NOBODY, found.segment, found.output) if undo else ForgetOutput(found.segment, found.output)
    await shared_state_of(group).change(lambda state: state.apply(update))
