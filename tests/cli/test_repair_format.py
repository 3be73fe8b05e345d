"""A data folder of which nothing says which store it has, or whose containers are gone."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import nadi
from nadi.segmentstore.data_dir import stored_containers
from tests.cli.test_check_and_repair import command

pytestmark = pytest.mark.slow


def test_where_nothing_says_it_nothing_is_guessed(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, containers=3) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 8)
    say_nothing(tmp_path)
    with pytest.raises(nadi.NadiError):
        nadi.embedded(tmp_path)
    assert command("check", str(tmp_path)).exit_code == 1
    repaired = command("repair", "--yes", str(tmp_path))
    assert repaired.exit_code == 1
    assert "number of containers is unknown" in " ".join(repaired.output.split())
    assert "no server can be started" in repaired.output
    assert not (tmp_path / "store.json").exists()


def say_nothing(folder: Path) -> None:
    for name in ("store.json", "tier2/cluster.json"):
        (folder / name).unlink()


def names(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def written(folder: Path, containers: int) -> None:
    limits = "chunk_flush_age_s=0.1,storage_writer_tick_s=0.02,checkpoint_interval_s=0.05,snapshot_interval_s=0.1"
    with (
        nadi.embedded(folder, containers=containers, environment={"NADI_LIMITS": limits}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("s")
        manager.create_stream("s", "t", 16)
        with manager.create_writer("s", "t") as writer:
            for number in range(200):
                writer.write_event(b"%d" % number, f"key-{number}")
        deadline = time.monotonic() + 60
        while len(stored_containers(folder)) < containers:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_what_only_tier_2_has_is_not_forgotten(tmp_path: Path) -> None:
    """A start made a new folder of one container beside it."""
    written(tmp_path, 3)
    for path in tmp_path.glob("container-*"):
        shutil.rmtree(path)
    say_nothing(tmp_path)
    with pytest.raises(nadi.NadiError, match="tier2 has data of container-0, container-1, container-2"):
        nadi.embedded(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(("container", "store"))} == set()
    assert command("check", str(tmp_path)).exit_code == 1
    assert command("repair", "--yes", str(tmp_path)).exit_code == 1


@pytest.mark.parametrize("is_said", [True, False])
def test_one_container_that_is_there_is_not_taken_for_all(tmp_path: Path, is_said: bool) -> None:
    written(tmp_path, 3)
    for number in (1, 2):
        shutil.rmtree(tmp_path / f"container-{number}")
    if not is_said:
        say_nothing(tmp_path)
    before = names(tmp_path)
    told = command("repair", "--yes", str(tmp_path))
    assert told.exit_code == 1
    assert told.output.count("its folder is missing, with its log and its state: restore it") == 2
    assert "no server can be started" in told.output
    assert names(tmp_path) == before


@pytest.mark.parametrize("stray", ["folder", "file"])
def test_what_is_one_too_many_is_named_by_check_and_start(tmp_path: Path, stray: str) -> None:
    """A check told that a server mends it, and the start was refused; or both told of an `[Errno 20]`."""
    with nadi.embedded(tmp_path):
        pass
    path = tmp_path / "container-7"
    path.mkdir() if stray == "folder" else path.write_text("?")
    told = command("check", str(tmp_path))
    assert told.exit_code == 1
    assert "container-7" in told.output
    assert "move it elsewhere" in told.output
    assert command("repair", "--yes", str(tmp_path)).exit_code == 1
    with pytest.raises(nadi.NadiError, match=r"container-7 .*move it elsewhere"):
        nadi.embedded(tmp_path)
    path.rmdir() if stray == "folder" else path.unlink()
    assert command("check", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize("part", ["container-0", "tier2", "container-0/log"])
def test_a_part_of_a_data_folder_is_no_data_folder(tmp_path: Path, part: str) -> None:
    written(tmp_path, 1)
    before = names(tmp_path)
    for arguments in (("check",), ("repair", "--yes")):
        told = command(*arguments, str(tmp_path / part))
        assert told.exit_code == 1
        assert f"of the data folder {tmp_path}: " in " ".join(told.output.split())
    with pytest.raises(nadi.NadiError, match="only a part"):
        nadi.embedded(tmp_path / part)
    assert names(tmp_path) == before


def test_data_folders_side_by_side_may_have_names_of_containers(tmp_path: Path) -> None:
    for number in range(2):
        with nadi.embedded(tmp_path / f"container-{number}"):
            pass
    assert command("check", str(tmp_path / "container-1")).exit_code == 0
