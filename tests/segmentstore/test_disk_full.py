"""A full disk: writers wait and are told, nothing acknowledged is lost, and writing goes on once there is room."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import Ack, EventWriter
from nadi.errors import NadiError, StorageFullError, UnavailableError

DISK_MB = 64
BALLAST_MB = 24
EVENT_BYTES = 20_000
PAGE_BYTES = 4096  # in which tmpfs counts


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, with a ballast file on it that can be deleted to make room."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "nadi-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted here: {mounted.stderr.strip()}")
    try:
        (folder / "ballast").write_bytes(bytes(BALLAST_MB << 20))
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=True)


def event(number: int) -> bytes:
    return b"%08d" % number + bytes(EVENT_BYTES - 8)


def write_until_full(writer: EventWriter, written: int) -> tuple[list[int], int, NadiError]:
    """Write one after the other until one fails: the acknowledged numbers, how many were written, the failure."""
    acknowledged: list[int] = []
    while True:
        acks: list[tuple[int, Ack]] = []
        for _ in range(10):
            acks.append((written, writer.write_event(event(written), "key")))
            written += 1
        failure = None
        for number, ack in acks:
            try:
                ack.result(60)
                acknowledged.append(number)
            except NadiError as error:
                failure = error
        if failure is not None:
            return acknowledged, written, failure
        assert written * EVENT_BYTES < DISK_MB << 20, "the disk took more than it has room for"


def write_when_there_is_room(writer: EventWriter, written: int) -> tuple[int, int]:
    """Write until one event is acknowledged: its number, and how many were written."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ack = writer.write_event(event(written), "key")
        written += 1
        try:
            ack.result(60)
        except StorageFullError:
            continue
        return written - 1, written
    raise AssertionError("no event was taken for a minute after room was made")


def read_numbers(manager: nadi.StreamManager) -> list[int]:
    tail = manager.stream_info("s", "t").tail
    return [int(found.data[:8]) for found in manager.read_events("s", "t", end=tail)]


def check(numbers: list[int], acknowledged: list[int]) -> None:
    assert numbers == sorted(set(numbers)), "duplicates, or out of order"
    assert set(acknowledged) <= set(numbers), "something acknowledged is lost"


@pytest.mark.crash
def test_writing_goes_on_once_a_full_disk_has_room(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=1048576,chunk_flush_age_s=0.5,checkpoint_interval_s=0.2")
    server = nadi.embedded(disk / "data", containers=1)
    try:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "t", 1)
            writer = manager.create_writer("s", "t", ack_timeout=4)
            acknowledged, written, failure = write_until_full(writer, 0)
            assert isinstance(failure, StorageFullError), repr(failure)
            assert acknowledged, "the disk was full at once"

            (disk / "ballast").unlink()
            taken, written = write_when_there_is_room(writer, written)
            acknowledged.append(taken)
            check(read_numbers(manager), acknowledged)

            more, written, failure = write_until_full(writer, written)
            assert isinstance(failure, StorageFullError), repr(failure)
            acknowledged += more
            check(read_numbers(manager), acknowledged)
    finally:
        server.kill()

    # Killed while the disk is full: with more room, everything is there.
    subprocess.run(["mount", "-o", f"remount,size={2 * DISK_MB}m", str(disk)], check=True, timeout=20)
    with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        check(read_numbers(manager), acknowledged)
        with manager.create_writer("s", "t") as writer:
            writer.write_event(event(written), "key").result(60)
        check(read_numbers(manager), [*acknowledged, written])


def write_endlessly(file: RawIOBase, size: int) -> None:
    while True:
        file.write(bytes(size))


def fill(disk: Path, pages: int) -> None:
    """Leave room for so many pages."""
    with (disk / "ballast").open("r+b", buffering=0) as ballast:
        ballast.seek(0, os.SEEK_END)
        for size in (1 << 20, PAGE_BYTES):
            with pytest.raises(OSError, match="No space left"):
                write_endlessly(ballast, size)
        ballast.truncate((ballast.tell() // PAGE_BYTES - pages) * PAGE_BYTES)


@pytest.mark.crash
@pytest.mark.parametrize("pages", range(14))
def test_a_start_without_room_says_what_to_do_and_leaves_nothing_half_made(
    disk: Path, pages: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=1048576")
    fill(disk, pages)
    with pytest.raises(UnavailableError, match=r"room.*then start again") as raised:
        nadi.embedded(disk / "data", containers=1)
    assert str(disk / "data") in str(raised.value)
    # LMDB says EIO where a write fitted in part; everything else is known to be a full disk
    assert isinstance(raised.value, StorageFullError) or "Input/output error" in str(raised.value)
    assert "Traceback" not in capfd.readouterr().err

    (disk / "ballast").unlink()
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert manager.create_scope("s")


@pytest.mark.crash
def test_what_is_stored_can_be_read_after_a_start_on_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=1048576")
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        manager.create_writer("s", "t").write_event(event(1), "key").result(60)
        server.kill()
    for _ in range(2):  # and room is kept aside for the next time
        fill(disk, 0)
        with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
            assert read_numbers(manager) == [1]
            server.kill()


@pytest.mark.crash
def test_the_command_says_so_too(disk: Path) -> None:
    fill(disk, 0)
    result = CliRunner().invoke(app, ["up", "--data", str(disk / "data"), "--port", "0"])
    assert result.exit_code == 1
    assert "free space on its disk" in result.output
