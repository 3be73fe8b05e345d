"""Commands that receive a signal clean up, report what is stored, and exit with the signal's code."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import pytest

import nadi
from tests.cli.test_streams import Shell

COMMAND = [sys.executable, "-m", "nadi.cli.app"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder) as server:
        Shell(server.controller_uri).run(
            "write", "home", "long", "--create", "1", stdin=(b"y" * 99 + b"\n") * 1_000_000
        )
        yield server


@contextmanager
def running(server: nadi.standalone.EmbeddedServer, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"NADI_CONTROLLER": server.controller_uri, "COLUMNS": "120"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # children inherit an ignored SIGHUP from nohup
    try:
        process = subprocess.Popen([*COMMAND, *words], env=environment, **pipes)  # type: ignore[call-overload]
    finally:
        signal.signal(signal.SIGHUP, previous)
    with process as program:
        try:
            yield program
        finally:
            program.kill()


def test_interrupted_read_exits_with_130(server: nadi.standalone.EmbeddedServer) -> None:
    with running(server, "read", "home", "long") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"y" * 99 + b"\n"
        program.send_signal(signal.SIGINT)  # it is blocked on the full pipe
        program.communicate(timeout=60)
        assert program.returncode == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_terminated_write_reports_stored_events(
    server: nadi.standalone.EmbeddedServer, number: signal.Signals, code: int
) -> None:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_stream("home", f"news-{code}", 1)
        with (
            running(server, "write", "home", f"news-{code}") as program,
            manager.create_reader("home", f"news-{code}") as reader,
        ):
            assert program.stdin is not None
            program.stdin.write(b"first\n")
            program.stdin.flush()
            assert reader.next_block(60) is not None
            program.send_signal(number)
            _, output = program.communicate(timeout=60)
            assert (program.returncode, output) == (code, b"wrote 1 event, 5 bytes\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_terminated_export_removes_its_temporary_file(
    server: nadi.standalone.EmbeddedServer, tmp_path: Path, number: signal.Signals
) -> None:
    with running(server, "export", "home", "long", str(tmp_path / "x.avro")) as program:
        _until(program, lambda: bool(list(tmp_path.iterdir())))
        program.send_signal(number)
        program.communicate(timeout=60)
        assert program.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


SIGNAL_IN_FINALIZER = """
import os, signal, sys, time
from nadi.cli import app

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(0.1)

def work():
    for _ in range(3):
        Finalized()
    time.sleep(150)

app.app = work
app.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_a_finalizer_ends_the_program(number: signal.Signals) -> None:
    """Python ignores exceptions raised in finalizers, of which thousands run per second."""
    ended = subprocess.run(
        [sys.executable, "-c", SIGNAL_IN_FINALIZER, str(int(number))], capture_output=True, timeout=60
    )
    assert ended.returncode in (128 + number, -number)
    assert b"ignored" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "times", "pattern"),
    [
        ((), 1, rb"wrote 1 event, 5 bytes; [12] more may have been stored\n"),
        ((), 2, rb"wrote 1 event, 5 bytes; [12] more may have been stored\n"),
        (("--transaction",), 1, rb"nothing was written: the transaction will be aborted when its lease ends\n"),
    ],
)
def test_interrupted_write_ends_while_the_server_hangs(
    tmp_path: Path, options: tuple[str, ...], times: int, pattern: bytes
) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "news", 1)
        with (
            running(server, "write", "home", "news", *options) as program,
            manager.create_reader("home", "news") as reader,
        ):
            assert program.stdin is not None
            program.stdin.write(b"first\n")
            program.stdin.flush()
            if options:
                _until(program, lambda: b"nadi_unfinished_transactions 1.0" in _metrics(server))
            else:
                assert reader.next_block(60) is not None
                manager.stream_info("home", "news")  # by then the first event is acknowledged, too
            os.kill(server.pid, signal.SIGSTOP)
            try:
                for line in (b"second\n", b"third\n"):  # once the third is read, the second has been sent
                    program.stdin.write(line)
                    program.stdin.flush()
                    _until(program, lambda: not _unread(program.stdin))
                started = time.monotonic()
                for _ in range(times):
                    program.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        program.wait(1)
                _, output = program.communicate(timeout=50)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert program.returncode == 130
            assert re.fullmatch(pattern, output), output
            assert time.monotonic() - started < 20


def _metrics(server: nadi.standalone.EmbeddedServer) -> bytes:
    with urlopen(f"{server.rest_uri}/metrics") as answer:
        body: bytes = answer.read()
    return body


def _unread(pipe: IO[bytes] | None) -> int:
    """Return the number of unread bytes in a pipe."""
    assert pipe is not None
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _until(program: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        with suppress(subprocess.TimeoutExpired):
            program.wait(0.02)
            raise AssertionError("the program ended early")
    raise AssertionError("timeout")
