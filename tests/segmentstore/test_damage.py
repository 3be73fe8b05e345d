"""Starts with a damaged log: a torn tail is dropped, earlier damage is refused and named."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

import nadi
from nadi.client.reading.damage import OnDamage
from nadi.errors import CorruptLogError, DamagedDataError, DataFolderError
from nadi.segmentstore.tier1 import fence
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader
from tests.cli.test_check_and_repair import HOLD, command, flip
from tests.segmentstore.dying_main import DIED
from tests.segmentstore.state_tables import Records, copy_of, recovered
from tests.segmentstore.tier1.test_files import frames as some
from tests.segmentstore.tier1.test_files import read, write

COUNT = 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a server killed after it had acknowledged COUNT events, each in its own frame."""
    monkeypatch.setenv("NADI_LIMITS", "checkpoint_interval_s=3600,log_file_bytes=1048576")
    path = tmp_path / "data"
    server = nadi.embedded(path, containers=1)
    try:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "t", 1)
            with manager.create_writer("s", "t") as writer:
                for number in range(COUNT):
                    writer.write_event(f"event-{number:04}".encode(), "key")
                    writer.flush(60)
    finally:
        server.kill()
    return path


def frames(path: Path) -> Iterator[tuple[FrameHeader, bytes]]:
    data = path.read_bytes()
    header = FileHeader.decode(data[:BLOCK_BYTES], path)
    position = BLOCK_BYTES
    while header is not None:
        frame = FrameHeader.decode(memoryview(data)[position:], crc32c(header.log_id), header.number, position)
        if frame is None:
            return
        yield frame, data[position + FRAME_HEADER_BYTES :][: frame.payload_bytes]
        position += frame.frame_bytes


def place_of(folder: Path, event: bytes) -> tuple[Path, FrameHeader]:
    for path in sorted(folder.glob("container-0/log/log-*.nadi")):
        for frame, payload in frames(path):
            if event in payload:
                return path, frame
    raise AssertionError(f"{event!r} is in no frame")


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def stored(folder: Path) -> dict[str, int]:
    """Return a checksum of each file with data; a state may be replaced by a compact copy."""
    kept = [*folder.rglob("*.nadi"), *folder.glob("tier2/**/*"), folder / "store.json"]
    return {str(path): crc32c(path.read_bytes()) for path in kept if path.is_file()}


def events_of(folder: Path, on_damage: OnDamage = "raise") -> list[bytes]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        return [event.data for event in manager.read_events("s", "t", end=tail, on_damage=on_damage)]


def expected(count: int) -> list[bytes]:
    return [f"event-{number:04}".encode() for number in range(count)]


def nadi_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "300"}
    command = [sys.executable, "-m", "nadi.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_torn_tail_is_dropped_without_losing_acknowledged_events(folder: Path) -> None:
    path = max(folder.glob("container-0/log/log-*.nadi"), key=lambda p: (next(frames(p), None) is not None, p))
    header = FileHeader.decode(path.read_bytes()[:BLOCK_BYTES], path)
    assert header is not None
    last = max((frame for frame, _ in frames(path)), key=lambda frame: frame.sequence)
    end = last.offset + last.frame_bytes
    block = bytearray(BLOCK_BYTES)
    torn = last._replace(payload_bytes=10 * BLOCK_BYTES, sequence=last.sequence + 1, offset=end, head_crc=1)
    torn.encode_into(memoryview(block), crc32c(header.log_id))
    overwrite(path, end, bytes(block) + b"half a payload" * 100)

    assert events_of(folder) == expected(COUNT)


@pytest.mark.parametrize("where", ["header", "payload"])
def test_damage_in_the_middle_is_refused_and_repair_keeps_the_rest(folder: Path, where: str) -> None:
    path, frame = place_of(folder, b"event-0025")
    overwrite(path, frame.offset + (8 if where == "header" else FRAME_HEADER_BYTES + 20), b"\xff\xff\xff\xff")
    before = stored(folder)

    with pytest.raises(DataFolderError) as refused:
        nadi.embedded(folder)
    up = nadi_command("up", "--data", str(folder), "--port", "0")

    named = re.search(r"at byte ([\d,]+) of (.+?): .*`nadi repair`", str(refused.value))
    assert named is not None, refused.value
    assert (named[2], int(named[1].replace(",", ""))) == (str(path), frame.offset)
    assert str(CorruptLogError(str(path), frame.offset, "")).split(":")[0] in str(refused.value)
    assert up.returncode == 1
    assert up.stderr.startswith("error: "), up.stderr
    assert path.name in up.stderr
    assert f"byte {frame.offset:,} of" in up.stderr
    assert "Traceback" not in up.stderr
    assert stored(folder) == before, "a refused start has changed data"

    repair = nadi_command("repair", str(folder), "--yes")
    assert repair.returncode == 1, repair.stderr  # an acknowledged event was discarded
    with pytest.raises(DamagedDataError):
        events_of(folder)
    assert events_of(folder, "skip") == [event for event in expected(COUNT) if event != b"event-0025"]


# --- a log whose last file is missing or unreadable is not mistaken for a shorter one --------------------


def removed(file: Path) -> None:
    file.unlink()


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def begins_with_zeros(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(bytes(2 * BLOCK_BYTES))


@pytest.mark.parametrize("spoil", [removed, zeroed, emptied, begins_with_zeros])
def test_loss_of_frames_after_a_clean_stop_is_reported(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Written after the stop by a server killed before its first checkpoint: the state has no trace of it."""
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        with manager.create_writer("s", "t") as writer:
            writer.write_event(b"before", "key").result(60)
    server = nadi.embedded(tmp_path, environment={"NADI_LIMITS": "checkpoint_interval_s=3600"})
    with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("s", "t") as writer:
        writer.write_event(b"after", "key").result(60)
        server.kill()
    log = tmp_path / "container-0/log"
    used = [file for file in sorted(log.glob("log-*.nadi")) if file.read_bytes()[:8] == b"nadi-log"]
    spoil(used[-1])
    with pytest.raises(nadi.NadiError, match=used[-1].name):
        nadi.embedded(tmp_path)


def test_a_log_knows_its_last_file(tmp_path: Path) -> None:
    log_id, other = secrets.token_bytes(16), secrets.token_bytes(16)
    assert fence.latest(tmp_path, log_id) == 0
    for number in (1, 2, 3, 2):  # 2 again: a repair may restart lower
        fence.note(tmp_path, log_id, number)
        assert fence.latest(tmp_path, log_id) == number
        assert fence.latest(tmp_path, other) == 0, "another log's file is ignored"
    file = tmp_path / fence.LATEST_FILE
    whole, inode = file.read_bytes(), file.stat().st_ino
    for torn in range(0, len(whole.rstrip()), 7):
        file.write_bytes(whole[:torn] + bytes([whole[torn] ^ 1]) + whole[torn + 1 :])
        assert fence.latest(tmp_path, log_id) == 0, "a wrong number would refuse an intact log"
    fence.note(tmp_path, log_id, 4)
    assert fence.latest(tmp_path, log_id) == 4
    assert (file.stat().st_ino, file.stat().st_size) == (inode, len(whole)), "it must fit on a full disk"


def test_a_log_whose_last_file_is_missing_is_refused(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, some(30))  # several files, each by a different owner
    last = [path for path in sorted(tmp_path.glob("log-*.nadi")) if path.read_bytes()[:8] == b"nadi-log"][-1]
    for path in sorted(tmp_path.glob("log-*.nadi")):
        if path >= last:
            path.unlink()
    with pytest.raises(CorruptLogError) as refused:
        read(tmp_path)
    assert Path(refused.value.file) == last


# --- a repair killed at any moment can be repeated, with the same result ---------------------------------


def killed_at(step: int, folder: Path) -> bool:
    """Kill a repair at that step; return whether it was reached."""
    command = [sys.executable, "-m", "tests.segmentstore.dying_main", str(folder), str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, DIED), ended.stderr
    return ended.returncode == DIED


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """A folder with an unreadable frame in its log."""
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


def what_counts(folder: Path) -> Records:
    (found,) = recovered(folder)
    return {name: found[name] for name in ("segments", "extents", "entries", "names")}


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_repair_can_be_repeated(unreadable: Path, stride: int) -> None:
    folder = unreadable
    pristine = copy_of(folder, "pristine")
    assert command("repair", folder, "--yes").exit_code == 1  # a frame is lost
    expected = what_counts(folder)
    step = 0
    while True:
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        if not killed_at(step, folder):
            break
        second = command("repair", folder, "--yes")
        assert second.exit_code in (0, 1), (step, second.output)
        assert what_counts(folder) == expected, step
        step += stride
        assert step < 100
    assert step > 5
