"""A connection that one caller's thread uses by itself: it sends an append and reads the answer; the loop sleeps.

Who writes an event, waits until it is stored, and writes the next, has two threads wake each other twice for each. So
where such appends follow each other and nothing else is under way on the connection, the loop lends it: it stops
reading. From then on, whoever holds `lock` stands in for the loop's thread in all that concerns this connection; one
append at most is under way. Who holds it waits for nothing, neither for bytes nor for another lock.

The loop takes it back before it does anything with the connection itself, so that all else in the client is written as
if it had never been lent. It does so, too, when a thread asks for it, which has read something other than the
acknowledgement, say, or ends its wait; when an append isn't answered soon, since nobody may be reading; and when nobody
has used it for a while. What a thread left half done, as Ctrl-C can, costs the connection: a new session learns what
is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nadi.client.control.process import OwnProcess
from nadi.errors import NadiError, ProtocolError, UnavailableError
from nadi.wire import commands as wire
from nadi.wire.decoder import Decoder

LOOK_S = 0.02  # an append that waited from one look to the next is the loop's to read
_IDLE_LOOKS = 50
_FEW = 3  # such appends before it is lent
_MANY = 64  # uses after which lending it has paid
_MOST = 1024
_LONGEST_POLL_MS = 1 << 30  # twelve days; a poll can't last much longer


class Writer(Protocol):
    """Who has sent the append that is under way, in a caller's thread."""

    def acknowledged_alone(self, reply: wire.DataAppended, done: list[Any]) -> bool:
        """Move what is stored by now to `done`; False if that can't be done at once. With `Alone.lock` held."""

    def stored_alone(self, done: list[Any]) -> None:
        """Tell those who wait for it."""


class Alone:
    """Whether a connection is lent, and its use by a caller's thread.

    deliver: handles replies in the loop's thread. lose: ends the connection.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        decoder: Decoder,
        deliver: Callable[[Sequence[wire.Command]], None],
        lose: Callable[[NadiError], None],
    ) -> None:
        self.lock = threading.Lock()
        self.is_lent = False  # changed by the loop's thread, with the lock
        self.is_busy = False  # an append of a caller's thread is under way
        self._transport, self._decoder, self._deliver, self._lose = transport, decoder, deliver, lose
        self._loop = asyncio.get_running_loop()
        self._process = OwnProcess()
        self._is_possible = transport.get_extra_info("sslcontext") is None
        self._fd = -1
        self._wake: tuple[int, int] | None = None  # a pipe that ends a thread's wait for bytes
        self._poll = select.poll()
        self._is_reading = False  # a thread waits for bytes, or has just done so
        self._is_woken = False
        self._is_torn = False  # a thread is in the middle of something, or gave up there
        self._trouble: NadiError | None = None
        self._rest = b""  # of a frame that the socket didn't take whole
        self._handed: list[wire.Command] = []  # replies for the loop
        self._writer: Writer | None = None
        self._session_id = self._number = 0  # of the append under way
        self._uses = self._uses_seen = 0
        self._idle_looks = 0
        self._closed = False
        self._look_later: asyncio.TimerHandle | None = None
        self._in_a_row, self._turn, self._needed = 0, -1, _FEW

    # --- the loop's thread ------------------------------------------------------------------------------

    def answered(self, turn: int, is_free: Callable[[], bool]) -> None:
        """An append that a thread waits for was answered, and its writer has no other: lend it after several in a row.

        turn: counts what comes on the connection. is_free: whether nothing else is under way on it.
        """
        self._in_a_row = self._in_a_row + 1 if turn == self._turn + 1 else 1
        self._turn = turn
        if self._in_a_row < self._needed or not self._is_possible or self._is_reading or self._closed:
            return
        self._in_a_row = 0
        if is_free() and not self._transport.get_write_buffer_size() and not self._transport.is_closing():
            self._lend()
        else:
            self._needed = min(2 * self._needed, _MOST)

    def _lend(self) -> None:
        if self._wake is None:
            try:
                self._wake = os.pipe()
            except OSError:  # no descriptors left: it goes on as it is
                self._needed = _MOST
                return
            os.set_blocking(self._wake[0], False)
            self._poll.register(self._wake[0], select.POLLIN)
            self._fd = self._transport.get_extra_info("socket").fileno()
            self._poll.register(self._fd, select.POLLIN)
        self._transport.pause_reading()
        self._uses = self._uses_seen = self._idle_looks = 0
        with self.lock:
            self.is_lent = True
        self._look_later = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._uses != self._uses_seen:
            self._uses_seen, self._idle_looks = self._uses, 0
        elif self.is_busy or self._is_torn:
            self.take_back()
            return
        else:
            self._idle_looks += 1
            if self._idle_looks == _IDLE_LOOKS:
                self.take_back()
                return
        self._look_later = self._loop.call_later(LOOK_S, self._look)

    def take_back(self) -> None:
        """From here on it is the loop's; the answer to what a thread has sent will come there."""
        if not self.is_lent:
            return
        self._end_lending()
        if self._uses >= _MANY:
            self._needed = _FEW
        elif self._idle_looks < _IDLE_LOOKS:
            self._needed = min(2 * self._needed, _MOST)  # others use it, or it is slow: it hardly pays
        if self._is_torn:
            self._transport.abort()  # at once: nothing may follow half a frame
            self._loop.call_soon(self._lose, self._trouble or UnavailableError("an append was interrupted"))
            return
        if self._rest:
            self._transport.write(self._rest)
            self._rest = b""
        if self._handed:
            self._loop.call_soon(self._hand_over)  # whoever takes it back may be in the middle of something
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """The connection is lost, or ends."""
        self._closed = True
        if self.is_lent:
            self._end_lending()
        with self.lock:
            self._close_pipe()

    def _end_lending(self) -> None:
        with self.lock:
            self.is_lent = self.is_busy = False
            self._writer = None
            if self._is_reading and self._wake is not None:
                self._is_woken = True
                os.write(self._wake[1], b"\0")
        if self._look_later is not None:
            self._look_later.cancel()

    def _hand_over(self) -> None:
        handed, self._handed = self._handed, []
        self._deliver(handed)
        self._transport.resume_reading()

    def _close_pipe(self) -> None:
        if self._closed and not self._is_reading and self._wake is not None:
            os.close(self._wake[0])
            os.close(self._wake[1])
            self._wake = None

    # --- a caller's thread ------------------------------------------------------------------------------

    def begin(self, session_id: int, writer: Writer) -> None:
        """The writer's session is about to send an append. With the lock held, lent and not busy."""
        self._session_id, self._writer = session_id, writer
        self._uses += 1
        self._is_torn = self.is_busy = True

    def send(self, frame: bytes, number: int) -> None:
        """Send the append, which has that number. With the lock held since `begin`."""
        self._number = number
        try:
            sent = os.write(self._fd, frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.give_back()  # torn: the append is sent again elsewhere
            return
        if sent < len(frame):
            self._rest = frame[sent:]
            self.give_back()
        self._is_torn = False

    def wait(self, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        """Read answers until it is done; returns earlier if the loop has to do that, or the time is over."""
        if not self._process.is_this:
            return
        is_reader = False
        try:
            with self.lock:
                if not self.is_busy or self._is_reading:  # who reads already does so for all
                    return
                self._is_reading = is_reader = True
            self._read(is_done, timeout_s)
        finally:
            if is_reader:
                with self.lock:
                    self._is_reading = False
                    if self._is_woken and self._wake is not None:
                        with contextlib.suppress(BlockingIOError):  # what Ctrl-C left was read already
                            os.read(self._wake[0], 1)
                        self._is_woken = False
                    self._close_pipe()
                if self.is_busy:
                    self.give_back()

    def give_back(self) -> None:
        """Have the loop take it back, soon; from any thread."""
        if self.is_lent:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all connections with it
                self._loop.call_soon_threadsafe(self.take_back)

    def _read(self, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_done():
            left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
            if left_ms is not None and left_ms <= 0:
                return
            self._poll.poll(None if left_ms is None else min(left_ms, _LONGEST_POLL_MS))
            done: list[Any] = []
            writer = self._writer
            try:
                with self.lock:
                    if writer is None or not self.is_busy:  # it was taken back
                        return
                    self._receive(writer, done)
                    is_the_loops = self._is_torn or bool(self._handed) or not self.is_busy
                writer.stored_alone(done)
            except BaseException:  # Ctrl-C: others may wait for them too
                if done and writer is not None:
                    self._loop.call_soon_threadsafe(writer.stored_alone, done)
                raise
            if is_the_loops:
                return

    def _receive(self, writer: Writer, done: list[Any]) -> None:
        """With the lock held: take what has come."""
        self._is_torn = True
        try:
            count = os.readv(self._fd, [self._decoder.get_buffer()])
        except BlockingIOError:
            self._is_torn = False
            return
        except OSError:
            return
        if not count:
            return  # the peer has closed it
        try:
            commands = self._decoder.buffer_updated(count)
        except ProtocolError as error:
            self._trouble = UnavailableError(f"a segment store broke the protocol: {error}")
            return
        answer = self._answer(commands)
        if answer is not None and writer.acknowledged_alone(answer, done):
            self.is_busy = False
        else:
            self._handed += commands  # none, if only a part of the answer is here
        self._is_torn = False

    def _answer(self, commands: Sequence[wire.Command]) -> wire.DataAppended | None:
        """The acknowledgement of the append under way, if it is that and nothing else."""
        if len(commands) != 1 or not isinstance(reply := commands[0], wire.DataAppended):
            return None
        return reply if (reply.request_id, reply.event_number) == (self._session_id, self._number) else None
