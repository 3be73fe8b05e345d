"""The reads that one connection has asked for.

What memory holds is answered at once, and at a segment's tail as soon as something comes, without a task for either;
a task is for what must be fetched. While the peer doesn't take what it asked for, or there is no room for a reply,
reads wait as the requests that they are: nothing is put together or fetched for a reply that can't be sent.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from nadi.access.budget import Account
from nadi.errors import NadiError, ProtocolError
from nadi.limits import (
    CONNECTION_READS_WAITING,
    KIB,
    READ_REPLY_FIRST_BYTES,
    READ_REPLY_MAX_BYTES,
    READ_WEIGHT_BYTES,
    READS_AT_ONCE,
)
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.doors.access import TokenCheck
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.rota import Rota
from nadi.segmentstore.state.records import SegmentRecord
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

_LARGE_READ_BYTES = 64 * KIB


class Peer(Protocol):
    """The connection, as its reads see it."""

    writable: asyncio.Event

    @property
    def room_bytes(self) -> int:
        """How large a reply may be; where it is 0, `go_on` is called when that changes."""

    @property
    def sending(self) -> Account: ...

    def send(self, command: wire.Command) -> None: ...

    def flush(self) -> None: ...

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None: ...

    def close(self) -> None: ...


class _Wait(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A read at the tail; called when its segment has changed.

    A hundred thousand of them are nothing for the collector of garbage to walk: each would cost every full collection
    time in which all else stands still. So they hold nothing strongly that could ever lead back to them.
    """

    reads: weakref.ref[ConnectionReads]
    container: weakref.ref[Container]
    record: weakref.ref[SegmentRecord]
    command: wire.ReadSegment

    def __call__(self) -> None:
        reads = self.reads()
        if reads is not None:
            reads.wake(self)


class ConnectionReads:
    """`start` a read; `close` ends those under way."""

    def __init__(
        self,
        peer: Peer,
        container_of: Callable[[str], Container],
        reader: SegmentReader,
        access: TokenCheck,
        rota: Rota,
    ) -> None:
        self._peer = peer
        self._container_of = container_of
        self._reader = reader
        self._access = access
        self._rota = rota
        self._waits: set[_Wait] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: deque[tuple[wire.ReadSegment, Container]] = deque()  # to be answered when there is room
        self._is_due = False
        self._reply_bytes = READ_REPLY_FIRST_BYTES

    def start(self, command: wire.ReadSegment) -> None:
        """Answer it, now or later; ProtocolError if too many are under way."""
        if len(self._waits) + len(self._tasks) + len(self._ready) >= CONNECTION_READS_WAITING:
            raise ProtocolError(f"more than {CONNECTION_READS_WAITING} reads wait on one connection")
        segment = command.segment
        try:
            self._access.check(command)
        except NadiError as error:
            self._peer.fail(error, command.request_id, segment, command.offset)
            return
        container = self._container_of(segment)
        container.make_room()
        self._ready.append((command, container))
        self.go_on()

    def close(self) -> None:
        """Nobody waits for them any more."""
        self._ready.clear()
        waits, self._waits = self._waits, set()
        for wait in waits:
            self._let_go(wait)
        for task in self._tasks:
            task.cancel()

    def go_on(self) -> None:
        """Answer what is ready, as far as there is room for replies; a few at once, where others leave time for it."""
        if self._is_due or not self._ready:
            return
        if self._rota.is_spent:
            self._is_due = True
            self._rota.add(self._again)
        else:
            self._rota.count(self._answer_some())

    def _answer_some(self) -> int:
        """What it did, counted in commands."""
        ready, peer = self._ready, self._peer
        done = 0
        while ready and done < READS_AT_ONCE:
            room = peer.room_bytes
            if not room:
                return done
            command, container = ready.popleft()
            try:
                length = self._reply_bytes if self._reply_bytes < room else room
                done += 1 + self._answer(container, command, length) // READ_WEIGHT_BYTES
            except Exception as error:  # a container may have called, which has others to serve
                log.error("a read of %s failed", command.segment, exc_info=error)
                peer.close()
        if done >= READS_AT_ONCE and not self._is_due:  # also for reads that are not here yet
            self._is_due = True
            self._rota.add(self._again)
        return done

    def taken(self) -> None:
        """The peer took what was sent, so the next reply may be larger: who takes nothing has little held for it."""
        self._reply_bytes = min(2 * self._reply_bytes, READ_REPLY_MAX_BYTES)

    def _again(self) -> int:
        self._is_due = False
        return self._answer_some()

    def _answer(self, container: Container, command: wire.ReadSegment, length: int) -> int:
        """With what is in memory, so many bytes at most; else wait, or fetch it."""
        segment, offset = command.segment, command.offset
        if command.suggested_length < length:
            length = command.suggested_length
        try:
            record, data = self._reader.at_hand(container, segment, offset, length, self)
            if data is not None:
                self._reply(command, record, data)
                return len(data)
            if offset >= record.durable_length:
                self._wait(container, record, command)
            else:
                held = min(max(length, 0), READ_REPLY_MAX_BYTES)
                self._peer.sending.take(held)
                task = asyncio.create_task(self._fetch(container, command, length, held))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except NadiError as error:
            self._peer.fail(error, command.request_id, segment, offset)
        return 0

    def _wait(self, container: Container, record: SegmentRecord, command: wire.ReadSegment) -> None:
        wait = _Wait(weakref.ref(self), weakref.ref(container), weakref.ref(record), command)
        container.state.residents.hold(record)
        record.waiters.add(wait)
        self._waits.add(wait)

    def wake(self, wait: _Wait) -> None:
        """For a read that waited: its segment has changed."""
        if wait in self._waits:
            self._waits.discard(wait)
            container = self._let_go(wait)
            if container is not None:
                self._ready.append((wait.command, container))
                self.go_on()

    def _let_go(self, wait: _Wait) -> Container | None:
        """Wait no longer; None if the store is gone. A record that is, was deleted: nobody has to let go of it."""
        container, record = wait.container(), wait.record()
        if container is not None and record is not None:
            record.waiters.discard(wait)
            container.state.residents.release(record)
        return container

    async def _fetch(self, container: Container, command: wire.ReadSegment, length: int, held: int) -> None:
        segment, offset = command.segment, command.offset
        try:
            try:
                record, data = await self._reader.read(container, segment, offset, length, self)
                while not self._peer.writable.is_set():  # another reply went out meanwhile; this one is counted
                    await self._peer.writable.wait()
            finally:
                self._peer.sending.give(held)
            self._reply(command, record, data)
            self.go_on()
        except NadiError as error:
            self._peer.fail(error, command.request_id, segment, offset)
        except Exception as error:
            log.error("a read of %s failed", segment, exc_info=error)
            self._peer.close()

    def _reply(self, command: wire.ReadSegment, record: SegmentRecord, data: Buffer) -> None:
        if len(data) > _LARGE_READ_BYTES and 2 * len(data) < len(getattr(data, "obj", data)):
            data = bytes(data)  # the block that it is a small part of is not to stay for its sake
        self._peer.send(reply_to(command, record, data))
        if len(data) > _LARGE_READ_BYTES:
            self._peer.flush()  # now, so that the next read knows whether there is room for it
            if self._peer.writable.is_set():
                self.taken()


def reply_to(command: wire.ReadSegment, record: SegmentRecord, data: Buffer) -> wire.Command:
    """What a read is answered that found this."""
    segment, offset, request_id = command.segment, command.offset, command.request_id
    if not data and offset > record.durable_length:
        return wire.ErrorMessage(request_id, segment, f"offset {offset} is past the sealed segment's end", 0)
    end = offset + len(data)
    ended = end == record.durable_length and record.durable_sealed
    at_tail = end == record.durable_length and not ended
    return wire.SegmentRead(segment, offset, at_tail, ended, data, request_id)
