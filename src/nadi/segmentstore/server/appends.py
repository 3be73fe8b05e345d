"""Handles appends on a connection: each writer's session, and its appends in containers' queues.

Appends received together are one request to the container. They are checked against the state in the container's turn,
when everything before them is settled, and acknowledged in order. Once an append of a session has failed, none of its
later appends is stored.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
from cachetools import FIFOCache

from nadi import errors, limits
from nadi.access.quotas import IN, Brake, Quotas
from nadi.naming import TRANSIENT_DELIMITER
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.container.request_queue import again
from nadi.segmentstore.counters import Arrival
from nadi.segmentstore.server.replies import Replies
from nadi.segmentstore.server.segments import find
from nadi.segmentstore.server.service import TokenCheck
from nadi.segmentstore.state.records import SegmentKind
from nadi.wire import commands as wire
from nadi.wire.append import append_parts, event_parts
from nadi.wire.fields import NO_VERSION, Buffer
from nadi.wire.load_reports import positions_of


class Appender(Protocol):
    """The source of appends, as seen by its appends."""

    def settled(self, count: int) -> None:
        """Handle that `count` of its appends in a container's queue have been answered."""

    def send(self, command: wire.Command) -> None: ...

    def send_all(self, commands: list[wire.DataAppended]) -> None: ...

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None: ...

    def end(self) -> None:
        """Close the connection."""


class WriterSession:
    """One writer on one segment on this connection."""

    __slots__ = (
        "acknowledged",
        "checked_at",
        "container",
        "ends_at",
        "error",
        "is_used",
        "parent",
        "request_id",
        "scope",
        "segment",
        "stored",
        "user",
    )  # fmt: skip

    def __init__(
        self, segment: str, container: Container, ends_at: float, request_id: int, user: str | None = None
    ) -> None:
        self.segment = segment
        self.scope, self.user = segment.partition("/")[0], user  # whose quotas pay
        self.request_id = request_id  # id of its SetupAppend
        parent, transient, _ = segment.partition(TRANSIENT_DELIMITER)
        self.parent = parent if transient else None  # the segment it will be merged into
        self.ends_at = ends_at  # expiry of its token, by the monotonic clock
        self.container = container
        self.stored = NO_VERSION  # the writer's event number once everything before is written
        self.acknowledged = NO_VERSION
        self.error: Exception | None = None  # the error that ended the session
        self.is_used = False  # since the last check
        self.checked_at = asyncio.get_running_loop().time()

    def is_idle(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self.is_used:
            self.is_used, self.checked_at = False, now
        return now - self.checked_at > limits.APPEND_SESSION_IDLE_S

    def is_gone(self) -> bool:
        """Return whether its segment no longer exists: a transaction's is merged, for example."""
        container = self.container
        return container.failure is None and not container.state.record_cache.exists(self.segment)


class WriterConflictError(errors.NadiError):
    """Another connection writes with the same writer id."""


class ConditionError(errors.NadiError):
    """A conditional append's expected offset, or previous append, doesn't match."""


@dataclass(slots=True, eq=False)
class Setup:
    """A SetupAppend in the container's turn, when every earlier append of the writer is settled."""

    peer: Appender
    session: WriterSession
    command: wire.SetupAppend
    size_bytes: int = 64
    count: int = 1

    def prepare(self, frame: FrameBuilder) -> int:
        state = self.session.container.state
        value = state.attribute(find(state, self.session.segment, SegmentKind.STREAM), self.command.writer_id)
        self.session.stored = self.session.acknowledged = NO_VERSION if value is None else value
        return self.session.stored

    def done(self, result: int) -> None:
        command = self.command
        self.peer.settled(1)
        self.peer.send(wire.AppendSetup(command.request_id, command.segment, command.writer_id, result))

    def failed(self, error: Exception) -> None:
        self.peer.settled(1)
        self.session.error = error
        self.peer.fail(error, self.command.request_id, self.command.segment)


class WriterAppend(msgspec.Struct, eq=False, gc=False):
    """One append, atomic with its writer's event number. parts: its `size_bytes` bytes. is_expired: its session's token
    has expired."""

    session: WriterSession
    writer: bytes
    parts: list[Buffer]
    size_bytes: int
    events: int
    last: int
    request_id: int
    expected_offset: int | None = None
    after: int = NO_VERSION
    is_expired: bool = False


class Appends:
    """The appends of a peer that arrived together, in order: one request, as there may be an append for each event."""

    __slots__ = ("appends", "at", "peer")

    def __init__(self, peer: Appender, at: float) -> None:
        """at: the time of arrival, by the container's clock."""
        self.peer, self.at = peer, at
        self.appends: list[WriterAppend] = []

    @property
    def count(self) -> int:
        return len(self.appends)

    @property
    def size_bytes(self) -> int:
        return sum([append.size_bytes for append in self.appends])

    def prepare(self, frame: FrameBuilder) -> list[int | errors.NadiError]:
        """Return, for each append, the segment's length after it, or the error."""
        outcomes: list[int | errors.NadiError] = []
        refused = 0
        for append in self.appends:
            try:
                outcomes.append(_store(append, frame))
            except errors.DamagedStateError:
                raise
            except errors.NadiError as error:
                # without its traceback, which would keep all appended data alive
                outcomes.append(error.with_traceback(None))
                refused += 1
                if not isinstance(error, ConditionError):
                    append.session.error = error  # at once: no later append of this writer may be stored
        if refused:
            self.appends[0].session.container.counts.refused_appends += refused
        frame.arrivals.append(Arrival(self.at, len(outcomes) - refused, self))
        return outcomes

    def done(self, result: list[int | errors.NadiError]) -> None:
        peer = self.peer
        peer.settled(len(self.appends))
        acknowledged: list[wire.DataAppended] = []
        for append, outcome in zip(self.appends, result, strict=True):
            if isinstance(outcome, int):
                session, last = append.session, append.last
                number, request_id = session.acknowledged, append.request_id
                acknowledged.append(wire.DataAppended(append.writer, last, number, request_id, outcome))
                session.acknowledged = last
            else:
                peer.send_all(acknowledged)
                acknowledged = []
                self._refuse(append, outcome)
        peer.send_all(acknowledged)

    def failed(self, error: Exception) -> None:
        self.peer.settled(len(self.appends))
        for append in self.appends:
            self._refuse(append, error)

    def _refuse(self, append: WriterAppend, error: Exception) -> None:
        peer = self.peer
        if isinstance(error, ConditionError):
            peer.send(wire.ConditionalCheckFailed(append.writer, append.last, append.request_id))
        elif isinstance(error, WriterConflictError):
            peer.send(wire.InvalidEventNumber(append.writer, append.request_id, "", append.last))
            peer.end()
        else:
            # also if the container failed after `prepare`; a copy, as an error accumulates frames when raised
            append.session.error = again(error) if type(error) is errors.UnavailableError else error
            offset = append.last if isinstance(error, errors.StreamSealedError) else -1
            peer.fail(error, append.request_id, append.session.segment, offset)
            if append.is_expired:
                peer.end()  # the Rust client ignores the reply alone


def _store(append: WriterAppend, frame: FrameBuilder) -> int:
    """Check an append in its turn and add it to the frame; return the segment's length after it."""
    session, writer = append.session, append.writer
    if session.error is not None:
        raise session.error.with_traceback(None)  # else it would keep every refused append alive
    if append.is_expired:
        raise errors.TokenExpiredError("the session's delegation token has expired: get a new one")
    if frame.log_is_full:
        raise errors.StorageFullError("tier 2 accepts no data and the log is full: free space, or repair tier 2")
    state = frame.state
    record = find(state, session.segment, SegmentKind.STREAM)
    if record.sealed:
        raise errors.StreamSealedError(session.segment)
    if session.parent is not None and find(state, session.parent).sealed:
        # reported now: the Rust client expects it here, and would retry a refused merge forever
        raise errors.StreamSealedError(session.parent)
    stored = state.attribute(record, writer)
    if (NO_VERSION if stored is None else stored) != session.stored or append.last < session.stored:
        raise WriterConflictError(f"another connection writes with the id {writer.hex()}")
    if append.after not in (NO_VERSION, session.stored):
        raise ConditionError(f"the previous append {append.after} was not stored")
    if append.expected_offset is not None and append.expected_offset != record.length:
        raise ConditionError(f"the segment has {record.length} bytes, not {append.expected_offset}")
    length = frame.append(record, append.parts, append.size_bytes, append.events, writer, append.last)
    session.stored = append.last
    return length


class Writers:
    """The writers of one connection: their sessions, and their appends, collected by container. `hand_over` queues the
    appends received together, before any other command of the connection that may depend on them. No append is awaited.
    resume: called when more appends may be accepted. quotas: a writer that exceeds one makes its connection wait.
    sessions: by writer. waiting: the number of appends in containers' queues."""

    def __init__(
        self,
        replies: Replies,
        container_of: Callable[[str], Container],
        access: TokenCheck,
        quotas: Quotas,
        resume: Callable[[], None],
    ) -> None:
        self._replies, self._resume = replies, resume
        self.send, self.fail, self.end = replies.send, replies.fail, replies.close  # as an `Appender`
        self._container_of = container_of
        self._access = access
        self.sessions: OrderedDict[bytes, WriterSession] = OrderedDict()
        # by writer: the error for further appends, whose segment is elsewhere, or gone
        self._ended: FIFOCache[bytes, errors.NotOwnerError | errors.SegmentNotFoundError]
        self._ended = FIFOCache(limits.CONNECTION_SESSIONS)
        self.block: wire.AppendBlock | None = None  # set while its AppendBlockEnd is expected
        self._collected: dict[Container, Appends] = {}
        self._throttle: asyncio.Task[None] | None = None
        self._quotas, self._brake = quotas, Brake(quotas, resume)
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether no appends are accepted for now; `resume` is called when that changes."""
        return self._throttle is not None or self._brake.is_on or self.waiting >= limits.CONNECTION_APPENDS_WAITING

    def close(self) -> None:
        self._brake.close()
        if self._throttle is not None:
            self._throttle.cancel()

    def set_up(self, command: wire.SetupAppend) -> None:
        try:
            ends_at = self._access.check(command)
            container = self._container_of(command.segment)
        except errors.NadiError as error:
            self.sessions.pop(command.writer_id, None)
            self.fail(error, command.request_id, command.segment)
            return
        session = WriterSession(command.segment, container, ends_at, command.request_id, self._access.user_of(command))
        self.sessions[command.writer_id] = session
        if len(self.sessions) > limits.CONNECTION_SESSIONS:
            raise errors.ProtocolError(f"more than {limits.CONNECTION_SESSIONS:,} writers on one connection")
        self.waiting += 1
        if len(self.sessions) > limits.APPEND_SESSIONS_MAX:
            for _ in range(4):  # so that ended sessions don't accumulate
                writer, former = self.sessions.popitem(last=False)
                if former.is_gone():
                    self._ended[writer] = errors.SegmentNotFoundError(former.segment)
                elif not former.is_idle():
                    self.sessions[writer] = former
        container.submit(Setup(self, session, command))

    def notify_released(self, container: Container, owner: str) -> Iterator[None]:
        """Send NotOwner to a container's writers, one per step, unless an append got that reply already; afterwards
        nothing here keeps the container in memory."""
        yield
        for writer, session in list(self.sessions.items()):
            if session.container is container and self.sessions.get(writer) is session:
                del self.sessions[writer]
                self._ended[writer] = error = errors.NotOwnerError(session.segment, owner)
                if session.error is None:
                    self.fail(error, session.request_id, session.segment)
            yield

    def settled(self, count: int) -> None:
        before = self.waiting
        self.waiting = before - count
        if before > limits.CONNECTION_APPENDS_WAITING // 2 >= self.waiting:
            self._resume()

    def send_all(self, commands: list[wire.DataAppended]) -> None:
        self._replies.send_all(commands, now=not self.waiting)  # unless more of the peer's appends are in flight

    def append(self, end: wire.AppendBlockEnd) -> None:
        block, events = self.block, end.num_events
        if events <= 0:
            raise errors.ProtocolError(f"an append has {events} events: it needs at least one")
        if block is None:
            parts: list[Buffer] = [end.data]
            size = len(end.data)
        else:
            self.block = None
            parts = append_parts(block, end)
            size = sum(map(len, parts))
        self._take(end.writer_id, parts, size, events, end.last_event_number, end.request_id)

    def append_all(self, ends: list[wire.AppendBlockEnd]) -> None:
        """`append` for consecutive appends without an AppendBlock: mostly small ones."""
        sessions, access = self.sessions, self._access
        gathered: list[WriterAppend] = []
        container: Container | None = None
        is_limiting = self._quotas.is_limiting
        for end in ends:
            events, session = end.num_events, sessions.get(end.writer_id)
            if session is None or events <= 0 or access.has_ended(session.ends_at):
                self.append(end)
                container = None
                continue
            if session.container is not container:
                container = session.container
                gathered = self._appends_for(container).appends
            session.is_used = True
            data = end.data
            gathered.append(
                WriterAppend(session, end.writer_id, [data], len(data), events, end.last_event_number, end.request_id)
            )
            self.waiting += 1
            if is_limiting:
                self.count(session.scope, session.user, len(data))

    def count(self, scope: str, user: str | None, size_bytes: int) -> None:
        """Count a request against its quotas; if one is exceeded, the connection isn't read for a while."""
        wait_s = self._quotas.take(IN, scope, user, size_bytes)
        if wait_s > 0:
            self._brake.hold(wait_s)

    def append_event(self, command: wire.ConditionalAppend) -> None:
        parts = event_parts(command)
        number, expected = command.event_number, command.expected_offset
        self._take(command.writer_id, parts, sum(map(len, parts)), 1, number, command.request_id, expected)

    def append_block(self, end: wire.ConditionalBlockEnd) -> None:
        number, expected, after = end.event_number, end.expected_offset, end.after_event_number
        self._take(end.writer_id, [end.data], len(end.data), 1, number, end.request_id, expected, after)

    def _take(
        self,
        writer: bytes,
        parts: list[Buffer],
        size: int,
        events: int,
        last: int,
        request_id: int,
        expected: int | None = None,
        after: int = NO_VERSION,
    ) -> None:
        session = self.sessions.get(writer)
        if session is None:
            error = self._ended.get(writer)
            if error is None:
                raise errors.ProtocolError("an append without SetupAppend")
            self.fail(error, request_id, error.segment)
            return
        session.is_used = True
        self.waiting += 1
        is_expired = self._access.has_ended(session.ends_at)
        append = WriterAppend(session, writer, parts, size, events, last, request_id, expected, after, is_expired)
        self._appends_for(session.container).appends.append(append)
        if self._quotas.is_limiting:
            self.count(session.scope, session.user, size)

    def _appends_for(self, container: Container) -> Appends:
        gathered = self._collected.get(container)
        if gathered is None:
            gathered = self._collected[container] = Appends(self, container.monotonic())
        return gathered

    def hand_over(self) -> None:
        gathered = self._collected
        if not gathered:
            return
        self._collected = {}
        for container, appends in gathered.items():
            container.submit(appends)
            if container.queue.is_full and self._throttle is None and self._replies.is_open:
                container.counts.throttles += 1
                self._throttle = asyncio.create_task(self._resume_on_capacity(container))

    async def _resume_on_capacity(self, container: Container) -> None:
        await container.queue.wait_for_capacity()
        self._throttle = None
        self._resume()

    def report_keys(self, command: wire.ReportKeys) -> None:
        positions = positions_of(command)
        session = self.sessions.get(command.writer_id)
        if session is not None:
            if session.error is None and not self._access.has_ended(session.ends_at):
                session.container.load.report(session.segment, positions, command.events)
        elif command.writer_id not in self._ended:
            raise errors.ProtocolError("a report of keys without SetupAppend")
