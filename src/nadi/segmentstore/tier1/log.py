"""The seam between a segment container and whatever keeps its frames: what every durable log does.

A container turns its operations into frames and appends them one at a time; the log numbers
them 1, 2, 3… and answers when a frame can't be lost any more. After a restart the container reads its
frames back in order (`replay`), and resumes appending. A frame is a head, which replay needs, and after it parts of
data, which are read later, each by itself. What always holds, for every implementation:

* a frame whose `append` returned is replayed, whole and unchanged, until `truncate` releases it;
* a frame whose `append` did not return is replayed whole or not at all; such frames, perhaps several, may follow the
  last one that was acknowledged;
* sequence numbers go up by one; no two frames share one;
* once a log was opened again, its former owner's appends fail (`epoch`);
* each part has a checksum: bytes other than those that were appended are never returned for them.

`tests/conformance/test_durable_log.py` runs on all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from nadi.errors import CorruptLogError, NotFoundError

NOTHING, HALF, ALL = 0.0, 0.5, 1.0  # of the room kept aside


class LogAddress(NamedTuple):
    """Where a frame is: its number, and the place of its payload (`offset` in file number `file`)."""

    sequence: int
    file: int
    offset: int


class Appended(NamedTuple):
    """A frame that is durable. `checksums` are those of the parts after the head, 4 bytes each, for `read_at`."""

    address: LogAddress
    checksums: bytes


class LogRange(NamedTuple):
    """Bytes of a frame's payload, with what `read_at` takes."""

    address: LogAddress
    offset: int
    length: int
    checksum: bytes


PartRead: TypeAlias = bytes | NotFoundError | CorruptLogError  # or why there is none


class Frame(NamedTuple):
    """A frame as `replay` found it. payload: the head, which is intact, and the parts after it. checksums: of the
    parts, as in `Appended`; empty if they are lost. damaged_parts: which parts, by number from 0, are not as they were
    appended; `read_at` won't return them."""

    address: LogAddress
    payload: bytes
    checksums: bytes
    damaged_parts: tuple[int, ...]


class HeadsRead(NamedTuple):
    """What `read_heads` has read of one file: `sequence` is the next frame, at `position`; `damages` says what a replay
    would miss before it."""

    position: int
    sequence: int
    read_bytes: int
    damages: tuple[CorruptLogError, ...]


class DurableLog(Protocol):
    """One container's log, as its only owner sees it. All of it is called from one event loop."""

    @property
    def epoch(self) -> int:
        """This owner's epoch: one more than the former owner's."""

    @property
    def size_bytes(self) -> int:
        """Bytes held that `truncate` has not passed (known once `replay` has ended)."""

    @property
    def last_sequence(self) -> int:
        """The number of the newest frame; 0 = none yet (known once `replay` has ended)."""

    def replay(self, after_sequence: int) -> AsyncIterator[Frame]:
        """Return all frames later than `after_sequence`, in order. The log has had that frame: earlier ones may be
        damaged or missing, but the log may not end before it. Must be read to its end, once, before the first append.
        CorruptLogError: heads of acknowledged frames are damaged or missing; nothing was changed. FencedError: another
        server has taken over the log since it was opened. UnavailableError, OSError: what keeps it can't be read."""

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room for more of the log; the log keeps checking this by itself."""

    def room_bytes(self, of_kept: float = NOTHING) -> int:
        """Return how large a frame's payload may be so that there is certainly room for it; below 0: none. of_kept: how
        much of the room kept aside the frame may take. While more room is being made, the room isn't known, and counts
        as plenty: `settle` waits for that."""

    @property
    def sure_bytes(self) -> int:
        """A lower bound of `room_bytes()` that is known without asking the disk: cheap enough for each frame."""

    def is_settled(self, payload_bytes: int) -> bool:
        """Whether it is known that there is room for a frame of that size, or that there is none."""

    async def settle(self, payload_bytes: int) -> None:
        """Wait until that is known."""

    async def append(self, parts: Sequence[bytes]) -> Appended:
        """Make one frame durable whose payload is `parts` end to end, the first of them its head. One call at a time.
        StorageFullError: no room; the frame may or may not be there after the next open. OSError: the disk failed; the
        same holds. UnavailableError: an earlier append failed: open the log again. ClosedError: the log was closed, or
        another owner has opened it; where that owner is another server, FencedError."""

    async def read_at(self, address: LogAddress, offset: int, length: int, checksum: bytes = b"") -> bytes:
        """`length` bytes of a frame's payload, from `offset` in it, which must lie inside it. checksum: of just these
        bytes, which are a part; without it the whole frame is read and checked. NotFoundError: the frame was released
        by `truncate`, or its file is gone. CorruptLogError: the bytes are not those that were appended."""

    async def read_parts(self, parts: Sequence[LogRange]) -> list[PartRead]:
        """What `read_at` returns or raises for each of them; those that lie close together are read in one go."""

    def read_heads(self, after_sequence: int) -> AsyncIterator[HeadsRead]:
        """See whether what a replay after that frame needs is still there, of all frames there are now, piece by piece.
        What is released meanwhile is skipped. UnavailableError: the disk fails."""

    def has(self, address: LogAddress, length: int) -> bool:
        """Whether that much of the frame's payload should be there, by the size of its file; nothing is read."""

    def truncate(self, before_sequence: int, keep: Iterable[LogAddress] = ()) -> None:
        """Release the frames below `before_sequence`, except those to `keep`; some may stay a while."""

    async def close(self) -> None:
        """Wait for an append in flight, then let go of everything. Nothing is written."""


async def each_by_itself(read_at: Callable[..., Awaitable[bytes]], parts: Sequence[LogRange]) -> list[PartRead]:
    """`read_parts` of a log that has no quicker way than its `read_at`."""
    read: list[PartRead] = []
    for part in parts:
        try:
            read.append(await read_at(*part))
        except (NotFoundError, CorruptLogError) as error:
            read.append(error)
    return read
