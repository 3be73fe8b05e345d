"""What a command says before it waits for a server."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest
import typer

from nadi.cli.session import tell_if_nobody_listens
from nadi.cli.spark import commands
from nadi.errors import UnavailableError
from tests.cli.test_streams import Shell
from tests.support.ports import free_port


def test_who_waits_for_a_server_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tell_if_nobody_listens(f"tcp://127.0.0.1:{port}")
        assert capsys.readouterr() == ("", "")
    tell_if_nobody_listens(f"tcp://127.0.0.1:{port}")
    out, err = capsys.readouterr()
    assert not out
    assert err == f"nobody listens at 127.0.0.1:{port} (nadi up starts a server): trying for 30 s\n"
    tell_if_nobody_listens("tcp://no-such-host.invalid:1", 2.5)
    assert capsys.readouterr() == ("", "no address is known of no-such-host.invalid: trying for 2.5 s\n")


def test_who_has_no_patience_is_told_soon() -> None:
    done = Shell(f"tcp://127.0.0.1:{free_port()}").run("scope", "list", "--patience", "2", code=1)
    told, error = done.stderr.splitlines()
    assert told.endswith("trying for 2 s")
    assert "can't be reached" in error
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://127.0.0.1:9090,127.0.0.1:9190", "names several servers: give one of them"),
        ("tcp://127.0.0.1:9090,tcp://127.0.0.1:9190", "names several servers"),
        ("tcp://127.0.0.1:99999", "is not a controller address"),
        ("tcp://127.0.0.1:0", "is not a controller address"),
        ("http://127.0.0.1:9090", "is not a controller address"),
    ],
)
def test_what_is_no_address_is_told_at_once(address: str, says: str) -> None:
    assert says in Shell(address).run("scope", "list", code=1).stderr


def test_what_others_log_is_not_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        Thread(target=answer, daemon=True).start()
        command = [sys.executable, "-m", "nadi", "scope", "list", "--patience", "2"]
        done = subprocess.run(
            [*command, "--controller", f"tls://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: listScopes had no answer within ")


def test_the_commands_of_mirrored_checkpoints_tell_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(controller: str) -> None:
        raise UnavailableError(f"nobody listens at {controller}")

    monkeypatch.setattr(commands, "tell_if_nobody_listens", told)
    with pytest.raises(typer.Exit):
        commands.list_checkpoints("home")
    with pytest.raises(typer.Exit):
        commands.restore_checkpoint("home", "a", "b")
    assert capsys.readouterr().err.count("nobody listens at tcp://127.0.0.1:9090") == 2
