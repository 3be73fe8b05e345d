"""Empty text, which an unset shell variable expands to, isn't accepted as a path, name, position or query."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import StreamManager
from nadi.config import ServerConfig, ServerSecurity
from nadi.errors import InvalidArgumentError, InvalidNameError
from nadi.standalone.server import Server
from nadi.testing import RestartableServer
from tests.cli.test_streams import Shell


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("up", "--data", ""), "--data"),
        (("up", "--data="), "--data"),
        (("up", "--store", ""), "--store"),
        (("check", ""), "data"),
        (("repair", ""), "data"),
        (("migrate", "", "s3://bucket/nadi"), "FROM"),
        (("passwd", "", "ann"), "file"),
        (("export", "home", "meters", ""), "file"),
        (("import", "home", "meters", ""), "file"),
        (("read", "home", "meters", "--from", ""), "--from"),
        (("read", "home", ""), "SCOPE STREAM"),
        (("bookmark", "create", "home", "meters", ""), "name"),
        (("stream", "truncate", "home", "meters", "--at", ""), "--at"),
        (("stream", "create", "home", "meters", "--tag", ""), "--tag"),
        (("sql", ""), "query"),
        (("read", "--split", ""), "SCOPE STREAM"),
        (("write", "home", "meters", "--delimiter", ""), "--delimiter"),
        (("write", "home", "meters", "--key-separator", ""), "--key-separator"),
        (("search", "create", "home", "meters", "--fields", "a:text", "--index", ""), "--index"),
        (("spark", "checkpoint", "restore", "home", "counts", ""), "folder"),
    ],
)
def test_command_with_empty_text_fails(
    command: tuple[str, ...], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command, env={"COLUMNS": "120"})
    assert result.exit_code == 2, result.output
    assert "empty" in result.output
    assert names in result.output
    assert not list(tmp_path.iterdir())


def test_command_with_meaningful_empty_text_succeeds(shell: Shell) -> None:
    shell.run("stream", "create", "home", "meters")
    shell.run("write", "home", "meters", "--key", "", stdin=b"one\n")
    shell.run("bookmark", "create", "home", "meters", "noted", "--note", "")
    shell.run("table", "create", "home", "t")
    shell.run("table", "put", "home", "t", "key", "")
    assert shell.run("table", "get", "home", "t", "key").output == "\n"


def test_server_with_an_empty_path_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts: list[Callable[[], object]] = [
        lambda: nadi.embedded(""),
        lambda: Server(ServerConfig(data="")),
        lambda: RestartableServer(""),
    ]
    for start in starts:
        with pytest.raises(InvalidArgumentError):
            start()
    with pytest.raises(InvalidArgumentError, match="certificate"):
        nadi.embedded("data", security=ServerSecurity(tls_certificate="", tls_key="key.pem"))
    with pytest.raises(InvalidArgumentError, match="trust"):
        StreamManager("tls://127.0.0.1:1", trust_store="")
    assert not [path for path in tmp_path.iterdir() if path.name != "data"]


def test_empty_position_is_rejected(manager: StreamManager) -> None:
    manager.create_stream("home", "meters")
    with pytest.raises(InvalidArgumentError, match="''"):
        manager.cuts("home", "meters").named("")
    for scan in (partial(nadi.scan, start=""), partial(nadi.scan, end="")):
        with pytest.raises(InvalidArgumentError, match="''"):
            scan(manager, "home", "meters")


@pytest.mark.parametrize("name", ["-2d", "-5min", "-x", "head", "TAIL", "Earliest", "latest", "unbounded"])
def test_bookmark_or_slice_with_a_reserved_name_is_rejected(name: str, manager: StreamManager) -> None:
    manager.create_stream("home", "meters")
    cuts = manager.cuts("home", "meters")
    marks, slices = manager.bookmarks("home"), manager.slices("home")
    with pytest.raises(InvalidArgumentError):
        marks.create(name, cuts.tail())
    with pytest.raises(InvalidArgumentError):
        slices.create(name, cuts.head(), cuts.tail())
    marks.create(f"a{name}", cuts.tail())
    with pytest.raises(InvalidArgumentError):
        marks.rename(f"a{name}", name)
    with pytest.raises(InvalidNameError):
        marks.create("", cuts.tail())
