"""The status of a function: a record in the table of its reader group, deleted with the group, and the reports of its
instances, one for each `nadi function run` (`process.members`).

The record has the counters of each running instance, and in `ended` the sums of those that have ended. An instance
updates it at most once a second, and only after changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import CatalogRecord, RecordKind, Unreadable, readable
from nadi.errors import NotFoundError
from nadi.functions.definition import Function
from nadi.functions.plan import WorkDone
from nadi.model.delivery import AT_LEAST_ONCE, Guarantee
from nadi.naming import READER_GROUP_PREFIX
from nadi.process.members import Members, WorkerInfo, live_members
from nadi.process.worker import Rate

_MEMBER_KEYS = "instance/"


class FunctionCounts(msgspec.Struct, frozen=True):
    """Totals. events: handled; outputs: written; failures: of calls; retries: after pauses; dead_letters: written;
    gaps: of truncated or skipped damaged data; starts: of workers."""

    events: int = 0
    outputs: int = 0
    failures: int = 0
    retries: int = 0
    dead_letters: int = 0
    gaps: int = 0
    starts: int = 0

    def __add__(self, other: FunctionCounts) -> FunctionCounts:
        own, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return FunctionCounts(*(first + second for first, second in zip(own, others, strict=True)))


class FunctionRecord(msgspec.Struct, frozen=True):
    """The stored record of a function. by_instance: counters by instance name; ended: sums of those that have ended.
    last_error: of all instances; last_error_ms: its time in milliseconds since 1970. is_stopped: its instances end."""

    name: str
    stream: str
    handled_by: str
    output: str | None = None
    dead_letters: str | None = None
    delivery: Guarantee = AT_LEAST_ONCE
    min_workers: int = 0
    max_workers: int = 0
    by_instance: dict[str, FunctionCounts] = {}
    ended: FunctionCounts = FunctionCounts()
    last_error: str = ""
    last_error_ms: int = 0
    is_stopped: bool = False

    @property
    def counts(self) -> FunctionCounts:
        """The totals of all instances since the function was created."""
        return sum(self.by_instance.values(), start=self.ended)

    def with_counters(self, instance: str, counters: Counters, known: Collection[str]) -> FunctionRecord:
        """Return a copy with an instance's counters; instances that aren't known have ended."""
        by_instance = {name: counts for name, counts in self.by_instance.items() if name in known}
        dead = (counts for name, counts in self.by_instance.items() if name not in known)
        record = replace(self, by_instance=by_instance | {instance: counters.counts}, ended=sum(dead, start=self.ended))
        if counters.last_error_ms <= self.last_error_ms:
            return record
        return replace(record, last_error=counters.last_error, last_error_ms=counters.last_error_ms)


class Counters:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts = FunctionCounts()
        self.last_error, self.last_error_ms = "", 0
        self.rate = Rate(clock)
        self._busy, self._busy_s, self._busy_at, self._size_bytes = 0.0, 0.0, clock(), 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a worker as busy meanwhile."""
        self._count_busy(1)
        try:
            yield
        finally:
            self._count_busy(-1)

    @contextmanager
    def storing(self, share: float) -> Iterator[None]:
        """Count a worker that stores the results of a share of a full batch as partly busy: a full batch would take the
        same time, so a worker with small batches has spare capacity."""
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

    def work(self) -> WorkDone:
        self._count_busy(0)
        return WorkDone(self._busy_s, self._size_bytes)

    def handled(self, events: int, outputs: int, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self.rate.add(events)
        self.count(events=events, outputs=outputs)

    def count(self, **more: int) -> None:
        self.counts += FunctionCounts(**more)

    def failed(self, error: str) -> None:
        self.count(failures=1)
        self.stopped(error)

    def stopped(self, error: str) -> None:
        self.last_error, self.last_error_ms = error, int(time.time() * 1000)


class FunctionProgressRecord:
    """The record of the function `name` of a scope, and its running instances."""

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        self._stores, self._scope, self._table = stores_of(manager), scope, READER_GROUP_PREFIX + name
        kind = RecordKind(
            "the record of function",
            scope,
            f"delete the function, then run it again: `nadi function delete {scope} {{}}`".format,
            lambda name: NotFoundError(f"function {scope}/{name} doesn't exist: see `nadi function list {scope}`"),
            lambda name, value: msgspec.msgpack.decode(value, type=FunctionRecord),
            msgspec.msgpack.encode,
            key=b"function",
        )
        self.record: CatalogRecord[FunctionRecord] = CatalogRecord(manager.table(scope, self._table), kind, name)

    def members(self) -> Members:
        return Members(self._stores, self._scope, self._table, _MEMBER_KEYS)

    async def running(self) -> list[WorkerInfo]:
        return await live_members(self._stores, self._scope, self._table, _MEMBER_KEYS)

    async def report(
        self, function: Function, members: Members, counters: Counters, *, begins: bool = False
    ) -> FunctionRecord | None:
        """Store an instance's counters; return the newest record. begins: whether the instance has just started."""

        def changed(stored: FunctionRecord | None) -> FunctionRecord:
            stream = f"{function.scope}/{function.stream}"
            record = replace(
                stored or FunctionRecord(function.name, stream, function.handled_by),
                handled_by=function.handled_by,
                output=function.output_stream,
                dead_letters=function.dead_letter_stream,
                delivery=function.delivery,
                min_workers=function.min_workers,
                max_workers=function.max_workers,
                is_stopped=stored is not None and stored.is_stopped and not begins,
            )
            return record.with_counters(members.name, counters, members.known)

        return await self.record.put(changed)

    async def stop(self) -> None:
        """Stop all instances after their current batches; NotFoundError."""
        await self.record.change(lambda record: replace(record, is_stopped=True))


async def functions_of(manager: StreamManager, scope: str) -> tuple[dict[str, FunctionRecord], list[Unreadable]]:
    """Return the scope's functions by name, and those whose records are damaged or of a newer nadi, which can be
    deleted."""
    names = await manager.reader_group_manager(scope).list_reader_groups()
    return await readable({name: FunctionProgressRecord(manager, scope, name).record for name in names})
