"""Both ends of a connection as the hosts' systems keep them: bytes under way, and those that nobody has read yet.

Bytes arrive in order, split anywhere. Only so many are under way or unread: then the sender's system takes no more. Who
dies or resets the connection leaves the other end some of what was under way. A system answers what comes for a
connection that it doesn't have with a reset; if it went down itself, that is how the other end learns of it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .ways import Way

if TYPE_CHECKING:
    from .process import Process

_WINDOWS_BYTES = (4_096, 65_536, 1 << 20)
_WHOLE = 0.7  # of what is sent comes in one piece
_TINY_BYTES = 9
_RESET_LOSES = 0.3  # of all resets
_LARGEST_BYTES = 65_536
_LOST_S = 0.5  # what takes longer was lost, and will be sent again


class Reader(Protocol):
    """The transport over an end, once there is one."""

    def readable(self) -> None: ...

    def writable(self) -> None: ...


class Pair:
    """Two ends. chance: of this connection alone. tell: of what arrives, for the trace."""

    def __init__(self, number: int, chance: random.Random, tell: Callable[..., None]) -> None:
        self.number, self.chance, self.tell = number, chance, tell
        self.window_bytes = chance.choice(_WINDOWS_BYTES)

    def between(self, client: Process, server: Process, there: Way, back: Way) -> tuple[End, End]:
        one, other = End(self, "client", client, there), End(self, "server", server, back)
        one.peer, other.peer = other, one
        return one, other


class End:
    """One of them. process: whose it is. unread: what arrived; None in it is a reset, b"" the end."""

    peer: End

    def __init__(self, pair: Pair, side: str, process: Process, way: Way) -> None:
        self.pair, self.side, self.process, self.way = pair, side, process, way
        self.reader: Reader | None = None
        self.unread: deque[bytes | None] = deque()
        self.is_closed = False
        self.sends_again = True  # what was lost on the way, though it was closed since
        self._is_silent = False  # its host went down with it
        self._under_way: deque[bytes | None] = deque()
        self._outstanding_bytes = 0  # sent, and not read by the peer
        self._last_arrival = 0.0
        self._is_read_to_end = False
        process.held[self] = None

    # --- what a transport calls -------------------------------------------------------------------------

    def send(self, data: memoryview) -> int:
        """How many of the bytes it takes."""
        taken = min(len(data), self.pair.window_bytes - self._outstanding_bytes)
        at = 0
        while at < taken:
            size = self._piece(taken - at)
            self._post(bytes(data[at : at + size]))
            at += size
        self._outstanding_bytes += taken
        return taken

    def read(self, most: int) -> bytes | None:
        """The next of what arrived; None is a reset, b"" the end."""
        piece = self.unread.popleft()
        if not piece:
            return piece
        if len(piece) > most:
            self.unread.appendleft(piece[most:])
            piece = piece[:most]
        peer = self.peer
        before, half = peer._outstanding_bytes, self.pair.window_bytes // 2
        peer._outstanding_bytes -= len(piece)
        if peer._outstanding_bytes <= half < before and peer.reader is not None and not peer.is_closed:
            peer.process.call_soon(peer.reader.writable)
        return piece

    def close(self) -> None:
        """The peer gets what was sent, and then the end; or a reset if something here was not read."""
        if not self.is_closed:
            if any(self.unread):
                self.reset()
            else:
                self._leave()
                self._post(b"")

    def reset(self) -> None:
        """What was sent comes yet, however late, unless its system was told (`sends_again`)."""
        if not self.is_closed:
            self._leave()
            if not self.sends_again and (self.way.is_cut or self._last_arrival > self.process.loop.now + _LOST_S):
                self._under_way.clear()
            self._reset_peer()

    # --- what a network, and whoever kills, calls ---------------------------------------------------------

    def break_off(self) -> None:
        """Something on the way ends the connection, and tells this end."""
        if not self.is_closed:
            self._take(None)

    def process_died(self, *, with_power: bool) -> None:
        if self.is_closed:
            return
        self._leave()
        self._is_silent = with_power
        if not with_power:
            self._reset_peer()

    def stall(self, until: float) -> None:
        """What it sends from now on is lost, and sent again, for so long: other connections are better off."""
        self._last_arrival = max(self._last_arrival, until)

    def system_is_back(self) -> None:
        """Its host runs again, and answers what comes for connections of before."""
        self._is_silent = False

    # --- inside -----------------------------------------------------------------------------------------

    def _piece(self, left: int) -> int:
        chance = self.pair.chance
        where = chance.random()
        if where < _WHOLE:
            return min(left, _LARGEST_BYTES)
        if where < (1 + _WHOLE) / 2:
            return chance.randrange(1, min(left, _LARGEST_BYTES) + 1)
        return min(left, chance.randrange(1, _TINY_BYTES + 1))

    def _post(self, piece: bytes | None) -> None:
        self._under_way.append(piece)
        self._last_arrival = self.way.arrive(self._delivered, self._last_arrival, len(piece) if piece else 0)

    def _delivered(self) -> None:
        """The next one, for all come in order, even where a cut held one of them."""
        if self._under_way:
            self.peer._arrived(self._under_way.popleft())

    def _reset_peer(self) -> None:
        """The last of what is under way may be lost."""
        if self.pair.chance.random() < _RESET_LOSES:
            for _ in range(min(len(self._under_way), self.pair.chance.randrange(4))):
                self._under_way.pop()
        self._post(None)

    def _arrived(self, piece: bytes | None) -> None:
        if not self.is_closed:
            self._take(piece)
        elif piece and not self._is_silent and not self.peer.is_closed:
            self._post(None)  # the system knows nothing of such a connection

    def _take(self, piece: bytes | None) -> None:
        if self._is_read_to_end:
            return
        self._is_read_to_end = not piece
        self.pair.tell(self.pair.number, self.side, piece)
        self.unread.append(piece)
        if self.reader is not None:
            self.process.call_soon(self.reader.readable)

    def _leave(self) -> None:
        self.is_closed = True
        self.process.held.pop(self, None)
        self.unread.clear()
