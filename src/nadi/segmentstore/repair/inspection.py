"""The report on a stopped data folder, written for people: `nadi check`, and what `nadi repair` starts from.

Each container is recovered as a server would do it, on a copy of its state (`stopped`), and then every byte of its
segments is read. Nothing in the folder is changed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from nadi.errors import DamagedStateError
from nadi.runtime import REAL
from nadi.segmentstore.datafolder import (
    STORE,
    TIER2,
    container_folders,
    find,
    known_containers,
    misplaced,
    named,
    stored_containers,
)
from nadi.segmentstore.recovery import rebuild, snapshots
from nadi.segmentstore.recovery.restoring import restore
from nadi.segmentstore.recovery.snapshots import SnapshotError
from nadi.segmentstore.repair.skipped_frames import Skipped, skip_frames
from nadi.segmentstore.repair.stopped import Lost, StoppedContainer, in_words
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.opening import looked_at

_NAMED = 100  # segments named one by one in a report


@dataclass(slots=True)
class Report:
    """What an inspection has shown of one part, line by line.

    sound: what there is. healed: damage that a start, or `nadi repair`, repairs without loss. renewed: damage that a
    server repairs while it runs. lost: what can't be read, or would be given up.
    """

    name: str
    sound: list[str] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    gives_up: bool = False  # a repair gives up what is `lost`: it isn't reported later
    unnamed: int = 0  # chunks that belong to what is given up
    given_up_from: int = 0  # the first frame of an end of the log that an earlier repair gave up
    is_refused: bool = False  # no server starts with it, and a repair changes nothing about that
    segments: int = 0

    def refuse(self, what: str) -> None:
        """No server starts with it, because of `what`, and a repair changes nothing about that."""
        self.lost.append(what)
        self.is_refused = True

    @property
    def can_be_served(self) -> bool:
        return not (self.is_refused or self.gives_up)

    @property
    def is_sound(self) -> bool:
        return not (self.healed or self.renewed or self.lost)


async def inspect_folder(folder: Path) -> list[Report]:
    """Look at a data folder that no server has open.

    Raises:
        UnavailableError, OSError: it can't be read.
    """
    report = _inspect_layout(folder)
    found = find(folder).store
    containers: dict[int, Report] = {}
    are_some_there = bool(container_folders(folder))
    with looked_at(folder, REAL) as chunks:
        for number, container in known_containers(folder).items():
            if found is not None and number >= found.containers:
                continue
            if are_some_there and not container.is_dir():
                containers[number] = await _inspect_missing(container, number, chunks)
            else:
                containers[number] = await inspect_container(container, number, chunks)
    return [report, *containers.values()]


async def _inspect_missing(folder: Path, number: int, chunks: ChunkStore) -> Report:
    """Report on a container whose folder is missing while others are there, as when a disk isn't mounted: rebuilding
    it from what tier 2 has would lose what was in its log."""
    report = Report(folder.name)
    await _inspect_snapshots(report, folder, number, chunks)
    report.refuse("its folder is missing, with its log and its state: restore it; tier 2 has chunks or snapshots")
    return report


def _inspect_layout(folder: Path) -> Report:
    report = Report("data folder")
    found = find(folder)
    known, stored = set(known_containers(folder)), stored_containers(folder)
    if found.store is None:
        report.refuse(f"`{STORE}` is {found.wrong}, and nothing else says how many containers there are")
        return report
    if found.disagree:
        report.refuse(f"`{STORE}` and `{TIER2}/cluster.json` disagree: one of them is from another folder")
    if found.heals:
        report.healed.append(found.heals)
    if found.store.moved_to:
        report.refuse(f"its data was moved to {found.store.moved_to}")
    count = found.store.containers
    for what in misplaced(folder, count):
        report.refuse(what)
    for number in sorted(set(range(count)) - known):
        report.refuse(f"container-{number} is missing with everything in it: restore it from a copy")
    if others := {number for number in stored if number >= count}:
        said = f"`{STORE}` says {count} containers, so no server reads it"
        report.lost.append(f"tier 2 has data of {named(others)}, from another folder or given up: {said}")
    report.sound.append(f"format {found.store.format}, {count} containers")
    if found.store.is_elsewhere:
        report.sound.append(f"chunks in {found.store.url}")
    return report


async def inspect_container(folder: Path, number: int, chunks: ChunkStore) -> Report:
    """Inspect one container."""
    report = Report(folder.name)
    snapshot_sequence = await _inspect_snapshots(report, folder, number, chunks)
    filled = await snapshots.begins_log(chunks, folder, number)
    with tempfile.TemporaryDirectory(prefix="nadi-check-") as temporary:
        state = Path(temporary) / "state"
        try:
            if filled is not None and filled.snapshot is not None and snapshot_sequence is not None:
                report.sound.append("filled by a migration, and not opened since")
                state.mkdir(mode=0o700)
                await restore(chunks, filled.snapshot, state)
                has_all: bool | None = True
            else:
                has_all = await state_to_use(report, folder, number, chunks, state)
        except DamagedStateError as error:
            report.refuse(f"the state can't be used ({error.what}), and can't be rebuilt: {error.why_not}")
            return report
        if has_all is None:
            return report
        stopped = StoppedContainer(number, folder, chunks)
        try:
            await stopped.open(state, has_all=has_all)
        except DamagedStateError as error:
            report.refuse(f"{error.what}: {error.why_not}; restore the one that belongs here")
            return report
        try:
            if filled is not None:
                stopped.log.needless = None  # it has no log yet
            damage = stopped.log.damage
            if damage is not None:
                await stopped.shut()
                report.lost.append(f"the log is damaged at byte {damage.offset:,} of {damage.file}: {damage.what}")
                try:
                    skipped = await skip_frames(state, folder, number, chunks)
                except DamagedStateError as error:
                    report.refuse(f"what can't be read can't be skipped: {error.what}, and {error.why_not}")
                    return report
                await stopped.open(state, has_all=True)
                _tell_skipped(report, stopped, skipped)
            elif snapshot_sequence is not None:
                await _inspect_heads(report, stopped, snapshot_sequence)
            await _inspect_data(report, stopped)
        finally:
            await stopped.shut()
    return report


async def state_to_use(report: Report, folder: Path, number: int, chunks: ChunkStore, copy: Path) -> bool | None:
    """Make a copy of the container's state, or of what can be rebuilt in its place; note in the report which it is.

    Return whether it has all that the log ever said; None if the container was never used.

    Raises:
        DamagedStateError: nothing can be rebuilt.
    """
    compact = copy.with_name(rebuild.COPY)
    examined = await asyncio.to_thread(statecheck.examine, folder / rebuild.STATE, number, compact)
    what = rebuild.wrong(folder, examined)
    older = "" if what else await rebuild.older_than_snapshot(number, chunks, examined)
    if older:
        try:
            source = await rebuild.make(folder, number, chunks, older, copy)
        except DamagedStateError:
            pass  # a snapshot that can't be used is reported elsewhere
        else:
            report.healed.append(f"the state is outdated ({older}): it is rebuilt from {source}")
            return False
    if not what:
        await asyncio.to_thread(_copy, folder / rebuild.STATE, copy, compact)
        report.sound.append(_in_words(examined))
        report.given_up_from = examined.given_up_from
        return rebuild.has_all(folder, examined)
    made = await asyncio.to_thread(statecheck.examine, folder / rebuild.MADE, number)
    if not rebuild.wrong(folder, made):
        await asyncio.to_thread(_copy, folder / rebuild.MADE, copy)
        report.healed.append(
            f"the state can't be used ({what}): the one that an interrupted start or repair built replaces it"
        )
        return rebuild.has_all(folder, made)
    is_late = examined.verdict is statecheck.Verdict.SOUND  # it is the log that has lost its beginning
    try:
        source = await rebuild.make(folder, number, chunks, what, copy)
    except DamagedStateError as error:
        if is_late:
            await asyncio.to_thread(_copy, folder / rebuild.STATE, copy, compact)
        else:
            source = await rebuild.make(folder, number, chunks, what, copy, with_gap=True)
            report.sound.append(f"state: rebuilt from {source}")
        report.lost.append(f"the state can't be rebuilt without loss ({error.what}): {error.why_not}")
        return False
    if not source:
        report.sound.append("never used")
        return None
    report.healed.append(f"the state can't be used ({what}): it is rebuilt without loss, from {source}")
    return False


def _in_words(examined: statecheck.Examined) -> str:
    if examined.given_up_from:
        return f"state: as built by a repair, without what the log said from frame {examined.given_up_from:,} on"
    return "state: as left by a clean stop" if examined.sealed else "state: intact"


def _copy(state: Path, copy: Path, compact: Path | None = None) -> None:
    """compact: one that `examine` made, if it did."""
    copy.mkdir(mode=0o700)
    if compact is not None and compact.exists():
        compact.replace(copy / statecheck.STATE_FILE)
    else:
        shutil.copyfile(state / statecheck.STATE_FILE, copy / statecheck.STATE_FILE)


def _tell_skipped(report: Report, stopped: StoppedContainer, skipped: Skipped) -> None:
    report.gives_up, report.unnamed = True, len(skipped.unnamed)
    if skipped.given_up.frames:
        what = "past it, readers would not notice that this is missing:"
        report.lost.append(f"the log is ended before frame {skipped.ends:,}: {what}")
        report.lost += [f"  {line}" for line in skipped.unsafe] + lost_lines(stopped, skipped.given_up)
    else:
        if skipped.frames:
            report.lost.append(f"{skipped.in_words()} can't be read; the {skipped.kept:,} after that are kept")
        report.lost += skipped.unsafe
    report.lost += skipped.lost


async def _inspect_snapshots(report: Report, folder: Path, number: int, chunks: ChunkStore) -> int | None:
    """The last frame reflected by a state rebuilt from the snapshot; 0: the log has all frames; None: neither."""
    manifest, damaged = await snapshots.newest(chunks, number)
    try:
        for part in manifest.parts if manifest is not None else ():
            await snapshots.read_part(chunks, part)
    except SnapshotError as error:
        damaged.append(str(error))
    if damaged:
        report.renewed.append("the state's snapshot can't be used: " + "; ".join(damaged))
        return None
    if manifest is None and (await asyncio.to_thread(rebuild.first_logged, folder) or 0) > 1:
        report.renewed.append(
            "the state's snapshot is missing: a server makes a new one, and until then the log keeps what it has"
        )
        return None
    if manifest is None:
        return 0
    report.sound.append(f"snapshot of the state: up to frame {manifest.sequence:,}")
    return manifest.sequence


async def _inspect_heads(report: Report, stopped: StoppedContainer, snapshot_sequence: int) -> None:
    """Check what a state rebuilt from the snapshot needs of the log, but the existing state doesn't."""
    last_sequence = stopped.metadata.state().sequence
    left = "no start needs it" if report.given_up_from else "the state has what was there"
    async for heads in stopped.log.read_heads(snapshot_sequence, last_sequence):
        for error in heads.damages:
            report.renewed.append(
                f"the log is damaged at byte {error.offset:,} of {error.file} ({error.what}): {left}; a server's scrub "
                "makes a snapshot to replace it"
            )


async def _inspect_data(report: Report, stopped: StoppedContainer) -> None:
    read = await stopped.read_all()
    report.segments = len(stopped.segments())
    report.sound.append(f"log: up to frame {stopped.state.sequence:,}")
    report.sound.append(f"{report.segments:,} segments, {read:,} bytes read and correct")
    needless = stopped.log.needless
    if needless is not None and not report.gives_up:
        place = f"byte {needless.offset:,} of {needless.file}"
        if report.given_up_from:
            left = f"what it said from frame {report.given_up_from:,} on was given up by a repair; no start needs it"
        else:
            left = "the state has all that was there"
        report.renewed.append(f"the log is damaged at {place} ({needless.what}): {left}")
    if stopped.undescribed:
        report.renewed.append(
            f"chunks with intact data but a damaged description: {stopped.undescribed:,}, "
            f"the first {stopped.first_undescribed}: the next scrub rewrites them"
        )
    known = stopped.damage.all()
    for damaged in known:
        place = f"{in_words(damaged.segment)}: bytes {damaged.offset:,} to {damaged.end_offset:,}"
        report.lost.append(f"{place} can't be read: {damaged.reason}")
    if stopped.damage.unlisted:
        report.lost.append(f"and {stopped.damage.unlisted:,} more such places")


def lost_lines(stopped: StoppedContainer, lost: Lost) -> list[str]:
    """What is given up with frames that can be read, by segment."""
    lines = [f"given up with it: {lost.frames:,} acknowledged frames that can be read, up to {lost.last_sequence:,}"]
    for segment, (begin, end) in lost.bytes_of.items():
        lines.append(f"  {in_words(stopped.name_of(segment))}: bytes {begin:,} to {end:,}")
    for segment, count in lost.entries_of.items():
        lines.append(f"  {in_words(stopped.name_of(segment))}: {count:,} changes of table entries")
    lines += [f"  {in_words(name)}: all of it, as it was created there" for name in lost.created.values()]
    lines += [f"  {in_words(stopped.name_of(segment))}: it was deleted, and exists again" for segment in lost.deleted]
    if len(lines) > _NAMED:
        lines[_NAMED:] = [f"  and {len(lines) - _NAMED:,} more"]
    return lines
