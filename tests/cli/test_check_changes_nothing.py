"""`nadi check` changes nothing, whatever folder it is given; `nadi repair` says what it could not repair."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from nadi.errors import DataFolderLockedError, DataFolderVersionError
from nadi.segmentstore.data_dir import FORMAT, FolderLock, StoreFile, find, open_folder
from tests.cli.test_check_and_repair import command, flip
from tests.segmentstore.state_tables import recovered
from tests.segmentstore.test_lost_state import base, contents, folder

__all__ = ["base", "folder"]  # fixtures


def everything(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Each file and folder: its mode, its size, when it was changed, and its bytes."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = status.st_mode, status.st_size if path.is_file() else 0, status.st_mtime_ns, data
    return found


def killed(folder: Path) -> None:
    """As the fixture leaves it."""


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


SOUND = "sound: nothing is damaged"
CHUNK = r"LOST +stream s/t, segment .*: bytes [\d,]+ to [\d,]+ can't be read: chunk .* is missing"


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (killed, 0, SOUND),
        (sound, 0, SOUND),
        (without_lock, 0, ""),
        (without_chunk, 1, CHUNK),
        (damaged_snapshot, None, ""),
        (damaged_log, None, ""),
        (without_tier2, None, ""),
        (without_log, None, ""),
        (empty, 1, "not a nadi data folder"),
        (foreign, 1, "not a nadi data folder"),
        (without_anything_in_a_container, None, ""),
    ],
)
def test_check_changes_nothing(folder: Path, make: Callable[[Path], None], code: int | None, says: str) -> None:
    make(folder)
    before = everything(folder)
    told = command("check", folder)
    assert told.exit_code in ((0, 1) if code is None else (code,)), told.output
    assert re.search(says, told.output), told.output
    assert everything(folder) == before
    if make in (empty, foreign):
        assert command("repair", folder, "--yes").exit_code == 1
        assert everything(folder) == before
    elif says == SOUND:
        stored = contents(folder)
        assert command("repair", folder).exit_code == 0
        assert contents(folder) == stored


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert command("check", tmp_path / "none").exit_code == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_folder_of_another_version_is_neither_judged_nor_repaired(folder: Path, other: int) -> None:
    """Its states, misread, would look damaged."""
    said = find(folder).store
    assert isinstance(said, StoreFile)
    replace(said, format=other).write(folder)
    before = contents(folder)
    for verb in ("check", "repair"):
        refused = command(verb, folder)
        assert refused.exit_code == 1
        assert f"has format {other}; this version of nadi reads format {FORMAT}" in " ".join(refused.output.split())
    with pytest.raises(DataFolderVersionError):
        open_folder(folder, None, None, "unused")
    assert contents(folder) == before


def test_a_folder_that_is_being_checked_is_not_served(folder: Path) -> None:
    looking = FolderLock(folder, changes=False)
    with pytest.raises(DataFolderLockedError):
        FolderLock(folder)
    looking.release()
    FolderLock(folder).release()
    assert (folder / "lock").read_text() == f"process {os.getpid()}"


@pytest.mark.parametrize("what", ["container", "chunk"])
def test_a_repair_says_what_it_could_not_repair(folder: Path, what: str) -> None:
    match what:
        case "container":
            shutil.rmtree(folder / "container-1")
        case "chunk":
            without_chunk(folder)
    before = contents(folder)
    told = command("repair", folder, "--yes")
    assert told.exit_code == 1, told.output
    assert "can't be repaired" in told.output
    assert ("a server can be started" in told.output) == (what == "chunk")
    if what != "chunk":
        assert "no server can be started" in told.output
        assert contents(folder) == before
