"""What a server does with a damaged log: a torn tail is dropped, damage before it is refused and named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

import nadi
from nadi.client.reading.damage import OnDamage
from nadi.errors import CorruptLogError, DamagedDataError, DataFolderError
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader

COUNT = 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a server that was killed after it had acknowledged COUNT events, each in a frame of its own."""
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
    """A checksum of each file that holds data; a state may be replaced by a compact copy."""
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


def test_a_torn_tail_is_dropped_and_everything_acknowledged_is_there(folder: Path) -> None:
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
def test_damage_in_the_middle_is_refused_and_a_repair_keeps_all_else(folder: Path, where: str) -> None:
    path, frame = place_of(folder, b"event-0025")
    overwrite(path, frame.offset + (8 if where == "header" else FRAME_HEADER_BYTES + 20), b"\xff\xff\xff\xff")
    before = stored(folder)

    with pytest.raises(DataFolderError) as refused:
        nadi.embedded(folder)
    up = nadi_command("up", "--data", str(folder), "--port", "0")

    told = re.search(r"damaged at byte ([\d,]+) of (.+?): .*`nadi repair`", str(refused.value))
    assert told is not None, refused.value
    assert (told[2], int(told[1].replace(",", ""))) == (str(path), frame.offset)
    assert str(CorruptLogError(str(path), frame.offset, "")).split(":")[0] in str(refused.value)
    assert up.returncode == 1
    assert up.stderr.startswith("error: the durable log is damaged"), up.stderr
    assert f"byte {frame.offset:,} of" in up.stderr
    assert "Traceback" not in up.stderr
    assert stored(folder) == before, "a refused start has changed data"

    repair = nadi_command("repair", str(folder), "--yes")
    assert repair.returncode == 1, repair.stderr  # an acknowledged event was given up
    with pytest.raises(DamagedDataError):
        events_of(folder)
    assert events_of(folder, "skip") == [event for event in expected(COUNT) if event != b"event-0025"]
