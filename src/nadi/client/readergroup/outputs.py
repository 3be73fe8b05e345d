"""Exactly-once output of a group: reads batches of events, and records their output together with the position.

The caller writes the results of a batch to transactions, flushes them, and calls `OutputReader.record`, which stores
the position after the batch and the transactions' ids in one conditional update of the group's state. From then on the
events are done, and the transactions must be committed, by this reader or, if it dies, by the segment's next reader
before it gets any events; until then the segment doesn't count as completed. The update of a reader that was declared
dead fails, and its output is discarded.

Transactions that can't be committed because their lease expired are undone: the group returns to the start of their
events.
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
from nadi.model.readergroup import UNASSIGNED, RecordedOutput


@dataclass(frozen=True, slots=True)
class UncommittedOutput:
    """A segment's recorded output that may not be committed yet."""

    segment: str
    output: RecordedOutput


class OutputReader(EventReader):
    """A reader of batches; created by `open_output_reader`.

    The last batch returned by `next_batch` is in use until the next call, which counts it as done.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settled: dict[str, RecordedOutput] = {}  # outputs known to be committed, by segment
        self._unsettled: UncommittedOutput | None = None

    async def next_batch(
        self, most_events: int, linger_s: float = 0.0, timeout: float | None = None
    ) -> EventRead | UncommittedOutput | None:
        """Return up to `most_events` events of one segment as a `block`.

        With `linger_s`, it waits up to this long for a full batch. `UncommittedOutput` is an output that must be
        settled first (`settle`, `undo`). Other results as in `read_next_block`."""
        check_seconds(linger_s, "linger_s")
        self._assigned.most_events = most_events
        try:
            read = await self.read_next_block(timeout)
        except _UnsettledOutput:
            return self._unsettled
        if read is None or read.block is None:
            return read
        ends_at = time.monotonic() + linger_s
        while (cursor := self._assigned.cursor) is not None and len(cursor.block) < most_events and not self._attention:
            self._changed.clear()
            if self._assigned.take_more():
                continue
            remaining_s = ends_at - time.monotonic()
            if remaining_s <= 0 or self._assigned.is_full:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._changed.wait()
        block = read.block if cursor is None else cursor.block
        while self._records_first and not await self._recorded(read.segment, block.offset + block.size_bytes):
            if self._assigned.segment_in_use != read.segment:
                return await self.next_batch(most_events, linger_s, timeout)
        return EventRead(None, block, read.segment, block.offset)

    def confirm(self, offset: int) -> None:
        """Count the events of the block in use before this offset as done."""
        if self._assigned.cursor is not None:
            self._assigned.cursor.confirmed = offset

    async def record(self, start: int, end: int, transactions: Mapping[str, str]) -> UncommittedOutput:
        """Record the events of the block in use up to `end` as done, with the transactions (ids by `scope/stream`) that
        hold the results of the events from `start` on.

        Flush the transactions before; then commit them and call `settle`. ReaderOfflineError or ConditionFailedError if
        this reader no longer has the segment: nothing was recorded, so abort the transactions. UnavailableError if the
        outcome is unknown: retry.
        """
        cursor = self._assigned.cursor
        if cursor is None or self._assigned.segment_in_use is None:
            raise ConditionFailedError("the group was reset, or the segment assigned to another reader, meanwhile")
        segment, output = cursor.source.segment, RecordedOutput(start, end, tuple(transactions.items()))
        generation = self._state.generation

        def change(state: GroupState) -> GroupState:
            if state.outputs.get(segment) == output:
                return state  # stored by an earlier attempt whose reply was lost
            state.member(self.name, self._token)
            stored = state.segments.get(segment)
            if state.generation != generation or stored is None or stored.owner != self.name:
                raise ConditionFailedError(f"segment {segment} belongs to another reader, or the group was reset")
            return state.apply(RecordOutput(self.name, segment, output, self._settled.get(segment)))

        async with self._lock:
            state = await self._shared.change(change)
            if state.generation == generation:
                cursor.confirmed = end
            self._reconcile(state)
        return UncommittedOutput(segment, output)

    def settle(self, unsettled: UncommittedOutput) -> None:
        """Record that an output is committed; it is removed from the group's state with the next update."""
        self._settled[unsettled.segment] = unsettled.output

    async def undo(self, unsettled: UncommittedOutput) -> None:
        """Undo an output that can't be committed, so that its events are read again, and leave the group: this reader's
        position is after them."""

        def change(state: GroupState) -> GroupState:
            state = state.apply(UndoOutput(self.name, unsettled.segment, unsettled.output))
            return state.apply(Leave(self.name)) if state.has_member(self.name, self._token) else state

        async with self._lock:
            await self._shared.change(change)
            drop_out(self)

    # --- inside -----------------------------------------------------------------------------

    def _done(self) -> dict[str, int]:
        return self._assigned.done()  # `confirm` sets the position within the block in use

    async def _find(self, as_block: bool) -> EventRead | None:
        state = self._state
        if state.outputs:
            for segment in state.owned_by(self.name):
                output = state.outputs.get(segment)
                if output is not None and output != self._settled.get(segment):
                    self._unsettled = UncommittedOutput(segment, output)
                    raise _UnsettledOutput
        return await super()._find(as_block)

    def _change(self, state: GroupState) -> GroupState:
        return super()._change(self._without_settled(state))

    def _leave(self, state: GroupState) -> GroupState:
        return super()._leave(self._without_settled(state)) if state.has_member(self.name, self._token) else state

    def _without_settled(self, state: GroupState) -> GroupState:
        """Remove committed outputs of segments that aren't in use from the state."""
        segment_in_use = self._assigned.segment_in_use
        done = [(name, output) for name, output in self._settled.items() if name != segment_in_use]
        return state.apply(*(ForgetOutput(name, output) for name, output in done if name in state.outputs))


class _UnsettledOutput(Exception):
    """Raised inside a read if an output must be settled first."""


async def open_output_reader(
    group: ReaderGroup, reader_id: str, *, on_damage: OnDamage = RAISE, records_first: bool = False
) -> OutputReader:
    """Create a reader of batches; AlreadyExistsError if a reader with that id is online.

    records_first: a batch is recorded as done before it is returned; closing the reader returns unconfirmed events.
    """
    if not reader_id:
        raise InvalidArgumentError("a reader's id must be a non-empty string")
    return await join(group, OutputReader, reader_id, {}, on_damage, None, records_first=records_first)


async def recorded_outputs(group: ReaderGroup) -> list[UncommittedOutput]:
    """Return the outputs that may not be committed yet; committing them again is harmless."""
    state = await shared_state_of(group).read()
    return [UncommittedOutput(segment, output) for segment, output in state.outputs.items()]


async def forget_output(group: ReaderGroup, unsettled: UncommittedOutput, *, undo: bool = False) -> None:
    """Record that an output is committed.

    undo: have its events read again instead, unless a reader has the segment, which then undoes the output itself.
    """
    segment, output = unsettled.segment, unsettled.output
    update = UndoOutput(UNASSIGNED, segment, output) if undo else ForgetOutput(segment, output)
    await shared_state_of(group).change(lambda state: state.apply(update))
