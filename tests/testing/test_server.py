"""The server that tests may kill: its address and its data stay, and clients go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nadi.client import StreamManager
from nadi.errors import ConflictError, UnavailableError
from nadi.testing import RestartableServer, fill_stream, read_stream


def test_kill_and_start_again(nadi_server: RestartableServer, nadi_manager: StreamManager, nadi_scope: str) -> None:
    uri, pid = nadi_server.controller_uri, nadi_server.pid
    end = fill_stream(nadi_manager, nadi_scope, "s", [b"a", b"b"], "k")
    nadi_server.kill()
    assert not nadi_server.is_running
    with pytest.raises(UnavailableError, match="start"):
        nadi_server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    nadi_server.start()
    with pytest.raises(ConflictError, match="runs already"):
        nadi_server.start()
    assert nadi_server.controller_uri == uri
    assert nadi_server.pid != pid
    assert read_stream(nadi_manager, nadi_scope, "s") == [b"a", b"b"]
    assert nadi_manager.stream_info(nadi_scope, "s").tail == end


def test_it_comes_back_after_a_block_that_fails(nadi_server: RestartableServer) -> None:
    def fail_while_it_is_down() -> None:
        with nadi_server.down():
            assert not nadi_server.is_running
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_it_is_down()
    assert nadi_server.is_running
    nadi_server.stop()
    nadi_server.ensure_running()
    nadi_server.ensure_running()
    assert nadi_server.is_running


def test_a_temporary_folder_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    with RestartableServer() as server:
        folder, pid = server.folder, server.pid
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server = RestartableServer(tmp_path / "data")
    server.kill()
    server.close()
    assert (tmp_path / "data").exists()
