"""Reports on a stopped data folder, for operators: `nadi check`, and the start of `nadi repair`.

Each container is recovered as a server would do it, in a temporary folder (`offline_store`), and then every byte of its
segments is read. Nothing in the data folder is changed.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from nadi.errors import DamagedStateError
from nadi.runtime import REAL
from nadi.segmentstore.data_dir import (
    STORE,
    TIER2,
    container_folders,
    container_names,
    find_store,
    known_containers,
    stored_containers,
    unexpected_containers,
)
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.snapshots import SnapshotError, restored
from nadi.segmentstore.recovery.storage import is_lost, is_stored
from nadi.segmentstore.repair.offline_store import DiscardedContent, StoppedContainer, describe_segment
from nadi.segmentstore.repair.skipped_frames import SkippedFrames, skip_frames
from nadi.segmentstore.tier1.recovery import has_frames
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.opening import open_read_only
from nadi.segmentstore.tier2.records import ContainerRecord, DamagedRecordError

_NAMED = 100  # limit on lost segments listed in a report


@dataclass(slots=True)
class InspectionReport:
    """The findings on one part, line by line. sound: intact data. healed: damage that a start, or `nadi repair`,
    repairs without loss. renewed: damage that a server repairs while it runs. dropped: the last frames of logs,
    unfinished or damaged, which a start drops. lost: data that can't be read, or would be discarded."""

    name: str
    sound: list[str] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    gives_up: bool = False  # a repair discards the `lost` data, which isn't reported later
    unnamed: int = 0  # chunks of discarded data
    is_refused: bool = False  # no server can start with it, even after a repair
    segments: int = 0

    def refuse(self, problem: str) -> None:
        """Report a problem that no repair can fix, and with which no server starts."""
        self.lost.append(problem)
        self.is_refused = True

    @property
    def can_be_served(self) -> bool:
        return not (self.is_refused or self.gives_up)

    @property
    def is_sound(self) -> bool:
        return not (self.healed or self.renewed or self.lost)


async def inspect_folder(folder: Path) -> list[InspectionReport]:
    """Inspect a data folder that no server has open. UnavailableError, OSError: it can't be read."""
    report = _inspect_layout(folder)
    store = find_store(folder).store
    containers: dict[int, InspectionReport] = {}
    are_some_there = bool(container_folders(folder))
    with open_read_only(folder, REAL) as chunks:
        if store is not None and store.is_encrypted:
            await chunks.unlock()
        for number, container in known_containers(folder).items():
            if store is not None and number >= store.containers:
                continue
            if are_some_there and not container.is_dir():  # as when a disk isn't mounted
                containers[number] = missing = InspectionReport(container.name)
                await _inspect_snapshot(missing, number, chunks)
                missing.refuse("its folder is missing, with its log, though tier 2 has chunks or snapshots: restore it")
            else:
                containers[number] = await inspect_container(container, number, chunks)
    return [report, *containers.values()]


def _inspect_layout(folder: Path) -> InspectionReport:
    report = InspectionReport("data folder")
    location = find_store(folder)
    known, stored = set(known_containers(folder)), stored_containers(folder)
    if location.store is None:
        report.refuse(f"`{STORE}` is {location.wrong}, and the number of containers is unknown: restore the file")
        return report
    if location.disagree:
        report.refuse(f"`{STORE}` and `{TIER2}/cluster.json` disagree: one of them is from another folder: remove it")
    if location.heals:
        report.healed.append(location.heals)
    if location.store.moved_to:
        report.refuse(f"its data was moved to {location.store.moved_to}")
    count = location.store.containers
    for problem in unexpected_containers(folder, count):
        report.refuse(problem)
    for number in sorted(set(range(count)) - known):
        report.refuse(f"container-{number} and all its data is missing: restore it from a copy")
    if others := {number for number in stored if number >= count}:
        reason = f"`{STORE}` says {count} containers, so no server reads it"
        report.lost.append(f"tier 2 has data of {container_names(others)}, from another folder or discarded: {reason}")
    report.sound.append(f"format {location.store.format}, {count} containers")
    if location.store.is_elsewhere:
        report.sound.append(f"chunks in {location.store.url}")
    return report


async def inspect_container(folder: Path, number: int, chunks: ChunkStore) -> InspectionReport:
    report = InspectionReport(folder.name)
    record = await _inspect_snapshot(report, number, chunks)
    if report.is_refused:
        return report
    log_folder = folder / "log"
    if problem := is_lost(record, log_folder):
        report.refuse(f"its record in tier 2 is lost: {problem}; restore it, or its copy")
        return report
    is_filled = bool(record.start.epoch) and not has_frames(log_folder)
    with tempfile.TemporaryDirectory(prefix="nadi-check-", dir=chunks.sealing.scratch) as temporary:
        metadata, _ = await restored(chunks, number, record.snapshot, Path(temporary))
        stopped = StoppedContainer(number, folder, chunks)
        await stopped.open(metadata, is_passed=is_filled)
        try:
            if is_filled:
                report.sound.append("filled by a migration, not opened since")
            elif not stopped.state.sequence and stopped.log.damage is None:
                if await is_stored(chunks, number):
                    report.refuse("its record and its log are missing, but tier 2 has data of it: restore them")
                else:
                    report.sound.append("never used")
                return report
            if stopped.log.dropped:
                reason = "its write was never completed, or it was acknowledged and is damaged"
                report.dropped.append(f"{stopped.log.dropped}: {reason}")
            damage = stopped.log.damage
            if damage is not None:
                report.lost.append(f"the log is damaged at byte {damage.offset:,} of {damage.file}: {damage.what}")
                await stopped.log.close()
                try:
                    skipped = await skip_frames(metadata, folder, number, chunks)
                except DamagedStateError as error:
                    report.refuse(f"the damaged frames can't be skipped: {error.what}, and {error.why_not}")
                    return report
                await stopped.open(metadata, is_passed=True)
                _report_skipped(report, stopped, skipped)
            await _inspect_data(report, stopped)
        except DamagedStateError as error:
            report.refuse(f"{error.what}: {error.why_not}; restore the matching one")
        finally:
            await stopped.shut()
    return report


async def _inspect_snapshot(report: InspectionReport, number: int, chunks: ChunkStore) -> ContainerRecord:
    """Read both copies of everything; the report is refused if both copies of an object are damaged."""
    damaged: list[str] = []
    records = await chunks.records()
    try:
        record = (await records.read(number)).record
    except DamagedRecordError as error:
        report.refuse(f"its snapshot is unknown: {error}, and so is its copy; restore one of them")
        return ContainerRecord()
    if (problem := await records.unequal(number)) and not await records.was_interrupted(number):
        damaged.append(problem)
    for part in record.snapshot.parts if record.snapshot is not None else ():
        wrong: list[str] = []
        for name in part.names:
            try:
                await snapshots.read_object(chunks, name, part)
            except SnapshotError as error:
                wrong.append(str(error))
        damaged += wrong
        if len(wrong) == len(part.names):
            report.refuse(f"its snapshot can't be used: {', and '.join(wrong)}; restore one of them")
    if damaged and not report.is_refused:
        report.renewed.append(f"one of two copies is damaged: {'; '.join(damaged)}: a server stores a new snapshot")
    if record.snapshot is not None and not report.is_refused:
        report.sound.append(f"snapshot of the state: up to frame {record.snapshot.sequence:,}")
    return record


def _report_skipped(report: InspectionReport, stopped: StoppedContainer, skipped: SkippedFrames) -> None:
    report.gives_up, report.unnamed = True, len(skipped.unnamed)
    if skipped.discarded.frames:
        reason = "beyond that, readers would not notice this missing data:"
        report.lost.append(f"the log is cut before frame {skipped.ends:,}: {reason}")
        report.lost += [f"  {line}" for line in skipped.unsafe] + lost_lines(stopped, skipped.discarded)
    else:
        if skipped.frames:
            report.lost.append(
                f"{skipped.in_words()} can't be read; the {skipped.later_frames:,} frames after that are retained"
            )
        report.lost += skipped.unsafe
    report.lost += skipped.lost


async def _inspect_data(report: InspectionReport, stopped: StoppedContainer) -> None:
    read = await stopped.read_all()
    report.segments = len(stopped.segments())
    report.sound.append(f"log: up to frame {stopped.state.sequence:,}")
    report.sound.append(f"{report.segments:,} segments, {read:,} bytes read and correct")
    if stopped.undescribed:
        report.renewed.append(
            f"chunks with intact data but a damaged description: {stopped.undescribed:,}, "
            f"the first {stopped.first_undescribed}: the next scrub rewrites them"
        )
    for damaged in stopped.damage.all():
        place = f"{describe_segment(damaged.segment)}: bytes {damaged.offset:,} to {damaged.end_offset:,}"
        report.lost.append(f"{place} can't be read: {damaged.reason}")
    if stopped.damage.unlisted:
        report.lost.append(f"and {stopped.damage.unlisted:,} more such places")


def lost_lines(stopped: StoppedContainer, lost: DiscardedContent) -> list[str]:
    """Describe, by segment, the contents of discarded frames."""
    lines = [f"discarded with it: {lost.frames:,} readable acknowledged frames, up to {lost.last_sequence:,}"]
    for segment, (begin, end) in lost.bytes_of.items():
        lines.append(f"  {describe_segment(stopped.name_of(segment))}: bytes {begin:,} to {end:,}")
    for segment, count in lost.entries_of.items():
        lines.append(f"  {describe_segment(stopped.name_of(segment))}: {count:,} changes of table entries")
    lines += [
        f"  {describe_segment(name)}: the entire segment, which was created there" for name in lost.created.values()
    ]
    lines += [f"  {describe_segment(stopped.name_of(segment))}: its deletion" for segment in lost.deleted]
    if len(lines) > _NAMED:
        lines[_NAMED:] = [f"  and {len(lines) - _NAMED:,} more"]
    return lines
