"""Runs workflows: serialised per stream, recorded before they start, and resumed after a crash. Also steps that several
workflows share, and the controller's background tasks (`Tasks`).

`run` takes a stream's lock, lets `begin` check the request, records the work that `begin` returns, and then performs
its steps until they succeed. Steps are idempotent: if the store is unreachable they wait and start over. If the
controller dies, the record remains and `resume` finishes the work. Workflows run in their own tasks, so a client's
disconnect doesn't interrupt one that has started; one still waiting for its lock is cancelled.

A deposed controller can't issue commands (`state.segments`), and its records are fenced with their container
(docs/decisions/0012). So the lock and the records suffice to isolate workflows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar, get_args
from weakref import WeakValueDictionary

from cachetools import LRUCache
from msgspec.structs import replace

from nadi import errors
from nadi.backoff import Backoff
from nadi.controller.state.metadata import ControllerMetadata, StreamName
from nadi.controller.state.records import AnyWork, EpochChange, ListedMark, ScopeState, StreamRecord
from nadi.controller.state.segments import ABSENT, ANY_VERSION, Segments, freeing_space, together
from nadi.errors import ClosedError
from nadi.limits import CONVOY_FEW, CONVOY_WAIT_S, WORKFLOW_RETRY_MAX_S, WORKFLOW_WAIT_S
from nadi.naming import MARK_PREFIX
from nadi.runtime import Runtime
from nadi.throttled_log import ProblemLog

T = TypeVar("T")
K = TypeVar("K")
_AGAIN_S = 1.0
BACKGROUND = "controller background"  # name of all tasks
Ended = Callable[[asyncio.Task[Any]], None]


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task failed", exc_info=task.exception())


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a future's error as retrieved, since its waiters may have gone."""
    if not future.cancelled():
        future.exception()


class Tasks:
    """Owner of the controller's background tasks: none outlives `close`."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, T], ended: Ended = _log_failure) -> asyncio.Task[T]:
        if self._closed:
            coroutine.close()
            raise ClosedError("the controller is stopping: try again")
        task = asyncio.get_running_loop().create_task(coroutine, name=BACKGROUND)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(ended)
        return task

    async def run_to_completion(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine to completion even if the caller is cancelled, so that nothing stays half done. Returns or
        raises what the coroutine does."""
        return await asyncio.shield(self.spawn(coroutine, mark_retrieved))

    async def close(self) -> None:
        self._closed = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_AGAIN_S)  # a task may mistake the cancellation for a timeout and retry


class WorkBatcher:
    """Batches concurrent work so that its members share frames of a container's log. While at least `few` are in
    progress, a new member waits until half of the last batch has finished, or `wait_s`, and then starts together with
    all that wait."""

    def __init__(self, few: int = CONVOY_FEW, wait_s: float = CONVOY_WAIT_S) -> None:
        self._few, self._wait_s = few, wait_s
        self._active = self._waiting = 0
        self._batch_size = 0  # in progress when the last batch started
        self._batch_started = asyncio.Event()  # set when the waiting batch starts

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        if self._waiting or self._active >= self._few:
            self._waiting += 1
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._batch_started.wait()
            except TimeoutError:
                pass  # the members before it are stuck
            finally:
                self._waiting -= 1
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if self._active < max(self._few, self._batch_size // 2):
                self._batch_size = self._active + self._waiting
                self._batch_started.set()
                self._batch_started = asyncio.Event()


class Shared(Generic[K, T]):
    """Cache of answers to concurrent questions: each key is asked once, and again when its answer is `age_s` old, or
    `rest` times as old as it took to get. most: answers retained. An error reaches only the callers waiting for it."""

    def __init__(
        self, clock: Runtime, ask: Callable[[K], Awaitable[T]], *, age_s: float, rest: float = 0.0, most: int = 1
    ) -> None:
        self._clock, self._ask, self._age_s, self._rest = clock, ask, age_s, rest
        self._answers: LRUCache[K, asyncio.Task[tuple[T, float]]] = LRUCache(most)

    async def get(self, key: K) -> T:
        task, now_s = self._answers.get(key), self._clock.monotonic()
        is_over = task is not None and task.done()
        if task is None or (is_over and (task.cancelled() or task.exception() or task.result()[1] <= now_s)):
            task = self._answers[key] = asyncio.create_task(self._query(key))
            task.add_done_callback(mark_retrieved)
        return (await asyncio.shield(task))[0]  # continues for the other callers if one is cancelled

    async def _query(self, key: K) -> tuple[T, float]:
        began_s = self._clock.monotonic()
        answer = await self._ask(key)
        now_s = self._clock.monotonic()
        return answer, now_s + max(self._age_s, self._rest * (now_s - began_s))


class Schedule:
    """Periodic work, each kind in its own task. A failed round is logged and the next one tries again."""

    def __init__(self, clock: Runtime, tasks: Tasks) -> None:
        self._clock, self._tasks = clock, tasks
        self._problems = ProblemLog(log, "%s wait for the next round")

    def start(self, subject: str, period_s: float, one_round: Callable[[], Awaitable[None]]) -> None:
        """Start periodic rounds. subject: names the work in log messages, as in "SUBJECT wait for the next round"."""
        self._tasks.spawn(self._run(subject, period_s, one_round))

    async def _run(self, subject: str, period_s: float, one_round: Callable[[], Awaitable[None]]) -> None:
        """Run one round per period. After an overrun the next round follows at once; missed rounds are skipped."""
        clock, period_ms = self._clock, int(period_s * 1000)
        due_ms = clock.monotonic_ms()
        while True:
            due_ms = max(due_ms + period_ms, clock.monotonic_ms())
            await clock.sleep((due_ms - clock.monotonic_ms()) / 1000)
            with self._problems.about(subject):
                await one_round()


log = logging.getLogger(__name__)

# By the tags of their records, in the order of resumption.
KINDS: dict[str, type[AnyWork]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyWork)}
KIND_OF: dict[type[Any], str] = {kind: label for label, kind in KINDS.items()}
# These free space during their steps or at the end, so they continue on a full disk.
FREES_SPACE = frozenset(("truncate", "seal", "delete", "delete_group", "delete_table", "scope"))

Steps = Callable[[StreamName, Any], Awaitable[None]]
Attempt = Callable[[], Awaitable[object]]
_FIRST_PAUSE_S = 0.1
_FULL_PAUSE_S = 0.5  # longest pause while the disk is full
_FULL_CHECK_S = 1.0  # between checks whether earlier work is waiting for space
_MOVED_PAUSE_S = 0.5  # while a container changes servers, which takes a few seconds at most


class WorkRefused(Exception):
    """Raised by steps: the work turned out to be impossible and left nothing behind. `error` goes to the caller."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Recorded(NamedTuple):
    work: AnyWork
    key: str
    version: int


class _WorkflowRequest:
    """A request for work. Its caller waits until it is `recorded` or `done`; an error ends both."""

    def __init__(self) -> None:
        self.recorded, self.done = asyncio.Future[AnyWork | None](), asyncio.Future[None]()
        self.has_started = False
        self.refusal: Exception | None = None
        for future in (self.recorded, self.done):
            future.add_done_callback(mark_retrieved)

    def record(self, work: AnyWork | None) -> None:
        if not self.recorded.done():
            self.recorded.set_result(work)

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        for future in (self.recorded, self.done):
            if not future.done():
                future.set_exception(error)


class Workflows:
    """admit: called before a stream is created or scaled, with its new number of segments; QuotaExceededError."""

    def __init__(self, metadata: ControllerMetadata, segments: Segments, clock: Runtime, tasks: Tasks) -> None:
        self.metadata = metadata
        self.segments = segments
        self.clock = clock
        self.tasks = tasks
        self.steps: dict[type[Any], Steps] = {}
        self.admit: Callable[[StreamName, int], Awaitable[None]] | None = None
        self._pending: dict[str, dict[str, AnyWork]] = {}
        self._full: dict[str, errors.StorageFullError] = {}  # by lock key: why its work is waiting
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, name: StreamName) -> asyncio.Lock:
        """Return the lock that serialises the workflows of a stream and its mark stream, which is created and deleted
        with it. Keep a reference to the lock while using it."""
        return self._locks.setdefault(self._lock_key(name), asyncio.Lock())

    @staticmethod
    def _lock_key(name: StreamName) -> str:
        return f"{name.scope}/{name.stream.removeprefix(MARK_PREFIX)}"

    def pending(self, name: StreamName, kind: str) -> AnyWork | None:
        return self._pending.get(name.key, {}).get(kind)

    @property
    def pending_count(self) -> int:
        return sum(map(len, self._pending.values()))

    async def quiet(self, scope: str) -> None:
        """Wait for all unfinished work in the scope; StorageFullError if any is waiting for space."""
        while True:
            works = [key.split("/") async for key, _ in self.metadata.work.scan(f"{scope}/")]
            names = {StreamName(scope, parts[1]) for parts in works if parts[1]}
            if not names:
                return
            for name in names:
                if (full := self._full.get(self._lock_key(name))) is not None:
                    raise full
                async with self.lock(name):
                    pass  # recorded work has the lock or is waiting for it

    async def run(
        self, name: StreamName, begin: Callable[[], Awaitable[AnyWork | None]], *, wait: bool = True
    ) -> AnyWork | None:
        """Start a workflow and wait until it is done (`wait`) or recorded. `begin` runs under the stream's lock; it
        raises if the request is invalid, and returns None if there is nothing to do. After RequestTimeoutError or
        StorageFullError, recorded work continues."""
        run = _WorkflowRequest()
        task = self.tasks.spawn(self._perform(name, begin, run))
        try:
            async with asyncio.timeout(WORKFLOW_WAIT_S):
                await self._unless_full(name, run)
                work = await asyncio.shield(run.recorded)
                if wait:
                    await asyncio.shield(run.done)
                return work
        except TimeoutError as error:
            raise errors.RequestTimeoutError(f"{name} has been busy for too long: try again") from error
        finally:
            if not run.has_started:  # leave the queue: the number of calls is limited only while their callers wait
                task.cancel()

    async def _perform(
        self, name: StreamName, begin: Callable[[], Awaitable[AnyWork | None]], run: _WorkflowRequest
    ) -> None:
        try:
            async with self.lock(name):
                run.has_started = True
                work = await begin()
                if work is not None and (recorded := await self._record_surely(name, work, run)) is not None:
                    run.record(work)
                    await self.finish(name, recorded, run)
                run.record(None)
                run.end()
        except asyncio.CancelledError:
            run.fail(errors.ClosedError("the controller is stopping: try again"))
            raise
        except Exception as error:
            run.fail(error)

    async def _unless_full(self, name: StreamName, run: _WorkflowRequest) -> None:
        """Wait until the work is recorded; StorageFullError if earlier work is stuck on a full disk."""
        while not run.recorded.done():
            full = self._full.get(self._lock_key(name))
            if full is not None:
                error = errors.StorageFullError(f"{name} has unfinished work that is waiting for disk space: {full}")
                run.fail(error)
                raise error
            await asyncio.wait([run.recorded], timeout=_FULL_CHECK_S)

    async def _record_surely(self, name: StreamName, work: AnyWork, run: _WorkflowRequest) -> Recorded | None:
        """Record work. If the outcome is unknown, report that, finish whatever was recorded, and return None, since
        otherwise it might be done after later work."""
        try:
            return await self.record(name, work)
        except errors.UnavailableError as error:
            run.fail(error)
        except errors.ConditionFailedError:
            run.fail(errors.UnavailableError(f"{name} is busy: try again"))
        works: dict[str, Recorded] = {}

        async def reload() -> None:
            keys = [f"{name.key}/{kind}" for kind in KINDS]
            for kind, key, record in zip(KINDS, keys, await self.metadata.work.get_all(keys), strict=True):
                if record is not None:
                    works[kind] = Recorded(record.value, key, record.version)

        await self.persist(f"reloading the work of {name}", reload, locked=name)
        await self._finish_all(name, works)
        return None

    async def record(self, name: StreamName, work: AnyWork) -> Recorded:
        """Record work that the caller will finish under the stream's lock; ConditionFailedError if it is already
        recorded."""
        kind = KIND_OF[type(work)]
        key = f"{name.key}/{kind}"
        self._pending.setdefault(name.key, {})[kind] = work
        try:
            with freeing_space() if kind in FREES_SPACE else nullcontext():
                stored = await self.metadata.work.put(key, work, ABSENT)
        except BaseException:
            self._ended(name, kind)
            raise
        return Recorded(work, key, stored.version)

    def _ended(self, name: StreamName, kind: str) -> None:
        kinds = self._pending.get(name.key, {})
        kinds.pop(kind, None)
        if not kinds:
            self._pending.pop(name.key, None)

    async def within(self, name: StreamName, work: AnyWork) -> None:
        """Record and finish work as one step of other work; the step may be repeated."""
        try:
            recorded = await self.record(name, work)
        except errors.ConditionFailedError:  # recorded by an earlier attempt that got no reply
            key = f"{name.key}/{KIND_OF[type(work)]}"
            stored = await self.metadata.work.get(key, fresh=True)
            if stored is None:
                raise
            recorded = Recorded(stored.value, key, stored.version)
        await self.finish(name, recorded)

    async def finish(self, name: StreamName, recorded: Recorded, run: _WorkflowRequest | None = None) -> None:
        """Perform recorded work until it is done, then delete the record; waiting callers don't wait for the latter."""
        work, run = recorded.work, run or _WorkflowRequest()
        kind = KIND_OF[type(work)]
        self._pending.setdefault(name.key, {})[kind] = work

        async def attempt() -> None:
            try:
                with freeing_space() if kind in FREES_SPACE else nullcontext():
                    await self.steps[type(work)](name, work)
            except WorkRefused as refused:
                run.refusal = refused.error
            if run.refusal is None:
                run.end()
            await self.metadata.work.remove_if((recorded.key, recorded.version))

        try:
            await self.persist(f"{kind} {name}", attempt, run, locked=name)
        finally:
            self._ended(name, kind)
        if run.refusal is not None:
            run.fail(run.refusal)

    async def persist(
        self, subject: str, attempt: Attempt, run: _WorkflowRequest | None = None, *, locked: StreamName | None = None
    ) -> None:
        """Retry until success, with growing pauses. Errors other than an outage are logged and reported to the caller.
        A full disk is also reported to those waiting for the caller's lock; work continues once there is space."""
        key, run = self._lock_key(locked) if locked is not None else "", run or _WorkflowRequest()
        backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=WORKFLOW_RETRY_MAX_S, sleep=self.clock.sleep)
        try:
            while True:
                try:
                    await attempt()
                    return
                except errors.StorageFullError as error:
                    log.warning("%s is waiting for disk space: %s", subject, error)
                    self._full[key] = error
                    run.fail(error)
                    backoff.at_most(_FULL_PAUSE_S)
                except errors.NotOwnerError as error:
                    log.info("%s is waiting for a container: %s", subject, error)
                    backoff.at_most(_MOVED_PAUSE_S)
                except errors.UnavailableError as error:
                    log.warning("%s is waiting for the segment store: %s", subject, error)
                except Exception as error:
                    log.exception("%s failed and will be retried", subject)
                    run.fail(error)
                await backoff.pause()
        finally:
            self._full.pop(key, None)

    async def resume(self) -> None:
        """Load all recorded work and finish it in the background; return once it is loaded."""
        works: dict[str, dict[str, Recorded]] = {}
        async for key, record in self.metadata.work.scan():
            owner, _, kind = key.rpartition("/")
            works.setdefault(owner, {})[kind] = Recorded(record.value, key, record.version)
        for owner, kinds in works.items():
            self._pending[owner] = {kind: recorded.work for kind, recorded in kinds.items()}
            self.tasks.spawn(self._resume(StreamName.of(owner), kinds))

    async def _resume(self, name: StreamName, works: dict[str, Recorded]) -> None:
        async with self.lock(name):
            await self._finish_all(name, works)

    async def _finish_all(self, name: StreamName, works: dict[str, Recorded]) -> None:
        for kind in KINDS:
            if kind in works:
                log.info("finishing %s of %s", kind, name)
                await self.finish(name, works[kind])


def check_all(subject: str, *conditions: tuple[bool, str]) -> None:
    """Raise InvalidArgumentError for the first condition of a configuration that isn't met."""
    for is_met, need in conditions:
        if not is_met:
            raise errors.InvalidArgumentError(f"the {subject}'s configuration is invalid: it needs {need}")


async def check_scope(flow: Workflows, scope: str) -> None:
    """Raise WorkRefused if the scope is being deleted or doesn't exist. A creation calls this after recording its work;
    a deletion marks the scope DELETING and then looks for unfinished work. So either the deletion sees the record and
    waits for it, or the creation sees the mark and undoes its steps."""
    record = await flow.metadata.scopes.get(scope, fresh=True)
    if record is None or record.value.state is ScopeState.DELETING:
        raise WorkRefused(errors.ScopeNotFoundError(scope))


async def seal_and_measure(flow: Workflows, name: StreamName, ids: Sequence[int], label: str) -> None:
    async def seal(segment: int) -> int:
        await flow.segments.seal(name.segment(segment))
        return await flow.segments.length(name.segment(segment))

    sizes = await together(seal(segment) for segment in ids)
    await flow.metadata.put_sizes(name, label, dict(zip(ids, sizes, strict=True)))


async def switch(flow: Workflows, name: StreamName, change: EpochChange) -> StreamRecord:
    history = await flow.metadata.history(name)
    stream, version = await flow.metadata.stream(name)
    epoch, segments = change.epoch, history.epoch(change.epoch)
    stream = replace(
        stream, epoch=epoch, reference=change.reference, epoch_created_ms=change.created_ms, segments=segments
    )
    await flow.metadata.put_stream(name, stream, version)
    return stream


async def index_tags(flow: Workflows, name: StreamName, before: Sequence[str], after: Sequence[str]) -> None:
    """Add the tags that the stream gains to its scope's index, and remove those it loses. This precedes the change of
    the stream's record, from which a repeated step derives the difference again, so the index may be ahead."""
    table = flow.metadata.tags(name.scope)
    if added := [tag for tag in after if tag not in before]:
        await table.put_all([(_tag_prefix(tag) + name.stream, ListedMark(), ANY_VERSION) for tag in added])
    await table.remove([_tag_prefix(tag) + name.stream for tag in before if tag not in after])


async def tagged(flow: Workflows, scope: str, tag: str, token: bytes, count: int) -> tuple[list[str], bytes]:
    """Return a page of names of streams with the tag, and the continuation token; an empty page is the end."""
    page, token = await flow.metadata.tags(scope).page(token, count, prefix=_tag_prefix(tag))
    return [key.rpartition("/")[2] for key, _ in page], token


def _tag_prefix(tag: str) -> str:
    """Return the key prefix of a tag, in hex: it may contain anything, and must not be a prefix of another tag's."""
    return tag.encode().hex() + "/"
