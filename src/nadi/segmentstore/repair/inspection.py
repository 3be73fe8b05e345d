"""What a look at a stopped data folder shows, told for people: `nadi check`, and what `nadi repair` starts from.

Each container is recovered as a server would do it, on a copy of its state (`stopped`), and then every byte that its
segments have is read. Nothing in the folder is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nadi.errors import CorruptLogError, DamagedStateError, StorageFullError
from nadi.segmentstore import reserve
from nadi.segmentstore.datafolder import (
    FORMAT,
    container_folders,
    find_format,
    known_containers,
    misplaced,
    named,
    stored_containers,
    told_by_names,
)
from nadi.segmentstore.recovery import rebuild, snapshots
from nadi.segmentstore.recovery.snapshots import SnapshotError
from nadi.segmentstore.repair.leftout import leave_out
from nadi.segmentstore.repair.salvage import salvage
from nadi.segmentstore.repair.stopped import Lost, StoppedContainer, in_words
from nadi.segmentstore.repair.unnamed import set_aside
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.tier1.cut import check_place
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
    leaves_out: bool = False  # what can't be read of the log, and keeps what follows
    unnamed: int = 0  # chunks that belong to what is given up
    given_up_from: int = 0  # the first frame of an end of the log that an earlier repair gave up
    state_is_lost: DamagedStateError | None = None
    can_be_had_back: bool = False  # what is whole of it
    is_refused: bool = False  # no server starts with it, and a repair changes nothing about that
    segments: int = 0
    names: list[str] = field(default_factory=list)  # of the segments
    containers: int = 0  # so many there are, by their segments' names alone

    @property
    def can_be_served(self) -> bool:
        return not (self.is_refused or self.cut or self.leaves_out or self.state_is_lost)

    @property
    def gives_up(self) -> bool:
        """Whether a repair gives up what is `lost`, so that it can be read no more, and isn't told later."""
        return self.leaves_out or self.can_be_had_back or self.cut is not None

    @property
    def is_sound(self) -> bool:
        return not (self.healed or self.renewed or self.lost)


async def inspect_folder(folder: Path) -> list[Report]:
    """Look at a data folder that no server has open.

    Raises:
        UnavailableError, OSError: it can't be read.
    """
    report = _inspect_format(folder)
    found = find_format(folder).format
    containers: dict[int, Report] = {}
    are_some_there = bool(container_folders(folder))
    with chunks_of(folder) as chunks:
        for number, container in known_containers(folder).items():
            if found is not None and number >= found.containers:
                continue
            if are_some_there and not container.is_dir():
                containers[number] = await _inspect_missing(container, number, chunks)
            else:
                containers[number] = await inspect_container(container, number, chunks)
    if found is None and not any(container.is_refused for container in containers.values()):
        _tell_containers(report, containers)
    return [report, *containers.values()]


async def _inspect_missing(folder: Path, number: int, chunks: ChunkStore) -> Report:
    """Of a container whose folder is missing while others are there, as when a disk is not mounted: one that was made
    anew of what tier 2 has would lose what was in its log."""
    report = Report(folder.name, is_refused=True)
    await _inspect_snapshots(report, folder, number, chunks)
    report.lost.append("its log and its state are missing with its folder: put it back; tier 2 has chunks or snapshots")
    return report


def _tell_containers(report: Report, containers: dict[int, Report]) -> None:
    """Where `format` and its copies are gone: the names of segments may tell how many containers there are."""
    count = told_by_names({number: container.names for number, container in containers.items()})
    if count is not None:
        report.lost, report.is_refused = [], False
        report.containers = count
        report.healed.append(f"`format` and its copies are gone: by the names of segments there are {count} containers")


@contextlib.contextmanager
def chunks_of(folder: Path) -> Iterator[ChunkStore]:
    """A data folder's chunks; an empty store elsewhere if it has lost the whole of tier 2."""
    if (folder / "tier2").is_dir():
        yield ChunkStore.in_folder(folder / "tier2")
        return
    with tempfile.TemporaryDirectory(prefix="nadi-no-chunks-") as temporary:
        yield ChunkStore.in_folder(Path(temporary))


def _inspect_format(folder: Path) -> Report:
    report = Report("data folder")
    found = find_format(folder)
    known, stored = set(known_containers(folder)), stored_containers(folder)
    if found.format is None:
        report.lost.append(f"`format` is {found.own}, and no copies of it say how many containers there are")
        report.is_refused = True
        return report
    if found.disagree:
        report.lost.append("`format` and its copies don't say the same: one of them is of another folder")
        report.is_refused = True
    if found.own:
        report.healed.append(f"`format` is {found.own}: it is made anew from its copies")
    elif found.stale and found.format.format == FORMAT:
        report.healed.append("copies of `format` are damaged or missing: they are made anew")
    count = found.format.containers
    for what in misplaced(folder, count):
        report.lost.append(what)
        report.is_refused = True
    for number in sorted(set(range(count)) - known):
        report.lost.append(f"container-{number} is missing with all that was in it: put it back from a copy")
        report.is_refused = True
    if others := {number for number in stored if number >= count}:
        said = f"`format` says {count} containers, and no server reads it"
        report.lost.append(f"tier 2 has data of {named(others)}, which isn't of this folder, or was given up: {said}")
    report.sound.append(f"format {found.format.format}, {found.format.containers} containers")
    return report


async def inspect_container(
    folder: Path, number: int, chunks: ChunkStore, cut: tuple[int, int] | None = None
) -> Report:
    """Look at one container. cut: as if its log ended there: (number of the file, byte)."""
    report = Report(folder.name)
    snapshot_sequence = await _inspect_snapshots(report, folder, number, chunks)
    with tempfile.TemporaryDirectory(prefix="nadi-check-") as temporary:
        state = Path(temporary) / "state"
        try:
            has_all = await state_to_use(report, folder, number, chunks, state)
        except DamagedStateError as error:
            report.state_is_lost = error
            report.lost.append(f"next to nothing can be had of it ({error.what}): {error.why_not}")
            return report
        if has_all is None:
            return report
        stopped = StoppedContainer(number, folder, chunks)
        try:
            await stopped.open(state, cut, has_all=has_all)
        except DamagedStateError as error:
            report.is_refused = True
            report.lost.append(f"{error.what}: {error.why_not}; put back the one that belongs here")
            return report
        try:
            if stopped.log.damage is not None and cut is None and await _left_out(report, stopped, state):
                await stopped.shut()
                await stopped.open(state, has_all=True)
            elif cut is None and snapshot_sequence is not None:
                await _inspect_heads(report, stopped, snapshot_sequence)
            await _inspect_data(report, stopped)
        finally:
            await stopped.shut()
    return report


async def state_to_use(report: Report, folder: Path, number: int, chunks: ChunkStore, copy: Path) -> bool | None:
    """Have a copy of the container's state, or what can be made in its place; None where it was never used.

    Whether it has all that the log ever said. The report tells what it is.

    Raises:
        DamagedStateError: nothing can be made.
    """
    examined = statecheck.examine(folder / rebuild.STATE, number)
    what = rebuild.wrong(folder, examined)
    older = "" if what else await rebuild.older_than_snapshot(number, chunks, examined)
    if older:
        try:
            source = await rebuild.make(folder, number, chunks, older, copy)
        except DamagedStateError:
            pass  # a snapshot that can't be used is told as such
        else:
            report.healed.append(f"the state is an older one ({older}): it is made anew, from {source}")
            return False
    if not what:
        await asyncio.to_thread(_copy, folder / rebuild.STATE, copy)
        report.sound.append(_in_words(examined))
        report.given_up_from = examined.given_up_from
        return rebuild.has_all(folder, examined)
    made = statecheck.examine(folder / rebuild.MADE, number)
    if not rebuild.wrong(folder, made):
        await asyncio.to_thread(_copy, folder / rebuild.MADE, copy)
        report.healed.append(
            f"the state can't be used ({what}): what an interrupted start or repair made takes its place"
        )
        return rebuild.has_all(folder, made)
    try:
        source = await rebuild.make(folder, number, chunks, what, copy)
    except DamagedStateError as error:
        report.state_is_lost = error
        report.lost.append(f"the state can't be used ({error.what}), and can't be made anew: {error.why_not}")
        if examined.verdict is statecheck.Verdict.SOUND:  # it is the log that has lost its beginning
            await asyncio.to_thread(_copy, folder / rebuild.STATE, copy)
        else:
            report.lost += await salvage(folder, number, chunks, copy)
            report.sound.append("`nadi repair` can have back what is whole of the state; lost is what is named below")
        report.can_be_had_back = True
        return False
    if not source:
        report.sound.append("never used")
        return None
    report.healed.append(f"the state can't be used ({what}): it is made anew without loss, from {source}")
    return False


def _in_words(examined: statecheck.Examined) -> str:
    if examined.given_up_from:
        return f"state: as a repair made it, without what frames {examined.given_up_from:,} on of the log said"
    return "state: as it was left at a clean stop" if examined.sealed else "state: whole"


def _copy(state: Path, copy: Path) -> None:
    copy.mkdir(mode=0o700)
    shutil.copyfile(state / statecheck.STATE_FILE, copy / statecheck.STATE_FILE)


async def _left_out(report: Report, stopped: StoppedContainer, state: Path) -> bool:
    """Try to leave out what can't be read of the log; the state is as it was if that is not to be done."""
    damage = stopped.log.damage
    assert damage is not None
    begins_late = stopped.log.first_sequence > stopped.state.sequence + 1  # ending it would leave nothing
    report.lost.append(f"the log is damaged at byte {damage.offset:,} of {damage.file}: {damage.what}")
    with tempfile.TemporaryDirectory(prefix="nadi-check-") as temporary:
        trial = Path(temporary) / "state"
        await asyncio.to_thread(_copy, state, trial)
        try:
            found = await leave_out(trial, stopped.folder, stopped.number, stopped.chunks)
        except DamagedStateError as error:
            report.lost.append(f"what can't be read can't be left out: {error.what}, and {error.why_not}")
            report.cut = None if begins_late else damage
            return False
        if found.unsafe and not begins_late and not report.can_be_had_back:
            report.lost.append(f"{found.in_words()} can't be left out, for what follows doesn't go without:")
            report.lost += [f"  {line}" for line in found.unsafe]
            report.cut = damage
            return False
        if found.frames:
            report.lost.append(f"{found.in_words()} can't be read; the {found.kept:,} after that are kept")
        report.lost += found.unsafe + found.lost
        report.sound += [f"chunks have what is missing of the log: {place}" for place in found.had_back]
        report.leaves_out, report.unnamed = True, len(found.unnamed)
        shutil.copyfile(trial / statecheck.STATE_FILE, state / statecheck.STATE_FILE)
    return True


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
    """Make a state of what there is, leaving out what can't be read of the log, and let it take the place of the one
    that is there; None where there is nothing to do. It can be interrupted at any moment, and done again.

    leaves_out: if not, nothing is done where something of the log can't be read.

    Raises:
        DamagedStateError: nothing can be made.
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
        # first: once the state is there, nothing may be left that a later repair could take for what is written then
        chunks_aside = await set_aside(number, list(found.unnamed), chunks)
        aside = await asyncio.to_thread(rebuild.replace, folder, new)
        return Repaired(aside, tuple(found.had_back), len(found.unnamed), chunks_aside)
    finally:
        await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)


async def _inspect_snapshots(report: Report, folder: Path, number: int, chunks: ChunkStore) -> int | None:
    """The last frame that a state made of the snapshot reflects; 0: the log has all from its begin; None: neither."""
    manifest, damaged = await snapshots.newest(chunks, number)
    try:
        for part in manifest.parts if manifest is not None else ():
            await snapshots.read_part(chunks, part)
    except SnapshotError as error:
        damaged.append(str(error))
    if manifest is not None:
        listed = await chunks.listed(snapshots.folder_of(number))
        for name, what in (await snapshots.wrong_manifests(chunks, manifest)).items():
            if name in listed:  # earlier versions stored it once
                report.renewed.append(f"one of the two manifests of the state's snapshot: {what}")
    if damaged:
        report.renewed.append("the state's snapshot can't be used: " + "; ".join(damaged))
        return None
    if manifest is None and (await asyncio.to_thread(rebuild.first_logged, folder) or 0) > 1:
        report.renewed.append(
            "the state's snapshot is missing: a server makes one anew, and till then the log keeps what it has"
        )
        return None
    if manifest is None:
        return 0
    report.sound.append(f"snapshot of the state: up to frame {manifest.sequence:,}")
    return manifest.sequence


async def _inspect_heads(report: Report, stopped: StoppedContainer, snapshot_sequence: int) -> None:
    """What a state made of the snapshot needs of the log, and the state that is there doesn't."""
    last_sequence = stopped.metadata.state().sequence
    left = "no start needs it" if report.given_up_from else "the state has what it said"
    async for heads in stopped.log.read_heads(snapshot_sequence, last_sequence):
        for error in heads.damages:
            report.renewed.append(
                f"the log is damaged at byte {error.offset:,} of {error.file} ({error.what}): {left}; a server's scrub "
                "makes a snapshot in place of it"
            )


async def _inspect_data(report: Report, stopped: StoppedContainer) -> None:
    read = await stopped.read_all()
    report.segments = len(stopped.segments())
    records = map(stopped.state.by_id, stopped.segments())
    report.names = [record.name for record in records if record is not None]
    report.sound.append(f"log: up to frame {stopped.state.sequence:,}")
    report.sound.append(f"{report.segments:,} segments, {read:,} bytes read and right")
    needless = stopped.log.needless
    if needless is not None and not report.leaves_out:
        place = f"byte {needless.offset:,} of {needless.file}"
        if report.given_up_from:
            left = f"what frames {report.given_up_from:,} on said was given up by a repair, and no start needs them"
        else:
            left = "the state has all that it said"
        report.renewed.append(f"the log is damaged at {place} ({needless.what}): {left}")
    if stopped.undescribed:
        report.renewed.append(
            f"chunks whose description is damaged, and all data right: {stopped.undescribed:,}, "
            f"{stopped.first_undescribed} the first: the next scrub stores them anew"
        )
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
        InvalidArgumentError: there is no such place.
    """
    return check_place(file, at), at
