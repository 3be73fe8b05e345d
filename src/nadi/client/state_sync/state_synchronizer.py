"""One value shared by many processes: its updates are the records of a revisioned stream.

Everybody applies the same updates in the same order and so has the same state. An update is made from the
state as one knows it, and is stored only if nobody was faster; otherwise the new updates are applied and
it is made again. A record is `i32 1` and a whole state, or `i32 2` and updates of `i32 length` each, as
Pravega's StateSynchronizer writes them.

A compaction adds the whole state as a record and sets the stream's mark there, so that who comes later
begins at it. Older records stay, and with them every earlier state, unless they are truncated away.
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
_WHOLE, _UPDATES = 1, 2
_I32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class StateKind(Generic[S, U]):
    """A kind of shared state: how it begins, how an update changes it, and both as bytes.

    `apply` may change the state it is given and return it; it must do the same everywhere, so it takes no
    time and no chance but from the update.
    """

    initial: Callable[[], S]
    apply: Callable[[S, U], S]
    encode_state: Callable[[S], bytes]
    decode_state: Callable[[bytes], S]
    encode_update: Callable[[U], bytes]
    decode_update: Callable[[bytes], U]

    @classmethod
    def of_types(cls, state: Any, update: Any, initial: Callable[[], S], apply: Callable[[S, U], S]) -> StateKind[S, U]:
        """State and updates of these types, which msgspec must know, kept as MessagePack."""
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
    """The state as of the last `refresh` or `update`; with `as_of`, forever as of that revision.

    `timeout` is in seconds, for each call; None is the client's.
    """

    def __init__(self, log: RevisionedStream, kind: StateKind[S, U], *, as_of: int | None = None) -> None:
        self.name = log.name
        self._log, self._kind, self._as_of = log, kind, as_of
        self._state = kind.initial()
        self._position: int | None = None  # up to where records are in the state; None before the first
        self._is_headless = False  # records before were truncated away, so that a whole state must come first
        self._turn = asyncio.Lock()

    @property
    def state(self) -> S:
        """What is known here now; not to be changed but by updates."""
        return self._state

    @property
    def revision(self) -> int:
        """Up to where in the stream the state is known; 0 before the first `refresh`."""
        return self._position or 0

    async def refresh(self, timeout: float | None = None) -> S:
        """Apply the changes made by others, and return the state."""
        async with self._limited(timeout, "read"), self._turn:
            await self._catch_up()
        return self._state

    async def initialize(self, state: S, timeout: float | None = None) -> bool:
        """Start with this state instead of the kind's own; return False if the stream already has records."""
        self._check_writable()
        async with self._limited(timeout, "initialized"), self._turn:
            await self._catch_up()
            extent = await self._log.extent()
            if extent.start != extent.end:
                return False
            data = _I32.pack(_WHOLE) + self._kind.encode_state(state)
            try:
                end = await self._log.append(data, extent.end)
            except ConditionFailedError:
                await self._catch_up()
                return False
            self._apply(RevisionRecord(extent.end, end, data))
            return True

    async def update(self, generate: Callable[[S], Sequence[U]], timeout: float | None = None) -> Sequence[U]:
        """Store the updates that `generate` returns for the newest state, all or none; return those stored.

        `generate` is called again whenever somebody else was faster, and may return no updates. Raises
        RequestTimeoutError, after which it is not known whether the last try was stored,
        StorageFullError at once if the server has no room, and ContentionError if others were faster too often.
        """
        self._check_writable()
        updates: Sequence[U] = ()

        def record() -> bytes | None:
            nonlocal updates
            updates = generate(self._state)
            return self._framed(updates) if updates else None

        async with self._limited(timeout, "updated"), self._turn:
            await self._store(record)
        return updates

    async def compact(self, *, keep_history: bool = True, timeout: float | None = None) -> None:
        """Store the entire state, for later opens to start from.

        Without `keep_history` everything before the last but one compaction is truncated away: the states of
        that time can no longer be opened. EventTooLargeError if the state is too large for one record.
        """
        self._check_writable()
        async with self._limited(timeout, "compacted"), self._turn:
            before = await self._log.mark()
            revision = await self._store(lambda: _I32.pack(_WHOLE) + self._kind.encode_state(self._state))
            if await self._log.set_mark(revision, before) and before is not None and not keep_history:
                await self._log.truncate(before)  # else somebody else compacts now, and truncates

    # --- inside -----------------------------------------------------------------------------

    async def _store(self, record: Callable[[], bytes | None]) -> int:
        """Store the record, made of the newest state, unless it is None; return its revision. It is made again whenever
        somebody else was faster."""
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
                f"{self.name} was opened as of a stream cut, where nothing can change: open it without one"
            )

    def _check_known(self) -> None:
        if self._is_headless:
            raise ProtocolError(
                f"what made the state of {self.name} was truncated away, and no compaction kept it: "
                "start again in another stream, or with `initialize` if this one is empty"
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
            except TruncatedError as error:  # a compaction went past what was known here
                if self._as_of is not None and error.start_offset > self._as_of:
                    raise
                self._position = None

    async def _begin(self, start: int, end: int) -> None:
        """Start over at the last whole state before `end` that is known of."""
        if end < start or (end == start > 0 and self._as_of is not None):
            raise TruncatedError(self.name, end, start)
        mark = await self._log.mark()
        self._state = self._kind.initial()
        self._position = mark if mark is not None and start <= mark < end else start
        self._is_headless = self._position > 0

    def _apply(self, record: RevisionRecord) -> None:
        try:
            for what, body in _parts(record.data):
                if what == _WHOLE:
                    self._state = self._kind.decode_state(body)
                    self._is_headless = False
                else:
                    self._check_known()
                    self._state = self._kind.apply(self._state, self._kind.decode_update(body))
        except (msgspec.MsgspecError, struct.error, ValueError) as error:
            self._position = None  # the state may be half changed
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
                self._kind.decode_update(data)  # else nobody could read on past this record
            except (ValueError, msgspec.MsgspecError) as error:
                raise InvalidArgumentError(f"{update!r} is not an update of {self.name}: {error}") from error
            parts += (_I32.pack(len(data)), data)
        return b"".join(parts)

    def _limited(self, timeout: float | None, done: str) -> TimeLimit:
        """None: the client's time."""
        timeout_s = self._log.timeout_s if timeout is None else timeout
        return TimeLimit(
            timeout_s, lambda: f"{self.name} was not {done} within {timeout_s} s", lambda: self._log.trouble
        )


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    (what,) = _I32.unpack_from(data)
    if what == _WHOLE:
        yield _WHOLE, data[_I32.size :]
        return
    if what != _UPDATES:
        raise ValueError(f"it begins with {what}")
    at = _I32.size
    while at < len(data):
        (size,) = _I32.unpack_from(data, at)
        at += _I32.size
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"an update of {size} bytes does not fit it")
        yield _UPDATES, data[at : at + size]
        at += size


def _encode(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidArgumentError(f"this can't be kept as MessagePack: {error}") from error
