"""The restartable server keeps its address and data, and clients continue."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from nadi.errors import ConflictError, InvalidArgumentError, UnavailableError
from nadi.testing import RestartableServer, fill_stream, read_stream


def test_kill_and_start_again(nadi_server: RestartableServer, nadi_manager: StreamManager, nadi_scope: str) -> None:
    uri, pid = nadi_server.controller_uri, nadi_server.pid
    end = fill_stream(nadi_manager, nadi_scope, "s", [b"a", b"b"], "k")
    nadi_server.kill()
    assert not nadi_server.is_running
    with pytest.raises(UnavailableError):
        nadi_server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    nadi_server.start()
    with pytest.raises(ConflictError):
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


@pytest.mark.parametrize(
    ("name", "value", "subject"),
    [
        ("NADI_LIMITS", "no_such_limit=1", "NADI_LIMITS.*NO_SUCH_LIMIT"),
        ("NADI_LIMITS", "queue_max_bytes=many", "NADI_LIMITS.*QUEUE_MAX_BYTES"),
        ("NADI_LOG", "LOUD", "NADI_LOG.*'LOUD'"),
    ],
)
def test_invalid_environment_raises(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, value: str, subject: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{subject}"):
        nadi.embedded(tmp_path / "data", environment={name: value})
    with pytest.raises(InvalidArgumentError, match=f"^{subject}"):
        RestartableServer(tmp_path / "data", environment={name: value})
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "data").exists()


def test_temporary_folder_is_removed_and_given_folder_stays(tmp_path: Path) -> None:
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


def test_waits_for_a_dead_server_time_out(nadi_server: RestartableServer, nadi_scope: str) -> None:
    uri = nadi_server.controller_uri
    with StreamManager(uri) as manager, StreamManager(uri, timeout=1) as hasty:
        for stream in ("st", "state"):
            manager.create_stream(nadi_scope, stream)
        writer = manager.create_writer(nadi_scope, "st", ack_timeout=8)
        writer.write_event(b"a").result(60)
        reader, state = manager.create_reader(nadi_scope, "st"), manager.shared_map(nadi_scope, "state")
        assert reader.next_block(60) is not None
        with manager.create_transaction_writer(nadi_scope, "st") as transactions:
            txn = transactions.begin_txn()
            with nadi_server.down():
                ack = writer.write_event(b"b")
                waits: list[Callable[[], object]] = [
                    lambda: reader.next_block(1),
                    lambda: writer.flush(1),
                    lambda: ack.result(60),
                    lambda: state.put("a", 1, timeout=1),
                    lambda: txn.commit(timeout=1),
                    lambda: hasty.create_stream(nadi_scope, "other"),
                    lambda: hasty.bookmarks(nadi_scope).list(),
                ]
                for wait in waits:
                    began = time.monotonic()
                    with pytest.raises(UnavailableError):
                        wait()
                    assert time.monotonic() - began < 20


_INTERRUPTED = """
import os, signal, sys, nadi

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with nadi.embedded(sys.argv[1]) as server, nadi.StreamManager(server.controller_uri) as manager:
    manager.create_scope("sc")
    manager.create_stream("sc", "st")
    with manager.create_writer("sc", "st") as writer:
        try:
            os.killpg(0, signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            writer.write_event(b"the last").result(60)
            print("stored", end="")
"""


def test_ctrl_c_reaches_the_caller_and_not_its_server(tmp_path: Path) -> None:
    program = [sys.executable, "-c", _INTERRUPTED, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, start_new_session=True, check=False)
    assert (done.stdout, done.stderr) == ("stored", "")
