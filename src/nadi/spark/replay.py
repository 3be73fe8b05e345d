"""A new version of a job on old data: it catches up with the running one, is compared with it, and takes over from it.

`Replay` is the new version's query, and the steps of its takeover, in a Spark session. The same object serves before
and after: `start` runs the query into the trial stream or, once it has taken over, into the output. Whoever dies, make
it again with the same arguments and go on: each step of `Takeover`, which knows nothing of Spark, reads the record
first, so that it may be taken again after anything.

`compare` tells which events only one of two outputs has, and which keys have theirs in another order. Events are known
by their hashes, and forgotten as soon as both have had them: what is held is what they differ in so far, and a hash for
each key.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.stream_cuts.timestamps import HEAD
from nadi.errors import ConflictError, InvalidArgumentError, NotEmptyError, NotFoundError
from nadi.limits import SPARK_COMPARED_AT_ONCE
from nadi.model.cutorder import CutOrder
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name
from nadi.spark.connections import client_of
from nadi.spark.cutover import Cutover, CutoverRecord, QuerySupersededError, State
from nadi.spark.options.parsed import GivenOptions

__all__ = ["Comparison", "QuerySupersededError", "Replay", "ReplayLag"]
KeyOf = Callable[[bytes], bytes | str]
_TAKEN = 1000  # events of one, then of the other
_TOLD_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both made of the same input. missing: events, by number, that only the old version made; extra: that only
    the new one did; the first few of each. other_order: keys whose events are the same, in another order; None if
    no key was given."""

    old_events: int
    new_events: int
    missing: int
    extra: int
    first_missing: tuple[bytes, ...] = ()
    first_extra: tuple[bytes, ...] = ()
    other_order: int | None = None

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.other_order)

    def __str__(self) -> str:
        if self.is_equal:
            return f"equal: {self.old_events:,} events each"
        order = f", {self.other_order:,} keys in another order" if self.other_order else ""
        first = "".join(
            f"; {what}: {', '.join(repr(event[:60]) for event in events)}"
            for what, events in (("only the old has", self.first_missing), ("only the new has", self.first_extra))
            if events
        )
        return (
            f"{self.old_events:,} events of the old version, {self.new_events:,} of the new one: {self.missing:,} "
            f"missing, {self.extra:,} extra{order}{first}"
        )


async def compare(
    old: Callable[[], AsyncGenerator[bytes, None]],
    new: Callable[[], AsyncGenerator[bytes, None]],
    key_of: KeyOf | None = None,
    examples: int = 5,
) -> Comparison:
    """Compare the events of both; they are read again for examples if they differ.

    InvalidArgumentError if so much differs that it isn't worth counting.
    """
    balance: Counter[bytes] = Counter()
    chains: dict[bytes, list[bytes]] = {}  # by key: a hash over its events, old and new
    counts = [0, 0]
    async with aclosing(old()) as olds, aclosing(new()) as news:
        both = [olds, news]
        left = [0, 1]
        while left:
            for side in tuple(left):
                taken = 0
                async for event in both[side]:
                    taken += 1
                    digest = _digest(event)
                    balance[digest] += 1 - 2 * side
                    if not balance[digest]:
                        del balance[digest]
                    if key_of is not None:
                        chain = chains.setdefault(_key(key_of, event), [b"", b""])
                        chain[side] = _digest(chain[side] + digest)
                    if taken == _TAKEN:
                        break
                else:
                    left.remove(side)
                counts[side] += taken
                if len(balance) + len(chains) > SPARK_COMPARED_AT_ONCE:
                    raise InvalidArgumentError(
                        f"the outputs have {len(balance):,} different events and {len(chains):,} keys so far, more "
                        "than are held at once: compare a shorter time, or by a coarser key"
                    )
    missing, extra = +balance, -balance
    keys_differing: set[bytes] = set()
    first_missing = await _first(old(), missing, examples, key_of, keys_differing)
    first_extra = await _first(new(), extra, examples, key_of, keys_differing)
    other_order = None
    if key_of is not None:
        other_order = sum(one != other for key, (one, other) in chains.items() if key not in keys_differing)
    return Comparison(counts[0], counts[1], missing.total(), extra.total(), first_missing, first_extra, other_order)


async def _first(
    events: AsyncGenerator[bytes, None], wanted: Counter[bytes], most: int, key_of: KeyOf | None, keys: set[bytes]
) -> tuple[bytes, ...]:
    found: list[bytes] = []
    left = set(wanted)
    if not left:
        return ()
    async for event in events:
        digest = _digest(event)
        if digest in left:
            left.discard(digest)
            if len(found) < most:
                found.append(event)
            if key_of is not None:
                keys.add(_key(key_of, event))
            if not left:
                break
    return tuple(found)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _key(key_of: KeyOf, event: bytes) -> bytes:
    key = key_of(event)
    return key.encode() if isinstance(key, str) else key


@dataclass(frozen=True, slots=True)
class ReplayLag:
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
        self._record = CutoverRecord(manager, scope, stream, old)
        self._seen: tuple[float, int] | None = None

    async def begin(self, start: str) -> Cutover:
        """Make trial stream and record, unless they are there. start: as `StreamCuts.named` takes it."""
        found = await self._record.cutover.find()
        if found is None or found.state is State.ABANDONED:
            if found is not None and found.new == self._new:
                raise InvalidArgumentError(
                    f"the replay {self._new} was abandoned: give the next one another name and checkpoint"
                )
            cut = (await self._manager.cuts(self._scope, self._stream).named(start)).as_text()
            policies = await self._manager.stream_configuration(self._scope, self._output)
            if not await self._manager.create_stream(self._scope, self._trial, scaling=policies.scaling):
                trial = self._manager.cuts(self._scope, self._trial)
                if await trial.bytes_between(await trial.head(), await trial.tail()):
                    raise NotEmptyError(f"the trial stream {self._trial} has events: delete it, or name another")
            is_head = start.lower() == HEAD
            wanted = Cutover(new=self._new, output=self._output, trial=self._trial, start=cut, from_head=is_head)
            found = await self._record.begin(wanted)
        if (found.new, found.output, found.trial) != (self._new, self._output, self._trial):
            raise ConflictError(
                f"the query {self._record.old} is being replayed as {found.new} already, into {found.trial} and "
                f"{found.output}: go on with that one, or abandon it"
            )
        return found

    async def behind(self) -> ReplayLag:
        found = await self._found()
        old, new = await self._record.old_place.find(), await self._record.new_place.find()
        if old is None or new is None:
            return ReplayLag(found.state)
        here, there = StreamCut.from_text(new.cut), StreamCut.from_text(found.cut or old.cut)
        cuts = self._manager.cuts(self._scope, self._stream)
        size, now = 0, time.monotonic()
        if await cuts.compare(here, there) is CutOrder.BEFORE:
            size = await cuts.bytes_between(here, there)
        rate = eta = None
        if self._seen is not None and now > self._seen[0]:
            rate = (self._seen[1] - size) / (now - self._seen[0])
            eta = size / rate if rate > 0 else None
        else:
            self._seen = now, size
        return ReplayLag(found.state, size, rate, eta, new.last is not None and new.last.cut == new.cut)

    async def compare(self, key_of: KeyOf | None = None, examples: int = 5) -> Comparison:
        """The outputs of the same input, up to the cut if both are done there, else to the latest mark."""
        found, place = await self._found(), await self._record.new_place.find()
        first, last = (None, None) if place is None else (place.first, place.last)
        starts = (None, None) if found.from_head or first is None else first.cuts()
        ends: tuple[StreamCut, StreamCut] | None = None
        if found.is_old_done and found.is_new_done and found.state is State.FIXED:
            output, trial = (self._manager.cuts(self._scope, stream) for stream in (found.output, found.trial))
            ends = await output.tail(), await trial.tail()
        elif last is not None and found.state is not State.SWITCHED:
            ends = last.cuts()
        if ends is None or not (found.from_head or first):
            raise ConflictError(f"{self._new} has not caught up yet: wait_until_caught_up() first")

        async def events(stream: str, side: int) -> AsyncGenerator[bytes, None]:
            async for event in self._manager.read_events(self._scope, stream, start=starts[side], end=ends[side]):
                yield event.data

        return await compare(lambda: events(found.output, 0), lambda: events(found.trial, 1), key_of, examples)

    async def ask(self) -> Cutover:
        return await self._change(State.ASKED, State.FOLLOWING)

    async def wait_until_done(self, give_up_s: float) -> Cutover:
        """Wait until both outputs are complete up to the cut; ConflictError, saying who is late, if they aren't."""
        until = time.monotonic() + give_up_s
        while True:
            found = await self._found()
            if found.state in (State.SWITCHED, State.ABANDONED) or (found.is_old_done and found.is_new_done):
                return found
            if time.monotonic() >= until:
                late = self._new if found.is_old_done else self._record.old
                raise ConflictError(
                    f"the query {late} is not at the cut after {give_up_s:.0f} s: see that it runs, then switch again"
                )
            await asyncio.sleep(0.1)

    async def finish(self) -> Cutover:
        """From now on the new query writes the output."""
        return await self._change(State.SWITCHED, State.FIXED)

    async def abandon(self) -> Cutover:
        """Go on with the old query alone; ConflictError once the new one has taken over."""
        found = await self._change(State.ABANDONED, State.FOLLOWING, State.ASKED, State.FIXED)
        if found.state is State.SWITCHED:
            raise ConflictError(f"{self._new} has taken over from {self._record.old} already")
        return found

    async def delete_trial(self) -> None:
        """Idempotent."""
        with suppress(NotFoundError):
            await self._manager.seal_stream(self._scope, self._trial)
            await self._manager.delete_stream(self._scope, self._trial)

    # --- inside -----------------------------------------------------------------------------

    async def _found(self) -> Cutover:
        found = await self._record.cutover.find()
        if found is None or found.new != self._new:
            other = "none was begun" if found is None else f"that is {found.new}"
            raise ConflictError(f"{self._new} is not the replay of {self._record.old}: {other}; start it first")
        return found

    async def _change(self, to: State, *of: State) -> Cutover:
        await self._found()

        def changed(stored: Cutover) -> Cutover | None:
            if stored.new != self._new:
                raise ConflictError(f"the replay {stored.new} has taken the place of {self._new}")
            if to is State.SWITCHED and not (stored.is_old_done and stored.is_new_done):
                return None
            return replace(stored, state=to) if stored.state in of else None

        return await self._record.cutover.change(changed)


class Replay:
    """A new version of a job, from the old one's past to its place.

    spark: the session that runs the new version. job: makes the rows to be written of the rows that are read. home: the
    options `controller`, `scope` and those to log in. old: the option `cutover` of the old version's query. new: the
    new version's, and this replay's name. start: where it starts, `head`, a bookmark, a time or a cut's text. trial:
    the stream it writes until it takes over; made and deleted by the replay. read, write: more options of its query.
    """

    def __init__(
        self,
        spark: Any,
        job: Callable[[Any], Any],
        home: Mapping[str, str],
        *,
        stream: str,
        output: str,
        old: str,
        new: str,
        checkpoint: str,
        start: str = HEAD,
        trial: str | None = None,
        read: Mapping[str, str] | None = None,
        write: Mapping[str, str] | None = None,
    ) -> None:
        given = {name.lower(): value for name, value in home.items()}
        if old == new:
            raise InvalidArgumentError(f"both versions are named {old!r}: give the new one its own name")
        self._spark, self._job, self._home = spark, job, dict(home)
        self._old, self._new, self._stream = check_name("query", old), check_name("query", new), stream
        self._checkpoint, self._start = checkpoint, start
        self._read, self._write = dict(read or {}), dict(write or {})
        scope = check_name("scope", given.get("scope", ""))
        self._client = client_of(GivenOptions(given).connection())
        self._takeover = Takeover(
            self._client.manager, scope, stream, old=old, new=new, output=output, trial=trial or f"{output}-{new}"
        )
        self.query: Any = None

    def start(self) -> Any:
        """Begin the replay, or go on with it; return its query. Does nothing if that is running."""
        found = self._client.run(self._takeover.begin(self._start))
        if found.state is State.ABANDONED:
            raise ConflictError(f"the replay {self._new} was abandoned")
        return self._run(found)

    def behind(self) -> ReplayLag:
        """How far the new version is behind the old one, and how long that will take."""
        return self._client.run(self._takeover.behind())

    def wait_until_caught_up(
        self, timeout_s: float = 86_400.0, tell: Callable[[str], object] | None = print
    ) -> ReplayLag:
        """Wait until the new version has read what the old one has, printing progress; it goes on to follow it.

        ConflictError after timeout_s; the query's own error if it fails. tell: None prints nothing.
        """
        give_up, told = time.monotonic() + timeout_s, 0.0
        while True:
            if self.query is None:
                raise ConflictError(f"the replay {self._new} is not running here: start() it")
            if (error := self.query.exception()) is not None:
                raise error
            at = self.behind()
            if at.state is not State.FOLLOWING or at.is_even:
                return at
            if time.monotonic() >= give_up:
                raise ConflictError(f"{self._new} has not caught up with {self._old} after {timeout_s:.0f} s: {at}")
            if tell is not None and time.monotonic() - told >= _TOLD_EVERY_S:
                tell(f"{self._new}, {at}")
                told = time.monotonic()
            time.sleep(0.2)

    def compare(self, key: KeyOf | None = None, examples: int = 5) -> Comparison:
        """Compare what both versions made of the same input, up to the latest place where both have been.

        From the start, if the new version started at the head; else from where it had first caught up. key: of an
        event, for the order within keys to be compared, too.
        """
        return self._client.run(self._takeover.compare(key, examples))

    def switch(
        self,
        accept: Callable[[Comparison], bool] | None = None,
        *,
        if_equal: bool = False,
        key: KeyOf | None = None,
        timeout_s: float = 600.0,
    ) -> Any:
        """Have the new version take over at one cut; return its query, which writes the output now.

        accept: looks at all that both made, up to the cut, and says whether to; if_equal: only if nothing differs. If
        not, the replay is abandoned and ConflictError raised: start the old version again, it goes on.
        """
        found = self._client.run(self._takeover.ask())
        if found.state is not State.SWITCHED:
            self._run(found)
        found = self._client.run(self._takeover.wait_until_done(timeout_s))
        if found.state is State.FIXED:
            if if_equal or accept is not None:
                compared = self.compare(key)
                if not (compared.is_equal if if_equal or accept is None else accept(compared)):
                    self.abandon()
                    raise ConflictError(
                        f"{self._new} doesn't take over: {compared}. Start {self._old} again: it goes on where it was"
                    )
            found = self._client.run(self._takeover.finish())
        if found.state is not State.SWITCHED:
            raise ConflictError(f"the replay {self._new} is {found.state.value}")
        self._stop()
        query = self._run(found)
        self._client.run(self._takeover.delete_trial())
        return query

    def abandon(self) -> None:
        """Stop the new version and delete its trial stream; ConflictError once it has taken over.

        The old version, if it has stopped at the cut already, goes on from there when it is started again.
        """
        self._client.run(self._takeover.abandon())
        self._stop()
        self._client.run(self._takeover.delete_trial())

    # --- inside -----------------------------------------------------------------------------

    def _run(self, found: Cutover) -> Any:
        if self.query is not None and self.query.isActive:
            return self.query
        has_it = found.state is State.SWITCHED
        source = {"cutover": self._new} if has_it else {"replay_of": self._old}
        start = {"start_stream_cut": found.cut if has_it else found.start}
        rows = (
            self._spark.readStream.format("nadi")
            .options(**self._home, stream=self._stream, **self._read, **source, **start)
            .load()
        )
        self.query = (
            self._job(rows)
            .writeStream.format("nadi")
            .options(**self._home, stream=found.output if has_it else found.trial, **self._write)
            .option("checkpointLocation", self._checkpoint)
            .start()
        )
        return self.query

    def _stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None
