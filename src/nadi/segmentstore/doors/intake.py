"""What a connection takes from its peer: commands out of the bytes that come, no more than there is room for.

Reading goes on while what came is within its limits; else it stops, and the peer's own network holds the rest. In one
turn of the loop a bounded number of commands is taken. A peer that has shown no token yet may send small frames only,
and soon; later a frame that has begun must come to its end.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

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
from nadi.segmentstore.doors.access import TokenCheck
from nadi.segmentstore.rota import Rota
from nadi.wire import commands as wire
from nadi.wire.codec import decode_payload
from nadi.wire.decoder import Decoder

# commands that may be large, and begin as GetTableSegmentInfo does: with the segment and the token
_LARGE = {kind.code: kind for kind in (wire.UpdateTableEntries, wire.RemoveTableKeys, wire.ReadTable)}
_LOOKED_AT_AFTER = 8  # commands: whether the connection takes more; all of them are in one buffer


class Taker(Protocol):
    """The connection, as its intake sees it."""

    @property
    def is_full(self) -> bool:
        """Nothing more is to be taken for now; whoever changes that calls `go_on`."""

    def receive(self, command: wire.Command) -> None: ...

    def known(self) -> None:
        """The peer may be here."""

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None: ...

    def close(self) -> None: ...

    def broken(self, error: Exception) -> None:
        """What was received, or its handling, ends the connection."""


class Intake:
    """Of one connection. `frame_bytes` is the size of the command taken last."""

    def __init__(
        self, taker: Taker, budget: Budget, rota: Rota, access: TokenCheck, transport: asyncio.Transport
    ) -> None:
        self._taker = taker
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
        self._frame_at = self._made_at  # when the frame began that is under way, or reading went on with it
        self._has_rest = False  # of a frame, when commands were taken last
        self._quiet = 0  # looks since something came

    @property
    def frame_bytes(self) -> int:
        return self._decoder.frame_bytes

    def wait(self) -> None:
        """Go on when others gave something back."""
        self._pool.wait(self.go_on)

    @property
    def is_over_share(self) -> bool:
        """What the peer sent before fills its share: the buffer in use does not count."""
        held = self.held.held_bytes
        if held <= PEERS_LEAST_BYTES:
            return False
        return held > CONNECTION_RECEIVED_BYTES or held - self._decoder.current_bytes > self._pool.share_bytes

    @property
    def is_reading(self) -> bool:
        """Whether it takes what the peer sends."""
        return self._is_reading

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet = 0
        self._decoder.filled(nbytes)
        if not self._is_due and (self._is_reading or not self._taker.is_full):
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
        """Why the connection must end, by what does not come; empty if it need not. Buffers of idle peers go."""
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
        if self._transport is None or self._transport.is_closing() or self._taker.is_full:
            return 0
        return self._run(COMMANDS_AT_ONCE)

    def _run(self, most: int) -> int:
        """Take up to `most` commands, and say how many."""
        decoder, taker, transport = self._decoder, self._taker, self._transport
        count = 0
        try:
            if transport is not None and (self._is_known or self._may_come()):
                for command in decoder.commands():
                    if not self._is_known:
                        self._meet(command)
                    taker.receive(command)
                    count += 1
                    if count == most or (count % _LOOKED_AT_AFTER == 0 and taker.is_full):
                        break
                    if self._transport is None or transport.is_closing():
                        break
                    if not self._is_known and not self._may_come():
                        break
        except Exception as error:
            taker.broken(error)
            return 1
        if self._transport is None or self._transport.is_closing():
            return count
        has_rest = decoder.pending_bytes > 0
        if has_rest and (count or not self._has_rest):
            self._frame_at = self._loop.time()
        self._has_rest = has_rest
        is_more = count == most
        goes_on = not is_more and not taker.is_full and (not has_rest or self._has_room())
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
            self._frame_at = self._loop.time()  # it was for us to wait
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _has_room(self) -> bool:
        """For the buffer that comes next, where that is not a small one; it goes on when there is."""
        needed = self._decoder.next_buffer_bytes - self._decoder.buffer_bytes
        if needed <= self.held.room_bytes:
            return True
        if needed > self._pool.largest_share_bytes:
            self._taker.broken(ProtocolError(f"a frame of {needed:,} bytes is more than one connection may ever hold"))
            return False
        self._pool.wait(self.go_on)
        return False

    # --- peers that are not known yet ------------------------------------------------------------------

    def _meet(self, command: Any) -> None:
        """Whether the command shows that its sender may be here; who handles it says what is wrong with it."""
        if self._access.asks:
            if getattr(command, "token", None) is None:
                return
            try:
                self._access.check(command)
            except NadiError:
                return
        self._is_known = True
        self._decoder.max_frame_bytes = MAX_FRAME_RECEIVED_BYTES
        self._taker.known()

    def _may_come(self) -> bool:
        """Whether the frame that has begun may come whole: a large one needs a token that is right, in its head."""
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
            self._meet_large(_LARGE[code](head.request_id, head.segment, head.token, ()))
        except NadiError as error:
            self._taker.fail(error, head.request_id, head.segment)
            self._taker.close()
            return False
        return True

    def _meet_large(self, command: Any) -> None:
        self._access.check(command)
        self._meet(command)
