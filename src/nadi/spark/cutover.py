"""Cutover: one query takes over from another at one stream cut. Durable records, and their effect on query plans.

The durable state is one record, changed by compare-and-set, and a position that each query reports.

    following  →  asked  →  fixed at a cut  →  switched
        └───────────┴────────────┴──→ abandoned

Any process may ask. Only the old query's planner fixes the cut: at its position, with everything before it in its
output. After that neither query passes the cut, and each reports when its output is complete up to it.

Spark requests a batch's end only after the previous batch is in the sink and in the commit log. So at that moment
everything before `start` is in the query's output, and nothing after it has ever been planned.

At the cut a query has one more batch, without rows: operators with event time need it to emit the results that the last
batch completed. Its offset is marked `settled` in the checkpoint, so it runs exactly once, despite crashes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.errors import ConflictError, NotFoundError
from nadi.limits import SPARK_CUTOVER_EVERY_S
from nadi.model.cutorder import CutOrder
from nadi.model.streamcut import StreamCut
from nadi.spark.ledger import ledger
from nadi.spark.options.parsed import ReadOptions


class State(Enum):
    FOLLOWING = "following"  # the new query follows the old one and writes its trial stream
    ASKED = "asked"
    FIXED = "fixed"
    SWITCHED = "switched"
    ABANDONED = "abandoned"


class Cutover(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cutover.

    output, trial: streams of the same scope. start: the new query's start, as the text of a stream cut; from_head: it
    was the head. cut: of the input, once it is fixed. is_old_done, is_new_done: that query's output is complete up to
    the cut.
    """

    new: str
    output: str
    trial: str
    start: str
    from_head: bool
    state: State = State.FOLLOWING
    cut: str | None = None
    is_old_done: bool = False
    is_new_done: bool = False


class OldPosition(msgspec.Struct, frozen=True):
    """Positions of the old query's input and output at the same moment; output is None if that stream doesn't exist."""

    cut: str
    output: str | None


class CutoverMark(msgspec.Struct, frozen=True):
    """A position at which both outputs are the results of the same input."""

    cut: str
    output: str
    trial: str

    def cuts(self) -> tuple[StreamCut, StreamCut]:
        """Return the cuts of the output and of the trial stream."""
        return StreamCut.from_text(self.output), StreamCut.from_text(self.trial)


class NewPosition(msgspec.Struct, frozen=True):
    """The position of the new query's input, and its first and latest marks."""

    cut: str
    first: CutoverMark | None = None
    last: CutoverMark | None = None


class CutoverRecord:
    """The records of the cutover by the query `old` of a stream. Each position is written by its query alone."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, old: str) -> None:
        self.old, name = old, f"{stream}/{old}"
        self.cutover = ledger(manager, scope, "the cutover of query", "cutover/", Cutover).record(name)
        self.old_position = ledger(manager, scope, "the position of query", "cutover-old/", OldPosition).record(name)
        self.new_position = ledger(
            manager, scope, "the position of the successor of query", "cutover-new/", NewPosition
        ).record(name)

    async def begin(self, requested: Cutover) -> Cutover:
        """Create the record, or replace an abandoned one; return the current one."""

        def created(stored: Cutover | None) -> Cutover | None:
            is_free = stored is None or (stored.state is State.ABANDONED and stored.new != requested.new)
            return requested if is_free else None

        stored = await self.cutover.put(created)
        assert stored is not None, "the record exists now"
        if stored is requested:  # drop marks of an abandoned cutover: they belong to another trial stream
            await self.new_position.put(lambda _: NewPosition(requested.start))
        return stored


class QuerySupersededError(ConflictError):
    """Not a failure: the query's output is complete up to `cut`, where `new` continues."""

    def __init__(self, old: str, new: str, cut: str) -> None:
        super().__init__(
            f"the query {old} was replaced by {new}: its output is complete, and {new} continues at {cut}. Don't start "
            f"{old} again, unless the replay is abandoned"
        )
        self.old, self.new, self.cut = old, new, cut


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The allowed next batch. limit: its latest end. settles: it is the batch without rows at the cut. waits: no
    batch."""

    limit: StreamCut | None = None
    settles: bool = False
    waits: bool = False


FREE, SETTLES, WAITS = BatchLimit(), BatchLimit(settles=True), BatchLimit(waits=True)


class CutoverPlan:
    def __init__(self, manager: StreamManager, scope: str, stream: str, old: str) -> None:
        self.name = old
        self._manager, self._scope, self._stream = manager, scope, stream
        self._record = CutoverRecord(manager, scope, stream, old)
        self._checked_at: float | None = None
        self._step = FREE

    @staticmethod
    def of(manager: StreamManager, options: ReadOptions) -> CutoverPlan | None:
        """Return the plan of a query; None if it takes part in no cutover."""
        if options.replay_of is not None:
            return NewQuery(manager, options.scope, options.stream, options.replay_of)
        if options.cutover is not None:
            return OldQuery(manager, options.scope, options.stream, options.cutover)
        return None

    async def step(self, start: StreamCut, settled: str | None) -> BatchLimit:
        """Return the limit of the batch after `start`. settled: the name of the cutover at whose cut the query has
        settled."""
        now = time.monotonic()
        is_due = self._checked_at is None or now - self._checked_at >= SPARK_CUTOVER_EVERY_S
        if is_due or self._step.settles:
            self._step = await self._update(start, is_settled=settled == self.name)
            self._checked_at = now
        return self._step

    async def _update(self, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        raise NotImplementedError

    async def _to(self, cut: str | None, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        """Return the limit on the way to the cut; WAITS once the query has settled there."""
        assert cut is not None, "the cut is fixed"
        end = StreamCut.from_text(cut)
        order = await self._order(start, end)
        if order is CutOrder.EQUAL:
            return WAITS if is_settled else SETTLES
        if order is CutOrder.BEFORE:
            return BatchLimit(end)
        raise ConflictError(
            f"a query of {self._scope}/{self._stream} is at {start}, past the cut of the cutover of {self.name}, "
            f"{end}: its checkpoint belongs to another query; give each query its own"
        )

    async def _order(self, first: StreamCut, second: StreamCut) -> CutOrder:
        if first == second:
            return CutOrder.EQUAL
        return await self._manager.cuts(self._scope, self._stream).compare(first, second)

    async def _tail(self, stream: str) -> str | None:
        try:
            return (await self._manager.cuts(self._scope, stream).tail()).as_text()
        except NotFoundError:
            return None


class OldQuery(CutoverPlan):
    """The query to be replaced: option `cutover`."""

    _reported: str | None = None

    async def _update(self, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        cutover = await self._record.cutover.find()
        if cutover is None or cutover.state is State.ABANDONED:
            return FREE
        if cutover.state is State.SWITCHED or cutover.is_old_done:
            raise QuerySupersededError(self.name, cutover.new, cutover.cut or "")
        cut = start.as_text()
        if cutover.state in (State.FOLLOWING, State.ASKED) and cut != self._reported:
            position = OldPosition(cut, await self._tail(cutover.output))
            self._reported = cut
            await self._record.old_position.put(lambda _: position)
        if cutover.state is State.ASKED:
            cutover = await self._record.cutover.change(
                lambda it: replace(it, state=State.FIXED, cut=cut) if it.state is State.ASKED else None
            )
        if cutover.state is not State.FIXED:
            return FREE
        step = await self._to(cutover.cut, start, is_settled=is_settled)
        if not step.waits:
            return step
        cutover = await self._record.cutover.change(
            lambda it: replace(it, is_old_done=True) if it.state is State.FIXED else None
        )
        if cutover.state is State.ABANDONED:
            return FREE
        raise QuerySupersededError(self.name, cutover.new, cutover.cut or "")


class NewQuery(CutoverPlan):
    """The replacing query: option `replay_of`. It doesn't overtake the old one."""

    _position: NewPosition | None = None

    async def _update(self, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        cutover = await self._record.cutover.find()
        if cutover is None or cutover.state is State.ABANDONED:
            status = "it doesn't exist" if cutover is None else f"its replacement by {cutover.new} was abandoned"
            raise ConflictError(
                f"the option 'replay_of' names a cutover of {self.name}, but {status}: start one with nadi.spark.replay"
            )
        if cutover.cut is not None:
            await self._report(start, cutover, None)
            step = await self._to(cutover.cut, start, is_settled=is_settled)
            if step.waits and not cutover.is_new_done:
                await self._record.cutover.change(
                    lambda it: replace(it, is_new_done=True) if it.state is State.FIXED else None
                )
            return step
        old = await self._record.old_position.find()
        if old is None:
            return WAITS  # the old query hasn't reported its position yet
        limit = StreamCut.from_text(old.cut)
        is_even = await self._order(start, limit) is CutOrder.EQUAL
        await self._report(start, cutover, old if is_even else None)
        return BatchLimit(limit)

    async def _report(self, start: StreamCut, cutover: Cutover, even: OldPosition | None) -> None:
        cut = start.as_text()
        position = self._position or await self._record.new_position.find() or NewPosition(cut)
        if even is not None and even.output is not None and (position.last is None or position.last.cut != even.cut):
            trial = await self._tail(cutover.trial)
            if trial is not None:
                mark = CutoverMark(even.cut, even.output, trial)
                position = replace(position, first=position.first or mark, last=mark)
        position = replace(position, cut=cut)
        if position != self._position:
            await self._record.new_position.put(lambda _: position)
        self._position = position
