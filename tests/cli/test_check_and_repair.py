"""`nadi check` tells what is damaged and changes nothing; `nadi repair` does what can be done, and says its price."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import nadi
from nadi.cli.app import app
from nadi.errors import DamagedDataError, DataFolderError
from nadi.segmentstore.tier1.layout import FRAME_HEADER_BYTES
from tests.segmentstore.state_tables import recovered
from tests.segmentstore.test_lost_state import EVENTS, base, contents, event, folder

__all__ = ["base", "folder"]  # fixtures
HOLD = "checkpoint_interval_s=3600,chunk_flush_age_s=3600"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_lost_snapshot_is_refused_and_left_alone(folder: Path) -> None:
    recovered(folder)
    shutil.rmtree(folder / "tier2/snapshots/container-0")
    before = contents(folder)
    with pytest.raises(DataFolderError):
        nadi.embedded(folder)
    for command_line in (("check", folder), ("repair", folder, "--yes")):
        told = command(*command_line)
        assert told.exit_code == 1
        assert re.search(r"LOST +its snapshot can't be used: .* is missing, and .*-copy is missing", told.output)
    assert "no server can be started: restore what is LOST from a copy" in told.output
    before = {path: data for path, data in before.items() if "container-0" in path.parts and path.name != "epoch"}
    assert before.items() <= contents(folder).items()


def late_events(folder: Path) -> tuple[Path, int]:
    """Events in frames of their own that only the log has; the file, and where the frame of one begins."""
    recovered(folder)
    with nadi.embedded(folder, environment={"NADI_LIMITS": HOLD}) as server:
        with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("s", "t") as writer:
            for number in range(40):
                writer.write_event(b"late-%d" % number, "key").result(60)
        server.kill()
    logs = [path for path in folder.glob("container-*/log/log-*.nadi") if b"late-20" in path.read_bytes()]
    assert len(logs) == 1
    return logs[0], logs[0].read_bytes().index(b"late-20") // 4096 * 4096  # small frames have a block each


def frames_of(log: Path) -> list[int]:
    data = log.read_bytes()
    return [at for at in range(4096, len(data), 4096) if data[at : at + 4] == b"nad2"]


def frames_after(log: Path, at: int) -> int:
    """How many frames follow: the events' and what the server itself noted meanwhile."""
    return sum(frame > at for frame in frames_of(log))


@pytest.mark.parametrize("place", [9, 100], ids=["header", "head"])
def test_one_frame_that_can_not_be_read_costs_no_other(folder: Path, place: int) -> None:
    log, at = late_events(folder)
    begin = events_of_log(log, at)
    flip(log, at + place)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    kept = frames_after(log, at)
    assert kept >= 19
    assert re.search(rf"LOST +frame \d+ can't be read; the {kept} ", told.output), told.output
    lost = re.findall(r"LOST +stream s/t, segment 1.#epoch.0: bytes ([\d,]+) to ([\d,]+) can't be read", told.output)
    assert [tuple(int(number.replace(",", "")) for number in found) for found in lost] == [(begin, begin + 15)]
    assert contents(folder) == before

    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 1, "something is lost"
    assert "a server can be started" in repaired.output, repaired.output
    assert not list(log.parent.glob("*.damaged-*"))
    for _ in range(2):
        with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
            tail = manager.stream_info("s", "t").tail
            found = set()
            gaps = []
            with manager.create_reader("s", "t", end=tail) as reader:
                while True:
                    try:
                        block = reader.next_block(60)
                    except DamagedDataError as error:
                        gaps.append((error.offset, error.end_offset))
                        continue
                    if block is None:
                        break
                    found |= set(block[1].events())
            assert gaps == [(begin, begin + 15)]
            assert found >= {event(number) for number in range(EVENTS)}
            assert {b"late-%d" % number for number in range(40)} - found == {b"late-20"}
            skipped = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
            assert skipped == found
    again = command("repair", folder, "--yes")
    assert again.exit_code == 1, "it is still lost"
    assert "to do" not in again.output


def test_a_file_without_its_header_and_first_frame_has_lost_no_more(tmp_path: Path) -> None:
    """It passed for one that was only prepared, and all that it holds was named as lost."""
    folder = tmp_path / "data"
    with nadi.embedded(folder, containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        with manager.create_writer("s", "t") as writer:
            for number in range(20):
                writer.write_event(b"late-%02d" % number, "key").result(60)
        server.kill()
    log = max(path for path in folder.glob("container-0/log/log-*.nadi") if b"late-19" in path.read_bytes())
    for later in folder.glob("container-0/log/log-*.nadi"):
        if later.name > log.name:  # prepared, and not used
            later.unlink()
    with log.open("r+b") as stream:
        stream.write(bytes(2 * 4096))
    told = command("repair", folder, "--yes")
    assert told.exit_code == 1
    assert set(re.findall(r"bytes [\d,]+ to [\d,]+ can't be read", told.output)) == {"bytes 0 to 15 can't be read"}
    assert "285 bytes read and correct" in told.output, told.output


def events_of_log(log: Path, at: int) -> int:
    """Where in its segment the frame at that place of a log appends."""
    from nadi.segmentstore.state.operations import Append, decode_frame

    operations, _ = decode_frame(log.read_bytes()[at + FRAME_HEADER_BYTES : at + 4096])
    assert isinstance(operations[0], Append)
    return operations[0].offset


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    with nadi.embedded(folder):
        told = command("check", folder)
    assert told.exit_code == 1
    assert "in use" in told.output


def test_a_log_that_has_lost_its_beginning_is_not_cut(folder: Path) -> None:
    """An end put to it would leave nothing of it: what it still has is kept."""
    log, _ = late_events(folder)
    with (
        nadi.embedded(folder, environment={"NADI_LIMITS": HOLD}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        manager.create_writer("s", "t") as writer,
    ):
        for number in range(10):
            writer.write_event(b"later-%d" % number, "key").result(60)
        server.kill()
    for path in log.parent.glob("log-*.nadi"):
        if path.name <= log.name:
            path.unlink()
    with pytest.raises(DataFolderError, match="nadi check"):
        nadi.embedded(folder)
    told = command("check", folder)
    assert re.search(r"LOST +frames [\d,]+ to [\d,]+ can't be read; the \d+ ", told.output), (
        told.output
    )
    repaired = command("repair", folder, "--yes")
    assert "the log is cut" not in repaired.output
    assert "a server can be started" in repaired.output, repaired.output
    assert not list(log.parent.glob("*.damaged-*"))
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        found = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
    assert {b"later-%d" % number for number in range(10)} <= found


def test_a_table_that_has_lost_changes_is_told_and_the_log_ends_there(folder: Path) -> None:
    """Its readers would not be told: so nothing that follows is kept, and the report says why."""
    recovered(folder)
    with (
        nadi.embedded(folder, environment={"NADI_LIMITS": HOLD}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        table = manager.table("s", "tab")
        for number in range(9):
            table.put(b"late", b"value-%d" % number)
        server.kill()
    log = next(path for path in folder.glob("container-*/log/log-*.nadi") if b"value-4" in path.read_bytes())
    at = log.read_bytes().index(b"value-4") // 4096 * 4096
    later = frames_after(log, at)
    assert later >= 4
    flip(log, at + 9)
    told = command("check", folder)
    assert re.search(r"LOST +the log is cut before frame \d+", told.output), told.output
    assert "some keys have older values" in told.output
    repaired = command("repair", folder, "--yes")
    assert f"{later} readable acknowledged frames" in repaired.output, repaired.output
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        value = manager.table("s", "tab").get(b"late")
        assert value is not None
        assert value.value == b"value-3"


def test_a_damaged_place_is_printed_once(folder: Path) -> None:
    chunk = next(path for path in sorted((folder / "tier2/container-0").rglob("*")) if path.is_file())
    chunk.unlink()
    told = subprocess.run(
        [sys.executable, "-m", "nadi.cli.app", "check", str(folder)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert told.stdout.count(chunk.name) == 1
    assert chunk.name not in told.stderr
