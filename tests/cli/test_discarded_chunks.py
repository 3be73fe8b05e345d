"""Chunks of data that a repair gave up never replace events written later."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import nadi
from nadi.errors import DamagedDataError, DataFolderError
from nadi.segmentstore.tier1.fence import latest
from tests.cli.test_check_and_repair import command, frames_of
from tests.support.waiting import until

HOLD = "chunk_flush_age_s=9999,chunk_flush_bytes=99999999,checkpoint_interval_s=3600"
MOVE = "chunk_flush_age_s=0.1,storage_writer_tick_s=0.02,checkpoint_interval_s=3600"

pytestmark = pytest.mark.slow


def write(folder: Path, prefix: str, count: int, limits: str) -> None:
    """Write acknowledged events, ten per frame, that only the log contains; kill the server."""
    server = nadi.embedded(folder, environment={"NADI_LIMITS": limits})
    with nadi.StreamManager(server.controller_uri) as manager:
        if not prefix:
            manager.create_scope("home")
            manager.create_stream("home", "s", 1)
        else:
            with manager.create_writer("home", "s") as writer:
                for number in range(count):
                    writer.write_event(f"{prefix}-{number:05d}-".encode() * 10, "k")
                    if number % 10 == 9:
                        writer.flush(60)
        if limits == MOVE and prefix:
            until(lambda: is_moved(folder, f"{prefix}-{count - 1:05d}-".encode()))
    server.kill() if prefix else server.stop()


def chunks_with(folder: Path, data: bytes) -> list[Path]:
    return [path for path in (folder / "tier2/container-0").rglob("*-*") if data in path.read_bytes()]


def is_moved(folder: Path, data: bytes) -> bool:
    """Return whether a chunk has the data and the log says so: it names a chunk before and after storing it."""
    log = last_log(folder).read_bytes()
    return any(log.count(f"{chunk.relative_to(folder / 'tier2')}".encode()) > 1 for chunk in chunks_with(folder, data))


def last_log(folder: Path) -> Path:
    log = folder / "container-0/log"
    return log / f"log-{latest(log, None):016d}.nadi"


def read(folder: Path) -> list[str]:
    """Return every tenth event in order; damaged ranges as "GAP"."""
    events: list[str] = []
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("home", "s").tail
        with manager.create_reader("home", "s", end=tail) as reader:
            while True:
                try:
                    block = reader.next_block(60)
                except DamagedDataError:
                    events.append("GAP")
                    continue
                if block is None:
                    break
                events += [bytes(event[:7]).decode() for event in block[1].events()]
    return [event for event in events if event.endswith(("GAP", "0"))]


def tens(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:05d}" for number in range(0, count, 10)]


@pytest.fixture
def with_a(tmp_path: Path) -> Path:
    """A folder whose events A are in tier 2, as recorded only at the end of its log."""
    folder = tmp_path / "data"
    write(folder, "", 0, HOLD)
    shutil.copytree(folder, tmp_path / "before")
    write(folder, "A", 60, MOVE)
    return folder


@pytest.mark.parametrize("how", ["lost", "short"])
def test_repair_without_the_end_of_the_log_sets_its_chunks_aside(with_a: Path, how: str) -> None:
    """The chunks later appeared in place of newly acknowledged events."""
    log = last_log(with_a)
    chunks = chunks_with(with_a, b"A-")
    if how == "lost":
        log.unlink()
    else:
        os.truncate(log, frames_of(log)[4])
    done = command("repair", with_a, "--yes")
    assert done.exit_code == 1, done.output
    number = re.search(r"LOST .*frame (\d+)", done.output)
    assert number, done.output
    assert re.search(rf"given up: container-0: .*frame {number[1]}\b", done.output)
    assert command("check", with_a).exit_code == 0, "the log starts over"
    aside = list((with_a / "tier2").glob("container-0.damaged-*/*/*"))
    assert sorted(path.name for path in aside) == sorted(path.name for path in chunks)
    write(with_a, "B", 20, HOLD)
    events = read(with_a)
    assert events[-2:] == tens("B", 20)
    assert events[:-2] == tens("A", 60)[: len(events) - 2]


def test_server_starts_after_repair_of_a_folder_without_log(tmp_path: Path) -> None:
    """The repair promised this, but the start failed, as the missing log counted as not needed."""
    folder = tmp_path / "data"
    write(folder, "", 0, HOLD)
    write(folder, "A", 20, MOVE)
    nadi.embedded(folder).stop()
    expected = read(folder)
    assert expected == tens("A", 20)
    write(folder, "B", 10, HOLD)
    shutil.rmtree(folder / "container-0/log")
    with pytest.raises(DataFolderError):
        nadi.embedded(folder)
    done = command("repair", folder, "--yes")
    assert done.exit_code == 1, done.output
    assert "a server can be started" in done.output
    assert read(folder) == expected
    write(folder, "C", 10, HOLD)
    assert read(folder) == [*expected, *tens("C", 10)]


def test_repair_ignores_stale_chunks_of_an_abandoned_log(with_a: Path, tmp_path: Path) -> None:
    chunks = chunks_with(with_a, b"A-00059-")
    epoch = (with_a / "container-0/log/epoch").read_bytes()
    before = tmp_path / "before"
    for chunk in chunks:
        stale = before / chunk.relative_to(with_a)
        stale.parent.mkdir(parents=True, exist_ok=True)
        stale.write_bytes(chunk.read_bytes())
    (before / "container-0/log/epoch").write_bytes(epoch)
    write(before, "B", 100, HOLD)
    log = last_log(before)
    content = log.read_bytes()
    frames = frames_of(log)
    damaged = [at for at in frames if b"B-0005" in content[at:][:4096] or b"B-0006" in content[at:][:4096]]
    with log.open("r+b") as stream:
        for at in damaged:
            stream.seek(at)
            stream.write(bytes(4096))
    with pytest.raises(DataFolderError):
        nadi.embedded(before)
    done = command("repair", before, "--yes")
    assert done.exit_code == 1
    events = tens("B", 100)
    assert read(before) == [*events[:5], "GAP", *events[7:]]
    assert f"planned: container-0: set aside {len(chunks)} chunks" in done.output
    aside = list((before / "tier2").glob("container-0.damaged-*/*/*"))
    assert sorted(path.name for path in aside) == sorted(path.name for path in chunks)
    assert not chunks_with(before, b"A-00059-")
