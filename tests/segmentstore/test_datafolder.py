"""What a data folder says of its store is healed, and nobody but the server's user reads what is in it."""

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
from nadi.errors import DamagedStateError, DataFolderError, DataFolderTakenError, InvalidArgumentError
from nadi.segmentstore.data_dir import StoreFile, StoreLocation, find, make_private, open_folder
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
def test_a_folder_has_some_containers_and_not_too_many(tmp_path: Path, containers: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a folder has 1 to 1,000 containers"):
        made(tmp_path, containers)
    assert not list(tmp_path.rglob("*.log"))
    made(tmp_path, 1)


@pytest.mark.parametrize("which", ["store.json", "tier2/cluster.json"])
@pytest.mark.parametrize("how", ["gone", "empty", "flip", "other"])
def test_what_says_which_store_it_is_is_healed_from_the_other(tmp_path: Path, which: str, how: str) -> None:
    path = made(tmp_path) / which
    whole, said = path.read_bytes(), find(tmp_path).store
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
        assert find(tmp_path) == StoreLocation(said)


def test_without_either_the_start_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    files = [tmp_path / "store.json", tmp_path / "tier2/cluster.json"]
    for path in files:
        path.write_bytes(b"?")
    with pytest.raises(DataFolderError, match="damaged"):
        SegmentStore(tmp_path)
    for path in files:
        path.unlink()
    with pytest.raises(DataFolderError, match="missing"):
        SegmentStore(tmp_path)


def test_a_container_that_is_gone_is_not_made_empty_again(tmp_path: Path) -> None:
    made(tmp_path)
    shutil.rmtree(tmp_path / "container-1")
    with pytest.raises(DamagedStateError, match="container-1"):
        SegmentStore(tmp_path)
    assert not (tmp_path / "container-1").exists()


def test_what_another_folder_says_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b")
    shutil.copy(tmp_path / "a/store.json", tmp_path / "b/store.json")
    with pytest.raises(DataFolderError, match="don't say the same"):
        SegmentStore(tmp_path / "b")


def test_a_creation_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"container-{number}").mkdir()
    assert opened(tmp_path).containers == 1
    assert not (tmp_path / "container-1").exists()
    made(tmp_path, 1)


def opened(folder: Path) -> StoreFile:
    return open_folder(folder, None, None, "new")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027])
def test_everything_is_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        folder = made(tmp_path / "data")
    finally:
        os.umask(old)
    check_private(folder)


def test_what_was_open_to_others_is_not_any_more(tmp_path: Path) -> None:
    folder = made(tmp_path / "data")
    folder.chmod(0o755)
    make_private(folder)
    check_private(folder)


def check_private(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"


# --- a data folder whose lock was removed while a server ran, and which another server has opened then ---


SEGMENT = "s/t/0.#epoch.0"


def test_the_server_that_was_there_leaves_the_folder_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They kept each other from writing, in turns, with a traceback each time."""

    async def run() -> None:
        async with open_store(tmp_path) as (first, peer):
            await peer.create("s/t/1.#epoch.0")
            (tmp_path / "lock").unlink()
            second = await asyncio.to_thread(nadi.embedded, tmp_path)
            peer.send(wire.CreateSegment(1, SEGMENT, 0, 0, "", 0))
            async with asyncio.timeout(60):
                await first.taken.wait()
            await asyncio.to_thread(use, second)
        await asyncio.to_thread(second.stop)

    def use(server: Any) -> None:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "u", 4)

    asyncio.run(run())
    assert not any(record.exc_info for record in caplog.records)
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 0


def test_a_server_that_is_told_so_stops_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataFolderTakenError):
        asyncio.run(
            serve(Server(ServerConfig(data=tmp_path, store_port=0, port=0)), lambda server: server.store.taken.set())
        )


def test_one_that_wrote_nothing_since_writes_nothing_when_it_stops(tmp_path: Path) -> None:
    first = nadi.embedded(tmp_path)
    (tmp_path / "lock").unlink()
    second = nadi.embedded(tmp_path)
    with StreamManager(second.controller_uri) as manager:
        manager.create_scope("s")
        first.stop()
        manager.create_stream("s", "t", 1)
    second.stop()
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 0
