"""Replay a new version of a job on old data: it catches up with the running version, is compared, and takes over.

`Replay` is the new version's query and the steps of its takeover in a Spark session. It serves before and after the
takeover: `start` runs the query into the trial stream at first, into the output later. After a crash, create it again
with the same arguments and continue: each step of `Takeover`, which is independent of Spark, reads the record first, so
any step may be repeated.

`compare` reports which events only one of two outputs has, and which keys have the same events in another order. Events
are compared by hash and dropped once both outputs had them: memory holds the current difference, and a hash per key.
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
from nadi.spark.options.parsed import SparkOptions

__all__ = ["Comparison", "QuerySupersededError", "Replay", "ReplayLag"]
KeyOf = Callable[[bytes], bytes | str]
_CHUNK_EVENTS = 1000  # read alternately from each output
_REPORT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of both versions' outputs of the same input.

    missing: events, with repetitions, that only the old version wrote; extra: those that only the new one wrote; the
    first few of each. other_order: keys with the same events in another order; None if no key was given.
    """

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
            f"; {side}: {', '.join(repr(event[:60]) for event in events)}"
            for side, events in (("only in the old", self.first_missing), ("only in the new", self.first_extra))
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

    InvalidArgumentError if the difference exceeds the memory limit.
    """
    balance: Counter[bytes] = Counter()
    chains: dict[bytes, list[bytes]] = {}  # by key: a hash over its events, old and new
    counts = [0, 0]
    async with aclosing(old()) as olds, aclosing(new()) as news:
        both = [olds, news]
        unfinished = [0, 1]
        while unfinished:
            for side in tuple(unfinished):
                count = 0
                async for event in both[side]:
                    count += 1
                    digest = _digest(event)
                    balance[digest] += 1 - 2 * side
                    if not balance[digest]:
                        del balance[digest]
                    if key_of is not None:
                        chain = chains.setdefault(_key(key_of, event), [b"", b""])
                        chain[side] = _digest(chain[side] + digest)
                    if count == _CHUNK_EVENTS:
                        break
                else:
                    unfinished.remove(side)
                counts[side] += count
                if len(balance) + len(chains) > SPARK_COMPARED_AT_ONCE:
                    raise InvalidArgumentError(
                        f"the outputs have {len(balance):,} different events and {len(chains):,} keys so far, more "
                        "than the limit: compare a shorter time, or use a coarser key"
                    )
    missing, extra = +balance, -balance
    keys_differing: set[bytes] = set()
    first_missing = await _first(old(), missing, examples, key_of, keys_differing)
    first_extra = await _first(new(), extra, examples, key_of, keys_differing)
    other_order = None
    if key_of is not None:
        other_order = sum(
            old_chain != new_chain for key, (old_chain, new_chain) in chains.items() if key not in keys_differing
        )
    return Comparison(counts[0], counts[1], missing.total(), extra.total(), first_missing, first_extra, other_order)


async def _first(
    events: AsyncGenerator[bytes, None], differing: Counter[bytes], most: int, key_of: KeyOf | None, keys: set[bytes]
) -> tuple[bytes, ...]:
    examples: list[bytes] = []
    pending = set(differing)
    if not pending:
        return ()
    async for event in events:
        digest = _digest(event)
        if digest in pending:
            pending.discard(digest)
            if len(examples) < most:
                examples.append(event)
            if key_of is not None:
                keys.add(_key(key_of, event))
            if not pending:
                break
    return tuple(examples)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _key(key_of: KeyOf, event: bytes) -> bytes:
    key = key_of(event)
    return key.encode() if isinstance(key, str) else key


@dataclass(frozen=True, slots=True)
class ReplayLag:
    """The progress of the new version.

    size_bytes: input between it and the old version, as last reported; None before both have reported. bytes_per_s: the
    speed of catching up and eta_s: the remaining time; None if unknown. is_even: it is at the old version's position.
    """

    state: State
    size_bytes: int | None = None
    bytes_per_s: float | None = None
    eta_s: float | None = None
    is_even: bool = False

    def __str__(self) -> str:
        if self.size_bytes is None:
            return f"{self.state.value}: waiting for the queries to report their positions"
        rate = "" if self.bytes_per_s is None else f", {self.bytes_per_s:,.0f} bytes/s faster"
        eta = "" if self.eta_s is None else f", {self.eta_s:,.0f} s remaining"
        return f"{self.state.value}: {self.size_bytes:,} bytes of lag{rate}{eta}"


class Takeover:
    """The takeover of a stream from the query `old` by the query `new`, with an output and a trial stream in its
    scope."""

    def __init__(
        self, manager: StreamManager, scope: str, stream: str, *, old: str, new: str, output: str, trial: str
    ) -> None:
        self._manager, self._scope, self._stream = manager, scope, stream
        self._new, self._output, self._trial = new, output, trial
        self._record = CutoverRecord(manager, scope, stream, old)
        self._first_lag: tuple[float, int] | None = None

    async def begin(self, start: str) -> Cutover:
        """Create the trial stream and the record, unless they exist. start: as for `StreamCuts.named`."""
        cutover = await self._record.cutover.find()
        if cutover is None or cutover.state is State.ABANDONED:
            if cutover is not None and cutover.new == self._new:
                raise InvalidArgumentError(
                    f"the replay {self._new} was abandoned: use another name and checkpoint for the next one"
                )
            cut = (await self._manager.cuts(self._scope, self._stream).named(start)).as_text()
            policies = await self._manager.stream_configuration(self._scope, self._output)
            if not await self._manager.create_stream(self._scope, self._trial, scaling=policies.scaling):
                trial = self._manager.cuts(self._scope, self._trial)
                if await trial.bytes_between(await trial.head(), await trial.tail()):
                    raise NotEmptyError(f"the trial stream {self._trial} has events: delete it, or use another")
            is_head = start.lower() == HEAD
            requested = Cutover(new=self._new, output=self._output, trial=self._trial, start=cut, from_head=is_head)
            cutover = await self._record.begin(requested)
        if (cutover.new, cutover.output, cutover.trial) != (self._new, self._output, self._trial):
            raise ConflictError(
                f"the query {self._record.old} is already being replayed as {cutover.new}, into {cutover.trial} and "
                f"{cutover.output}: continue that replay, or abandon it"
            )
        return cutover

    async def lag(self) -> ReplayLag:
        cutover = await self._cutover()
        old, new = await self._record.old_position.find(), await self._record.new_position.find()
        if old is None or new is None:
            return ReplayLag(cutover.state)
        here, there = StreamCut.from_text(new.cut), StreamCut.from_text(cutover.cut or old.cut)
        cuts = self._manager.cuts(self._scope, self._stream)
        size, now = 0, time.monotonic()
        if await cuts.compare(here, there) is CutOrder.BEFORE:
            size = await cuts.bytes_between(here, there)
        rate = eta = None
        if self._first_lag is not None and now > self._first_lag[0]:
            rate = (self._first_lag[1] - size) / (now - self._first_lag[0])
            eta = size / rate if rate > 0 else None
        else:
            self._first_lag = now, size
        return ReplayLag(cutover.state, size, rate, eta, new.last is not None and new.last.cut == new.cut)

    async def compare(self, key_of: KeyOf | None = None, examples: int = 5) -> Comparison:
        """Compare the outputs of the same input, up to the cut if both are complete, else to the latest mark."""
        cutover, position = await self._cutover(), await self._record.new_position.find()
        first, last = (None, None) if position is None else (position.first, position.last)
        starts = (None, None) if cutover.from_head or first is None else first.cuts()
        ends: tuple[StreamCut, StreamCut] | None = None
        if cutover.is_old_done and cutover.is_new_done and cutover.state is State.FIXED:
            output, trial = (self._manager.cuts(self._scope, stream) for stream in (cutover.output, cutover.trial))
            ends = await output.tail(), await trial.tail()
        elif last is not None and cutover.state is not State.SWITCHED:
            ends = last.cuts()
        if ends is None or not (cutover.from_head or first):
            raise ConflictError(f"{self._new} hasn't caught up yet: call wait_until_caught_up() first")

        async def events(stream: str, side: int) -> AsyncGenerator[bytes, None]:
            async for event in self._manager.read_events(self._scope, stream, start=starts[side], end=ends[side]):
                yield event.data

        return await compare(lambda: events(cutover.output, 0), lambda: events(cutover.trial, 1), key_of, examples)

    async def ask(self) -> Cutover:
        return await self._change(State.ASKED, State.FOLLOWING)

    async def wait_until_done(self, timeout_s: float) -> Cutover:
        """Wait until both outputs are complete up to the cut; ConflictError, naming the late query, on timeout."""
        until = time.monotonic() + timeout_s
        while True:
            cutover = await self._cutover()
            if cutover.state in (State.SWITCHED, State.ABANDONED) or (cutover.is_old_done and cutover.is_new_done):
                return cutover
            if time.monotonic() >= until:
                late = self._new if cutover.is_old_done else self._record.old
                raise ConflictError(
                    f"the query {late} hasn't reached the cut after {timeout_s:.0f} s: check that it is running, then "
                    "switch again"
                )
            await asyncio.sleep(0.1)

    async def finish(self) -> Cutover:
        """Let the new query write the output from now on."""
        return await self._change(State.SWITCHED, State.FIXED)

    async def abandon(self) -> Cutover:
        """Continue with the old query alone; ConflictError once the new one has taken over."""
        cutover = await self._change(State.ABANDONED, State.FOLLOWING, State.ASKED, State.FIXED)
        if cutover.state is State.SWITCHED:
            raise ConflictError(f"{self._new} has already taken over from {self._record.old}")
        return cutover

    async def delete_trial(self) -> None:
        """Delete the trial stream, if it exists."""
        with suppress(NotFoundError):
            await self._manager.seal_stream(self._scope, self._trial)
            await self._manager.delete_stream(self._scope, self._trial)

    # --- inside -----------------------------------------------------------------------------

    async def _cutover(self) -> Cutover:
        cutover = await self._record.cutover.find()
        if cutover is None or cutover.new != self._new:
            other = "there is none" if cutover is None else f"that is {cutover.new}"
            raise ConflictError(f"{self._new} is not the replay of {self._record.old}: {other}. Call start() first")
        return cutover

    async def _change(self, to: State, *of: State) -> Cutover:
        await self._cutover()

        def changed(stored: Cutover) -> Cutover | None:
            if stored.new != self._new:
                raise ConflictError(f"the replay {stored.new} has replaced {self._new}")
            if to is State.SWITCHED and not (stored.is_old_done and stored.is_new_done):
                return None
            return replace(stored, state=to) if stored.state in of else None

        return await self._record.cutover.change(changed)


class Replay:
    """A new version of a job, from catching up on old data to replacing the old version.

    spark: the session that runs the new version. job: transforms the rows read into the rows to write. home: the
    options `controller`, `scope` and the credentials. old: the option `cutover` of the old version's query. new: the
    same of the new version, and the replay's name. start: its start, `head`, a bookmark, a time or a cut's text. trial:
    the stream that it writes before the takeover; created and deleted by the replay. read, write: more options of its
    query.
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
        self._client = client_of(SparkOptions(given).connection())
        self._takeover = Takeover(
            self._client.manager, scope, stream, old=old, new=new, output=output, trial=trial or f"{output}-{new}"
        )
        self.query: Any = None

    def start(self) -> Any:
        """Start or resume the replay and return its query; do nothing if it is running."""
        cutover = self._client.run(self._takeover.begin(self._start))
        if cutover.state is State.ABANDONED:
            raise ConflictError(f"the replay {self._new} was abandoned")
        return self._run(cutover)

    def lag(self) -> ReplayLag:
        """Return the new version's lag behind the old one, and the remaining time."""
        return self._client.run(self._takeover.lag())

    def wait_until_caught_up(
        self, timeout_s: float = 86_400.0, on_progress: Callable[[str], object] | None = print
    ) -> ReplayLag:
        """Wait until the new version has read what the old one has, printing progress; then it continues to follow.

        ConflictError after timeout_s; the query's error if it fails. on_progress: None prints nothing.
        """
        deadline, reported_at = time.monotonic() + timeout_s, 0.0
        while True:
            if self.query is None:
                raise ConflictError(f"the replay {self._new} is not running here: call start() first")
            if (error := self.query.exception()) is not None:
                raise error
            lag = self.lag()
            if lag.state is not State.FOLLOWING or lag.is_even:
                return lag
            if time.monotonic() >= deadline:
                raise ConflictError(f"{self._new} has not caught up with {self._old} after {timeout_s:.0f} s: {lag}")
            if on_progress is not None and time.monotonic() - reported_at >= _REPORT_EVERY_S:
                on_progress(f"{self._new}, {lag}")
                reported_at = time.monotonic()
            time.sleep(0.2)

    def compare(self, key: KeyOf | None = None, examples: int = 5) -> Comparison:
        """Compare the outputs of both versions for the same input, up to the latest common position.

        The comparison starts at the head if the new version did, else where it first caught up. key: the key of an
        event, to compare the order within keys too.
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
        """Let the new version take over at one cut; return its query, which then writes the output.

        accept: decides on the comparison of both outputs up to the cut; if_equal: accept only equal outputs. Otherwise
        the replay is abandoned and ConflictError raised: start the old version again, it continues.
        """
        cutover = self._client.run(self._takeover.ask())
        if cutover.state is not State.SWITCHED:
            self._run(cutover)
        cutover = self._client.run(self._takeover.wait_until_done(timeout_s))
        if cutover.state is State.FIXED:
            if if_equal or accept is not None:
                comparison = self.compare(key)
                if not (comparison.is_equal if if_equal or accept is None else accept(comparison)):
                    self.abandon()
                    raise ConflictError(
                        f"{self._new} doesn't take over: {comparison}. Start {self._old} again; it will continue "
                        "where it stopped"
                    )
            cutover = self._client.run(self._takeover.finish())
        if cutover.state is not State.SWITCHED:
            raise ConflictError(f"the replay {self._new} is {cutover.state.value}")
        self._stop()
        query = self._run(cutover)
        self._client.run(self._takeover.delete_trial())
        return query

    def abandon(self) -> None:
        """Stop the new version and delete its trial stream; ConflictError once it has taken over.

        The old version, if it has already stopped at the cut, continues there when it is started again.
        """
        self._client.run(self._takeover.abandon())
        self._stop()
        self._client.run(self._takeover.delete_trial())

    # --- inside -----------------------------------------------------------------------------

    def _run(self, cutover: Cutover) -> Any:
        if self.query is not None and self.query.isActive:
            return self.query
        has_switched = cutover.state is State.SWITCHED
        source = {"cutover": self._new} if has_switched else {"replay_of": self._old}
        start = {"start_stream_cut": cutover.cut if has_switched else cutover.start}
        rows = (
            self._spark.readStream.format("nadi")
            .options(**self._home, stream=self._stream, **self._read, **source, **start)
            .load()
        )
        self.query = (
            self._job(rows)
            .writeStream.format("nadi")
            .options(**self._home, stream=cutover.output if has_switched else cutover.trial, **self._write)
            .option("checkpointLocation", self._checkpoint)
            .start()
        )
        return self.query

    def _stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None
