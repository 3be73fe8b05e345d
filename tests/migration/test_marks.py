"""Damaged marks of a migration are never acted on, neither by its next run nor by servers."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

import nadi
from nadi.cli.admin.migrate import _ProgressBar
from nadi.errors import DataFolderError, StoreError
from nadi.migration.migrate import Migration
from nadi.migration.planning import undo_folder
from nadi.migration.sources import ClusterStore, StoppedFolder
from nadi.migration.targets import NewCluster, NewFolder
from tests.migration.support import Store, files, refused


def flip(mark: Path) -> None:
    """Flip a digit of the mark: of the number of containers, or of the time."""
    raw = bytearray(mark.read_bytes())
    at = max(index for index, byte in enumerate(raw[:-10]) if chr(byte).isdigit())
    raw[at] ^= 1
    mark.write_bytes(raw)


async def test_damaged_mark_in_store_is_rejected(tmp_path: Path) -> None:
    data, new = tmp_path / "data", Store(f"file://{tmp_path}/store")
    nadi.embedded(data).stop()
    async with StoppedFolder(data) as source, NewCluster(new.url, {}, None) as target:
        await Migration(source, target, _ProgressBar()).run(only_ahead=True)
    flip(tmp_path / "store" / "migration")
    before = files(tmp_path / "store")
    for more in ((), ("--dry-run",)):
        output = await asyncio.to_thread(refused, str(data), new.url, *more, store=new)
        assert new.url in output
        assert "is damaged" in output
    assert files(tmp_path / "store") == before
    with pytest.raises(StoreError, match="migration"):
        nadi.embedded(store=new.url)
    nadi.embedded(data).stop()
    shutil.rmtree(tmp_path / "store")  # as the message recommends
    async with StoppedFolder(data) as source, NewCluster(new.url, {}, None) as target:
        await Migration(source, target, _ProgressBar()).run()
    nadi.embedded(store=new.url).stop()


async def test_folder_with_damaged_store_file_stays_left(tmp_path: Path) -> None:
    data, new = tmp_path / "data", Store(f"file://{tmp_path}/store")
    nadi.embedded(data, containers=2).stop()
    async with StoppedFolder(data) as source, NewCluster(new.url, {}, None) as target:
        await Migration(source, target, _ProgressBar()).run()
    (data / "store.json").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=re.escape(new.url)):
        nadi.embedded(data)
    assert "nadi migrate --undo" in await asyncio.to_thread(refused, str(data), f"file://{tmp_path}/other", store=new)
    shutil.rmtree(tmp_path / "store")
    assert await undo_folder(data, {}) == new.url
    nadi.embedded(data).stop()


async def test_damaged_mark_in_new_folder_is_rejected(tmp_path: Path) -> None:
    store, back = Store(f"file://{tmp_path}/store"), tmp_path / "back"
    nadi.embedded(store=store.url).stop()
    async with ClusterStore(store.url, {}) as cluster, NewFolder(back, None) as folder:
        await folder.begin(cluster)
    flip(back / "tier2" / "migration")
    assert "is damaged" in await asyncio.to_thread(refused, store.url, str(back), store=store)
    with pytest.raises(DataFolderError, match="migration"):
        nadi.embedded(back)
    nadi.embedded(store=store.url).stop()
