"""The table's storage is full: the writer says so, leaves nothing behind, and once there is room goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
from nadi.errors import UnavailableError
from nadi.lake import LakeWriter
from tests.lake.world import (
    a_lake,
    catalog_in,
    catch_up,
    files_in,
    files_named,
    in_stream,
    in_table,
    places,
    streams,
    write,
)
from tests.support.small_disk import fill, small_disk


def test_full_storage(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    with small_disk(tmp_path / "lake", 4) as disk:
        lake = a_lake(manager, scope, tmp_path, catalog=catalog_in(tmp_path))
        write(manager, scope, 0, 100)
        writer = LakeWriter(manager, lake)
        assert writer.commit() is not None
        ballast = fill(disk)
        write(manager, scope, 100, 20_000)
        for _ in range(3):
            with pytest.raises(UnavailableError, match=r"storage|space"):
                writer.commit()
        assert len(in_table(lake)) == 100
        ballast.unlink()
        while writer.commit() is not None:
            pass
        write(manager, scope, 20_000, 20_001)
        catch_up(manager, lake)
        assert places(in_table(lake)) == in_stream(manager, scope)[0]
        assert files_in(tmp_path) == files_named(lake)
