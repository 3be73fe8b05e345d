"""Folders of other versions are neither judged nor repaired."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nadi.errors import DataFolderVersionError
from nadi.segmentstore.datafolder import FORMAT, Format, read_format
from tests.cli.test_check_and_repair import command
from tests.segmentstore.state_tables import lose_states
from tests.segmentstore.test_lost_state import base, contents, folder

__all__ = ["base", "folder"]  # fixtures


def say_format(folder: Path, number: int) -> None:
    """Let a folder be one of that format."""
    for path in folder.rglob("format"):
        said = Format(number, msgspec.json.decode(path.read_bytes(), type=Format).containers)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(said, crc32c=said.checksum())))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_folder_of_another_version_is_neither_judged_nor_repaired(folder: Path, own: bool, other: int) -> None:
    """Its states, misread, would look damaged."""
    say_format(folder, other)
    if not own:
        (folder / "format").unlink()
    lose_states(folder)
    before = contents(folder)
    for arguments in (["check", folder], ["repair", folder]):
        refused = command(*arguments)
        assert refused.exit_code == 1
        assert f"has format {other}, but this nadi reads format {FORMAT}" in " ".join(refused.output.split())
    with pytest.raises(DataFolderVersionError):
        read_format(folder, None)
    assert contents(folder) == before
