"""A container's state rebuilt by a repair from what is there, to replace the one that can't be used."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from nadi.errors import StorageFullError
from nadi.segmentstore import reserve
from nadi.segmentstore.recovery import rebuild
from nadi.segmentstore.repair.inspection import state_to_use
from nadi.segmentstore.repair.leftout import leave_out
from nadi.segmentstore.repair.report import Report
from nadi.segmentstore.repair.unnamed import set_aside
from nadi.segmentstore.tier1.runs import RunReader
from nadi.segmentstore.tier2.chunks import ChunkStore


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done. aside: where the former state is, if there was any. had_back: what chunks had of frames
    that are missing. unnamed: so many chunks that the state doesn't name are in `chunks_aside` of tier 2 now."""

    aside: Path | None
    had_back: tuple[str, ...] = ()
    unnamed: int = 0
    chunks_aside: str = ""


async def repair_container(
    folder: Path, number: int, chunks: ChunkStore, *, leaves_out: bool = True
) -> Repaired | None:
    """Build a state from what there is, leaving out what can't be read of the log, and replace the existing one with
    it; return None if there is nothing to do. It can be interrupted at any point, and repeated.

    leaves_out: if False, nothing is done if part of the log can't be read.

    Raises:
        DamagedStateError: no state can be built.
        StorageFullError: there is no room, even with what is kept aside; nothing was changed.
        UnavailableError, OSError: the folder, or tier 2, can't be used.
    """
    try:
        with reserve.in_words(folder):
            return await _make_and_replace(folder, number, chunks, leaves_out=leaves_out)
    except StorageFullError:
        if not reserve.release(folder):
            raise
    try:
        with reserve.in_words(folder):
            return await _make_and_replace(folder, number, chunks, leaves_out=leaves_out)
    finally:
        reserve.take(folder)


async def _make_and_replace(folder: Path, number: int, chunks: ChunkStore, *, leaves_out: bool) -> Repaired | None:
    new = folder / rebuild.NEW
    await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
    try:
        if await state_to_use(Report(folder.name), folder, number, chunks, new) is None:
            return None
        found = await leave_out(new, folder, number, chunks)
        if (found.frames or found.ends) and not leaves_out:
            return None
        if found.frames or found.ends:  # a server deletes what the state doesn't mention
            await asyncio.to_thread(RunReader(folder / "log").keep_aside, found.runs)
        # first: once the state is there, nothing may be left that a later repair could take for what is written then
        chunks_aside = await set_aside(number, list(found.unnamed), chunks)
        aside = await asyncio.to_thread(rebuild.replace, folder, new)
        return Repaired(aside, tuple(found.had_back), len(found.unnamed), chunks_aside)
    finally:
        await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
