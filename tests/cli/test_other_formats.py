"""Folders of earlier and later versions: a repair writes states in this version's form, and reads no later one's."""

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


def formats(folder: Path) -> list[int]:
    return [msgspec.json.decode(path.read_bytes(), type=Format).format for path in folder.rglob("format")]


@pytest.mark.parametrize("own", [True, False])
def test_a_later_version_s_folder_is_neither_judged_nor_repaired(folder: Path, own: bool) -> None:
    """Its states, misread, would look damaged."""
    say_format(folder, FORMAT + 1)
    if not own:
        (folder / "format").unlink()
    lose_states(folder)
    before = contents(folder)
    log = max((folder / "container-0/log").glob("log-*"))
    for arguments in (["check", folder], ["repair", folder], ["repair", "--cut-log", log, "--at", 4096]):
        refused = command(*arguments)
        assert refused.exit_code == 1
        assert f"has format {FORMAT + 1}, but this nadi reads format {FORMAT}" in " ".join(refused.output.split())
    with pytest.raises(DataFolderVersionError):
        read_format(folder, None)
    assert contents(folder) == before


def test_a_repaired_folder_of_an_earlier_version_is_one_of_this_version(folder: Path) -> None:
    """The states that it builds are in this version's form: an earlier one would misread them."""
    say_format(folder, FORMAT - 1)
    assert command("check", folder).exit_code == 0
    assert set(formats(folder)) == {FORMAT - 1}
    lose_states(folder)
    assert command("repair", folder, "--yes").exit_code == 0
    assert formats(folder) == [FORMAT] * 3
