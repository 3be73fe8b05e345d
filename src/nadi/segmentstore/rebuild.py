"""Making a container's state anew, where it is missing or damaged, if that gives exactly what was lost.

Either from the newest snapshot in tier 2, if the log has all frames after it; or from the log alone, if that still has
its first frame. The damaged state is set aside, never deleted. Where neither is possible the start is refused.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError
from nadi.segmentstore import snapshots, statecheck
from nadi.segmentstore.checked import CRC_BYTES, STATE_KEY
from nadi.segmentstore.metadata import decode_sequence
from nadi.segmentstore.snapshots import Manifest, SnapshotError
from nadi.segmentstore.statecheck import Examined, Verdict
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.fence import read_epoch
from nadi.segmentstore.tier1.recovery import read_headers
from nadi.segmentstore.tier2.chunks import ChunkStore

log = logging.getLogger(__name__)

STATE = "state"
_NEW = "state.new"


def first_logged(folder: Path, *, without_gap: bool = False) -> int | None:
    """The number of the first frame that the container's log holds; None: it holds none.

    without_gap: the one from which it holds all; what stands before a gap may be kept for its damaged data only.

    Raises:
        CorruptLogError: the log's files don't fit together.
    """
    log_folder = folder / "log"
    if not log_folder.exists():
        return None
    known = read_epoch(log_folder)
    used = read_headers(log_folder, known[0] if known else None).used
    if not used:
        return None
    first = len(used) - 1 if without_gap else 0
    while first and used[first - 1].number == used[first].number - 1:
        first -= 1
    return used[first].first_sequence


async def sound_state(folder: Path, container: int, chunks: ChunkStore) -> str:
    """See that the container's state can be opened, making it anew where it must be; says why, if it was.

    Raises:
        DamagedStateError: it is damaged or missing, and can't be made anew without loss. Nothing was changed.
        UnavailableError: tier 2, or the disk, can't be read.
        OSError: the folder can't be used.
    """
    examined = await asyncio.to_thread(statecheck.examine, folder / STATE, container)
    what = wrong(folder, examined)
    if not what:
        statecheck.unseal(folder / STATE)
        return ""
    return await anew(folder, container, chunks, what)


def wrong(folder: Path, examined: Examined) -> str:
    """Why the state that was examined can't be opened; "" if it can."""
    if examined.verdict is not Verdict.SOUND:
        return examined.what
    sequence = _sealed_sequence(folder / STATE) if examined.sealed else examined.sequence
    first = first_logged(folder)
    if first is None or first <= sequence + 1:
        return ""
    return f"it ends with frame {sequence:,}, and the log begins with {first:,}"


def _sealed_sequence(folder: Path) -> int:
    """The last frame that a sealed state reflects: the seal vouches for the file, so it may be mapped."""
    with (
        lmdb.open(str(folder), readonly=True, lock=False, max_dbs=1) as env,
        env.begin(db=env.open_db(b"state", create=False)) as txn,
    ):
        raw = bytes(txn.get(STATE_KEY) or b"")
    return decode_sequence(raw[:-CRC_BYTES]) if raw else 0


async def anew(folder: Path, container: int, chunks: ChunkStore, what: str) -> str:
    """Make the state anew in place of one of which `what` is wrong, or which is missing.

    Raises: as `sound_state`.
    """
    new = folder / _NEW
    await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
    source = await make(folder, container, chunks, what, new)
    if not source:
        return ""
    aside = await asyncio.to_thread(put_in_place, folder, new)
    said = f"the state was made anew from {source}: {what}" + (f"; it is kept as {aside.name}" if aside else "")
    log.warning("container %d: %s", container, said)
    return said


async def make(folder: Path, container: int, chunks: ChunkStore, what: str, new: Path) -> str:
    """Make the state anew in a new folder, beside the one of which `what` is wrong; says from what.

    "": the container is new, and was never used.

    Raises: as `sound_state`.
    """
    first = first_logged(folder, without_gap=True)
    manifest, damaged = await snapshots.newest(chunks, container)
    if first is None and manifest is None and not damaged and not await _was_used(folder, container, chunks):
        return ""
    reaches = first is not None and manifest is not None and first <= manifest.sequence + 1
    if manifest is not None and (reaches or (first is None and not manifest.sequence)):  # the latter was never used
        await asyncio.to_thread(new.mkdir, 0o700)
        try:
            await snapshots.restore(chunks, manifest, new)
            return f"the snapshot of frame {manifest.sequence:,} in tier 2 and the log"
        except SnapshotError as error:
            await asyncio.to_thread(shutil.rmtree, new)
            damaged.append(str(error))
            manifest = None
    if first == 1:
        await asyncio.to_thread(new.mkdir, 0o700)
        return "its log, which goes back to its first frame"
    raise DamagedStateError(str(folder / STATE), what, _why_not(first, manifest, damaged))


def _why_not(first: int | None, manifest: Manifest | None, damaged: list[str]) -> str:
    if manifest is not None:
        if first is None:
            return "the log is missing too"
        return f"the log begins with frame {first:,}, and the snapshot in tier 2 ends with {manifest.sequence:,}"
    told = "; ".join(damaged) or "there is no snapshot of it in tier 2"
    return f"{told}, and the log " + ("is missing too" if first is None else f"begins with frame {first:,}")


async def _was_used(folder: Path, container: int, chunks: ChunkStore) -> bool:
    """Whether there is anything that only a container leaves that was in use."""
    return await asyncio.to_thread(_has_state, folder) or bool(await chunks.listed(f"container-{container}"))


def _has_state(folder: Path) -> bool:
    file = folder / STATE / statecheck.STATE_FILE
    return (file.exists() and file.stat().st_size > 0) or any(folder.glob(f"{STATE}.*"))


def put_in_place(folder: Path, new: Path) -> Path | None:
    """Let `new` be the state, and set aside what was; gives where that is now.

    If it is interrupted, the state is missing, and is made again.
    """
    state, aside = folder / STATE, None
    if state.exists():
        aside = free_name(folder / f"{STATE}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        state.rename(aside)
    new.rename(state)
    disk.sync_folder(folder)
    return aside


def free_name(path: Path) -> Path:
    """The path, or with a number behind it if there is such a thing already."""
    free, count = path, 1
    while free.exists():
        count += 1
        free = path.with_name(f"{path.name}-{count}")
    return free
