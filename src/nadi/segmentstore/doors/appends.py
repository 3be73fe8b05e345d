"""Appends on a connection, as the container takes them: each writer's session, and its appends that wait their turn.

What came in one go is one request to the container: a writer of many segments has an append for each event. They are
checked against the state in the container's turn, when everything before them is settled, and are acknowledged in
order. Once an append of a session has failed, nothing later in the session is stored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec

from nadi.errors import (
    DamagedStateError,
    NadiError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    UnavailableError,
)
from nadi.limits import APPEND_SESSION_GONE_S, APPEND_SESSION_IDLE_S
from nadi.naming import TRANSIENT_DELIMITER
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.container.requests import again
from nadi.segmentstore.counts import Arrival
from nadi.segmentstore.doors.segments import find
from nadi.segmentstore.state.records import Kind
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, Buffer


class Peer(Protocol):
    """The connection, as its appends see it."""

    def settled(self, count: int) -> None:
        """So many of its appends in a container's queue are answered now."""

    def send(self, command: wire.Command) -> None: ...

    def send_all(self, commands: list[wire.DataAppended]) -> None: ...

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
    count: int = 1

    def prepare(self, frame: FrameBuilder) -> int:
        state = self.session.container.state
        value = state.attribute(find(state, self.session.segment, Kind.STREAM), self.command.writer_id)
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


@dataclass(slots=True, eq=False)
class Expired:
    """An append whose session's token has expired: reported in its turn, then the connection ends.

    It must end, for the Rust client takes no notice of the reply alone.
    """

    peer: Peer
    session: Session
    request_id: int
    size_bytes: int = 64
    count: int = 1

    def prepare(self, frame: FrameBuilder) -> int:
        self.session.error = self.session.error or TokenExpiredError("the session's delegation token has expired")
        raise self.session.error.with_traceback(None)

    def done(self, result: int) -> None:
        raise AssertionError("it always fails")

    def failed(self, error: Exception) -> None:
        self.peer.settled(1)
        self.peer.fail(error, self.request_id, self.session.segment)
        self.peer.close()


class Append(msgspec.Struct, eq=False, gc=False):
    """One append, atomic with its writer's event number; `parts` are its `size_bytes`."""

    session: Session
    writer: bytes
    parts: list[Buffer]
    size_bytes: int
    events: int
    last: int
    request_id: int
    expected_offset: int | None = None
    after: int = NO_VERSION


class Appends:
    """What a peer appended in one go, in order: one request, for there may be an append for each event."""

    __slots__ = ("appends", "at", "peer")

    def __init__(self, peer: Peer, at: float) -> None:
        """at: when they came, by the container's clock."""
        self.peer, self.at = peer, at
        self.appends: list[Append] = []

    @property
    def count(self) -> int:
        return len(self.appends)

    @property
    def size_bytes(self) -> int:
        return sum([append.size_bytes for append in self.appends])

    def prepare(self, frame: FrameBuilder) -> list[int | NadiError]:
        """Of each append, the segment's length after it, or why it isn't stored."""
        outcomes: list[int | NadiError] = []
        refused = 0
        for append in self.appends:
            try:
                outcomes.append(_store(append, frame))
            except DamagedStateError:
                raise
            except NadiError as error:
                # without its traceback: whoever keeps the error would keep all that was appended with it
                outcomes.append(error.with_traceback(None))
                refused += 1
                if not isinstance(error, ConditionError):
                    append.session.error = error  # at once: nothing later of this writer may be stored without it
        if refused:
            self.appends[0].session.container.counts.refused_appends += refused
        frame.arrivals.append(Arrival(self.at, len(outcomes) - refused, self))
        return outcomes

    def done(self, result: list[int | NadiError]) -> None:
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

    def _refuse(self, append: Append, error: Exception) -> None:
        peer = self.peer
        if isinstance(error, ConditionError):
            peer.send(wire.ConditionalCheckFailed(append.writer, append.last, append.request_id))
        elif isinstance(error, WriterConflictError):
            peer.send(wire.InvalidEventNumber(append.writer, append.request_id, "", append.last))
            peer.close()
        else:
            # also where the container failed after `prepare`; not this very one, which gathers frames as it is raised
            append.session.error = again(error) if type(error) is UnavailableError else error
            offset = append.last if isinstance(error, StreamSealedError) else -1
            peer.fail(error, append.request_id, append.session.segment, offset)


def _store(append: Append, frame: FrameBuilder) -> int:
    """Check an append in its turn and add it to the frame; return the segment's length after it."""
    session, writer = append.session, append.writer
    if session.error is not None:
        raise session.error.with_traceback(None)  # else it would hold on to every append that met it
    if session.container.log_full:
        raise StorageFullError("tier 2 takes no data and the log is full: free space, or repair tier 2")
    state = frame.state
    record = find(state, session.segment, Kind.STREAM)
    if record.sealed:
        raise StreamSealedError(session.segment)
    if session.parent is not None and find(state, session.parent).sealed:
        # reported now: the Rust client looks for it here, and would repeat a refused merge forever
        raise StreamSealedError(session.parent)
    stored = state.attribute(record, writer)
    if (NO_VERSION if stored is None else stored) != session.stored or append.last < session.stored:
        raise WriterConflictError(f"another connection writes with the id {writer.hex()}")
    if append.after not in (NO_VERSION, session.stored):
        raise ConditionError(f"the append {append.after} before it was not stored")
    if append.expected_offset is not None and append.expected_offset != record.length:
        raise ConditionError(f"the segment has {record.length} bytes")
    length = frame.append(record, append.parts, append.size_bytes, append.events, writer, append.last)
    session.stored = append.last
    return length
