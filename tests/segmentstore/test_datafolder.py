"""The identity of a data folder's store is healed, and its files are readable by the server's user alone."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import nadi
from nadi import StreamManager
from nadi.cli.app import app
from nadi.config import ServerConfig
from nadi.errors import DamagedStateError, DataFolderError, DataFolderTakeoverError, InvalidArgumentError
from nadi.segmentstore.data_dir import StoreFile, StoreLocation, find_store, make_private, open_folder
from nadi.segmentstore.store import SegmentStore
from nadi.standalone.assembly import serve
from nadi.standalone.server import Server
from nadi.wire import commands as wire

from .harness import open_store


def made(folder: Path, containers: int = 2) -> Path:
    async def run() -> None:
        store = SegmentStore(folder, containers)
        await store.start()
        await store.close()

    asyncio.run(run())
    return folder


@pytest.mark.parametrize("containers", [-3, 0, 1_001])
def test_folder_refuses_an_invalid_number_of_containers(tmp_path: Path, containers: int) -> None:
    with pytest.raises(InvalidArgumentError, match="1,000"):
        made(tmp_path, containers)
    assert not list(tmp_path.rglob("*.log"))
    made(tmp_path, 1)


@pytest.mark.parametrize("which", ["store.json", "tier2/cluster.json"])
@pytest.mark.parametrize("how", ["gone", "empty", "flip", "other"])
def test_damaged_identity_file_is_restored_from_the_other(tmp_path: Path, which: str, how: str) -> None:
    path = made(tmp_path) / which
    whole, said = path.read_bytes(), find_store(tmp_path).store
    chance = random.Random(1)
    for _ in range(200 if how == "flip" else 1):
        match how:
            case "gone":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case "flip":
                data = bytearray(whole)
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
            case "other":
                shutil.copy(tmp_path / "lock", path)
        assert opened(tmp_path) == said
        assert path.read_bytes() == whole or which != "store.json"
        assert find_store(tmp_path) == StoreLocation(said)


def test_start_without_identity_files_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    files = [tmp_path / "store.json", tmp_path / "tier2/cluster.json"]
    for path in files:
        path.write_bytes(b"?")
    with pytest.raises(DataFolderError, match=r"store\.json"):
        SegmentStore(tmp_path)
    for path in files:
        path.unlink()
    with pytest.raises(DataFolderError, match=r"store\.json"):
        SegmentStore(tmp_path)


def test_missing_container_is_not_recreated_empty(tmp_path: Path) -> None:
    made(tmp_path)
    shutil.rmtree(tmp_path / "container-1")
    with pytest.raises(DamagedStateError, match="container-1"):
        SegmentStore(tmp_path)
    assert not (tmp_path / "container-1").exists()


def test_identity_of_another_folder_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b")
    shutil.copy(tmp_path / "a/store.json", tmp_path / "b/store.json")
    with pytest.raises(DataFolderError, match=r"cluster\.json"):
        SegmentStore(tmp_path / "b")


def test_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"container-{number}").mkdir()
    assert opened(tmp_path).containers == 1
    assert not (tmp_path / "container-1").exists()
    made(tmp_path, 1)


def opened(folder: Path) -> StoreFile:
    return open_folder(folder, None, None, "new")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027])
def test_files_are_readable_by_their_user_only(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        folder = made(tmp_path / "data")
    finally:
        os.umask(old)
    check_private(folder)


def test_permissions_are_restricted_at_a_start(tmp_path: Path) -> None:
    folder = made(tmp_path / "data")
    folder.chmod(0o755)
    make_private(folder)
    check_private(folder)


def test_folder_with_other_files_is_refused_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    tmp_path.chmod(0o755)
    with pytest.raises(DataFolderError):
        SegmentStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_new_disk_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    made(tmp_path)


def check_private(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"


# --- a data folder whose lock was removed while a server ran, and opened by another server --------------


SEGMENT = "s/t/0.#epoch.0"


def test_earlier_server_leaves_a_folder_opened_by_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: they blocked each other's writes, in turns, with a traceback each time."""

    async def run() -> None:
        async with open_store(tmp_path) as (first, peer):
            await peer.create("s/t/1.#epoch.0")
            (tmp_path / "lock").unlink()
            second = await asyncio.to_thread(nadi.embedded, tmp_path)
            peer.send(wire.CreateSegment(1, SEGMENT, 0, 0, "", 0))
            async with asyncio.timeout(60):
                await first.taken_over.wait()
            await asyncio.to_thread(use, second)
        await asyncio.to_thread(second.stop)

    def use(server: Any) -> None:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "u", 4)

    asyncio.run(run())
    assert not any(record.exc_info for record in caplog.records)
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 0


def test_server_stops_with_an_error_when_its_folder_is_taken(tmp_path: Path) -> None:
    with pytest.raises(DataFolderTakeoverError):
        asyncio.run(
            serve(
                Server(ServerConfig(data=tmp_path, store_port=0, port=0)), lambda server: server.store.taken_over.set()
            )
        )


def test_stop_after_losing_the_folder_writes_nothing(tmp_path: Path) -> None:
    first = nadi.embedded(tmp_path)
    (tmp_path / "lock").unlink()
    second = nadi.embedded(tmp_path)
    with StreamManager(second.controller_uri) as manager:
        manager.create_scope("s")
        first.stop()
        manager.create_stream("s", "t", 1)
    second.stop()
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 0
