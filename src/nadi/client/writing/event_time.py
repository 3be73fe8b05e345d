"""Report a writer's event time as notes, from which the controller makes watermarks.

A note states that all events written so far have times up to its time, and that later events have none before it. It is
sent once those events are stored, with the current ends of the writer's segments, so readers get them before the
watermark made from the note. One note is in flight at a time, and only the newest waiting note is sent next: noting a
time after each event costs the same as noting one occasionally.

Finding the events between two notes again needs finer positions than segment ends, because much can be written while a
note is in flight. So every 8 to 64 KiB a note is a **step**. It ends the growing batches, so it has an exact position
between the events written before and after the note. Steps are sent along with the next note.
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
from nadi.limits import KIB, NAME_MAX_CHARS, TIME_STEPS_MAX
from nadi.naming import segment_name
from nadi.wire.rpc import controller_pb2 as pb

log = logging.getLogger("nadi.client")

AUTOMATIC_NOTE_S = 5.0  # same as Pravega's
_LEAVING_TIMEOUT_S = 5.0
_LOOKUPS_AT_ONCE = 64  # segments whose ends are looked up concurrently for one note
_STEP_BYTES, _STEP_BYTES_MAX = 8 * KIB, 64 * KIB  # least bytes written between two steps
_STEPS = 64  # number of steps into which a writer's bytes are divided, within the two limits above
_TIME_MIN = -(1 << 63) + 1  # the wire uses the value below it for "no time"
_TIME_MAX = (1 << 63) - 1


def check_writer_id(writer_id: str) -> None:
    if not 0 < len(writer_id) <= NAME_MAX_CHARS:
        raise InvalidArgumentError(f"a writer id must have 1 to {NAME_MAX_CHARS} characters, not {len(writer_id):,}")


def check_time(timestamp_ms: int) -> None:
    if not isinstance(timestamp_ms, int) or not _TIME_MIN <= timestamp_ms <= _TIME_MAX:
        raise InvalidArgumentError(f"a time must be a 64-bit integer, in milliseconds, not {timestamp_ms!r}")


class TimedWriter(Protocol):
    """Writer whose times are noted."""

    def segment_ids(self) -> Sequence[int]:
        """Return the segments that the writer currently writes to."""

    def unacknowledged(self) -> list[Ack]: ...

    def written(self) -> int: ...

    def ends(self) -> list[tuple[int, EventBatch | None, int]]: ...

    def schedule(self, call: Callable[[], None]) -> None:
        """Make the call on the loop's thread; callable from any thread."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` on the loop's thread until the writer is stopped."""


@dataclass(frozen=True, slots=True)
class _TimeStep:
    """A time and the end of the events written before it: per segment an offset, or the batch they end with."""

    timestamp_ms: int
    ends: list[tuple[int, EventBatch | None, int]]

    def position(self) -> dict[int, int] | None:
        """Return the offset per segment once the batches are stored; None if unknown, as after a segment change."""
        position = {segment_id: end if batch is None else batch.end for segment_id, batch, end in self.ends}
        return position if min(position.values(), default=0) >= 0 else None


@dataclass(slots=True, eq=False)
class _TimeNote:
    """A time to report, the Acks to await first, the steps up to it, and the Ack shared by the notes merged into it."""

    timestamp_ms: int = 0
    written: list[Ack] = field(default_factory=list)
    steps: list[_TimeStep] = field(default_factory=list)
    step_bytes: int = _STEP_BYTES
    ack: Ack = field(default_factory=Ack)

    def add_step(self, step: _TimeStep) -> None:
        self.steps.append(step)
        if len(self.steps) > TIME_STEPS_MAX:
            del self.steps[::2]
            self.step_bytes *= 2


class WriterTimes:
    """The noted times of one writer id, on their way to the controller."""

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
        """continues: an earlier writer may have used this id."""
        check_writer_id(writer_id)
        self.writer_id = writer_id
        self.automatic = False
        self._stores = stores
        self._scope, self._stream = scope, stream
        self._writer = writer
        self._lock = threading.Lock()
        self._latest = _TIME_MIN
        self._stepped_at = 0  # bytes written at the last step
        self._looked_up: dict[int, int] = {}  # segment -> its end when the last note was sent
        self._unknown: dict[int, int] = {}  # the segments among these whose stored end was unknown then
        self._unwritten = -1 if continues else 0  # end of the id's events in a segment this writer has not written to
        self._waiting: _TimeNote | None = None
        self._sending: _TimeNote | None = None
        self._runs = False
        self._was_reported = False
        self._logged_trouble = ""
        self._idle = asyncio.Event()
        self._ended: NadiError | None = None

    def note(self, timestamp_ms: int) -> Ack:
        """Report a time once everything written so far is stored; callable from any thread."""
        check_time(timestamp_ms)
        unacknowledged = self._writer.unacknowledged()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if timestamp_ms < self._latest:
                raise InvalidArgumentError(
                    f"the time {timestamp_ms} is before {self._latest}, which this writer noted already: "
                    "event time must not decrease"
                )
            self._latest = timestamp_ms
            is_first = self._waiting is None
            note = self._waiting = self._waiting or _TimeNote()
            written = self._writer.written()
            step_bytes = max(note.step_bytes, min(written // _STEPS, _STEP_BYTES_MAX))
            if is_first or written >= self._stepped_at + step_bytes:
                note.add_step(self._step(timestamp_ms))
            note.timestamp_ms = timestamp_ms
            note.written = [ack for ack in dict.fromkeys((*note.written, *unacknowledged)) if not is_stored(ack)]
            starts, self._runs = not self._runs, True
        if starts:
            self._writer.schedule(lambda: self._writer.spawn(self._send_all()))
        return note.ack

    def note_automatically(self) -> None:
        """Note the wall clock's time every AUTOMATIC_NOTE_S and when closing; call on the loop's thread."""
        self.automatic = True
        self._writer.spawn(self._note_periodically())

    def note_now(self) -> None:
        """Note the wall clock's time, or the latest noted time if later; call on the loop's thread."""
        with suppress(InvalidArgumentError):  # another thread just noted a later time
            self.note(max(time.time_ns() // 1_000_000, self._latest))

    async def close(self) -> None:
        """Wait until the last note is reported, then `leave`."""
        if self.automatic and self._ended is None:
            self.note_now()
        try:
            async with asyncio.timeout(_LEAVING_TIMEOUT_S):
                while self._runs and self._ended is None:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning(
                "writer %s closed before its last time was reported: the controller took over %s s",
                self.writer_id,
                _LEAVING_TIMEOUT_S,
            )
        await self.leave()

    async def leave(self) -> None:
        """Stop noting times, so that the stream's watermark no longer waits for this writer."""
        if self._was_reported:
            self._was_reported = False
            await leave(self._stores.controller, self._scope, self._stream, self.writer_id)

    def stop(self, error: NadiError) -> None:
        """Fail all unreported notes; call on the loop's thread."""
        with self._lock:
            self._ended = self._ended or error
            unreported = [note for note in (self._sending, self._waiting) if note is not None]
            self._sending = self._waiting = None
        self._idle.set()
        for note in unreported:
            note.ack.settle(error)

    # --- the loop's thread ------------------------------------------------------------------

    async def _note_periodically(self) -> None:
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
                await self._report(note)
                self._logged_trouble = ""
            except NadiError as caught:
                error = caught
                self._warn(caught)
            if self._sending is note:
                self._sending = None
                note.ack.settle(error)

    def _warn(self, error: NadiError) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._logged_trouble and not isinstance(error, ClosedError):
            self._logged_trouble = text
            log.warning("writer %s could not report a noted time: %s", self.writer_id, text)

    async def _report(self, note: _TimeNote) -> None:
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
            or [pb.TimestampFromWriter.Step(timestamp=_TIME_MIN)],  # no steps, and the note is not a step
        )
        try:
            reply = await self._stores.controller.call("noteTimestampFromWriter", request, pb.TimestampResponse)
        except NotFoundError:
            raise StreamNotFoundError(self._scope, self._stream) from None
        if reply.result == reply.INVALID_TIME:
            raise InvalidArgumentError(
                f"the time {timestamp_ms} is before one that writer {self.writer_id} noted already: "
                "the event time of a writer id must not decrease, even when the id is reused"
            )
        if reply.result == reply.INVALID_POSITION:
            raise InvalidStreamCutError(
                f"writer {self.writer_id} reported a later stream position before: another writer uses this id"
            )
        if reply.result != reply.SUCCESS:
            raise NadiError(f"the controller could not note the time of writer {self.writer_id}: see its log")
        self._was_reported = True

    def _step(self, timestamp_ms: int) -> _TimeStep:
        """Make a step at the current position. Stored ends are known from this writer's acknowledgements, or from
        segment lookups, because other writers write there too. Lookups are read last, as a later one may replace them
        meanwhile."""
        self._stepped_at, ends = self._writer.written(), []
        unwritten, unknown, looked_up = self._unwritten, self._unknown, self._looked_up
        for segment_id, batch, end in self._writer.ends():
            if end >= 0 or end == unknown.get(segment_id):
                end = max(end or unwritten, looked_up.get(segment_id, -1))
            ends.append((segment_id, batch, end))
        return _TimeStep(timestamp_ms, ends)

    async def _ends(self) -> dict[int, int]:
        """Return the current end of each of the writer's segments, except those truncated away meanwhile."""
        permits = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        ends: dict[int, int] = {}

        async def look_up(segment_id: int) -> None:
            name = segment_name(self._scope, self._stream, segment_id)
            async with permits:
                try:
                    info = await segment_info(self._stores, name)
                except SegmentNotFoundError:
                    return
            ends[segment_id] = info.write_offset

        lookups = [asyncio.create_task(look_up(segment_id)) for segment_id in self._writer.segment_ids()]
        try:
            await asyncio.gather(*lookups)
        finally:
            for task in lookups:
                task.cancel()
        return ends


async def leave(controller: ControllerClient, scope: str, stream: str, writer_id: str) -> None:
    """Report that a writer has stopped noting times. If that fails, watermarks wait for it as for a dead writer."""
    request = pb.RemoveWriterRequest(writer=writer_id, stream=pb.StreamInfo(scope=scope, stream=stream))
    try:
        async with asyncio.timeout(_LEAVING_TIMEOUT_S):
            reply = await controller.call("removeWriter", request, pb.RemoveWriterResponse)
            if reply.result == reply.INTERNAL_ERROR:
                raise NadiError("the controller failed: see its log")
    except (NadiError, TimeoutError) as error:
        reason = error if str(error) else f"the controller took over {_LEAVING_TIMEOUT_S} s"
        log.warning("writer %s of %s/%s could not deregister its event time: %s", writer_id, scope, stream, reason)
