"""A state's file is inspected by another process, with the code of this very nadi and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from nadi.segmentstore.state import check
from nadi.segmentstore.state.checked import inspect
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.stored import ContainerState, state_change


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "container-3/state"
    metadata = Metadata(folder, 3)
    metadata.commit([state_change(ContainerState(9, 4)), ("attributes", bytes(24), b"value")])
    metadata.close()
    return folder / check.STATE_FILE


def test_another_process_finds_the_same(file: Path) -> None:
    found = check.inspect_file(file, 3)
    assert found == inspect(file, 3)
    assert (found.damage, found.sequence, found.records["attributes"]) == ("", 9, 1)
    assert check.inspect_file(file, 2).damage


def test_nothing_is_imported_from_the_current_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of experiments with a numpy.py in it: each start after a kill found the state damaged."""
    for name in ("numpy.py", "struct.py", "lmdb.py"):
        (tmp_path / name).write_text("raise SystemExit('somebody else\\'s')\n")
    (tmp_path / "nadi").mkdir()
    (tmp_path / "nadi/__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert check.inspect_file(file, 3).damage == ""


def test_the_code_is_that_of_whoever_asks(file: Path, tmp_path: Path) -> None:
    """Where another nadi is installed too: this one is a copy, which says so."""
    copy = Path(shutil.copytree(Path(nadi.__file__).parent, tmp_path / "site/nadi"))
    with (copy / "segmentstore/state/checked.py").open("a") as stream:
        stream.write("    print('from the copy', file=sys.stderr)\n    sys.exit(7)\n")
    program = (
        "import sys; from pathlib import Path; from nadi.segmentstore.state import check; "
        "print(check.inspect_file(Path(sys.argv[1]), 3).damage)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(copy.parent)!r}); {program}", str(file)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd="/")
    assert "ended with code 7 (from the copy)" in said.stdout


@pytest.mark.parametrize("durable", [True, False])
def test_a_state_that_is_only_a_copy_is_not_synced(tmp_path: Path, durable: bool) -> None:
    folder = tmp_path / "state"
    for life in range(2):
        metadata = Metadata(folder, 0, durable=durable)
        flags = metadata._env.flags()
        assert (flags["sync"], flags["metasync"], flags["writemap"]) == (durable, durable, False)
        metadata.commit([("attributes", bytes([life]) * 24, bytes(8))])
        assert len(metadata.page("attributes", b"", 10)) == life + 1
        metadata.close()
