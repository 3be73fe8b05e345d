"""A segment container: the one owner of its segments' state, over one log.

Requests queue up; the loop takes what waits, checks each against the state as it will be, applies
it, writes one frame, and when that is durable answers all of them in order. Only one frame is in
flight, so a crash can tear only the last. On a full disk what takes room is refused before it changes anything
(`FrameBuilder`), and all else goes on. If the log fails, everything that was not durable is
forgotten: the waiting requests get an error, and the container recovers from disk as after a crash.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import lmdb

from nadi.errors import ClosedError, DamagedStateError, NadiError, StorageFullError, UnavailableError
from nadi.limits import (
    CHECKPOINT_DIRTY_RECORDS,
    CHECKPOINT_INTERVAL_S,
    FRAME_MAX_BYTES,
    FRAME_MAX_REQUESTS,
    LOG_MAX_BYTES,
    MAX_FRAME_RECEIVED_BYTES,
    QUEUE_MAX_BYTES,
)
from nadi.segmentstore import reserve
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.damage import Damage, KnownDamage
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.recovery import rebuild
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.machine import Checkpoint, StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.operations import Append, Delete, decode_frame
from nadi.segmentstore.state.records import FrameRef
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES
from nadi.segmentstore.tier1.log import ALL
from nadi.segmentstore.tier2.chunks import ChunkStore

log = logging.getLogger(__name__)

REOPEN_DELAY_S = 1.0
_FRAME_MOST_BYTES = FRAME_MAX_BYTES + MAX_FRAME_RECEIVED_BYTES  # the last request is taken whole
_REQUEST_BYTES = 1024  # in a frame, beside the data: with it the room for the next frame is asked for


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


class Request(Protocol):
    """Something that waits for its turn: `prepare` when the frame is built, then `done` or `failed`."""

    size_bytes: int

    def prepare(self, frame: FrameBuilder) -> Any:
        """Check against the state and add to the frame; gives the result, or raises a NadiError."""

    def done(self, result: Any) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Call:
    """A request made of a function; its result or error goes to a future."""

    __slots__ = ("function", "future", "size_bytes")

    def __init__(self, function: Callable[[FrameBuilder], Any], size_bytes: int, future: asyncio.Future[Any]) -> None:
        self.function = function
        self.size_bytes = size_bytes
        self.future = future

    def prepare(self, frame: FrameBuilder) -> Any:
        return self.function(frame)

    def done(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _again(error: UnavailableError) -> UnavailableError:
    """The same for another request: one object raised many times gathers the frames of all, and what they hold."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh


async def _nothing() -> None:
    pass


class Container:
    """One container. `submit` queues a request; `call` queues a function and waits for its result.

    chunks: tier 2, for snapshots of the state. now_ms: the clock that says when something was appended.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        cache: BlockCache,
        chunks: ChunkStore,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.number = number
        self.cache = cache
        self.damage = KnownDamage(number)
        self._now_ms = now_ms
        self.queue_bytes = 0
        self._told_full = False
        self.state_waits_for_room = False  # its checkpoints fail for that, and are tried again
        self.log_full = False  # at its limit, because tier 2 takes no data; looked at for each frame
        self._folder = folder
        self._queue: deque[Request] = deque()
        self._wake = asyncio.Event()
        self._room: list[asyncio.Future[None]] = []
        self._failure: UnavailableError | None = None
        self._pending_failure: Exception | None = None
        self._in_flight: list[tuple[Request, Any, Exception | None]] = []
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._checkpoint: asyncio.Task[Any] | None = None  # or what else no commit may run beside
        self._checkpoint_at = 0.0
        self._checkpointed_sequence = 0
        self._truncation_due = False
        self._logged_bytes = 0
        self._chunks = chunks
        self.snapshots = Snapshotter(number, folder, chunks)
        self._state_trusted = False  # looked at by this process, which alone has written it since
        self._may_be_sealed = True
        self.rebuilt = ""  # why the state was made anew, if it was
        self.on_durable: Callable[[], None] = lambda: None
        self.is_owned: Callable[[], bool] = lambda: True  # whether the data folder is still this server's
        self.on_taken: Callable[[], None] = lambda: None  # it isn't, and another one writes the log
        self.on_opened: Callable[[], Awaitable[None]] = _nothing  # before it takes requests

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover from disk and begin to take requests."""
        await self._open()
        self._task = asyncio.create_task(self._run(), name=f"container-{self.number}")
        try:
            await self.call(self._drop_transients)
        except UnavailableError as error:
            log.warning("container %d: transient segments of a former server stay for now: %s", self.number, error)

    def _drop_transients(self, frame: FrameBuilder) -> None:
        """Transient segments go with their connections, and a former server's are gone."""
        gone = list(self.state.transients)
        frame.emit_all([Delete(segment) for segment in gone], *map(self.state.must, gone), of_kept=ALL)

    async def stop(self) -> None:
        """Answer what is under way, write a last checkpoint, close the files."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def _open(self) -> None:
        began = time.monotonic()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await self._open_state()
        except (OSError, lmdb.Error, UnavailableError) as error:
            if not reserve.is_no_room(error, self._folder) or not reserve.release(self._folder):
                raise
            try:
                await self._open_state()
            except BaseException:
                reserve.take(self._folder)  # for the next try: nothing else was left behind
                raise
        reserve.take(self._folder)
        self._checkpointed_sequence = self.metadata.state().sequence
        await self._follow_state()
        await self.on_opened()
        # Containers take turns: their checkpoints' syncs would otherwise hold up the log all at once.
        self._checkpoint_at = time.monotonic() - CHECKPOINT_INTERVAL_S * (self.number % 4) / 4
        log.info(
            "container %d: recovered to frame %d in %.2f s",
            self.number,
            self.state.sequence,
            time.monotonic() - began,
        )

    async def _follow_state(self) -> None:
        loop = asyncio.get_running_loop()

        def damaged(error: DamagedStateError) -> None:
            loop.call_soon_threadsafe(self._state_is_damaged, error)

        def stored() -> None:
            self._truncation_due = True
            self._wake.set()

        self.metadata.on_damage = self.snapshots.on_damage = damaged
        self.snapshots.on_stored = stored
        await self.snapshots.open(self._checkpointed_sequence)

    def _state_is_damaged(self, error: DamagedStateError) -> None:
        """Recover: the state is looked at as a whole then, and made anew if it must be."""
        if self._failure is None:
            self._pending_failure = error
            self._wake.set()

    async def _open_state(self) -> None:
        epoch = 0
        if not self._state_trusted:
            found = await rebuild.sound_state(self._folder, self.number, self._chunks, self._fits)
            self.rebuilt, epoch = found.made or self.rebuilt, found.all_to_epoch
            self._may_be_sealed = True
        await self._open_parts(self._folder / rebuild.STATE, all_to_epoch=epoch)
        self._state_trusted = True

    async def _fits(self, state: Path) -> None:
        """Try whether the container can be recovered from that state and its log."""
        await self._open_parts(state)
        await self.log.close()
        self.metadata.close()

    async def _open_parts(self, state: Path, *, all_to_epoch: int = 0) -> None:
        """all_to_epoch: the state has all that the log ever said, whose last owner was that of this epoch."""
        loop = asyncio.get_running_loop()
        self.metadata = await loop.run_in_executor(None, Metadata, state, self.number)
        try:
            name = f"container-{self.number}"
            complete = (self.metadata.state().sequence, all_to_epoch) if all_to_epoch else None
            self.log = await loop.run_in_executor(
                None, lambda: FileLog.open(self._folder / "log", name=name, complete=complete)
            )
        except BaseException:
            self.metadata.close()
            raise
        try:
            self.state = await loop.run_in_executor(None, self._recover)
        except BaseException:
            await self.log.close()
            self.metadata.close()
            raise

    def _recover(self) -> StateMachine:
        state = StateMachine(self.metadata)
        now = time.monotonic()
        for found in self.log.replay(state.sequence):
            operations, head = decode_frame(found.payload)
            frame = FrameRef(found.address.sequence, found.address, now)
            part = 0
            for operation in operations:
                if isinstance(operation, Append) and operation.length:
                    state.apply(operation, frame, head, found.checksums[part * CHECKSUM_BYTES :][:CHECKSUM_BYTES])
                    if part in found.damaged_parts:
                        state.set_aside(state.must(operation.segment).extents[-1])
                    part += 1
                else:
                    state.apply(operation, frame)
            if frame.live_bytes:
                state.frames[frame.sequence] = frame
            state.sequence = frame.sequence
        state.durable(state.residents.all())
        return state

    # --- requests --------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue the request; it is answered in its turn. Callers heed `full`."""
        if self._failure is not None:
            request.failed(_again(self._failure))
            return
        if self._stopping:
            request.failed(ClosedError("the server is stopping: connect again when it is back"))
            return
        self.queue_bytes += request.size_bytes
        self._queue.append(request)
        self._wake.set()

    async def call(self, function: Callable[[FrameBuilder], Any], size_bytes: int = 64) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(Call(function, size_bytes, future))
        return await future

    @property
    def full(self) -> bool:
        """Whether whoever sends appends must wait."""
        return self.queue_bytes > QUEUE_MAX_BYTES

    async def room(self) -> None:
        """Wait until the queue has room again."""
        while self.full:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(future)
            await future

    def make_room(self) -> None:
        """Let records of idle segments leave memory; for callers that hold none."""
        if self._failure is None:
            self.state.make_room()

    @property
    def failure(self) -> Exception | None:
        """Why it takes no requests now; it recovers by itself."""
        return self._failure

    @property
    def damaged(self) -> list[Damage]:
        """What of its data is known to be damaged; not what was truncated or deleted since."""
        found = self.damage.all()
        if self._failure is not None:
            return found
        records = [(damage, self.state.find(damage.segment)) for damage in found]
        return [damage for damage, record in records if record is not None and damage.end_offset > record.start_offset]

    @property
    def waits_for_room(self) -> bool:
        """Whether its disk has none for more of the log; what takes none is done all the same."""
        return self.log.is_full

    @property
    def started(self) -> bool:
        """Whether it has recovered after its start."""
        return self._task is not None

    @property
    def ended(self) -> bool:
        return self._stopping or (self._task is not None and self._task.done())

    # --- the loop ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._queue and self._failure is None and self._pending_failure is None:
                if self._stopping:
                    break
                self._wake.clear()
                await self._wait_for_work()
            if self._pending_failure is not None:
                error, self._pending_failure = self._pending_failure, None
                self._fail(error)
            if self._failure is not None:
                if self._stopping:
                    break
                await self._reopen()
                continue
            try:
                if self._queue:
                    await self._write_frame()
                self.state.make_room()
                if self._truncation_due:
                    self._truncate_log()
                self._start_checkpoint_if_due()
            except Exception as failure:  # the log or the state failed: recover as after a crash
                self._fail(failure)
        await self._close()

    async def _wait_for_work(self) -> None:
        if self._timer is None:  # one for many waits
            self._timer = asyncio.get_running_loop().call_later(CHECKPOINT_INTERVAL_S, self._look_again)
        await self._wake.wait()  # wait_for would make a task, each time

    def _look_again(self) -> None:
        self._timer = None
        self._wake.set()

    async def _write_frame(self) -> None:
        most = min(self.queue_bytes + _REQUEST_BYTES * len(self._queue), _FRAME_MOST_BYTES)
        if not self.log.is_settled(most):
            await self.log.settle(most)
        is_full = self.log.is_full
        if is_full != self._told_full:
            self._tell_of_room(full=is_full)
        sequence = self.state.sequence + 1
        ref = FrameRef(sequence, None, time.monotonic())
        frame = FrameBuilder(ref, self._now_ms(), self.state, self.log.room_bytes, self.log.sure_bytes)
        answers: list[tuple[Request, Any, Exception | None]] = []
        self._in_flight = answers
        self.log_full = self.log.size_bytes > LOG_MAX_BYTES
        self._prepare(frame, answers)
        if not frame.empty:
            if self._may_be_sealed:
                await self.log.claim()  # a start that needs the seal is possible until the log tells as much
                await self._break_seal()
            parts, extents = frame.finish()
            ref.address, checksums = await self.log.append(parts)
            assert ref.address.sequence == sequence, "the log counts frames as the container does"
            self.state.sequence = sequence
            self._logged_bytes += frame.size_bytes
            if ref.live_bytes:
                self.state.frames[sequence] = ref
            for number, extent in enumerate(extents):
                extent.checksums = checksums[number * CHECKSUM_BYTES :][:CHECKSUM_BYTES]
                self.cache.put((f"{self.number}", sequence, extent.position), parts[number + 1])
            self.state.durable(frame.touched.values())
        self._in_flight = []
        for request, result, error in answers:
            if error is None:
                request.done(result)
            else:
                request.failed(error)
        for record in frame.touched.values():
            record.waiters.wake()
        if self._room and not self.full:
            waiting, self._room = self._room, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self.on_durable()

    def _tell_of_room(self, *, full: bool) -> None:
        self._told_full = full
        if full:
            log.warning("container %d: no room for its log: writers wait until there is room on its disk", self.number)
        else:
            log.info("container %d: there is room for its log again", self.number)

    def _prepare(self, frame: FrameBuilder, answers: list[tuple[Request, Any, Exception | None]]) -> None:
        queue = self._queue
        while queue and frame.size_bytes < FRAME_MAX_BYTES and len(answers) < FRAME_MAX_REQUESTS:
            request = queue.popleft()
            self.queue_bytes -= request.size_bytes
            try:
                answers.append((request, request.prepare(frame), None))
            except DamagedStateError:  # what was being applied may be there by half
                answers.append((request, None, None))
                raise
            except NadiError as error:
                # without its frames, for whoever keeps it: they hold all that was appended with it
                answers.append((request, None, error.with_traceback(None)))
            except Exception:
                answers.append((request, None, None))
                raise
            frame.size_bytes += 64

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DamagedStateError):
            self._state_trusted = False
            log.warning("container %d: %s", self.number, error)
            error = UnavailableError(f"the container's state was found damaged ({error.what}): try again")
        elif isinstance(error, StorageFullError):
            log.warning("container %d: %s", self.number, error)
        elif isinstance(error, ClosedError) and not self.is_owned():
            error = UnavailableError("another server has the data folder: this one stops")
        else:
            log.error("container %d failed and will recover from its log", self.number, exc_info=error)
        if not isinstance(error, UnavailableError):
            error = UnavailableError(f"the container could not write its log ({error}): try again")
        self._failure = error
        waiting = [request for request, _, _ in self._in_flight] + list(self._queue)
        self._in_flight = []
        self._queue.clear()
        self.queue_bytes = 0
        for request in waiting:
            request.failed(_again(error))
        for record in self.state.residents.all():
            record.deleted = True  # whoever still holds it looks it up again
            record.waiters.wake()
        for future in self._room:
            if not future.done():
                future.set_result(None)
        self._room = []
        self._wake.set()

    async def _reopen(self) -> None:
        if not self.is_owned():  # to open it again would stop the other one
            self.on_taken()
            self._wake.clear()
            await self._wake.wait()  # for `stop`
            return
        await asyncio.sleep(REOPEN_DELAY_S)
        try:
            await self._release()
            await self._open()
        except (OSError, lmdb.Error, NadiError) as error:  # a full or a failing disk, a damaged file: it may be mended
            self._state_trusted = self._state_trusted and not isinstance(error, DamagedStateError)
            said = f"container {self.number} can't be opened again yet: {error}"
            if str(self._failure) != said:
                log.warning("%s", said)
            self._failure = StorageFullError(said) if isinstance(error, StorageFullError) else UnavailableError(said)
            self._wake.set()
        else:
            self._failure = None

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._checkpoint_ended()
        owned = self.is_owned()
        if owned and self._failure is None and self._pending_failure is None:
            self._start_checkpoint()
            await self._checkpoint_ended()
        clean = owned and self._failure is None and self._pending_failure is None
        if clean:
            await self.snapshots.finish(self.metadata, self._checkpointed_sequence, self._logged_bytes)
            self._truncate_log()
        await self._release()
        if clean:
            await asyncio.get_running_loop().run_in_executor(None, self._seal)

    def _seal(self) -> None:
        has_all = self._checkpointed_sequence == self.state.sequence  # a full disk has no room for a checkpoint
        try:
            statecheck.seal(self._folder / "state", self.log.epoch if has_all else 0)
        except OSError as error:  # a full disk, say: then the next start looks at all of it
            log.info("container %d: its state has no seal: %s", self.number, error)

    async def _checkpoint_ended(self) -> None:
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
            self._checkpoint = None

    async def _release(self) -> None:
        await self._checkpoint_ended()
        await self.snapshots.ended(cancel=True)
        await self.log.close()
        self.metadata.close()

    # --- checkpoints --------------------------------------------------------------------------------------

    def _start_checkpoint_if_due(self) -> None:
        due = time.monotonic() - self._checkpoint_at >= CHECKPOINT_INTERVAL_S
        if due or self.state.dirty_count >= CHECKPOINT_DIRTY_RECORDS:
            self._start_checkpoint()

    def _start_checkpoint(self) -> None:
        """Write the state behind; between two frames everything applied is durable."""
        if self._checkpoint is not None and not self._checkpoint.done():
            return
        self._checkpoint_at = time.monotonic()
        reserve.take(self._folder)  # if a full disk had no room for it before
        if self.state.sequence == self._checkpointed_sequence:
            self._truncate_log()
            if self._snapshot_is_due():
                self._checkpoint = asyncio.create_task(self._snapshot(), name=f"checkpoint-{self.number}")
            return
        state = self.state
        checkpoint = state.checkpoint()

        async def write() -> None:
            try:
                await self._commit(checkpoint)
            except Exception as error:
                if reserve.is_no_room(error, self._folder):
                    if not self.state_waits_for_room:
                        log.warning("container %d: no room for its state: it stays in the log: %s", self.number, error)
                    self.state_waits_for_room = True
                    state.not_written(checkpoint)
                    return
                # marks were cleared with nothing written: only a recovery knows again what to write
                self._pending_failure = UnavailableError(f"the state could not be written: {error}")
                self._wake.set()
                return
            self.state_waits_for_room = False
            state.checkpointed(checkpoint)
            self._checkpointed_sequence = checkpoint.sequence
            self._truncation_due = True
            self._wake.set()
            if self._snapshot_is_due():
                await self._snapshot()

        self._checkpoint = asyncio.create_task(write(), name=f"checkpoint-{self.number}")

    def _snapshot_is_due(self) -> bool:
        if self._stopping:
            return False  # the last one is made when all else has ended
        sequence, is_full = self._checkpointed_sequence, self.log.is_full
        return self.snapshots.due(self.metadata, sequence, self._logged_bytes, hurry=is_full)

    async def _snapshot(self) -> None:
        """As a part of a checkpoint, for no commit may run meanwhile."""
        await self.snapshots.take(self.metadata, self._checkpointed_sequence, self._logged_bytes)

    async def inspect_state(self) -> tuple[str, int]:
        """Walk the state's file as it lies on the disk: what is wrong with it, or "", and its size in bytes.

        No commit runs meanwhile; what it would write stays in the log. If the state is damaged, the container recovers.

        Raises:
            UnavailableError: the container recovers, or the file can't be read.
        """
        while self._checkpoint is not None and not self._checkpoint.done():
            await asyncio.wait([self._checkpoint])
        if self._failure is not None or self._stopping:
            raise UnavailableError(f"container {self.number} recovers, or stops")
        file = self._folder / "state" / statecheck.STATE_FILE
        walk = asyncio.create_task(asyncio.to_thread(statecheck.inspect_file, file, self.number))
        self._checkpoint = walk  # in its place
        try:
            damage, size_bytes = (await asyncio.shield(walk)).damage, file.stat().st_size
        except OSError as error:
            raise UnavailableError(f"the state of container {self.number} can't be read: {error}") from error
        if damage:
            self._state_is_damaged(DamagedStateError(str(file.parent), damage))
        return damage, size_bytes

    async def _commit(self, checkpoint: Checkpoint) -> None:
        loop, metadata = asyncio.get_running_loop(), self.metadata
        entries = [(record.id, overlay) for record, overlay in checkpoint.entries]
        moments = [(record.id, entered, start) for record, entered, start in checkpoint.moments]
        changes = checkpoint.changes, checkpoint.deleted, checkpoint.extents, entries, moments
        if self._may_be_sealed:
            await self._break_seal()
        while True:
            try:
                await loop.run_in_executor(None, metadata.commit, *changes)
            except lmdb.MapFullError:
                metadata.grow()  # here, where everybody else reads, so that nobody reads meanwhile
                log.info("container %d: its state has twice the room now", self.number)
            except lmdb.Error as error:  # nothing was written: once more, with the room kept aside
                if not reserve.is_no_room(error, self._folder) or not reserve.release(self._folder):
                    raise
            else:
                return

    async def _break_seal(self) -> None:
        """Before the first frame since the start, and before the state is written: up to then what was sealed holds."""
        await asyncio.get_running_loop().run_in_executor(None, statecheck.unseal, self._folder / rebuild.STATE)
        self._may_be_sealed = False

    def _truncate_log(self) -> None:
        """Release the log up to what is needed: bytes not in tier 2, and changes not in the checkpoint or its snapshot.

        Damaged bytes stay, for who may get them back, and don't hold up others: else the log would grow until it is
        full, and writers wait for ever.
        Where neither log nor snapshot has room, the log goes first: nothing else could make any.
        Between frames only: one under way may say that bytes are in tier 2, and may yet be lost.
        """
        self._truncation_due = False
        known = self._checkpointed_sequence
        if self.metadata.checked and not (self.log.is_full and self.snapshots.is_full):
            known = min(known, self.snapshots.sequence)
        oldest, damaged = self.state.log_needed()
        before = known + 1
        if oldest is not None:
            before = min(before, oldest)
        self.log.truncate(before, keep=damaged)
