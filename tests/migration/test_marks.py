"""The marks that tell a migration's next run, and servers, where it stands: damaged ones are never acted on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nadi
from nadi.cli.admin.migrate import _Shown
from nadi.errors import DataFolderError, StoreError
from nadi.migration.moving import Migration
from nadi.migration.sources import ClusterStore, StoppedFolder
from nadi.migration.targets import NewCluster, NewFolder
from nadi.migration.undoing import take_back_folder
from nadi.segmentstore import moved
from nadi.segmentstore.moved import Incoming, Moved
from tests.migration.support import Store, files, refused

LEFT = Moved("file:///srv/store", "0123456789abcdef", 1_795_000_000_000)
FILLING = Incoming("a source", "file:///srv/data", "0123456789abcdef", 8)


def damaged(whole: bytes) -> Iterator[bytes]:
    """Cut short at each length, and with each byte another."""
    yield from (whole[:length] for length in range(len(whole)))
    yield from (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole)))
    yield whole + whole
    yield bytes(len(whole))


@pytest.mark.parametrize(
    ("note", "read"),
    [
        (lambda folder: moved.note_moved(folder, LEFT), moved.moved),
        (lambda folder: moved.note_moved(folder, LEFT), moved.settled),
        (lambda folder: moved.note_incoming(folder, FILLING), moved.incoming),
    ],
)
def test_damage_of_a_folders_mark_is_noticed(
    note: Callable[[Path], None], read: Callable[[Path], Moved | Incoming | None], tmp_path: Path
) -> None:
    note(tmp_path)
    assert read(tmp_path) in (LEFT, FILLING)
    (mark,) = tmp_path.iterdir()
    whole = mark.read_bytes()
    for one in damaged(whole):
        mark.write_bytes(one)
        with pytest.raises(DataFolderError) as told:
            read(tmp_path)
        assert str(told.value).startswith(f"{mark} is damaged"), one
        with pytest.raises(DataFolderError, match="is damaged"):  # a server
            moved.check(tmp_path)


def test_what_an_earlier_version_wrote_without_a_checksum_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "moved").write_text('{"to":"file:///srv/store","migration":"a","at_ms":1}')
    with pytest.raises(DataFolderError, match="its checksum doesn't fit"):
        moved.check(tmp_path)


def flip(mark: Path) -> None:
    """A digit of what it says is another one: of the number of containers, or of the time."""
    raw = bytearray(mark.read_bytes())
    at = max(index for index, byte in enumerate(raw[:-10]) if chr(byte).isdigit())
    raw[at] ^= 1
    mark.write_bytes(raw)


async def test_a_damaged_mark_of_a_store(tmp_path: Path) -> None:
    data, new = tmp_path / "data", Store(f"file://{tmp_path}/store")
    nadi.embedded(data).stop()
    async with StoppedFolder(data) as source, NewCluster(new.url, {}, None) as target:
        await Migration(source, target, _Shown()).run(only_ahead=True)
    flip(tmp_path / "store" / "migration")
    before = files(tmp_path / "store")
    for more in ((), ("--dry-run",)):
        said = await asyncio.to_thread(refused, "--data", str(data), "--to", new.url, *more, store=new)
        assert f"migration in {new.url} is damaged" in said
        assert "start the migration again" in said
    assert files(tmp_path / "store") == before
    with pytest.raises(StoreError, match="hasn't ended"):
        nadi.embedded(store=new.url)
    nadi.embedded(data).stop()
    shutil.rmtree(tmp_path / "store")  # as it says
    async with StoppedFolder(data) as source, NewCluster(new.url, {}, None) as target:
        await Migration(source, target, _Shown()).run()
    nadi.embedded(store=new.url).stop()


async def test_damaged_marks_of_folders(tmp_path: Path) -> None:
    data, back = tmp_path / "data", tmp_path / "back"
    one, two = Store(f"file://{tmp_path}/store"), Store(f"file://{tmp_path}/other")
    nadi.embedded(data).stop()
    async with StoppedFolder(data) as source, NewCluster(one.url, {}, None) as target:
        await Migration(source, target, _Shown()).run()
    (tmp_path / "store" / "migration").write_bytes(b"damaged, and left by one that was killed at the very end")
    assert await take_back_folder(data, {}) == one.url
    async with StoppedFolder(data) as source, NewCluster(one.url, {}, None) as target:
        await Migration(source, target, _Shown()).run()
    flip(data / "moved")
    for more in (("--undo",), ("--to", one.url), ("--to", two.url), ("--to", two.url, "--dry-run")):
        said = await asyncio.to_thread(refused, "--data", str(data), *more, store=one)
        assert f"{data / 'moved'} is damaged" in said
    async with ClusterStore(one.url, {}) as cluster, NewFolder(back, None) as folder:
        await folder.begin(cluster)
    flip(back / "incoming")
    for dry in ([], ["--dry-run"]):
        said = await asyncio.to_thread(refused, "--from", one.url, "--to-data", str(back), *dry, store=one)
        assert f"{back / 'incoming'} is damaged" in said
    for refuses in (data, back):
        with pytest.raises(DataFolderError, match="is damaged"):
            nadi.embedded(refuses)
    nadi.embedded(store=one.url).stop()
