"""Restoring a container's state from a snapshot of it."""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import lmdb

from nadi.limits import SNAPSHOT_READ_AHEAD, STATE_MAP_BYTES
from nadi.segmentstore.recovery.snapshots import SnapshotError, read_part, unpack_changes
from nadi.segmentstore.state import commit
from nadi.segmentstore.state.check import STATE_FILE
from nadi.segmentstore.state.checked import TABLES, inspect
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest, Part

log = logging.getLogger(__name__)


async def restore(chunks: ChunkStore, manifest: Manifest, folder: Path, *, durable: bool = True) -> None:
    """Restore the state of a snapshot into an empty folder, from the base before if its own is damaged; everything is
    checked, and durable when this returns.

    Not `durable`: it is a copy that nobody keeps, and only the checksums of the stored objects are checked.

    Raises:
        SnapshotError: an object is missing or damaged.
        UnavailableError: tier 2 can't be read.
        OSError: the folder can't be written.
    """
    try:
        await _restore(chunks, manifest, manifest.base, manifest.deltas, folder, durable)
    except SnapshotError as error:
        if not manifest.former_base:
            raise
        log.warning("container %d: its state is restored from the base before: %s", manifest.container, error)
        await chunks.runtime.in_thread(_empty, folder)
        deltas = manifest.former_deltas + manifest.deltas
        await _restore(chunks, manifest, manifest.former_base, deltas, folder, durable)


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


async def _restore(
    chunks: ChunkStore,
    manifest: Manifest,
    base: Sequence[Part],
    deltas: Sequence[Part],
    folder: Path,
    durable: bool,
) -> None:
    file, in_thread = folder / STATE_FILE, chunks.runtime.in_thread
    async for part, stored in _read_parts(chunks, base):
        await in_thread(_append_part, file, part, stored, durable)
    async for _, stored in _read_parts(chunks, deltas):
        await in_thread(_apply, folder, stored, durable)
    if durable:
        await in_thread(_check, file, manifest)
        disk.sync_folder(folder)


async def _read_parts(chunks: ChunkStore, parts: Sequence[Part]) -> AsyncIterator[tuple[Part, bytes]]:
    """The parts in order, some of them read ahead."""
    reading: deque[asyncio.Task[bytes]] = deque()
    try:
        for at, part in enumerate(parts):
            for further in parts[at + len(reading) : at + SNAPSHOT_READ_AHEAD]:
                reading.append(asyncio.create_task(read_part(chunks, further)))
            yield part, await reading.popleft()
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


def _append_part(file: Path, part: Part, stored: bytes, durable: bool) -> None:
    try:
        raw = zlib.decompress(stored)
    except zlib.error as error:
        raise SnapshotError(f"{part.name} can't be unpacked: {error}") from error
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        disk.write_all(descriptor, memoryview(raw), os.fstat(descriptor).st_size)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _apply(folder: Path, stored: bytes, durable: bool) -> None:
    file = folder / STATE_FILE
    map_bytes = max(STATE_MAP_BYTES, 2 * file.stat().st_size + 20 * len(stored))
    with lmdb.open(
        os.fsencode(folder), map_size=map_bytes, max_dbs=len(TABLES), mode=0o600, sync=durable, metasync=durable
    ) as env:
        tables = {name: env.open_db(name.encode()) for name in TABLES}
        for changes in unpack_changes(stored):
            while True:
                try:
                    commit.apply(env, tables, changes)
                except lmdb.MapFullError:
                    env.set_mapsize(2 * env.info()["map_size"])
                else:
                    break


def _check(file: Path, manifest: Manifest) -> None:
    inspected = inspect(file, manifest.container)  # made of objects with correct checksums: it crashes nothing
    if inspected.damage:
        raise SnapshotError(f"the snapshot of container {manifest.container}: {inspected.damage}")
