"""Restoring a container's state from a snapshot of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import zlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from nadi.limits import SNAPSHOT_READ_AHEAD
from nadi.segmentstore.recovery.snapshots import SnapshotError, read_part, unpack_changes
from nadi.segmentstore.state.metadata import STATE_FILE, Metadata
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest, Part


async def restored(
    chunks: ChunkStore, container: int, snapshot: Manifest | None, folder: Path
) -> tuple[Metadata, list[str]]:
    """Restore the state of a snapshot, without one an empty state, in a folder whose former content is deleted. Return
    it, and what is wrong with objects of the snapshot whose copies were used instead.

    Raises:
        SnapshotError: an object is missing or damaged, and so is its copy.
        StorageFullError, UnavailableError, OSError: the folder can't be written, or tier 2 can't be read.
    """
    in_thread, damaged = chunks.runtime.in_thread, list[str]()
    await in_thread(_empty, folder)
    for_base, for_deltas = (snapshot.base, snapshot.deltas) if snapshot is not None else ((), ())
    async for stored in _read(chunks, for_base, damaged):
        await in_thread(_append, folder / STATE_FILE, stored)
    metadata = await in_thread(Metadata, folder, container)
    try:
        async for stored in _read(chunks, for_deltas, damaged):
            await in_thread(metadata.apply, unpack_changes(stored))
        if snapshot is not None and metadata.state().sequence != snapshot.sequence:
            raise SnapshotError(f"the snapshot of container {container} isn't one of frame {snapshot.sequence:,}")
    except BaseException:
        metadata.close()
        raise
    return metadata, damaged


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)


async def _read(chunks: ChunkStore, parts: Sequence[Part], damaged: list[str]) -> AsyncIterator[bytes]:
    """The parts in order, some of them read ahead."""
    reading: deque[asyncio.Task[bytes]] = deque()
    try:
        for at in range(len(parts)):
            for further in parts[at + len(reading) : at + SNAPSHOT_READ_AHEAD]:
                reading.append(asyncio.create_task(read_part(chunks, further, damaged)))
            yield await reading.popleft()
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


def _append(file: Path, stored: bytes) -> None:
    try:
        raw = zlib.decompress(stored)
    except zlib.error as error:
        raise SnapshotError(f"a part of a base can't be unpacked: {error}") from error
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        disk.write_all(descriptor, memoryview(raw), os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
