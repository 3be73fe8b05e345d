"""`nadi check` changes nothing, whatever folder it is given; `nadi repair` says what it could not repair."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

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


def sound(folder: Path) -> None:
    recovered(folder)


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


@pytest.mark.parametrize(
    "make",
    [
        sound,
        without_lock,
        damaged_snapshot,
        damaged_log,
        without_tier2,
        without_log,
        empty,
        foreign,
        without_anything_in_a_container,
    ],
)
def test_check_changes_nothing(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    before = everything(folder)
    told = command("check", folder)
    assert told.exit_code in (0, 1), told.output
    assert everything(folder) == before
    if make in (empty, foreign):
        assert command("repair", folder, "--yes").exit_code == 1
        assert everything(folder) == before


def test_a_folder_that_is_being_checked_is_not_served(folder: Path) -> None:
    from nadi.errors import DataFolderLockedError
    from nadi.segmentstore.datafolder import FolderLock

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
            max((folder / "tier2").glob("container-*/*/*"), key=lambda path: path.stat().st_size).unlink()
    before = contents(folder)
    told = command("repair", folder, "--yes")
    assert told.exit_code == 1, told.output
    assert "can't be repaired" in told.output
    assert ("a server can be started" in told.output) == (what == "chunk")
    if what != "chunk":
        assert "no server can be started" in told.output
        assert contents(folder) == before
