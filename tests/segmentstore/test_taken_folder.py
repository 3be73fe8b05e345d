"""A data folder whose lock was removed while a server ran, and which another server has opened then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import nadi
from nadi import StreamManager
from nadi.cli.app import app
from nadi.config import ServerConfig
from nadi.errors import DataFolderTakenError
from nadi.standalone.assembly import serve
from nadi.standalone.server import Server
from nadi.wire import commands as wire

from .harness import open_store

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
    with pytest.raises(DataFolderTakenError, match="another server has opened the data folder"):
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
