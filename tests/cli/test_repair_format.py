"""A data folder whose `format` is gone with all its copies: the names of its segments tell of its containers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nadi
from nadi.segmentstore.datafolder import container_number, told_by_names
from tests.cli.test_check_and_repair import command


@pytest.mark.parametrize("containers", [1, 3])
def test_a_format_that_is_gone_is_made_anew_by_the_names_of_segments(tmp_path: Path, containers: int) -> None:
    with nadi.embedded(tmp_path, containers=containers) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 8)
        with manager.create_writer("s", "t") as writer:
            for number in range(100):
                writer.write_event(b"%d" % number, f"key-{number}")
    for path in tmp_path.rglob("format"):
        path.unlink()
    with pytest.raises(nadi.NadiError):
        nadi.embedded(tmp_path)
    assert command("check", str(tmp_path)).exit_code == 1
    repaired = command("repair", "--yes", str(tmp_path))
    assert repaired.exit_code == 0, repaired.output
    assert f"there are {containers} containers" in repaired.output
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info("s", "t").tail
        assert {event.data for event in manager.read_events("s", "t", end=end)} == {b"%d" % n for n in range(100)}


def test_with_a_container_gone_too_nothing_is_guessed(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, containers=3) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 8)
    for path in tmp_path.rglob("format"):
        path.unlink()
    shutil.rmtree(tmp_path / "container-2")
    repaired = command("repair", "--yes", str(tmp_path))
    assert repaired.exit_code == 1
    assert not (tmp_path / "format").exists()


def test_names_tell_the_number_of_containers_only_where_it_is_certain() -> None:
    names = [f"s/t/{number}.#epoch.0" for number in range(100)]

    def spread(count: int) -> dict[int, list[str]]:
        return {number: [name for name in names if container_number(name, count) == number] for number in range(count)}

    assert [told_by_names(spread(count)) for count in (1, 2, 4, 7)] == [1, 2, 4, 7]
    assert told_by_names({0: spread(2)[0]}) is None, "the other one may be lost"
    assert told_by_names({0: []}) is None
    assert told_by_names({1: names}) is None
    assert told_by_names({}) is None
