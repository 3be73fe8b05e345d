"""What a writer reports of event time: notes, from which the controller makes watermarks.

A note says: what I have written so far has times up to this one, and what I shall write has none before it. It is
sent once all that was written before it is stored, with the current ends of the writer's segments, so readers get all
of that before the watermark made from the note. One note is in flight at a time, and of those that wait for it
only the newest is sent: noting a time after each event costs no more than noting one now and then.

Where what lies between two notes should be found again, the ends of the segments are too coarse: while a note is in
flight, much can be written. So every 8 to 64 KiB a note is a **step**. It ends the growing batches, so it has an exact
position: all events from before the note lie before it, all from after the note behind it. Steps are sent along with
the next note.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from nadi.client.control.controller import ControllerClient
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.writing.ack import Ack, is_stored
from nadi.client.writing.blocks import EventBatch
from nadi.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from nadi.limits import KIB, NAME_MAX_CHARS, NOTED_STEPS_MAX
from nadi.naming import segment_name
from nadi.wire.rpc import controller_pb2 as pb

log = logging.getLogger("nadi.client")

AUTOMATIC_NOTE_S = 5.0  # as Pravega's
_LEAVING_TIMEOUT_S = 5.0
_ASKED_AT_ONCE = 64  # segments whose ends are looked up for one note
_STEP_BYTES, _MOST_STEP_BYTES = 8 * KIB, 64 * KIB  # written from one step to the next, at least
_STEPS = 64  # of a writer that has written little; they grow with what it has written
_TIME_MIN = -(1 << 63) + 1  # one less means on the wire that there is no time
_TIME_MAX = (1 << 63) - 1


def check_writer_id(writer_id: str) -> None:
    if not 0 < len(writer_id) <= NAME_MAX_CHARS:
        raise InvalidArgumentError(f"a writer id has 1 to {NAME_MAX_CHARS} characters, not {len(writer_id):,}")


def check_time(timestamp_ms: int) -> None:
    if not isinstance(timestamp_ms, int) or not _TIME_MIN <= timestamp_ms <= _TIME_MAX:
        raise InvalidArgumentError(f"a time is an integer of 64 bits, in milliseconds, not {timestamp_ms!r}")


class TimedWriter(Protocol):
    """Whose times are noted."""

    def segment_ids(self) -> Sequence[int]:
        """The segments that it writes to now."""

    def unacknowledged(self) -> list[Ack]: ...

    def written(self) -> int: ...

    def ends(self) -> list[tuple[int, EventBatch | None, int]]: ...

    def schedule(self, call: Callable[[], None]) -> None:
        """Make the call on the loop's thread, from any thread."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it there until the writer is stopped."""


@dataclass(frozen=True, slots=True)
class _TimeStep:
    """A time, and where all that was written before it ends: in each segment at `ends`, or behind the batch there."""

    timestamp_ms: int
    ends: list[tuple[int, EventBatch | None, int]]

    def position(self) -> dict[int, int] | None:
        """By segment, once the batches are stored; None where it can't be told, as after a segment was replaced."""
        position = {segment_id: end if batch is None else batch.end for segment_id, batch, end in self.ends}
        return position if min(position.values(), default=0) >= 0 else None


@dataclass(slots=True, eq=False)
class _TimeNote:
    """A time to report, what must be stored first, the steps up to it, and the Ack of all notes that it stands for."""

    timestamp_ms: int = 0
    written: list[Ack] = field(default_factory=list)
    steps: list[_TimeStep] = field(default_factory=list)
    step_bytes: int = _STEP_BYTES
    ack: Ack = field(default_factory=Ack)

    def add_step(self, step: _TimeStep) -> None:
        self.steps.append(step)
        if len(self.steps) > NOTED_STEPS_MAX:
            del self.steps[::2]
            self.step_bytes *= 2


class NotedTimes:
    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        stream: str,
        writer_id: str,
        writer: TimedWriter,
        *,
        continues: bool = False,
    ) -> None:
        """continues: an earlier writer may have had this id."""
        check_writer_id(writer_id)
        self.writer_id = writer_id
        self.automatic = False
        self._stores = stores
        self._scope, self._stream = scope, stream
        self._writer = writer
        self._lock = threading.Lock()
        self._latest = _TIME_MIN
        self._stepped_at = 0  # how much was written by then
        self._looked_up: dict[int, int] = {}  # by segment: where it ended when the last note was sent
        self._unknown: dict[int, int] = {}  # of these: those with a stored end that was unknown then
        self._unwritten = -1 if continues else 0  # where the id's events end in a segment that this writer has none in
        self._waiting: _TimeNote | None = None
        self._sending: _TimeNote | None = None
        self._runs = False
        self._was_told = False
        self._told_trouble = ""
        self._idle = asyncio.Event()
        self._ended: NadiError | None = None

    def note(self, timestamp_ms: int) -> Ack:
        """Report a time once all that was written is stored; from any thread."""
        check_time(timestamp_ms)
        unacknowledged = self._writer.unacknowledged()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if timestamp_ms < self._latest:
                raise InvalidArgumentError(
                    f"this writer noted the time {self._latest} already: event time only moves on"
                )
            self._latest = timestamp_ms
            is_first = self._waiting is None
            note = self._waiting = self._waiting or _TimeNote()
            written = self._writer.written()
            step_bytes = max(note.step_bytes, min(written // _STEPS, _MOST_STEP_BYTES))
            if is_first or written >= self._stepped_at + step_bytes:
                note.add_step(self._step(timestamp_ms))
            note.timestamp_ms = timestamp_ms
            note.written = [ack for ack in dict.fromkeys((*note.written, *unacknowledged)) if not is_stored(ack)]
            starts, self._runs = not self._runs, True
        if starts:
            self._writer.schedule(lambda: self._writer.spawn(self._send_all()))
        return note.ack

    def note_automatically(self) -> None:
        """Note the wall clock's time every AUTOMATIC_NOTE_S from now on, and at the end; on the loop's thread."""
        self.automatic = True
        self._writer.spawn(self._note_for_ever())

    def note_now(self) -> None:
        """Note the wall clock's time, or the latest noted again if that is later; on the loop's thread."""
        with suppress(InvalidArgumentError):  # another thread has just noted a later time
            self.note(max(time.time_ns() // 1_000_000, self._latest))

    async def close(self) -> None:
        """Wait until the last note is reported, then leave."""
        if self.automatic and self._ended is None:
            self.note_now()
        try:
            async with asyncio.timeout(_LEAVING_TIMEOUT_S):
                while self._runs and self._ended is None:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("the last time that writer %s noted is not told: it took too long", self.writer_id)
        await self.leave()

    async def leave(self) -> None:
        """Note no more times, and no longer hold back the stream's watermark."""
        if self._was_told:
            self._was_told = False
            await leave(self._stores.controller, self._scope, self._stream, self.writer_id)

    def stop(self, error: NadiError) -> None:
        """Fail whatever is not reported yet; on the loop's thread."""
        with self._lock:
            self._ended = self._ended or error
            left = [note for note in (self._sending, self._waiting) if note is not None]
            self._sending = self._waiting = None
        self._idle.set()
        for note in left:
            note.ack.settle(error)

    # --- the loop's thread ------------------------------------------------------------------

    async def _note_for_ever(self) -> None:
        while True:
            await asyncio.sleep(AUTOMATIC_NOTE_S)
            self.note_now()

    async def _send_all(self) -> None:
        while True:
            with self._lock:
                note = self._sending = self._waiting
                self._waiting = None
                if note is None:
                    self._runs = False
                    self._idle.set()
                    return
            error: NadiError | None = None
            try:
                for ack in note.written:
                    await ack
                await self._tell(note)
                self._told_trouble = ""
            except NadiError as found:
                error = found
                self._warn(found)
            if self._sending is note:
                self._sending = None
                note.ack.settle(error)

    def _warn(self, error: NadiError) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._told_trouble and not isinstance(error, ClosedError):
            self._told_trouble = text
            log.warning("a time that writer %s noted is not told: %s", self.writer_id, text)

    async def _tell(self, note: _TimeNote) -> None:
        timestamp_ms, stream = note.timestamp_ms, pb.StreamInfo(scope=self._scope, stream=self._stream)
        unknown = {segment_id: end for segment_id, _, end in self._writer.ends() if end < 0}
        self._looked_up, self._unknown, self._unwritten = await self._ends(), unknown, 0
        request = pb.TimestampFromWriter(
            writer=self.writer_id,
            timestamp=timestamp_ms,
            position=pb.StreamCut(streamInfo=stream, cut=self._looked_up),
            steps=[
                pb.TimestampFromWriter.Step(timestamp=step.timestamp_ms, cut=position)
                for step in note.steps
                if (position := step.position()) is not None
            ]
            or [pb.TimestampFromWriter.Step(timestamp=_TIME_MIN)],  # none, and the note isn't one either
        )
        try:
            reply = await self._stores.controller.call("noteTimestampFromWriter", request, pb.TimestampResponse)
        except NotFoundError:
            raise StreamNotFoundError(self._scope, self._stream) from None
        if reply.result == reply.INVALID_TIME:
            raise InvalidArgumentError(
                f"writer {self.writer_id} has noted a later time than {timestamp_ms} before: "
                "event time of a writer id only moves on, also when it is used again"
            )
        if reply.result == reply.INVALID_POSITION:
            raise InvalidStreamCutError(f"writer {self.writer_id} was further in the stream: another one has its id")
        if reply.result != reply.SUCCESS:
            raise NadiError(f"the controller could not note the time of writer {self.writer_id}: see its log")
        self._was_told = True

    def _step(self, timestamp_ms: int) -> _TimeStep:
        """What is stored is known from the acknowledgements of this writer, or from a look at the segments, which other
        writers write to as well. The look is read last, as it may be replaced meanwhile by a later one."""
        self._stepped_at, ends = self._writer.written(), []
        unwritten, unknown, looked_up = self._unwritten, self._unknown, self._looked_up
        for segment_id, batch, end in self._writer.ends():
            if end >= 0 or end == unknown.get(segment_id):
                end = max(end or unwritten, looked_up.get(segment_id, -1))
            ends.append((segment_id, batch, end))
        return _TimeStep(timestamp_ms, ends)

    async def _ends(self) -> dict[int, int]:
        """Where the writer's segments end now, without those that were truncated away meanwhile."""
        turns = asyncio.Semaphore(_ASKED_AT_ONCE)
        ends: dict[int, int] = {}

        async def look(segment_id: int) -> None:
            name = segment_name(self._scope, self._stream, segment_id)
            async with turns:
                try:
                    info = await segment_info(self._stores, name)
                except SegmentNotFoundError:
                    return
            ends[segment_id] = info.write_offset

        looks = [asyncio.create_task(look(segment_id)) for segment_id in self._writer.segment_ids()]
        try:
            await asyncio.gather(*looks)
        finally:
            for task in looks:
                task.cancel()
        return ends


async def leave(controller: ControllerClient, scope: str, stream: str, writer_id: str) -> None:
    """Report that a writer notes no more times. If that fails, watermarks wait for it as long as for a dead one."""
    request = pb.RemoveWriterRequest(writer=writer_id, stream=pb.StreamInfo(scope=scope, stream=stream))
    try:
        async with asyncio.timeout(_LEAVING_TIMEOUT_S):
            reply = await controller.call("removeWriter", request, pb.RemoveWriterResponse)
            if reply.result == reply.INTERNAL_ERROR:
                raise NadiError("the controller failed: see its log")
    except (NadiError, TimeoutError) as error:
        log.warning("writer %s of %s/%s could not leave: %s", writer_id, scope, stream, error or "it took too long")
