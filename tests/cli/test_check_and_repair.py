"""`nadi check` reports damage without changing anything; `nadi repair` salvages data and reports losses."""

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


def test_check_and_repair_of_a_lost_snapshot_change_nothing(folder: Path) -> None:
    recovered(folder)
    shutil.rmtree(folder / "tier2/snapshots/container-0")
    before = contents(folder)
    with pytest.raises(DataFolderError):
        nadi.embedded(folder)
    for command_line in (("check", folder), ("repair", folder, "--yes")):
        result = command(*command_line)
        assert result.exit_code == 1
        assert "LOST" in result.output
    assert "a server can't be started" in result.output
    before = {path: data for path, data in before.items() if "container-0" in path.parts and path.name != "epoch"}
    assert before.items() <= contents(folder).items()


def late_events(folder: Path) -> tuple[Path, int]:
    """Write events in separate frames that only the log contains; return the log file and the offset of one frame."""
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
    """Count the frames after an offset, including the server's own."""
    return sum(frame > at for frame in frames_of(log))


@pytest.mark.parametrize("place", [9, 100], ids=["header", "head"])
def test_repair_of_one_unreadable_frame_keeps_all_others(folder: Path, place: int) -> None:
    log, at = late_events(folder)
    begin = events_of_log(log, at)
    flip(log, at + place)
    before = contents(folder)
    result = command("check", folder)
    assert result.exit_code == 1
    following = frames_after(log, at)
    assert following >= 19
    assert re.search(rf"LOST .*\b{following}\b", result.output), result.output
    lost = re.findall(r"LOST +stream s/t, segment 1.#epoch.0: bytes ([\d,]+) to ([\d,]+)", result.output)
    assert [tuple(int(number.replace(",", "")) for number in bounds) for bounds in lost] == [(begin, begin + 15)]
    assert contents(folder) == before

    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 1, "data is lost"
    assert "a server can be started" in repaired.output, repaired.output
    assert not list(log.parent.glob("*.damaged-*"))
    for _ in range(2):
        with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
            tail = manager.stream_info("s", "t").tail
            events = set()
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
                    events |= set(block[1].events())
            assert gaps == [(begin, begin + 15)]
            assert events >= {event(number) for number in range(EVENTS)}
            assert {b"late-%d" % number for number in range(40)} - events == {b"late-20"}
            skipped = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
            assert skipped == events
    again = command("repair", folder, "--yes")
    assert again.exit_code == 1, "the data is still lost"
    assert "planned" not in again.output


def test_repair_of_a_log_file_without_header_reports_only_its_first_frame(tmp_path: Path) -> None:
    """The file was taken for a preallocated one, and all its data was reported as lost."""
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
        if later.name > log.name:  # preallocated and unused
            later.unlink()
    with log.open("r+b") as stream:
        stream.write(bytes(2 * 4096))
    result = command("repair", folder, "--yes")
    assert result.exit_code == 1
    assert set(re.findall(r"bytes ([\d,]+) to ([\d,]+) ", result.output)) == {("0", "15")}
    assert "285 bytes" in result.output, result.output


def events_of_log(log: Path, at: int) -> int:
    """Return the segment offset that the frame at this log offset appends to."""
    from nadi.segmentstore.state.operations import Append, decode_frame

    operations, _ = decode_frame(log.read_bytes()[at + FRAME_HEADER_BYTES : at + 4096])
    assert isinstance(operations[0], Append)
    return operations[0].offset


def test_check_of_a_folder_in_use_fails(folder: Path) -> None:
    with nadi.embedded(folder) as server:
        result = command("check", folder)
    assert result.exit_code == 1
    assert re.search(rf"\b{server.pid}\b", result.output), result.output
    assert command("check", folder).exit_code == 0


def test_repair_of_a_log_without_its_start_keeps_the_rest(folder: Path) -> None:
    """Truncating the log at the damage would discard all of it."""
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
    with pytest.raises(DataFolderError):
        nadi.embedded(folder)
    result = command("check", folder)
    assert re.search(r"LOST +frames [\d,]+ to [\d,]+ ", result.output), result.output
    repaired = command("repair", folder, "--yes")
    assert "a server can be started" in repaired.output, repaired.output
    assert not list(log.parent.glob("*.damaged-*"))
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        found = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
    assert {b"later-%d" % number for number in range(10)} <= found


def test_repair_of_lost_table_changes_ends_the_log_there(folder: Path) -> None:
    """Readers of a table wouldn't notice missing changes, so later frames are given up, too."""
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
    result = command("check", folder)
    assert re.search(r"LOST .*frame \d+", result.output), result.output
    repaired = command("repair", folder, "--yes")
    assert re.search(rf"given up: .*\b{later} ", repaired.output), repaired.output
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        value = manager.table("s", "tab").get(b"late")
        assert value is not None
        assert value.value == b"value-3"


def test_check_prints_damage_once(folder: Path) -> None:
    chunk = next(path for path in sorted((folder / "tier2/container-0").rglob("*")) if path.is_file())
    chunk.unlink()
    result = subprocess.run(
        [sys.executable, "-m", "nadi.cli.app", "check", str(folder)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stdout.count(chunk.name) == 1
    assert chunk.name not in result.stderr
