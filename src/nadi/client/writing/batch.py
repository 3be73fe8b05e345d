"""A batch of events on its way into one segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nadi.client.segments.tracing import BlockTrace
from nadi.client.writing.ack import Ack
from nadi.client.writing.blocks import Piece
from nadi.limits import KIB, MAX_EVENT_BYTES
from nadi.model.framing import HEADER_BYTES
from nadi.wire.fields import Buffer

_LITTLE_BYTES = 16 * KIB


class Batch:
    """entries: header, payload and routing key of each event in turn, so that one list operation adds an
    event whole, whatever interrupts the thread; a piece of many events stands there as an empty header, its
    bytes and itself. `number` is the writer's event number of its last event, once it was sent (at `sent_at`, by
    time.monotonic); `end` is where it ends in the segment, -1 until that is known; `trace` is for its spans.
    """

    __slots__ = ("_more", "ack", "end", "entries", "number", "sent_at", "size", "trace")

    @property
    def is_large(self) -> bool:
        """One event too large for an append; it goes through a transient segment."""
        return self.size > MAX_EVENT_BYTES + HEADER_BYTES and len(self.entries) == 3

    def __init__(self, ack: Ack | None = None) -> None:
        self.entries: list[bytes | memoryview | str | Piece | None] = []
        self.size = 0
        self.number = self.end = -1
        self.sent_at = 0.0
        self.ack = ack or Ack()
        self.trace: BlockTrace | None = None
        self._more = 0  # events of pieces beyond the first of each

    def __len__(self) -> int:
        return len(self.entries) // 3 + self._more

    def data(self) -> bytes:
        """The events as they lie in the segment."""
        return b"".join(self._pieces())

    def data_to_send(self) -> list[Buffer]:
        """Like `data`, in parts: what is little is joined when it is sent, and pieces aren't copied if there is nothing
        else."""
        entries: list[Any] = self.entries
        if self._more and all(isinstance(key, Piece) for key in entries[2::3]):
            return entries[1::3]
        return self._pieces() if self.size <= _LITTLE_BYTES else [self.data()]

    def _pieces(self) -> list[Any]:
        entries: list[Any] = self.entries
        parts: list[Any] = [b""] * (len(entries) // 3 * 2)
        parts[0::2] = entries[0::3]
        parts[1::2] = entries[1::3]
        return parts

    def parts(self) -> Iterator[tuple[bytes, bytes, str | Piece | None]]:
        """(header, payload, routing key) of each event, (empty, bytes, piece) of each piece, in order."""
        entries: list[Any] = self.entries
        return zip(entries[0::3], entries[1::3], entries[2::3], strict=True)

    def keys_of(self, places: Sequence[int]) -> list[str | None]:
        """The routing keys of the events at these places, which ascend."""
        entries: list[Any] = self.entries
        if not self._more:
            keys = [entries[3 * place + 2] for place in places]
            return [key.key(0) if isinstance(key, Piece) else key for key in keys]
        keys, entry, first, count = [], -1, 0, 0
        for place in places:
            while place >= first + count:
                entry, first = entry + 1, first + count
                key = entries[3 * entry + 2]
                count = key.count if isinstance(key, Piece) else 1
            keys.append(key.key(place - first) if isinstance(key, Piece) else key)
        return keys

    def add(self, header: bytes, payload: bytes, key: str | None) -> None:
        self.entries += (header, payload, key)
        self.size += len(header) + len(payload)

    def add_piece(self, piece: Piece) -> None:
        self._more += piece.count - 1
        self.entries += (b"", piece.framed, piece)
        self.size += len(piece.framed)
