"""One query takes over from another at one stream cut: what is durable of that, and what it does to their plans.

What is durable is one record, changed by compare-and-set, and a place that each of the queries tells.

    following  →  asked  →  fixed at a cut  →  switched
        └───────────┴────────────┴──→ abandoned

Anybody may ask. Only the old query's planner fixes the cut: where it stands, with all before it in its output. From
then on neither query goes past the cut, and each says when its output is complete up to there.

Spark asks for a batch's end only once the batch before it is in the sink and in the commit log. So whoever is asked
here knows that everything before `start` is in the query's output, and that nothing after it was ever planned.

At the cut a query has one batch more, without rows: operators with event time give out only then what the last batch
completed. Its offset, `settled`, says so in the checkpoint: so it is run whatever dies, and once.
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
    FOLLOWING = "following"  # the new query follows the old one, into its trial stream
    ASKED = "asked"
    FIXED = "fixed"
    SWITCHED = "switched"
    ABANDONED = "abandoned"


class Cutover(msgspec.Struct, frozen=True, kw_only=True):
    """output, trial: streams of the same scope. start: where the new query began, as the text of a stream cut;
    from_head: that was the head. cut: of the input, once it is fixed. is_old_done, is_new_done: that query's output is
    complete up to the cut."""

    new: str
    output: str
    trial: str
    start: str
    from_head: bool
    state: State = State.FOLLOWING
    cut: str | None = None
    is_old_done: bool = False
    is_new_done: bool = False


class OldPlace(msgspec.Struct, frozen=True):
    """Where the old query's input stood when its output stood there; None if the output stream is not there."""

    cut: str
    output: str | None


class CutoverMark(msgspec.Struct, frozen=True):
    """Where both outputs are the results of the same input."""

    cut: str
    output: str
    trial: str

    def cuts(self) -> tuple[StreamCut, StreamCut]:
        """Of the output and of the trial stream."""
        return StreamCut.from_text(self.output), StreamCut.from_text(self.trial)


class NewPlace(msgspec.Struct, frozen=True):
    """Where the new query's input stands, and the first and the latest of its marks."""

    cut: str
    first: CutoverMark | None = None
    last: CutoverMark | None = None


class CutoverRecord:
    """What is known of the cutover by the query `old` of a stream. Each place is told by its query alone."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, old: str) -> None:
        self.old, name = old, f"{stream}/{old}"
        self.cutover = ledger(manager, scope, "the cutover by", "cutover/", Cutover).record(name)
        self.old_place = ledger(manager, scope, "the place of", "cutover-old/", OldPlace).record(name)
        self.new_place = ledger(manager, scope, "the place of what follows", "cutover-new/", NewPlace).record(name)

    async def begin(self, wanted: Cutover) -> Cutover:
        """Make the record, in place of an abandoned one; what stands there now."""

        def made(stored: Cutover | None) -> Cutover | None:
            is_free = stored is None or (stored.state is State.ABANDONED and stored.new != wanted.new)
            return wanted if is_free else None

        stored = await self.cutover.put(made)
        assert stored is not None, "there is one now"
        if stored is wanted:  # marks of an abandoned one would be of another trial stream
            await self.new_place.put(lambda _: NewPlace(wanted.start))
        return stored


class QuerySupersededError(ConflictError):
    """Not a failure: the query's output is complete up to `cut`, from where `new` goes on."""

    def __init__(self, old: str, new: str, cut: str) -> None:
        super().__init__(
            f"the query {old} has handed over to {new}: its output is complete, and {new} goes on from {cut}. Don't "
            "start it again, unless the replay is abandoned"
        )
        self.old, self.new, self.cut = old, new, cut


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """What the next batch may be. limit: it goes no further. settles: it is the one without rows, at the cut. waits:
    there is none."""

    limit: StreamCut | None = None
    settles: bool = False
    waits: bool = False


FREE, SETTLES, WAITS = BatchLimit(), BatchLimit(settles=True), BatchLimit(waits=True)


class CutoverPlan:
    def __init__(self, manager: StreamManager, scope: str, stream: str, old: str) -> None:
        self.name = old
        self._manager, self._scope, self._stream = manager, scope, stream
        self._record = CutoverRecord(manager, scope, stream, old)
        self._looked_at: float | None = None
        self._step = FREE

    @staticmethod
    def of(manager: StreamManager, options: ReadOptions) -> CutoverPlan | None:
        """That of a query; None if it takes part in no cutover."""
        if options.replay_of is not None:
            return NewQuery(manager, options.scope, options.stream, options.replay_of)
        if options.cutover is not None:
            return OldQuery(manager, options.scope, options.stream, options.cutover)
        return None

    async def step(self, start: StreamCut, settled: str | None) -> BatchLimit:
        """What follows a batch that ended at `start`; settled: and at the cut of that cutover."""
        now = time.monotonic()
        is_due = self._looked_at is None or now - self._looked_at >= SPARK_CUTOVER_EVERY_S
        if is_due or self._step.settles:
            self._step = await self._look(start, is_settled=settled == self.name)
            self._looked_at = now
        return self._step

    async def _look(self, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        raise NotImplementedError

    async def _to(self, cut: str | None, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        """On the way to the cut; WAITS once it is settled there."""
        assert cut is not None, "it is fixed"
        end = StreamCut.from_text(cut)
        order = await self._order(start, end)
        if order is CutOrder.EQUAL:
            return WAITS if is_settled else SETTLES
        if order is CutOrder.BEFORE:
            return BatchLimit(end)
        raise ConflictError(
            f"a query of {self._scope}/{self._stream} stands at {start}, past the cut of the cutover by {self.name}, "
            f"{end}: its checkpoint is another query's; give each query its own"
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
    """The query that another may take over from: option `cutover`."""

    _told: str | None = None

    async def _look(self, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        found = await self._record.cutover.find()
        if found is None or found.state is State.ABANDONED:
            return FREE
        if found.state is State.SWITCHED or found.is_old_done:
            raise QuerySupersededError(self.name, found.new, found.cut or "")
        at = start.as_text()
        if found.state in (State.FOLLOWING, State.ASKED) and at != self._told:
            place = OldPlace(at, await self._tail(found.output))
            self._told = at
            await self._record.old_place.put(lambda _: place)
        if found.state is State.ASKED:
            found = await self._record.cutover.change(
                lambda it: replace(it, state=State.FIXED, cut=at) if it.state is State.ASKED else None
            )
        if found.state is not State.FIXED:
            return FREE
        step = await self._to(found.cut, start, is_settled=is_settled)
        if not step.waits:
            return step
        found = await self._record.cutover.change(
            lambda it: replace(it, is_old_done=True) if it.state is State.FIXED else None
        )
        if found.state is State.ABANDONED:
            return FREE
        raise QuerySupersededError(self.name, found.new, found.cut or "")


class NewQuery(CutoverPlan):
    """The query that takes over: option `replay_of`. It doesn't overtake the old one."""

    _place: NewPlace | None = None

    async def _look(self, start: StreamCut, *, is_settled: bool) -> BatchLimit:
        found = await self._record.cutover.find()
        if found is None or found.state is State.ABANDONED:
            what = "there is none" if found is None else f"that to {found.new} was abandoned"
            raise ConflictError(
                f"the option 'replay_of' names a cutover by {self.name}, and {what}: nadi.spark.replay begins one"
            )
        if found.cut is not None:
            await self._tell(start, found, None)
            step = await self._to(found.cut, start, is_settled=is_settled)
            if step.waits and not found.is_new_done:
                await self._record.cutover.change(
                    lambda it: replace(it, is_new_done=True) if it.state is State.FIXED else None
                )
            return step
        old = await self._record.old_place.find()
        if old is None:
            return WAITS  # the old query has not said yet where it is
        limit = StreamCut.from_text(old.cut)
        is_even = await self._order(start, limit) is CutOrder.EQUAL
        await self._tell(start, found, old if is_even else None)
        return BatchLimit(limit)

    async def _tell(self, start: StreamCut, found: Cutover, even: OldPlace | None) -> None:
        cut = start.as_text()
        place = self._place or await self._record.new_place.find() or NewPlace(cut)
        if even is not None and even.output is not None and (place.last is None or place.last.cut != even.cut):
            trial = await self._tail(found.trial)
            if trial is not None:
                mark = CutoverMark(even.cut, even.output, trial)
                place = replace(place, first=place.first or mark, last=mark)
        place = replace(place, cut=cut)
        if place != self._place:
            await self._record.new_place.put(lambda _: place)
        self._place = place
