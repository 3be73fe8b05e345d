"""Both ends of a connection as their systems see them: bytes in transit, and unread bytes.

Bytes arrive in order, split anywhere. The number of bytes in transit or unread is limited: beyond that the sender's
system accepts no more. When an end dies or resets the connection, the other one gets part of the bytes in transit. A
system answers data for an unknown connection with a reset; after a power failure that is how the peer notices.
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
_WHOLE = 0.7  # share of writes that arrive in one piece
_TINY_BYTES = 9
_RESET_LOSES = 0.3  # share of resets that lose data
_LARGEST_BYTES = 65_536
_LOST_S = 0.5  # longer delays mean that data was lost, and will be sent again


class Reader(Protocol):
    """The transport over an end, once it exists."""

    def readable(self) -> None: ...

    def writable(self) -> None: ...


class Pair:
    """Two ends. chance: for this connection alone. trace: called with pieces that arrive."""

    def __init__(self, number: int, chance: random.Random, trace: Callable[..., None]) -> None:
        self.number, self.chance, self.trace = number, chance, trace
        self.window_bytes = chance.choice(_WINDOWS_BYTES)

    def between(self, client: Process, server: Process, there: Way, back: Way) -> tuple[End, End]:
        one, other = End(self, "client", client, there), End(self, "server", server, back)
        one.peer, other.peer = other, one
        return one, other


class End:
    """One end. process: its owner. unread: received pieces; None is a reset, b"" the end."""

    peer: End

    def __init__(self, pair: Pair, side: str, process: Process, way: Way) -> None:
        self.pair, self.side, self.process, self.way = pair, side, process, way
        self.reader: Reader | None = None
        self.unread: deque[bytes | None] = deque()
        self.is_closed = False
        self.sends_again = True  # lost data is retransmitted even after closing
        self._is_silent = False  # its host lost power
        self._under_way: deque[bytes | None] = deque()
        self._outstanding_bytes = 0  # sent but not read by the peer
        self._last_arrival = 0.0
        self._is_read_to_end = False
        process.resources[self] = None

    # --- called by a transport ----------------------------------------------------------------------------

    def send(self, data: memoryview) -> int:
        """Return how many of the bytes are accepted."""
        taken = min(len(data), self.pair.window_bytes - self._outstanding_bytes)
        at = 0
        while at < taken:
            size = self._piece(taken - at)
            self._post(bytes(data[at : at + size]))
            at += size
        self._outstanding_bytes += taken
        return taken

    def read(self, most: int) -> bytes | None:
        """Return the next piece received; None is a reset, b"" the end."""
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
        """Deliver the sent data and then the end; a reset if unread data is discarded here."""
        if not self.is_closed:
            if any(self.unread):
                self.reset()
            else:
                self._leave()
                self._post(b"")

    def reset(self) -> None:
        """Reset the connection. Sent data still arrives, however late, unless `sends_again` is off."""
        if not self.is_closed:
            self._leave()
            if not self.sends_again and (self.way.is_cut or self._last_arrival > self.process.loop.now + _LOST_S):
                self._under_way.clear()
            self._reset_peer()

    # --- called by a network, or by faults ----------------------------------------------------------------

    def break_off(self) -> None:
        """End the connection from within the network, notifying this end."""
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
        """Lose and retransmit what it sends from now on, until that time; other connections are unaffected."""
        self._last_arrival = max(self._last_arrival, until)

    def system_is_back(self) -> None:
        """Run its host again, which answers data for older connections with resets."""
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
        """Deliver the next piece: pieces stay in order, even if a cut delayed one of them."""
        if self._under_way:
            self.peer._arrived(self._under_way.popleft())

    def _reset_peer(self) -> None:
        """Reset the peer; the last data in transit may be lost."""
        if self.pair.chance.random() < _RESET_LOSES:
            for _ in range(min(len(self._under_way), self.pair.chance.randrange(4))):
                self._under_way.pop()
        self._post(None)

    def _arrived(self, piece: bytes | None) -> None:
        if not self.is_closed:
            self._take(piece)
        elif piece and not self._is_silent and not self.peer.is_closed:
            self._post(None)  # the system doesn't know the connection

    def _take(self, piece: bytes | None) -> None:
        if self._is_read_to_end:
            return
        self._is_read_to_end = not piece
        self.pair.trace(self.pair.number, self.side, piece)
        self.unread.append(piece)
        if self.reader is not None:
            self.process.call_soon(self.reader.readable)

    def _leave(self) -> None:
        self.is_closed = True
        self.process.resources.pop(self, None)
        self.unread.clear()
