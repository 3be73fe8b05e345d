"""Appends on a connection, as the container takes them: each writer's session, and its appends that wait their turn.

They are checked against the state in the container's turn, when everything before them is settled, and are
acknowledged in order. Once an append of a session has failed, nothing later in the session is stored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from nadi.errors import NadiError, StorageFullError, StreamSealedError, TokenExpiredError
from nadi.limits import APPEND_SESSION_GONE_S, APPEND_SESSION_IDLE_S
from nadi.naming import TRANSIENT_DELIMITER
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.doors.segments import find
from nadi.segmentstore.state.records import Kind
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, Buffer


class Peer(Protocol):
    """The connection, as its appends see it."""

    def settled(self) -> None:
        """One of its appends in a container's queue was answered."""

    def send(self, command: wire.Command) -> None: ...

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None: ...

    def close(self) -> None: ...


class Session:
    """One writer on one segment on this connection."""

    __slots__ = (
        "acknowledged", "container", "ends_at", "error", "is_used", "looked_at", "parent", "request_id", "segment",
        "stored",
    )  # fmt: skip

    def __init__(self, segment: str, container: Container, ends_at: float, request_id: int) -> None:
        self.segment = segment
        self.request_id = request_id  # of its SetupAppend
        parent, transient, _ = segment.partition(TRANSIENT_DELIMITER)
        self.parent = parent if transient else None  # the segment it will be merged into
        self.ends_at = ends_at  # of its token, on the monotonic clock
        self.container = container
        self.stored = NO_VERSION  # the writer's number once everything before is written
        self.acknowledged = NO_VERSION
        self.error: Exception | None = None  # what ended the session
        self.is_used = False  # since the last look
        self.looked_at = asyncio.get_running_loop().time()

    def is_over(self) -> bool:
        """Whether it has been idle for long, or for a while after its end."""
        now = asyncio.get_running_loop().time()
        if self.is_used:
            self.is_used, self.looked_at = False, now
            return False
        idle_s = now - self.looked_at
        return idle_s > APPEND_SESSION_IDLE_S or (idle_s > APPEND_SESSION_GONE_S and self._has_ended())

    def _has_ended(self) -> bool:
        container = self.container
        return self.error is not None or (
            container.failure is None and not container.state.record_cache.exists(self.segment)
        )


class WriterConflictError(NadiError):
    """Another connection writes with the same writer id."""


class ConditionError(NadiError):
    """A conditional append did not meet the offset, or the append before it, that it expected."""


@dataclass(slots=True, eq=False)
class Setup:
    """SetupAppend in the container's turn, when every earlier append of the writer is settled."""

    peer: Peer
    session: Session
    command: wire.SetupAppend
    size_bytes: int = 64

    def prepare(self, frame: FrameBuilder) -> int:
        state = self.session.container.state
        value = state.attribute(find(state, self.session.segment, Kind.STREAM), self.command.writer_id)
        self.session.stored = self.session.acknowledged = NO_VERSION if value is None else value
        return self.session.stored

    def done(self, result: int) -> None:
        command = self.command
        self.peer.settled()
        self.peer.send(wire.AppendSetup(command.request_id, command.segment, command.writer_id, result))

    def failed(self, error: Exception) -> None:
        self.peer.settled()
        self.session.error = error
        self.peer.fail(error, self.command.request_id, self.command.segment)


@dataclass(slots=True, eq=False)
class Expired:
    """An append whose session's token has expired: reported in its turn, then the connection ends.

    It must end, for the Rust client takes no notice of the reply alone.
    """

    peer: Peer
    session: Session
    request_id: int
    size_bytes: int = 64

    def prepare(self, frame: FrameBuilder) -> int:
        self.session.error = self.session.error or TokenExpiredError("the session's delegation token has expired")
        raise self.session.error.with_traceback(None)

    def done(self, result: int) -> None:
        raise AssertionError("it always fails")

    def failed(self, error: Exception) -> None:
        self.peer.settled()
        self.peer.fail(error, self.request_id, self.session.segment)
        self.peer.close()


class Append:
    """One append, atomic with its writer's event number."""

    __slots__ = (
        "after", "events", "expected_offset", "last", "parts", "peer", "request_id", "session", "size_bytes",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        session: Session,
        writer: bytes,
        parts: list[Buffer],
        events: int,
        last: int,
        request_id: int,
        expected_offset: int | None = None,
        after: int = NO_VERSION,
    ) -> None:
        self.peer, self.session, self.writer, self.parts = peer, session, writer, parts
        self.events, self.last, self.request_id = events, last, request_id
        self.expected_offset, self.after = expected_offset, after
        self.size_bytes = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))

    def prepare(self, frame: FrameBuilder) -> int:
        try:
            return self._add(frame)
        except ConditionError:
            raise
        except NadiError as error:
            self.session.error = error  # at once: nothing later of this writer may be stored without this append
            raise

    def _add(self, frame: FrameBuilder) -> int:
        session = self.session
        if session.error is not None:
            raise session.error.with_traceback(None)  # else it would hold on to every append that met it
        if session.container.log_full:
            raise StorageFullError("tier 2 takes no data and the log is full: free space, or repair tier 2")
        state = session.container.state
        record = find(state, session.segment, Kind.STREAM)
        if record.sealed:
            raise StreamSealedError(session.segment)
        if session.parent is not None and find(state, session.parent).sealed:
            # reported now: the Rust client looks for it here, and would repeat a refused merge forever
            raise StreamSealedError(session.parent)
        stored = state.attribute(record, self.writer)
        if (NO_VERSION if stored is None else stored) != session.stored or self.last < session.stored:
            raise WriterConflictError(f"another connection writes with the id {self.writer.hex()}")
        if self.after not in (NO_VERSION, session.stored):
            raise ConditionError(f"the append {self.after} before it was not stored")
        if self.expected_offset is not None and self.expected_offset != record.length:
            raise ConditionError(f"the segment has {record.length} bytes")
        length = frame.append(record, self.parts, self.size_bytes, self.events, self.writer, self.last)
        session.stored = self.last
        return length

    def done(self, result: int) -> None:
        session = self.session
        self.peer.settled()
        self.peer.send(wire.DataAppended(self.writer, self.last, session.acknowledged, self.request_id, result))
        session.acknowledged = self.last

    def failed(self, error: Exception) -> None:
        peer = self.peer
        peer.settled()
        if isinstance(error, ConditionError):
            peer.send(wire.ConditionalCheckFailed(self.writer, self.last, self.request_id))
        elif isinstance(error, WriterConflictError):
            peer.send(wire.InvalidEventNumber(self.writer, self.request_id, "", self.last))
            peer.close()
        else:
            self.session.error = error  # also where the container failed after `prepare`
            offset = self.last if isinstance(error, StreamSealedError) else -1
            peer.fail(error, self.request_id, self.session.segment, offset)
