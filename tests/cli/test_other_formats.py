"""Folders of other versions are neither judged nor repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nadi.errors import DataFolderVersionError
from nadi.segmentstore.datafolder import FORMAT, StoreFile, find, open_folder
from tests.cli.test_check_and_repair import command
from tests.segmentstore.test_lost_state import base, contents, folder

__all__ = ["base", "folder"]  # fixtures


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_folder_of_another_version_is_neither_judged_nor_repaired(folder: Path, other: int) -> None:
    """Its states, misread, would look damaged."""
    said = find(folder).store
    assert isinstance(said, StoreFile)
    replace(said, format=other).write(folder)
    is_refused(folder, other)


def is_refused(folder: Path, other: object) -> None:
    before = contents(folder)
    for arguments in (["check", folder], ["repair", folder]):
        refused = command(*arguments)
        assert refused.exit_code == 1
        assert f"has format {other}, but this nadi reads format {FORMAT}" in " ".join(refused.output.split())
    with pytest.raises(DataFolderVersionError):
        open_folder(folder, None, None, "unused")
    assert contents(folder) == before
