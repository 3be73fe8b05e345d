"""A segment container: the sole owner of its segments' state, over one log.

The loop takes the waiting requests, checks each against the state as it will be, applies it, writes one frame, and once
that is durable answers all of them in order. Only one frame is in flight, so a crash can tear only the last one. On a
full disk, requests that need space are refused before they change anything (`FrameBuilder`). If the log fails, all
changes not yet durable are forgotten: the waiting requests get an error, and the container recovers from disk as after
a crash. Once another server has its storage, it ends instead, and never writes or reopens anything.

Damage is detected at a container's start, by readers, or by the storage writer. The list is for operators; bytes are
verified on each read, whether their damage is known or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import lmdb

from nadi import limits
from nadi.errors import (
    ClosedError,
    DamagedDataError,
    DamagedStateError,
    FencedError,
    NadiError,
    NotOwnerError,
    StorageFullError,
    UnavailableError,
)
from nadi.limits import DAMAGE_LISTED, FRAME_MAX_BYTES, LOG_MAX_BYTES, MAX_FRAME_RECEIVED_BYTES
from nadi.model.load import ScaleType, SegmentLoad
from nadi.observe.logs import about
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.checkpoints import BackgroundThrottle, Checkpoints
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.container.request_queue import Answers, QueuedCall, QueuedRequest, RequestQueue, again
from nadi.segmentstore.counters import LoadMeter, Stages, StoreCounters
from nadi.segmentstore.recovery.storage import ContainerStorage, OpenStorage
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.operations import Delete, seal_frame
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.tier1.blob_files import BlobFiles, run_name
from nadi.segmentstore.tier1.log import ALL, DurableLog
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Damage:
    """Unreadable bytes [offset, end_offset) of a segment."""

    segment: str
    offset: int
    end_offset: int
    reason: str


class KnownDamage:
    """A container's damaged ranges; adjacent ones of a segment with the same reason are merged. `unlisted` counts those
    beyond the list's limit. logs: log new ones; otherwise the reader of the list reports them."""

    def __init__(self, container: int, *, logs: bool = True) -> None:
        self._container = container
        self._logs = logs
        self._by_segment: dict[str, list[Damage]] = {}
        self._count = 0
        self.unlisted = 0

    def all(self) -> list[Damage]:
        return [damage for damages in self._by_segment.values() for damage in damages]

    def note(self, error: DamagedDataError) -> None:
        known = self._by_segment.get(error.segment, [])
        begin, end = error.offset, error.end_offset
        if any(damage.offset <= begin and end <= damage.end_offset for damage in known):
            return
        touching = [each for each in known if each.reason == error.reason]
        touching = [each for each in touching if begin <= each.end_offset and each.offset <= end]
        if not touching and self._count >= DAMAGE_LISTED:
            self.unlisted += 1
            return
        for damage in touching:
            begin, end = min(begin, damage.offset), max(end, damage.end_offset)
        separate = [damage for damage in known if damage not in touching]
        self._by_segment[error.segment] = [*separate, Damage(error.segment, begin, end, error.reason)]
        self._count += 1 - len(touching)
        if not touching and self._logs:
            fields = {"container": self._container, "segment": error.segment}
            log.error("container %d: %s", self._container, error, extra=fields)


REOPEN_DELAY_S = 1.0
_NEAR = 0.5  # of the target: no profile splits a segment below it
_FRAME_MOST_BYTES = FRAME_MAX_BYTES + MAX_FRAME_RECEIVED_BYTES  # the last request isn't split
_REQUEST_BYTES = 1024  # per request in a frame, without data: for estimating the next frame's size


def report_failure(error: Exception, number: int, *, is_lost: bool) -> UnavailableError:
    """Log why the container fails, or ends if it is lost to another server; return the error for requests in flight,
    whose changes may be stored."""
    if is_lost and isinstance(error, FencedError):
        log.warning("container %d ends here: %s", number, str(error))  # a log record would keep its frames,
        error.with_traceback(None)  # and sessions keep this error and its cause
        return UnavailableError(f"{error}: connect again")
    if is_lost:
        return UnavailableError("another server owns the data folder, or acquires the container: connect again")
    if isinstance(error, DamagedStateError):
        log.warning("container %d: %s", number, error)
        return UnavailableError(f"the container's state is damaged ({error.what}): try again")
    if isinstance(error, StorageFullError):
        log.warning("container %d: %s", number, error)
    else:
        log.error("container %d failed, and will recover from its log", number, exc_info=error)
    if isinstance(error, UnavailableError):
        return error
    return UnavailableError(f"the container could not write its log ({error}): try again")


def report_closed(error: Exception, number: int, before: UnavailableError | None) -> UnavailableError:
    """Log why the container can't be reopened, unless the reason is unchanged; return the error for requests."""
    message = f"container {number} can't be reopened yet: {error}"
    if str(before) != message:
        is_known = isinstance(error, OSError | lmdb.Error | NadiError)
        log.log(logging.WARNING if is_known else logging.ERROR, "%s", message, exc_info=None if is_known else error)
    return StorageFullError(message) if isinstance(error, StorageFullError) else UnavailableError(message)


def log_capacity(number: int, *, full: bool) -> None:
    if full:
        log.warning("container %d: no space for its log: writers wait; free space on its disk", number)
    else:
        log.info("container %d: there is space for its log again", number)


def mark_uncertain(answers: Answers) -> Answers:
    """Turn answers of requests that changed nothing into errors: another server may own the container, so results read
    from the state, including "exists" or "not found" errors, may be outdated."""
    refused = UnavailableError("another server may own this container by now: try again")
    return [
        (request, None, error if isinstance(error, UnavailableError) else again(refused))
        for request, _, error in answers
    ]


class ContainerPhase(Enum):
    """The life cycle of a container. A failed one is RUNNING: it recovers on its own."""

    RUNNING = auto()
    GIVEN_UP = auto()  # another store will own it: requests are refused, the frame in flight is finished
    STOPPING = auto()  # the same, then a last checkpoint is written
    LOST = auto()  # another server owns its storage: nothing is written; it waits for `stop`
    ENDED = auto()  # lost, and stopping


class Container:
    """One container. `submit` queues a request; `call` queues a function and waits for its result. parts: its log and
    its state. counts: the store's counters."""

    log: DurableLog
    metadata: ContainerMetadata
    state: StateMachine
    runs: BlobFiles | None = None

    def __init__(
        self, parts: ContainerStorage, cache: BlockCache, runtime: Runtime = REAL, counts: StoreCounters | None = None
    ) -> None:
        self.number = parts.number
        self.parts = parts
        self.cache = cache
        self.damage = KnownDamage(parts.number)
        self.load = LoadMeter(runtime.monotonic)
        self.throttle = BackgroundThrottle(runtime.monotonic)
        self.counts = counts or StoreCounters()
        self.monotonic = runtime.monotonic
        self._runtime = runtime
        self._logged_full = False
        self.log_max_bytes = LOG_MAX_BYTES  # above it, tier 2 accepts no data, and appends are refused
        self.queue = RequestQueue()
        self._wake = asyncio.Event()
        self._failure: UnavailableError | None = None
        self._pending_failure: Exception | None = None
        self._in_flight: Answers = []
        self.phase = ContainerPhase.RUNNING
        self._owner: str | None = None  # address of the store that acquires it, "" if unknown
        self._is_appending = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.checkpoints = Checkpoints(parts, self._wake.set, self._recover_from, self.throttle, self.counts, runtime)
        self.on_taken_over: Callable[[], None] = lambda: None  # another server owns the storage now
        self.on_opened: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)  # before requests are accepted

    @property
    def is_lost(self) -> bool:
        """Whether another server owns its storage, or may own it."""
        return self.phase in (ContainerPhase.LOST, ContainerPhase.ENDED)

    @property
    def _is_stopping(self) -> bool:
        return self.phase in (ContainerPhase.STOPPING, ContainerPhase.ENDED)

    async def start(self) -> None:
        """Recover from disk and start accepting requests. On an error nothing stays open."""
        with about(container=self.number):  # its tasks inherit this for their logs
            await self._open()
            self._task = asyncio.create_task(self._run(), name=f"container-{self.number}")
        try:
            await self.call(self._drop_transients)
        except UnavailableError as error:
            log.warning("container %d: transient segments of an earlier server stay for now: %s", self.number, error)
        except BaseException:
            await self.stop()
            raise
        if self.is_lost:
            await self.stop()
            raise self.refusal()

    def _drop_transients(self, frame: FrameBuilder) -> None:
        """Delete transient segments: they end with their connections, and an earlier server's have ended."""
        transients = list(self.state.transients)
        frame.emit_all([Delete(segment) for segment in transients], *map(self.state.must, transients), of_reserve=ALL)

    async def stop(self) -> None:
        """Answer requests in flight, write a last checkpoint, close the files. Continues even if cancelled."""
        self.phase = ContainerPhase.ENDED if self.is_lost else ContainerPhase.STOPPING
        self.checkpoints.stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    def give_up(self, owner: str) -> None:
        """Refuse waiting and new requests: the store at `owner` will have the container. `stop` it afterwards, which
        waits for the frame in flight; its appends are acknowledged as usual. The last changes are only in the log."""
        self._owner = owner
        if self.phase is ContainerPhase.RUNNING:
            self.phase = ContainerPhase.GIVEN_UP
        self._refuse_waiting()

    def lose(self, owner: str) -> None:
        """End the container for good: the store at `owner` has it, or may have it. Waiting and new requests are refused
        as by `give_up`; appends in flight get an error, though they may be stored. `stop` it afterwards, which writes
        nothing."""
        self._owner = owner
        self._set_lost()
        self.checkpoints.stopping = True
        if self._task is not None:
            if self._is_appending:
                self._task.cancel()  # an append may take forever if the log is unreachable
            self._refuse_waiting()

    def _end(self) -> None:
        if not self.is_lost:
            self._set_lost()
            self.on_taken_over()

    def _set_lost(self) -> None:
        self.phase = ContainerPhase.ENDED if self._is_stopping else ContainerPhase.LOST

    async def _open(self) -> None:
        began = self._runtime.monotonic()
        self.metadata, self.log, self.state, self.runs = opened = await self.parts.open()
        try:
            self.checkpoints.follow(opened)
            await self.on_opened()
        except BaseException:
            await self._release()
            raise
        took_s = self._runtime.monotonic() - began
        log.info("container %d: recovered to frame %d in %.2f s", self.number, self.state.sequence, took_s)

    def _recover_from(self, error: Exception) -> None:
        """Recover as after a crash, between two frames; or end, if the error is FencedError."""
        if self._failure is None:
            self._pending_failure = error
            self._wake.set()

    def submit(self, request: QueuedRequest, *, own: bool = False) -> None:
        """Queue the request for its turn. Callers must respect `queue.is_full`. own: the store's own request."""
        if self.phase is not ContainerPhase.RUNNING or self._failure is not None:
            request.failed(self.refusal())
            return
        self.queue.add(request, own=own)
        self._wake.set()

    def refusal(self, segment: str = "") -> UnavailableError:
        """Return the error for requests that are refused now. segment: named in the error."""
        if self._owner is not None:
            return NotOwnerError(segment, self._owner)
        if self._failure is not None:
            return again(self._failure)
        return ClosedError("the server is stopping: connect again when it is back")

    async def call(self, function: Callable[[FrameBuilder], T], size_bytes: int = 64, *, own: bool = False) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(QueuedCall(function, size_bytes, future), own=own)
        return await future

    def loads(self, after: str, most: int, *, elastic: bool) -> list[SegmentLoad]:
        """Return loads as `LoadMeter.loads` does. elastic: omit segments that are known not to scale."""
        return self.load.loads(after, most, self._needs_keys, self._is_fixed if elastic else lambda segment: False)

    def _needs_keys(self, load: SegmentLoad) -> bool:
        """Return whether the segment's load is near its target, so that the segment may be split between its keys."""
        record = self.state.find(load.segment) if self._failure is None else None
        if record is None or not record.target_rate:
            return False
        rates = (
            (size / 1024 for size in load.bytes_per_s)
            if record.scale_type == ScaleType.KIB_PER_SECOND
            else load.events_per_s
        )
        return max(rates) >= record.target_rate * _NEAR

    def _is_fixed(self, segment: str) -> bool:
        """Return whether the segment is in memory and doesn't scale: reading others from disk would take too long."""
        record = self.state.record_cache.in_memory(segment)
        return record is not None and (record.scale_type == ScaleType.FIXED or not record.target_rate)

    def evict_idle(self) -> None:
        """Evict records of idle segments from memory; the caller must hold none."""
        if self._failure is None:
            self.state.evict_idle()

    @property
    def failure(self) -> Exception | None:
        """The error with which requests are refused now; the container recovers on its own, unless it was released."""
        return self.refusal() if self._owner is not None else self._failure

    @property
    def damaged(self) -> list[Damage]:
        """The known damage to its data, except bytes truncated or deleted since."""
        damages = self.damage.all()
        if self._failure is not None:
            return damages
        records = [(damage, self.state.find(damage.segment)) for damage in damages]
        return [damage for damage, record in records if record is not None and damage.end_offset > record.start_offset]

    @property
    def waits_for_space(self) -> bool:
        """Whether its disk has no space for more of the log; requests that need none are still served."""
        return self.log.is_full

    @property
    def logged_bytes(self) -> int:
        """The size of the log and its separate files, of data stored only there."""
        return self.log.size_bytes + self.state.runs.size_bytes

    @property
    def started(self) -> bool:
        return self._task is not None

    @property
    def ended(self) -> bool:
        return self._is_stopping or (self._task is not None and self._task.done())

    async def _run(self) -> None:
        while True:
            if not self.queue and self._failure is None and self._pending_failure is None:
                if self._is_stopping:
                    break
                self._wake.clear()
                await self._wait_for_work()
            if self._pending_failure is not None:
                error, self._pending_failure = self._pending_failure, None
                self._fail(error)
            if self._failure is not None:
                if self._is_stopping:
                    break
                await self._reopen()
                continue
            try:
                if self.queue:
                    await self._write_frame()
                self.state.evict_idle()
                if not self.is_lost:
                    self.checkpoints.start_if_due()
            except asyncio.CancelledError:
                if not self.is_lost:
                    raise
                assert self._task is not None
                self._task.uncancel()
                self._fail(ClosedError("the container was lost"))
            except Exception as failure:  # the log or the state failed: recover as after a crash
                self._fail(failure)
        await self._close()

    async def _wait_for_work(self) -> None:
        if self._timer is None:  # one timer for many waits
            self._timer = asyncio.get_running_loop().call_later(limits.CHECKPOINT_INTERVAL_S, self._wake_up)
        await self._wake.wait()  # wait_for would create a task each time

    def _wake_up(self) -> None:
        self._timer = None
        self._wake.set()

    async def _write_frame(self) -> None:
        most = min(self.queue.size_bytes + _REQUEST_BYTES * self.queue.count, _FRAME_MOST_BYTES)
        if not self.log.is_settled(most):
            await self.counts.waiting_for_log(self.log.settle(most), self.monotonic)
        is_full = self.log.is_full
        if is_full != self._logged_full:
            self._logged_full = is_full
            log_capacity(self.number, full=is_full)
        sequence = self.state.sequence + 1
        stages = Stages(self.monotonic)
        ref = FrameRef(sequence, None, stages.taken)
        frame = FrameBuilder(ref, self._runtime.now_ms(), self.state, self.log.free_bytes, self.log.sure_bytes)
        answers: Answers = []
        self._in_flight = answers
        frame.log_is_full = self.logged_bytes > self.log_max_bytes
        self.queue.prepare(frame, answers)
        if not frame.empty:
            blob_writes = frame.place_blobs(self.runs) if self.runs is not None else []
            if blob_writes and self.runs is not None:
                # written first, as the frame refers to it
                await stages.time_blobs(self.runs.write([piece for _, piece, _ in blob_writes]))
            parts, extents = frame.finish()
            stages.built = self.monotonic()
            if self.is_lost:
                raise ClosedError("the container was lost before its frame was written")
            self._is_appending = True
            ref.address, checksums = await self.log.append(seal_frame(parts, self.state.sealing, sequence))
            self._is_appending = False
            stages.durable = self.monotonic()
            self.throttle.record(stages.durable - ref.at, frame.size_bytes)
            assert ref.address.sequence == sequence, "the log counts frames as the container does"
            self.state.sequence = sequence
            self.checkpoints.logged_bytes += frame.size_bytes - sum(piece.length for _, piece, _ in blob_writes)
            if ref.live_bytes:
                self.state.frames[sequence] = ref
            self.cache.put_frame(self.number, sequence, extents, parts[1:], checksums)
            self.cache.put_blobs(self.number, blob_writes)
            self.state.durable(frame.touched.values())
            self.counts.count_frame(frame.events, frame.appended_bytes, parts)
            self.load.count(frame.appended, ref.at)
        elif not self.parts.may_answer():
            answers = mark_uncertain(answers)
        self._in_flight = []
        for request, result, error in answers:
            if error is None:
                request.done(result)
            else:
                request.failed(error)
        if frame.arrivals:
            self.counts.record_frame(self.number, sequence, stages, frame.arrivals)
        for record in frame.touched.values():
            record.waiters.wake()
            if record.deleted:
                self.load.forget(record.name)
        self.queue.notify_capacity()

    def _fail(self, error: Exception) -> None:
        is_fenced = isinstance(error, FencedError) or (isinstance(error, ClosedError) and not self.parts.is_owned())
        self._is_appending = False
        self.counts.recoveries += not (is_fenced or self.is_lost)
        self._failure = failure = report_failure(error, self.number, is_lost=is_fenced or self.is_lost)
        in_flight, self._in_flight = [request for request, _, _ in self._in_flight], []
        for request in in_flight:
            request.failed(again(failure))  # also after `give_up`: it may be stored
        for record in self.state.record_cache.all():
            record.deleted = True  # its holders look it up again
        if is_fenced:
            self._end()
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Answer all queued requests with the reason; wake all waiters."""
        waiting = self.queue.take_all()
        for request in waiting:
            request.failed(self.refusal())
        for record in self.state.record_cache.all():
            record.waiters.wake()
        self.queue.notify_capacity()
        self._wake.set()

    async def _reopen(self) -> None:
        if self.is_lost or not self.parts.is_owned():  # reopening would stop the other server
            self._end()
            self._wake.clear()
            await self._wake.wait()  # for `stop`
            return
        await asyncio.sleep(REOPEN_DELAY_S)
        if self._owner is not None:  # for the same reason
            return
        try:
            await self._release()
            await self._open()
        except FencedError as error:
            self._fail(error)
        except Exception as error:  # a full or failing disk, a damaged file, no threads: may be repaired
            self._failure = report_closed(error, self.number, self._failure)
            self._wake.set()
        else:
            self._failure = None

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.checkpoints.ended()
        owned = self.parts.is_owned() and not self.is_lost and self._owner is None  # else the next owner has the log
        if owned and self._failure is None and self._pending_failure is None:
            self.checkpoints.start()
            await self.checkpoints.ended()
        if owned and self._failure is None and self._pending_failure is None:
            await self.checkpoints.finish()
        await self._release()

    async def _release(self) -> None:
        await self.checkpoints.ended()
        await self.parts.snapshots.ended(cancel=True)
        await OpenStorage(self.metadata, self.log, self.state, self.runs).close()


async def note_missing(container: Container, chunks: ChunkStore) -> None:
    """Note in `container.damage`, and set aside, extents whose chunk or file is missing or too short. Nothing else uses
    the container meanwhile."""
    state = container.state
    in_memory = {record.id: record for record in state.record_cache.all()}
    folder = f"container-{container.number}/"

    def missing_on_disk() -> tuple[dict[str, int], dict[int, set[int]]]:
        """Return the sizes of all chunks and, for segments not in memory, the offsets of extents without a chunk."""
        sizes = chunks.sizes(folder)
        missing: dict[int, set[int]] = {}
        for segment, offset, length, chunk in state.metadata.chunks():
            if sizes.get(chunk, -1) < length and segment not in in_memory and segment not in state.record_cache.deleted:
                missing.setdefault(segment, set()).add(offset)
        return sizes, missing

    sizes: dict[str, int] | None = None
    missing: dict[int, set[int]] = {}
    if chunks.is_here:  # listing an external store takes long, and reading a chunk shows whether it exists
        try:
            sizes, missing = await chunks.runtime.in_thread(missing_on_disk)
        except UnavailableError as error:
            log.warning("container %d: %s; reads fail if a chunk is missing", container.number, error)
    for record in in_memory.values():
        lost = [extent for extent in record.extents if _is_missing(container, extent, sizes)]
        _set_aside(container, record, lost, sizes or {})
    for segment, offsets in missing.items():
        record_of = state.by_id(segment)
        if record_of is not None:
            lost = [extent for extent in record_of.extents if extent.offset in offsets]
            _set_aside(container, record_of, lost, sizes or {})


def _is_missing(container: Container, extent: Extent, sizes: dict[str, int] | None) -> bool:
    if extent.frame is None:
        return sizes is not None and sizes.get(extent.chunk, -1) < extent.length
    address = extent.frame.address
    assert address is not None, "nothing is written before the inventory"
    end = extent.position + extent.length
    if extent.run:
        return extent.aside or container.runs is None or not container.runs.has(extent.run, end)
    return extent.aside or not container.log.has(address, end)


def _set_aside(
    container: Container, record: SegmentRecord, extents: Iterable[Extent], chunk_sizes: Mapping[str, int]
) -> None:
    for extent in extents:
        container.state.set_aside(extent)
        reason = f"chunk {extent.chunk} is missing or too short"
        # whole blocks before the end of a truncated chunk can be verified, and are readable
        begin = extent.offset + chunk_sizes.get(extent.chunk, 0) // BLOCK_BYTES * BLOCK_BYTES
        if extent.frame is not None:
            assert extent.frame.address is not None
            file = f"{run_name(extent.run)} beside" if extent.run else f"{extent.frame.address.file} of"
            reason = f"file {file} the log is missing, too short, or damaged at these bytes"
        container.damage.note(DamagedDataError(record.name, begin, extent.end, reason))
