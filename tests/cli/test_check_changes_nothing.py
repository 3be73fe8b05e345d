"""`nadi check` never changes a folder; `nadi repair` reports what it could not repair."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from nadi.errors import DataFolderLockedError, DataFolderVersionError
from nadi.segmentstore.data_dir import ENCRYPTED_FORMAT, FORMAT, FolderLock, StoreFile, find_store, open_folder
from nadi.segmentstore.repair.offline_store import StoppedLog
from tests.cli.test_check_and_repair import command, flip
from tests.segmentstore.state_tables import recovered
from tests.segmentstore.test_lost_state import base, contents, folder

__all__ = ["base", "folder"]  # fixtures


def everything(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return mode, size, modification time and data of each file and folder."""
    entries = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        entries[str(path)] = status.st_mode, status.st_size if path.is_file() else 0, status.st_mtime_ns, data
    return entries


def killed(folder: Path) -> None:
    """Leave the folder as the fixture made it."""


def sound(folder: Path) -> None:
    recovered(folder)


def without_chunk(folder: Path) -> None:
    max((folder / "tier2").glob("container-*/*/*"), key=lambda path: path.stat().st_size).unlink()


def without_lock(folder: Path) -> None:
    (folder / "lock").unlink()


def damaged_snapshot(folder: Path) -> None:
    for path in folder.glob("tier2/snapshots/container-0/*"):
        flip(path, 9)


def damaged_log(folder: Path) -> None:
    for path in folder.glob("container-*/log/log-*.nadi"):
        flip(path, 4096 + 9)


def without_tier2(folder: Path) -> None:
    shutil.rmtree(folder / "tier2")


def without_log(folder: Path) -> None:
    shutil.rmtree(folder / "container-0/log")


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def foreign(folder: Path) -> None:
    empty(folder)
    (folder / "thesis.txt").write_text("all of it")
    (folder / "lock").write_text("not nadi's")
    (folder / "lock").chmod(0o644)


def without_anything_in_a_container(folder: Path) -> None:
    for path in (folder / "container-0").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


SOUND = "sound: no damage found"
CHUNK = r"LOST +stream s/t, segment .*: bytes [\d,]+ to [\d,]+ "


@pytest.mark.parametrize(
    ("make", "code", "pattern"),
    [
        (killed, 0, SOUND),
        (sound, 0, SOUND),
        (without_lock, 0, ""),
        (without_chunk, 1, CHUNK),
        (damaged_snapshot, None, ""),
        (damaged_log, None, ""),
        (without_tier2, None, ""),
        (without_log, None, ""),
        (empty, 2, "not a nadi data folder"),
        (foreign, 2, "not a nadi data folder"),
        (without_anything_in_a_container, None, ""),
    ],
)
def test_check_changes_nothing(folder: Path, make: Callable[[Path], None], code: int | None, pattern: str) -> None:
    make(folder)
    before = everything(folder)
    result = command("check", folder)
    assert result.exit_code in ((0, 1) if code is None else (code,)), result.output
    assert re.search(pattern, result.output), result.output
    assert everything(folder) == before
    if make in (empty, foreign):
        assert command("repair", folder, "--yes").exit_code == 2
        assert everything(folder) == before
    elif pattern == SOUND:
        stored = contents(folder)
        assert command("repair", folder).exit_code == 0
        assert contents(folder) == stored


def test_check_reports_a_dropped_last_frame(folder: Path) -> None:
    killed(folder)
    last = StoppedLog(folder / "container-0/log").readable(0)[-1]
    flip(last.path, last.header.offset + 30)
    result = command("check", folder)
    assert result.exit_code == 0
    assert re.search(r"drops +frame [\d,]+, the last of the log", result.output), result.output


def test_check_of_a_missing_folder_creates_nothing(tmp_path: Path) -> None:
    assert command("check", tmp_path / "none").exit_code == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("other", [FORMAT - 1, ENCRYPTED_FORMAT + 1])
def test_check_and_repair_of_another_format_refuse_the_folder(folder: Path, other: int) -> None:
    """States of another format would look damaged."""
    store_file = find_store(folder).store
    assert isinstance(store_file, StoreFile)
    replace(store_file, format=other).write(folder)
    before = contents(folder)
    for verb in ("check", "repair"):
        refused = command(verb, folder)
        assert refused.exit_code == 1
        assert re.search(rf"\b{other}\b.*\b{FORMAT}\b", " ".join(refused.output.split()))
    with pytest.raises(DataFolderVersionError):
        open_folder(folder, None, None, "unused")
    assert contents(folder) == before


def test_folder_lock_of_a_check_excludes_a_server(folder: Path) -> None:
    checking = FolderLock(folder, changes=False)
    with pytest.raises(DataFolderLockedError):
        FolderLock(folder)
    checking.release()
    FolderLock(folder).release()
    assert (folder / "lock").read_text() == f"process {os.getpid()}"


@pytest.mark.parametrize("part", ["container", "chunk"])
def test_repair_of_an_irreparable_folder_reports_it(folder: Path, part: str) -> None:
    match part:
        case "container":
            shutil.rmtree(folder / "container-1")
        case "chunk":
            without_chunk(folder)
    before = contents(folder)
    result = command("repair", folder, "--yes")
    assert result.exit_code == 1, result.output
    assert "can't be repaired" in result.output
    assert ("a server can be started" in result.output) == (part == "chunk")
    if part != "chunk":
        assert "a server can't be started" in result.output
        assert contents(folder) == before
