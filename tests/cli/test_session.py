"""What a command says before it waits for a server."""

from __future__ import annotations

import socket

import pytest
import typer

from nadi.cli.session import tell_if_nobody_listens
from nadi.cli.spark import commands
from nadi.errors import UnavailableError


def test_who_waits_for_a_server_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tell_if_nobody_listens(f"tcp://127.0.0.1:{port}")
        assert capsys.readouterr() == ("", "")
    tell_if_nobody_listens(f"tcp://127.0.0.1:{port}")
    out, err = capsys.readouterr()
    assert not out
    assert err == f"nobody listens at 127.0.0.1:{port} (nadi up starts a server): trying for 30 s\n"
    tell_if_nobody_listens("tcp://no-such-host.invalid:1")
    assert capsys.readouterr() == ("", ""), "the client will say what it is"


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
