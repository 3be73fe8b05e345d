"""What a repair does for a container whose log can't be replayed: a snapshot of what can be had takes its place."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from nadi.segmentstore import reserve
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.parts import STATE
from nadi.segmentstore.recovery.restoring import restored
from nadi.segmentstore.repair.skipped_frames import skip_frames
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.operations import encode_head
from nadi.segmentstore.tier1.disk import aside_name
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.runs import RunReader
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done. unnamed: so many chunks that no state names are in `chunks_aside` of tier 2 now."""

    unnamed: int = 0
    chunks_aside: str = ""


async def repair_container(folder: Path, number: int, chunks: ChunkStore) -> Repaired:
    """Skip what can't be read of the log: a snapshot of the rest is stored, and the log begins anew after it. It can be
    interrupted at any point, and repeated.

    Raises:
        SnapshotError, DamagedRecordError: there is no snapshot to begin with.
        DamagedStateError: what can be read of the log doesn't fit.
        StorageFullError: there is no room; what counts was not changed.
        UnavailableError, OSError: the folder, or tier 2, can't be used.
    """
    with reserve.in_words(folder):
        return await _repair(folder, number, chunks)


async def _repair(folder: Path, number: int, chunks: ChunkStore) -> Repaired:
    records = await chunks.records()
    record = (await records.read(number)).record
    metadata, _ = await restored(chunks, number, record.snapshot, folder / STATE)
    file = folder / "snapshot.tmp"
    try:
        skipped = await skip_frames(metadata, folder, number, chunks)
        sequence = metadata.state().sequence
        await asyncio.to_thread(_copy, metadata, file)
    finally:
        metadata.close()
    # first: once the snapshot counts, a server deletes what it doesn't name
    if skipped.frames or skipped.ends:
        await asyncio.to_thread(RunReader(folder / "log").keep_aside, skipped.runs)
    chunks_aside = await _set_aside(number, skipped.unnamed, chunks)
    base = await snapshots.put_base(chunks, number, sequence, file)
    file.unlink()
    await FileLog.begin(folder / "log", [encode_head([])], sequence, name=folder.name)
    await records.set_snapshot(number, record.epoch, Manifest(number, sequence, base, ()), ChainStart())
    return Repaired(len(skipped.unnamed), chunks_aside)


def _copy(metadata: Metadata, file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        metadata.copy(descriptor)
    finally:
        os.close(descriptor)


async def _set_aside(container: int, names: list[str], chunks: ChunkStore) -> str:
    """Rename chunks so that they are no longer the container's; return where they are now, "" if there were none.
    Nothing is deleted: moved back under its former name, a chunk is what it was."""
    former = f"container-{container}"
    folder = aside_name(former)
    for name in names:
        await chunks.rename(name, folder + name.removeprefix(former))
    return folder if names else ""
