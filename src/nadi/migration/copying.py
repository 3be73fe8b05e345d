"""Copying chunks, some at a time. Each is read, checked against its checksums, and stored under its new name with those
that belong to it there; what an earlier run has copied is checked instead, and copied again if it isn't whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec.structs import replace

from nadi.errors import DamagedDataError, NotFoundError, StoreError
from nadi.limits import MIGRATION_COPIES_AT_ONCE
from nadi.migration.states import Division, Piece
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, checksums_of, renamed
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.description import ChunkDescription, boundaries_of


class Progress(Protocol):
    """Who watches. what: in a word or two."""

    def begin(self, what: str, total_bytes: int) -> None: ...

    def done(self, size_bytes: int) -> None: ...


class Copier:
    """From one store of chunks to another. verifies: read back each that was stored.

    copied: the checksums of what the target has, by container and name in the source.
    """

    def __init__(
        self, source: ChunkStore, target: ChunkStore, division: Division, progress: Progress, *, verifies: bool = False
    ) -> None:
        self.copied: dict[tuple[int, str], bytes] = {}
        self.bytes = self.stored_bytes = 0
        self._source, self._target, self._division, self._progress = source, target, division, progress
        self._verifies = verifies
        self._former: set[str] = set()  # left by an earlier run, and not looked at yet
        self._names: set[str] = set()  # that this run or an earlier one has stored

    async def find_former(self) -> None:
        """Look for what an earlier run has copied."""
        for number in range(self._division.targets):
            self._former.update(await self._target.listed(f"container-{number}"))
        self._names = set(self._former)

    async def copy(self, pieces: Iterable[Piece], what: str, *, complete: bool) -> int:
        """Copy those that aren't yet; return how many bytes that were. complete: none may be missing.

        Raises:
            DamagedDataError: bytes of the source are damaged, or gone.
            StoreError: what was stored is not what is read back.
            UnavailableError, StorageFullError: source or target fail, or the target is full.
        """
        todo = await self._target.runtime.in_thread(self._missing, pieces)  # of millions, perhaps
        total = sum(piece.length for piece in todo)
        self._target.check_room(sum(piece.length for piece in todo if piece.new not in self._former))
        self._progress.begin(what, total)
        before, waiting = self.bytes, iter(todo)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(MIGRATION_COPIES_AT_ONCE):
                    group.create_task(self._copy_some(waiting, complete=complete))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return self.bytes - before

    def _missing(self, pieces: Iterable[Piece]) -> list[Piece]:
        return [piece for piece in pieces if (piece.source, piece.name) not in self.copied]

    async def _copy_some(self, waiting: Iterator[Piece], *, complete: bool) -> None:
        for piece in waiting:
            try:
                checksums = await self._copy(piece)
            except NotFoundError as error:  # a server has replaced it meanwhile
                if complete:
                    raise DamagedDataError(piece.segment, 0, piece.length, str(error)) from error
                continue
            self.copied[piece.source, piece.name] = checksums
            self.bytes += piece.length
            self._progress.done(piece.length)

    async def _copy(self, piece: Piece) -> bytes:
        """Return the checksums that it has there."""
        checksums = renamed(piece.name, piece.new, piece.checksums, piece.length)
        if piece.new in self._former:
            self._former.discard(piece.new)
            if checksums and await self._is_whole(piece, checksums):
                await self._target.settle(piece.new)
                return checksums
        data, damaged = await self._source.read_checked(piece.name, 0, piece.length, piece.checksums)
        if damaged:
            offset = damaged[0] * BLOCK_BYTES
            what = f"chunk {piece.name} is damaged from byte {offset:,} on: see `nadi check`"
            raise DamagedDataError(piece.segment, offset, min(offset + BLOCK_BYTES, piece.length), what)
        if not checksums:  # of an earlier version
            checksums = await self._target.runtime.in_thread(checksums_of, piece.new, [data])
        described = await self._described(piece, checksums)
        self._target.check_room(piece.length)
        await self._target.replace(piece.new, [data, described.encode(piece.new)])
        self._names.add(piece.new)
        self.stored_bytes += piece.length
        if self._verifies and not await self._is_whole(piece, checksums):
            raise StoreError(f"{piece.new} was stored, and isn't what was stored when it is read: use another store")
        return checksums

    async def _is_whole(self, piece: Piece, checksums: bytes) -> bool:
        try:
            _, damaged = await self._target.read_checked(piece.new, 0, piece.length, checksums)
            found = await self._target.description(piece.new, piece.length)
        except NotFoundError:
            return False
        return not damaged and found is not None and found.checksums == checksums

    async def _described(self, piece: Piece, checksums: bytes) -> ChunkDescription:
        """The description that it gets there."""
        found = await self._source.description(piece.name, piece.length)
        if found is None:  # of an earlier version, or damaged
            boundaries = boundaries_of([] if piece.continues else [0], piece.length)
            held = piece.number, piece.segment, piece.offset, piece.length
            return ChunkDescription(piece.target, *held, checksums, boundaries)
        number = self._division.number(piece.source, found.segment_id)
        return replace(found, container=piece.target, segment_id=number, checksums=checksums)

    async def clean_up(self, kept: Iterable[str]) -> None:
        """Delete what was copied and isn't needed after all, as a server has replaced it: all but these, by their names
        in the target."""
        for name in self._names.difference(kept):
            await self._target.delete(name)
