"""A state whose file ends before its last page: LMDB writes no pages that it takes and frees in one transaction."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.check import STATE_FILE, Verdict, inspect_file
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.stored import state_change
from tests.segmentstore.state_tables import records_of

_BIG = bytes(300_000)
_PAGE_BYTES = 4096

_USE = """
import sys
from pathlib import Path
from nadi.segmentstore.state.metadata import Metadata
metadata = Metadata(Path(sys.argv[1]), 0)
for number in range(40):  # takes what is free, up to the end and beyond it
    metadata.commit([("entries", b"later-%d" % number, bytes([number]) * 20_000)])
metadata.close()
"""


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A sound state whose file lacks its last pages."""
    folder = tmp_path / "state"
    metadata = Metadata(folder, 0)
    first = [state_change(metadata.state()), ("names", b"a", bytes(8)), ("entries", b"a", bytes(9000))]
    metadata.commit(first)
    metadata.commit([("entries", b"big", _BIG), ("entries", b"big", None)])
    metadata.close()
    with lmdb.open(str(folder), readonly=True, lock=False) as env:
        last_page = env.info()["last_pgno"]
    assert (folder / STATE_FILE).stat().st_size < (last_page + 1) * _PAGE_BYTES, "LMDB has written it after all"
    return folder


@pytest.mark.parametrize("sealed", [False, True], ids=["killed", "sealed"])
def test_it_is_sound(short: Path, sealed: bool) -> None:
    if sealed:
        statecheck.seal(short)
    assert statecheck.examine(short, 0).verdict is Verdict.SOUND


def test_it_goes_on_as_it_is(short: Path) -> None:
    """In a process of its own, for LMDB must not touch what isn't there."""
    before = records_of(short)
    subprocess.run([sys.executable, "-c", _USE, str(short)], check=True)
    assert inspect_file(short / STATE_FILE, 0).damage == ""
    after = records_of(short)
    assert after["names"] == before["names"]
    assert len(after["entries"]) == len(before["entries"]) + 40


def test_one_that_was_cut_short_is_told(short: Path, tmp_path: Path) -> None:
    expected = records_of(short)
    size_bytes = (short / STATE_FILE).stat().st_size
    told = 0
    for end in range(0, size_bytes, _PAGE_BYTES // 2):
        cut = tmp_path / "cut"
        shutil.copytree(short, cut)
        os.truncate(cut / STATE_FILE, end)
        damage = inspect_file(cut / STATE_FILE, 0).damage
        told += bool(damage)
        assert damage or records_of(cut) == expected, end
        shutil.rmtree(cut)
    assert told > size_bytes // _PAGE_BYTES, "next to every page is in use"
