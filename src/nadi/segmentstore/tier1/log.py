"""Defines what every durable log of a segment container guarantees.

A container turns its operations into frames and appends them one at a time; the log numbers them 1, 2, 3… and answers
when a frame can't be lost any more. After a restart the container reads its frames back in order (`replay`), and
resumes appending. A frame is a head, needed by replay, followed by parts of data, which are read later, one by one.
Guarantees of every implementation:

* a frame whose `append` returned is replayed, complete and unchanged, until `truncate` releases it;
* a frame whose `append` did not return is replayed completely or not at all; several such frames may follow the last
acknowledged one;
* sequence numbers increase by one; no two frames share one;
* once a log has been opened again, its earlier owner's appends fail (`epoch`);
* each part has a checksum: damaged bytes are never returned for it.

`tests/conformance/test_durable_log.py` runs on all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from nadi.errors import CorruptLogError, NotFoundError

NOTHING, HALF, ALL = 0.0, 0.5, 1.0  # fractions of the reserve


class LogAddress(NamedTuple):
    """The address of a frame: its number, and the position of its payload (`offset` in file number `file`)."""

    sequence: int
    file: int
    offset: int


class AppendedFrame(NamedTuple):
    """A durable frame. checksums: of the parts after the head, 4 bytes each, for `read_at`."""

    address: LogAddress
    checksums: bytes


class LogRange(NamedTuple):
    """Bytes of a frame's payload, with the arguments of `read_at`."""

    address: LogAddress
    offset: int
    length: int
    checksum: bytes


PartRead: TypeAlias = bytes | NotFoundError | CorruptLogError  # or the error


class Frame(NamedTuple):
    """A frame as `replay` read it. payload: the head, which is intact, and the parts after it. checksums: of the parts,
    as in `AppendedFrame`; empty if they are lost. damaged_parts: the numbers, from 0, of parts that `read_at` won't
    return."""

    address: LogAddress
    payload: bytes
    checksums: bytes
    damaged_parts: tuple[int, ...]


class HeadsPage(NamedTuple):
    """The result of `read_heads` for a part of one file: the next frame is `sequence`, at `position`; `damages` are the
    errors that a replay would hit before it."""

    position: int
    sequence: int
    read_bytes: int
    damages: tuple[CorruptLogError, ...]


class DurableLog(Protocol):
    """One container's log, as used by its only owner. All calls come from one event loop."""

    @property
    def epoch(self) -> int:
        """This owner's epoch: one more than the previous owner's."""

    @property
    def size_bytes(self) -> int:
        """The bytes not yet released by `truncate` (known once `replay` has ended)."""

    @property
    def last_sequence(self) -> int:
        """The number of the newest frame; 0 if there is none (known once `replay` has ended)."""

    def replay(self, after_sequence: int) -> AsyncIterator[Frame]:
        """Return all frames later than `after_sequence`, in order. Earlier ones may be damaged or missing, but the log
        may not end before that frame. Must be read to its end, once, before the first append. CorruptLogError: heads of
        acknowledged frames are damaged or missing; nothing was changed. FencedError: another server has taken over the
        log since it was opened. UnavailableError, OSError: its storage can't be read."""

    @property
    def is_full(self) -> bool:
        """Whether the disk has no space for more of the log; the log keeps checking."""

    def free_bytes(self, of_reserve: float = NOTHING) -> int:
        """Return the largest payload that is certain to fit; below 0: none does. of_reserve: the fraction of the
        reserve the frame may use. While the log prepares more space, its amount is unknown, and counts as plenty:
        `settle` waits for that."""

    @property
    def sure_bytes(self) -> int:
        """A lower bound of `free_bytes()` without asking the disk: cheap enough for each frame."""

    def is_settled(self, payload_bytes: int) -> bool:
        """Return whether the space for a frame of that size, or the lack of it, is known."""

    async def settle(self, payload_bytes: int) -> None:
        """Wait until `is_settled`."""

    async def append(self, parts: Sequence[bytes]) -> AppendedFrame:
        """Make one frame durable, whose payload is the concatenated `parts`, the first of which is its head. One call
        at a time. StorageFullError: the disk is full; the frame may or may not exist after the next open. OSError: the
        disk failed; the same holds. UnavailableError: an earlier append failed: open the log again. ClosedError: the
        log was closed, or another owner has opened it; FencedError if that is another server."""

    async def read_at(self, address: LogAddress, offset: int, length: int, checksum: bytes = b"") -> bytes:
        """Read `length` bytes of a frame's payload, from `offset` in it. checksum: of exactly these bytes, which are a
        part; without it the entire frame is read and verified. NotFoundError: `truncate` released the frame, or its
        file is missing. CorruptLogError: the bytes are damaged."""

    async def read_parts(self, parts: Sequence[LogRange]) -> list[PartRead]:
        """Return the result or error of `read_at` for each part; parts close together are read at once."""

    def read_heads(self, after_sequence: int) -> AsyncIterator[HeadsPage]:
        """Verify all existing frames that a replay after `after_sequence` needs, piece by piece. Frames released
        meanwhile are skipped. UnavailableError: the disk fails."""

    def has(self, address: LogAddress, length: int) -> bool:
        """Return whether `length` bytes of the frame's payload should exist, by the size of its file; nothing is
        read."""

    def truncate(self, before_sequence: int, keep: Iterable[LogAddress] = ()) -> None:
        """Release the frames below `before_sequence`, except those to `keep`; some may stay for a while."""

    async def close(self) -> None:
        """Wait for an append in flight, then close everything. Nothing is written."""


async def read_each(read_at: Callable[..., Awaitable[bytes]], parts: Sequence[LogRange]) -> list[PartRead]:
    """Implement `read_parts` by `read_at` alone."""
    read: list[PartRead] = []
    for part in parts:
        try:
            read.append(await read_at(*part))
        except (NotFoundError, CorruptLogError) as error:
            read.append(error)
    return read
