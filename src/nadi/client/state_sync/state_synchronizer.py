"""Synchronize one value among many processes; its updates are the records of a revisioned stream.

All processes apply the same updates in the same order and so have the same state. An update is generated from the
local state and stored only if no other update was stored meanwhile; otherwise the new updates are applied and it is
generated again. A record is `i32 1` and a complete state, or `i32 2` and updates with an `i32` length each, as
Pravega's StateSynchronizer writes them.

A compaction appends the complete state as a record and sets the stream's mark to it, so that later opens start there.
Older records, and thus all earlier states, remain unless they are truncated away.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from nadi.client.control.arguments import checked
from nadi.client.control.time_limit import TimeLimit
from nadi.client.state_sync.revisioned_stream import RevisionedStream, RevisionRecord
from nadi.errors import ConditionFailedError, ContentionError, InvalidArgumentError, ProtocolError, TruncatedError
from nadi.limits import STATE_UPDATE_ATTEMPTS

S = TypeVar("S")
U = TypeVar("U")
_STATE, _UPDATES = 1, 2
_I32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class StateKind(Generic[S, U]):
    """A kind of shared state: its initial value, the effect of an update, and the encoding of both.

    `apply` may modify and return its argument. It must be deterministic: times and random values must come from the
    update.
    """

    initial: Callable[[], S]
    apply: Callable[[S, U], S]
    encode_state: Callable[[S], bytes]
    decode_state: Callable[[bytes], S]
    encode_update: Callable[[U], bytes]
    decode_update: Callable[[bytes], U]

    @classmethod
    def of_types(cls, state: Any, update: Any, initial: Callable[[], S], apply: Callable[[S, U], S]) -> StateKind[S, U]:
        """Make a kind from types that msgspec supports, encoded as MessagePack."""
        return cls(
            initial,
            apply,
            _encode,
            msgspec.msgpack.Decoder(state).decode,
            _encode,
            msgspec.msgpack.Decoder(update).decode,
        )


@checked()
class StateSynchronizer(Generic[S, U]):
    """Local copy of a shared state, current at the last `refresh` or `update`; with `as_of`, fixed at that revision.

    `timeout`: seconds per call; None for the client's timeout.
    """

    def __init__(self, log: RevisionedStream, kind: StateKind[S, U], *, as_of: int | None = None) -> None:
        self.name = log.name
        self._log, self._kind, self._as_of = log, kind, as_of
        self._state = kind.initial()
        self._position: int | None = None  # end of the records applied to the state; None before the first
        self._is_headless = False  # earlier records were truncated away, so the next record must be a complete state
        self._lock = asyncio.Lock()

    @property
    def state(self) -> S:
        """The local copy; change it only through updates."""
        return self._state

    @property
    def revision(self) -> int:
        """The revision up to which the local copy is current; 0 before the first `refresh`."""
        return self._position or 0

    async def refresh(self, timeout: float | None = None) -> S:
        """Apply the changes of other processes and return the state."""
        async with self._limited(timeout, "read"), self._lock:
            await self._catch_up()
        return self._state

    async def initialize(self, state: S, timeout: float | None = None) -> bool:
        """Start with this state instead of the kind's initial one; return False if the stream already has records."""
        self._check_writable()
        async with self._limited(timeout, "initialized"), self._lock:
            await self._catch_up()
            extent = await self._log.extent()
            if extent.start != extent.end:
                return False
            data = _I32.pack(_STATE) + self._kind.encode_state(state)
            try:
                end = await self._log.append(data, extent.end)
            except ConditionFailedError:
                await self._catch_up()
                return False
            self._apply(RevisionRecord(extent.end, end, data))
            return True

    async def update(self, generate: Callable[[S], Sequence[U]], timeout: float | None = None) -> Sequence[U]:
        """Store the updates that `generate` returns for the newest state, atomically; return these updates.

        `generate` is called again whenever another process was faster, and may return an empty list. Raises
        RequestTimeoutError, when the last attempt may or may not have been stored, StorageFullError immediately if the
        server's storage is full, and ContentionError if other processes were faster too often.
        """
        self._check_writable()
        updates: Sequence[U] = ()

        def record() -> bytes | None:
            nonlocal updates
            updates = generate(self._state)
            return self._framed(updates) if updates else None

        async with self._limited(timeout, "updated"), self._lock:
            await self._store(record)
        return updates

    async def compact(self, *, keep_history: bool = True, timeout: float | None = None) -> None:
        """Store the complete state, so that later opens start from it.

        Without `keep_history` all records before the previous compaction are truncated away, and earlier states can no
        longer be opened. Raises EventTooLargeError if the state is too large for one record.
        """
        self._check_writable()
        async with self._limited(timeout, "compacted"), self._lock:
            before = await self._log.mark()
            revision = await self._store(lambda: _I32.pack(_STATE) + self._kind.encode_state(self._state))
            if await self._log.set_mark(revision, before) and before is not None and not keep_history:
                await self._log.truncate(before)  # if the mark differed, another process compacts and truncates

    # --- inside -----------------------------------------------------------------------------

    async def _store(self, record: Callable[[], bytes | None]) -> int:
        """Store the record, unless it is None, and return its revision. It is generated from the newest state, again
        whenever another process was faster."""
        for _ in range(STATE_UPDATE_ATTEMPTS):
            await self._catch_up()
            self._check_known()
            assert self._position is not None
            revision, data = self._position, record()
            if data is None:
                return revision
            try:
                end = await self._log.append(data, revision)
            except ConditionFailedError:
                continue
            self._apply(RevisionRecord(revision, end, data))
            return revision
        raise ContentionError(self.name, STATE_UPDATE_ATTEMPTS)

    def _check_writable(self) -> None:
        if self._as_of is not None:
            raise InvalidArgumentError(
                f"{self.name} was opened at a stream cut and is read-only: open it without a cut to change it"
            )

    def _check_known(self) -> None:
        if self._is_headless:
            raise ProtocolError(
                f"the state of {self.name} is lost: its records were truncated away without a compaction; "
                "use another stream, or `initialize` if this one is empty"
            )

    async def _catch_up(self) -> None:
        if self._position == self._as_of and self._as_of is not None:
            return
        while True:
            try:
                extent = await self._log.extent()
                end = extent.end if self._as_of is None else self._as_of
                if self._position is None:
                    await self._begin(extent.start, end)
                if self._position is not None and self._position < end:
                    async with aclosing(self._log.read(self._position, end)) as records:
                        async for record in records:
                            self._apply(record)
                return
            except TruncatedError as error:  # a compaction truncated records that were not applied here
                if self._as_of is not None and error.start_offset > self._as_of:
                    raise
                self._position = None

    async def _begin(self, start: int, end: int) -> None:
        """Start over at the last complete state before `end` that the mark names, or at the start."""
        if end < start or (end == start > 0 and self._as_of is not None):
            raise TruncatedError(self.name, end, start)
        mark = await self._log.mark()
        self._state = self._kind.initial()
        self._position = mark if mark is not None and start <= mark < end else start
        self._is_headless = self._position > 0

    def _apply(self, record: RevisionRecord) -> None:
        try:
            for kind, body in _parts(record.data):
                if kind == _STATE:
                    self._state = self._kind.decode_state(body)
                    self._is_headless = False
                else:
                    self._check_known()
                    self._state = self._kind.apply(self._state, self._kind.decode_update(body))
        except (msgspec.MsgspecError, struct.error, ValueError) as error:
            self._position = None  # the state may be partly changed
            raise ProtocolError(f"the record at {record.revision:,} of {self.name} can't be read: {error}") from error
        except BaseException:
            self._position = None
            raise
        self._position = record.end

    def _framed(self, updates: Sequence[U]) -> bytes:
        parts = [_I32.pack(_UPDATES)]
        for update in updates:
            data = self._kind.encode_update(update)
            try:
                self._kind.decode_update(data)  # an unreadable record would block all readers
            except (ValueError, msgspec.MsgspecError) as error:
                raise InvalidArgumentError(f"{update!r} is not an update of {self.name}: {error}") from error
            parts += (_I32.pack(len(data)), data)
        return b"".join(parts)

    def _limited(self, timeout: float | None, done: str) -> TimeLimit:
        """timeout: None for the client's timeout."""
        timeout_s = self._log.timeout_s if timeout is None else timeout
        return TimeLimit(
            timeout_s, lambda: f"{self.name} was not {done} within {timeout_s} s", lambda: self._log.trouble
        )


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    (kind,) = _I32.unpack_from(data)
    if kind == _STATE:
        yield _STATE, data[_I32.size :]
        return
    if kind != _UPDATES:
        raise ValueError(f"unknown kind of record: {kind}")
    at = _I32.size
    while at < len(data):
        (size,) = _I32.unpack_from(data, at)
        at += _I32.size
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"the record is shorter than its update of {size} bytes")
        yield _UPDATES, data[at : at + size]
        at += size


def _encode(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidArgumentError(f"the value can't be encoded as MessagePack: {error}") from error
