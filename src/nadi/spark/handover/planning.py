"""What a handover does to the plans of the two queries: how far the next batch may go, and where they end.

Spark asks for a batch's end only once the batch before it is in the sink and in the commit log. So whoever is asked
here knows that everything before `start` is in the query's output, and that nothing after it was ever planned.

At the cut a query has one batch more, without rows: operators with event time give out only then what the last batch
completed. Its offset, `settled`, says so in the checkpoint: so it is run whatever dies, and once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.errors import ConflictError, NotFoundError
from nadi.limits import SPARK_HANDOVER_EVERY_S
from nadi.model.cutorder import CutOrder
from nadi.model.streamcut import StreamCut
from nadi.spark.handover.record import Handover, HandoverRecord, Mark, NewPlace, OldPlace, State


class HandedOverError(ConflictError):
    """Not a failure: the query's output is complete up to `cut`, from where `new` goes on."""

    def __init__(self, old: str, new: str, cut: str) -> None:
        super().__init__(
            f"the query {old} has handed over to {new}: its output is complete, and {new} goes on from {cut}. Don't "
            "start it again, unless the replay is abandoned"
        )
        self.old, self.new, self.cut = old, new, cut


@dataclass(frozen=True, slots=True)
class Step:
    """What the next batch may be. limit: it goes no further. settles: it is the one without rows, at the cut. waits:
    there is none."""

    limit: StreamCut | None = None
    settles: bool = False
    waits: bool = False


FREE, SETTLES, WAITS = Step(), Step(settles=True), Step(waits=True)


class _Query:
    """What both have in common: when they look, and what the cut means to them."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, old: str) -> None:
        self.name = old
        self._manager, self._scope, self._stream = manager, scope, stream
        self._record = HandoverRecord(manager, scope, stream, old)
        self._looked_at: float | None = None
        self._step = FREE

    async def step(self, start: StreamCut, settled: str | None) -> Step:
        """What follows a batch that ended at `start`; settled: and at the cut of that handover."""
        now = time.monotonic()
        is_due = self._looked_at is None or now - self._looked_at >= SPARK_HANDOVER_EVERY_S
        if is_due or self._step.settles:
            self._step = await self._look(start, is_settled=settled == self.name)
            self._looked_at = now
        return self._step

    async def _look(self, start: StreamCut, *, is_settled: bool) -> Step:
        raise NotImplementedError

    async def _to(self, cut: str | None, start: StreamCut, *, is_settled: bool) -> Step:
        """On the way to the cut; WAITS once it is settled there."""
        assert cut is not None, "it is fixed"
        end = StreamCut.from_text(cut)
        order = await self._order(start, end)
        if order is CutOrder.EQUAL:
            return WAITS if is_settled else SETTLES
        if order is CutOrder.BEFORE:
            return Step(end)
        raise ConflictError(
            f"a query of {self._scope}/{self._stream} stands at {start}, past the cut of the handover by {self.name}, "
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


class OldQuery(_Query):
    """The query that another may take over from: option `handover`."""

    _told: str | None = None

    async def _look(self, start: StreamCut, *, is_settled: bool) -> Step:
        found = await self._record.read()
        if found is None or found.state is State.ABANDONED:
            return FREE
        if found.state is State.SWITCHED or found.is_old_done:
            raise HandedOverError(self.name, found.new, found.cut or "")
        if found.state in (State.FOLLOWING, State.ASKED) and start.as_text() != self._told:
            self._told = start.as_text()
            await self._record.tell(OldPlace(self._told, await self._tail(found.output)))
        if found.state is State.ASKED:
            found = await self._record.change(lambda at: _fixed(at, start))
        if found.state is not State.FIXED:
            return FREE
        step = await self._to(found.cut, start, is_settled=is_settled)
        if not step.waits:
            return step
        found = await self._record.change(lambda at: _done(at, is_old=True))
        if found.state is State.ABANDONED:
            return FREE
        raise HandedOverError(self.name, found.new, found.cut or "")


class NewQuery(_Query):
    """The query that takes over: option `replay_of`. It doesn't overtake the old one."""

    _place: NewPlace | None = None

    async def _look(self, start: StreamCut, *, is_settled: bool) -> Step:
        found = await self._record.read()
        if found is None or found.state is State.ABANDONED:
            what = "there is none" if found is None else f"that to {found.new} was abandoned"
            raise ConflictError(
                f"the option 'replay_of' names a handover by {self.name}, and {what}: nadi.spark.replay begins one"
            )
        if found.cut is not None:
            await self._tell(start, found, None)
            step = await self._to(found.cut, start, is_settled=is_settled)
            if step.waits and not found.is_new_done:
                await self._record.change(lambda at: _done(at, is_old=False))
            return step
        old = await self._record.old_place()
        if old is None:
            return WAITS  # the old query has not said yet where it is
        limit = StreamCut.from_text(old.cut)
        is_even = await self._order(start, limit) is CutOrder.EQUAL
        await self._tell(start, found, old if is_even else None)
        return Step(limit)

    async def _tell(self, start: StreamCut, found: Handover, even: OldPlace | None) -> None:
        cut = start.as_text()
        place = self._place or await self._record.new_place() or NewPlace(cut)
        if even is not None and even.output is not None and (place.last is None or place.last.cut != even.cut):
            trial = await self._tail(found.trial)
            if trial is not None:
                mark = Mark(even.cut, even.output, trial)
                place = replace(place, first=place.first or mark, last=mark)
        place = replace(place, cut=cut)
        if place != self._place:
            await self._record.tell(place)
        self._place = place


def _fixed(found: Handover, cut: StreamCut) -> Handover:
    if found.state is not State.ASKED:
        return found
    return replace(found, state=State.FIXED, cut=cut.as_text())


def _done(found: Handover, *, is_old: bool) -> Handover:
    if found.state is not State.FIXED:
        return found
    return replace(found, is_old_done=True) if is_old else replace(found, is_new_done=True)
