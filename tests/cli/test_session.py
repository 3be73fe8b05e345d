"""What a command says before it waits for a server."""

from __future__ import annotations

import socket

import pytest

from nadi.cli.session import tell_if_nobody_listens


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
