"""Serves the reads of one connection.

Bytes in memory are sent at once, and at a segment's tail as soon as bytes arrive, without a task in either case. While
there is no space for a reply, reads wait as plain requests: nothing is fetched for a reply that can't be sent.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable

import msgspec

from nadi import limits
from nadi.access.quotas import OUT, Brake, Quotas
from nadi.errors import NadiError, NotOwnerError, ProtocolError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.reads import SegmentReader, is_cut_short
from nadi.segmentstore.server.replies import Replies
from nadi.segmentstore.server.service import TokenCheck
from nadi.segmentstore.state.records import SegmentRecord
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

_LARGE_READ_BYTES = 64 * limits.KIB


class _Wait(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A read waiting at the tail; called when its segment has changed. It has no strong references that lead back to
    it, so the garbage collector needn't track it: a hundred thousand would slow down every full collection, which stops
    everything else."""

    reads: weakref.ref[Reads]
    container: weakref.ref[Container]
    record: weakref.ref[SegmentRecord]
    command: wire.ReadSegment

    def __call__(self) -> None:
        reads = self.reads()
        if reads is not None:
            reads.wake(self)


class Reads:
    """The reads of one connection: `start` a read; `close` ends those in progress."""

    def __init__(
        self,
        replies: Replies,
        container_of: Callable[[str], Container],
        reader: SegmentReader,
        access: TokenCheck,
        quotas: Quotas,
        scheduler: FairScheduler,
    ) -> None:
        self._replies = replies
        self._container_of = container_of
        self._reader = reader
        self._access = access
        self._scheduler = scheduler
        self._quotas, self._brake = quotas, Brake(quotas, self.resume)
        self._waits: dict[_Wait, None] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}  # with the bytes reserved for each reply
        self._ready: deque[tuple[wire.ReadSegment, Container]] = deque()  # to be answered when there is space
        self._is_due = False
        self._reply_bytes = limits.READ_REPLY_FIRST_BYTES

    def start(self, command: wire.ReadSegment) -> None:
        """Answer a read, now or later; raise ProtocolError if too many are pending."""
        if len(self._waits) + len(self._tasks) + len(self._ready) >= limits.CONNECTION_READS_WAITING:
            raise ProtocolError(f"more than {limits.CONNECTION_READS_WAITING} reads waiting on one connection")
        segment = command.segment
        try:
            self._access.check(command)
            container = self._container_of(segment)
        except NadiError as error:
            self._replies.fail(error, command.request_id, segment, command.offset)
            return
        container.evict_idle()
        self._ready.append((command, container))
        self.resume()

    def close(self) -> None:
        self._brake.close()
        self._ready.clear()
        waits, self._waits = self._waits, {}
        for wait in waits:
            self._release(wait)
        for task in self._tasks:
            task.cancel()

    def resume(self) -> None:
        """Answer ready reads, as far as there is space for replies; a few at once, if this turn of the loop allows."""
        if self._is_due or not self._ready or self._brake.is_on:
            return
        if self._scheduler.is_exhausted:
            self._is_due = True
            self._scheduler.add(self._answer_later)
        else:
            self._scheduler.count(self._answer_some())

    def _answer_some(self) -> int:
        ready, replies = self._ready, self._replies
        done = 0
        while ready and done < limits.READS_AT_ONCE and not self._brake.is_on:
            capacity = replies.capacity_bytes
            if not capacity:
                return done
            command, container = ready.popleft()
            try:
                length = self._reply_bytes if self._reply_bytes < capacity else capacity
                done += 1 + self._answer(container, command, length) // limits.READ_WEIGHT_BYTES
            except Exception as error:  # the caller may be a container, which serves others too
                log.error("a read of %s failed", command.segment, exc_info=error, extra={"segment": command.segment})
                replies.close()
        if done >= limits.READS_AT_ONCE and not self._is_due:  # also for reads that haven't arrived yet
            self._is_due = True
            self._scheduler.add(self._answer_later)
        return done

    def grow_replies(self) -> None:
        """Allow larger replies, as the peer received the last one: little memory is reserved for a peer that doesn't
        read."""
        self._reply_bytes = min(2 * self._reply_bytes, limits.READ_REPLY_MAX_BYTES)

    def _answer_later(self) -> int:
        self._is_due = False
        return self._answer_some()

    def _answer(self, container: Container, command: wire.ReadSegment, length: int) -> int:
        """Answer with at most `length` bytes from memory; else wait, or fetch them."""
        segment, offset = command.segment, command.offset
        counts = self._reader.counts
        began = container.monotonic() if counts.on_read is not None else 0.0
        if command.suggested_length < length:
            length = command.suggested_length
        try:
            record, data = self._reader.at_hand(container, segment, offset, length, self)
            if data is not None and not is_cut_short(record, offset, data, length):
                self._reply(command, record, data)
                size = len(data)
                counts.reads += 1
                counts.read_bytes += size
                if counts.on_read is not None:
                    counts.on_read(command.request_id, segment, offset, size, began, None)
                return size
            if offset >= record.durable_length:
                self._wait(container, record, command)
            else:
                reserved = min(max(length, 0), limits.READ_REPLY_MAX_BYTES)
                self._replies.held.take(reserved)
                task = asyncio.create_task(self._fetch(container, command, length))
                self._tasks[task] = reserved
                task.add_done_callback(self._fetched)  # it may be cancelled before it starts
        except NadiError as error:
            self._replies.fail(error, command.request_id, segment, offset)
        return 0

    def _wait(self, container: Container, record: SegmentRecord, command: wire.ReadSegment) -> None:
        wait = _Wait(weakref.ref(self), weakref.ref(container), weakref.ref(record), command)
        container.state.record_cache.hold(record)
        record.waiters.add(wait)
        self._waits[wait] = None

    def wake(self, wait: _Wait) -> None:
        if wait in self._waits:
            del self._waits[wait]
            self._release(wait)
            command = wait.command
            try:
                self._ready.append((command, self._container_of(command.segment)))
            except NotOwnerError as error:
                self._replies.fail(error, command.request_id, command.segment, command.offset)
            self.resume()

    def _release(self, wait: _Wait) -> None:
        """Stop waiting. A missing record was deleted, or its container was released: then there is nothing to
        release."""
        container, record = wait.container(), wait.record()
        if container is not None and record is not None:
            record.waiters.discard(wait)
            container.state.record_cache.release(record)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._replies.held.give(self._tasks.pop(task))

    async def _fetch(self, container: Container, command: wire.ReadSegment, length: int) -> None:
        segment, offset, began = command.segment, command.offset, container.monotonic()
        try:
            try:
                record, data = await self._reader.read(container, segment, offset, length, self)
                fetched = container.monotonic()
                while not self._replies.writable.is_set():  # another reply was sent meanwhile; this one is accounted
                    await self._replies.writable.wait()
            finally:
                task = asyncio.current_task()
                assert task is not None
                self._fetched(task)
            if data or record.durable_sealed:
                self._reply(command, record, data)
                counts = self._reader.counts
                counts.fetched_reads += 1
                counts.fetched_bytes += len(data)
                if counts.on_read is not None:
                    counts.on_read(command.request_id, segment, offset, len(data), began, fetched)
            else:  # the segment was deleted and recreated, and is shorter now
                self._ready.append((command, container))
            self.resume()
        except NadiError as error:
            self._replies.fail(error, command.request_id, segment, offset)
        except Exception as error:
            log.error("a read of %s failed", segment, exc_info=error, extra={"segment": segment})
            self._replies.close()

    def _reply(self, command: wire.ReadSegment, record: SegmentRecord, data: Buffer) -> None:
        if len(data) > _LARGE_READ_BYTES and 2 * len(data) < len(getattr(data, "obj", data)):
            data = bytes(data)  # a copy, so that the much larger block can be freed
        self._replies.send(reply_to(command, record, data))
        if self._quotas.is_limiting:
            self.count(command.segment.partition("/")[0], self._access.user_of(command), len(data))
        if len(data) > _LARGE_READ_BYTES:
            self._replies.flush()  # now, so that the next read sees the available space
            if self._replies.writable.is_set():
                self.grow_replies()

    def count(self, scope: str, user: str | None, size_bytes: int) -> None:
        """Count a request against its quotas; if one is exceeded, the connection's next reads wait for a while."""
        wait_s = self._quotas.take(OUT, scope, user, size_bytes)
        if wait_s > 0:
            self._brake.hold(wait_s)


def reply_to(command: wire.ReadSegment, record: SegmentRecord, data: Buffer) -> wire.Command:
    segment, offset, request_id = command.segment, command.offset, command.request_id
    if not data and offset > record.durable_length:
        return wire.ErrorMessage(request_id, segment, f"offset {offset} is beyond the sealed segment's end", 0)
    end = offset + len(data)
    ended = end == record.durable_length and record.durable_sealed
    at_tail = end == record.durable_length and not ended
    return wire.SegmentRead(segment, offset, at_tail, ended, data, request_id)
