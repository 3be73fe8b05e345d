"""Where writers and a stream stood at a time: writers' marks, and the cut of a moment.

A mark says that all of a writer's events up to a time lie before a position. It comes from the writer itself, or from
the commit of one of its transactions; a writer's time and position never go back. Marks are dropped with their stream.

The cut of a moment is found in the time indexes of segments. It must not skip an event of the moment or later, nor
enter a segment before all its predecessors are passed. So the search moves as a reader does: from the segments of an
epoch, over those that were sealed by then, to their successors. A segment that can't start yet, because a scale was in
progress at that moment, is in the cut at -1. Replaced segments took events until they were sealed, a little after their
scale was planned: so the search starts at the newest epoch of that time, and goes back while a replaced segment was
still open, and one epoch further, because committing older transactions makes two epochs at once, whose segments are
not sealed in epoch order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from nadi import errors
from nadi.controller.engine.workflows import Workflows
from nadi.controller.event_time.watermarks import joined
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Step, TimedStream, Transaction, WriterMark
from nadi.controller.state.segments import together
from nadi.controller.state.store import ANY_VERSION
from nadi.limits import NAME_MAX_CHARS, NOTED_STEPS_MAX
from nadi.model.frontier import Frontier
from nadi.wire.moments import ARRIVAL, is_earliest

log = logging.getLogger(__name__)


class InvalidTimeError(errors.InvalidArgumentError):
    """The writer has noted a later time already."""


def check_writer(writer: str) -> None:
    if not 0 < len(writer) <= NAME_MAX_CHARS:
        raise errors.InvalidArgumentError(f"a writer id has 1 to {NAME_MAX_CHARS} characters, not {len(writer):,}")


async def note(
    flow: Workflows, name: StreamName, writer: str, time: int, position: Cut, steps: Sequence[Step] | None = None
) -> bool:
    """Record a mark; InvalidTimeError or InvalidStreamCutError for one that lies before the writer's last. Return
    whether it has so many steps that watermarks should be made of them."""
    check_writer(writer)
    new = [(time, dict(position))] if steps is None else [step for step in steps if step[1]]
    if len(new) > NOTED_STEPS_MAX or any(a > b for a, b in pairwise([*(at for at, _ in new), time])):
        raise errors.InvalidArgumentError(f"a writer notes up to {NOTED_STEPS_MAX} steps, in order, before its time")
    await flow.metadata.stream(name)
    history = await flow.metadata.history(name)
    if any(history.is_unknown(segment) for _, at in [(time, position), *new] for segment in at):
        raise errors.InvalidStreamCutError(f"the position of writer {writer} names a segment that {name} never had")
    is_first, kept = False, new

    async def noted(held: WriterMark | None) -> WriterMark:
        nonlocal is_first, kept
        is_first, kept = held is None, new
        if held is not None:
            _check_order(writer, held, time, position)
            kept = [*held.steps, *new]
        if len(kept) > 2 * NOTED_STEPS_MAX:  # another writer keeps watermarks back
            kept = [*kept[:-1:2], kept[-1]]
        return WriterMark(time, dict(position), steps=tuple(kept))

    table = flow.metadata.marks(name)
    await table.change(writer, _mark(writer, name), noted)
    if is_first or await flow.metadata.timed.get(name.key) is None:
        await _register(flow, name)
    if await flow.metadata.find_stream(name) is None:  # deleted meanwhile, perhaps before the mark was stored
        await table.remove([writer])
        await table.drop(must_be_empty=True)
        raise errors.StreamNotFoundError(*name)
    return len(kept) > NOTED_STEPS_MAX


async def _register(flow: Workflows, name: StreamName) -> None:
    """For watermark rounds, after the mark is stored: who finds none may strike the stream off, and looks once more."""
    if not name.stream.startswith("_"):
        await flow.metadata.timed.put(name.key, TimedStream(), ANY_VERSION)


def _check_order(writer: str, held: WriterMark, time: int, position: Cut) -> None:
    if time < held.time:
        raise InvalidTimeError(f"writer {writer} has noted the time {held.time} already, which is after {time}")
    for segment, offset in held.position.items():
        if position.get(segment, offset) < offset:
            raise errors.InvalidStreamCutError(f"writer {writer} was at offset {offset:,} of segment {segment} already")


async def remove_writer(flow: Workflows, name: StreamName, writer: str) -> None:
    """Stop the writer from holding the watermark back; its last mark still counts until it is passed."""
    await flow.metadata.stream(name)
    if not 0 < len(writer) <= NAME_MAX_CHARS:
        raise errors.WriterNotFoundError(name.key, writer)

    async def removed(held: WriterMark | None) -> WriterMark:
        if held is None:
            raise errors.WriterNotFoundError(name.key, writer)
        return replace(held, alive=False)

    await flow.metadata.marks(name).change(writer, _mark(writer, name), removed)


def _mark(writer: str, name: StreamName) -> str:
    return f"the mark of writer {writer} in {name}"


async def note_commits(
    flow: Workflows, name: StreamName, transactions: Mapping[str, Transaction], positions: Mapping[str, Cut]
) -> None:
    """Note the commit times of transactions that have one, the latest per writer, at where they were merged."""
    latest: dict[str, tuple[int, str]] = {}
    for text, txn in transactions.items():
        if txn.writer_id and txn.commit_time is not None:
            latest[txn.writer_id] = max(latest.get(txn.writer_id, (txn.commit_time, text)), (txn.commit_time, text))
    for writer, (time, text) in latest.items():
        try:
            await note(flow, name, writer, time, positions[text])
        except errors.InvalidArgumentError as error:  # the commit stands; only its time says nothing new
            log.info("the commit time of transaction %s of %s is ignored: %s", text, name, error)


_EPOCHS_SURE = 2
_TRIES = 5  # while truncations delete segments that are being asked for


async def cut_at(flow: Workflows, name: StreamName, at: int, clock: int = ARRIVAL) -> Cut:
    """The cut before which nothing of that time or later lies: the head if the time is before it. Of ARRIVAL it is the
    tail for a moment in the future, and otherwise always the same, until it is truncated away. Of an EARLIEST clock it
    is the cut behind which nothing of an earlier time lies."""
    for _ in range(_TRIES):
        head = (await flow.metadata.stream(name)).value.head
        history = await flow.metadata.history(name)
        try:
            look = _Look(flow, name, history, head, at, clock)
            return await (look.cut_behind() if is_earliest(clock) else look.cut())
        except errors.SegmentNotFoundError:
            if (await flow.metadata.stream(name)).value.head == head:
                raise
    raise errors.UnavailableError(f"{name} is being truncated again and again: try again")


class _Look:
    """One search. Segments before the head may be gone, and count as sealed long ago."""

    def __init__(self, flow: Workflows, name: StreamName, history: History, head: Cut, at: int, clock: int) -> None:
        self._segments, self._name, self._history, self._at, self._clock = flow.segments, name, history, at, clock
        self._head, self._is_before_head = head, history.passed(head)
        self._found: dict[int, tuple[int, bool]] = {}  # segment: where it stood, and whether it was sealed

    async def cut(self) -> Cut:
        frontier = Frontier((piece.as_range for piece in self._history.epoch(await self._first_epoch())), ())
        look = list(frontier.active)
        while look:
            await self._ask(look)
            sealed = [segment for segment in look if self._found[segment][1]]
            look = []
            for segment in sealed:
                successors = [new.as_range for new, _ in self._history.successors(segment)]
                if successors:
                    look += [begun.segment_id for begun in frontier.complete(segment, successors)]
        return frontier.positions({segment: offset for segment, (offset, _) in self._found.items()})

    async def cut_behind(self) -> Cut:
        """The first cut of one epoch's segments behind which no earlier event lies."""
        first, last = self._lowest_epoch(), self._history.newest
        ids = {segment.id for epoch in range(first, last + 1) for segment in self._history.epoch(epoch)}
        await self._ask(ids)
        begun = {
            segment: self._found[segment][0] for segment in ids if self._found[segment][0] > self._head.get(segment, 0)
        }
        positions = [begun, self._head or {segment.id: 0 for segment in self._history.epoch(first)}]
        return {place.segment_id: place.offset for place in joined(positions, self._history)}

    def _lowest_epoch(self) -> int:
        return min(self._history.span(self._head).values()) if self._head else self._history.first

    async def _first_epoch(self) -> int:
        """An epoch before whose segments there is nothing of that time or later."""
        lowest = self._lowest_epoch()
        if self._clock != ARRIVAL:
            return lowest
        epoch = first = self._history.epoch_at(self._at)
        sure = 0
        while epoch > lowest and sure < _EPOCHS_SURE:
            replaced = self._history.change(epoch).removed
            await self._ask(replaced)
            epoch -= 1
            if all(self._found[segment][1] for segment in replaced):
                sure += 1
            else:
                first, sure = epoch, 0
        return max(first, lowest)

    async def _ask(self, segments: Iterable[int]) -> None:
        async def one(segment: int) -> None:
            if self._is_before_head(segment):
                self._found[segment] = 0, True
            else:
                offset, was_sealed = await self._segments.locate_moment(
                    self._name.segment(segment), self._at, self._clock
                )
                self._found[segment] = max(offset, self._head.get(segment, 0)), was_sealed

        await together(one(segment) for segment in segments if segment not in self._found)
