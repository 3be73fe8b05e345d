"""What a connection takes from its peer: commands decoded from the incoming bytes, no more than there is room for.

Reading continues while what came is within its limits; else it stops, and the peer's own network holds the rest. In one
turn of the loop a bounded number of commands is taken. A peer that has shown no token yet may send only small frames,
and must do so soon; later, a frame that has begun must be completed in time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nadi.access.budget import Budget
from nadi.errors import NadiError, ProtocolError
from nadi.limits import (
    COMMANDS_AT_ONCE,
    COMMANDS_OF_CROWD,
    CONNECTION_RECEIVED_BYTES,
    FRAME_LEAST_BYTES_S,
    FRAME_TIMEOUT_S,
    MAX_FRAME_RECEIVED_BYTES,
    PEERS_LEAST_BYTES,
    RECEIVE_BUFFER_BYTES,
    RECEIVE_BUFFER_LEAST_BYTES,
    UNKNOWN_PEER_FRAME_BYTES,
    UNKNOWN_PEER_S,
)
from nadi.segmentstore.doors.token_check import TokenCheck
from nadi.segmentstore.rota import Rota
from nadi.wire import commands as wire
from nadi.wire.codec import decode_payload
from nadi.wire.decoder import Decoder

if TYPE_CHECKING:
    from nadi.segmentstore.doors.connection import Connection

# commands that may be large, and begin as GetTableSegmentInfo does: with the segment and the token
_LARGE = {kind.code: kind for kind in (wire.UpdateTableEntries, wire.RemoveTableKeys, wire.ReadTable)}
_LOOKED_AT_AFTER = 8  # commands: check whether the connection takes more; all of them are in one buffer


class Intake:
    """The intake of one connection. `frame_bytes` is the size of the last command taken."""

    def __init__(
        self, connection: Connection, budget: Budget, rota: Rota, access: TokenCheck, transport: asyncio.Transport
    ) -> None:
        self._connection = connection
        self._rota = rota
        self._pool = budget.receiving
        self._access = access
        self._transport: asyncio.Transport | None = transport
        self._loop = asyncio.get_running_loop()
        self.held = self._pool.account()
        self._decoder = Decoder(RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_LEAST_BYTES, self.held)
        self._decoder.max_frame_bytes = UNKNOWN_PEER_FRAME_BYTES
        self._is_known = False
        self._is_reading = True
        self._is_due = False
        self._made_at = self._loop.time()
        self._frame_at = self._made_at  # when the current frame began, or reading resumed with it
        self._has_rest = False  # of a frame, when commands were taken last
        self._quiet = 0  # looks since something came

    @property
    def frame_bytes(self) -> int:
        return self._decoder.frame_bytes

    def wait(self) -> None:
        """Resume when others have given something back."""
        self._pool.wait(self.go_on)

    @property
    def is_over_share(self) -> bool:
        """Whether what the peer sent before fills its share: the buffer in use doesn't count."""
        held = self.held.held_bytes
        if held <= PEERS_LEAST_BYTES:
            return False
        return held > CONNECTION_RECEIVED_BYTES or held - self._decoder.current_bytes > self._pool.share_bytes

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet = 0
        self._decoder.filled(nbytes)
        if not self._is_due and (self._is_reading or not self._connection.is_full):
            rota = self._rota
            rota.count(self._run(COMMANDS_OF_CROWD if rota.is_spent else COMMANDS_AT_ONCE))

    def go_on(self) -> None:
        """Something changed: take what is here if there is room now."""
        if not self._is_due and self._transport is not None and not self._is_reading:
            self._is_due = True
            self._rota.add(self._again)

    def close(self) -> None:
        self._transport = None
        self._decoder.close()
        self._pool.forget(self.go_on)

    def look(self, now_s: float) -> str:
        """Return why the connection must end for what didn't come, or "". Idle peers' buffers are freed."""
        decoder = self._decoder
        if not self._is_known and now_s - self._made_at > UNKNOWN_PEER_S:
            return f"it showed nothing valid in {UNKNOWN_PEER_S:.0f} s"
        if not decoder.pending_bytes:
            self._quiet += 1
            if self._quiet > 1:
                decoder.rest()
            return ""
        longest_s = FRAME_TIMEOUT_S + decoder.wanted_bytes / FRAME_LEAST_BYTES_S
        if self._is_reading and now_s - self._frame_at > longest_s:
            return f"a frame was not whole after {longest_s:.0f} s: {decoder.pending_bytes:,} bytes of it came"
        return ""

    # --- inside ----------------------------------------------------------------------------------------

    def _again(self) -> int:
        self._is_due = False
        if self._transport is None or self._transport.is_closing() or self._connection.is_full:
            return 0
        return self._run(COMMANDS_AT_ONCE)

    def _run(self, most: int) -> int:
        """Take up to `most` commands; return how many."""
        decoder, connection, transport = self._decoder, self._connection, self._transport
        count = 0
        try:
            if transport is not None and (self._is_known or self._may_come()):
                commands = decoder.commands()
                while count < most:
                    if self._is_known and (appends := decoder.appends(min(_LOOKED_AT_AFTER, most - count))):
                        connection.receive_appends(appends)
                        count += len(appends)
                        is_time = True
                    elif (command := next(commands, None)) is not None:
                        if not self._is_known:
                            self._meet(command)
                        connection.receive(command)
                        count += 1
                        is_time = count % _LOOKED_AT_AFTER == 0
                    else:
                        break
                    if is_time and connection.is_full:
                        break
                    if self._transport is None or transport.is_closing():
                        break
                    if not self._is_known and not self._may_come():
                        break
        except Exception as error:
            connection.taken()  # what came before it is complete
            connection.broken(error)
            return 1
        connection.taken()
        if self._transport is None or self._transport.is_closing():
            return count
        has_rest = decoder.pending_bytes > 0
        if has_rest and (count or not self._has_rest):
            self._frame_at = self._loop.time()
        self._has_rest = has_rest
        is_more = count == most
        goes_on = not is_more and not connection.is_full and (not has_rest or self._has_room())
        if goes_on != self._is_reading:
            self._set_reading(goes_on)
        if is_more and not self._is_due:
            self._is_due = True
            self._rota.add(self._again)
        return count

    def _set_reading(self, is_reading: bool) -> None:
        if self._transport is None:
            return
        self._is_reading = is_reading
        if is_reading:
            self._frame_at = self._loop.time()  # the delay was ours
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _has_room(self) -> bool:
        """Whether there is room for the next buffer, if it isn't a small one; it resumes when there is."""
        needed = self._decoder.next_buffer_bytes - self._decoder.buffer_bytes
        if needed <= self.held.room_bytes:
            return True
        if needed > self._pool.largest_share_bytes:
            what = f"a frame of {needed:,} bytes is more than one connection may ever hold"
            self._connection.broken(ProtocolError(what))
            return False
        self._pool.wait(self.go_on)
        return False

    # --- peers that are not known yet ------------------------------------------------------------------

    def _meet(self, command: Any) -> None:
        """See whether the command shows that its sender may be here; its handler reports what is wrong with it."""
        if self._access.asks:
            if getattr(command, "token", None) is None:
                return
            try:
                self._access.check(command)
            except NadiError:
                return
        self._is_known = True
        self._decoder.max_frame_bytes = MAX_FRAME_RECEIVED_BYTES
        self._connection.known()

    def _may_come(self) -> bool:
        """Whether the rest of a frame that has begun may come: a large one needs a valid token in its head."""
        code, size = self._decoder.head
        if size <= UNKNOWN_PEER_FRAME_BYTES or code not in _LARGE or size > MAX_FRAME_RECEIVED_BYTES:
            return True  # or `next` refuses it
        pending = self._decoder.pending
        try:
            head: Any = decode_payload(wire.GetTableSegmentInfo.code, pending, 8, len(pending))
        except ProtocolError:
            if len(pending) > UNKNOWN_PEER_FRAME_BYTES:
                raise
            return False
        try:
            command: Any = _LARGE[code](head.request_id, head.segment, head.token, ())
            self._access.check(command)
            self._meet(command)
        except NadiError as error:
            self._connection.fail(error, head.request_id, head.segment)
            self._connection.close()
            return False
        return True
