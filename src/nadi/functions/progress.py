"""What others can see of a function: one record, in the table of its reader group, which goes with the group.

Each instance (one `nadi function run`) puts its counters there, at most once a second while something happens, and
every `FUNCTION_BEAT_S` while nothing does. The counters of instances that have ended are added up in `ended`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.tables.catalog import Kind, Record, Unreadable, readable
from nadi.errors import NotFoundError
from nadi.functions.definition import Function
from nadi.functions.plan import Work
from nadi.limits import FUNCTION_GONE_S
from nadi.model.delivery import AT_LEAST_ONCE, Guarantee
from nadi.naming import READER_GROUP_PREFIX

_RATE_S = 10.0


class Counts(msgspec.Struct, frozen=True):
    """events: handled; outputs: written; failures: of calls; retries: after pauses; dead_letters: events set aside;
    gaps: places where data was gone, or damaged and skipped; starts: of workers."""

    events: int = 0
    outputs: int = 0
    failures: int = 0
    retries: int = 0
    dead_letters: int = 0
    gaps: int = 0
    starts: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, its = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(*(one + two for one, two in zip(mine, its, strict=True)))


class Instance(msgspec.Struct, frozen=True):
    """One running `nadi function run`. status: "running", or "idle" without workers; updated_ms: when it last reported,
    in milliseconds since 1970, by its clock."""

    host: str
    pid: int
    started_ms: int
    updated_ms: int
    status: str
    workers: tuple[str, ...] = ()
    events_per_s: float = 0.0
    counts: Counts = Counts()
    last_error: str = ""
    last_error_ms: int = 0

    def is_gone(self, now_ms: int) -> bool:
        """Whether it has not reported for so long that it must have died."""
        return now_ms - self.updated_ms > FUNCTION_GONE_S * 1000


class FunctionRecord(msgspec.Struct, frozen=True):
    """A function as others see it; `ended`: what instances did that have ended, with the last error of these."""

    name: str
    stream: str
    handled_by: str
    output: str | None = None
    dead_letters: str | None = None
    delivery: Guarantee = AT_LEAST_ONCE
    min_workers: int = 0
    max_workers: int = 0
    instances: dict[str, Instance] = {}
    ended: Counts = Counts()
    last_error: str = ""
    last_error_ms: int = 0

    @property
    def counts(self) -> Counts:
        """Of all instances, since the function was created."""
        return sum((one.counts for one in self.instances.values()), start=self.ended)

    @property
    def newest_error(self) -> str:
        errors = [(self.last_error_ms, self.last_error)]
        errors += [(one.last_error_ms, one.last_error) for one in self.instances.values()]
        return max(errors)[1]

    def with_instance(
        self, name: str, instance: Instance | None, now_ms: int, *, is_last: bool = False
    ) -> FunctionRecord:
        """The record with what an instance reports, None for one that died; those that have ended are added up."""
        instances = dict(self.instances)
        if instance is not None:
            instances[name] = instance
        ends = [key for key, one in instances.items() if one.is_gone(now_ms) and key != name]
        ends += [name] if (is_last or instance is None) and name in instances else []
        record = self
        for key in ends:
            gone = instances.pop(key)
            record = replace(record, ended=record.ended + gone.counts)
            if gone.last_error_ms > record.last_error_ms:
                record = replace(record, last_error=gone.last_error, last_error_ms=gone.last_error_ms)
        return replace(record, instances=instances)


class Counters:
    """What one instance has done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts = Counts()
        self.last_error, self.last_error_ms = "", 0
        self._recent: deque[tuple[float, int]] = deque()  # handled, by second
        self._busy, self._busy_s, self._busy_at, self._size_bytes = 0.0, 0.0, clock(), 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While one more worker has events in hand."""
        self._count_busy(1)
        try:
            yield
        finally:
            self._count_busy(-1)

    @contextmanager
    def storing(self, share: float) -> Iterator[None]:
        """While a worker stores what it made of that share of a full batch, so much of the time counts as busy: with
        the rest of the batch it would take no longer, and a worker with little to do could do more."""
        self._count_busy(share - 1)
        try:
            yield
        finally:
            self._count_busy(1 - share)

    def _count_busy(self, more: float) -> None:
        now = self._clock()
        self._busy_s += self._busy * (now - self._busy_at)
        self._busy_at = now
        self._busy += more

    def work(self) -> Work:
        """What all workers have done until now."""
        self._count_busy(0)
        return Work(self._busy_s, self._size_bytes)

    def handled(self, events: int, outputs: int, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self.counts = replace(self.counts, events=self.counts.events + events, outputs=self.counts.outputs + outputs)
        now = self._clock()
        if self._recent and now - self._recent[-1][0] < 1:
            self._recent[-1] = (self._recent[-1][0], self._recent[-1][1] + events)
        else:
            self._recent.append((now, events))
            self._forget(now)

    def failed(self, error: str, now_ms: int) -> None:
        self.counts = replace(self.counts, failures=self.counts.failures + 1)
        self.last_error, self.last_error_ms = error, now_ms

    def stopped(self, error: str, now_ms: int) -> None:
        """It ends with this error."""
        self.last_error, self.last_error_ms = error, now_ms

    def retried(self) -> None:
        self.counts = replace(self.counts, retries=self.counts.retries + 1)

    def dead_lettered(self) -> None:
        self.counts = replace(self.counts, dead_letters=self.counts.dead_letters + 1)

    def met_gap(self) -> None:
        self.counts = replace(self.counts, gaps=self.counts.gaps + 1)

    def started(self) -> None:
        self.counts = replace(self.counts, starts=self.counts.starts + 1)

    def events_per_s(self) -> float:
        """Over the last ten seconds, or since the first event if that is less."""
        now = self._clock()
        self._forget(now)
        if not self._recent:
            return 0.0
        return sum(events for _, events in self._recent) / max(now - self._recent[0][0], 1.0)

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - _RATE_S:
            self._recent.popleft()


class StoredProgress:
    """The record of the function `name` of a scope."""

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        kind = Kind(
            "the record of function",
            scope,
            f"delete the function, which then begins anew: `nadi function delete {scope} {{}}`".format,
            lambda name: NotFoundError(f"there is no function {scope}/{name}: see `nadi function list {scope}`"),
            lambda name, value: msgspec.msgpack.decode(value, type=FunctionRecord),
            msgspec.msgpack.encode,
            key=b"function",
        )
        self.record: Record[FunctionRecord] = Record(manager.table(scope, READER_GROUP_PREFIX + name), kind, name)

    async def report(
        self, function: Function, instance: str, now: Instance | None, now_ms: int, *, is_last: bool = False
    ) -> None:
        """Store what an instance has done; None for one that died without its last report."""

        def changed(held: FunctionRecord | None) -> FunctionRecord:
            return _record_of(function, held).with_instance(instance, now, now_ms, is_last=is_last)

        await self.record.put(changed)


def _record_of(function: Function, held: FunctionRecord | None) -> FunctionRecord:
    stream = f"{function.scope}/{function.stream}"
    record = held if held is not None else FunctionRecord(function.name, stream, function.handled_by)
    return replace(
        record,
        handled_by=function.handled_by,
        output=function.output_stream,
        dead_letters=function.dead_letter_stream,
        delivery=function.delivery,
        min_workers=function.min_workers,
        max_workers=function.max_workers,
    )


async def functions_of(manager: StreamManager, scope: str) -> Mapping[str, FunctionRecord]:
    """Return the scope's functions, by name, with what they have done; without those that `unreadable` tells."""
    return (await functions_with_unreadable(manager, scope))[0]


async def unreadable(manager: StreamManager, scope: str) -> list[Unreadable]:
    """Return the scope's functions whose records are damaged, or of a newer nadi; they can be deleted."""
    return (await functions_with_unreadable(manager, scope))[1]


async def functions_with_unreadable(
    manager: StreamManager, scope: str
) -> tuple[dict[str, FunctionRecord], list[Unreadable]]:
    """Return both, what `functions_of` returns and what `unreadable` does, by one walk."""
    names = await manager.reader_group_manager(scope).list_reader_groups()
    return await readable({name: StoredProgress(manager, scope, name).record for name in names})
