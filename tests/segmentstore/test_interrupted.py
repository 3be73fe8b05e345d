"""A start or a repair that is interrupted at any moment, or fails, can be done again, and ends in the same."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from nadi.errors import CorruptLogError
from nadi.segmentstore.recovery import rebuild
from nadi.segmentstore.repair.replacement import repair_container
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.cli.test_check_and_repair import HOLD, command, flip, late_events
from tests.segmentstore.dying_main import DIED
from tests.segmentstore.state_tables import apart, copy_of, records_of, recovered
from tests.segmentstore.test_lost_state import EVENTS, base, contents, event, folder, start

__all__ = ["base", "folder"]


def killed_at(step: int, what: str, folder: Path) -> bool:
    """Whether a process that is killed at that step came to it."""
    command = [sys.executable, "-m", "tests.segmentstore.dying_main", what, str(folder), str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, DIED), ended.stderr
    return ended.returncode == DIED


def spoil(state: Path, table: str, key: bytes) -> None:
    """Damage one record as a disk would."""
    file = state / "data.mdb"
    raw = records_of(state)[table][key]
    data = bytearray(file.read_bytes())
    at = data.rindex(key + raw)
    while at >= 0:  # older pages may have it too
        data[at + len(key)] ^= 255
        at = data.rfind(key + raw, 0, at)
    file.write_bytes(data)
    (state / "seal").unlink(missing_ok=True)


def damage_state(container: Path) -> bytes:
    """One of its records; gives what the file holds then."""
    state = container / "state"
    spoil(state, "names", min(records_of(state)["names"]))
    return (state / "data.mdb").read_bytes()


def test_a_state_is_set_aside_only_for_one_that_goes_with_the_log(folder: Path) -> None:
    """It used to be set aside before the log was looked at: a start that failed then left the half of a state."""
    log, at = late_events(folder)
    container = log.parent.parent
    damaged = damage_state(container)
    flip(log, at + 9)
    before = contents(folder)
    number = int(container.name[-1])
    with pytest.raises(CorruptLogError):
        start(folder, number)
    after = contents(folder)
    assert {path: data for path, data in after.items() if path.name not in ("epoch", "lock.mdb")} == {
        path: data for path, data in before.items() if path.name not in ("epoch", "lock.mdb")
    }

    flip(log, at + 9)
    start(folder, number)
    assert [path.read_bytes() for path in container.glob("state.damaged-*/data.mdb")] == [damaged]


every = pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])


@every
def test_a_start_that_is_killed_while_it_makes_a_state_is_done_again(folder: Path, stride: int) -> None:
    expected = apart(recovered(copy_of(folder, "whole"))[0])
    damaged = damage_state(folder / "container-0")
    pristine = copy_of(folder, "pristine")
    step, was_made = 0, False
    while killed_at(step, "start", folder):
        assert step < 100
        was_made |= (folder / "container-0" / rebuild.MADE).exists()
        start(folder)
        assert apart(records_of(folder / "container-0/state")) == expected, step
        aside = [path.read_bytes() for path in (folder / "container-0").glob("state.damaged-*/data.mdb")]
        assert aside == [damaged], step
        assert not (folder / "container-0" / rebuild.MADE).exists()
        assert not (folder / "container-0" / rebuild.NEW).exists()
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        step += stride
    assert step > 8
    assert was_made or stride > 1, "it was killed between the two names too"


def repaired(folder: Path) -> None:
    asyncio.run(repair_container(folder / "container-0", 0, ChunkStore.in_folder(folder / "tier2")))


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """A folder in whose log a frame can't be read."""
    folder = tmp_path / "data"
    with nadi.embedded(folder, containers=1, environment={"NADI_LIMITS": HOLD}) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "t", 1)
            with manager.create_writer("s", "t") as writer:
                for number in range(40):
                    writer.write_event(b"late-%d" % number, "key").result(60)
        server.kill()
    log = next(path for path in folder.glob("container-0/log/log-*.nadi") if b"late-20" in path.read_bytes())
    flip(log, log.read_bytes().index(b"late-20") // 4096 * 4096 + 9)
    return folder


@every
def test_a_repair_that_is_killed_is_done_again(unreadable: Path, stride: int) -> None:
    """Half of one used to be a state that is missing, of which nothing can be had."""
    folder = unreadable
    pristine = copy_of(folder, "pristine")
    repaired(folder)
    expected = records_of(folder / "container-0/state")
    step = 0
    while True:
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        if not killed_at(step, "repair", folder):
            break
        told = command("repair", folder, "--yes")
        assert "a server can be started" in told.output or "what is left is sound" in told.output, (step, told.output)
        start(folder)
        found = records_of(folder / "container-0/state")
        assert {name: found[name] for name in ("segments", "extents", "entries", "names")} == {
            name: expected[name] for name in ("segments", "extents", "entries", "names")
        }, step
        assert len(list((folder / "container-0").glob("state.damaged-*"))) == 1, step
        step += stride
        assert step < 100
    assert step > 5


# --- after a clean stop ------------------------------------------------------------------------------


def damage_log(log: Path, what: str) -> None:
    last = files(log)[-2:]
    match what:
        case "everything":
            shutil.rmtree(log)
        case "all frames":
            for path in files(log):
                zero(path, 4096, path.stat().st_size - 4096)
        case "all files" | "the last file" | "the last two files":
            for path in files(log) if what == "all files" else last[-1:] if what == "the last file" else last:
                path.unlink()
        case "the last files cut":
            for path in last:
                os.truncate(path, 5_000)
        case "epoch and headers":
            (log / "epoch").unlink()
            for path in files(log):
                zero(path, 0, 8192)
        case _:
            for path in files(log) if what == "all headers" else last:
                zero(path, 0, 4096 if what == "all headers" else 8192)


QUICK = ("all frames", "the last two files", "epoch and headers")
LONG = ("all headers", "header and first frame", "all files", "the last file", "the last files cut", "everything")


def files(log: Path) -> list[Path]:
    return sorted(log.glob("log-*.nadi"))


def zero(path: Path, at: int, size: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(bytes(size))


@pytest.mark.parametrize("what", [*QUICK, *[pytest.param(what, marks=pytest.mark.slow) for what in LONG]])
def test_after_a_clean_stop_no_damage_of_the_log_refuses_the_start(folder: Path, what: str) -> None:
    """Only what it hit can't be read; and later starts, also after a kill, go on from there."""
    limits = {"NADI_LIMITS": "chunk_flush_age_s=9999"}
    with (
        nadi.embedded(folder, environment=limits) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        manager.create_writer("s", "t") as writer,
    ):
        for number in range(20):
            writer.write_event(b"late-%d" % number, str(number)).result(60)
    for number in range(2):
        damage_log(folder / f"container-{number}/log", what)
    told = command("check", folder)
    assert "rebuilt" not in told.output
    assert "given up with it" not in told.output, told.output
    for number in range(2):
        with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
            tail = manager.stream_info("s", "t").tail
            found = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
            assert found >= {event(number) for number in range(EVENTS // 2)}
            with manager.create_writer("s", "t") as writer:
                writer.write_event(b"after-%d" % number, "key").result(60)
            server.kill()
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        found = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
        assert {b"after-%d" % number for number in range(2)} <= found


def test_a_seal_speaks_for_the_log_only_until_somebody_writes_to_it(folder: Path) -> None:
    """An old state put back beside a newer log: what is missing then is needed."""
    recovered(folder)
    old = copy_of(folder, "old")
    log, at = late_events(folder)
    container = log.parent.parent
    shutil.rmtree(container / "state")
    shutil.copytree(old / container.name / "state", container / "state")
    flip(log, at + 9)
    with pytest.raises(CorruptLogError):
        start(folder, int(container.name[-1]))
    assert (container / "state/seal").exists(), "a start that failed has changed nothing"


def test_a_seal_says_nothing_of_later_frames_in_a_file_whose_header_is_damaged(folder: Path) -> None:
    """Written to after a clean stop, and killed before the first checkpoint."""
    recovered(folder)
    old = copy_of(folder, "old")
    log, _ = late_events(folder)
    container = log.parent.parent
    shutil.rmtree(container / "state")
    shutil.copytree(old / container.name / "state", container / "state")
    flip(log, 20)
    assert not rebuild.has_all(container, statecheck.examine(container / "state", int(container.name[-1])))
