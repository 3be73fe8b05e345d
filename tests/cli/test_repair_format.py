"""Data folders without a record of their store, or with missing containers."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

import nadi
from nadi.segmentstore.data_dir import stored_containers
from tests.cli.test_check_and_repair import command

pytestmark = pytest.mark.slow


def test_repair_without_any_record_of_containers_fails(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, containers=3) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 8)
    remove_records(tmp_path)
    with pytest.raises(nadi.NadiError):
        nadi.embedded(tmp_path)
    assert command("check", str(tmp_path)).exit_code == 1
    repaired = command("repair", "--yes", str(tmp_path))
    assert repaired.exit_code == 1
    assert "a server can't be started" in repaired.output
    assert not (tmp_path / "store.json").exists()


def remove_records(folder: Path) -> None:
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


def test_start_without_records_respects_data_in_tier_2(tmp_path: Path) -> None:
    """A start created a new folder with one container."""
    written(tmp_path, 3)
    for path in tmp_path.glob("container-*"):
        shutil.rmtree(path)
    remove_records(tmp_path)
    with pytest.raises(nadi.NadiError, match="container-0, container-1, container-2"):
        nadi.embedded(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(("container", "store"))} == set()
    assert command("check", str(tmp_path)).exit_code == 1
    assert command("repair", "--yes", str(tmp_path)).exit_code == 1


@pytest.mark.parametrize("has_records", [True, False])
def test_repair_with_missing_containers_fails(tmp_path: Path, has_records: bool) -> None:
    written(tmp_path, 3)
    for number in (1, 2):
        shutil.rmtree(tmp_path / f"container-{number}")
    if not has_records:
        remove_records(tmp_path)
    before = names(tmp_path)
    result = command("repair", "--yes", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.count("LOST ") >= 2
    assert "a server can't be started" in result.output
    assert names(tmp_path) == before


@pytest.mark.parametrize("stray", ["folder", "file"])
def test_unexpected_container_is_reported_by_check_and_start(tmp_path: Path, stray: str) -> None:
    """A check promised that a server repairs it, but the start failed; or both reported an `[Errno 20]`."""
    with nadi.embedded(tmp_path):
        pass
    path = tmp_path / "container-7"
    path.mkdir() if stray == "folder" else path.write_text("?")
    result = command("check", str(tmp_path))
    assert result.exit_code == 1
    assert "container-7" in result.output
    assert command("repair", "--yes", str(tmp_path)).exit_code == 1
    with pytest.raises(nadi.NadiError, match="container-7"):
        nadi.embedded(tmp_path)
    path.rmdir() if stray == "folder" else path.unlink()
    assert command("check", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize("part", ["container-0", "tier2", "container-0/log"])
def test_part_of_a_data_folder_is_rejected(tmp_path: Path, part: str) -> None:
    written(tmp_path, 1)
    before = names(tmp_path)
    whole = rf"{re.escape(str(tmp_path))}(?![/\w])"  # the folder to give instead
    for arguments in (("check",), ("repair", "--yes")):
        result = command(*arguments, str(tmp_path / part))
        assert result.exit_code == 1
        assert re.search(whole, "".join(result.output.split()))
    with pytest.raises(nadi.NadiError, match=whole):
        nadi.embedded(tmp_path / part)
    assert names(tmp_path) == before


def test_data_folder_may_be_named_like_a_container(tmp_path: Path) -> None:
    for number in range(2):
        with nadi.embedded(tmp_path / f"container-{number}"):
            pass
    assert command("check", str(tmp_path / "container-1")).exit_code == 0
