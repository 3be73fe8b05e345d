"""What a look at a stopped data folder shows, told for people: `nadi check`, and what `nadi repair` starts from.

Each container is recovered as a server would do it, on a copy of its state (`stopped`), and then every byte that its
segments have is read. Nothing in the folder is changed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from nadi.errors import CorruptLogError, DamagedStateError, InvalidArgumentError
from nadi.segmentstore import rebuild, snapshots, statecheck
from nadi.segmentstore.datafolder import FORMAT, container_folders, find_format
from nadi.segmentstore.salvage import salvage
from nadi.segmentstore.snapshots import SnapshotError
from nadi.segmentstore.stopped import Lost, StoppedContainer, in_words
from nadi.segmentstore.tier1.layout import log_file_number
from nadi.segmentstore.tier2.chunks import ChunkStore

_NAMED = 100  # segments named one by one in a report


@dataclass(slots=True)
class Report:
    """What was found, line by line, for each part.

    sound: what there is. healed: damage that a start, or `nadi repair`, mends without loss. renewed: damage that a
    server mends while it runs. lost: what can't be read, or would be given up.
    """

    name: str
    sound: list[str] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    cut: CorruptLogError | None = None  # the log can only be used up to there
    state_is_lost: DamagedStateError | None = None
    can_be_salvaged: bool = False
    segments: int = 0

    @property
    def is_sound(self) -> bool:
        return not (self.healed or self.renewed or self.lost)


async def inspect_folder(folder: Path) -> list[Report]:
    """Look at a data folder that no server has open.

    Raises:
        InvalidArgumentError: there is none.
        UnavailableError, OSError: it can't be read.
    """
    if not (folder / "format").exists() and not container_folders(folder):
        raise InvalidArgumentError(f"{folder} is no data folder of nadi: it has neither a file `format` nor containers")
    chunks = ChunkStore.in_folder(folder / "tier2")
    reports = [_inspect_format(folder)]
    for number, container in container_folders(folder).items():
        reports.append(await inspect_container(container, number, chunks))
    return reports


def _inspect_format(folder: Path) -> Report:
    report = Report("data folder")
    found = find_format(folder)
    there = set(container_folders(folder))
    if found.format is None:
        report.lost.append(f"`format` is {found.own}, and no copies of it say how many containers there are")
        return report
    if found.disagree:
        report.lost.append("`format` and its copies don't say the same: one of them is of another folder")
    if found.own:
        report.healed.append(f"`format` is {found.own}: it is made anew from its copies")
    elif found.stale and found.format.format == FORMAT:
        report.healed.append("copies of `format` are damaged or missing: they are made anew")
    for number in sorted(set(range(found.format.containers)) - there):
        report.lost.append(f"container-{number} is missing with all that was in it: put it back from a copy")
    report.sound.append(f"format {found.format.format}, {found.format.containers} containers")
    return report


async def inspect_container(
    folder: Path, number: int, chunks: ChunkStore, cut: tuple[int, int] | None = None
) -> Report:
    """Look at one container. cut: as if its log ended there: (number of the file, byte)."""
    report = Report(folder.name)
    await _inspect_snapshots(report, number, chunks)
    with tempfile.TemporaryDirectory(prefix="nadi-check-") as temporary:
        state = Path(temporary) / "state"
        try:
            if not await _state_of(report, folder, number, chunks, state):
                return report
        except DamagedStateError as error:
            report.state_is_lost = error
            report.lost.append(f"the state is lost ({error.what}), and can't be made anew: {error.why_not}")
            try:
                report.lost += await salvage(folder, number, chunks, state)
            except DamagedStateError as nothing:
                report.lost.append(f"next to nothing can be had of it ({nothing.what}): {nothing.why_not}")
                return report
            report.can_be_salvaged = True
            report.sound.append("`nadi repair` can have back what is whole of the state; lost is what is named below")
        except CorruptLogError as error:
            report.cut = error
            report.lost.append(f"the log is damaged at byte {error.offset:,} of {error.file}: {error.what}")
            return report
        stopped = StoppedContainer(number, folder, chunks)
        await stopped.open(state, cut)
        try:
            await _inspect_data(report, stopped)
        finally:
            await stopped.shut()
    return report


async def _state_of(report: Report, folder: Path, number: int, chunks: ChunkStore, copy: Path) -> bool:
    """Have a copy of the container's state, or what a start would make of it; False where it was never used."""
    examined = statecheck.examine(folder / rebuild.STATE, number)
    what = rebuild.wrong(folder, examined)
    if not what:
        await asyncio.to_thread(copy.mkdir, 0o700)
        await asyncio.to_thread(
            shutil.copyfile, folder / rebuild.STATE / statecheck.STATE_FILE, copy / statecheck.STATE_FILE
        )
        report.sound.append("state: as it was left at a clean stop" if examined.sealed else "state: whole")
        return True
    source = await rebuild.make(folder, number, chunks, what, copy)
    if not source:
        report.sound.append("never used")
        return False
    report.healed.append(f"the state can't be used ({what}): it is made anew without loss, from {source}")
    return True


async def _inspect_snapshots(report: Report, number: int, chunks: ChunkStore) -> None:
    manifest, damaged = await snapshots.newest(chunks, number)
    try:
        for part in manifest.parts if manifest is not None else ():
            await snapshots.read_part(chunks, part)
    except SnapshotError as error:
        damaged.append(str(error))
    if damaged:
        report.renewed.append("the state's snapshot can't be used: " + "; ".join(damaged))
    elif manifest is not None:
        report.sound.append(f"snapshot of the state: up to frame {manifest.sequence:,}")


async def _inspect_data(report: Report, stopped: StoppedContainer) -> None:
    read = await stopped.read_all()
    report.segments = len(stopped.segments())
    report.sound.append(f"log: up to frame {stopped.state.sequence:,}")
    report.sound.append(f"{report.segments:,} segments, {read:,} bytes read and right")
    damage = stopped.log.damage
    if damage is not None:
        report.cut = damage
        report.lost.append(f"the log is damaged at byte {damage.offset:,} of {damage.file}: {damage.what}")
    report.lost += lost_lines(stopped, stopped.log.lost)
    known = stopped.damage.all()
    for damaged in known:
        place = f"{in_words(damaged.segment)}: bytes {damaged.offset:,} to {damaged.end_offset:,}"
        report.lost.append(f"{place} can't be read: {damaged.reason}")
    if stopped.damage.unlisted:
        report.lost.append(f"and {stopped.damage.unlisted:,} more such places")


def lost_lines(stopped: StoppedContainer, lost: Lost) -> list[str]:
    """What is given up with the frames behind the log's end, by segment."""
    if not lost.frames:
        return []
    lines = [f"given up with it: {lost.frames:,} acknowledged frames that can be read, up to {lost.last_sequence:,}"]
    for segment, (begin, end) in lost.bytes_of.items():
        lines.append(f"  {in_words(stopped.name_of(segment))}: bytes {begin:,} to {end:,}")
    for segment, count in lost.entries_of.items():
        lines.append(f"  {in_words(stopped.name_of(segment))}: {count:,} changes of table entries")
    lines += [f"  {in_words(name)}: all of it, for it was created there" for name in lost.created.values()]
    lines += [f"  {in_words(stopped.name_of(segment))}: it was deleted, and is there again" for segment in lost.deleted]
    if len(lines) > _NAMED:
        lines[_NAMED:] = [f"  and {len(lines) - _NAMED:,} more"]
    return lines


def cut_of(file: Path, at: int) -> tuple[int, int]:
    """A place in a log as `inspect_container` takes it.

    Raises:
        InvalidArgumentError: that is no log file's name.
    """
    number = log_file_number(file.name)
    if number is None:
        raise InvalidArgumentError(f"{file.name} is no log file: its name must be like log-0000000000000012.nadi")
    return number, at
