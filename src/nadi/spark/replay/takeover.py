"""The steps of a takeover, without Spark: each reads the record first, so that it may be taken again after anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.places.moments import HEAD
from nadi.errors import ConflictError, InvalidArgumentError, NotEmptyError, NotFoundError
from nadi.model.streamcut import StreamCut
from nadi.spark.handover.record import Handover, HandoverRecord, State
from nadi.spark.replay.comparison import Comparison, KeyOf, compare


@dataclass(frozen=True, slots=True)
class Behind:
    """How far the new version is. size_bytes: of input between it and the old one, as both last said; None if one of
    them has not said yet. bytes_per_s: how fast it gets nearer; eta_s: how long that will take; None if unknown.
    is_even: it stands where the old one stood."""

    state: State
    size_bytes: int | None = None
    bytes_per_s: float | None = None
    eta_s: float | None = None
    is_even: bool = False

    def __str__(self) -> str:
        if self.size_bytes is None:
            return f"{self.state.value}: waiting for the queries to say where they are"
        rate = "" if self.bytes_per_s is None else f", {self.bytes_per_s:,.0f} bytes/s nearer"
        eta = "" if self.eta_s is None else f", {self.eta_s:,.0f} s to go"
        return f"{self.state.value}: {self.size_bytes:,} bytes behind{rate}{eta}"


class Takeover:
    """The takeover from the query `old` by the query `new`, of one stream into another of the same scope."""

    def __init__(
        self, manager: StreamManager, scope: str, stream: str, *, old: str, new: str, output: str, trial: str
    ) -> None:
        self._manager, self._scope, self._stream = manager, scope, stream
        self._new, self._output, self._trial = new, output, trial
        self._record = HandoverRecord(manager, scope, stream, old)
        self._seen: tuple[float, int] | None = None

    async def begin(self, start: str) -> Handover:
        """Make trial stream and record, unless they are there. start: as `StreamCuts.named` takes it."""
        found = await self._record.read()
        if found is None or found.state is State.ABANDONED:
            if found is not None and found.new == self._new:
                raise InvalidArgumentError(
                    f"the replay {self._new} was abandoned: give the next one another name and checkpoint"
                )
            cut = await self._manager.cuts(self._scope, self._stream).named(start)
            policies = await self._manager.stream_configuration(self._scope, self._output)
            if not await self._manager.create_stream(self._scope, self._trial, scaling=policies.scaling):
                trial = self._manager.cuts(self._scope, self._trial)
                if await trial.bytes_between(await trial.head(), await trial.tail()):
                    raise NotEmptyError(f"the trial stream {self._trial} has events: delete it, or name another")
            found = await self._record.begin(
                Handover(
                    new=self._new,
                    output=self._output,
                    trial=self._trial,
                    start=cut.as_text(),
                    from_head=start.lower() == HEAD,
                )
            )
        if (found.new, found.output, found.trial) != (self._new, self._output, self._trial):
            raise ConflictError(
                f"the query {self._record.old} is being replayed as {found.new} already, into {found.trial} and "
                f"{found.output}: go on with that one, or abandon it"
            )
        return found

    async def found(self) -> Handover:
        found = await self._record.read()
        if found is None or found.new != self._new:
            other = "none was begun" if found is None else f"that is {found.new}"
            raise ConflictError(f"{self._new} is not the replay of {self._record.old}: {other}; start it first")
        return found

    async def behind(self) -> Behind:
        found, old, new = await self.found(), await self._record.old_place(), await self._record.new_place()
        if old is None or new is None:
            return Behind(found.state)
        here, there = StreamCut.from_text(new.cut), StreamCut.from_text(found.cut or old.cut)
        cuts = self._manager.cuts(self._scope, self._stream)
        size, now = 0, time.monotonic()
        if (await cuts.compare(here, there)).value == "before":
            size = await cuts.bytes_between(here, there)
        rate = eta = None
        if self._seen is not None and now > self._seen[0]:
            rate = (self._seen[1] - size) / (now - self._seen[0])
            eta = size / rate if rate > 0 else None
        else:
            self._seen = now, size
        return Behind(found.state, size, rate, eta, new.last is not None and new.last.cut == new.cut)

    async def compare(self, key_of: KeyOf | None = None, examples: int = 5) -> Comparison:
        """The outputs of the same input, up to the cut if both are done there, else to the latest mark."""
        found, place = await self.found(), await self._record.new_place()
        first, last = (None, None) if place is None else (place.first, place.last)
        starts: tuple[StreamCut | None, StreamCut | None] = None, None
        if found.from_head:
            pass
        elif first is not None:
            starts = StreamCut.from_text(first.output), StreamCut.from_text(first.trial)
        else:
            raise _not_even(self._new)
        if found.is_old_done and found.is_new_done and found.state is State.FIXED:
            ends = await self._tail(found.output), await self._tail(found.trial)
        elif last is not None and found.state is not State.SWITCHED:
            ends = StreamCut.from_text(last.output), StreamCut.from_text(last.trial)
        else:
            raise _not_even(self._new)
        return await compare(
            lambda: self._events(found.output, starts[0], ends[0]),
            lambda: self._events(found.trial, starts[1], ends[1]),
            key_of,
            examples,
        )

    async def ask(self) -> Handover:
        """Have the old query fix the cut."""
        return await self._change(State.ASKED, (State.FOLLOWING,))

    async def wait_until_done(self, give_up_s: float) -> Handover:
        """Wait until both outputs are complete up to the cut; ConflictError, saying who is late, if they aren't."""
        until = time.monotonic() + give_up_s
        while True:
            found = await self.found()
            if found.state in (State.SWITCHED, State.ABANDONED) or (found.is_old_done and found.is_new_done):
                return found
            if time.monotonic() >= until:
                late = self._new if found.is_old_done else self._record.old
                raise ConflictError(
                    f"the query {late} is not at the cut after {give_up_s:.0f} s: see that it runs, then switch again"
                )
            await asyncio.sleep(0.1)

    async def finish(self) -> Handover:
        """From now on the new query writes the output."""
        return await self._change(State.SWITCHED, (State.FIXED,))

    async def abandon(self) -> Handover:
        """Go on with the old query alone; ConflictError once the new one has taken over."""
        found = await self._change(State.ABANDONED, (State.FOLLOWING, State.ASKED, State.FIXED))
        if found.state is State.SWITCHED:
            raise ConflictError(f"{self._new} has taken over from {self._record.old} already")
        return found

    async def delete_trial(self) -> None:
        """Idempotent."""
        try:
            await self._manager.seal_stream(self._scope, self._trial)
            await self._manager.delete_stream(self._scope, self._trial)
        except NotFoundError:
            pass

    # --- inside -----------------------------------------------------------------------------

    async def _change(self, to: State, of: tuple[State, ...]) -> Handover:
        await self.found()

        def how(found: Handover) -> Handover:
            if found.new != self._new:
                raise ConflictError(f"the replay {found.new} has taken the place of {self._new}")
            if to is State.SWITCHED and not (found.is_old_done and found.is_new_done):
                return found
            return replace(found, state=to) if found.state in of else found

        return await self._record.change(how)

    async def _tail(self, stream: str) -> StreamCut:
        return await self._manager.cuts(self._scope, stream).tail()

    async def _events(self, stream: str, start: StreamCut | None, end: StreamCut) -> AsyncGenerator[bytes, None]:
        async for event in self._manager.read_events(self._scope, stream, start=start, end=end):
            yield event.data


def _not_even(new: str) -> ConflictError:
    return ConflictError(f"{new} has not caught up yet: wait_until_caught_up() first")
