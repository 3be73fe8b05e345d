"""What a repair has back where neither the state nor all of its snapshot is whole: never less than what is."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

import nadi
from nadi.errors import DataFolderError
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.rota import Rota
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.cli.test_check_and_repair import command
from tests.segmentstore.state_tables import lose_states, recovered
from tests.segmentstore.test_lost_state import EVENTS, base, contents, event, events_of, folder

__all__ = ["base", "folder"]  # fixtures
EVENT = re.compile(rb"(\d+):(.)\2{699}", re.DOTALL)


def damage_snapshots(folder: Path, what: str) -> None:
    """Of both containers; what a server of today writes, and then what is left if its manifests are gone too."""
    for number in range(2):
        stored = folder / f"tier2/snapshots/container-{number}"
        manifest, _ = asyncio.run(snapshots.newest(ChunkStore.in_folder(folder / "tier2"), number))
        assert manifest is not None
        file = folder / "tier2" / manifest.base[0].name
        data = file.read_bytes()
        if "manifests" in what:
            for path in stored.glob("manifest-*"):
                path.write_bytes(b"?" + path.read_bytes()[1:])
        if "base flipped" in what:
            file.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 8]) + data[len(data) // 2 + 1 :])
        if "base missing" in what:
            file.unlink()
        if "delta" in what and manifest.deltas:
            (folder / "tier2" / manifest.deltas[0].name).write_bytes(b"")
        if "all" in what:
            shutil.rmtree(stored)


def bytes_kept(folder: Path) -> set[bytes]:
    """Events in all segments there are, whoever can find them; all that looks like one must be one."""
    from nadi.errors import DamagedDataError
    from nadi.segmentstore.reading.reads import SegmentReader
    from nadi.segmentstore.repair.stopped import StoppedContainer

    async def read() -> set[bytes]:
        found: set[bytes] = set()
        for number in range(2):
            container = folder / f"container-{number}"
            chunks = ChunkStore.in_folder(folder / "tier2")
            stopped = StoppedContainer(number, container, chunks)
            await stopped.open(Path(shutil.copytree(container / "state", folder.parent / f"looked-at-{number}")))
            reader = SegmentReader(chunks, stopped.cache, Rota())
            for segment in stopped.segments():
                record = stopped.state.must(segment)
                data = b""
                for extent in record.extents:
                    try:
                        data += b"".join(await reader.read_exactly(stopped, record, [extent], past_cache=True))
                    except DamagedDataError:
                        data += b"gap"
                found |= {match[0] for match in EVENT.finditer(data)}
            await stopped.shut()
            shutil.rmtree(folder.parent / f"looked-at-{number}")
        return found

    return asyncio.run(read())


def repaired(folder: Path) -> str:
    """Check, which changes nothing, then repair; what they said."""
    with pytest.raises(DataFolderError, match="nadi repair"):
        nadi.embedded(folder)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    assert contents(folder) == before
    done = command("repair", folder, "--yes")
    assert "a server can be started" in done.output or done.exit_code == 0, done.output
    kept = contents(folder)
    aside = {path.name: data for path, data in kept.items() if any(".damaged-" in part for part in path.parts)}
    for path, data in before.items():
        is_kept = data in (kept.get(path), aside.get(path.name))  # chunks that nothing names are set aside
        assert "state" in path.parts or is_kept, "nothing of what there was is touched"
    again = command("repair", folder, "--yes")
    assert contents(folder) == kept, again.output
    return told.output


DAMAGES = ["base flipped", "base missing", "delta", "manifests, delta", "manifests, base flipped", "all"]
QUICK = {("delta", False), ("manifests, base flipped", False), ("all", True)}


@pytest.mark.parametrize(
    ("what", "stop"),
    [
        pytest.param(what, stop, id=f"{what}-{'stopped' if stop else 'killed'}", marks=marks)
        for what in DAMAGES
        for stop in (True, False)
        for marks in [[] if (what, stop) in QUICK else [pytest.mark.slow]]
    ],
)
def test_events_that_are_whole_are_had_back(folder: Path, what: str, stop: bool) -> None:
    """It ended with 1, and nothing could be had, though chunks and log were whole."""
    if stop:
        recovered(folder)
        recovered(folder)
    expected = {event(number) for number in range(EVENTS)}
    assert bytes_kept(folder) >= expected
    damage_snapshots(folder, what)
    lose_states(folder)
    told = repaired(folder)
    if what in ("base missing", "delta", "all"):  # of a flipped one what is before that is whole
        assert "entries of tables are gone" in told
    assert bytes_kept(folder) >= expected
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("after")
        manager.create_stream("after", "t", 1)
        with manager.create_writer("after", "t") as writer:
            writer.write_event(b"new", "k").result(30)
    assert bytes_kept(folder) >= expected


def test_what_an_earlier_repair_set_aside_comes_before_a_damaged_snapshot(folder: Path) -> None:
    expected = events_of(folder)
    recovered(folder)
    for number in range(2):
        container = folder / f"container-{number}"
        shutil.copytree(container / "state", container / "state.damaged-20200101T000000Z")
    damage_snapshots(folder, "base flipped")
    lose_states(folder)
    told = repaired(folder)
    assert "what is whole of state.damaged-20200101T000000Z" in told
    assert events_of(folder) == expected


def test_without_a_log_too_what_chunks_describe_is_kept(folder: Path) -> None:
    recovered(folder)
    expected = bytes_kept(folder)
    damage_snapshots(folder, "all")
    lose_states(folder)
    for number in range(2):
        shutil.rmtree(folder / f"container-{number}/log")
    repaired(folder)
    kept = bytes_kept(folder)
    assert kept
    assert kept <= expected
