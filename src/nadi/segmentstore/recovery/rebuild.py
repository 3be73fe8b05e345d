"""Rebuilding a container's state that is missing or damaged, from its newest snapshot and the log, or the log alone.

The log must have all frames after the snapshot, or its first frame. If neither is so, the start is refused. It can be
interrupted at any point, and repeated:

    state.copy           of a sound state without a seal, while it is checked: it replaces the file
    state.new            being built; deleted by whoever finds it
    state.made           complete, durable, and known to match the log: it replaces a state that can't be used
    state.damaged-<time> what was there before; never deleted
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from nadi.errors import DamagedStateError, UnavailableError
from nadi.segmentstore import reserve
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.restoring import restore
from nadi.segmentstore.recovery.snapshots import SnapshotError
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.check import STATE_FILE, Examined, Verdict
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.fence import read_epoch
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, FileHeader, log_file_number
from nadi.segmentstore.tier1.recovery import UNKNOWN, first_frame, read_headers
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest

log = logging.getLogger(__name__)

STATE = "state"
COPY = "state.copy"
NEW = "state.new"
MADE = "state.made"
Fits = Callable[[Path], Awaitable[None]]  # raises if a container can't be recovered from that state and its log


@dataclass(frozen=True, slots=True)
class SoundState:
    """The state can be opened. made: why it was rebuilt, if it was. all_to_epoch: the epoch in its seal, if it has all
    that the log ever said."""

    made: str = ""
    all_to_epoch: int = 0


def first_logged(folder: Path, *, without_gap: bool = False) -> int | None:
    """The number of the first frame that the container's log holds; None: it holds none.

    without_gap: the frame from which on it holds all; what precedes a gap may be kept only for its damaged data.
    Damage to the log is reported when it is read.
    """
    log_folder = folder / "log"
    if not log_folder.exists():
        return None
    known = read_epoch(log_folder)
    used = read_headers(log_folder, known[0] if known else None, UNKNOWN).used
    used = [file for file in used if file.first_sequence < UNKNOWN]
    if not used:
        return None
    first = len(used) - 1 if without_gap else 0
    while first and used[first - 1].number == used[first].number - 1:
        first -= 1
    return used[first].first_sequence


def last_epoch(folder: Path) -> int:
    """The epoch of the last owner of a container's log; 0: unknown."""
    log_folder = folder / "log"
    known = read_epoch(log_folder)
    headers, _ = _file_headers(log_folder)
    return max([known[1] if known else 0, *(header.epoch for header in headers)])


def _file_headers(log_folder: Path) -> tuple[list[FileHeader], list[tuple[Path, int]]]:
    """The headers of the log's files; and the files without one that can be read, with their numbers."""
    headers, without = [], []
    for path in log_folder.glob("log-*.nadi"):
        number = log_file_number(path.name)
        if number is not None:
            with path.open("rb") as stream:
                header = FileHeader.decode(stream.read(BLOCK_BYTES), path)
            if header is None:
                without.append((path, number))
            else:
                headers.append(header)
    return headers, without


def has_all(folder: Path, examined: Examined) -> bool:
    """Whether the state was left with all that its log ever said, and nobody has written to that log since."""
    if not examined.epoch:
        return False
    known = read_epoch(folder / "log")
    headers, without = _file_headers(folder / "log")
    if known is not None and any(header.log_id != known[0] for header in headers):
        return False  # the epoch is of another log
    if any(header.epoch > examined.epoch for header in headers):
        return False
    log_id = known[0] if known is not None else headers[0].log_id if headers else b""
    frames = (first_frame(path, number, log_id) for path, number in without)  # a damaged header hides later ones
    return not any(frame is not None and frame.epoch > examined.epoch for frame in frames)


async def sound_state(folder: Path, container: int, chunks: ChunkStore, fits: Fits) -> SoundState:
    """Make sure that the container's state can be opened, rebuilding it if necessary.

    fits: called before the rebuilt state replaces the one there.

    Raises:
        DamagedStateError: it is damaged or missing, and can't be rebuilt without loss. Nothing was changed.
        CorruptLogError: the log doesn't match it. Nothing was changed.
        UnavailableError: tier 2, or the disk, can't be read, or has no room.
        OSError: the folder can't be used.
    """
    examined = await chunks.runtime.in_thread(_examine, folder, container)
    what = wrong(folder, examined)
    said = ""
    if what and (folder / MADE).exists():  # a rebuild was interrupted
        aside = await chunks.runtime.in_thread(put_in_place, folder)
        said = _said("what an interrupted start or repair had made", what, aside)
        log.warning("container %d: %s", container, said)
        examined = await chunks.runtime.in_thread(_examine, folder, container)
        what = wrong(folder, examined)
    await chunks.runtime.in_thread(_clear, folder)
    if what:
        return SoundState(await anew(folder, container, chunks, what, fits))
    older = await older_than_snapshot(container, chunks, examined)
    if older:
        try:
            return SoundState(await anew(folder, container, chunks, older, fits))
        except DamagedStateError as error:
            log.warning("container %d: %s, but that can't be used: %s", container, older, error.why_not)
    return SoundState(said, examined.epoch if has_all(folder, examined) else 0)


def _examine(folder: Path, container: int) -> Examined:
    """Examine the state, and put the compact copy of one without a seal in its place, if there was room for it."""
    copy = folder / COPY
    copy.unlink(missing_ok=True)
    examined = statecheck.examine(folder / STATE, container, copy)
    if examined.verdict is Verdict.SOUND and copy.exists():
        copy.replace(folder / STATE / STATE_FILE)
        disk.sync_folder(folder / STATE)
    copy.unlink(missing_ok=True)
    return examined


async def older_than_snapshot(container: int, chunks: ChunkStore, examined: Examined) -> str:
    """Say if a sound state is older than its newest snapshot, made from one: then an old one was put back."""
    try:
        manifest, _ = await snapshots.newest(chunks, container)
    except UnavailableError:
        return ""  # whoever needs it gets the error
    if manifest is None or manifest.sequence <= examined.sequence:
        return ""
    return f"it ends with frame {examined.sequence:,}, and its snapshot in tier 2 with {manifest.sequence:,}"


def _clear(folder: Path) -> None:
    for name in (NEW, MADE):
        shutil.rmtree(folder / name, ignore_errors=True)


def _said(source: str, what: str, aside: Path | None) -> str:
    return f"the state was rebuilt from {source}: {what}" + (f"; it is kept as {aside.name}" if aside else "")


def wrong(folder: Path, examined: Examined) -> str:
    """Why the state that was examined can't be opened; "" if it can."""
    if examined.verdict is not Verdict.SOUND:
        return examined.what
    if has_all(folder, examined):
        return ""
    sequence = examined.sequence
    first = first_logged(folder)
    if first is None or first <= sequence + 1:
        return ""
    return f"it ends with frame {sequence:,}, and the log begins with {first:,}"


async def anew(folder: Path, container: int, chunks: ChunkStore, what: str, fits: Fits) -> str:
    """Rebuild the state in place of one that is missing or has `what` wrong with it; return a message that says so.

    Raises: as `sound_state`.
    """
    new = folder / NEW
    try:
        source = await make(folder, container, chunks, what, new)
        if not source:
            return ""
        await fits(new)
        aside = await chunks.runtime.in_thread(replace, folder, new)
    finally:
        await chunks.runtime.in_thread(shutil.rmtree, new, ignore_errors=True)
    said = _said(source, what, aside)
    log.warning("container %d: %s", container, said)
    return said


async def make(
    folder: Path, container: int, chunks: ChunkStore, what: str, new: Path, *, with_gap: bool = False
) -> str:
    """Rebuild the state in a new folder, beside the one that has `what` wrong with it; return from what.

    "": the container is new, and was never used. with_gap: the log may lack frames after the snapshot.

    Raises: as `sound_state`.
    """
    first = first_logged(folder, without_gap=True)
    manifest, damaged = await snapshots.newest(chunks, container)
    never_used = first is None and not damaged and (manifest is None or not manifest.sequence)
    if never_used:  # unless there is anything that only a container in use leaves
        has_state = await chunks.runtime.in_thread(_has_state, folder)
        never_used = not has_state and not await chunks.listed(f"container-{container}")
    follows = first <= manifest.sequence + 1 if first and manifest else not (manifest and manifest.sequence)
    if manifest is not None and (follows or with_gap):
        await chunks.runtime.in_thread(new.mkdir, 0o700)
        try:
            with reserve.in_words(folder):
                await restore(chunks, manifest, new)
            return f"the snapshot of frame {manifest.sequence:,} in tier 2 and the log"
        except SnapshotError as error:
            await chunks.runtime.in_thread(shutil.rmtree, new)
            damaged.append(str(error))
            manifest = None
    if never_used:
        return ""
    if first == 1:
        await chunks.runtime.in_thread(new.mkdir, 0o700)
        return "its log, which goes back to its first frame"
    raise DamagedStateError(str(folder / STATE), what, _why_not(first, manifest, damaged))


def _why_not(first: int | None, manifest: Manifest | None, damaged: list[str]) -> str:
    if manifest is not None:
        if first is None:
            return "the log is missing too"
        return f"the log begins with frame {first:,}, and the snapshot in tier 2 ends with {manifest.sequence:,}"
    what = "; ".join(damaged) or "there is no snapshot of it in tier 2"
    return f"{what}, and the log " + ("is missing too" if first is None else f"begins with frame {first:,}")


def _has_state(folder: Path) -> bool:
    file = folder / STATE / STATE_FILE
    return (file.exists() and file.stat().st_size > 0) or any(folder.glob(f"{STATE}.*"))


def replace(folder: Path, new: Path) -> Path | None:
    """Make `new`, which is complete and matches the log, the state; return where the former one is now."""
    disk.sync_folder(new)
    shutil.rmtree(folder / MADE, ignore_errors=True)
    new.rename(folder / MADE)
    disk.sync_folder(folder)
    return put_in_place(folder)


def put_in_place(folder: Path) -> Path | None:
    """Make the rebuilt state the state, and set the former one aside; return where that is now."""
    state, aside = folder / STATE, None
    if state.exists():
        aside = disk.free_name(folder / disk.aside_name(STATE))
        state.rename(aside)
        disk.sync_folder(folder)
    (folder / MADE).rename(state)
    disk.sync_folder(folder)
    return aside
