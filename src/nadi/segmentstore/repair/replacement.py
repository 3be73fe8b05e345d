"""A container's state rebuilt by a repair from what is there, to replace the one that can't be used."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from nadi.errors import StorageFullError
from nadi.segmentstore import reserve
from nadi.segmentstore.recovery import rebuild
from nadi.segmentstore.repair.inspection import Report, state_to_use
from nadi.segmentstore.repair.skipped_frames import skip_frames
from nadi.segmentstore.tier1.disk import aside_name
from nadi.segmentstore.tier1.runs import RunReader
from nadi.segmentstore.tier2.chunks import ChunkStore


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done. aside: where the former state is, if there was any. unnamed: so many chunks that the
    state doesn't name are in `chunks_aside` of tier 2 now."""

    aside: Path | None
    unnamed: int = 0
    chunks_aside: str = ""


async def repair_container(folder: Path, number: int, chunks: ChunkStore) -> Repaired | None:
    """Build a state from what there is, skipping what can't be read of the log, and replace the existing one with it;
    return None if there is nothing to do. It can be interrupted at any point, and repeated.

    Raises:
        DamagedStateError: no state can be built.
        StorageFullError: there is no room, even with what is kept aside; nothing was changed.
        UnavailableError, OSError: the folder, or tier 2, can't be used.
    """
    try:
        with reserve.in_words(folder):
            return await _make_and_replace(folder, number, chunks)
    except StorageFullError:
        if not reserve.release(folder):
            raise
    try:
        with reserve.in_words(folder):
            return await _make_and_replace(folder, number, chunks)
    finally:
        reserve.take(folder)


async def _make_and_replace(folder: Path, number: int, chunks: ChunkStore) -> Repaired | None:
    new = folder / rebuild.NEW
    await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
    try:
        if await state_to_use(Report(folder.name), folder, number, chunks, new) is None:
            return None
        skipped = await skip_frames(new, folder, number, chunks)
        if skipped.frames or skipped.ends:  # a server deletes what the state doesn't mention
            await asyncio.to_thread(RunReader(folder / "log").keep_aside, skipped.runs)
        # first: once the state is there, a server deletes chunks that it doesn't name
        chunks_aside = await _set_aside(number, skipped.unnamed, chunks)
        aside = await asyncio.to_thread(rebuild.replace, folder, new)
        return Repaired(aside, len(skipped.unnamed), chunks_aside)
    finally:
        await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)


async def _set_aside(container: int, names: list[str], chunks: ChunkStore) -> str:
    """Rename chunks so that they are no longer the container's; return where they are now, "" if there were none.
    Nothing is deleted: moved back under its former name, a chunk is what it was."""
    former = f"container-{container}"
    folder = aside_name(former)
    for name in names:
        await chunks.rename(name, folder + name.removeprefix(former))
    return folder if names else ""
