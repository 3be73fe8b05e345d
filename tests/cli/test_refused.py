"""What commands print, and their exit codes, for wrong arguments, folders and addresses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from tests.cli.test_streams import Shell

AGES, SIZES = "use 90s, 15min, 12h, 7d", "use 500MB, 10GiB"


@pytest.fixture(scope="module")
def stream(shell: Shell) -> str:
    shell.run("stream", "create", "home", "meters")
    return "meters"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("stream create home x --retention 7x", "'7x' is neither an age nor a size: use"),
        (
            "stream create home x --retention 7d --retention-max 1d",
            "--retention-max 1d is below --retention 7d: raise it",
        ),
        ("read home", "SCOPE STREAM"),
        ("read home meters --from -5m", f"'5m' is not an age: {AGES}"),
        ("read home meters --from -5MB", f"'5MB' is not an age: {AGES}"),
        ("read home meters --from 2026-11-30T00:00", "lacks a time zone"),
        ("read home meters --limit abc", "'abc' is not a whole number."),
        ("processor status home p", "'p' is not STREAM/NAME, such as meters/p"),
        ("bookmark create home meters b --at 2100-01-01T00:00Z", "--at 2100-01-01T00:00Z is in the future"),
        ("transaction show home meters x", "'x' is not a transaction id"),
        ("import home meters none.txt", "the format of none.txt is unknown"),
    ],
)
def test_wrong_argument_exits_with_2_and_says_what_to_write(
    shell: Shell, stream: str, command: str, message: str
) -> None:
    assert message in " ".join(shell.run(*command.split(), code=2).output.replace("│", " ").split())


@pytest.mark.parametrize("position", ["2026-11-30", "2030", "yesterday"])
def test_unknown_position_explains_bookmarks_and_times(shell: Shell, stream: str, position: str) -> None:
    error = shell.run("read", "home", stream, "--from", position, code=1).stderr
    assert f"bookmark '{position}' not found" in error
    assert "2026-11-30T00:00Z" in error


def test_scope_that_is_not_empty_names_all_its_contents(shell: Shell, server: nadi.standalone.EmbeddedServer) -> None:
    with nadi.StreamManager(server.controller_uri) as manager, pytest.raises(nadi.NadiError) as error:
        manager.delete_scope("home")
    assert "streams, reader groups and tables" in str(error.value)


def test_wrong_port_is_explained(server: nadi.standalone.EmbeddedServer) -> None:
    explained = {
        server.rest_uri.rpartition(":")[2]: "{} answers HTTP: pass the controller's port",
        str(server.store_address[1]): "the server at {} closed the connection: write tls:// if it uses TLS",
    }
    for port, message in explained.items():
        command = ["scope", "list", "--controller", f"tcp://127.0.0.1:{port}", "--patience", "1"]
        result = CliRunner().invoke(app, command)
        expected = f"did not answer within 1 s: {message.format(f'127.0.0.1:{port}')}"
        assert (result.exit_code, expected in result.output) == (1, True), result.output


def test_tls_to_a_plain_server_is_explained(server: nadi.standalone.EmbeddedServer) -> None:
    address = server.controller_uri.removeprefix("tcp://")
    result = CliRunner().invoke(app, ["scope", "list", "--controller", f"tls://{address}", "--patience", "1"])
    assert f"the server at {address} doesn't use TLS: write tcp://" in result.output


def up(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["up", "--port", "0", *arguments], env={"COLUMNS": "500"})
    assert result.exit_code == 2, result.output
    return result.output


def test_settings_that_contradict_the_folder_exit_with_2(tmp_path: Path) -> None:
    plain, file = tmp_path / "plain", tmp_path / "file"
    nadi.embedded(plain, containers=3).stop()
    assert "with 3 containers, not 4" in up("--data", str(plain), "--containers", "4")
    assert f"{plain} was created without --workers" in up("--data", str(plain), "--workers", "2")
    file.touch()
    assert f"{file} is a file" in up("--data", str(file))
