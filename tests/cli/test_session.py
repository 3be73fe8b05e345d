"""Messages of a command that can't reach a server."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest

from tests.cli.test_streams import Shell
from tests.support.ports import free_port


@pytest.mark.parametrize(
    "command",
    ["scope list", "read home meters", "scrub --status", "sql 'table home.m'"],
)
def test_command_without_server_prints_a_notice_and_an_error(command: str) -> None:
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-m", "nadi", *shlex.split(command)],
        env={**os.environ, "NADI_CONTROLLER": f"tcp://127.0.0.1:{port}", "NADI_PATIENCE": "1.5"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    notice, error = done.stderr.splitlines()
    assert f"127.0.0.1:{port}" in notice
    assert "1.5 s" in notice
    assert error.startswith("error: ")
    assert f"127.0.0.1:{port}" in error
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:9090,127.0.0.1:9190",
        "tcp://127.0.0.1:9090,tcp://127.0.0.1:9190",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:0",
        "http://127.0.0.1:9090",
    ],
)
def test_command_with_an_invalid_address_fails_at_once(address: str) -> None:
    assert address in Shell(address).run("scope", "list", code=2).stderr.replace("\n", "")


def test_messages_of_libraries_are_not_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        Thread(target=answer, daemon=True).start()
        # -u: not forked, as gRPC reads its settings when it is imported
        command = [sys.executable, "-u", "-m", "nadi", "scope", "list", "--patience", "2"]
        done = subprocess.run(
            [*command, "--controller", f"tls://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    notice, error = done.stderr.splitlines()
    assert f"127.0.0.1:{port}" in notice
    assert error.startswith("error: ")
